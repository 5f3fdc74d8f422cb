//! Identity of this process on a network: said once for all commands, by `--cert` or GLINT_CERT.

use glint_mount::MountedAt;
use glint_net::tls::TlsIdentity;
use glint_net::{Address, UNIX_PREFIX};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// Sets the directory of the certificate and its key. The first one set counts.
pub fn set(directory: Option<PathBuf>) {
    if let Some(directory) = directory {
        // The directory is read again later, from wherever this process is then.
        let _ = DIRECTORY.set(std::path::absolute(&directory).unwrap_or(directory));
    }
}

/// Identity of this process, if one was set.
pub fn get() -> Result<Option<TlsIdentity>, String> {
    let load = |directory: &PathBuf| {
        TlsIdentity::load(directory).map_err(|error| {
            format!(
                "{error}; `glint cert issue` makes the files that --cert {} needs",
                directory.display()
            )
        })
    };
    DIRECTORY.get().map(load).transpose()
}

/// Port at which servers with an MDS listen by default.
pub const PORT: u16 = 5640;
/// The socket in a data directory.
pub const SOCKET: &str = "glint.sock";
/// File that each data directory has.
pub const DATA: &str = "glint.json";

/// File of a data directory that says where its server listens.
pub const LISTEN: &str = "listen";

/// Whether people say a path, and not a host: with a slash, or by the name of something that is
/// here and that a command can be about. Of a mount nothing is looked up: it may be dead.
pub fn is_path(said: &str) -> bool {
    let path = Path::new(said);
    if said.contains('/') || [".", ".."].contains(&said) {
        return true;
    }
    let (absolute, mounts) = (crate::target::resolve(path), glint_mount::mounts());
    if mounts.iter().any(|mount| mount.path == absolute) {
        return true;
    }
    let Ok(found) = std::fs::symlink_metadata(path) else { return false };
    let is_within = |mount: &MountedAt| absolute.starts_with(&mount.path);
    found.file_type().is_socket()
        || is_there(&path.join(DATA))
        || mounts.iter().any(|mount| mount.kind == glint_mount::FS_TYPE && is_within(mount))
}

/// Whether there is something, as far as this user may know: what is hidden may be there.
fn is_there(path: &Path) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    !std::fs::symlink_metadata(path).is_err_and(|e| [NotFound, NotADirectory].contains(&e.kind()))
}

/// An address as people say it, in full: a host may come without the port, a socket as its path
/// or as that of the data directory that it is in.
pub fn in_full(text: &str) -> String {
    let unix = text.strip_prefix(UNIX_PREFIX);
    if let Some(path) = unix.or_else(|| is_path(text).then_some(text)) {
        let path = Path::new(path);
        let path = if path.is_dir() { path.join(SOCKET) } else { path.to_owned() };
        let path = std::path::absolute(&path).unwrap_or(path);
        return format!("{UNIX_PREFIX}{}", path.display());
    }
    with_port(text)
}

/// The address of a host, which may come without the port.
pub fn with_port(text: &str) -> String {
    match text.rsplit_once(':') {
        Some((host, _)) if !host.contains(':') || host.ends_with(']') => text.to_owned(),
        // A number of IPv6 without brackets.
        Some(_) if !text.starts_with('[') => format!("[{text}]:{PORT}"),
        _ => format!("{text}:{PORT}"),
    }
}

/// A server as the table of mounts shows it, as it was said: a path is one from any directory.
pub fn as_source(said: &str) -> String {
    let absolute = |path: &str| {
        let absolute = std::path::absolute(path).ok();
        absolute.map_or_else(|| path.to_owned(), |path| path.display().to_string())
    };
    match said.strip_prefix(UNIX_PREFIX) {
        Some(path) => format!("{UNIX_PREFIX}{}", absolute(path)),
        None if is_path(said) => absolute(said),
        None => said.to_owned(),
    }
}

/// The address of the server of a mount, from the table of mounts. Nothing in the current directory is
/// taken for it.
pub fn of_source(source: &str) -> Result<String, String> {
    let path = source.strip_prefix(UNIX_PREFIX).or_else(|| source.contains('/').then_some(source));
    match path {
        Some(path) if path.starts_with('/') => Ok(in_full(&format!("{UNIX_PREFIX}{path}"))),
        Some(_) => Err(format!("the server {source} was said by a path from elsewhere")),
        None => Ok(with_port(source)),
    }
}

/// An address as people say it, with who this process is there.
pub fn address(text: &str) -> Result<Address, String> {
    exact(&in_full(text)).map_err(|why| format!("server {text}: {why}"))
}

/// The same of an address that is known in full. Nothing in the current directory is taken for it:
/// whoever may write there could answer in the place of the server.
pub fn exact(full: &str) -> Result<Address, String> {
    if !full.starts_with(UNIX_PREFIX) {
        host_and_port(full)?;
    }
    Ok(Address::parse_as(full, get()?))
}

/// Refuses what is not HOST:PORT, whether or not there is such a host.
pub fn host_and_port(text: &str) -> Result<(), String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(()),
        Some((host, port)) if !host.is_empty() => Err(format!(
            "port {port:?} is no number from 0 to 65535; say HOST:PORT, as {host}:{PORT}"
        )),
        _ => Err(format!("not an address; say HOST:PORT, as 127.0.0.1:{PORT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{address, as_source, host_and_port, in_full, of_source};

    #[test]
    fn a_wrong_address_is_told_what_it_lacks() {
        for right in ["server:1", "[::1]:77", "10.0.0.1:65535"] {
            assert_eq!(host_and_port(right), Ok(()), "{right}");
        }
        for (wrong, told) in [
            ("server:77990", "port \"77990\" is no number"),
            ("server:", "as server:5640"),
            ("server", "say HOST:PORT"),
            (":7701", "say HOST:PORT"),
        ] {
            let why = host_and_port(wrong).unwrap_err();
            assert!(why.contains(told), "{wrong}: {why}");
        }
        let why = address("server:77990").unwrap_err();
        assert!(why.starts_with("server server:77990: port"), "{why}");
    }

    #[test]
    fn the_server_of_a_mount_is_the_same_from_everywhere() {
        for (said, source, address) in [
            ("server", "server", "server:5640"),
            ("::1", "::1", "[::1]:5640"),
            ("/nosuch/data", "/nosuch/data", "unix:/nosuch/data"),
            ("unix:/proc", "unix:/proc", "unix:/proc/glint.sock"),
            ("/proc", "/proc", "unix:/proc/glint.sock"),
        ] {
            assert_eq!(as_source(said), source);
            assert_eq!(of_source(source).as_deref(), Ok(address), "{said}");
        }
        let here = std::env::current_dir().unwrap();
        assert_eq!(as_source("unix:a/b"), format!("unix:{}/a/b", here.display()));
        assert_eq!(as_source("./a"), format!("{}/a", here.display()));
        assert!(of_source("unix:a/b").is_err() && of_source("a/b").is_err());
    }

    #[test]
    fn what_people_leave_out_is_added() {
        for (said, meant) in [
            ("server", "server:5640"),
            ("server:77", "server:77"),
            ("10.0.0.1", "10.0.0.1:5640"),
            ("[::1]", "[::1]:5640"),
            ("[::1]:77", "[::1]:77"),
            ("fe80::7", "[fe80::7]:5640"),
            ("unix:/run/x", "unix:/run/x"),
            ("/run/x", "unix:/run/x"),
            ("/proc", "unix:/proc/glint.sock"),
        ] {
            assert_eq!(in_full(said), meant);
        }
    }
}

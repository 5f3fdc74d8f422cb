//! Who this process is on a network: said once for all commands, by `--cert` or GLINT_CERT.

use glint_net::tls::Identity;
use glint_net::{Address, UNIX_PREFIX};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// Where the certificate and its key are. The first that is said counts.
pub fn set(directory: Option<PathBuf>) {
    if let Some(directory) = directory {
        // It is read again later, from wherever this process is then.
        let _ = DIRECTORY.set(std::path::absolute(&directory).unwrap_or(directory));
    }
}

/// Who this process is, if it was said.
pub fn get() -> Result<Option<Identity>, String> {
    let load = |directory: &PathBuf| {
        Identity::load(directory).map_err(|error| {
            format!(
                "{error}; `glint cert issue` makes the files that --cert {} needs",
                directory.display()
            )
        })
    };
    DIRECTORY.get().map(load).transpose()
}

/// Where servers with an MDS listen, unless something else is said.
pub const PORT: u16 = 5640;
/// The socket in a data directory.
pub const SOCKET: &str = "glint.sock";

/// An address as people say it, in full: a host may come without the port, a socket as its path
/// or as that of the data directory that it is in.
pub fn in_full(text: &str) -> String {
    let unix = text.strip_prefix(UNIX_PREFIX);
    if let Some(path) = unix.or_else(|| text.contains('/').then_some(text)) {
        let path = Path::new(path);
        let path = if path.is_dir() { path.join(SOCKET) } else { path.to_owned() };
        let path = std::path::absolute(&path).unwrap_or(path);
        return format!("{UNIX_PREFIX}{}", path.display());
    }
    match text.rsplit_once(':') {
        Some((host, _)) if !host.contains(':') || host.ends_with(']') => text.to_owned(),
        // A number of IPv6 without brackets.
        Some(_) if !text.starts_with('[') => format!("[{text}]:{PORT}"),
        _ => format!("{text}:{PORT}"),
    }
}

/// An address, with who this process is there.
pub fn address(text: &str) -> Result<Address, String> {
    Ok(Address::parse_as(&in_full(text), get()?))
}

#[cfg(test)]
mod tests {
    use super::in_full;

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

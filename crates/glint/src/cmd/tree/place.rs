//! Where a starting point is: which servers have it, and its path there.

use crate::identity::{SOCKET, of_source};
use crate::target::resolve;
use glint_mount::{MountedAt, mount_showing};
use glint_net::UNIX_PREFIX;
use glint_proto::{Errno, Ino};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A starting point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cmd) struct Place {
    /// Address of the server with the MDS, in full.
    pub(in crate::cmd) address: String,
    /// Names from the root of the file system to it.
    pub(in crate::cmd) names: Vec<Vec<u8>>,
    /// It must be a directory, or a link to one: it was said with a slash after it.
    pub(in crate::cmd) is_directory: bool,
    /// The mount in which it was said as a path.
    mount: Option<ShownBy>,
    /// The mount does not allow changes.
    pub(in crate::cmd) is_read_only: bool,
    /// What is mounted below that path, which the servers do not know of.
    pub(in crate::cmd) mounted_below: Option<PathBuf>,
}

/// A mount that shows a starting point.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ShownBy {
    /// The path as it was said.
    said: OsString,
    /// The kernel's number of the file system, as MAJOR:MINOR.
    device: String,
}

/// Why a starting point was not found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cmd) enum NoPlace {
    /// As a system call says it of the path.
    Refused(Errno),
    /// A reason that names the path.
    Told(String),
}

impl From<Errno> for NoPlace {
    fn from(error: Errno) -> NoPlace {
        NoPlace::Refused(error)
    }
}

pub(in crate::cmd) fn names(path: &[u8]) -> Vec<Vec<u8>> {
    let is_name = |name: &&[u8]| !name.is_empty() && *name != b".";
    path.split(|byte| *byte == b'/').filter(is_name).map(<[u8]>::to_vec).collect()
}

/// Whether a path leads through its last name: there is a slash after it, or `.` or `..`.
fn leads_on(path: &[u8]) -> bool {
    let mut parts = path.split(|byte| *byte == b'/');
    !path.is_empty() && parts.next_back().is_some_and(|last| matches!(last, b"" | b"." | b".."))
}

/// HOST:PORT or HOST:PORT/PATH, in its parts.
fn on_server(said: &[u8]) -> Option<Place> {
    let end = said.iter().position(|byte| *byte == b'/').unwrap_or(said.len());
    let address = std::str::from_utf8(&said[..end]).ok()?;
    crate::identity::host_and_port(address).ok()?;
    let (address, path) = (address.to_owned(), &said[end..]);
    let is_directory = leads_on(path);
    let (names, mount, is_read_only, mounted_below) = (names(path), None, false, None);
    Some(Place { address, names, is_directory, mount, is_read_only, mounted_below })
}

/// Address of a `glint up`, which listens only if it was told to.
fn socket_of_up(data: &Path) -> Result<String, String> {
    let socket = data.join(SOCKET);
    match std::fs::symlink_metadata(&socket) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(format!(
            "the `glint up` of {} does not listen at its socket; start it with --listen unix:{}, \
             or say HOST:PORT/PATH if it listens there",
            data.display(),
            socket.display()
        )),
        _ => Ok(format!("{UNIX_PREFIX}{}", socket.display())),
    }
}

fn absolute(said: &Path) -> PathBuf {
    std::path::absolute(said).unwrap_or_else(|_| said.to_owned())
}

/// Whether the first name of a path is one in the current directory.
fn is_here(said: &Path) -> bool {
    said.components().next().is_some_and(|first| std::fs::symlink_metadata(first).is_ok())
}

/// Attributes of a path as the kernel shows it; of what a link leads to if it `follows` one.
fn stat(path: &Path, follows: bool) -> Result<std::fs::Metadata, Errno> {
    let found = if follows { path.metadata() } else { path.symlink_metadata() };
    found.map_err(|error| Errno::from_io(&error))
}

/// The text of an error as find(1) shows it: without its number.
pub(in crate::cmd) fn without_number(error: &str) -> &str {
    error.split(" (os error").next().unwrap_or(error)
}

impl Place {
    /// Finds a starting point: a path in a mount, or HOST:PORT/PATH.
    pub(in crate::cmd) fn find(said: &OsStr) -> Result<Place, NoPlace> {
        let is_directory = leads_on(said.as_bytes());
        let said = Path::new(said);
        if let Some(place) = on_server(said.as_os_str().as_bytes()).filter(|_| !is_here(said)) {
            return Ok(place);
        }
        let path = match is_directory && glint_mount::mounted_at(&absolute(said)).is_none() {
            true => said.canonicalize().map_err(|error| Errno::from_io(&error))?,
            false => resolve(said),
        };
        let all = glint_mount::mounts();
        let shown = mount_showing(&all, &path);
        let Some(mount) = shown.filter(|mount| mount.kind == glint_mount::FS_TYPE) else {
            stat(said, is_directory).map_err(|error| match error {
                Errno::ENOENT if said.is_relative() && !is_here(said) => NoPlace::Told(format!(
                    "{}: No such file or directory; a server is said as HOST:PORT/PATH",
                    said.display()
                )),
                error => error.into(),
            })?;
            let why = "is not in a Glint mount; say a path in one, or HOST:PORT/PATH";
            return Err(NoPlace::Told(format!("{} {why}", said.display())));
        };
        let address = match mount.source.strip_prefix("glint:/") {
            Some(data) => socket_of_up(Path::new(&format!("/{data}"))),
            None => of_source(&mount.source).map_err(|why| {
                format!("{}: {why}; say HOST:PORT/PATH, or mount it anew", said.display())
            }),
        };
        let address = address.map_err(NoPlace::Told)?;
        let below = path.strip_prefix(&mount.path).unwrap_or(&path);
        let inner = mount.root.strip_prefix("/").unwrap_or(&mount.root).join(below);
        let names = names(inner.as_os_str().as_bytes());
        let is_below = |other: &&MountedAt| {
            other.path != path
                && other.path.starts_with(&path)
                && mount_showing(&all, &other.path).is_some_and(|shown| shown.id == other.id)
        };
        let mounted_below = all.iter().find(is_below).map(|other| other.path.clone());
        let is_read_only = mount.options.split(',').any(|option| option == "ro");
        let mount = Some(ShownBy { said: said.into(), device: mount.device.clone() });
        Ok(Place { address, names, is_directory, mount, is_read_only, mounted_below })
    }

    /// Whether it was said as a path in a mount.
    pub(in crate::cmd) fn is_in_mount(&self) -> bool {
        self.mount.is_some()
    }

    /// Says that the mount shows another file than the servers have at this path.
    pub(super) fn is_shown_as_another(&self) -> String {
        let said = self.mount.as_ref().map(|mount| mount.said.to_string_lossy());
        let said = said.unwrap_or_default();
        format!(
            "{said}: the mount shows another file there than this command finds; was it mounted \
             with another certificate?"
        )
    }

    /// Whether its mount, if it has one, shows the inode that was found at the servers. Else the mount
    /// shows a part of the file system that this process does not know of, or is another one by now.
    pub(super) async fn shows(&self, ino: Ino) -> Result<bool, Errno> {
        let Some(ShownBy { said, device }) = self.mount.clone() else { return Ok(true) };
        let follows = self.is_directory;
        // On another thread: a mount may wait, and Ctrl-C is heard meanwhile.
        match blocking::unblock(move || stat(Path::new(&said), follows)).await {
            Ok(shown) => {
                let number = shown.dev();
                let shown_at = format!("{}:{}", libc::major(number), libc::minor(number));
                Ok(shown_at == device && shown.ino() == ino.0)
            }
            // Also EACCES: what the mount does not show the caller, whatever he may at the servers.
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_and_a_path_are_told_apart() {
        for (said, address, count) in [
            ("host:5640", "host:5640", 0),
            ("host:5640/", "host:5640", 0),
            ("[::1]:77/a//b/./c", "[::1]:77", 3),
        ] {
            let place = on_server(said.as_bytes()).unwrap();
            assert_eq!((place.address.as_str(), place.names.len()), (address, count), "{said}");
        }
        for (said, expected) in
            [("h:1", false), ("h:1/", true), ("h:1/a", false), ("h:1/a/", true), ("h:1/a/.", true)]
        {
            assert_eq!(on_server(said.as_bytes()).unwrap().is_directory, expected, "{said}");
        }
        for said in ["/mnt/host:5640", "./host:5640", "host", "host:x/a", "a/b:1"] {
            assert_eq!(on_server(said.as_bytes()), None, "{said}");
        }
    }
}

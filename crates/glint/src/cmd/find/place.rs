//! Where a starting point is: which servers have it, and its path there.

use crate::identity::{SOCKET, in_full};
use crate::target::resolve;
use glint_net::UNIX_PREFIX;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A starting point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// Address of the server with the MDS.
    pub(super) address: String,
    /// Names from the root of the file system to it.
    pub(super) names: Vec<Vec<u8>>,
}

fn names(path: &[u8]) -> Vec<Vec<u8>> {
    let is_name = |name: &&[u8]| !name.is_empty() && *name != b".";
    path.split(|byte| *byte == b'/').filter(is_name).map(<[u8]>::to_vec).collect()
}

/// HOST:PORT or HOST:PORT/PATH, in its parts.
fn on_server(said: &[u8]) -> Option<Place> {
    let end = said.iter().position(|byte| *byte == b'/').unwrap_or(said.len());
    let address = std::str::from_utf8(&said[..end]).ok()?;
    crate::identity::host_and_port(address).ok()?;
    Some(Place { address: address.to_owned(), names: names(&said[end..]) })
}

/// Address of a `glint up`, which listens only if it was told to.
fn socket_of_up(data: &Path) -> Result<String, String> {
    let socket = data.join(SOCKET);
    match std::fs::symlink_metadata(&socket) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(format!(
            "the `glint up` of {} does not listen at its socket; start it with --listen unix:{}, \
             or use find(1)",
            data.display(),
            socket.display()
        )),
        _ => Ok(in_full(&format!("{UNIX_PREFIX}{}", socket.display()))),
    }
}

impl Place {
    /// Finds a starting point: a path in a mount, or HOST:PORT/PATH.
    pub(super) fn find(said: &OsStr) -> Result<Place, String> {
        if let Some(place) = on_server(said.as_bytes()) {
            return Ok(place);
        }
        let said = Path::new(said);
        let path = match said.components().next_back() {
            Some(std::path::Component::Normal(_)) => resolve(said),
            _ => said.canonicalize().map_err(|e| format!("{}: {e}", said.display()))?,
        };
        let all = glint_mount::mounts();
        let within = all.iter().rev().filter(|mount| path.starts_with(&mount.path));
        let innermost = within.max_by_key(|mount| mount.path.as_os_str().len());
        let mount =
            innermost.filter(|mount| mount.kind == glint_mount::FS_TYPE).ok_or_else(|| {
                format!(
                    "{} is not in a Glint mount; say a path in one, or HOST:PORT/PATH",
                    said.display()
                )
            })?;
        let address = match mount.source.strip_prefix("glint:/") {
            Some(data) => socket_of_up(Path::new(&format!("/{data}")))?,
            None => mount.source.clone(),
        };
        let below = path.strip_prefix(&mount.path).unwrap_or(&path);
        Ok(Place { address, names: names(below.as_os_str().as_bytes()) })
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
        for said in ["/mnt/host:5640", "./host:5640", "host", "host:x/a", "a/b:1"] {
            assert_eq!(on_server(said.as_bytes()), None, "{said}");
        }
    }
}

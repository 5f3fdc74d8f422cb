//! Unix sockets: at paths of any length, and for their owner alone, because who says over one
//! which user it is, is believed.

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Bytes that `sun_path` holds beside its terminating zero.
const PATH_BYTES_MAX: usize = 107;
/// Connections that may wait to be accepted; the kernel lowers it to its own limit.
const BACKLOG: i32 = 4096;

/// A path that a socket address has room for; a longer one leads through its directory, which
/// is open as long as this lives.
pub(crate) struct Way {
    path: PathBuf,
    _directory: Option<OwnedFd>,
}

impl Way {
    pub(crate) fn to(socket: &Path) -> io::Result<Way> {
        if socket.as_os_str().len() <= PATH_BYTES_MAX {
            return Ok(Way { path: socket.to_owned(), _directory: None });
        }
        let (Some(parent), Some(name)) = (socket.parent(), socket.file_name()) else {
            return Err(ErrorKind::InvalidInput.into());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(parent, flags, Mode::empty())?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
        if path.as_os_str().len() > PATH_BYTES_MAX {
            let name = name.display();
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                format!("the name {name} is too long for a socket"),
            ));
        }
        Ok(Way { path, _directory: Some(directory) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Connects, on the calling thread.
fn connect_blocking(socket: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(Way::to(socket)?.path())
}

/// Binds. The socket of a server that is gone is taken over; anything else that is there stays.
pub(crate) fn bind(socket: &Path) -> io::Result<UnixListener> {
    match bind_new(socket) {
        Err(e) if e.kind() == ErrorKind::AddrInUse => {
            // Connecting to a file is refused as by a socket that nobody listens at.
            if !std::fs::symlink_metadata(socket)?.file_type().is_socket() {
                let what = format!("{} is not a socket; choose another", socket.display());
                return Err(io::Error::new(ErrorKind::AlreadyExists, what));
            }
            match connect_blocking(socket) {
                Err(gone) if gone.kind() == ErrorKind::ConnectionRefused => {}
                _ => return Err(e),
            }
            std::fs::remove_file(socket)?;
            bind_new(socket)
        }
        bound => bound,
    }
}

fn bind_new(socket: &Path) -> io::Result<UnixListener> {
    let way = Way::to(socket)?;
    let flags = SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file gets the mode that the socket has: at no time can others connect.
    rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&fd, &SocketAddrUnix::new(way.path())?)?;
    rustix::net::listen(&fd, BACKLOG)?;
    Ok(fd.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_long_path_is_no_obstacle_and_nobody_else_gets_in() {
        let top = std::env::temp_dir().join(format!("glint-socket-{}", std::process::id()));
        for directory in [top.clone(), top.join("d ".repeat(100))] {
            std::fs::create_dir_all(&directory).unwrap();
            let socket = directory.join("s");
            let listener = bind(&socket).unwrap();
            assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
            connect_blocking(&socket).unwrap();
            assert_eq!(bind(&socket).unwrap_err().kind(), ErrorKind::AddrInUse);
            drop(listener);
            // The socket file of a server that is gone is in nobody's way.
            bind(&socket).unwrap();
        }
        assert!(bind(&top.join("n".repeat(150))).is_err());
        // A file that is no socket is not removed, nor the target of a link.
        let (file, link) = (top.join("file"), top.join("link"));
        std::fs::write(&file, b"words").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        for path in [&file, &link] {
            let error = bind(path).unwrap_err();
            assert!(error.to_string().contains("is not a socket"), "{error}");
            assert_eq!(std::fs::read(path).unwrap(), b"words");
        }
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        std::fs::remove_dir_all(&top).unwrap();
    }
}

//! The error of every file system call: an errno, and nothing else, because that
//! is all a system call can say. Crates keep their own enum with context and map
//! it to an [`Errno`] in one place.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A positive `errno` value, see errno(3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Errno(pub i32);

/// Result of a file system call.
pub type FsResult<T> = Result<T, Errno>;

macro_rules! errnos {
    ($($name:ident),* $(,)?) => {
        #[allow(missing_docs)]
        impl Errno {
            $(pub const $name: Errno = Errno(libc::$name);)*

            /// Symbolic name, as errno(3) gives it.
            pub fn name(self) -> &'static str {
                $(if self.0 == libc::$name { return stringify!($name); })*
                "E?"
            }
        }
    };
}

errnos!(
    EPERM,
    ENOENT,
    EINTR,
    EIO,
    ENXIO,
    E2BIG,
    EBADF,
    EAGAIN,
    ENOMEM,
    EACCES,
    EBUSY,
    EEXIST,
    EXDEV,
    ENODEV,
    ENOTDIR,
    EISDIR,
    EINVAL,
    EMFILE,
    ENOLCK,
    ENFILE,
    EFBIG,
    ENOSPC,
    EROFS,
    EMLINK,
    ERANGE,
    EDEADLK,
    ENAMETOOLONG,
    ENOSYS,
    ENOTEMPTY,
    ELOOP,
    ENODATA,
    EPROTO,
    EOVERFLOW,
    EOPNOTSUPP,
    ENOBUFS,
    ETIMEDOUT,
    ENOTCONN,
    ESTALE,
    EREMCHG,
    EDQUOT,
    EBADMSG,
    ENOTTY,
);

impl Errno {
    /// The errno of an I/O error of the operating system; EIO where it has none.
    pub fn from_io(error: &std::io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

impl std::error::Error for Errno {}

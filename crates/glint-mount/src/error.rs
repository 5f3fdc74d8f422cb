//! Errors of mounts.

/// Error of a mount, with what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no FUSE in this kernel.
    #[error(
        "/dev/fuse: {0}; load the fuse module (`modprobe fuse`) or, in a container, pass the device in"
    )]
    NoDevice(std::io::Error),
    /// The mount point cannot be used.
    #[error("mount point {path}: {reason}")]
    MountPoint {
        /// Mount point.
        path: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// The kernel speaks something else.
    #[error("the kernel's FUSE protocol is {0}.{1}; Glint needs 7.36 (Linux 5.16) or later")]
    Version(u32, u32),
    /// io_uring was asked for by name and is not there.
    #[error(
        "FUSE over io_uring is not available: it needs Linux 6.14 and `echo Y > /sys/module/fuse/parameters/enable_uring`; or use -o transport=auto"
    )]
    NoUring,
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// Step that failed.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl MountError {
    pub(crate) fn io(what: &'static str, source: impl Into<std::io::Error>) -> MountError {
        MountError::Io { what, source: source.into() }
    }
}

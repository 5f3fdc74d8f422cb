//! FUSE adapter: a kernel request becomes a call of the file system client.
//!
//! Promises: both transports (FUSE over io_uring and /dev/fuse) go through one
//! adapter and behave the same; a request that has to wait parks and never holds a
//! thread; what comes from the kernel is checked before it is used.
//!
//! Does not know: networks, servers, or where anything is stored. It serves any
//! [`glint_client::Vfs`].

mod abi;
mod adapter;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod mountpoint;
mod null;
mod session;
mod transport;

pub use error::MountError;
pub use mountpoint::{
    FS_TYPE, MountOptions, MountedAt, check_rights, holder_elsewhere, is_dead, mount_showing,
    mounted_at, mounts, prepare, remount, unmount,
};
pub use null::NullFs;
pub use rustix::mount::MountFlags;
pub use session::{Mount, TransportKind, uring_hint};

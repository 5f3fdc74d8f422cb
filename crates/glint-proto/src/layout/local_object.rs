//! An object on this host, in the hand of the kernel: the interface by which a mount has it read
//! there, without a crate between the mount and the OST.

use crate::FsResult;
use std::os::fd::BorrowedFd;

/// An object that the kernel may read by itself until this is dropped.
///
/// Promises: what of it had checksums when it was handed out was compared with them since the OST
/// has opened it; all that the OST acknowledges is in the file of the descriptor.
pub trait LocalObject: Send + Sync {
    /// Its file, open to read and to write; `None` if it is not one of this host.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Size in bytes.
    fn size(&self) -> FsResult<u64>;

    /// Whether somebody beside the OST has the file open or mapped, or that is not known. Waits for
    /// nothing.
    fn is_in_use(&self) -> bool;

    /// From now on the kernel may change bytes of it unseen: it has no checksums, on stable
    /// storage, and gets none before this is dropped. Waits for the disk.
    fn allow_stores(&self) -> FsResult<()>;
}

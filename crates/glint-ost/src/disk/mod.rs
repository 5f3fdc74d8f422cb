//! The few things that a store does with a disk: on the files of a local file system, or in
//! memory for a simulation, where it fails and loses what was not synced.
//!
//! Static dispatch: a request of a server is the system calls of `local.rs` and nothing more.
//!
//! A store relies on this order, and on no other: what a loss of power leaves of the changes of
//! one file's size, attributes and times is a prefix of them, and bytes past the size are never
//! seen. Bytes that are not synced may be there or not, each block for itself.

mod inode;
mod lease;
mod local;
pub mod memory;
pub(crate) mod ring;
#[cfg(test)]
mod tests;
pub(crate) mod threads;
mod watch;

pub use local::LocalDisk;
pub use watch::{CallKind, DiskWatch, WatchedCall};

use glint_proto::Timestamp;
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;

/// A task that waits for a disk in a simulation, in the place of a thread.
pub type DiskTask = Pin<Box<dyn Future<Output = ()>>>;

/// Result of an operation.
pub type DiskResult<T> = Result<T, Errno>;

/// A file as the disk knows it.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// Size in bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Time of the last modification.
    pub mtime: Timestamp,
}

/// Space of a disk, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct DiskSpace {
    /// All.
    pub total: u64,
    /// Free bytes, with those kept for the superuser.
    pub free: u64,
    /// Bytes free for everybody.
    pub available: u64,
    /// Id of the file system, to recognize two directories on one.
    pub file_system: u64,
}

/// The directory with the directories of objects. A path is `DIRECTORY/NAME`.
pub trait Disk: Send + Sync + 'static {
    /// An open file.
    type File: DiskFile;

    /// An open directory.
    type Directory;

    /// Whether operations may keep a thread that waits for a device. Others have tasks for what waits:
    /// [`Disk::spawn`].
    const WAITS: bool;

    /// Waits for a disk in a simulation, where no thread may wait. A disk that is there is waited
    /// for by those who use it.
    fn turn(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }

    /// Runs a task in a simulation, in which no thread may wait: to its end, whoever waits for it.
    fn spawn(&self, _: DiskTask) {}

    /// Opens a file that is there.
    fn open(&self, path: &str) -> DiskResult<Self::File>;

    /// Opens a file that is there, only to read it: also where nothing can be written any more.
    fn open_to_read(&self, path: &str) -> DiskResult<Self::File> {
        self.open(path)
    }

    /// Opens a file that is there, only to read what the disk has of it and not what is in memory,
    /// where that can be told apart. Buffers, offsets and lengths are then multiples of 4 KiB.
    fn open_uncached(&self, path: &str) -> DiskResult<Self::File> {
        self.open_to_read(path)
    }

    /// Opens a file, which is made if it is not there.
    fn create(&self, path: &str) -> DiskResult<Self::File>;

    /// Removes a file.
    fn unlink(&self, path: &str) -> DiskResult<()>;

    /// The names in a directory.
    fn names(&self, directory: &str) -> io::Result<Vec<OsString>>;

    /// Size of a file.
    fn size(&self, path: &str) -> DiskResult<u64>;

    /// Opens a directory.
    fn directory(&self, directory: &str) -> DiskResult<Self::Directory>;

    /// The entries of a directory to stable storage.
    fn sync_directory(&self, directory: &Self::Directory) -> DiskResult<()>;

    /// Everything to stable storage.
    fn sync_all(&self) -> DiskResult<()>;

    /// Space.
    fn space(&self) -> DiskResult<DiskSpace>;

    /// Offset at which the largest possible file ends.
    fn file_bytes_max(&self) -> u64;

    /// Whether its files lie in the memory of this host: a read of them waits for no device but that of
    /// the swap space.
    fn is_memory(&self) -> bool {
        false
    }
}

/// An open file, to read and to write.
pub trait DiskFile: Send + Sync + 'static {
    /// Reads what is there from `offset` on.
    fn read(&self, buffer: &mut [u8], offset: u64) -> DiskResult<usize>;

    /// Reads from `offset` on as far as the bytes are in memory; EAGAIN if none are.
    fn read_cached(&self, buffer: &mut [u8], offset: u64) -> DiskResult<usize>;

    /// Reads what is there from `offset` on, and leaves no pages in memory that were not there
    /// before: EOPNOTSUPP where that is not possible.
    fn read_passing(&self, _: &mut [u8], _: u64) -> DiskResult<usize> {
        Err(Errno::OPNOTSUPP)
    }

    /// Writes some of `data`, of which memory keeps nothing once it is on the disk: EOPNOTSUPP where
    /// that is not possible.
    fn write_passing(&self, _: &[u8], _: u64) -> DiskResult<usize> {
        Err(Errno::OPNOTSUPP)
    }

    /// Has bytes from an offset on, and so many, read into memory. Waits for none of them.
    fn will_need(&self, _: u64, _: u64) {}

    /// Drops whole pages from `from` to `to` from memory, as far as the disk has them.
    fn drop_cached(&self, _: u64, _: u64) {}

    /// Writes some of `data`.
    fn write(&self, data: &[u8], offset: u64) -> DiskResult<usize>;

    /// Sets the size.
    fn set_size(&self, size: u64) -> DiskResult<()>;

    /// fallocate(2).
    fn allocate(&self, mode: i32, offset: u64, len: u64) -> DiskResult<()>;

    /// Whether all of a range has blocks of its own; `false` where nobody knows.
    fn is_allocated(&self, offset: u64, len: u64) -> bool;

    /// Next data or hole at or after `offset`; ENXIO if there is none.
    fn seek(&self, offset: u64, hole: bool) -> DiskResult<u64>;

    /// State.
    fn stat(&self) -> DiskResult<Stat>;

    /// Sets the time of the last modification.
    fn set_mtime(&self, mtime: Timestamp) -> DiskResult<()>;

    /// An extended attribute. Returns its length.
    fn attribute(&self, name: &str, value: &mut [u8]) -> DiskResult<usize>;

    /// Sets an extended attribute.
    fn set_attribute(&self, name: &str, value: &[u8]) -> DiskResult<()>;

    /// Removes an extended attribute.
    fn remove_attribute(&self, name: &str) -> DiskResult<()>;

    /// Data and state to stable storage.
    fn sync(&self) -> DiskResult<()>;

    /// Descriptor of the file, by which the kernel of this host may read it, if it has one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether nobody else has the file open or mapped; `false` where nobody knows. Waits for
    /// nothing.
    fn is_alone(&self) -> bool {
        false
    }
}

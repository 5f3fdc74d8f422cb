//! An open object while a ring reads it. If it is removed meanwhile, a thread of the disk closes it
//! later (`store/files.rs`), not the thread of the ring.

use crate::disk::DiskFile;
use crate::store::object::ObjectFile;
use crate::store::object::planned::PlannedRead;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// An object that stays open for as long as this is there.
pub(super) struct HeldObject<F: DiskFile>(pub(super) Arc<ObjectFile<F>>);

impl<F: DiskFile> HeldObject<F> {
    /// See [`ObjectFile::finish_read`].
    pub(super) fn finish_read<'a>(
        &self,
        planned: &PlannedRead,
        data: &'a [u8],
    ) -> io::Result<&'a [u8]> {
        self.0.finish_read(planned, data)
    }
}

impl<F: DiskFile> AsFd for HeldObject<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // A file without one is read from a directory: that is an error.
        self.0.file().descriptor().unwrap_or(rustix::fs::CWD)
    }
}

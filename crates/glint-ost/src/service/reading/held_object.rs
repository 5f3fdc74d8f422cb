//! An open object while a ring reads it.
//!
//! Invariant: the thread of the ring never closes it. Where the object was removed during the read,
//! nothing else holds it, and the file system frees all its blocks when it is closed.

use crate::disk::DiskFile;
use crate::disk::threads::DiskThreads;
use crate::store::object::ObjectFile;
use crate::store::object::planned::PlannedRead;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// An object that stays open for as long as this is there.
pub(super) struct HeldObject<F: DiskFile> {
    /// `None` only while this is dropped.
    file: Option<Arc<ObjectFile<F>>>,
    threads: DiskThreads,
}

impl<F: DiskFile> HeldObject<F> {
    /// Holds an object of the disk that has these threads.
    pub(super) fn new(file: Arc<ObjectFile<F>>, threads: DiskThreads) -> HeldObject<F> {
        HeldObject { file: Some(file), threads }
    }

    /// See [`ObjectFile::finish_read`].
    pub(super) fn finish_read<'a>(
        &self,
        planned: &PlannedRead,
        data: &'a [u8],
    ) -> io::Result<&'a [u8]> {
        self.file.as_ref().ok_or(Errno::BADF)?.finish_read(planned, data)
    }
}

impl<F: DiskFile> AsFd for HeldObject<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let descriptor = self.file.as_ref().and_then(|file| file.file().descriptor());
        // A file without one is read from a directory: that is an error.
        descriptor.unwrap_or(rustix::fs::CWD)
    }
}

impl<F: DiskFile> Drop for HeldObject<F> {
    fn drop(&mut self) {
        if let Some(last) = self.file.take().and_then(Arc::into_inner) {
            self.threads.run(None, Box::new(move |_| drop(last)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ObjectStore;
    use glint_proto::{Ino, ObjectId};

    #[test]
    fn an_object_that_was_removed_meanwhile_is_closed_by_a_thread_of_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let store = ObjectStore::open(dir.path(), 64, Arc::default()).unwrap();
        let object = ObjectId { ino: Ino(1), stripe: 0 };
        for is_removed in [false, true] {
            store.write(object, 0, b"bytes", None, false).unwrap();
            let threads = DiskThreads::default();
            let held = Arc::new(HeldObject::new(store.open_file(object).unwrap(), threads.clone()));
            let by_ring = held.clone();
            if is_removed {
                store.remove(object).unwrap();
            }
            drop(held);
            assert_eq!(threads.count(), 0, "the ring reads it");
            drop(by_ring);
            assert_eq!(threads.count(), usize::from(is_removed));
        }
    }
}

//! An open object that is handed to the kernel, which reads it by itself, and may store to it.
//!
//! Invariant: while bytes may change unseen there are no checksums, on the disk or here, and none
//! are put on.

use super::unreadable::unreadable;
use super::{ObjectFile, ReadMode, Seal, Touches, nanos};
use crate::disk::DiskFile;
use std::io;
use std::sync::atomic::Ordering;

impl<F: DiskFile> ObjectFile<F> {
    /// Bytes with checksums that were not compared with these since the object was opened.
    pub(crate) fn unchecked_bytes(&self) -> io::Result<u64> {
        match &*self.known_seal()? {
            Seal::Sealed(sums) if self.stat()?.size != sums.size() => {
                let error = format!("it should have {} bytes", sums.size());
                Err(io::Error::new(io::ErrorKind::InvalidData, error))
            }
            Seal::Unreadable => Err(unreadable()),
            seal => Ok(seal.sums().map_or(0, |sums| sums.unchecked_bytes())),
        }
    }

    /// Compares the first block of them. Returns false if there is none. Who changes the object
    /// waits for one block. With `stays` its data stays in memory, if data of the object does.
    pub(crate) fn check_next(&self, stays: bool) -> io::Result<bool> {
        // Of several that open the file at once each would compare the same block. Before the lock
        // of the seal, so that nobody who changes the object waits for more than one of them.
        let _one = self.comparing.lock();
        let stays = stays && !self.passes()?;
        let reading = if stays { ReadMode::Waiting } else { ReadMode::AddingNone };
        let seal = self.known_seal()?;
        let checked = match &*seal {
            Seal::Unreadable => Err(unreadable()),
            seal => match seal.sums() {
                Some(sums) => sums.check_next(|room, at| self.read_by(reading, room, at)),
                None => Ok(false),
            },
        };
        drop(seal);
        self.noting(checked)
    }

    /// Whether bytes may change that nobody says.
    pub(super) fn may_change_unseen(&self) -> bool {
        self.stores.load(Ordering::Acquire) > 0
    }

    /// Lets bytes change unseen, once this has returned. `sync` brings the file to stable
    /// storage.
    pub(crate) fn begin_stores(&self, sync: impl Fn(&F) -> io::Result<()>) -> io::Result<()> {
        // Before, so that no checksums are put on once they are off.
        self.stores.fetch_add(1, Ordering::AcqRel);
        let off = self.unseal(Touches::From(0), sync);
        if off.is_err() {
            self.stores.fetch_sub(1, Ordering::AcqRel);
        } else if let Some(sums) = self.seal.read().sums() {
            sums.touch((0, u64::MAX));
        }
        off
    }

    /// Ends what [`ObjectFile::begin_stores`] began: nobody can change bytes unseen. Returns the
    /// number of changes with which the object is to be sealed.
    pub(crate) fn end_stores(&self) -> u64 {
        self.learn_stores();
        self.written.forget_all();
        let changes = self.changes.fetch_add(1, Ordering::AcqRel) + 1;
        self.is_queued.store(true, Ordering::Release);
        self.stores.fetch_sub(1, Ordering::AcqRel);
        changes
    }

    /// Takes the time of a change that nobody has said from the file.
    pub(super) fn learn_stores(&self) {
        if !self.may_change_unseen() {
            return;
        }
        // Where the file cannot tell, its last change that was said is the time.
        let Ok(stat) = self.file.stat() else { return };
        for time in [&self.mtime, &self.ctime] {
            time.fetch_max(nanos(stat.mtime), Ordering::Relaxed);
        }
    }
}

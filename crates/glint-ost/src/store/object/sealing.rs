//! Checksums of an object are taken and put on, once it was left alone.

use super::{ATTRIBUTE, ObjectFile, Seal};
use crate::disk::{DiskFile, DiskResult};
use crate::store::checksum::Sums;
use crate::store::written::UNIT_BYTES;
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<F: DiskFile> ObjectFile<F> {
    /// The number of changes so far, once none is going on.
    pub(crate) fn settled(&self) -> u64 {
        let _no_writer = self.seal.write();
        self.changes.load(Ordering::Acquire)
    }

    /// Puts the checksums on, if there were no changes beyond `changes`, all of which
    /// are on stable storage. Returns whether it did.
    pub(crate) fn seal(&self, changes: u64) -> io::Result<bool> {
        let before = match &*self.seal.read() {
            Seal::Sealed(_) => return Ok(false),
            // The change that ends that has it queued again.
            Seal::Unreadable => {
                self.is_queued.store(false, Ordering::Release);
                return Ok(false);
            }
            seal => seal.sums().cloned(),
        };
        if self.may_change_unseen() {
            return Ok(false);
        }
        let size = self.stat()?.size;
        let (written, read) =
            (self.written.sums(), |room: &mut [u8], at| self.read_adding_none(room, at));
        let sums = Sums::compute(read, size, &written, before.as_deref())?;
        let mut seal = self.seal.write();
        if matches!(*seal, Seal::Unknown) {
            // The object was closed since it changed, and opened again for this.
            *seal = self.load()?;
        }
        if !matches!(*seal, Seal::Open(_) | Seal::Leaving(_))
            || self.changes.load(Ordering::Acquire) != changes
            || self.may_change_unseen()
        {
            return Ok(false);
        }
        let put = self.file.set_attribute(ATTRIBUTE, &sums.encode());
        if put == Err(Errno::OPNOTSUPP) {
            return Err(Errno::OPNOTSUPP.into());
        }
        let sums = Arc::new(sums);
        self.written.reset();
        if let Err(errno) = put {
            // They hold all the same, and whoever tries again reads nothing for them.
            let is_leaving = matches!(*seal, Seal::Leaving(_));
            *seal = if is_leaving { Seal::Leaving(sums) } else { Seal::Open(Some(sums)) };
            return Err(errno.into());
        }
        self.is_queued.store(false, Ordering::Release);
        *seal = Seal::Sealed(sums);
        Ok(true)
    }

    /// Time has passed: what was found right is compared again when it is read.
    pub(crate) fn grow_stale(&self) {
        // One that is being changed or sealed just now has its turn the next time.
        if let Some(seal) = self.seal.try_read()
            && let Some(sums) = seal.sums()
        {
            sums.grow_stale();
        }
    }

    /// How many bytes [`ObjectFile::seal`] has to read.
    pub(crate) fn bytes_to_seal(&self) -> DiskResult<u64> {
        let size = self.size()?;
        let kept = match &*self.seal.read() {
            Seal::Sealed(_) | Seal::Unreadable => size,
            seal => seal.sums().map_or(0, |sums| sums.kept_bytes(size)),
        };
        let written = self.written.sums().iter().flatten().count() as u64 * UNIT_BYTES;
        Ok(size.saturating_sub(kept).saturating_sub(written))
    }
}

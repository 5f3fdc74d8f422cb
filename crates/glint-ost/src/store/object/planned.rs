//! Reads of an object with nothing held while the disk is waited for.
//!
//! Invariant: what was read is returned only if the object has the checksums then that it had when
//! the read began. A change touches blocks of those before the first byte changes: whatever bytes of
//! it were read are in blocks that are not compared any more. Checksums that were taken meanwhile may
//! be of other bytes.

use super::{ObjectFile, Seal, noted};
use crate::disk::DiskFile;
use crate::store::checksum::Sums;
use crate::store::passing::Range;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A read that is about to begin.
pub(crate) struct PlannedRead {
    wanted: Range,
    range: Range,
    sums: Option<Arc<Sums>>,
}

impl PlannedRead {
    /// What has to be read: what is wanted, and the rest of its blocks that are to be compared.
    pub(crate) fn range(&self) -> Range {
        self.range
    }

    /// Whether nothing else has to be read.
    pub(crate) fn is_all_wanted(&self) -> bool {
        self.range == self.wanted
    }
}

impl<F: DiskFile> ObjectFile<F> {
    /// Plans a read of up to `len` bytes. Returns `None` where whoever reads has more to wait for than
    /// the disk: others who change the object, or that pages are dropped behind the read.
    pub(crate) fn plan_read(&self, offset: u64, len: usize) -> Option<PlannedRead> {
        let seal = self.seal.try_read()?;
        if matches!(*seal, Seal::Unknown | Seal::Unreadable) || self.passes().ok()? {
            return None;
        }
        let end = offset.checked_add(len as u64)?.min(seal.size().unwrap_or(u64::MAX));
        let wanted = (offset, end);
        let sums = seal.sums().cloned();
        let range = sums.as_ref().map_or(wanted, |sums| sums.with_blocks_to_check(wanted));
        (offset < end).then_some(PlannedRead { wanted, range, sums })
    }

    /// Checks what a read has got of its range. Returns what was wanted of it; EAGAIN if the object
    /// has to be read by who waits: it was sealed meanwhile, or damage has to be noted.
    pub(crate) fn finish_read<'a>(
        &self,
        PlannedRead { wanted, range, sums }: &PlannedRead,
        data: &'a [u8],
    ) -> io::Result<&'a [u8]> {
        let skipped = data.len().min((wanted.0 - range.0) as usize);
        let len = (data.len() - skipped).min((wanted.1 - wanted.0) as usize);
        let found = &data[skipped..skipped + len];
        let seal = self.seal.try_read().ok_or(Errno::AGAIN)?;
        let is_same = match (seal.sums(), sums) {
            (Some(now), Some(before)) => Arc::ptr_eq(now, before),
            (None, None) => matches!(*seal, Seal::Open(_)),
            _ => false,
        };
        if !is_same {
            return Err(Errno::AGAIN.into());
        }
        if let Some(sums) = sums {
            // Of blocks to be compared all is there, unless they have no end or have just become some.
            let missing = |_: &mut [u8], _| Err(Errno::AGAIN);
            let checked = sums.check_read(missing, range.0, data);
            checked.map_err(noted::without_waiting)?;
            if found.is_empty() {
                sums.check_end(wanted.0).map_err(|damage| noted::without_waiting(damage.into()))?;
            }
        }
        Ok(found)
    }
}

/// The descriptor of an open object, which stays open for as long as this is there.
pub(crate) struct ObjectDescriptor<F: DiskFile>(pub(crate) Arc<ObjectFile<F>>);

impl<F: DiskFile> AsFd for ObjectDescriptor<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // What has none is read from a directory: that is an error.
        self.0.file().descriptor().unwrap_or(rustix::fs::CWD)
    }
}

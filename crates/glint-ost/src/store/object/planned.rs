//! Reads of an object with nothing held while the disk is waited for.
//!
//! Invariants:
//! - Bytes that were read are returned only if the object has the checksums then that it had when
//!   the read began. A change touches blocks of those before the first byte changes: whatever bytes of
//!   it were read are in blocks that are not compared any more. Checksums that were taken meanwhile
//!   may be of other bytes.
//! - Only a read that finds nothing at its first byte has found the end of the object. One that has
//!   brought less than it should may have met an error behind that.

use super::{ObjectFile, Seal, noted};
use crate::disk::DiskFile;
use crate::store::checksum::Sums;
use crate::store::passing::Range;
use rustix::io::Errno;
use std::io;
use std::sync::Arc;

/// A read that is about to begin.
pub(crate) struct PlannedRead {
    wanted: Range,
    range: Range,
    sums: Option<Arc<Sums>>,
}

impl PlannedRead {
    /// Bytes that have to be read: the wanted ones, and the rest of their blocks that are to be
    /// compared.
    pub(crate) fn range(&self) -> Range {
        self.range
    }

    /// Whether nothing else has to be read.
    pub(crate) fn is_all_wanted(&self) -> bool {
        self.range == self.wanted
    }
}

impl<F: DiskFile> ObjectFile<F> {
    /// Plans a read of up to `len` bytes. Returns `None` where a read has more to wait for than the
    /// disk: changes of the object, or that pages are dropped behind the read.
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

    /// Checks the bytes that a read has got of its range. Returns the wanted ones; EAGAIN if the object
    /// has to be read by a thread that waits: it was sealed meanwhile, damage has to be noted, or the
    /// read has ended before the wanted bytes.
    pub(crate) fn finish_read<'a>(
        &self,
        PlannedRead { wanted, range, sums }: &PlannedRead,
        data: &'a [u8],
    ) -> io::Result<&'a [u8]> {
        let skipped = data.len().min((wanted.0 - range.0) as usize);
        let len = (data.len() - skipped).min((wanted.1 - wanted.0) as usize);
        let found = &data[skipped..skipped + len];
        if found.is_empty() && !data.is_empty() {
            return Err(Errno::AGAIN.into());
        }
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
            // All of the blocks to be compared is there, unless the read was short, or they have just
            // become some.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::memory::{MemoryDisk, MemoryFile};
    use crate::store::object::ReadMode;
    use crate::store::object::tests::{FLIPPED, OBJECT, damaged, is_read, store_on};
    use std::time::Duration;

    /// Reads the range of a plan, with nothing held.
    fn read_plan(file: &ObjectFile<MemoryFile>, plan: &PlannedRead) -> io::Result<Vec<u8>> {
        let (from, to) = plan.range();
        let mut data = vec![0; (to - from) as usize];
        let n = file.file().read(&mut data, from).unwrap();
        file.finish_read(plan, &data[..n]).map(<[u8]>::to_vec)
    }

    #[test]
    fn a_read_that_holds_nothing_brings_whole_blocks_to_be_compared() {
        let disk = MemoryDisk::default();
        let store = store_on(&disk);
        store.write(OBJECT, 0, &[7; 200_000], None, false).unwrap();
        let open = || store.file(OBJECT, None).unwrap().unwrap();
        let file = open();
        assert_eq!(file.plan_read(70_000, 10).unwrap().range(), (70_000, 70_010));
        assert_eq!(file.plan_read(199_000, 5000).unwrap().range(), (199_000, 204_000));
        store.settle(Duration::ZERO, None).unwrap();
        let plan = open().plan_read(70_000, 10).unwrap();
        assert_eq!(plan.range(), (65_536, 131_072));
        assert_eq!(read_plan(&open(), &plan).unwrap(), [7; 10]);
        // It was compared.
        assert_eq!(open().plan_read(70_000, 10).unwrap().range(), (70_000, 70_010));
        let plan = open().plan_read(190_000, 50_000).unwrap();
        assert_eq!(plan.range(), (131_072, 200_000));
        assert_eq!(read_plan(&open(), &plan).unwrap(), [7; 10_000]);
        assert!(open().plan_read(200_000, 1).is_none());
    }

    /// As one that meets an error of the disk behind these bytes.
    #[test]
    fn a_read_that_ends_before_the_wanted_bytes_has_found_no_end() {
        let store = store_on(&MemoryDisk::default());
        store.write(OBJECT, 0, &[7; 200_000], None, false).unwrap();
        store.settle(Duration::ZERO, None).unwrap();
        let file = store.file(OBJECT, None).unwrap().unwrap();
        let plan = file.plan_read(70_000, 10).unwrap();
        // Another read has compared the block.
        assert_eq!(read_plan(&file, &plan).unwrap(), [7; 10]);
        let skipped = 70_000 - plan.range().0 as usize;
        for len in [4096, skipped] {
            let ended = file.finish_read(&plan, &vec![7; len]).unwrap_err();
            assert_eq!(ended.raw_os_error(), Some(libc::EAGAIN));
            assert!(!file.has_damage().unwrap());
        }
    }

    #[test]
    fn damage_is_left_to_a_thread_that_can_note_it() {
        let (_disk, store) = damaged();
        let file = store.file(OBJECT, None).unwrap().unwrap();
        assert!(file.checked_read(10, &mut [0], ReadMode::InMemory).is_ok());
        let plan = file.plan_read(FLIPPED, 1).unwrap();
        assert_eq!(read_plan(&file, &plan).unwrap_err().raw_os_error(), Some(libc::EAGAIN));
        assert!(!is_read(&store, FLIPPED));
    }

    /// What was read before is not compared with checksums of what was written since.
    #[test]
    fn changes_during_a_read_that_holds_nothing_are_no_damage() {
        for seals_again in [false, true] {
            let disk = MemoryDisk::default();
            let store = store_on(&disk);
            let write = |byte| store.write(OBJECT, 0, &[byte; 70_000], None, false).unwrap();
            write(1);
            store.settle(Duration::ZERO, None).unwrap();
            let file = store.file(OBJECT, None).unwrap().unwrap();
            let plan = file.plan_read(0, 70_000).unwrap();
            let mut data = vec![0; 70_000];
            file.file().read(&mut data[..100], 0).unwrap();
            write(2);
            file.file().read(&mut data[100..], 100).unwrap();
            if seals_again {
                store.settle(Duration::ZERO, None).unwrap();
            }
            match file.finish_read(&plan, &data) {
                Ok(found) => assert!(!seals_again && found == data),
                Err(error) => {
                    assert_eq!((seals_again, error.raw_os_error()), (true, Some(libc::EAGAIN)));
                }
            }
            assert!(!file.has_damage().unwrap());
        }
    }
}

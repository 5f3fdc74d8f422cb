//! Checksums of data that is taken as it is written, so that the seal of an object which passed
//! through memory does not read all of it from the disk once more.
//!
//! Invariants:
//! - The sum of a unit is that of the bytes in the file: one write has written all of the unit, and
//!   nothing else has changed the object there while it was made or since.
//! - A change that is not noted here has all sums forgotten when it has ended, also those of writes
//!   that are being made. (One that does not see that there are any has ended before a noted write
//!   began: both are made under the inode's lock of the kernel.)
//! - Memory is bounded: units behind [`UNITS_MAX`] have no sum, and are read.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Smallest block that has a checksum at rest.
pub(crate) const UNIT_BYTES: u64 = 1 << 16;
/// Units of 16 GiB.
const UNITS_MAX: u64 = 1 << 18;

/// Sums of units, from the first one on.
pub(crate) type UnitSums = Vec<Option<u32>>;

/// What is known of the data of an object since it was opened or sealed.
#[derive(Default)]
pub(crate) struct Written {
    is_used: AtomicBool,
    units: Mutex<Units>,
}

#[derive(Default)]
struct Units {
    sums: UnitSums,
    being_written: BTreeMap<u64, BeingWritten>,
}

/// A unit in which something is being written.
#[derive(Default)]
struct BeingWritten {
    writes: usize,
    /// Nobody knows what is there in the end.
    is_mixed: bool,
}

/// A write that is being made, until this is dropped.
pub(crate) struct NotedWrite<'a> {
    of: &'a Written,
    offset: u64,
    data: &'a [u8],
    is_made: bool,
}

impl Written {
    /// Notes that `data` is written at `offset` from now on.
    pub(crate) fn begin<'a>(&'a self, offset: u64, data: &'a [u8]) -> NotedWrite<'a> {
        let write = NotedWrite { of: self, offset, data, is_made: false };
        let mut units = self.units.lock();
        self.is_used.store(true, Ordering::SeqCst);
        for unit in write.units() {
            if let Some(sum) = units.sums.get_mut(unit as usize) {
                *sum = None;
            }
            let being_written = units.being_written.entry(unit).or_default();
            being_written.writes += 1;
            being_written.is_mixed |= being_written.writes > 1;
        }
        drop(units);
        write
    }

    /// Forgets all sums: something has changed that was not noted.
    pub(crate) fn forget_all(&self) {
        if self.is_used.load(Ordering::SeqCst) {
            let mut units = self.units.lock();
            units.sums = UnitSums::new();
            units.being_written.values_mut().for_each(|unit| unit.is_mixed = true);
        }
    }

    /// Forgets all, while nobody writes.
    pub(crate) fn reset(&self) {
        self.units.lock().sums = UnitSums::new();
        self.is_used.store(false, Ordering::SeqCst);
    }

    /// The sums. They count if nothing has changed until they are used.
    pub(crate) fn sums(&self) -> UnitSums {
        match self.is_used.load(Ordering::SeqCst) {
            true => self.units.lock().sums.clone(),
            false => UnitSums::new(),
        }
    }
}

impl NotedWrite<'_> {
    /// Units in which something is written.
    fn units(&self) -> std::ops::Range<u64> {
        let end = self.offset.saturating_add(self.data.len() as u64);
        self.offset / UNIT_BYTES..end.div_ceil(UNIT_BYTES)
    }

    /// Sum of a unit, if all of it is written.
    fn sum(&self, unit: u64) -> Option<u32> {
        let from = (unit * UNIT_BYTES).checked_sub(self.offset)? as usize;
        let bytes = self.data.get(from..from + UNIT_BYTES as usize)?;
        Some(crc32c::crc32c(bytes))
    }

    /// Ends it: all of it is in the file.
    pub(crate) fn finish(mut self) {
        self.is_made = true;
    }
}

impl Drop for NotedWrite<'_> {
    fn drop(&mut self) {
        let known = |unit: &u64| self.is_made && *unit < UNITS_MAX;
        let sums: UnitSums =
            self.units().map(|unit| Some(unit).filter(known).and_then(|u| self.sum(u))).collect();
        let mut units = self.of.units.lock();
        for (unit, sum) in self.units().zip(sums) {
            let Some(being_written) = units.being_written.get_mut(&unit) else { continue };
            being_written.writes -= 1;
            let (is_last, is_mixed) = (being_written.writes == 0, being_written.is_mixed);
            if is_last {
                units.being_written.remove(&unit);
            }
            if let Some(sum) = sum.filter(|_| !is_mixed) {
                let at = unit as usize;
                if units.sums.len() <= at {
                    units.sums.resize(at + 1, None);
                }
                units.sums[at] = Some(sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = UNIT_BYTES as usize;

    fn known(written: &Written) -> Vec<usize> {
        let sums = written.sums();
        sums.iter().enumerate().filter(|(_, sum)| sum.is_some()).map(|(at, _)| at).collect()
    }

    #[test]
    fn units_that_one_write_has_written_are_known() {
        let (written, data) = (Written::default(), vec![7; 3 * UNIT]);
        written.begin(0, &data).finish();
        assert_eq!(written.sums(), vec![Some(crc32c::crc32c(&data[..UNIT])); 3]);
        written.begin(5 * UNIT_BYTES - 1, &data).finish();
        assert_eq!(known(&written), [0, 1, 2, 5, 6], "in parts, or not at all");
        written.begin(UNIT_BYTES + 9, b"x").finish();
        assert_eq!(known(&written), [0, 2, 5, 6]);
        written.begin(u64::MAX - 1, b"x").finish();
        written.begin(UNITS_MAX * UNIT_BYTES, &data).finish();
        assert_eq!(written.sums().len(), 7);
    }

    #[test]
    fn what_failed_or_was_written_at_the_same_time_is_not() {
        let (written, data) = (Written::default(), vec![7; 2 * UNIT]);
        drop(written.begin(0, &data));
        assert_eq!(known(&written), []);
        let one = written.begin(0, &data);
        let two = written.begin(UNIT_BYTES, &data);
        assert_eq!(known(&written), []);
        one.finish();
        assert_eq!(known(&written), [0]);
        let three = written.begin(UNIT_BYTES, b"x");
        two.finish();
        three.finish();
        assert_eq!(known(&written), [0, 2]);
        written.begin(UNIT_BYTES, &data).finish();
        assert_eq!(known(&written), [0, 1, 2]);
        let four = written.begin(0, &data);
        written.forget_all();
        four.finish();
        assert_eq!(known(&written), []);
        assert!(written.units.lock().being_written.is_empty());
    }
}

//! Whether reads of the tables wait for their disk, and which of them would not.
//!
//! The tables do not say beforehand whether a read finds its blocks in memory. So each read that
//! missed some is timed. Where that takes long, the system is asked whether the thread has slept, too: on
//! a busy host a thread that is kept from its core is as slow, and a hand-over helps nobody. While reads
//! do wait for the disk, those that may miss are handed over to [threads](super::readers), and those of
//! what was read a short time ago, whose blocks are in the cache, are not. Misses that the page cache
//! answers take some microseconds, less than a hand-over costs, and hand over nothing.
//!
//! Nothing rests on it: a read on the wrong side costs time.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Reads are handed over while they wait for the disk so long, on average: some times what it costs
/// to hand one over.
const WAIT_NS: u64 = 50_000;
/// The average is over so many reads, more or less.
const READS: u64 = 16;
/// A longer wait counts as one of this: one alone, of a thread that was kept from its core, is not
/// enough.
const WAIT_NS_MAX: u64 = WAIT_NS * READS - 1;
/// A row that was read takes less, wherever its block was; and a block, if the page cache had it.
const ROW_NS: u64 = 1_000;
const PAGE_NS: u64 = 15_000;
/// Rows in a block, at least, where many are read: misses beyond are those of other threads.
const BLOCK_ROWS: u64 = 8;
/// Bytes of a block of a table.
const BLOCK_BYTES: u64 = 4096;
/// Part of the cache that blocks which were read once stay in, until others of as many bytes have
/// come: half of what the crate gives to those.
const PART: u64 = 10;
/// Places for things that were read.
const KNOWN: usize = 1 << 16;

/// Identifies what is read: a key, or the beginning of a range.
#[derive(Clone, Copy)]
pub(super) struct Mark(u64);

impl Mark {
    pub(super) fn new(what: impl Hash) -> Mark {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        Mark(hasher.finish())
    }
}

/// The pace of reads of one engine.
pub(super) struct Pace {
    /// How long reads that missed took longer than for the page cache, on average.
    late_ns: AtomicU64,
    /// The same of those that have slept: they waited for the disk.
    wait_ns: AtomicU64,
    /// Blocks that were missed.
    missed: AtomicU64,
    /// Misses of an era: what was read in this one or the one before is in the cache.
    era: u64,
    /// What was read while reads were handed over, and in which era; 256 KiB.
    known: OnceLock<Box<[AtomicU32]>>,
    /// Whatever reads do, they are slow.
    #[cfg(test)]
    stays_slow: std::sync::atomic::AtomicBool,
}

impl Pace {
    /// Of tables with a cache of so many bytes.
    pub(super) fn new(cache_bytes: u64) -> Pace {
        let era = (cache_bytes / BLOCK_BYTES / PART / 2).max(1);
        Pace {
            late_ns: AtomicU64::new(0),
            wait_ns: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            era,
            known: OnceLock::new(),
            #[cfg(test)]
            stays_slow: Default::default(),
        }
    }

    /// Whether reads wait for their disk.
    pub(super) fn is_slow(&self) -> bool {
        #[cfg(test)]
        if self.stays_slow.load(Relaxed) {
            return true;
        }
        self.wait_ns.load(Relaxed) >= WAIT_NS
    }

    /// Whether reads take long, and it is to be found out whether they wait for their disk.
    pub(super) fn is_late(&self) -> bool {
        self.late_ns.load(Relaxed) >= WAIT_NS || self.is_slow()
    }

    /// A read is over where it was asked for, and missed so many blocks.
    pub(super) fn note_here(&self, missed: u64, rows: usize, time: Duration, slept: Option<bool>) {
        // While others are handed over it was one of those that find all in memory, and the misses
        // are theirs.
        if !self.is_slow() || time.as_nanos() as u64 >= WAIT_NS {
            self.note(missed, rows, time, slept);
        }
    }

    /// A read is over that missed so many blocks, or was handed over; `slept` says whether its thread
    /// has, if that was asked.
    pub(super) fn note(&self, missed: u64, rows: usize, time: Duration, slept: Option<bool>) {
        let rows = rows as u64;
        let work = ROW_NS * rows + PAGE_NS * missed.min(1 + rows / BLOCK_ROWS);
        let late = match missed {
            0 => 0,
            _ => (time.as_nanos() as u64).saturating_sub(work).min(WAIT_NS_MAX),
        };
        self.missed.fetch_add(missed, Relaxed);
        average(&self.late_ns, late);
        match slept {
            Some(true) => average(&self.wait_ns, late),
            Some(false) => average(&self.wait_ns, 0),
            // It was not slow for long enough that anybody asked.
            None => {}
        }
    }

    fn place(&self, mark: Mark) -> (&AtomicU32, u32) {
        let known = self.known.get_or_init(|| (0..KNOWN).map(|_| AtomicU32::new(0)).collect());
        // The low half of an entry is the era, and none is 0.
        (&known[mark.0 as usize % KNOWN], (mark.0 >> 32) as u32 & 0xffff_0000)
    }

    fn era(&self) -> u32 {
        (self.missed.load(Relaxed) / self.era % 0xffff) as u32 + 1
    }

    /// Whether this was read so short a time ago that it is in memory.
    pub(super) fn knows(&self, mark: Mark) -> bool {
        let (place, name) = self.place(mark);
        let entry = place.load(Relaxed);
        let age = self.era().wrapping_sub(entry & 0xffff);
        entry & 0xffff_0000 == name && entry != 0 && age <= 1
    }

    /// Keeps in mind that this was read.
    pub(super) fn learn(&self, mark: Mark) {
        let (place, name) = self.place(mark);
        let entry = name | self.era();
        if place.load(Relaxed) != entry {
            place.store(entry, Relaxed);
        }
    }

    /// From now on reads are handed over.
    #[cfg(test)]
    pub(super) fn slow_down(&self) {
        self.stays_slow.store(true, Relaxed);
    }
}

/// Moves an average on. One that is lost to another thread is one of many.
fn average(of: &AtomicU64, value: u64) {
    let before = of.load(Relaxed);
    of.store(before - before / READS + value / READS, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Duration = Duration::from_micros(200);
    const PAGE_CACHE: Duration = Duration::from_micros(8);

    fn pace() -> Pace {
        Pace::new(32 << 20)
    }

    /// Reads that missed one block, and what is known of them.
    fn reads(pace: &Pace, many: usize, time: Duration, sleeps: bool) {
        for _ in 0..many {
            pace.note(1, 0, time, pace.is_late().then_some(sleeps));
        }
    }

    #[test]
    fn reads_of_the_page_cache_are_fast_and_those_of_a_disk_are_not() {
        let pace = pace();
        reads(&pace, 1000, PAGE_CACHE, false);
        assert!(!pace.is_late());
        reads(&pace, 20, DISK, true);
        assert!(pace.is_slow());
        reads(&pace, 100, PAGE_CACHE, false);
        assert!(!pace.is_slow() && !pace.is_late());
    }

    #[test]
    fn threads_that_are_kept_from_their_cores_hand_nothing_over() {
        let pace = pace();
        reads(&pace, 1000, Duration::from_millis(4), false);
        assert!(pace.is_late() && !pace.is_slow());
        reads(&pace, 2, Duration::from_millis(4), true);
        assert!(pace.is_slow());
    }

    #[test]
    fn one_pause_of_a_thread_hands_nothing_over_and_some_slow_reads_do() {
        let pace = pace();
        reads(&pace, 1, Duration::from_secs(1), true);
        assert!(!pace.is_slow());
        reads(&pace, 100, PAGE_CACHE, false);
        reads(&pace, 4, Duration::from_millis(10), true);
        assert!(pace.is_slow());
    }

    #[test]
    fn hits_beside_reads_that_wait_do_not_end_it() {
        let pace = pace();
        reads(&pace, 20, DISK, true);
        (0..100).for_each(|_| pace.note_here(1, 0, Duration::from_micros(2), Some(false)));
        assert!(pace.is_slow());
    }

    #[test]
    fn long_scans_and_hits_do_not_count_as_waiting() {
        let pace = pace();
        let scans = |many, missed, micros| {
            for _ in 0..many {
                let time = Duration::from_micros(micros);
                pace.note(missed, 1000, time, pace.is_late().then_some(true));
            }
        };
        scans(100, 3, 700);
        scans(100, 100, 2_000);
        assert!(!pace.is_slow());
        // The disk is read for some of these blocks.
        scans(100, 100, 3_000);
        assert!(pace.is_slow());
        scans(100, 100, 2_000);
        assert!(!pace.is_slow());
        reads(&pace, 20, DISK, true);
        // What is handed over finds all in memory again.
        (0..100).for_each(|_| pace.note(0, 0, DISK, Some(false)));
        assert!(!pace.is_slow());
    }

    #[test]
    fn what_was_read_is_known_until_others_have_taken_its_place() {
        let pace = pace();
        let mark = |key: u64| Mark::new((3, key));
        assert!(!pace.knows(mark(1)));
        (0..1000).for_each(|key| pace.learn(mark(key)));
        let known = (0..1000).filter(|key| pace.knows(mark(*key))).count();
        assert!(known >= 980, "{known}");
        let strange = (5000..25_000).filter(|key| pace.knows(mark(*key))).count();
        assert!(strange <= 3, "{strange}");
        pace.note(pace.era, 0, PAGE_CACHE, None);
        assert!(pace.knows(mark(999)));
        pace.learn(mark(999));
        pace.note(pace.era, 0, PAGE_CACHE, None);
        assert!(!pace.knows(mark(998)) && pace.knows(mark(999)));
    }
}

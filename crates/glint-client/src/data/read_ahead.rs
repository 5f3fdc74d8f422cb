//! Read-ahead of an open file: what a program is likely to read next, and what of it is here
//! already. No I/O.
//!
//! The kernel reads ahead in what is read from one end to the other, two requests of 1 MiB deep. Here
//! that becomes whole requests ([`Regions`]), as deep as it takes for a program not to wait – where
//! OSTs are many, far or slow – and reads of an open file at equal distances (strides) are foreseen,
//! which the kernel does not do. Where reads are fast ([`is_slow`]) strides are not read ahead, and
//! sequences no further than to the next region: it costs a copy more.
//!
//! Invariant: what was read ahead is used only while the stamp is what it was before it was
//! read: no lock on the file's data was lost, and nobody here has written to it.

mod around;
mod beside_lock;
mod block;
mod memory;
mod page_bits;
mod region;
mod regions;
mod scattered_reads;
mod storing;
mod together;
mod wide;

pub(crate) use around::ReadAround;
pub(crate) use block::{BlockAhead, BlockOnItsWay};
use glint_proto::limits::OBJECT_READS_MAX;
pub(crate) use memory::ReadAheadMemory;
pub(crate) use regions::Regions;
pub(crate) use scattered_reads::RegionPace;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
pub(crate) use storing::StoreLock;
use wide::WIDE_MIN;

/// Time that any read may take, and time for each byte on top of that: 500 MB/s.
const PATIENCE: Duration = Duration::from_micros(300);
const BYTE: Duration = Duration::from_nanos(2);
/// Bytes that one request reads ahead of strides at most.
const BLOCK: u64 = 1 << 20;
/// How far is read ahead when it first pays.
const WINDOW_MIN: u64 = 4 * BLOCK;
/// Bytes read ahead at most, for a file on one OST, and on many.
const WINDOW_MAX: Range<u64> = 8 * BLOCK..BLOCKS * BLOCK;
const BLOCKS: u64 = 16;
/// Reads at equal distances that are foreseen at once: as many as one request has.
const STRIDES: u64 = OBJECT_READS_MAX as u64;
/// How much must be read in order for requests to come late.
const SEQUENCE: u64 = 2 * BLOCK;
/// Requests of one sequence may come so late.
const SLACK: u64 = 4 * BLOCK;
/// How often a distance must come again.
const REPEATS: u64 = 2;
/// So many times as many reads are foreseen as were foreseen right, where distances are equal.
const RAMP: u64 = 4;
/// Unit in which the kernel asks.
const PAGE: u64 = 4096;
/// Most bytes of a read that are few.
const SMALL: u64 = 4 * PAGE;
/// After this time whoever needs what is read ahead reads it alone: other reads that came with it may
/// wait for a server or a disk that stands still.
pub(crate) const AHEAD_LATE: Duration = Duration::from_secs(2);

/// Whether a read has taken so long that it is worth to foresee the next one.
pub(crate) fn is_slow(took: Duration, bytes: usize) -> bool {
    took > PATIENCE + BYTE * bytes as u32
}

/// Whether few bytes are read.
fn is_small(read: &Range<u64>) -> bool {
    read.end - read.start <= SMALL
}

/// Whether so many bytes are read that all of their region may be worth it.
fn is_large(read: &Range<u64>) -> bool {
    read.end - read.start >= WIDE_MIN
}

/// Reads of an open file, and what is read ahead of them.
#[derive(Default)]
pub(crate) struct ReadAhead {
    stamp: u64,
    /// Range that is read in order at present.
    run: Range<u64>,
    /// Length of the one before, and the distance to it.
    before: (u64, u64),
    /// How often these came again.
    repeats: u64,
    /// Begin of the first run of those that are like it.
    origin: u64,
    /// Runs differ a little: what begins within a page is read from its beginning.
    uneven: bool,
    /// How far to read ahead; 0 where it does not pay.
    window: u64,
    blocks: Vec<Arc<BlockAhead>>,
    /// The size of the file, when the stamp was this.
    size: Option<(u64, u64)>,
}

/// Plan for a read.
#[derive(Default)]
pub(crate) struct Plan {
    /// Blocks with its data, in order; empty if some of it is not.
    pub(crate) here: Vec<Arc<BlockAhead>>,
    /// Blocks to read ahead.
    pub(crate) fetch: Vec<Arc<BlockAhead>>,
    /// The read is part of a sequence, of which each block is a request of its own. Other blocks
    /// travel together.
    pub(crate) is_in_sequence: bool,
}

impl ReadAhead {
    /// A read took long.
    pub(crate) fn widen(&mut self) {
        // Many that were under way at once may say so before the next one is planned.
        self.window = (2 * self.window).clamp(WINDOW_MIN, WINDOW_MAX.end);
    }

    /// Forgets what was read ahead; more is when a read takes long again.
    pub(crate) fn forget(&mut self) {
        self.blocks.clear();
        self.window = 0;
    }

    /// Size of the file as far as it has to be known; `None` if it has to be asked.
    pub(crate) fn size(&self, stamp: u64) -> Option<u64> {
        match self.size {
            _ if self.window == 0 => Some(0),
            Some((then, size)) if then == stamp => Some(size),
            _ => None,
        }
    }

    /// The objects said how large the file is.
    pub(crate) fn note_size(&mut self, stamp: u64, size: u64) {
        self.size = Some((stamp, size));
    }

    /// Whether a read that was just planned is small or large, and neither part of a pattern nor the
    /// file's begin; a large one is not if it is part of a sequence of all who read the file.
    pub(crate) fn is_scattered(&self, read: &Range<u64>, is_in_sequence: bool) -> bool {
        let has_window = is_small(read) || (is_large(read) && !is_in_sequence);
        has_window && self.run == *read && self.repeats == 0 && read.start > 0
    }

    /// How far to read ahead at least; 0 where it does not pay.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// Whether nothing was read so far.
    pub(crate) fn is_unused(&self) -> bool {
        self.run.is_empty()
    }

    /// All of a small file was asked for before it was opened, when the stamp was this.
    pub(crate) fn prefetched(&mut self, block: Arc<BlockAhead>, stamp: u64) {
        if self.stamp != stamp {
            self.blocks.clear();
            self.stamp = stamp;
        }
        self.blocks.push(block);
    }

    /// A program has read, and nothing was read ahead of it.
    pub(crate) fn note_read(&mut self, read: &Range<u64>) {
        self.follow(read);
    }

    /// A program reads, in a file of `size` bytes with stripes of `spread` bytes in all, of which
    /// `plan` is what its regions plan ([`Regions::plan`]). Adds what was read ahead for this open
    /// file, and strides, which are foreseen unless the read is part of a sequence.
    pub(crate) fn plan(
        &mut self,
        read: Range<u64>,
        size: u64,
        spread: u64,
        stamp: u64,
        mut plan: Plan,
        memory: &ReadAheadMemory,
    ) -> Plan {
        if self.stamp != stamp {
            self.blocks.clear();
            self.stamp = stamp;
        }
        self.follow(&read);
        self.window = self.window.min((2 * spread).clamp(WINDOW_MAX.start, WINDOW_MAX.end));
        let read = read.start..read.end.min(size);
        if plan.here.is_empty() {
            plan.here = self.find(&read);
        }
        if !plan.is_in_sequence {
            plan.fetch = self.fetch_foreseen(size, memory);
        }
        // Blocks that were read are not read again.
        self.blocks.retain(|block| block.offset < read.start || block.end() > read.end);
        self.drop_oldest();
        plan
    }

    /// Adds blocks for what is foreseen, once half of it is not on its way: they travel together.
    fn fetch_foreseen(&mut self, size: u64, memory: &ReadAheadMemory) -> Vec<Arc<BlockAhead>> {
        let within = |ahead: Range<u64>| ahead.start..ahead.end.min(size);
        let mut foreseen: Vec<_> = self.foreseen().map(within).collect();
        foreseen.retain(|ahead| !ahead.is_empty());
        let count = foreseen.len();
        foreseen.retain(|ahead| !self.is_coming(ahead));
        let mut fetch = Vec::new();
        if 2 * foreseen.len() >= count {
            for ahead in foreseen {
                self.fetch(ahead, memory, &mut fetch);
            }
        }
        fetch
    }

    /// Drops blocks that nobody came to.
    fn drop_oldest(&mut self) {
        let bytes: u64 = self.blocks.iter().map(|block| block.len).sum();
        let mut over = bytes.saturating_sub(2 * WINDOW_MAX.end);
        let is_too_much = |block: &&Arc<BlockAhead>| {
            let is_over = over > 0;
            over = over.saturating_sub(block.len);
            is_over
        };
        let too_much = self.blocks.iter().take_while(is_too_much).count();
        let too_many = self.blocks.len().saturating_sub(2 * STRIDES as usize);
        self.blocks.drain(..too_much.max(too_many));
    }

    /// Makes a read a part of the pattern.
    fn follow(&mut self, read: &Range<u64>) {
        let len = self.run.end - self.run.start;
        // Backwards is no distance.
        let distance = read.start.saturating_sub(self.run.start);
        let alike = |a: u64, b: u64| a.abs_diff(b) <= 2 * PAGE;
        let comes_again =
            distance > 0 && alike(len, self.before.0) && alike(distance, self.before.1);
        // Requests of a sequence may overtake each other.
        let near = match len >= SEQUENCE && !comes_again {
            true => {
                let gap = read.end - read.start;
                read.start + SLACK >= self.run.end && read.start <= self.run.end + gap
            }
            false => read.start >= self.run.start && read.start <= self.run.end,
        };
        if near {
            self.run.end = self.run.end.max(read.end);
            return;
        }
        if comes_again {
            self.uneven |= (len, distance) != self.before;
            self.repeats += 1;
        } else {
            // Backwards it begins anew.
            let origin = self.run.start.min(read.start);
            (self.repeats, self.uneven, self.origin) = (0, false, origin);
        }
        self.before = (len, distance);
        self.run = read.clone();
    }

    /// Ranges that will be read, in order.
    fn foreseen(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let run = self.run.end - self.run.start;
        let around = if self.uneven { PAGE } else { 0 };
        let len = self.before.0;
        let strided = self.repeats >= REPEATS && run <= len + 2 * around && len > 0;
        // The further away, the less is known where it is.
        let most = if self.uneven { self.repeats + 1 } else { RAMP * self.repeats };
        let count = match strided && self.window > 0 {
            true => (self.window / len).clamp(1, STRIDES).min(most),
            false => 0,
        };
        let (first, len) = (self.run.start, len + 3 * around);
        // As far as they were apart on average.
        let (so_far, times) = (self.run.start.saturating_sub(self.origin), self.repeats + 1);
        (1..=count).map(move |n| {
            let start = (first + n * so_far / times).saturating_sub(around);
            let start = if around > 0 { start - start % PAGE } else { start };
            start..start + len
        })
    }

    /// Whether a read that is foreseen is on its way. The prediction before was a page off, perhaps.
    fn is_coming(&self, range: &Range<u64>) -> bool {
        let len = range.end.saturating_sub(range.start);
        let middle = range.start + len / 2;
        let has = |block: &Arc<BlockAhead>| (block.offset..block.end()).contains(&middle);
        len <= BLOCK + 3 * PAGE && self.blocks.iter().any(has)
    }

    /// Adds blocks for what of a range is not on its way.
    fn fetch(
        &mut self,
        range: Range<u64>,
        memory: &ReadAheadMemory,
        fetch: &mut Vec<Arc<BlockAhead>>,
    ) {
        if self.is_coming(&range) {
            return;
        }
        let mut at = range.start;
        while at < range.end {
            let covering =
                self.blocks.iter().find(|block| (block.offset..block.end()).contains(&at));
            if let Some(block) = covering {
                at = block.end();
                continue;
            }
            let next = self.blocks.iter().map(|block| block.offset).filter(|start| *start > at);
            let end = (at - at % BLOCK + BLOCK).min(range.end).min(next.min().unwrap_or(u64::MAX));
            let Some(block) = BlockAhead::coming(at, end - at, memory) else { return };
            self.blocks.push(block.clone());
            fetch.push(block);
            at = end;
        }
    }

    /// The blocks that have all of a range.
    fn find(&self, range: &Range<u64>) -> Vec<Arc<BlockAhead>> {
        let mut found = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let covers = |block: &&Arc<BlockAhead>| (block.offset..block.end()).contains(&at);
            let Some(block) = self.blocks.iter().find(covers) else { return Vec::new() };
            at = block.end();
            found.push(block.clone());
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;

    /// Plans a read; returns what is read ahead, and whether the read itself was.
    fn read(ahead: &mut ReadAhead, offset: u64, len: u64, stamp: u64) -> (Vec<Range<u64>>, bool) {
        let memory = ReadAheadMemory::default();
        let plan = ahead.plan(offset..offset + len, SIZE, 8 << 20, stamp, Plan::default(), &memory);
        let fetch = plan.fetch.iter().map(|block| block.offset..block.end()).collect();
        (fetch, !plan.here.is_empty())
    }

    #[test]
    fn equal_distances_are_foreseen() {
        for (len, distance) in [(64 << 10, BLOCK), (BLOCK, 8 * BLOCK), (48_000, 376_064)] {
            let mut ahead = ReadAhead::default();
            ahead.widen();
            let mut found = 0;
            for n in 0..20 {
                let (fetch, here) = read(&mut ahead, n * distance, len, 1);
                found += u32::from(here);
                for range in fetch {
                    assert_eq!(range.start % distance / len, 0, "{n}: {range:?} is in between");
                    assert!(range.start > n * distance);
                }
            }
            assert!(found >= 15, "{found} of 20, {len} bytes at distances of {distance}");
        }
    }

    #[test]
    fn distances_that_the_kernel_rounds_to_pages_are_foreseen() {
        let mut ahead = ReadAhead::default();
        ahead.widen();
        let (mut found, mut read_ahead, mut fetches) = (0, 0, 0);
        for n in 0..300u64 {
            let (start, end) = (n * 376_064, n * 376_064 + 47_008);
            let (start, end) = (start - start % PAGE, end.next_multiple_of(PAGE));
            let (fetch, here) = read(&mut ahead, start, end - start, 1);
            found += u32::from(here);
            read_ahead += fetch.iter().map(|range| range.end - range.start).sum::<u64>();
            fetches += u32::from(!fetch.is_empty());
        }
        assert!(found >= 290, "{found} of 300");
        assert!(read_ahead < 500 * 47_008, "{read_ahead} bytes for {}", 300 * 47_008);
        assert!(fetches <= 25, "{fetches} requests");
    }

    #[test]
    fn a_file_is_read_again_in_another_way() {
        let mut ahead = ReadAhead::default();
        ahead.widen();
        // The kernel reads more than it was asked for where a file begins.
        read(&mut ahead, 0, 2 * BLOCK, 1);
        for n in 1..8 {
            for range in read(&mut ahead, 4 * n * BLOCK, BLOCK, 1).0 {
                assert_eq!(range.start % (4 * BLOCK), 0, "{range:?} is in between");
            }
        }
        assert!(read(&mut ahead, 32 * BLOCK, BLOCK, 1).1);
        (0..42).for_each(|n| drop(read(&mut ahead, n * BLOCK, BLOCK, 1)));
        assert_eq!(read(&mut ahead, 42 * BLOCK, BLOCK, 1), (vec![], false), "no stride");
        let strided = (0..8).filter(|n| read(&mut ahead, n * BLOCK, 65536, 1).1).count();
        assert!(strided >= 4, "{strided}");
    }

    #[test]
    fn reads_anywhere_are_not() {
        let mut ahead = ReadAhead::default();
        ahead.widen();
        let mut at = 1u64;
        for _ in 0..1000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = at % (SIZE - BLOCK);
            let (fetch, _) = read(&mut ahead, at, PAGE, 1);
            assert!(fetch.is_empty() && ahead.is_scattered(&(at..at + PAGE), false));
            assert!(!ahead.is_scattered(&(at..at + 65536), false));
        }
    }

    #[test]
    fn any_reads_in_any_order_are_planned() {
        let mut ahead = ReadAhead::default();
        let mut at = 1u64;
        for n in 0..20_000u64 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let page = (at >> 33) % [4, 64, 1000][n as usize % 3];
            read(&mut ahead, page * PAGE, PAGE, n / 1000);
            ahead.widen();
            ahead.widen();
        }
        (0..100).for_each(|_| ahead.widen());
    }

    #[test]
    fn memory_is_limited_and_given_back() {
        let memory = ReadAheadMemory::default();
        let mut files: Vec<ReadAhead> = (0..40).map(|_| ReadAhead::default()).collect();
        for ahead in &mut files {
            (0..4).for_each(|_| ahead.widen());
            for n in 0..4 {
                let read = 8 * n * BLOCK..(8 * n + 1) * BLOCK;
                ahead.plan(read, SIZE, 64 << 20, 1, Plan::default(), &memory);
            }
        }
        let used = memory.used();
        assert!(used > memory::MAX / 2 && used <= memory::MAX, "{used}");
        drop(files);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn nothing_is_read_ahead_behind_the_end() {
        let mut ahead = ReadAhead::default();
        (0..4).for_each(|_| ahead.widen());
        let memory = ReadAheadMemory::default();
        let size = 10 * BLOCK + 100;
        for n in 0..4 {
            let read = 2 * n * BLOCK..(2 * n + 1) * BLOCK;
            ahead.plan(read, size, 8 << 20, 1, Plan::default(), &memory);
        }
        assert_eq!(ahead.blocks.iter().map(|block| block.end()).max(), Some(size));
    }
}

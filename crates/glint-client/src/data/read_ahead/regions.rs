//! Regions of a file, of as much as a request brings: where all of a file is read, whoever reads it,
//! each region is one request. No I/O.
//!
//! It does not matter who reads and in which pieces: one program from one end to the other, or many by
//! turns in odd transfers, as IOR does. So this is of a file, not of an open of it, and what counts is
//! which pages of a region were read, in any order:
//! - What is dense and long enough is a sequence: all of its region will be read, and the next one once
//!   half of this one was.
//! - The first request for a sequence brings a few times what was read of it. A read waits for more
//!   than it wants only where that is no more than a few times as much.
//! - Regions that are fetched and not read cost as much as those that are: each makes the next
//!   sequence prove itself twice as long, and each that was read takes that back.
//!
//! Invariant: as what else is read ahead, a block is used only while the stamp is what it was before
//! the block was asked for.

use crate::data::read_ahead::page_bits::{PAGES, PageBits, REGION};
use crate::data::read_ahead::region::{Region, pages_ended, pages_in, pages_touched};
use crate::data::read_ahead::{BlockAhead, PAGE, Plan, ReadAheadMemory};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Pages that must be read in order to be taken as a sequence: 2 MiB; or so many in so many reads.
const SEQUENCE: u64 = PAGES / 2;
const SEQUENCE_SHORT: u64 = 64;
const SEQUENCE_READS: u64 = 8;
/// A request brings so many times what was read in order before, or what who waits for it wants.
const RAMP: u64 = 4;
/// Smallest file with regions.
const FILE_MIN: u64 = REGION / 4;
/// Regions that are remembered: 512 MiB of a file.
const REGIONS_MAX: usize = 128;
/// Blocks of a file that nobody has read all of yet: some memory stays for other files.
const BLOCKS_MAX: usize = 24;
/// How often what a sequence takes may double.
const DOUBT_MAX: u32 = 5;

/// A block, the region that it is of, and its pages there.
struct RegionBlock {
    block: Arc<BlockAhead>,
    region: u64,
    pages: Range<u64>,
    touched: u64,
}

/// Regions of a file that was read.
#[derive(Default)]
pub(crate) struct Regions {
    stamp: u64,
    regions: BTreeMap<u64, Region>,
    blocks: Vec<RegionBlock>,
    /// How often what a sequence takes was doubled.
    doubt: u32,
    /// Counts plans.
    now: u64,
    /// A block that was read, for the memory of the next one.
    spare: Option<Arc<BlockAhead>>,
}

impl Regions {
    /// Whether a file of `size` bytes has regions.
    pub(crate) fn are_in(size: u64) -> bool {
        size > FILE_MIN
    }

    /// Somebody reads of a file of `size` bytes, in which so many bytes are read ahead at least.
    /// Returns what to do, and whether the read is part of a sequence.
    pub(crate) fn plan(
        &mut self,
        read: &Range<u64>,
        size: u64,
        window: u64,
        stamp: u64,
        memory: &ReadAheadMemory,
    ) -> (Plan, bool) {
        if self.stamp != stamp {
            *self = Regions { stamp, doubt: self.doubt, ..Regions::default() };
        }
        let read = read.start..read.end.min(size);
        if read.is_empty() || read.end - read.start > REGION {
            return (Plan::default(), false);
        }
        self.now += 1;
        let mut here = self.find(&read);
        let number = (read.end - 1) / REGION;
        let before = self.regions.get(&number).map(|region| region.read).unwrap_or_default();
        self.note_read(&read, size);
        let run = self.run(number);
        if !self.is_sequence(number, run) {
            self.settle(size);
            return (Plan { here, fetch: Vec::new() }, false);
        }
        let mut fetch = Vec::new();
        if let Some(span) = self.next_in(number, run, &read, &before, here.is_empty(), size) {
            fetch.extend(self.ask(number, span, size, memory));
        }
        if here.is_empty() {
            here = self.find(&read);
        }
        let is_half_read = 2 * self.pages_read(number) >= pages_in(number, size);
        for next in number + 1..=number + (window / REGION).max(1) {
            // Further than one only where there is room.
            let is_far = next > number + 1 && memory.is_half_used();
            if !is_half_read || is_far || pages_in(next, size) == 0 {
                break;
            }
            let region = self.region(next);
            if let Some(span) = region.missing(&(0..pages_in(next, size)), &region.read) {
                fetch.extend(self.ask(next, span, size, memory));
            }
        }
        self.settle(size);
        (Plan { here, fetch }, true)
    }

    /// Notes which pages were read to their end.
    fn note_read(&mut self, read: &Range<u64>, size: u64) {
        for number in read.start / REGION..=(read.end - 1) / REGION {
            let pages = pages_ended(number, read, size);
            let region = self.region(number);
            region.note_read(&pages);
        }
    }

    fn region(&mut self, number: u64) -> &mut Region {
        let is_new = !self.regions.contains_key(&number);
        if is_new && self.regions.len() >= REGIONS_MAX {
            let oldest = self.regions.iter().min_by_key(|(_, region)| region.touched);
            if let Some(oldest) = oldest.map(|(number, _)| *number) {
                while let Some(at) = self.blocks.iter().position(|held| held.region == oldest) {
                    self.drop_unread(at);
                }
                self.regions.remove(&oldest);
            }
        }
        let region = self.regions.entry(number).or_default();
        region.touched = self.now;
        region
    }

    fn is_full(&self, number: Option<u64>) -> bool {
        let region = number.and_then(|number| self.regions.get(&number));
        region.is_some_and(Region::is_full)
    }

    fn pages_read(&self, number: u64) -> u64 {
        self.regions.get(&number).map_or(0, |region| region.read.count())
    }

    /// Pages that were read in order, up to those of a region.
    fn run(&self, number: u64) -> u64 {
        let Some(region) = self.regions.get(&number) else { return 0 };
        let mut before = number.checked_sub(1);
        if !region.is_dense() && !self.is_full(before) {
            return 0;
        }
        let mut run = region.read.count();
        while let Some(full) = before.filter(|_| self.is_full(before)) {
            run += PAGES;
            before = full.checked_sub(1);
            if run >= SEQUENCE << DOUBT_MAX {
                break;
            }
        }
        run
    }

    fn is_sequence(&self, number: u64, run: u64) -> bool {
        let is_short = run < SEQUENCE << self.doubt;
        let reads = self.regions.get(&number).map_or(0, |region| region.reads);
        let are_many = reads >= SEQUENCE_READS << self.doubt && run >= SEQUENCE_SHORT << self.doubt;
        !is_short || are_many
    }

    /// What to ask for of a region in which so many pages are read in order. `before` are those that
    /// were read of it before this read, which does or does not want data.
    fn next_in(
        &self,
        number: u64,
        run: u64,
        read: &Range<u64>,
        before: &PageBits,
        wants: bool,
        size: u64,
    ) -> Option<Range<u64>> {
        let region = self.regions.get(&number)?;
        if 2 * region.pending() > run {
            return None;
        }
        let first = match self.is_full(number.checked_sub(1)) {
            true => 0,
            false => region.read.span().start,
        };
        let pages = first..pages_in(number, size);
        let most = |span: Range<u64>| span.start..span.end.min(span.start + RAMP * run);
        let own = pages_touched(number, read);
        let has_own = |span: &Range<u64>| {
            let len = span.end - span.start;
            let is_more = len > own.end - own.start && len <= RAMP * (own.end - own.start);
            is_more && span.start <= own.start && own.end <= span.end
        };
        if wants && read.start >= number * REGION {
            let with_own = region.missing(&pages, before).map(most).filter(has_own);
            if with_own.is_some() {
                return with_own;
            }
        }
        region.missing(&pages, &region.read).map(most)
    }

    /// Adds a block, if there is memory for it.
    fn ask(
        &mut self,
        number: u64,
        pages: Range<u64>,
        size: u64,
        memory: &ReadAheadMemory,
    ) -> Option<Arc<BlockAhead>> {
        let start = number * REGION + pages.start * PAGE;
        let end = (number * REGION + pages.end * PAGE).min(size);
        let buffer = self.spare.take().and_then(BlockAhead::into_buffer).unwrap_or_default();
        let block = BlockAhead::coming_into(start, end - start, memory, buffer)?;
        self.region(number).asked.insert(&pages);
        let (region, touched) = (number, self.now);
        self.blocks.push(RegionBlock { block: block.clone(), region, pages, touched });
        Some(block)
    }

    /// The blocks that have all of a range.
    fn find(&mut self, range: &Range<u64>) -> Vec<Arc<BlockAhead>> {
        let mut found = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let covers =
                |held: &&mut RegionBlock| (held.block.offset..held.block.end()).contains(&at);
            let Some(held) = self.blocks.iter_mut().find(covers) else { return Vec::new() };
            held.touched = self.now;
            at = held.block.end();
            found.push(held.block.clone());
        }
        found
    }

    /// Drops what was read, and what nobody comes to.
    fn settle(&mut self, size: u64) {
        for at in (0..self.blocks.len()).rev() {
            if self.unread(at) == 0 {
                let held = self.blocks.swap_remove(at);
                self.doubt = self.doubt.saturating_sub(1);
                // Behind the end nothing comes that it could be for.
                self.spare = Some(held.block).filter(|block| block.end() < size);
            }
        }
        while self.blocks.len() > BLOCKS_MAX {
            let oldest = self.blocks.iter().enumerate().min_by_key(|(_, held)| held.touched);
            let Some(at) = oldest.map(|(at, _)| at) else { return };
            self.drop_unread(at);
        }
    }

    /// Pages of a block that nobody has read.
    fn unread(&self, at: usize) -> u64 {
        let RegionBlock { region, pages, .. } = &self.blocks[at];
        let read = self.regions.get(region).map(|region| region.read).unwrap_or_default();
        PageBits::of(pages).without(&read).count()
    }

    fn drop_unread(&mut self, at: usize) {
        let unread = self.unread(at);
        let held = self.blocks.swap_remove(at);
        let is_wasted = 2 * unread > held.pages.end - held.pages.start;
        self.doubt = (self.doubt + u32::from(is_wasted)).min(DOUBT_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::read_ahead::memory;

    const MIB: u64 = 1 << 20;
    /// Bytes of the odd transfers of IOR.
    const ODD: u64 = 47_008;

    /// A file that is read, and the requests for it.
    struct Reads {
        regions: Regions,
        size: u64,
        window: u64,
        memory: ReadAheadMemory,
        requests: u64,
        bytes: u64,
        largest: usize,
    }

    impl Reads {
        fn of(size: u64) -> Reads {
            let (regions, memory) = (Regions::default(), ReadAheadMemory::default());
            Reads { regions, size, window: 0, memory, requests: 0, bytes: 0, largest: 0 }
        }

        /// Reads; returns whether that was asked for before, or with what is asked for now, and what is
        /// asked for in advance.
        fn read(&mut self, offset: u64, len: u64) -> (bool, Vec<(u64, u64)>) {
            let read = offset..offset + len;
            let (plan, _) = self.regions.plan(&read, self.size, self.window, 1, &self.memory);
            let fetched: Vec<_> = plan.fetch.iter().map(|one| (one.offset, one.end())).collect();
            let is_here = !plan.here.is_empty();
            let alone = (!is_here).then_some((offset, (offset + len).min(self.size)));
            for &(start, end) in fetched.iter().chain(&alone) {
                assert!(end - start <= REGION && end <= self.size);
                self.requests += 1;
                self.bytes += end - start;
            }
            self.largest = self.largest.max(self.memory.used());
            (is_here, fetched)
        }

        /// Reads all by so many readers by turns, each in pieces of so many bytes.
        fn strided(&mut self, readers: u64, piece: u64) {
            for call in 0..self.size / piece / readers * readers {
                self.read(call * piece, piece);
            }
        }
    }

    fn any(random: &mut u64, below: u64) -> u64 {
        *random = random.wrapping_mul(6_364_136_223_846_793_005);
        *random = random.wrapping_add(1_442_695_040_888_963_407);
        (*random >> 24) % below
    }

    #[test]
    fn what_is_read_in_order_is_one_request_for_each_region() {
        for window in [0, 2 * REGION, 4 * REGION] {
            let mut file = Reads::of(64 * MIB);
            file.window = window;
            file.strided(1, MIB);
            // The first MiB, the rest of the first region, and 15 others.
            assert_eq!((file.requests, file.bytes), (17, 64 * MIB));
            assert!(file.largest as u64 <= window.max(REGION) + REGION, "{}", file.largest);
            file.regions = Regions::default();
            assert_eq!(file.memory.used(), 0);
        }
    }

    #[test]
    fn the_next_region_comes_before_anybody_asks_for_it() {
        let mut file = Reads::of(64 * MIB);
        assert_eq!(file.read(0, MIB), (false, vec![]));
        assert_eq!(file.read(MIB, MIB), (true, vec![(MIB, REGION), (REGION, 2 * REGION)]));
        for n in 2..5 {
            assert_eq!(file.read(n * MIB, MIB), (true, vec![]));
        }
        assert_eq!(file.read(5 * MIB, MIB), (true, vec![(2 * REGION, 3 * REGION)]));
    }

    #[test]
    fn who_wants_little_does_not_wait_for_much() {
        let (mut file, small) = (Reads::of(64 * MIB), 128 << 10);
        for n in 0..7 {
            assert_eq!(file.read(n * small, small), (false, vec![]));
        }
        assert_eq!(file.read(7 * small, small), (false, vec![(8 * small, REGION)]));
        for n in 8..15 {
            assert_eq!(file.read(n * small, small), (true, vec![]));
        }
        assert_eq!(file.read(15 * small, small), (true, vec![(REGION, 2 * REGION)]));
    }

    #[test]
    fn many_readers_of_a_part_each_have_their_regions() {
        let mut file = Reads::of(512 * MIB);
        for call in 0..64 {
            for reader in 0..8 {
                file.read((reader * 64 + call) * MIB, MIB);
            }
        }
        assert_eq!((file.requests, file.bytes), (8 * 17, 512 * MIB));
        assert!(file.largest <= memory::MAX / 2, "{}", file.largest);
    }

    #[test]
    fn many_readers_by_turns_are_one_sequence() {
        let mut file = Reads::of(512 * MIB);
        file.strided(8, MIB);
        assert_eq!((file.requests, file.bytes), (129, 512 * MIB));
        let mut file = Reads::of(512 * MIB);
        file.strided(8, ODD);
        assert!(10 * file.requests <= 11 * 128, "{} requests", file.requests);
        assert!(100 * file.bytes <= 101 * file.size, "{} bytes", file.bytes);
    }

    #[test]
    fn readers_by_turns_need_not_keep_in_step() {
        let (mut file, mut random) = (Reads::of(512 * MIB), 1);
        let mut calls = [0; 8];
        let most = file.size / ODD / 8;
        while let Some(slowest) = calls.iter().copied().filter(|calls| *calls < most).min() {
            let reader = any(&mut random, 8) as usize;
            if calls[reader] < most && calls[reader] < slowest + 8 {
                file.read((calls[reader] * 8 + reader as u64) * ODD, ODD);
                calls[reader] += 1;
            }
        }
        assert!(10 * file.requests <= 13 * 128, "{} requests", file.requests);
        assert!(100 * file.bytes <= 102 * file.size, "{} bytes", file.bytes);
    }

    #[test]
    fn a_part_of_a_file_here_and_there_is_not_taken_for_more_for_long() {
        let (mut file, mut random) = (Reads::of(16 << 30), 1);
        for _ in 0..2000 {
            let at = any(&mut random, (16 << 10) / 2) * 2 * MIB;
            file.read(at, MIB);
            file.read(at + MIB, MIB);
        }
        assert!(10 * file.bytes <= 11 * 2000 * 2 * MIB, "{} bytes", file.bytes);
        // It is, once so much is read that it pays.
        file.requests = 0;
        for call in 0..512 {
            file.read((8 << 30) + call * MIB, MIB);
        }
        assert!(file.requests < 64 + 128 + 8, "{} requests", file.requests);
    }

    #[test]
    fn strides_and_small_reads_are_no_sequences() {
        let mut file = Reads::of(1 << 30);
        (0..64).for_each(|n| drop(file.read(n * 8 * MIB, MIB)));
        assert_eq!((file.requests, file.bytes), (64, 64 * MIB));
        let (mut file, mut random) = (Reads::of(1 << 30), 1);
        for _ in 0..2000 {
            let page = any(&mut random, (1 << 30) / PAGE);
            file.read(page * PAGE, PAGE);
        }
        assert_eq!((file.requests, file.bytes), (2000, 2000 * PAGE));
        assert!(file.regions.regions.len() <= REGIONS_MAX);
    }

    #[test]
    fn nothing_is_asked_for_behind_the_end_or_after_a_change() {
        let mut file = Reads::of(3 * MIB + 100);
        (0..4).for_each(|n| drop(file.read(n * MIB, MIB)));
        assert_eq!((file.requests, file.bytes), (2, 3 * MIB + 100));
        assert_eq!(file.memory.used(), 0, "all was read");
        let mut file = Reads::of(64 * MIB);
        (0..3).for_each(|n| drop(file.read(n * MIB, MIB)));
        let read = 3 * MIB..4 * MIB;
        let (plan, is_in_sequence) = file.regions.plan(&read, file.size, 0, 2, &file.memory);
        assert!(plan.here.is_empty() && plan.fetch.is_empty() && !is_in_sequence);
        assert_eq!(file.memory.used(), 0);
    }

    #[test]
    fn any_reads_in_any_order_are_planned() {
        let (mut file, mut random) = (Reads::of(64 * MIB + 5), 1);
        for n in 0..20_000u64 {
            let len = [1, 100, PAGE, 10_000, MIB, 2 * REGION][n as usize % 6];
            let at = any(&mut random, [MIB, 8 * MIB, 70 * MIB][n as usize / 7 % 3]);
            file.window = n % 5 * REGION;
            let (plan, _) =
                file.regions.plan(&(at..at + len), file.size, file.window, n / 999, &file.memory);
            for block in plan.here {
                assert!(block.offset < at + len && at < block.end());
            }
            assert!(file.regions.blocks.len() <= BLOCKS_MAX);
        }
        assert!(file.memory.used() <= memory::MAX);
    }

    #[test]
    fn a_block_that_was_read_gives_its_memory_to_the_next_one() {
        let memory = ReadAheadMemory::default();
        let mut regions = Regions::default();
        let mut buffers = Vec::new();
        for n in 0..32 {
            let (plan, _) = regions.plan(&(n * MIB..(n + 1) * MIB), 64 * MIB, 0, 1, &memory);
            for block in plan.fetch {
                let data = block.room();
                assert_eq!(data.len() as u64, block.len);
                buffers.push(data.as_ptr());
                block.fill(Some(data));
            }
        }
        let count = buffers.len();
        buffers.sort_unstable();
        buffers.dedup();
        assert!(buffers.len() <= 3 && count > 8, "{} of {count}", buffers.len());
    }
}

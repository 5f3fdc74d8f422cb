//! Regions of a file, of as much as a request brings: where all of a file is read, whoever reads it,
//! each region is one request. No I/O.
//!
//! It does not matter who reads and in which pieces: one program from one end to the other, or many by
//! turns in odd transfers, as IOR does. So this is of a file, not of an open of it, and what counts is
//! which pages of a region were read, in any order:
//! - What is dense and long enough is a sequence: all of its region will be read, and, if it is longer
//!   than that, the next one once half of this one was.
//! - The first request for a sequence brings a few times what was read of it. A read waits for more
//!   than it wants only where that is no more than a few times as much.
//! - Regions that are fetched and not read cost as much as those that are: each makes the next
//!   sequence prove itself twice as long, and each that was read takes that back.
//! - What is read in no order is no sequence: of large reads [`WideReads`] says what to fetch.
//!
//! Invariant: as what else is read ahead, a block is used only while the stamp is what it was before
//! the block was asked for.

use crate::data::read_ahead::around::Around;
use crate::data::read_ahead::page_bits::{PAGES, PageBits, REGION};
use crate::data::read_ahead::region::{Region, pages_ended, pages_in, pages_touched};
use crate::data::read_ahead::wide::WideReads;
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
    /// Large reads that are part of no sequence.
    wide: WideReads,
}

impl Regions {
    /// Whether a file of `size` bytes has regions.
    pub(crate) fn are_in(size: u64) -> bool {
        size > FILE_MIN
    }

    /// Somebody reads of a file of `size` bytes, in which so many bytes are read ahead at least.
    /// Returns what to do: nothing is fetched unless the read is part of a sequence.
    pub(crate) fn plan(
        &mut self,
        read: &Range<u64>,
        size: u64,
        window: u64,
        stamp: u64,
        memory: &ReadAheadMemory,
    ) -> Plan {
        if self.stamp != stamp {
            let mut wide = std::mem::take(&mut self.wide);
            wide.forget_all();
            *self = Regions { stamp, doubt: self.doubt, wide, ..Regions::default() };
        }
        let read = read.start..read.end.min(size);
        if read.is_empty() || read.end - read.start > REGION {
            return Plan::default();
        }
        if let Some(window) = self.wide.find(&read) {
            return Plan { here: vec![window], ..Plan::default() };
        }
        self.now += 1;
        let mut here = self.find(&read);
        let number = (read.end - 1) / REGION;
        self.begin_again(&read, size);
        let before = self.regions.get(&number).map(|region| region.read).unwrap_or_default();
        self.note_read(&read, size);
        let run = self.run(number);
        if !self.is_sequence(number, run) {
            self.settle();
            return Plan { here, ..Plan::default() };
        }
        self.wide.note_sequence();
        let mut fetch = Vec::new();
        if let Some(span) = self.next_in(number, run, &read, &before, here.is_empty(), size) {
            fetch.extend(self.ask(number, span, size, memory));
        }
        if here.is_empty() {
            here = self.find(&read);
        }
        // Reads of a region each, here and there, want no next one.
        let is_long = run > PAGES;
        let goes_on = is_long && 2 * self.pages_read(number) >= pages_in(number, size);
        for next in number + 1..=number + (window / REGION).max(1) {
            // Further than one only where there is room.
            let is_far = next > number + 1 && memory.is_half_used();
            if !goes_on || is_far || pages_in(next, size) == 0 {
                break;
            }
            let passes = self.regions.get(&number).map_or(0, |region| region.passes);
            let region = self.region(next);
            if region.passes < passes && region.read.count() >= pages_in(next, size) {
                region.begin_pass(passes);
            }
            if let Some(span) = region.missing(&(0..pages_in(next, size)), &region.read) {
                fetch.extend(self.ask(next, span, size, memory));
            }
        }
        self.settle();
        Plan { here, fetch, is_in_sequence: true }
    }

    /// Where a large read comes from that was just planned and is part of no sequence, in a file of
    /// `size` bytes, if there is `room` for so many.
    pub(super) fn around(
        &mut self,
        read: &Range<u64>,
        size: u64,
        room: u64,
        stamp: u64,
        memory: &ReadAheadMemory,
    ) -> Around {
        match self.stamp == stamp {
            true => self.wide.plan(read, size, room, memory),
            false => Around::Alone,
        }
    }

    /// Forgets a region that was fetched around a large read.
    pub(crate) fn forget_window(&mut self, window: &Arc<BlockAhead>) {
        self.wide.forget(window);
    }

    /// What is to be remembered of a file that nobody has open any more, if there is anything.
    pub(crate) fn after_close(mut self) -> Option<Regions> {
        self.wide.on_close();
        (!self.wide.is_new()).then(|| Regions { wide: self.wide, ..Regions::default() })
    }

    /// What was read to its end is read once more.
    fn begin_again(&mut self, read: &Range<u64>, size: u64) {
        for number in read.start / REGION..=(read.end - 1) / REGION {
            let all = pages_in(number, size);
            let region = self.regions.get_mut(&number);
            if let Some(region) = region.filter(|region| region.read.count() >= all) {
                region.begin_pass(region.passes + 1);
            }
        }
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
        // Some of the blocks that are read in any order are neighbours.
        let doubt = self.doubt.max(u32::from(self.wide.are_many()));
        let is_short = run < SEQUENCE << doubt;
        let reads = self.regions.get(&number).map_or(0, |region| region.reads);
        let are_many = reads >= SEQUENCE_READS << doubt && run >= SEQUENCE_SHORT << doubt;
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
        let block = BlockAhead::coming(start, end - start, memory)?;
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
    fn settle(&mut self) {
        for at in (0..self.blocks.len()).rev() {
            if self.unread(at) == 0 {
                self.blocks.swap_remove(at);
                self.doubt = self.doubt.saturating_sub(1);
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
mod tests;

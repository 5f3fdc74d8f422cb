//! Large reads anywhere in a file: whether to fetch all of the region around one, because others will
//! follow there. No I/O.
//!
//! A block of 1 MiB in a random order is a request, and a request brings 4 MiB at most. The other
//! blocks of its region are read much later, so all of it goes to the kernel's pages. What that may
//! cost is bytes that nobody reads, and so each file has an allowance of them ([`Allowance`]):
//! - The kernel does not tell what it reads of its pages. Of the regions 1 in 4 is kept here, a few at
//!   once, and it is known which of their pages are read; of the others as much is taken to be.
//! - In any stretch of reads, however the ones before it were, regions have at most twice as many
//!   pages as are read of them, a sixteenth of what is read alone, and so many more as may be saved
//!   up: a third of a file for which there is room (32 to 192 MiB), or 96 MiB of any other. All of a
//!   file in blocks of 1 MiB needs a fifth of it: once a part p of it was read, 1 - (1 - p)^4 of its
//!   regions were fetched.
//! - A file for which there is room is given its third in advance, once, and no more than four times
//!   what was read of it. Any other has to earn all: random reads of a large database fetch a few
//!   percent more than they ask for.
//! - The allowance outlives the open of a file, as long as the inode is known: who opens it again and
//!   again to read a little has no new one each time.
//! - Programs that read in order look the same where they begin. So a few reads are alone first, and
//!   each read in a sequence takes one of those back.
//!
//! Invariant: as what else is read ahead, a region is used only while the stamp is what it was before
//! the region was fetched.

use crate::data::read_ahead::around::Around;
use crate::data::read_ahead::page_bits::{PAGES, PageBits, REGION};
use crate::data::read_ahead::region::{pages_in, pages_touched};
use crate::data::read_ahead::{BlockAhead, PAGE, ReadAheadMemory};
use glint_proto::limits::LARGE_BULK_BYTES;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Bytes of the smallest read that may have a region.
pub(super) const WIDE_MIN: u64 = REGION / 16;
const _: () = assert!(WIDE_MIN == LARGE_BULK_BYTES as u64, "blocks that are kept are not copied");
/// Reads that are alone before one has a region.
const ALONE: u64 = 8;
/// One of so many regions is kept, if there is a place ([`ReadAheadMemory::keep`]).
const ONE_OF: u64 = 4;
/// One that nobody has come to for so many reads is not kept any longer.
const IDLE: u64 = 256;
/// Pages that may be saved up: for a file for which there is room one of so many of its pages, within
/// limits, and for any other.
const SHARE: u64 = 3;
const SHARES: Range<u64> = 8 * PAGES..48 * PAGES;
const EARNED: u64 = 24 * PAGES;
/// Of a file for which there is room so many for each page that was read are given in advance.
const ADVANCE: u64 = 4;
/// One page in so many that are read alone is added.
const PROBE: u64 = 16;
/// A page that is read of a kept region stands for so many at most.
const WEIGHT_MAX: u64 = 4 * ONE_OF;
/// Regions that count, of the last ones, where it is said for how many a kept one stands.
const LAST: u64 = 128;

/// Pages that regions of a file may still have, and nobody read. Of each two pages of a region one is
/// paid by a page that is read.
#[derive(Default)]
struct Allowance {
    left: u64,
    /// Pages that may be saved up.
    most: u64,
    /// Pages that were given in advance.
    given: u64,
    /// Regions that were fetched, and how many of them were kept; half as many when there are
    /// [`LAST`].
    fetched: u64,
    kept: u64,
}

impl Allowance {
    /// The file has `size` bytes, and there is `room` for so many.
    fn set_size(&mut self, size: u64, room: u64) {
        if size <= room {
            self.most = (size / PAGE / SHARE).clamp(SHARES.start, SHARES.end);
        } else {
            (self.most, self.given) = (EARNED, EARNED);
        }
    }

    fn save(&mut self, pages: u64) {
        self.left = (self.left + pages).min(self.most);
        // What is saved and what may still be given are never more than the most.
        self.given = self.given.max(self.left);
    }

    /// So many pages are read, which are in no region that is here.
    fn on_read(&mut self, pages: u64) {
        let advance = (ADVANCE * pages).min(self.most.saturating_sub(self.given));
        self.given += advance;
        self.save(advance);
    }

    /// They are read alone.
    fn on_alone(&mut self, pages: u64) {
        self.save(pages / PROBE);
    }

    /// Whether a region of so many pages may be fetched, of which some are read now.
    fn has(&self, pages: u64, own: u64) -> bool {
        pages <= self.left + 2 * own
    }

    /// It is fetched.
    fn on_fetch(&mut self, pages: u64, own: u64, is_kept: bool) {
        self.left = (self.left + 2 * own).saturating_sub(pages).min(self.most);
        if self.fetched == LAST {
            (self.fetched, self.kept) = (self.fetched / 2, self.kept / 2);
        }
        (self.fetched, self.kept) = (self.fetched + 1, self.kept + u64::from(is_kept));
    }

    /// So many pages of a region that is kept are read for the first time.
    fn on_used(&mut self, pages: u64) {
        let stands_for = self.fetched.div_ceil(self.kept.max(1)).clamp(1, WEIGHT_MAX);
        self.save(2 * pages * stands_for);
    }
}

/// A region that was fetched because of a read in it, or is on its way. It is here as long as it is
/// kept, or somebody fetches it or gives it to the kernel.
struct WideWindow {
    block: Weak<BlockAhead>,
    range: Range<u64>,
    is_kept: bool,
    read: PageBits,
    /// When it was read last.
    touched: u64,
}

/// Large reads of a file, and the regions around them.
#[derive(Default)]
pub(super) struct WideReads {
    windows: Vec<WideWindow>,
    /// Counts reads.
    now: u64,
    /// Reads that were alone, less those in sequences.
    strays: u64,
    allowance: Allowance,
}

impl Drop for WideWindow {
    fn drop(&mut self) {
        if let Some(block) = self.block.upgrade().filter(|_| self.is_kept) {
            block.let_go();
        }
    }
}

impl WideWindow {
    fn has(&self, read: &Range<u64>) -> bool {
        self.range.start <= read.start && read.end <= self.range.end
    }

    /// Its data, which is here or on its way.
    fn block(&self) -> Option<Arc<BlockAhead>> {
        self.block.upgrade().filter(|block| !block.has_failed())
    }

    /// Notes a read. Returns how many of its pages were not read before.
    fn on_read(&mut self, read: &Range<u64>) -> u64 {
        let before = self.read.count();
        self.read.insert(&pages_touched(self.range.start / REGION, read));
        self.read.count() - before
    }
}

impl WideReads {
    /// The region that has all of a read, if it is here or on its way.
    pub(super) fn find(&mut self, read: &Range<u64>) -> Option<Arc<BlockAhead>> {
        let at = self.windows.iter().position(|window| window.has(read))?;
        let window = &mut self.windows[at];
        let Some(block) = window.block() else {
            self.windows.swap_remove(at);
            return None;
        };
        if window.is_kept {
            self.now += 1;
            window.touched = self.now;
            self.allowance.on_used(window.on_read(read));
            if window.read.count() == block.len.div_ceil(PAGE) {
                self.windows.swap_remove(at);
            }
        }
        Some(block)
    }

    /// A program reads much, in no order, within a file of `size` bytes, where there is `room` for so
    /// many.
    pub(super) fn plan(
        &mut self,
        read: &Range<u64>,
        size: u64,
        room: u64,
        memory: &ReadAheadMemory,
    ) -> Around {
        if let Some(block) = self.find(read) {
            return Around::Window(block);
        }
        let are_many = self.are_many();
        self.now += 1;
        self.strays = (self.strays + 1).min(2 * ALONE);
        let number = read.start / REGION;
        let (start, pages) = (number * REGION, pages_in(number, size));
        let end = (start + REGION).min(size);
        let is_part = read.end <= end && read.end - read.start < end - start;
        let own = (read.end - read.start).div_ceil(PAGE);
        self.allowance.set_size(size, room);
        self.allowance.on_read(own);
        // Half of the memory is for what is read in order.
        let may = is_part && are_many && !memory.is_half_used() && self.allowance.has(pages, own);
        let block = may.then(|| BlockAhead::coming(start, end - start, memory)).flatten();
        let Some(block) = block else {
            self.allowance.on_alone(own);
            return Around::Alone;
        };
        self.drop_idle();
        let is_kept = self.allowance.fetched.is_multiple_of(ONE_OF) && block.keep();
        let mut window = WideWindow {
            block: Arc::downgrade(&block),
            range: start..end,
            is_kept,
            read: PageBits::default(),
            touched: self.now,
        };
        let own = window.on_read(read);
        self.allowance.on_fetch(pages, own, is_kept);
        self.windows.push(window);
        Around::Fetch { window: block, is_kept }
    }

    /// Drops regions that are not here any more, did not come, or are kept and nobody comes to.
    fn drop_idle(&mut self) {
        let idle = self.now.saturating_sub(IDLE);
        self.windows.retain(|one| one.block().is_some() && (!one.is_kept || one.touched >= idle));
    }

    /// Whether so many large reads are in no order that the next one may have a region.
    pub(super) fn are_many(&self) -> bool {
        self.strays >= ALONE
    }

    /// A read was part of a sequence.
    pub(super) fn note_sequence(&mut self) {
        self.strays = self.strays.saturating_sub(1);
    }

    /// Forgets a region: the kernel has it, or it did not come.
    pub(super) fn forget(&mut self, window: &Arc<BlockAhead>) {
        self.windows.retain(|known| known.block.as_ptr() != Arc::as_ptr(window));
    }

    /// Forgets all regions: the data may have changed. What was not read of them never will be.
    pub(super) fn forget_all(&mut self) {
        self.windows.clear();
    }

    /// Nobody has the file open any more. What is left is what regions may cost later.
    pub(super) fn on_close(&mut self) {
        self.forget_all();
        self.strays = 0;
    }

    /// Whether nothing has to be remembered.
    pub(super) fn is_new(&self) -> bool {
        self.windows.is_empty() && self.allowance.most == 0
    }
}

#[cfg(test)]
mod tests;

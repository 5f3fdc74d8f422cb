//! What is known of a region: which of its pages were read, and which asked for.

use crate::data::read_ahead::PAGE;
use crate::data::read_ahead::page_bits::{PAGES, PageBits, REGION};
use std::ops::Range;

/// So many reads of a region are many: they were small.
const MANY_READS: u64 = 16;

/// What is known of a region.
#[derive(Default)]
pub(super) struct Region {
    /// Pages that were read to their end.
    pub read: PageBits,
    /// Reads of some of them.
    pub reads: u64,
    /// Pages that were asked for in advance.
    pub asked: PageBits,
    /// When it was read or asked for last, in plans.
    pub touched: u64,
    /// How often all of it was read before.
    pub passes: u64,
}

impl Region {
    /// Nothing of it was read in this pass.
    pub(super) fn begin_pass(&mut self, passes: u64) {
        *self = Region { passes, touched: self.touched, ..Region::default() };
    }

    /// Adds pages that were read.
    pub(super) fn note_read(&mut self, pages: &Range<u64>) {
        self.read.insert(pages);
        self.reads += 1;
    }

    /// Whether nearly all is read that lies between the first page that was and the last one. Of many
    /// small reads half is enough: readers by turns need not keep in step.
    pub(super) fn is_dense(&self) -> bool {
        let (count, span) = (self.read.count(), self.read.span());
        let is_half = 2 * count >= span.end - span.start;
        is_most(count, &span) || (self.reads >= MANY_READS && is_half)
    }

    /// Whether nearly all is read, or on its way.
    pub(super) fn is_full(&self) -> bool {
        is_most(self.read.or(&self.asked).count(), &(0..PAGES))
    }

    /// Pages that were asked for and not read.
    pub(super) fn pending(&self) -> u64 {
        self.asked.without(&self.read).count()
    }

    /// What to ask for of these pages, if `read` was: nothing if that would bring much again.
    pub(super) fn missing(&self, pages: &Range<u64>, read: &PageBits) -> Option<Range<u64>> {
        let missing = PageBits::of(pages).without(read).without(&self.asked);
        let span = missing.span();
        (!span.is_empty() && is_most(missing.count(), &span)).then_some(span)
    }
}

/// Whether these are at least three of four pages of a range.
fn is_most(count: u64, pages: &Range<u64>) -> bool {
    4 * count >= 3 * (pages.end - pages.start)
}

/// Pages of a region of a file of `size` bytes.
pub(super) fn pages_in(number: u64, size: u64) -> u64 {
    size.saturating_sub(number * REGION).min(REGION).div_ceil(PAGE)
}

/// Pages of a region that a range has something of.
pub(super) fn pages_touched(number: u64, range: &Range<u64>) -> Range<u64> {
    let within = |at: u64| at.saturating_sub(number * REGION).min(REGION);
    within(range.start) / PAGE..within(range.end).div_ceil(PAGE)
}

/// Pages of a region of which a range has the end: the last read of a page counts.
pub(super) fn pages_ended(number: u64, range: &Range<u64>, size: u64) -> Range<u64> {
    let touched = pages_touched(number, range);
    match range.end < size && range.end / REGION == number {
        true => touched.start..(range.end - number * REGION) / PAGE,
        false => touched,
    }
}

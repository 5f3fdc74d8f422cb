//! A bit for each page of a region.

use crate::data::read_ahead::PAGE;
use glint_proto::limits::BULK_BYTES_MAX;
use std::ops::Range;

/// Bytes of a region: what a request brings at most.
pub(super) const REGION: u64 = BULK_BYTES_MAX as u64;
/// Its pages.
pub(super) const PAGES: u64 = REGION / PAGE;

const WORDS: usize = 16;
const WORD_BITS: u64 = 64;
const _: () = assert!(PAGES == WORDS as u64 * WORD_BITS);

/// Some of the pages of a region.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct PageBits([u64; WORDS]);

impl PageBits {
    /// These pages.
    pub(super) fn of(pages: &Range<u64>) -> PageBits {
        PageBits(std::array::from_fn(|index| {
            let begin = index as u64 * WORD_BITS;
            let within = |page: u64| page.clamp(begin, begin + WORD_BITS) - begin;
            let (start, end) = (within(pages.start), within(pages.end));
            match start < end {
                true => (u64::MAX >> (WORD_BITS - (end - start))) << start,
                false => 0,
            }
        }))
    }

    /// Adds pages.
    pub(super) fn insert(&mut self, pages: &Range<u64>) {
        *self = self.or(&PageBits::of(pages));
    }

    /// The pages of either.
    pub(super) fn or(&self, other: &PageBits) -> PageBits {
        PageBits(std::array::from_fn(|index| self.0[index] | other.0[index]))
    }

    /// The pages that the other one does not have.
    pub(super) fn without(&self, other: &PageBits) -> PageBits {
        PageBits(std::array::from_fn(|index| self.0[index] & !other.0[index]))
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// From the first one to the last.
    pub(super) fn span(&self) -> Range<u64> {
        let Some(first) = self.0.iter().position(|word| *word != 0) else { return 0..0 };
        let last = self.0.iter().rposition(|word| *word != 0).unwrap_or(first);
        let (before, behind) = (self.0[first].trailing_zeros(), self.0[last].leading_zeros());
        let start = first as u64 * WORD_BITS + u64::from(before);
        start..(last as u64 + 1) * WORD_BITS - u64::from(behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_added_and_taken_away() {
        for pages in [0..1, 0..64, 5..70, 63..65, 1000..1024, 0..1024, 7..7] {
            let bits = PageBits::of(&pages);
            let is_in =
                (0..PAGES).filter(|page| PageBits::of(&(*page..page + 1)).or(&bits) == bits);
            assert!(is_in.eq(pages.clone()));
            assert_eq!(bits.count(), pages.end - pages.start);
            assert_eq!(bits.span(), if pages.is_empty() { 0..0 } else { pages });
        }
        let mut bits = PageBits::of(&(10..20));
        bits.insert(&(100..200));
        assert_eq!((bits.span(), bits.count()), (10..200, 110));
        let rest = bits.without(&PageBits::of(&(0..150)));
        assert_eq!((rest.span(), rest.count()), (150..200, 50));
    }
}

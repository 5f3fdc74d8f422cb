//! Ranges of a file that its new objects may lack.

use glint_proto::Layout;

/// An extent of an object over more stripes than this is taken as one range of the file, with what lies
/// between them in other objects.
const STRIPES_APART_MAX: u64 = 64;

/// Ranges of a file, in their order; none touches another one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct FileRanges(Vec<(u64, u64)>);

impl FileRanges {
    /// All of a file, however large it is.
    pub(super) fn all() -> FileRanges {
        FileRanges(vec![(0, u64::MAX)])
    }

    /// Adds at least what lies in an extent of the object of a stripe.
    pub(super) fn add(&mut self, layout: Layout, stripe: u16, (start, end): (u64, u64)) {
        if start >= end {
            return;
        }
        let whole = |start: u64, end: u64| {
            let last = layout.file_offset(stripe, end - 1);
            (layout.file_offset(stripe, start), last.saturating_add(1))
        };
        let block = layout.stripe_bytes();
        if layout.stripe_count <= 1 || (end - 1) / block - start / block > STRIPES_APART_MAX {
            self.0.push(whole(start, end));
        } else {
            let mut at = start;
            while at < end {
                let next = (at / block + 1).saturating_mul(block).min(end);
                self.0.push(whole(at, next));
                at = next;
            }
        }
    }

    /// Joins what touches; to be called after ranges were added.
    pub(super) fn join(&mut self) {
        self.0.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::with_capacity(self.0.len());
        for (start, end) in self.0.drain(..) {
            match joined.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => joined.push((start, end)),
            }
        }
        self.0 = joined;
    }

    /// Adds all of these.
    pub(super) fn extend(&mut self, others: FileRanges) {
        self.0.extend(others.0);
        self.join();
    }

    /// What of it lies before `end`, in parts of at most `bytes`.
    pub(super) fn parts(&self, end: u64, bytes: u64) -> Vec<(u64, u64)> {
        let mut parts = Vec::new();
        for (start, to) in self.0.iter().map(|(start, to)| (*start, (*to).min(end))) {
            let mut at = start;
            while at < to {
                let next = at.saturating_add(bytes).min(to);
                parts.push((at, next));
                at = next;
            }
        }
        parts
    }

    /// Bytes of it that lie before `end`.
    pub(super) fn bytes_before(&self, end: u64) -> u64 {
        let before = |(start, to): &(u64, u64)| (*to).min(end).saturating_sub(*start);
        self.0.iter().map(before).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn striped(count: u16) -> Layout {
        Layout { stripe_bytes_log2: 20, stripe_count: count, ..Layout::default() }
    }

    #[test]
    fn extents_of_objects_are_ranges_of_the_file() {
        let mut ranges = FileRanges::default();
        ranges.add(striped(1), 0, (5, u64::MAX));
        assert_eq!(ranges, FileRanges(vec![(5, u64::MAX)]));
        let mut ranges = FileRanges::default();
        ranges.add(striped(2), 1, (MIB / 2, 2 * MIB));
        ranges.add(striped(2), 0, (MIB, MIB + 7));
        ranges.add(striped(2), 0, (9, 9));
        ranges.join();
        let expected = vec![(MIB + MIB / 2, 2 * MIB + 7), (3 * MIB, 4 * MIB)];
        assert_eq!(ranges, FileRanges(expected));
        ranges.add(striped(2), 1, (0, u64::MAX));
        ranges.join();
        assert_eq!(ranges, FileRanges(vec![(MIB, u64::MAX)]));
        assert_eq!(
            ranges.parts(3 * MIB + 1, MIB),
            [(MIB, 2 * MIB), (2 * MIB, 3 * MIB), (3 * MIB, 3 * MIB + 1)]
        );
        assert_eq!((ranges.bytes_before(3 * MIB), ranges.bytes_before(0)), (2 * MIB, 0));
        ranges.extend(FileRanges::all());
        assert_eq!(ranges, FileRanges::all());
    }

    proptest! {
        #[test]
        fn no_byte_of_an_extent_is_left_out(
            count in 1u16..5, stripe in 0u16..5, start in 0u64..1 << 30, len in 1u64..1 << 28
        ) {
            let (layout, stripe) = (striped(count), stripe % count);
            let mut ranges = FileRanges::default();
            ranges.add(layout, stripe, (start, start + len));
            ranges.join();
            let has = |at: u64| ranges.0.iter().any(|(from, to)| *from <= at && at < *to);
            for object_offset in [start, start + len / 2, start + len - 1] {
                prop_assert!(has(layout.file_offset(stripe, object_offset)));
            }
        }
    }
}

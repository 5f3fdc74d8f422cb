//! Directories whose small files are read one after the other: which one is next. No I/O.
//!
//! They follow each other in the order in which programs listed them. That is relied on once two
//! were read in this order: for a few files, and when the next directory begins with one of these,
//! for as many as within one directory. Each request for files of other directories takes some of
//! that trust, so whoever reads in another order has few read in vain.
//!
//! Who lists a directory right before its files are read (tar(1), `grep -r`) leaves nothing to
//! follow. So where a sequence has come to its end, the next listing begins with that directory's
//! first files; not after listings without reads, as `ls -lR` makes them.

use crate::data::prefetch::plan::{ReadOrder, WINDOW_GUESSED};
use glint_proto::Ino;
use std::collections::{BTreeMap, VecDeque};

/// Directories whose place in the order is known.
const PLACES_MAX: usize = 4096;
/// Directories that are read at the same time, each by another program or thread.
const READERS_MAX: usize = 8;
/// Listings that may begin with the files of their directory, since one that was prefetched was
/// read.
const LISTINGS_MAX: u32 = 2;
/// Requests for files of other directories that may be in vain: once two directories were read in
/// order, and once the second one began with a file that was asked for.
const TRUST_BEGUN: u32 = 2;
const TRUST_MAX: u32 = 8;

/// Order of the directories whose files programs were told of, and how far they are read in it.
#[derive(Default)]
pub(crate) struct DirectorySequence {
    /// Directories in order, and where each of them is.
    order: BTreeMap<u64, Ino>,
    places: BTreeMap<Ino, u64>,
    next_place: u64,
    /// Those that were read last.
    read: VecDeque<Ino>,
    /// So many requests for files of other directories may be in vain.
    trust: u32,
    /// Listings that may begin with their files, from now on.
    listings: u32,
    /// The sequence that went on last has come to its end.
    is_at_end: bool,
    /// Its files were read in this order.
    files_order: ReadOrder,
}

impl DirectorySequence {
    /// A program is told of the first files of a directory. Returns whether these are to be asked
    /// for.
    pub(crate) fn on_listing(&mut self, directory: Ino) -> bool {
        if let Some(before) = self.places.insert(directory, self.next_place) {
            self.order.remove(&before);
        }
        self.order.insert(self.next_place, directory);
        self.next_place += 1;
        if self.order.len() > PLACES_MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.places.remove(&oldest);
        }
        let begins = self.is_at_end && self.listings > 0;
        self.listings = self.listings.saturating_sub(1);
        begins
    }

    /// A small file of a directory is read. It was prefetched or not; before any file of its
    /// directory was read, if `is_ahead`.
    pub(crate) fn on_read(&mut self, directory: Ino, was_prefetched: bool, is_ahead: bool) {
        if was_prefetched {
            self.listings = LISTINGS_MAX;
        }
        if self.read.contains(&directory) {
            return;
        }
        if self.read.iter().any(|before| self.after(*before) == Some(directory)) {
            self.trust = match was_prefetched && is_ahead {
                true => TRUST_MAX,
                false => self.trust.max(TRUST_BEGUN),
            };
        }
        self.read.push_back(directory);
        if self.read.len() > READERS_MAX {
            self.read.pop_front();
        }
    }

    /// The directory that follows another one.
    pub(crate) fn after(&self, directory: Ino) -> Option<Ino> {
        let place = self.places.get(&directory)?;
        self.order.range(place + 1..).next().map(|(_, next)| *next)
    }

    /// How many files of the directories that follow may be asked for together.
    pub(crate) fn files_max(&self) -> usize {
        match self.trust {
            0 => 0,
            1..=TRUST_BEGUN => WINDOW_GUESSED,
            _ => usize::MAX,
        }
    }

    /// Files of directories that follow are asked for.
    pub(crate) fn on_followed(&mut self) {
        self.trust = self.trust.saturating_sub(1);
    }

    /// A sequence goes on, in this order of files, and has perhaps come to its end.
    pub(crate) fn on_asked(&mut self, files_order: ReadOrder, is_at_end: bool) {
        (self.files_order, self.is_at_end) = (files_order, is_at_end);
    }

    /// Order in which the files of a sequence were read last.
    pub(crate) fn files_order(&self) -> ReadOrder {
        self.files_order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(directories: impl Iterator<Item = u64>) -> DirectorySequence {
        let mut sequence = DirectorySequence::default();
        for directory in directories {
            assert!(!sequence.on_listing(Ino(directory)), "nothing was read");
        }
        sequence
    }

    #[test]
    fn directories_follow_each_other_as_they_were_listed() {
        let mut sequence = listed([5, 3, 9].into_iter());
        assert_eq!(
            [5, 3, 9, 4].map(|of| sequence.after(Ino(of))),
            [Some(Ino(3)), Some(Ino(9)), None, None]
        );
        sequence.on_listing(Ino(5));
        assert_eq!([3, 9, 5].map(|of| sequence.after(Ino(of))), [Some(Ino(9)), Some(Ino(5)), None]);
    }

    #[test]
    fn the_place_of_the_oldest_is_forgotten() {
        let count = PLACES_MAX as u64;
        let sequence = listed(1..=2 * count);
        assert_eq!((sequence.order.len(), sequence.places.len()), (PLACES_MAX, PLACES_MAX));
        assert_eq!(sequence.after(Ino(count)), None);
        assert_eq!(sequence.after(Ino(count + 1)), Some(Ino(count + 2)));
        assert_eq!(sequence.after(Ino(2 * count)), None);
    }

    #[test]
    fn two_that_were_read_in_order_let_the_next_one_follow() {
        let mut sequence = listed(1..10);
        sequence.on_read(Ino(1), false, false);
        assert_eq!(sequence.files_max(), 0, "one says nothing");
        sequence.on_read(Ino(7), true, true);
        assert_eq!(sequence.files_max(), 0, "nor does another one");
        sequence.on_read(Ino(2), false, false);
        assert_eq!(sequence.files_max(), WINDOW_GUESSED);
        sequence.on_read(Ino(3), true, false);
        assert_eq!(sequence.files_max(), WINDOW_GUESSED);
        sequence.on_read(Ino(4), true, true);
        assert_eq!(sequence.files_max(), usize::MAX);
        for _ in TRUST_BEGUN..TRUST_MAX {
            assert_eq!(sequence.files_max(), usize::MAX);
            sequence.on_followed();
        }
        assert_eq!(sequence.files_max(), WINDOW_GUESSED);
        (0..TRUST_MAX).for_each(|_| sequence.on_followed());
        assert_eq!(sequence.files_max(), 0);
    }

    #[test]
    fn programs_in_two_trees_are_each_in_order() {
        let mut sequence = listed(1..100);
        sequence.on_read(Ino(10), false, false);
        sequence.on_read(Ino(50), false, false);
        sequence.on_read(Ino(11), false, false);
        assert_eq!(sequence.files_max(), WINDOW_GUESSED);
        (0..TRUST_MAX).for_each(|_| sequence.on_followed());
        sequence.on_read(Ino(51), false, false);
        assert_eq!(sequence.files_max(), WINDOW_GUESSED);
    }

    #[test]
    fn directories_in_any_order_are_not_followed() {
        let mut sequence = listed(0..1009);
        let in_order = (0..1009).filter(|n| {
            sequence.on_read(Ino(n * 377 % 1009), true, true);
            sequence.files_max() > 0
        });
        assert_eq!(in_order.count(), 0);
    }

    #[test]
    fn a_listing_begins_where_a_sequence_has_ended_but_not_without_reads() {
        let mut sequence = listed(1..10);
        let list = |sequence: &mut DirectorySequence| {
            (10..20).filter(|directory| sequence.on_listing(Ino(*directory))).count()
        };
        sequence.on_read(Ino(1), true, false);
        sequence.on_asked(ReadOrder::Listed, false);
        assert_eq!(list(&mut sequence), 0, "something is on its way");
        sequence.on_read(Ino(1), true, false);
        sequence.on_asked(ReadOrder::ByNumber, true);
        assert_eq!(list(&mut sequence), LISTINGS_MAX as usize);
        assert_eq!(sequence.files_order(), ReadOrder::ByNumber);
        sequence.on_read(Ino(10), true, true);
        assert_eq!(list(&mut sequence), LISTINGS_MAX as usize);
    }
}

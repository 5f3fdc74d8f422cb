//! How many moves a client has under way, also those that it has given up.

use glint_proto::{Errno, FsResult};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Moves under way at once, more than the jobs of a command. Each may have 8 MiB in memory, and as
/// many requests at OSTs.
const MOVES_MAX: usize = 128;
/// Moves given up of which requests are still under way: no other one begins meanwhile.
const GIVEN_UP_MAX: usize = 16;

/// Counts of moves.
#[derive(Default)]
pub(crate) struct MoveCounts {
    all: AtomicUsize,
    given_up: AtomicUsize,
}

/// A move that is under way. It has ended when this is dropped.
pub(super) struct CountedMove<'a> {
    counts: &'a MoveCounts,
    is_given_up: Cell<bool>,
}

impl MoveCounts {
    /// Begins a move: ENOBUFS if too many are under way, or were given up.
    pub(super) fn begin(&self) -> FsResult<CountedMove<'_>> {
        let before = self.all.fetch_add(1, Ordering::AcqRel);
        let begun = CountedMove { counts: self, is_given_up: Cell::new(false) };
        let given_up = self.given_up.load(Ordering::Acquire);
        if before < MOVES_MAX && given_up < GIVEN_UP_MAX { Ok(begun) } else { Err(Errno::ENOBUFS) }
    }
}

impl CountedMove<'_> {
    /// Nobody waits for it any more.
    pub(super) fn give_up(&self) {
        if !self.is_given_up.replace(true) {
            self.counts.given_up.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Drop for CountedMove<'_> {
    fn drop(&mut self) {
        self.counts.all.fetch_sub(1, Ordering::AcqRel);
        if self.is_given_up.get() {
            self.counts.given_up.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_counts_until_it_ends_and_more_once_it_is_given_up() {
        let counts = MoveCounts::default();
        let mut all: Vec<_> = (0..MOVES_MAX).map(|_| counts.begin().unwrap()).collect();
        assert_eq!(counts.begin().err(), Some(Errno::ENOBUFS));
        all.truncate(GIVEN_UP_MAX);
        drop(counts.begin().unwrap());
        for begun in &all {
            begun.give_up();
            begun.give_up();
        }
        assert_eq!(counts.begin().err(), Some(Errno::ENOBUFS));
        all.pop();
        drop(counts.begin().unwrap());
        drop(all);
        let left = [&counts.all, &counts.given_up].map(|count| count.load(Ordering::Acquire));
        assert_eq!(left, [0, 0]);
    }
}

//! Turns to ask for a lock on the data of one inode: one at a time, in the order of coming.
//!
//! Invariant: somebody asks, or whoever came first may, or nobody waits.

use std::collections::VecDeque;

/// A place among those who wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TurnPlace(u64);

/// Whether somebody asks, and the tasks that wait to.
#[derive(Default)]
pub(crate) struct LockTurns {
    asking: bool,
    waiting: VecDeque<TurnPlace>,
    places: u64,
}

impl LockTurns {
    /// A place behind all others.
    pub(crate) fn wait(&mut self) -> TurnPlace {
        self.places += 1;
        let place = TurnPlace(self.places);
        self.waiting.push_back(place);
        place
    }

    /// Begins to ask, if that place is the first and nobody else does.
    pub(crate) fn begin(&mut self, place: TurnPlace) -> bool {
        let may = !self.asking && self.waiting.front() == Some(&place);
        self.asking |= may;
        may
    }

    /// The answer is there.
    pub(crate) fn end(&mut self) {
        self.asking = false;
    }

    /// Gives a place up. Whether it was the first, so that another one is now.
    pub(crate) fn leave(&mut self, place: TurnPlace) -> bool {
        let first = self.waiting.front() == Some(&place);
        self.waiting.retain(|other| *other != place);
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_asks_at_a_time_in_the_order_of_coming() {
        let mut turns = LockTurns::default();
        let places = [turns.wait(), turns.wait(), turns.wait()];
        assert!(!turns.begin(places[1]));
        assert!(turns.begin(places[0]));
        assert!(turns.leave(places[0]));
        assert!(!turns.begin(places[1]), "the first one still asks");
        turns.end();
        assert!(!turns.leave(places[2]), "who gives up is not waited for");
        assert!(turns.begin(places[1]));
    }
}

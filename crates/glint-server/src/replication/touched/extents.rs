//! Extents of one object that were changed.
//!
//! Invariants:
//! - Extents are in order and apart. They cover each change, and more where that makes them few
//!   ([`Slack`]).
//! - There are no more than [`EXTENTS_MAX`].
//! - A set that gets the same changes in the same order, and others between them, covers all that this
//!   one covers: where this one had to join its nearest two, that one had to at least once more. So a
//!   log of changes, which may have some that were forgotten, does not need to say what was joined.

/// Extents of one object. With one more, the two that are nearest become one.
pub(super) const EXTENTS_MAX: usize = 512;
/// Changes no further apart than this become one extent.
const JOIN: u64 = 64 << 10;
/// An extent that grows at its end is taken as longer than it is by so many times its length, up to a
/// limit, so that a stream costs few records.
const GROWTH: u64 = 8;
const GROWTH_BYTES_MAX: u64 = 64 << 20;

/// How much more than the changes extents may cover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slack {
    /// Changes no further apart than this become one extent.
    join: u64,
    /// An extent of this length or more that grows at its end is taken as longer than it is.
    grows_from: u64,
}

impl Slack {
    /// For who copies what is covered, which may be more.
    pub(super) const WIDE: Slack = Slack { join: JOIN, grows_from: 0 };
    /// For who has to know what was not changed: nothing between changes, and behind their end only what
    /// a stream is about to write.
    pub(super) const NARROW: Slack = Slack { join: 0, grows_from: JOIN };
    /// Nothing.
    pub(super) const NONE: Slack = Slack { join: 0, grows_from: u64::MAX };

    /// Of extents that have grown already.
    pub(super) fn grown(self) -> Slack {
        Slack { grows_from: u64::MAX, ..self }
    }
}

/// A set of extents.
#[derive(Clone, Default)]
pub(super) struct ExtentSet(Vec<(u64, u64)>);

impl ExtentSet {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().copied()
    }

    /// Adds an extent; one that ends before it begins has no bytes. Returns the extent that covers it
    /// then, unless one did before.
    pub(super) fn insert(&mut self, start: u64, end: u64, slack: Slack) -> Option<(u64, u64)> {
        if start >= end {
            return None;
        }
        let first = self.0.partition_point(|(_, end)| end.saturating_add(slack.join) < start);
        let last = end.saturating_add(slack.join);
        let count = self.0[first..].partition_point(|(from, _)| *from <= last);
        let joined = &self.0[first..first + count];
        if joined.iter().any(|(from, to)| *from <= start && end <= *to) {
            return None;
        }
        let cover = |(from, to): (u64, u64), one: &(u64, u64)| (from.min(one.0), to.max(one.1));
        let (from, mut to) = joined.iter().fold((start, end), cover);
        let grows = to - from >= slack.grows_from;
        if grows && joined.last().is_some_and(|last| last.1 < end) {
            let next = self.0.get(first + count).map_or(u64::MAX, |next| next.0);
            let growth = (to - from).saturating_mul(GROWTH).min(GROWTH_BYTES_MAX);
            to = to.saturating_add(growth).min(next);
        }
        self.0.splice(first..first + count, [(from, to)]);
        if self.0.len() > EXTENTS_MAX {
            self.join_nearest();
        }
        Some((from, to))
    }

    fn join_nearest(&mut self) {
        let gaps = self.0.windows(2).map(|two| two[1].0 - two[0].1);
        if let Some((at, _)) = gaps.enumerate().min_by_key(|(_, gap)| *gap) {
            let (_, end) = self.0.remove(at + 1);
            self.0[at].1 = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(changes: &[(u64, u64)]) -> ExtentSet {
        let mut set = ExtentSet::default();
        changes.iter().for_each(|(start, end)| _ = set.insert(*start, *end, Slack::WIDE));
        set
    }

    #[test]
    fn two_bytes_at_the_ends_of_an_object_are_two_extents() {
        let set = set(&[(0, 1), (1 << 40, (1 << 40) + 1)]);
        assert_eq!(set.0, [(0, 1), (1 << 40, (1 << 40) + 1)]);
    }

    #[test]
    fn who_has_to_know_what_was_not_changed_is_told_of_each_gap() {
        for slack in [Slack::NARROW, Slack::NONE] {
            let mut set = ExtentSet::default();
            for start in [100, 10, 12, 300, 302] {
                set.insert(start, start + 2, slack);
            }
            assert_eq!(set.0, [(10, 14), (100, 102), (300, 304)]);
            set.insert(304, 200 << 10, slack);
            set.insert(200 << 10, 300 << 10, slack);
            let end = set.0[2].1;
            assert_eq!(end > 300 << 10, slack == Slack::NARROW, "{end}");
        }
    }

    #[test]
    fn random_writes_are_not_all_that_lies_between_them() {
        const PAGE: u64 = 8 << 10;
        // 300 pages of 3 GiB, in an order that jumps.
        let pages: Vec<(u64, u64)> = (0..300)
            .map(|n| (n * 7919 % 300) * (10 << 20))
            .map(|offset| (offset, offset + PAGE))
            .collect();
        let bytes: u64 = set(&pages).iter().map(|(start, end)| end - start).sum();
        assert_eq!(bytes, 300 * PAGE);
    }

    #[test]
    fn each_change_is_covered() {
        let mut state = 1_u64;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % limit
        };
        for round in 0..40 {
            let (room, count) = (1 << (20 + below(16)), 1 + below(1500));
            let change = |_| {
                let at = below(room);
                (at, at + 1 + below(1 << 20))
            };
            let changes: Vec<(u64, u64)> = (0..count).map(change).collect();
            let set = set(&changes);
            assert!(set.len() <= EXTENTS_MAX);
            assert!(set.0.windows(2).all(|two| two[0].1 <= two[1].0), "{round}: {:?}", set.0);
            for (start, end) in changes {
                // Extents that touch are as good as one.
                let mut at = start;
                while at < end {
                    let found = set.iter().find(|(from, to)| *from <= at && at < *to);
                    at = found.unwrap_or_else(|| panic!("{round}: {at} of {start}..{end}")).1;
                }
            }
        }
    }
}

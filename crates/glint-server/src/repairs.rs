//! Damage that a scrub has found, and what is done about it: objects with copies are written anew
//! from another member.
//!
//! Invariants:
//! - Of each object that a pass finds damaged a repair begins once; one whose member could not be
//!   taken out is tried again.
//! - Objects are tried in turn: those that cannot be repaired do not delay others.
//! - Who waits for repairs waits for each object until its repair has begun or nothing can be
//!   expected, and no longer than [`TRIED_FOR`].

use crate::replication::{Here, Replication};
use glint_ost::disk::Disk;
use glint_proto::chain::ChainId;
use glint_proto::{Errno, FsResult, Layout, ObjectId, clock};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Repairs that are asked for in one round: each takes a member out of a chain.
const AT_ONCE: usize = 8;
/// Time after the first try in which other members may come to serve.
const TRIED_FOR: Duration = Duration::from_secs(60);

/// Damaged objects that are being repaired.
#[derive(Default)]
pub(crate) struct Repairs(Mutex<Turns>);

/// A damaged object, and its OST, counted from the first one here.
type Damaged = (u16, ObjectId);

#[derive(Default)]
struct Turns {
    begun: BTreeSet<Damaged>,
    /// Those that are not begun, with the time of the first try.
    tried: BTreeMap<Damaged, Instant>,
    /// Those of them that nobody need wait for. They are tried again all the same.
    hopeless: BTreeSet<Damaged>,
    /// The last one tried.
    last: Option<Damaged>,
}

/// Damaged objects of an OST, by what becomes of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RepairCount {
    /// Those that get their data from another copy.
    pub(crate) repaired: usize,
    /// Those that soon will, or will be known not to.
    pub(crate) pending: usize,
}

impl Turns {
    /// Returns the next objects to try, at most [`AT_ONCE`], going round.
    fn next(&mut self, found: &BTreeSet<Damaged>) -> Vec<Damaged> {
        self.begun.retain(|one| found.contains(one));
        self.hopeless.retain(|one| found.contains(one));
        self.tried.retain(|one, _| found.contains(one));
        let due = || found.difference(&self.begun).copied();
        let later = due().filter(|one| Some(*one) > self.last);
        let earlier = due().filter(|one| Some(*one) <= self.last);
        let next: Vec<_> = later.chain(earlier).take(AT_ONCE).collect();
        self.last = next.last().copied();
        next
    }

    fn has_begun(&mut self, one: Damaged) {
        self.begun.insert(one);
        self.tried.remove(&one);
        self.hopeless.remove(&one);
    }

    /// A repair could not begin at `now`; it may, later, if there `is_hope`.
    fn has_failed(&mut self, one: Damaged, is_hope: bool, now: Instant) {
        let first = *self.tried.entry(one).or_insert(now);
        if !is_hope || now.saturating_duration_since(first) > TRIED_FOR {
            self.hopeless.insert(one);
        }
    }

    fn count(&self, index: u16, damaged: impl Iterator<Item = ObjectId>) -> RepairCount {
        let mut count = RepairCount::default();
        for one in damaged.map(|object| (index, object)) {
            count.repaired += usize::from(self.begun.contains(&one));
            count.pending +=
                usize::from(!self.begun.contains(&one) && !self.hopeless.contains(&one));
        }
        count
    }
}

impl Repairs {
    /// Counts the objects `damaged` of an OST.
    pub(crate) fn count(&self, index: u16, damaged: impl Iterator<Item = ObjectId>) -> RepairCount {
        self.0.lock().count(index, damaged)
    }

    /// Begins to repair some of what scrubs have found; `layout_of` says where a file lies.
    pub(crate) async fn begin<D: Disk>(
        &self,
        here: Here<'_, D>,
        replication: &Replication,
        layout_of: impl AsyncFn(ObjectId) -> FsResult<Option<Layout>>,
    ) {
        let mut found: BTreeSet<(u16, ObjectId)> = BTreeSet::new();
        for (index, report) in (0..).zip(here.osts.scrub_reports()) {
            found.extend(report.damage.iter().map(|damage| (index, damage.object)));
        }
        let due = self.0.lock().next(&found);
        for (index, object) in due {
            // Otherwise who knows the layouts is not reached.
            let Ok(layout) = layout_of(object).await else { return };
            let ost = here.first + index;
            // Objects from before the data moved have no stripe, and are removed soon.
            let stripe = layout.and_then(|layout| Some((layout.stripe_of(object)?, layout)));
            let target = stripe.map(|(stripe, layout)| layout.ost_of(stripe, 0));
            let Some(target) = target.filter(|target| ChainId::of_target(*target).is_some()) else {
                self.0.lock().has_failed((index, object), false, clock::now());
                continue;
            };
            let result = replication.repair(here, target, ost, object).await;
            let mut turns = self.0.lock();
            match result {
                Ok(()) => turns.has_begun((index, object)),
                // No other copy serves.
                Err(Errno::EIO) => {
                    let is_hope = replication.is_awaited_beside(target, ost);
                    turns.has_failed((index, object), is_hope, clock::now());
                }
                Err(errno) => {
                    turns.has_failed((index, object), true, clock::now());
                    if errno != Errno::EREMCHG {
                        tracing::warn!(
                            %object, %errno, "could not begin a repair; it is tried again"
                        );
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::Ino;

    #[test]
    fn objects_that_cannot_be_repaired_do_not_delay_others() {
        let object = |ino| (0, ObjectId { ino: Ino(ino), stripe: 0 });
        let found: BTreeSet<_> = (0..20).map(object).collect();
        let mut turns = Turns::default();
        let mut seen = BTreeSet::new();
        for _ in 0..3 {
            let next = turns.next(&found);
            assert_eq!(next.len(), AT_ONCE);
            seen.extend(next);
        }
        assert_eq!(seen, found);
        turns.begun = found.iter().copied().skip(2).collect();
        assert_eq!(turns.next(&found), [object(0), object(1)]);
        assert!(turns.next(&BTreeSet::new()).is_empty() && turns.begun.is_empty());
    }
    #[test]
    fn who_waits_for_repairs_waits_for_those_that_may_begin() {
        let objects: Vec<_> = (0..4).map(|ino| ObjectId { ino: Ino(ino), stripe: 0 }).collect();
        let found: BTreeSet<_> = objects.iter().map(|object| (0, *object)).collect();
        let (mut turns, now) = (Turns::default(), clock::now());
        let count = |turns: &Turns| {
            let count = turns.count(0, objects.iter().copied());
            (count.repaired, count.pending)
        };
        assert_eq!(count(&turns), (0, 4), "a pass may end before the first try");
        let next = turns.next(&found);
        turns.has_begun(next[0]);
        turns.has_failed(next[1], false, now);
        turns.has_failed(next[2], true, now);
        assert_eq!(count(&turns), (1, 2));
        turns.has_failed(next[2], true, now + TRIED_FOR + Duration::from_secs(1));
        assert_eq!(count(&turns), (1, 1), "nobody waits for ever");
        assert_eq!(turns.next(&found), next[1..], "and each is tried again");
        turns.has_begun(next[1]);
        assert_eq!(count(&turns), (2, 1));
    }
}

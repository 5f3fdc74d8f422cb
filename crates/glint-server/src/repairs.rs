//! Damage that a scrub has found, or that was marked because no other copy could be read, and what is
//! done about it: objects with copies are written anew from another member.
//!
//! Invariants:
//! - Of each object a repair begins once for each pass that finds it damaged; one whose member could
//!   not be taken out is tried again.
//! - Objects are tried in turn: those that cannot be repaired do not delay others. One that no other
//!   member could read is tried again after [`UNREADABLE_FOR`], or [`AWAITS_FOR`]: each try reads it.
//! - Who waits for repairs waits for each object until its repair has begun or nothing can be
//!   expected, and no longer than [`AWAITED_FOR`].

use crate::replication::{CopyFault, Here, Replication};
use glint_ost::Damage;
use glint_ost::disk::Disk;
use glint_proto::chain::ChainId;
use glint_proto::{Errno, FsResult, Layout, ObjectId, clock};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Repairs that are asked for in one round: each takes a member out of a chain.
const AT_ONCE: usize = 8;
/// Time in which a repair may begin for which somebody waits.
const AWAITED_FOR: Duration = Duration::from_secs(60);
/// Time after which other copies of an object are read again that could not be read.
const UNREADABLE_FOR: Duration = Duration::from_secs(60);
/// The same, if one more member comes to serve, which may be able to.
const AWAITS_FOR: Duration = Duration::from_secs(2);
/// Stands for the pass of those that no scrub has found.
const MARKED: u64 = 0;

/// Damaged objects that are being repaired.
#[derive(Default)]
pub(crate) struct Repairs(Mutex<Turns>);

/// A damaged object, and its OST, counted from the first one here.
type Damaged = (u16, ObjectId);

#[derive(Default)]
struct Turns {
    /// Each with the pass that found it.
    begun: BTreeMap<Damaged, u64>,
    /// Those that are not begun, since somebody asked for them.
    awaited: BTreeMap<Damaged, Instant>,
    /// Those of them that no other member may come to have. They are tried again all the same.
    hopeless: BTreeSet<Damaged>,
    /// Those that other members that serve could not read, either, until they are tried again.
    unreadable: BTreeMap<Damaged, Instant>,
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
    /// Those that have no other copy, or none that serves and can be read.
    pub(crate) left: usize,
}

impl Turns {
    /// Returns the next objects to try, at most [`AT_ONCE`], going round.
    fn next(&mut self, found: &BTreeMap<Damaged, u64>, now: Instant) -> Vec<Damaged> {
        self.begun.retain(|one, pass| found.get(one) == Some(pass));
        self.hopeless.retain(|one| found.contains_key(one));
        self.awaited.retain(|one, _| found.contains_key(one));
        self.unreadable.retain(|one, until| found.contains_key(one) && now < *until);
        let waits =
            |one: &Damaged| self.begun.contains_key(one) || self.unreadable.contains_key(one);
        let due = || found.keys().copied().filter(|one| !waits(one));
        let later = due().filter(|one| Some(*one) > self.last);
        let earlier = due().filter(|one| Some(*one) <= self.last);
        let next: Vec<_> = later.chain(earlier).take(AT_ONCE).collect();
        self.last = next.last().copied();
        next
    }

    fn note_begun(&mut self, one: Damaged, pass: u64) {
        self.begun.insert(one, pass);
        self.awaited.remove(&one);
        self.hopeless.remove(&one);
    }

    /// Notes that a repair cannot begin: no other member that serves can read the object. Returns
    /// whether that is news.
    fn note_unreadable(&mut self, one: Damaged, now: Instant) -> bool {
        self.unreadable.insert(one, now + UNREADABLE_FOR);
        self.note_failed(one)
    }

    /// The same, but one comes to.
    fn note_awaited(&mut self, one: Damaged, now: Instant) {
        self.unreadable.insert(one, now + AWAITS_FOR);
    }

    /// Notes that a repair cannot begin: no other member serves, nor comes to. Returns whether that is
    /// news.
    fn note_failed(&mut self, one: Damaged) -> bool {
        self.hopeless.insert(one)
    }

    fn count<'a>(
        &mut self,
        index: u16,
        damaged: impl Iterator<Item = &'a Damage>,
        now: Instant,
    ) -> RepairCount {
        let mut count = RepairCount::default();
        for (one, pass) in damaged.map(|damage| ((index, damage.object), damage.pass)) {
            if self.begun.get(&one) == Some(&pass) {
                count.repaired += 1;
            } else if self.hopeless.contains(&one) {
                count.left += 1;
            } else {
                let since = *self.awaited.entry(one).or_insert(now);
                let is_over = now.saturating_duration_since(since) > AWAITED_FOR;
                count.pending += usize::from(!is_over);
            }
        }
        count
    }
}

impl Repairs {
    /// Counts the objects `damaged` of an OST.
    pub(crate) fn count<'a>(
        &self,
        index: u16,
        damaged: impl Iterator<Item = &'a Damage>,
    ) -> RepairCount {
        self.0.lock().count(index, damaged, clock::now())
    }

    /// Begins to repair some of what scrubs have found; `layout_of` says where a file lies.
    pub(crate) async fn begin<D: Disk>(
        &self,
        here: Here<'_, D>,
        replication: &Replication,
        layout_of: impl AsyncFn(ObjectId) -> FsResult<Option<Layout>>,
    ) {
        let marked = replication.marked().into_iter().map(|one| (one, MARKED));
        let mut found: BTreeMap<Damaged, u64> = marked.collect();
        for (index, report) in (0..).zip(here.osts.scrub_reports()) {
            found.extend(report.damage.iter().map(|one| ((index, one.object), one.pass)));
        }
        let due = self.0.lock().next(&found, clock::now());
        for (index, object) in due {
            let Some(pass) = found.get(&(index, object)).copied() else { continue };
            if pass == MARKED && !replication.is_marked_still(here, (index, object)).await {
                continue;
            }
            // Otherwise who knows the layouts is not reached.
            let Ok(layout) = layout_of(object).await else { return };
            let ost = here.first + index;
            // Objects from before the data moved have no stripe, and are removed soon.
            let stripe = layout.and_then(|layout| Some((layout.stripe_of(object)?, layout)));
            let target = stripe.map(|(stripe, layout)| layout.ost_of(stripe, 0));
            let Some(target) = target.filter(|target| ChainId::of_target(*target).is_some()) else {
                self.0.lock().note_failed((index, object));
                continue;
            };
            let result = replication.repair(here, target, (ost, object), CopyFault::Damaged).await;
            let mut turns = self.0.lock();
            let mut is_left = false;
            match result {
                Ok(()) => turns.note_begun((index, object), pass),
                Err(Errno::EIO) if replication.is_awaited_beside(target, ost) => {}
                Err(Errno::EBADMSG) if replication.is_awaited_beside(target, ost) => {
                    turns.note_awaited((index, object), clock::now());
                }
                Err(Errno::EBADMSG) => {
                    is_left = turns.note_unreadable((index, object), clock::now());
                }
                // No other copy serves; it may, later.
                Err(Errno::EIO) => is_left = turns.note_failed((index, object)),
                Err(Errno::EREMCHG) => {}
                Err(errno) => {
                    tracing::warn!(%object, %errno, "could not begin a repair; it is tried again");
                }
            }
            drop(turns);
            if is_left {
                tracing::warn!(
                    %object, ost,
                    "a damaged object cannot be written anew: no other copy that serves can be read; \
                     one that lags behind may be older, and is not used"
                );
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
        let found: BTreeMap<_, _> = (0..20).map(|ino| (object(ino), 1)).collect();
        let (mut turns, now) = (Turns::default(), clock::now());
        let mut seen = BTreeSet::new();
        for _ in 0..3 {
            let next = turns.next(&found, now);
            assert_eq!(next.len(), AT_ONCE);
            seen.extend(next);
        }
        assert!(seen.iter().eq(found.keys()));
        turns.begun = found.clone().into_iter().skip(2).collect();
        assert_eq!(turns.next(&found, now), [object(0), object(1)]);
        turns.note_unreadable(object(0), now);
        assert_eq!(turns.next(&found, now), [object(1)], "it is not read all the time");
        let later = now + UNREADABLE_FOR;
        assert_eq!(turns.next(&found, later), [object(0), object(1)]);
        // A later pass finds one damaged again, or still.
        let again = found.into_iter().map(|(one, pass)| (one, pass + u64::from(one == object(7))));
        assert_eq!(turns.next(&again.collect(), now), [object(7), object(0), object(1)]);
        assert!(turns.next(&BTreeMap::new(), now).is_empty() && turns.begun.is_empty());
    }

    #[test]
    fn who_waits_for_repairs_waits_for_those_that_may_begin() {
        let damage = |ino| Damage {
            object: ObjectId { ino: Ino(ino), stripe: 0 },
            reason: String::new(),
            pass: 1,
        };
        let all: Vec<Damage> = (0..4).map(damage).collect();
        let found: BTreeMap<Damaged, u64> = all.iter().map(|one| ((0, one.object), 1)).collect();
        let (mut turns, begins) = (Turns::default(), clock::now());
        let count = |turns: &mut Turns, seconds| {
            let count = turns.count(0, all.iter(), begins + Duration::from_secs(seconds));
            (count.repaired, count.pending, count.left)
        };
        assert_eq!(count(&mut turns, 0), (0, 4, 0), "a pass may end before the first try");
        let next = turns.next(&found, begins);
        turns.note_begun(next[0], 1);
        assert!(turns.note_failed(next[1]) && !turns.note_failed(next[1]), "it is told once");
        assert_eq!(count(&mut turns, 1), (1, 2, 1));
        assert_eq!(turns.next(&found, begins).len(), 3, "each is tried again");
        turns.note_begun(next[1], 1);
        assert_eq!(count(&mut turns, 59), (2, 2, 0));
        let over = count(&mut turns, 61);
        assert_eq!(over, (2, 0, 0), "nobody waits for ever, and nobody knows that they stay so");
    }
}

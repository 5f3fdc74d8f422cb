//! Damage that a scrub has found, and what is done about it: objects with copies are written anew
//! from another member.
//!
//! Invariants:
//! - Of each object that a pass finds damaged a repair begins once; one whose member could not be
//!   taken out is tried again.
//! - Objects are tried in turn: those that cannot be repaired do not delay others.

use crate::replication::{Here, Replication};
use glint_ost::disk::Disk;
use glint_proto::chain::ChainId;
use glint_proto::{Errno, FsResult, Layout, ObjectId};
use parking_lot::Mutex;
use std::collections::BTreeSet;

/// Repairs that are asked for in one round: each takes a member out of a chain.
const AT_ONCE: usize = 8;

/// Damaged objects that are being repaired, by OST, counted from the first one here.
#[derive(Default)]
pub(crate) struct Repairs(Mutex<Turns>);

#[derive(Default)]
struct Turns {
    begun: BTreeSet<(u16, ObjectId)>,
    /// The last one tried.
    last: Option<(u16, ObjectId)>,
}

impl Turns {
    /// Returns the next objects to try, at most [`AT_ONCE`], going round.
    fn next(&mut self, found: &BTreeSet<(u16, ObjectId)>) -> Vec<(u16, ObjectId)> {
        self.begun.retain(|one| found.contains(one));
        let due = || found.difference(&self.begun).copied();
        let later = due().filter(|one| Some(*one) > self.last);
        let earlier = due().filter(|one| Some(*one) <= self.last);
        let next: Vec<_> = later.chain(earlier).take(AT_ONCE).collect();
        self.last = next.last().copied();
        next
    }
}

impl Repairs {
    /// How many damaged objects of an OST, of those `damaged`, get their data from another copy.
    pub(crate) fn count(&self, index: u16, damaged: impl Iterator<Item = ObjectId>) -> usize {
        let turns = self.0.lock();
        damaged.filter(|object| turns.begun.contains(&(index, *object))).count()
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
            let layout = match layout_of(object).await {
                Ok(Some(layout)) => layout,
                Ok(None) => continue,
                Err(_) => return,
            };
            // Objects from before the data moved are removed soon.
            let Some(stripe) = layout.stripe_of(object) else { continue };
            let target = layout.ost_of(stripe, 0);
            if ChainId::of_target(target).is_none() {
                continue;
            }
            match replication.repair(here, target, here.first + index, object).await {
                Ok(()) => _ = self.0.lock().begun.insert((index, object)),
                // No other copy serves; it may, later.
                Err(Errno::EIO | Errno::EREMCHG) => {}
                Err(errno) => {
                    tracing::warn!(%object, %errno, "could not begin a repair; it is tried again");
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
}

//! Damage that a scrub has found, and what is done about it: objects with copies are written anew
//! from another member.
//!
//! Invariant: of each object that a pass finds damaged a repair begins once; one whose member could
//! not be taken out is tried again.

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
pub(crate) struct Repairs(Mutex<BTreeSet<(u16, ObjectId)>>);

impl Repairs {
    /// How many damaged objects of an OST, of those `damaged`, get their data from another copy.
    pub(crate) fn count(&self, index: u16, damaged: impl Iterator<Item = ObjectId>) -> usize {
        let begun = self.0.lock();
        damaged.filter(|object| begun.contains(&(index, *object))).count()
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
        let due: Vec<(u16, ObjectId)> = {
            let mut begun = self.0.lock();
            begun.retain(|one| found.contains(one));
            found.difference(&begun).take(AT_ONCE).copied().collect()
        };
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
                Ok(()) => _ = self.0.lock().insert((index, object)),
                // No other copy serves; it may, later.
                Err(Errno::EIO | Errno::EREMCHG) => {}
                Err(errno) => {
                    tracing::warn!(%object, %errno, "could not begin a repair; it is tried again");
                }
            }
        }
    }
}

//! Objects that were changed before power was lost, while nothing that is left remembers it.
//!
//! A change is noted before it is made, but nobody waits until the note is on stable storage: a loss of
//! power may leave the change and not the note. An object that was changed since it was sealed has no
//! checksums on the disk, whatever else is lost. So a server that starts after that looks for those, and
//! notes them without their chains ([`start_osts`](crate::start_osts)), which the MDS knows.
//!
//! Invariants:
//! - A server takes over a chain after a loss of power, and says what its member may have changed, only
//!   when all that was found there of the chain is noted as recent, whole and on stable storage.
//! - What was found on an OST is forgotten when that is so for all its chains.

use super::lost::before;
use crate::replication::touched::{UNNUMBERED, unsealed};
use crate::replication::{Here, Replication};
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, Touched};
use glint_proto::{Errno, FsResult};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// Which of these objects are noted by their chains.
#[derive(Default)]
pub(in crate::replication) struct Unsealed {
    /// Chains for which that is so, each as its target and the index of the member's OST here.
    named: Mutex<BTreeSet<(u16, u16)>>,
    /// The MDS has said all rows in this run.
    knows_rows: AtomicBool,
}

impl Unsealed {
    /// The MDS has said all rows that there are.
    pub(in crate::replication) fn rows_are_known(&self) {
        self.knows_rows.store(true, Ordering::Release);
    }

    fn is_named(&self, target: u16, index: u16) -> bool {
        self.named.lock().contains(&(target, index))
    }
}

impl Replication {
    /// Notes as recent, on stable storage, what was found at members of a chain that are here. Returns
    /// whether that is anything new.
    pub(in crate::replication) async fn name_unsealed<D: Disk>(
        &self,
        here: Here<'_, D>,
        row: &Chain,
    ) -> FsResult<bool> {
        let (target, mut is_news) = (row.id.target(), false);
        for index in row.members.iter().filter_map(|member| here.index(member.ost)) {
            if self.recent.is_empty(unsealed(index)) || self.unsealed.is_named(target, index) {
                continue;
            }
            let its = self.those_of(target, &self.recent.list(unsealed(index))).await?;
            if !its.is_empty() {
                tracing::info!(
                    chain = %row.id, objects = its.len(),
                    "copies that were changed not long before power was lost are made equal"
                );
                self.recent.touch_all((target, 0), its.into_iter(), UNNUMBERED).await?;
                self.recent.sync().await?;
                is_news = true;
            }
            self.unsealed.named.lock().insert((target, index));
        }
        Ok(is_news)
    }

    /// Those of some objects, in their order, that belong to a chain.
    async fn those_of(&self, target: u16, found: &[Touched]) -> FsResult<Vec<Touched>> {
        let (mut its, mut left) = (Vec::new(), found);
        while let Some(first) = left.first() {
            let page = self.peers()?.objects(target, before(first.object)).await?;
            let is_within = |one: &Touched| page.last.is_none_or(|last| one.object <= last);
            let (within, behind) = left.split_at(left.partition_point(is_within));
            if within.is_empty() {
                return Err(Errno::EPROTO);
            }
            let is_of_chain = |one: &&Touched| page.objects.binary_search(&one.object).is_ok();
            its.extend(within.iter().filter(is_of_chain));
            left = behind;
        }
        Ok(its)
    }

    /// Forgets what was found on OSTs here and is noted for all of their chains.
    pub(in crate::replication) fn forget_unsealed<D: Disk>(&self, here: Here<'_, D>) {
        if !self.unsealed.knows_rows.load(Ordering::Acquire) {
            return;
        }
        let is_left = |index: &u16| !self.recent.is_empty(unsealed(*index));
        for index in (0..here.osts.count()).filter(is_left) {
            let is_member = |row: &Chain| row.state_of(here.first + index).is_some();
            let rows = self.rows.all();
            let mut its = rows.iter().filter(|(row, _)| is_member(row));
            if its.all(|(row, _)| self.unsealed.is_named(row.id.target(), index)) {
                self.recent.forget(unsealed(index), |_| true);
            }
        }
    }
}

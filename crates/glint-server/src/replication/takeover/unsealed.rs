//! Objects that were changed before power was lost, while nothing that is left remembers it.
//!
//! A change is noted before it is made, but nobody waits until the note is on stable storage: a loss of
//! power may leave the change and not the note. An object that was changed since it was sealed has no
//! checksums on the disk, whatever else is lost. So a server that starts after that looks for those while
//! it serves, and notes them without their chains ([`search`](super::search)), which the MDS knows.
//!
//! Invariants:
//! - A server takes over a chain after a loss of power, and says what its member may have changed, only
//!   when its OST was searched, and all that was found there of the chain is noted as recent, whole and on
//!   stable storage. Until then both are tried again (EREMCHG), and nobody is blamed. No takeover waits
//!   for an OST that could not be searched and is out of the chain: it comes back in another run.
//! - What was found on an OST is forgotten when that is so for all its chains.
//! - Who asks for it waits no longer than a member may take to answer, and goes on where it ended: no
//!   member is blamed for what the MDS needs time for.

use super::lost::before;
use crate::replication::touched::{UNNUMBERED, unsealed};
use crate::replication::{ENTRIES, Here, Replication};
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, Touched};
use glint_proto::{Errno, FsResult, ObjectId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// How far it is found out which of these objects belong to a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    /// Up to this one.
    After(ObjectId),
    Done,
}

/// Which of these objects are noted by their chains.
#[derive(Default)]
pub(in crate::replication) struct Unsealed {
    /// Of chains, each as its target and the index of the member's OST here.
    named: Mutex<BTreeMap<(u16, u16), Progress>>,
    /// Held by who asks the MDS.
    naming: futures_util::lock::Mutex<()>,
    /// The MDS has said all rows in this run.
    knows_rows: AtomicBool,
    /// Chains for which some were noted.
    noted: Mutex<BTreeSet<u16>>,
}

impl Unsealed {
    /// The MDS has said all rows that there are.
    pub(in crate::replication) fn rows_are_known(&self) {
        self.knows_rows.store(true, Ordering::Release);
    }

    fn progress(&self, target: u16, index: u16) -> Option<Progress> {
        self.named.lock().get(&(target, index)).copied()
    }

    fn is_named(&self, target: u16, index: u16) -> bool {
        self.progress(target, index) == Some(Progress::Done)
    }

    /// Whether the log has entries of it that are over once copies of a chain are equal: asked once.
    pub(in crate::replication) fn were_noted(&self, target: u16) -> bool {
        self.noted.lock().remove(&target)
    }
}

impl Replication {
    /// Notes as recent, on stable storage, what was found at members of a chain that are here: EREMCHG if
    /// one is being searched, or the MDS does not say which that are.
    pub(in crate::replication) async fn name_unsealed<D: Disk>(
        &self,
        here: Here<'_, D>,
        row: &Chain,
    ) -> FsResult<()> {
        let target = row.id.target();
        for member in &row.members {
            let Some(index) = here.index(member.ost) else { continue };
            if here.osts.awaits_search(index) {
                let is_written = row.written().any(|ost| ost == member.ost);
                match here.osts.failure(index) {
                    Some(_) if !is_written => continue,
                    _ => return Err(Errno::EREMCHG),
                }
            }
            let key = unsealed(index);
            if self.recent.is_empty(key) || self.unsealed.is_named(target, index) {
                continue;
            }
            loop {
                let _naming = self.unsealed.naming.lock().await;
                let after = match self.unsealed.progress(target, index) {
                    None => None,
                    Some(Progress::After(last)) => Some(last),
                    Some(Progress::Done) => break,
                };
                let page = self.recent.page(key, after, ENTRIES);
                let Some(last) = page.last().map(|last| last.object) else {
                    self.recent.sync().await?;
                    self.unsealed.named.lock().insert((target, index), Progress::Done);
                    break;
                };
                let its = self.those_of(target, &page).await?;
                if !its.is_empty() {
                    tracing::info!(
                        chain = %row.id, objects = its.len(),
                        "copies that were changed not long before power was lost are made equal"
                    );
                    self.recent.touch_all((target, 0), its.into_iter(), UNNUMBERED).await?;
                    self.unsealed.noted.lock().insert(target);
                }
                self.unsealed.named.lock().insert((target, index), Progress::After(last));
            }
        }
        Ok(())
    }

    /// Those of some objects, in their order, that belong to a chain.
    async fn those_of(&self, target: u16, found: &[Touched]) -> FsResult<Vec<Touched>> {
        let (mut its, mut left) = (Vec::new(), found);
        while let Some(first) = left.first() {
            let page = self.peers()?.objects(target, before(first.object)).await;
            // It is asked again, as for each row that is needed.
            let page = page.map_err(|errno| {
                tracing::debug!(%errno, target, "the MDS does not say what belongs to a chain");
                Errno::EREMCHG
            })?;
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
        let is_left = |index: &u16| {
            !self.recent.is_empty(unsealed(*index)) && !here.osts.awaits_search(*index)
        };
        for index in (0..here.osts.count()).filter(is_left) {
            let is_member = |row: &Chain| row.state_of(here.first + index).is_some();
            let rows = self.rows.all();
            let mut its = rows.iter().filter(|(row, _)| is_member(row));
            if its.all(|(row, _)| self.unsealed.is_named(row.id.target(), index)) {
                self.recent.forget(unsealed(index), |_| true);
                self.recent.shrink_soon();
            }
        }
    }
}

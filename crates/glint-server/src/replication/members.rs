//! What the disks of members here do, on threads of their own.
//!
//! Invariants:
//! - What a disk makes late is in the order of [`terms`].
//! - No change is made before all that was noted as changed by then is in the log.
//! - Nothing that a chain waits for waits for a member that the newest row does not have written.
//! - No member is waited for whose disk stands still or has failed, if another one of its chain can
//!   be read.

mod former;
pub(super) mod terms;
#[cfg(test)]
mod tests;

use super::{Here, Replication};
use futures_lite::future::or;
use futures_util::future::join_all;
use glint_ost::disk::Disk;
use glint_ost::{Apart, Kept};
use glint_proto::chain::{Chain, ChainVersion, MemberState};
use glint_proto::{Answer, Bulk, ClientId, Errno, FsResult, ObjectId, OstReply, OstRequest};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use terms::Member;

impl Replication {
    /// Has the disk of a member here execute a request by a row. It is executed whether or not anybody
    /// waits for it.
    pub(super) async fn at_member<D: Disk>(
        &self,
        here: Here<'_, D>,
        client: ClientId,
        member: (u16, &Chain),
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        self.change_at_member(here, client, member, request, bulk, &Arc::default()).await
    }

    /// The same. Says in `was_empty` whether it has changed an object that had no bytes before.
    pub(super) async fn change_at_member<D: Disk>(
        &self,
        here: Here<'_, D>,
        client: ClientId,
        (ost, row): (u16, &Chain),
        request: OstRequest,
        bulk: Bulk<'_>,
        was_empty: &Arc<AtomicBool>,
    ) -> Answer<OstReply> {
        let Some(index) = here.index(ost) else { return Answer::unchanged(Err(Errno::ENXIO)) };
        if self.is_given_up(here, (ost, row)) {
            return Answer::unchanged(Err(Errno::ETIMEDOUT));
        }
        if !request.is_modifying() {
            // It is compared with another copy.
            let apart = Apart { adds_none: true, ..Apart::default() };
            return here.osts.handle_apart(client, index, request, bulk, apart).await;
        }
        match self.terms.enter((row.id.target(), ost), row.version).await {
            Ok((change, _awaited)) => {
                let after = self.recent.before_change(request.op() as u8);
                // Nobody reads from a member before it serves, and heal gives it all there is.
                let adds_none = row.state_of(ost) == Some(MemberState::Syncing);
                let (kept, was_empty) = (Some(Box::new(change) as Kept), Some(was_empty.clone()));
                let apart = Apart { after, kept, adds_none, was_empty };
                here.osts.handle_apart(client, index, request, bulk, apart).await
            }
            Err(errno) => Answer::unchanged(Err(errno)),
        }
    }

    /// Removes an object of a member here.
    pub(super) async fn remove_own<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, row): (u16, &Chain),
        object: ObjectId,
    ) -> FsResult<()> {
        let index = here.index(ost).ok_or(Errno::ENXIO)?;
        let entered = self.terms.enter((row.id.target(), ost), row.version).await?;
        let (change, _awaited) = entered;
        here.osts.remove(index, object, Box::new(change)).await
    }

    /// Has nobody read an object of a member here any more; or, if not `is_unreadable`, ends that.
    pub(super) async fn mark_own<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, row): (u16, &Chain),
        object: ObjectId,
        is_unreadable: bool,
    ) -> FsResult<()> {
        let index = here.index(ost).ok_or(Errno::ENXIO)?;
        let (change, _awaited) = self.terms.enter((row.id.target(), ost), row.version).await?;
        here.osts.mark(index, object, is_unreadable, Box::new(change)).await?;
        self.marks.note((index, object), is_unreadable);
        Ok(())
    }

    /// Waits for something that a member of a chain does, unless it is taken out: EREMCHG.
    pub(super) async fn unless_out<R>(
        &self,
        (target, ost): Member,
        work: impl Future<Output = FsResult<R>>,
    ) -> FsResult<R> {
        let is_out = async {
            self.rows.until_out(target, ost).await;
            Err(Errno::EREMCHG)
        };
        or(work, is_out).await
    }

    /// Waits for something that is done by a row, unless there is a newer one: EREMCHG.
    pub(super) async fn unless_newer<R>(
        &self,
        chain: ChainVersion,
        work: impl Future<Output = FsResult<R>>,
    ) -> FsResult<R> {
        let changed = async {
            self.rows.until_newer(chain).await;
            Err(Errno::EREMCHG)
        };
        or(work, changed).await
    }

    /// Whether the disk of a member here has failed, or stands still or that of the logs that it needs,
    /// and another member can be read.
    pub(super) fn is_given_up<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, row): (u16, &Chain),
    ) -> bool {
        let is_out = |ost: u16| here.index(ost).is_some_and(|at| here.osts.is_out_of_order(at));
        let logs = self.recent.watch().stands_still() || self.pending.watch().stands_still();
        let can_be_read = |other: u16| {
            let is_here = here.index(other).is_some();
            other != ost && !is_out(other) && !(logs && is_here)
        };
        (is_out(ost) || logs) && row.readable().any(can_be_read)
    }

    /// Looks how the disks are, and waits for nothing: once, every
    /// [`TENDING`](super::TENDING).
    pub(crate) fn look_at_disks<D: Disk>(&self, here: Here<'_, D>) {
        here.osts.look();
        self.recent.watch().look();
        self.pending.watch().look();
    }

    /// Why nothing can be called durable any more, if that is so. An OST that has failed is no reason
    /// while all that it had not on stable storage is with other members, and others here go on.
    pub(crate) fn failure<D: Disk>(&self, here: Here<'_, D>) -> Option<String> {
        let mut all = 0..here.osts.count();
        let goes_on = all.clone().any(|index| here.osts.failure(index).is_none());
        all.find_map(|index| {
            let (reason, ost) = (here.osts.failure(index)?, here.first + index);
            let is_needed = |row: &Chain| {
                let mut written = row.written();
                written.any(|its| its == ost) && row.readable().all(|its| its == ost)
            };
            let is_needed = self.rows.all().iter().any(|(row, _)| is_needed(row));
            (is_needed || here.osts.is_alone(index) || !goes_on).then(|| reason.to_owned())
        })
    }

    /// Has members taken out whose disks stand still or have failed: once, every [`TENDING`](super::TENDING).
    pub(crate) async fn give_up_still<D: Disk>(&self, here: Here<'_, D>) {
        let rows = self.rows.all();
        let lost = rows.iter().filter_map(|(row, _)| {
            let is_here = |ost: &u16| here.index(*ost).is_some();
            let mut its = row.written().filter(is_here);
            let ost = its.find(|ost| self.is_given_up(here, (*ost, row)))?;
            Some((ChainVersion { target: row.id.target(), version: row.version }, ost))
        });
        let told = lost.map(async |(chain, ost)| {
            let told = self.take_out(here, chain, ost, Errno::ETIMEDOUT);
            self.unless_newer(chain, told).await
        });
        // What could not be said is said again.
        join_all(told).await;
    }
}

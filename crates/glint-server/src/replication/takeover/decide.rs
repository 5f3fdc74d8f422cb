//! Deciding what is in doubt after a takeover ([`super::doubts`]): the head makes it the same in all
//! copies, as it is in its own, first what somebody waits for.
//!
//! Invariants:
//! - It is on stable storage at all members that are written, and what absent ones lack of it is so in
//!   the index, before it is called decided.
//! - A chain whose head cannot read its own keeps no other chain in doubt whose head is on another disk
//!   ([`at_work`](crate::replication::at_work)).
//! - Who waits for that waits no longer for the head's disk than until there is a row without the head.

use super::doubts::{Takeover, Undecided, Wanted};
use crate::replication::copy::{CopyError, of_own};
use crate::replication::touched::UNNUMBERED;
use crate::replication::{Here, PATIENCE, Replication, within};
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion, PeerRequest, Touched};
use glint_proto::{Bulk, Errno, FsResult, ObjectId, OstReply, OstRequest};
use std::sync::Arc;

/// Chains of one head, and objects of each, that are decided at once.
const CHAINS_AT_ONCE: usize = 8;
const OBJECTS_AT_ONCE: usize = 8;
/// Data of an object that is decided together while nobody waits for it.
const BYTES: u64 = 16 << 20;

impl Replication {
    /// Notes what the head of a chain has found to be in doubt by this row.
    pub(in crate::replication) async fn note_doubtful(
        &self,
        row: &Chain,
        parts: &[Touched],
    ) -> FsResult<()> {
        let target = row.id.target();
        // Without a number: what the head calls stable is what it has ordered, and not this.
        self.recent.touch_all((target, 0), parts.iter().copied(), UNNUMBERED).await?;
        for absent in row.missing() {
            self.pending.touch_all((target, absent), parts.iter().copied(), UNNUMBERED).await?;
        }
        Ok(())
    }

    /// Waits until what somebody wants to read is in doubt no more: EREMCHG if the chain is another
    /// one now, or the head does not answer.
    pub(in crate::replication) async fn until_decided<D: Disk>(
        &self,
        here: Here<'_, D>,
        chain: ChainVersion,
        wanted: Wanted,
    ) -> FsResult<()> {
        let row = self.row_of(chain)?;
        let head = row.head().ok_or(Errno::EREMCHG)?;
        if here.index(head).is_some() {
            return self.decide(here, chain, wanted).await.map_err(|_| Errno::EREMCHG);
        }
        let Some(undecided) = self.doubts.of(chain.target, wanted) else { return Ok(()) };
        let Wanted { object, start, end } = wanted;
        let peers = self.peers()?;
        let asked = peers.ask(head, PeerRequest::Decide { chain, object, start, end });
        within(PATIENCE, asked).await.map_err(|_| Errno::EREMCHG)?;
        self.doubts.decided(chain.target, &undecided);
        Ok(())
    }

    /// Decides, as the head, what somebody wants to read.
    pub(in crate::replication) async fn decide<D: Disk>(
        &self,
        here: Here<'_, D>,
        chain: ChainVersion,
        wanted: Wanted,
    ) -> FsResult<()> {
        while let Some(undecided) = self.doubts.of(chain.target, wanted) {
            self.decide_first_of(here, chain, undecided).await?;
        }
        Ok(())
    }

    /// Decides the first parts of it, in their turn: others that want more of the object wait for no
    /// more than that. EREMCHG if there is a newer row, whatever disk that waits for.
    async fn decide_first_of<D: Disk>(
        &self,
        here: Here<'_, D>,
        chain: ChainVersion,
        undecided: Undecided,
    ) -> FsResult<()> {
        self.unless_newer(chain, self.decide_in_turn(here, chain, undecided)).await
    }

    async fn decide_in_turn<D: Disk>(
        &self,
        here: Here<'_, D>,
        chain: ChainVersion,
        undecided: Undecided,
    ) -> FsResult<()> {
        let row = self.row_of(chain)?;
        let head = row.head().filter(|head| here.index(*head).is_some()).ok_or(Errno::EREMCHG)?;
        let first = self.first_of(here, (head, &row), undecided.clone()).await;
        let (undecided, found) = match first {
            Ok(first) => (first, Ok(())),
            Err(error) => (undecided, Err(error)),
        };
        let _turn = self.doubts.turn(&undecided).await;
        // Somebody else may have decided it meanwhile.
        if !self.doubts.is_left(chain.target, &undecided) {
            return Ok(());
        }
        self.make_decided(here, chain, &undecided, found).await
    }

    /// Decides some more of each chain whose head is here: once, every [`TENDING`](crate::replication::TENDING).
    /// Returns whether there is more to do at once.
    pub(crate) async fn decide_some<D: Disk>(&self, here: Here<'_, D>) -> bool {
        let rows = self.doubts.chains().into_iter().filter_map(|target| self.rows.get(target));
        let rows: Vec<Arc<Chain>> = rows.collect();
        let chains = here.headed(rows.iter().map(|row| &**row));
        let work = async |target: u16| self.decide_some_of_chain(here, target).await;
        self.at_work.doubts.pass(&chains, CHAINS_AT_ONCE, work).await
    }

    async fn decide_some_of_chain<D: Disk>(&self, here: Here<'_, D>, target: u16) -> bool {
        let Ok(entered) = self.rows.enter_newest(target) else { return false };
        let (row, is_active) = (entered.row.clone(), entered.is_active);
        drop(entered);
        if !here.is_head_of(&row) || !is_active {
            return false;
        }
        match self.decide_some_of(here, &row).await {
            Ok(is_more) => is_more,
            Err(Errno::EREMCHG) => false,
            Err(errno) => {
                let chain = row.id;
                tracing::warn!(%chain, %errno, "could not make copies equal; it is tried again");
                false
            }
        }
    }

    async fn decide_some_of<D: Disk>(&self, here: Here<'_, D>, row: &Chain) -> FsResult<bool> {
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        let some = self.doubts.some(chain.target, OBJECTS_AT_ONCE);
        if some.is_empty() {
            return self.tell_decided(here, row).await.map(|()| false);
        }
        let decided =
            some.into_iter().map(|undecided| self.decide_first_of(here, chain, undecided));
        let decided = futures_util::future::join_all(decided).await;
        decided.into_iter().collect::<FsResult<()>>().map(|()| true)
    }

    /// Tells all members that nothing is in doubt any more.
    async fn tell_decided<D: Disk>(&self, here: Here<'_, D>, row: &Chain) -> FsResult<()> {
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        let Some((before, takeover)) = self.doubts.are_over(chain.target) else { return Ok(()) };
        for member in row.written().filter(|member| here.index(*member).is_none()) {
            let request = PeerRequest::Decided { chain, before, takeover };
            self.ask_member(here, chain, member, request).await?;
        }
        self.are_decided(here, chain.target, (before, takeover));
        tracing::info!(chain = %row.id, before, "copies are equal");
        Ok(())
    }

    /// Nothing of a chain that this takeover has found, or one before it, is in doubt at any member.
    pub(in crate::replication) fn are_decided<D: Disk>(
        &self,
        here: Here<'_, D>,
        target: u16,
        takeover: Takeover,
    ) {
        let forget = || self.forget_decided(here, target, takeover.0);
        self.doubts.end(target, takeover, forget);
        if self.unsealed.were_noted(target) {
            self.recent.shrink_soon();
        }
    }

    /// The first parts of an object: no more data than is soon copied.
    async fn first_of<D: Disk>(
        &self,
        here: Here<'_, D>,
        head: (u16, &Chain),
        mut undecided: Undecided,
    ) -> Result<Undecided, CopyError> {
        let object = undecided.object;
        let (mut left, mut count) = (BYTES, 0);
        for part in &mut undecided.parts {
            if left == 0 {
                break;
            }
            count += 1;
            let seek = OstRequest::Seek { object, offset: part.start, hole: false };
            let OstReply::Offset(data) = self.own_of(here, head, object, seek, Bulk::None).await?
            else {
                return Err(CopyError::Own { ost: head.0, object, errno: Errno::EPROTO });
            };
            // Holes are copied in one request.
            let Some(data) = data.filter(|data| *data < part.end) else { continue };
            part.end = part.end.min(data.saturating_add(left));
            left -= part.end - data;
        }
        undecided.parts.truncate(count);
        Ok(undecided)
    }

    /// Makes it the same in all copies, on stable storage, if it was `found`.
    async fn make_decided<D: Disk>(
        &self,
        here: Here<'_, D>,
        chain: ChainVersion,
        undecided: &Undecided,
        found: Result<(), CopyError>,
    ) -> FsResult<()> {
        let entered = self.rows.enter(chain)?;
        let (row, is_active) = (entered.row.clone(), entered.is_active);
        // Another head waits until nothing is executed by this row, and this waits for others.
        drop(entered);
        let head = row.head().filter(|head| here.index(*head).is_some() && is_active);
        let head = head.ok_or(Errno::EREMCHG)?;
        let made = match found {
            Ok(()) => self.make_same(here, (head, &row), undecided).await,
            Err(error) => Err(error),
        };
        match made {
            Ok(()) => {}
            Err(CopyError::Changed) => return Err(Errno::EREMCHG),
            // It stays in doubt, and is tried again: no member is at fault.
            Err(CopyError::Unknown { errno, .. }) => return Err(errno),
            Err(CopyError::Member { ost, errno }) => {
                self.take_out(here, chain, ost, errno).await?;
                return Err(Errno::EREMCHG);
            }
            Err(error @ CopyError::Own { errno, .. }) => {
                tracing::error!(%error, "could not make the copies of an object equal");
                if row.readable().any(|other| other != head) {
                    // Another member may be able to.
                    self.take_out(here, chain, head, errno).await?;
                    return Err(Errno::EREMCHG);
                }
                // The chain is not kept from everything else. Who is synced gets it later.
                for member in row.written().filter(|member| *member != head) {
                    let whole = std::iter::once(Touched::whole(undecided.object));
                    self.pending.touch_all((chain.target, member), whole, UNNUMBERED).await?;
                }
            }
        }
        self.doubts.decided(chain.target, undecided);
        Ok(())
    }

    async fn make_same<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        undecided: &Undecided,
    ) -> Result<(), CopyError> {
        let object = undecided.object;
        let others = || row.written().filter(|member| *member != head);
        for member in others() {
            self.copy(here, (head, row), member, (object, &undecided.parts), None).await?;
        }
        let failed = |errno| of_own(head, object, errno);
        let stat = OstRequest::Stat { object };
        let is_there = match self.own_of(here, (head, row), object, stat, Bulk::None).await? {
            OstReply::Stat(attr) => attr.is_some(),
            _ => return Err(failed(Errno::EPROTO)),
        };
        if !is_there {
            return self.make_removal_durable(here, (head, row), object).await;
        }
        self.pending.sync().await.map_err(failed)?;
        self.recent.sync().await.map_err(failed)?;
        let sync = OstRequest::Sync { object };
        self.own_of(here, (head, row), object, sync, Bulk::None).await?;
        for member in others() {
            self.give_to(here, (member, row), sync, None).await?;
        }
        Ok(())
    }

    /// An object that the head does not have was removed from others.
    async fn make_removal_durable<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        object: ObjectId,
    ) -> Result<(), CopyError> {
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        let failed = |errno| of_own(head, object, errno);
        let committed = self.commit_members(here, [row]).await.map_err(failed)?;
        committed.into_values().collect::<FsResult<()>>().map_err(failed)?;
        for member in row.written().filter(|member| here.index(*member).is_none()) {
            let commit = PeerRequest::Commit(vec![chain]);
            let done = self.ask_member(here, chain, member, commit).await;
            done.map_err(|_| CopyError::Changed)?;
        }
        Ok(())
    }
}

//! The first thing that a head does: it finds what is in doubt.
//!
//! Invariants:
//! - A version is active, at any member, only when all that members were asked to do by an older one,
//!   and may differ between those that are written, is in doubt at each of them ([`doubts`]). That is a
//!   list: no data is read or given before calls go on.
//! - A chain of which something is executed by an older row, for as long as a disk needs, keeps no other
//!   chain from being taken over whose head is on another disk ([`at_work`](super::at_work)).

mod decide;
pub(super) mod doubts;
pub(super) mod lost;
mod search;
pub(super) mod unsealed;

use super::rows::Told;
use super::{ENTRIES, Here, PATIENCE_WITH_DISKS, Replication, within};
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion, MemberEvent, PeerReply, PeerRequest, Touched};
use glint_proto::{Errno, FsResult, ObjectId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Chains of one head that are taken over at once.
const AT_ONCE: usize = 16;

impl Replication {
    /// Takes over the chains whose head is here and that are not active: once, every
    /// [`TENDING`](super::TENDING), also while an earlier look waits for some of them.
    pub(crate) async fn take_over<D: Disk>(&self, here: Here<'_, D>) {
        self.name_unsealed(here).await;
        let rows = self.rows.all();
        let chains = here.headed(rows.iter().map(|(row, _)| &**row));
        let work = async |target: u16| {
            self.take_over_chain(here, target).await;
            false
        };
        // Calls wait for it, and each waits mostly for others.
        self.at_work.takeover.pass(&chains, AT_ONCE, work).await;
    }

    async fn take_over_chain<D: Disk>(&self, here: Here<'_, D>, target: u16) {
        let Ok(entered) = self.rows.enter_newest(target) else { return };
        let (row, is_active) = (entered.row.clone(), entered.is_active);
        // It waits until nothing is executed by older rows, and there may be a newer one meanwhile.
        drop(entered);
        if !here.is_head_of(&row) {
            return;
        }
        let chain = ChainVersion { target, version: row.version };
        let taken = async {
            match is_active {
                true => self.tell_active(here, &row, None).await,
                false => self.take_over_one(here, &row).await,
            }
        };
        if let Err(errno) = self.unless_newer(chain, taken).await
            && errno != Errno::EREMCHG
        {
            let chain = row.id;
            tracing::warn!(%chain, %errno, "could not take over a chain; it is tried again");
        }
    }

    /// Takes a head here out of its chain whose log cannot be written, if a member elsewhere can go on:
    /// those here have the same logs.
    pub(super) async fn head_fails<D: Disk>(&self, here: Here<'_, D>, row: &Chain, errno: Errno) {
        let others_go_on = row.readable().any(|member| here.index(member).is_none());
        let Some(head) = row.head().filter(|_| others_go_on) else { return };
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        // If that cannot be said, it is tried again.
        let _ = self.unless_newer(chain, self.take_out(here, chain, head, errno)).await;
    }

    async fn take_over_one<D: Disk>(&self, here: Here<'_, D>, row: &Arc<Chain>) -> FsResult<()> {
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        self.rows.until_quiet(chain.target).await;
        let undecided = self.rows.undecided(chain.target);
        for (member, index) in row.written().filter_map(|ost| Some((ost, here.index(ost)?))) {
            match self.is_named(here, index) {
                Ok(()) => {}
                Err(Errno::EBUSY) => return self.waits_for_search(here, row, member).await,
                // Nobody else asks for it here, and so it is only tried again.
                Err(_) => return Err(Errno::EREMCHG),
            }
        }
        let mut elsewhere: Vec<u16> =
            row.written().filter(|member| here.index(*member).is_none()).collect();
        // Those that are synced first: for a search of one all members at its server are busy.
        elsewhere.sort_by_key(|member| row.readable().any(|other| other == *member));
        let mut all = self.recent.list((chain.target, 0));
        let own: BTreeSet<ObjectId> = all.iter().map(|part| part.object).collect();
        for member in &elsewhere {
            let is_synced = row.readable().all(|other| other != *member);
            let asked = self.ask_recent(here, row, *member, |touched| {
                if is_synced {
                    self.is_not_taken(chain.target, &touched);
                }
                all.extend(touched);
                Ok(())
            });
            match asked.await {
                Err(Errno::EBUSY) => return self.waits_for_search(here, row, *member).await,
                asked => asked?,
            }
        }
        let all = merged(all);
        // Before it is noted, so that no word of an earlier takeover has the notes forgotten.
        let takeover = self.doubts.begin(chain.target, chain.version, &all, own);
        if let Err(errno) = self.note_doubtful(row, &all).await {
            self.head_fails(here, row, errno).await;
            return Err(errno);
        }
        for member in &elsewhere {
            for some in all.chunks(ENTRIES) {
                let (takeover, touched) = (takeover.1, some.to_vec());
                let request = PeerRequest::Doubtful { chain, takeover, touched };
                self.ask_member(here, chain, *member, request).await?;
            }
        }
        self.tell_active(here, row, all.is_empty().then_some(takeover.1)).await?;
        if all.is_empty() {
            self.are_decided(here, chain.target, takeover);
        }
        self.rows.activate_own(chain, undecided);
        tracing::info!(chain = %row.id, version = row.version, in_doubt = all.len(), "took over");
        Ok(())
    }

    /// A member that is written is being searched: a takeover is tried again. The MDS takes one that is
    /// synced out first, until that has ended: its search may take long, and it is synced anyway.
    async fn waits_for_search<D: Disk>(
        &self,
        here: Here<'_, D>,
        row: &Chain,
        member: u16,
    ) -> FsResult<()> {
        if row.readable().all(|other| other != member) {
            let chain = ChainVersion { target: row.id.target(), version: row.version };
            tracing::info!(
                ost = member,
                target = chain.target,
                "a member is searched after a loss of power; it is synced after that"
            );
            let told = self.peers()?.tell(chain, member, MemberEvent::NotReady).await;
            let row = told.map_err(|_| Errno::EREMCHG)?;
            self.adopt(here, &row);
            self.rows.mark_settled(&row);
        }
        Err(Errno::EREMCHG)
    }

    /// Asks a member on another server for the objects that it has noted as recent. Gives them to
    /// `take`, some at a time. EBUSY while its OST is being searched.
    pub(super) async fn ask_recent<D: Disk>(
        &self,
        here: Here<'_, D>,
        row: &Chain,
        member: u16,
        mut take: impl FnMut(Vec<Touched>) -> FsResult<()>,
    ) -> FsResult<()> {
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        let mut after = None;
        loop {
            let request = PeerRequest::Recent { row: row.clone(), after };
            let reply = self.ask_member(here, chain, member, request).await?;
            let PeerReply::Recent { touched, is_last } = reply else { return Err(Errno::EPROTO) };
            let next = touched.last().map(|last| last.object).max(after);
            let is_more = !is_last && next > after;
            take(touched)?;
            if !is_more {
                return Ok(());
            }
            after = next;
        }
    }

    /// Tells other members, once, that they may be read.
    async fn tell_active<D: Disk>(
        &self,
        here: Here<'_, D>,
        row: &Chain,
        are_equal: Option<u64>,
    ) -> FsResult<()> {
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        if self.rows.is_told(Told::Active, chain) {
            return Ok(());
        }
        for member in row.written().filter(|member| here.index(*member).is_none()) {
            let request = PeerRequest::Activate { chain, are_equal };
            self.ask_member(here, chain, member, request).await?;
        }
        self.rows.told(Told::Active, chain);
        Ok(())
    }

    /// Asks a member on another server, and has it taken out if it does not answer.
    pub(super) async fn ask_member<D: Disk>(
        &self,
        here: Here<'_, D>,
        chain: ChainVersion,
        member: u16,
        request: PeerRequest,
    ) -> FsResult<PeerReply> {
        let changed = async {
            self.rows.until_newer(chain).await;
            Err(Errno::EREMCHG)
        };
        let peers = self.peers()?;
        let may_be_busy = matches!(request, PeerRequest::Recent { .. });
        let asked = peers.ask(member, request);
        match within(PATIENCE_WITH_DISKS, futures_lite::future::or(asked, changed)).await {
            Ok(reply) => Ok(reply),
            Err(Errno::EREMCHG) => Err(Errno::EREMCHG),
            Err(Errno::EBUSY) if may_be_busy => Err(Errno::EBUSY),
            Err(errno) => {
                self.take_out(here, chain, member, errno).await?;
                Err(Errno::EREMCHG)
            }
        }
    }
}

/// Changed parts of objects in their order, those that overlap as one.
fn merged(mut all: Vec<Touched>) -> Vec<Touched> {
    all.sort_by_key(|part| (part.object, part.start));
    all.dedup_by(|part, before| {
        let overlaps = part.object == before.object && part.start <= before.end;
        if overlaps {
            before.end = before.end.max(part.end);
        }
        overlaps
    });
    all
}

#[cfg(test)]
mod tests;

//! Replication: files of which several OSTs have a copy each.
//!
//! The head of a chain ([`glint_proto::chain`]) orders its changes: each is made here and by all
//! other members that are written, at the same time, and answered when all have made it. Reads are
//! answered by any member that serves.
//!
//! Invariants:
//! - A change is acknowledged when all members that the head's row says are written have made it
//!   by that row, or when the MDS has taken out those that have not.
//! - Members make nothing by another row than their newest. Only the MDS makes rows, and says that
//!   a member is out only when that one serves nobody any more.
//! - What an absent member lacks is in the index of pending changes, on stable storage at every
//!   member that serves, before it is acknowledged.
//! - What may differ in copies after the death of a member is among the parts of objects that were
//!   changed recently. The new head has all members note it as in doubt before they serve, and nobody
//!   reads such a part before the head has made it equal ([`takeover::doubts`]). Changes do not wait for that.
//! - What is reported as committed is on stable storage in all copies.
//! - No thread that decides anything waits for a disk: neither one that executes requests, nor one of
//!   those that look after chains ([`members`], [`touched`]).
//!
//! (The version that each request carries and the takeover by a new head are those of Chain
//! Replication, van Renesse and Schneider 2004, with a star in the place of the chain; the states
//! of members are those of 3FS.)

mod at_work;
mod copy;
mod execute;
mod heal;
mod members;
mod order;
pub(crate) mod peers;
mod rows;
mod stable;
mod takeover;
mod touched;

use crate::records::{Records, RecordsError, ServerLog};
use at_work::AtWork;
use glint_net::host;
use glint_ost::OstSet;
use glint_ost::disk::Disk;
use glint_proto::chain::{
    Chain, ChainId, ChainPolicy, ChainVersion, Destination, Forward, MemberEvent, MemberState,
    PeerReply, PeerRequest,
};
use glint_proto::limits::CHAIN_LEASE_MS;
use glint_proto::oss::ObjectPage;
use glint_proto::{Bulk, Errno, FsResult, Ino, Layout, ObjectId, OstReply, OstRequest, clock};
pub(crate) use heal::{CopyFault, ENTRIES, HealRate};
use heal::{HealControl, LostCopies, Marks};
use members::terms::Terms;
use order::ranges::RangeTurns;
use order::size_limits::SizeLimits;
use parking_lot::Mutex;
use rows::{Entered, Rows};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use takeover::doubts::{Doubts, Wanted};
use takeover::unsealed::Unsealed;
pub(crate) use touched::stopped::note_searches;
pub use touched::stopped::{StoppedLogs, awaited_searches, note_missing};
use touched::{TouchedCount, TouchedLog, UNNUMBERED};

/// A member that does not make a change in this time is taken out.
const PATIENCE: Duration = Duration::from_secs(4);
/// As long as this for those that wait for a disk.
const PATIENCE_WITH_DISKS: Duration = Duration::from_secs(20);
/// Pause between two looks whether the MDS knows this server as a client, and patience with each.
pub(crate) const KEEPING: Duration = Duration::from_secs(1);

/// Answer to come from another server, on the thread that asks.
pub(crate) type Asked<'a, R> = Pin<Box<dyn Future<Output = FsResult<R>> + 'a>>;

/// The other servers, and the MDS, which alone changes rows.
pub(crate) trait Peers: Send + Sync {
    /// Has another member make a change.
    fn forward<'a>(
        &'a self,
        to: Destination,
        forward: Forward,
        request: OstRequest,
        bulk: Bulk<'a>,
    ) -> Asked<'a, OstReply>;

    /// Asks the server of an OST.
    fn ask(&self, ost: u16, request: PeerRequest) -> Asked<'_, PeerReply>;

    /// Has the MDS hear of this server as a client, whose session at the others ends with that there.
    fn keep(&self) -> Asked<'_, ()>;

    /// Asks the MDS for a page of the objects of a chain, after this one.
    fn objects(&self, target: u16, after: ObjectId) -> Asked<'_, ObjectPage>;

    /// Asks the MDS for the layout of a file; `None` if there is no such file.
    fn layout(&self, ino: Ino) -> Asked<'_, Option<Layout>>;

    /// Tells the MDS what happened to a member. Returns the row as it is then.
    fn tell(&self, chain: ChainVersion, ost: u16, event: MemberEvent) -> Asked<'_, Chain>;
}

/// Replication, as one server takes part in it.
pub(crate) struct Replication {
    rows: Rows,
    /// Held while a newer row is adopted and the index follows it.
    adopting: Mutex<()>,
    turns: RangeTurns,
    terms: Terms,
    size_limits: SizeLimits,
    /// What a lost head may have left different in copies.
    doubts: Doubts,
    /// Objects whose copies may differ after a crash, by chain.
    recent: TouchedLog,
    /// Which of them, found without checksums after a loss of power, are noted by their chains.
    unsealed: Unsealed,
    /// Changes that absent members lack, by chain and member.
    pending: TouchedLog,
    healing: HealControl,
    marks: Marks,
    lost: LostCopies,
    at_work: AtWork,
    peers: Mutex<Option<Arc<dyn Peers>>>,
    settled: stable::LastSettled,
    /// Held by the pass that shortens the logs.
    shrinking: futures_util::lock::Mutex<()>,
    /// When the MDS was asked last, of what it has answered; `None` if it is in this process.
    heard: Option<Mutex<Option<Instant>>>,
}

/// Changes of a chain that a member lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PendingCount {
    pub(crate) chain: ChainId,
    pub(crate) ost: u16,
    pub(crate) lack: TouchedCount,
    /// The head of the chain is here.
    pub(crate) is_head: bool,
}

/// The OSTs of this server, as members of chains.
pub(crate) struct Here<'a, D: Disk> {
    pub(crate) osts: &'a OstSet<D>,
    /// Number of the first one.
    pub(crate) first: u16,
}

impl<D: Disk> Clone for Here<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Disk> Copy for Here<'_, D> {}

impl<D: Disk> Here<'_, D> {
    /// Index of an OST, if it is here.
    pub(crate) fn index(&self, ost: u16) -> Option<u16> {
        ost.checked_sub(self.first).filter(|index| *index < self.osts.count())
    }

    /// Whether the head of a chain is here.
    pub(super) fn is_head_of(&self, row: &Chain) -> bool {
        row.head().is_some_and(|head| self.index(head).is_some())
    }

    /// Targets of chains whose heads are here, each with its head.
    pub(super) fn headed<'r>(&self, rows: impl Iterator<Item = &'r Chain>) -> Vec<(u16, u16)> {
        let headed = rows.filter(|row| self.is_head_of(row));
        headed.filter_map(|row| Some((row.id.target(), row.head()?))).collect()
    }

    /// Whether a member of a chain that serves is here.
    pub(super) fn serves(&self, row: &Chain) -> bool {
        row.readable().any(|ost| self.index(ost).is_some())
    }

    /// Whether a member of a chain that is written is here.
    pub(super) fn is_written_by(&self, row: &Chain) -> bool {
        row.written().any(|ost| self.index(ost).is_some())
    }
}

impl Replication {
    /// Of a server that remembers things in `records`. With `leased` it serves only while it hears
    /// of the MDS. It heals with no more than `heal_bandwidth` bytes a second, if there is a limit.
    pub(crate) fn load(
        records: &Arc<dyn Records>,
        leased: bool,
        heal_bandwidth: Option<u64>,
    ) -> Result<Replication, RecordsError> {
        Ok(Replication {
            rows: Rows::default(),
            adopting: Mutex::default(),
            turns: RangeTurns::default(),
            terms: Terms::default(),
            size_limits: SizeLimits::default(),
            doubts: Doubts::default(),
            recent: TouchedLog::load(records.clone(), ServerLog::Recent)?,
            unsealed: Unsealed::default(),
            pending: TouchedLog::load(records.clone(), ServerLog::Pending)?,
            healing: HealControl::new(heal_bandwidth),
            marks: Marks::default(),
            lost: LostCopies::default(),
            at_work: AtWork::default(),
            peers: Mutex::default(),
            settled: Default::default(),
            shrinking: Default::default(),
            heard: leased.then(Mutex::default),
        })
    }

    /// The other servers can be reached so, or not any more.
    pub(crate) fn set_peers(&self, peers: Option<Arc<dyn Peers>>) {
        let before = std::mem::replace(&mut *self.peers.lock(), peers);
        // Its sessions end, which may take a while: nobody waits for the lock meanwhile.
        drop(before);
    }

    fn peers(&self) -> FsResult<Arc<dyn Peers>> {
        self.peers.lock().clone().ok_or(Errno::EREMCHG)
    }

    /// The MDS has answered what it was asked at this time.
    pub(crate) fn heard(&self, asked: Instant) {
        if let Some(heard) = &self.heard {
            let mut heard = heard.lock();
            *heard = (*heard).max(Some(asked));
        }
    }

    /// Whether the MDS may not have given this server up.
    fn is_leased(&self) -> bool {
        let is_recent = |then: Instant| clock::since(then) < Duration::from_millis(CHAIN_LEASE_MS);
        self.heard.as_ref().is_none_or(|heard| heard.lock().is_some_and(is_recent))
    }

    /// The rows that are known here.
    pub(crate) fn chains(&self) -> Vec<Chain> {
        self.rows.all().iter().map(|(row, _)| Chain::clone(row)).collect()
    }

    /// Whether no chain is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The newest row of a chain that is known here.
    pub(crate) fn chain(&self, target: u16) -> Option<Chain> {
        self.rows.get(target).map(|row| Chain::clone(&row))
    }

    /// Whether a member of a chain is there, beside `ost`, and comes to serve.
    pub(crate) fn is_awaited_beside(&self, target: u16, ost: u16) -> bool {
        let comes = |state| matches!(state, MemberState::Waiting | MemberState::Syncing);
        let row = self.rows.get(target);
        row.is_some_and(|row| row.members.iter().any(|m| m.ost != ost && comes(m.state)))
    }

    /// Transactions of this server that are on stable storage in all copies, if those up to
    /// `own` are here.
    pub(crate) fn committed(&self, own: u64) -> u64 {
        own.min(self.rows.unstable_from() - 1)
    }

    /// Changes of each chain that a member lacks, as it is known here.
    pub(crate) fn pending<D: Disk>(&self, here: Here<'_, D>) -> Vec<PendingCount> {
        let named = |lack: TouchedCount| {
            let (target, ost) = lack.key;
            let head = self.rows.get(target).and_then(|row| row.head());
            let is_head = head.is_some_and(|head| here.index(head).is_some());
            let chain = ChainId::of_target(target)?;
            Some(PendingCount { chain, ost, lack, is_head })
        };
        self.pending.counts().into_iter().filter_map(named).collect()
    }

    /// Files of these objects are gone, and the objects here, too. Members that are away are told to
    /// remove theirs, for as long as the MDS knows of the files.
    pub(crate) fn are_removed(&self, objects: impl Iterator<Item = ObjectId>) {
        self.pending.forget_objects(objects);
    }

    /// Rates at which members are healed from here.
    pub(crate) fn heal_rates(&self) -> Vec<HealRate> {
        self.healing.rates()
    }

    /// The MDS has set these rules.
    pub(crate) fn set_policy(&self, policy: ChainPolicy) {
        self.healing.set_policy(policy);
    }

    /// Rules that the MDS has set.
    pub(crate) fn policy(&self) -> ChainPolicy {
        self.healing.policy()
    }

    /// The row of this version: EREMCHG if the newest one is another.
    fn row_of(&self, chain: ChainVersion) -> FsResult<Arc<Chain>> {
        let row = self.rows.get(chain.target).filter(|row| row.version == chain.version);
        row.ok_or(Errno::EREMCHG)
    }

    /// Whether a change may be made by a row: EREMCHG if it waits for more members that serve.
    fn has_enough(&self, row: &Chain) -> FsResult<()> {
        let policy = self.healing.policy();
        let needed = usize::from(policy.min_replicas).min(row.members.len());
        match row.readable().count() >= needed {
            true => Ok(()),
            false if policy.min_replicas_fails => Err(Errno::EROFS),
            false => Err(Errno::EREMCHG),
        }
    }

    /// The MDS has said these rows with this change of the table, or before. No server acts by
    /// older ones than those of the change `everywhere`.
    pub(crate) fn said<D: Disk>(
        &self,
        here: Here<'_, D>,
        rows: &[Chain],
        change: u64,
        everywhere: u64,
    ) {
        rows.iter().for_each(|row| self.adopt(here, row));
        self.rows.said(rows, change, everywhere);
        self.unsealed.rows_are_known();
    }

    /// Installs a row if it is newer than the one known, and notes what its members lack.
    pub(crate) fn adopt<D: Disk>(&self, here: Here<'_, D>, row: &Chain) {
        let target = row.id.target();
        // The head goes on, and members that were written are.
        let stays = |before: &Chain| here.is_head_of(row) && before.head() == row.head();
        // Another thread must not forget by this row what is noted by a newer one.
        let _adopting = self.adopting.lock();
        let is_written = |row: &Chain| here.is_written_by(row);
        let serves = |row: &Chain| here.serves(row);
        let Some(before) = self.rows.adopt(row, stays, is_written, serves) else { return };
        tracing::info!(chain = %row.id, version = row.version, "a chain has changed: {row}");
        self.forget_former(here, row);
        for member in row.members.iter().filter(|member| member.state != MemberState::Serving) {
            // Rows between these two may say that it was lost and came back.
            let is_as_before = before.as_ref().is_some_and(|before| {
                before.version + 1 == row.version
                    && before.state_of(member.ost) == Some(member.state)
            });
            if !is_as_before {
                self.lacks_recent(target, member.ost);
            }
        }
        for member in row.readable() {
            self.forget_lacks(here, row, member);
            let before = before.as_ref().and_then(|before| before.state_of(member));
            let was_synced = before.is_some_and(|before| {
                !matches!(before, MemberState::Serving | MemberState::LastServing)
            });
            if was_synced && here.index(member).is_some() && !here.lags(row) {
                // All here have been healed of what they had changed before they were lost.
                let since = self.rows.written_since(target);
                self.forget_before(target, since);
            }
        }
    }

    /// A member that was written may lack what was changed recently.
    fn lacks_recent(&self, target: u16, absent: u16) {
        // It is written before anything is acknowledged without the member.
        let recent = self.recent.list((target, 0)).into_iter();
        self.pending.note((target, absent), recent, UNNUMBERED);
    }

    /// Answers another member.
    pub(crate) async fn answer<D: Disk>(
        &self,
        here: Here<'_, D>,
        request: PeerRequest,
    ) -> FsResult<PeerReply> {
        match request {
            PeerRequest::Adopt(row) => {
                self.take_row(here, &row)?;
                let known = self.rows.get(row.id.target()).ok_or(Errno::EIO)?;
                Ok(PeerReply::Row(Chain::clone(&known)))
            }
            PeerRequest::Recent { row, after } => {
                self.take_row(here, &row)?;
                // Otherwise it is asked again.
                self.unsealed_are_named(here, &row)?;
                let target = row.id.target();
                self.rows.until_quiet(target).await;
                match self.rows.get(target) {
                    Some(known) if known.version == row.version => {}
                    _ => return Err(Errno::EREMCHG),
                }
                let touched = self.recent.page((target, 0), after, ENTRIES);
                Ok(PeerReply::Recent { is_last: touched.len() < ENTRIES, touched })
            }
            PeerRequest::Activate { chain, are_equal } => {
                let _entered = self.rows.enter(chain)?;
                if let Some(takeover) = are_equal {
                    self.are_decided(here, chain.target, (chain.version, takeover));
                }
                self.rows.activate(chain);
                Ok(PeerReply::Done)
            }
            PeerRequest::Commit(chains) => {
                let entered = chains.iter().map(|chain| self.rows.enter(*chain));
                let entered: Vec<Entered> = entered.collect::<FsResult<_>>()?;
                let rows = entered.iter().map(|entered| &*entered.row);
                let committed = self.commit_members(here, rows).await?;
                committed.into_values().collect::<FsResult<()>>().map(|()| PeerReply::Done)
            }
            PeerRequest::Stable(chain, upto) => {
                let _entered = self.rows.enter(chain)?;
                self.learn_stable(here, chain, upto);
                Ok(PeerReply::Done)
            }
            PeerRequest::Remove { .. } | PeerRequest::Mark { .. } | PeerRequest::Clear { .. } => {
                self.answer_about_object(here, request).await
            }
            PeerRequest::Pending { chain, absent, touched } => {
                let _entered = self.rows.enter(chain)?;
                self.note_lacking((chain.target, absent), touched);
                self.unless_newer(chain, self.pending.sync()).await?;
                Ok(PeerReply::Done)
            }
            PeerRequest::Doubtful { chain, takeover, touched } => {
                let entered = self.rows.enter(chain)?;
                // Before it is noted, so that no word of an earlier takeover has the notes forgotten.
                if self.doubts.add(chain.target, (chain.version, takeover), &touched) {
                    self.unless_newer(chain, self.note_doubtful(&entered.row, &touched)).await?;
                }
                Ok(PeerReply::Done)
            }
            PeerRequest::Decide { chain, object, start, end } => {
                let wanted = Wanted { object, start, end };
                let entered = self.rows.enter(chain)?;
                if !here.is_head_of(&entered.row) || !entered.is_active {
                    return Err(Errno::EREMCHG);
                }
                drop(entered);
                self.decide(here, chain, wanted).await?;
                Ok(PeerReply::Done)
            }
            PeerRequest::Decided { chain, before, takeover } => {
                let _entered = self.rows.enter(chain)?;
                self.are_decided(here, chain.target, (before, takeover));
                Ok(PeerReply::Done)
            }
        }
    }

    fn take_row<D: Disk>(&self, here: Here<'_, D>, row: &Chain) -> FsResult<()> {
        row.is_valid().then(|| self.adopt(here, row)).ok_or(Errno::EPROTO)
    }

    /// Keeps the session by which this server is a client of the others: once, every [`KEEPING`].
    pub(crate) async fn keep_session(&self) {
        if let Ok(peers) = self.peers()
            && let Err(errno) = within(KEEPING, peers.keep()).await
        {
            tracing::debug!(%errno, "the MDS does not answer this server");
        }
    }

    /// Looks after the chains of this server: once, every [`TENDING`], also while an earlier look waits
    /// for some of them. Returns whether there is more to do at once.
    pub(crate) async fn tend<D: Disk>(&self, here: Here<'_, D>) -> bool {
        if self.is_empty() {
            return false;
        }
        self.settle_if_due(here).await;
        let is_more = self.heal(here).await;
        let Some(_shrinking) = self.shrinking.try_lock() else { return is_more };
        let shrunk = self.recent.shrink().await.and(self.pending.shrink().await);
        if let Err(errno) = shrunk {
            tracing::error!(%errno, "could not shorten the log of changed objects; it is tried again");
            host::sleep(TENDING).await;
        }
        is_more
    }
}

/// Pause between two looks after the chains.
pub(crate) const TENDING: Duration = Duration::from_millis(100);
/// Waits no longer than so long: ETIMEDOUT then.
async fn within<R>(limit: Duration, work: impl Future<Output = FsResult<R>>) -> FsResult<R> {
    futures_lite::future::or(work, async {
        host::sleep(limit).await;
        Err(Errno::ETIMEDOUT)
    })
    .await
}

#[cfg(test)]
mod tests;

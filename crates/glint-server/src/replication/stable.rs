//! Changes that are on stable storage in all copies.
//!
//! Invariants:
//! - A change is called stable when all members that were written by its row, and are now, have had
//!   everything on stable storage since they made it.
//! - Other members hear of that from the head of their row only, once it has taken over; and in each
//!   version of it, as one that knew of a newer version did not listen.
//! - No chain waits here for a disk of an OST that is no member of it, nor for what another chain waits
//!   for: each is brought to stable storage apart from the others, in a turn of its own. The round passes
//!   over chains whose turn it is already; those who need all of them ([`Replication::settle`]) wait.
//! - What is reported as durable does not wait for an OST that no chain has written, unless that has
//!   changes of objects without copies.
//!
//! A change is usually on stable storage only after the record that its object was changed. Where it
//! is not, because it came between the two or the kernel has written back the data by itself, a loss
//! of power may leave the change alone: then its object is found by itself
//! ([`unsealed`](super::takeover::unsealed)).

use super::rows::Settling;
use super::touched::Stable;
use super::{Here, Replication, within};
use futures_lite::future::or;
use futures_util::FutureExt;
use futures_util::future::{join, join_all};
use futures_util::lock::OwnedMutexGuard;
use glint_net::host;
use glint_ost::OstSet;
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion, PeerRequest};
use glint_proto::clock;
use glint_proto::{Errno, FsResult};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause between two looks at what is stable.
const SETTLING: Duration = Duration::from_millis(500);

/// Pause before it is looked whether a row that others have is known here, too.
const AGAIN: Duration = Duration::from_millis(20);

/// How long others may take to hear of what is stable, if they did not when it was.
const TELLING: Duration = Duration::from_millis(500);

/// Last time that it was looked what is stable.
#[derive(Default)]
pub(super) struct LastSettled(parking_lot::Mutex<Option<Instant>>);

fn of_row(row: &Chain) -> ChainVersion {
    ChainVersion { target: row.id.target(), version: row.version }
}

impl Replication {
    /// Brings everything here to stable storage.
    pub(crate) async fn commit<D: Disk>(&self, here: Here<'_, D>) -> FsResult<()> {
        self.commit_logs().await?;
        let accepted = here.osts.accepted();
        let all = (0..here.osts.count()).map(async |index| {
            // An OST of which all chains go on without it has their changes made durable when it is
            // healed. (This comes first: a flush of a disk that stands still is not even begun.)
            let is_out = async {
                let has_others = || !here.osts.is_alone(index);
                self.rows.until_out_of_all(here.first + index, has_others).await;
                Ok(())
            };
            or(is_out, here.osts.commit_one(index)).await
        });
        join_all(all).await.into_iter().collect::<FsResult<()>>()?;
        here.osts.note_committed(accepted);
        Ok(())
    }

    /// First which objects were changed, so that a loss of power that leaves a change in one copy only
    /// leaves that it may have; and what absent members lack by the rows that are known here.
    async fn commit_logs(&self) -> FsResult<()> {
        // Waits for the adoption of a row, which notes it.
        drop(self.adopting.lock());
        self.recent.sync().await?;
        self.pending.sync().await
    }

    /// Brings to stable storage what the members here of these chains have, whatever other disks here
    /// do. Returns how it went at each: EREMCHG where the disk stands still, of which the chain hears.
    pub(super) async fn commit_members<D: Disk>(
        &self,
        here: Here<'_, D>,
        rows: impl IntoIterator<Item = &Chain>,
    ) -> FsResult<BTreeMap<u16, FsResult<()>>> {
        let members = rows.into_iter().flat_map(Chain::written);
        let members: BTreeSet<u16> = members.filter(|ost| here.index(*ost).is_some()).collect();
        self.commit_logs().await?;
        let accepted = here.osts.accepted();
        let all = members.into_iter().map(async |ost| {
            let index = here.index(ost).ok_or(Errno::ENXIO)?;
            let is_still = async {
                match here.osts.watch(index) {
                    Some(watch) => watch.until_still().await,
                    None => std::future::pending().await,
                }
                Err(Errno::EREMCHG)
            };
            Ok((ost, or(is_still, here.osts.commit_one(index)).await))
        });
        let all: FsResult<_> = join_all(all).await.into_iter().collect();
        here.osts.note_if_synced(accepted);
        all
    }

    /// Begins to do it, and to seal objects that were left alone for `idle`.
    pub(crate) async fn settle_osts<D: Disk>(&self, osts: &OstSet<D>, idle: Duration) {
        // What has its checksums is not found after a loss of power: it is noted for certain.
        let noted = clock::now();
        match self.recent.sync().await {
            Ok(()) => osts.settle(idle, noted),
            Err(errno) => {
                tracing::error!(%errno, "could not settle the log of changed objects; it is tried again");
            }
        }
    }

    /// Brings the log of changed objects to stable storage.
    pub(crate) async fn sync_log(&self) -> FsResult<()> {
        self.recent.sync().await
    }

    /// The last thing before the end of a process: everything is on stable storage after it.
    pub(crate) async fn settle_last<D: Disk>(&self, osts: &OstSet<D>) -> FsResult<()> {
        self.sync_log().await?;
        osts.settle_last()
    }

    pub(super) async fn settle_if_due<D: Disk>(&self, here: Here<'_, D>) {
        let last = *self.settled.0.lock();
        if last.is_some_and(|last| clock::since(last) < SETTLING) {
            return;
        }
        *self.settled.0.lock() = Some(clock::now());
        let free = self.rows.unstable().into_iter().filter_map(|(target, turn)| {
            let turn = turn.try_lock_owned()?;
            Some(self.settle_in_turn(here, target, turn))
        });
        for errno in join_all(free).await.into_iter().filter_map(Result::err) {
            tracing::debug!(%errno, "copies are not on stable storage yet");
        }
        // Nobody waits for those that did not listen before.
        if self.is_leased() {
            let told = self.tell_stable(here, |_| true);
            _ = within(TELLING, told.map(Ok)).await;
        }
    }

    /// Brings everything that was answered here so far to stable storage, in all copies, whoever
    /// holds them meanwhile. Where nobody does, or they may have lost some of it, it is not called
    /// stable after this ([`Replication::committed`]).
    pub(crate) async fn settle<D: Disk>(&self, here: Here<'_, D>) -> FsResult<()> {
        loop {
            let settled = async {
                self.commit_doubtful(here).await?;
                self.settle_once(here).await
            };
            match settled.await {
                Ok(()) => return self.commit(here).await,
                Err(Errno::EREMCHG) => host::sleep(AGAIN).await,
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Brings to stable storage, at all members, what another head has ordered: it is in doubt here, but
    /// all of them have what was acknowledged.
    async fn commit_doubtful<D: Disk>(&self, here: Here<'_, D>) -> FsResult<()> {
        let rows = self.doubts.chains().into_iter().filter_map(|target| self.rows.get(target));
        let rows: Vec<Arc<Chain>> = rows.filter(|row| here.is_head_of(row)).collect();
        self.commit_elsewhere(here, &rows).await.into_values().collect()
    }

    /// Has members of these chains that are elsewhere bring everything to stable storage, all of them at
    /// the same time, and each once. Returns how it went at each.
    async fn commit_elsewhere<D: Disk>(
        &self,
        here: Here<'_, D>,
        rows: impl IntoIterator<Item = &Arc<Chain>>,
    ) -> BTreeMap<u16, FsResult<()>> {
        let mut chains: BTreeMap<u16, Vec<ChainVersion>> = BTreeMap::new();
        for row in rows {
            for member in row.written().filter(|member| here.index(*member).is_none()) {
                chains.entry(member).or_default().push(of_row(row));
            }
        }
        let asked = chains.into_iter().map(async |(member, chains)| {
            let commit = PeerRequest::Commit(chains.clone());
            let done = self.ask_member(here, chains[0], member, commit).await;
            (member, done.map(drop))
        });
        join_all(asked).await.into_iter().collect()
    }

    /// Brings what heads here have ordered to stable storage in all copies, by the rows of now: EREMCHG
    /// if there are others.
    pub(super) async fn settle_once<D: Disk>(&self, here: Here<'_, D>) -> FsResult<()> {
        let all =
            self.rows.unstable().into_iter().map(|(target, _)| self.settle_chain(here, target));
        join_all(all).await.into_iter().collect()
    }

    /// The same of one chain: it waits for no other.
    pub(super) async fn settle_chain<D: Disk>(
        &self,
        here: Here<'_, D>,
        target: u16,
    ) -> FsResult<()> {
        let Some(turn) = self.rows.settling_turn(target) else { return Ok(()) };
        let turn = turn.lock_owned().await;
        self.settle_in_turn(here, target, turn).await
    }

    async fn settle_in_turn<D: Disk>(
        &self,
        here: Here<'_, D>,
        target: u16,
        _turn: OwnedMutexGuard<()>,
    ) -> FsResult<()> {
        let is_headed = |row: &Chain| here.is_head_of(row);
        let Some(due) = self.rows.begin_settling(target, is_headed) else { return Ok(()) };
        let outcome = self.settle_due(here, &due).await;
        self.tell_stable(here, |row| row.id == due.row.id).await;
        outcome
    }

    /// All members do it at the same time: clients wait for as long as one of them takes.
    async fn settle_due<D: Disk>(&self, here: Here<'_, D>, due: &Settling) -> FsResult<()> {
        let Settling { row, upto, are_lost } = due;
        let target = row.id.target();
        self.rows.until_executed(target, *upto).await;
        let elsewhere = self.commit_elsewhere(here, [row]);
        let own = self.commit_members(here, [&**row]);
        let (own, mut committed) = join(own, elsewhere).await;
        committed.extend(own?);
        let of_member = |member: u16| committed.get(&member).copied().unwrap_or(Ok(()));
        row.written().try_for_each(of_member)?;
        if !*are_lost {
            self.rows.settled(target, *upto, |row| here.is_head_of(row));
        }
        Ok(())
    }

    /// Tells all members of these chains, if their head is here, up to which change all are stable; once
    /// more in each version of a row, as a member that had a newer one did not listen.
    async fn tell_stable<D: Disk>(&self, here: Here<'_, D>, of: impl Fn(&Chain) -> bool) {
        // Numbers of changes are those of the head: one that was the head has others.
        let untold = self.rows.stable_untold(|row| here.is_head_of(row) && of(row));
        let told = untold.into_iter().map(async |(row, upto)| {
            let chain = of_row(&row);
            self.learn_stable(here, chain, upto);
            let elsewhere = row.written().filter(|member| here.index(*member).is_none());
            let stable = || PeerRequest::Stable(chain, upto);
            let told = elsewhere.map(|member| self.ask_member(here, chain, member, stable()));
            // Otherwise they hear of it later, by a newer row.
            if join_all(told).await.iter().all(Result::is_ok) {
                self.rows.told_stable(chain, upto);
            }
        });
        join_all(told).await;
    }

    /// Forgets changes of a chain up to this one, which are on stable storage in all copies; but not
    /// those of earlier runs, of which the head may know nothing. Where a member is synced it may have
    /// others from before it was lost, which the head asks it for.
    pub(super) fn learn_stable<D: Disk>(&self, here: Here<'_, D>, chain: ChainVersion, upto: u64) {
        let Some(row) = self.rows.get(chain.target) else { return };
        if !here.is_written_by(&row) {
            return;
        }
        let since = match here.serves(&row) {
            true => 0,
            false => self.rows.written_since(chain.target),
        };
        let stable = Stable { version: chain.version, upto, since };
        if self.rows.is_news(chain.target, stable) {
            self.recent.forget((chain.target, 0), |tag| stable.has(tag));
        }
    }

    /// Changes of a chain by rows before this one are over. An entry that has later ones, too, which
    /// were said to be stable before, goes now.
    pub(super) fn forget_before(&self, target: u16, version: u32) {
        let stable = self.rows.stable_said(target);
        self.recent.forget((target, 0), |tag| tag.0 < version || stable.has(tag));
    }

    /// The same of changes that a takeover by this version has found, and made equal. It has not asked a
    /// member that was away then what that had changed: that is what it is synced for.
    pub(super) fn forget_decided<D: Disk>(&self, here: Here<'_, D>, target: u16, version: u32) {
        let Some(row) = self.rows.get(target) else { return };
        let are_equal = match here.serves(&row) {
            true => !here.lags(&row),
            false => {
                row.missing().all(|ost| here.index(ost).is_none())
                    && version >= self.rows.written_since(target)
            }
        };
        if are_equal {
            self.forget_before(target, version);
        }
    }
}

#[cfg(test)]
mod tests;

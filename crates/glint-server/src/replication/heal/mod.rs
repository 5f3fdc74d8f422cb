//! Healing: a member that was away gets what it missed.
//!
//! Invariants:
//! - Only what the index of pending changes names, and what the member says to have changed just
//!   before it was lost, is copied. While a member is synced all new
//!   changes reach it, so what is left only shrinks.
//! - An entry is forgotten only when what it names is on stable storage at the member, and unless it
//!   was noted again since it was listed: the member may be lost meanwhile, and miss more.
//! - A member that serves has the index of what others lack, as the head has it.
//! - An object that nobody who serves can read keeps no member from serving ([`unreadable`]).
//! - What a member has of an object that those which serve have lost, and begun anew without it, is not
//!   written over ([`begun_alone`]); nor is one removed that the head has lost, and has not begun.
//! - A chain that cannot be healed on, because a disk stands still or a server does not answer, keeps
//!   no other chain whose head is on another disk: each is healed, and brought to stable storage, apart
//!   ([`at_work`](super::at_work)).
//! - A member that lacks more than the index holds is given all objects of the chain, which the MDS
//!   lists page by page, in their order: what it lacks among those that it was given is in the index
//!   as ever.
//!
//! The chains that have changed last come first: what they lack is what was in use just now.

mod absent;
mod begun_alone;
mod control;
mod index;
mod pacing;
mod repair;
mod unreadable;

pub(crate) use absent::LostCopies;
pub(crate) use control::{HealControl, HealRate};
pub(crate) use index::ENTRIES;
pub(super) use pacing::{HealPace, HealPiece};
pub(crate) use repair::CopyFault;
pub(crate) use unreadable::Marks;

use super::copy::CopyError;
use super::rows::Told;
use super::touched::{Key, Tag, UNNUMBERED};
use super::{Here, Replication};
use futures_util::stream::{self, StreamExt};
use glint_net::host;
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion, MemberEvent, MemberState, PeerRequest, Touched};
use glint_proto::{Errno, FsResult, ObjectId, clock};
use std::cmp::Reverse;
use std::collections::HashSet;
use std::pin::pin;
use std::time::Duration;

/// Parts of objects that are copied before they are brought to stable storage together.
const BATCH: usize = 64;
/// Objects that are copied at once: a small one is a few requests, one after the other.
const AT_ONCE: usize = 8;
/// Chains of one head that are healed at once.
const CHAINS_AT_ONCE: usize = 8;
/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// Objects that are copied together, parts of one behind each other.
struct Batch {
    objects: Vec<Touched>,
    /// The last change that was noted when they were listed.
    upto: Tag,
    /// If they are a page of all objects: the last one, if more follow.
    page: Option<Option<ObjectId>>,
}

impl Replication {
    /// Heals some more of each chain whose head is here. Returns whether there is more to do.
    pub(super) async fn heal<D: Disk>(&self, here: Here<'_, D>) -> bool {
        if self.healing.policy().heal_paused {
            return false;
        }
        let mut rows = self.rows.all();
        rows.sort_by_key(|(row, _)| Reverse(row.version));
        let active = rows.iter().filter(|(_, is_active)| *is_active);
        let chains = here.headed(active.map(|(row, _)| &**row));
        let work = async |target: u16| self.heal_chain(here, target).await;
        // A chain in which little is left waits mostly for others.
        self.at_work.heal.pass(&chains, CHAINS_AT_ONCE, work).await
    }

    /// Heals some more of a chain if its head is here. Returns whether there is more to do.
    async fn heal_chain<D: Disk>(&self, here: Here<'_, D>, target: u16) -> bool {
        let Ok(entered) = self.rows.enter_newest(target) else { return false };
        let (row, is_active) = (entered.row.clone(), entered.is_active);
        // Nothing is executed by it while this waits.
        drop(entered);
        let head = row.head().filter(|head| is_active && here.index(*head).is_some());
        let syncing = row.members.iter().find(|m| m.state == MemberState::Syncing);
        let (Some(head), Some(member)) = (head, syncing) else { return false };
        let chain = ChainVersion { target, version: row.version };
        let key = (target, member.ost);
        self.lost.late.begin(key);
        let healed = self.heal_some(here, (head, &row), member.ost);
        let healed = self.unless_newer(chain, healed).await;
        self.take_out_late(here, key, self.lost.late.end(key)).await;
        match healed {
            Ok(more) => more,
            // The next look finds the new row, or a way to the others.
            Err(Errno::EREMCHG) => false,
            Err(errno) => {
                let (chain, ost) = (row.id, member.ost);
                tracing::warn!(%chain, ost, %errno, "could not heal; it is tried again");
                host::sleep(PAUSE).await;
                false
            }
        }
    }

    /// Copies some objects. Returns whether there are more.
    async fn heal_some<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        member: u16,
    ) -> FsResult<bool> {
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        let key = (chain.target, member);
        if !self.rows.is_told(Told::Syncing, chain) {
            // Changes before it was lost that are on its disk may be known to nobody else.
            let said = match here.index(member) {
                Some(index) => self.is_named(here, index).map(|()| {
                    self.lacks_recent(chain.target, member);
                }),
                None => {
                    let note = |recent: Vec<Touched>| {
                        self.is_not_taken(chain.target, &recent);
                        self.pending.note(key, recent.into_iter(), UNNUMBERED);
                        Ok(())
                    };
                    self.ask_recent(here, row, member, note).await
                }
            };
            // One that is being searched is asked again.
            said.map_err(|errno| match errno {
                Errno::EBUSY => Errno::EREMCHG,
                errno => errno,
            })?;
            if let Err(errno) = self.pending.sync().await {
                self.head_fails(here, row, errno).await;
                return Err(errno);
            }
            self.rows.told(Told::Syncing, chain);
        }
        let begun = clock::now();
        let Batch { objects: batch, upto, page } = self.next_batch(key, row.version).await?;
        let copies = batch.chunk_by(|one, next| one.object == next.object).map(async |parts| {
            let (object, pace) = (parts[0].object, Some(&self.healing.pace));
            (object, self.copy(here, (head, row), member, (object, parts), pace).await)
        });
        let mut copies = pin!(stream::iter(copies).buffer_unordered(AT_ONCE));
        let (mut done, mut bytes, mut unreadable) = (HashSet::new(), 0, Vec::new());
        let mut unknown = None;
        while let Some((object, copied)) = copies.next().await {
            match copied {
                Ok(given) => {
                    done.insert(object);
                    bytes += given;
                }
                Err(CopyError::Changed) => return Err(Errno::EREMCHG),
                // Nor do they wait for what the MDS does not say.
                Err(CopyError::Unknown { errno, .. }) => unknown = Some(errno),
                // The others come first.
                Err(error @ CopyError::Own { errno, .. }) => {
                    if unreadable.is_empty() {
                        tracing::error!(%error, chain = %row.id, "could not heal an object");
                    }
                    unreadable.push((object, errno));
                }
                // It may be another one that has lost the object.
                Err(CopyError::Member { ost, errno }) => {
                    self.take_out(here, chain, ost, errno).await?;
                    return Err(Errno::EREMCHG);
                }
            }
        }
        if let Some(last) = page {
            self.commit_at(here, chain, member).await?;
            self.pending.advance(key, last, upto).await?;
            for touched in batch.iter().filter(|one| !done.contains(&one.object)) {
                self.pending.touch(key, *touched, UNNUMBERED).await?;
            }
            self.healing.note(member, done.len() as u64, bytes, begun);
            return Ok(true);
        }
        if !done.is_empty() {
            self.commit_at(here, chain, member).await?;
            self.pending.remove(key, &done, upto);
            self.healing.note(member, done.len() as u64, bytes, begun);
            return Ok(true);
        }
        if !unreadable.is_empty() {
            return self.give_up_objects(here, (head, row), member, unreadable, upto).await;
        }
        if let Some(errno) = unknown {
            return Err(errno);
        }
        // A member that serves has to know what is in doubt; this one was not told all of it. Asked
        // first: until nothing is, all copies are not synced for it again and again.
        if self.doubts.is_any_of(chain.target) {
            return Ok(false);
        }
        // Everything before it was synced is stable in all copies, or comes with a takeover.
        if self.pending.is_empty(key) {
            self.settle_chain(here, chain.target).await?;
        }
        // Changes that began while it was away were under way until then.
        if !self.pending.is_empty(key) {
            return Ok(true);
        }
        // The chain may have been taken over anew meanwhile.
        if self.doubts.is_any_of(chain.target) {
            return Ok(false);
        }
        self.give_index(here, chain, row, member).await?;
        self.commit_at(here, chain, member).await?;
        // What a change finds after this is looked at when the member serves.
        if !self.pending.is_empty(key) {
            return Ok(true);
        }
        let now = self.peers()?.tell(chain, member, MemberEvent::Synced).await?;
        self.adopt(here, &now);
        tracing::info!(chain = %row.id, ost = member, "a member has everything again");
        Ok(false)
    }

    /// What a member is given next.
    async fn next_batch(&self, key: Key, version: u32) -> FsResult<Batch> {
        let Some((after, upto)) = self.pending.rest(key) else {
            let list = || self.pending.list_until_now(key);
            let (objects, upto) = self.healing.take(key, version, BATCH, list);
            return Ok(Batch { objects, upto, page: None });
        };
        let page = self.peers()?.objects(key.0, after).await?;
        let objects = page.objects.into_iter().map(Touched::whole).collect();
        Ok(Batch { objects, upto, page: Some(page.last) })
    }

    async fn commit_at<D: Disk>(
        &self,
        here: Here<'_, D>,
        chain: ChainVersion,
        member: u16,
    ) -> FsResult<()> {
        match here.index(member) {
            Some(_) => {
                let entered = self.rows.enter(chain)?;
                let committed = self.commit_members(here, [&*entered.row]).await?;
                committed.into_values().collect()
            }
            None => {
                let commit = PeerRequest::Commit(vec![chain]);
                self.ask_member(here, chain, member, commit).await.map(drop)
            }
        }
    }
}

#[cfg(test)]
mod tests;

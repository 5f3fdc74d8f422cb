//! Healing: a member that was away gets what it missed.
//!
//! Invariants:
//! - Only what the index of pending changes names, and what the member says to have changed just
//!   before it was lost, is copied. While a member is synced all new
//!   changes reach it, so what is left only shrinks.
//! - An entry is forgotten only when what it names is on stable storage at the member.
//! - A member that serves has the index of what others lack, as the head has it.

use super::copy::CopyError;
use super::rows::Told;
use super::{Here, Replication};
use glint_net::host;
use glint_ost::disk::Disk;
use glint_proto::chain::{
    Chain, ChainVersion, MemberEvent, MemberState, PeerReply, PeerRequest, Touched,
};
use glint_proto::{Errno, FsResult};
use std::collections::HashSet;
use std::time::Duration;

/// Objects that are copied before they are brought to stable storage together.
const BATCH: usize = 64;
/// Entries of the index in one message.
const ENTRIES: usize = 1024;
/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

impl Replication {
    /// Heals some more of each chain whose head is here. Returns whether there is more to do.
    pub(super) async fn heal<D: Disk>(&self, here: Here<'_, D>) -> bool {
        let mut is_more = false;
        for (row, is_active) in self.rows.all() {
            let Some(head) = row.head().filter(|head| here.index(*head).is_some()) else {
                continue;
            };
            let syncing = row.members.iter().find(|m| m.state == MemberState::Syncing);
            let Some(member) = syncing.filter(|_| is_active) else { continue };
            match self.heal_some(here, (head, &row), member.ost).await {
                Ok(more) => is_more |= more,
                // The next look finds the new row, or a way to the others.
                Err(Errno::EREMCHG) => {}
                Err(errno) => {
                    let (chain, ost) = (row.id, member.ost);
                    tracing::warn!(%chain, ost, %errno, "could not heal; it is tried again");
                    host::sleep(PAUSE).await;
                }
            }
        }
        is_more
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
        if here.index(member).is_none() && !self.rows.is_told(Told::Syncing, chain) {
            // Changes before it was lost that are on its disk may be known to nobody else.
            let recent = PeerRequest::Recent(row.clone());
            let PeerReply::Recent(recent) = self.ask_member(here, chain, member, recent).await?
            else {
                return Err(Errno::EPROTO);
            };
            for touched in recent {
                self.pending.touch(key, touched, (0, 0))?;
            }
            self.rows.told(Told::Syncing, chain);
        }
        let mut pending = self.pending.list(key);
        pending.sort_by_key(|touched| touched.object);
        let mut done = HashSet::new();
        let mut unreadable = Ok(());
        for touched in &pending {
            if done.len() == BATCH {
                break;
            }
            match self.copy(here, (head, row), member, touched).await {
                Ok(_) => _ = done.insert(touched.object),
                Err(CopyError::Changed) => return Err(Errno::EREMCHG),
                // The others come first.
                Err(error @ CopyError::Own { errno, .. }) => {
                    if unreadable.is_ok() {
                        tracing::error!(%error, chain = %row.id, "a member cannot be healed");
                    }
                    unreadable = Err(errno);
                }
                Err(CopyError::Member { errno, .. }) => {
                    self.is_lost(here, chain, member, errno).await?;
                    return Err(Errno::EREMCHG);
                }
            }
        }
        if !done.is_empty() {
            self.commit_at(here, chain, member).await?;
            self.pending.forget(key, |object, _| done.contains(object));
            return Ok(true);
        }
        unreadable?;
        // Everything before it was synced is stable in all copies, or comes with a takeover.
        self.settle_once(here).await?;
        self.give_index(here, chain, row, member).await?;
        self.commit_at(here, chain, member).await?;
        let now = self.peers()?.tell(chain, member, MemberEvent::Synced).await?;
        self.adopt(here, &now);
        tracing::info!(chain = %row.id, ost = member, "a member has everything again");
        Ok(false)
    }

    async fn commit_at<D: Disk>(
        &self,
        here: Here<'_, D>,
        chain: ChainVersion,
        member: u16,
    ) -> FsResult<()> {
        match here.index(member) {
            Some(_) => self.commit(here).await,
            None => {
                let commit = PeerRequest::Commit(vec![chain]);
                self.ask_member(here, chain, member, commit).await.map(drop)
            }
        }
    }

    /// Gives a member the index of what those lack that are still away.
    async fn give_index<D: Disk>(
        &self,
        here: Here<'_, D>,
        chain: ChainVersion,
        row: &Chain,
        member: u16,
    ) -> FsResult<()> {
        if here.index(member).is_some() {
            return Ok(());
        }
        for absent in row.missing() {
            let all: Vec<Touched> = self.pending.list((chain.target, absent));
            for some in all.chunks(ENTRIES) {
                let touched = some.to_vec();
                let request = PeerRequest::Pending { chain, absent, touched };
                self.ask_member(here, chain, member, request).await?;
            }
        }
        Ok(())
    }
}

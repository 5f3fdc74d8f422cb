//! The index of pending changes, as it is given from server to server.
//!
//! Invariant: what is said to be in the index of the members that serve, all of them have on stable
//! storage, and so has each that serves later: who is synced meanwhile is told, too, and who is
//! synced later gets the index of the head before it serves.

use crate::replication::touched::{cut_alone, written_alone};
use crate::replication::{Here, PATIENCE_WITH_DISKS, Replication, within};
use glint_ost::disk::Disk;
use glint_proto::FsResult;
use glint_proto::chain::{Chain, ChainVersion, PeerRequest, Touched};

/// Entries of the index in one message.
pub(crate) const ENTRIES: usize = 1024;

impl Replication {
    /// Gives a member the index of what those lack that are still away, and of what they may have.
    pub(super) async fn give_index<D: Disk>(
        &self,
        here: Here<'_, D>,
        chain: ChainVersion,
        row: &Chain,
        member: u16,
    ) -> FsResult<()> {
        if here.index(member).is_some() {
            return Ok(());
        }
        let lacks = row.missing().map(|absent| (chain.target, absent));
        let alone = [written_alone(chain.target), cut_alone(chain.target)];
        let alone = alone.into_iter().filter(|_| row.missing().next().is_some());
        for key in lacks.chain(alone) {
            let (_, absent) = key;
            let all: Vec<Touched> = self.pending.list(key);
            for some in all.chunks(ENTRIES) {
                let touched = some.to_vec();
                let request = PeerRequest::Pending { chain, absent, touched };
                self.ask_member(here, chain, member, request).await?;
            }
        }
        Ok(())
    }

    /// Has all members that are written know what another one lacks: EREMCHG if the chain is
    /// another one now, and an error if one of them does not answer. No more than [`ENTRIES`].
    pub(crate) async fn tell_pending<D: Disk>(
        &self,
        here: Here<'_, D>,
        row: &Chain,
        absent: u16,
        touched: &[Touched],
    ) -> FsResult<()> {
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        let request = || PeerRequest::Pending { chain, absent, touched: touched.to_vec() };
        let written = || row.written().filter(|member| *member != absent);
        if written().any(|member| here.index(member).is_some()) {
            self.answer(here, request()).await?;
        }
        for member in written().filter(|member| here.index(*member).is_none()) {
            let asked = self.peers()?;
            within(PATIENCE_WITH_DISKS, asked.ask(member, request())).await?;
        }
        Ok(())
    }
}

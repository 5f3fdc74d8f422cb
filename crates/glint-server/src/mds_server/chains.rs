//! The table of chains, as the server of the MDS keeps it up to date: who is lost, who is back.
//!
//! Invariant: a row is called settled only when each server with a member knows it, or has not
//! heard of the MDS for so long that it serves no chain. So what was acknowledged without a member
//! is read at that member by nobody.

use super::MdsServer;
use crate::replication::Asked;
use crate::replication::peers::AsksMds;
use glint_kv::Kv;
use glint_mds::Placed;
use glint_net::host;
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion, MemberEvent};
use glint_proto::limits::MEMBER_LOST_MS;
use glint_proto::{FsResult, clock};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

const MEMBER_LOST: Duration = Duration::from_millis(MEMBER_LOST_MS);
/// A member that others could not reach is used again no sooner, if there are others.
const SUSPECTED: Duration = Duration::from_secs(5);
/// How soon it is looked again whether a row is settled.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

impl<K: Kv, D: Disk> MdsServer<K, D> {
    /// Makes the chains that are missing over the OSTs that there are.
    pub(crate) async fn place_chains(&self) {
        let elsewhere = self.osses.placed();
        // Alone, copies on different disks are what there can be.
        let alone = elsewhere.is_empty();
        let own = (0..self.osts.count()).map(|ost| Placed {
            ost,
            domain: match self.settings.failure_domain.as_str() {
                "" if alone => format!("ost{ost}"),
                _ => self.failure_domain().to_owned(),
            },
        });
        self.mds.place_chains(own.chain(elsewhere).collect()).await;
        self.adopt_rows();
    }

    /// Label of all that the OSTs of this server fail together with, if there are others.
    pub(crate) fn failure_domain(&self) -> &str {
        match self.settings.failure_domain.as_str() {
            "" => "mds",
            said => said,
        }
    }

    /// The server of these OSTs has started again.
    pub(crate) async fn has_restarted(&self, osts: Range<u16>) -> FsResult<()> {
        for ost in osts {
            self.mds.on_ost(ost, MemberEvent::Lost).await?;
            self.mds.on_ost(ost, MemberEvent::ReturnedWithout).await?;
            self.suspects.lock().remove(&ost);
        }
        self.adopt_rows();
        Ok(())
    }

    /// Takes the rows that are new.
    fn adopt_rows(&self) {
        let (rows, last) = self.mds.chains().since(self.rows_known.load(Ordering::Acquire));
        rows.iter().for_each(|row| self.replication.adopt(self.here(), row));
        self.rows_known.fetch_max(last, Ordering::AcqRel);
    }

    /// Looks who is lost, and who is back.
    pub(crate) async fn watch_members(&self) {
        let here = (0..self.osts.count(), Duration::ZERO, true);
        for (osts, silence, is_known) in self.osses.silences().into_iter().chain([here]) {
            for ost in osts {
                let away = self.mds.chains().away(ost);
                let is_lost = silence > MEMBER_LOST;
                let is_back = !is_lost && is_known && away.somewhere;
                let event = match () {
                    () if is_lost && !away.everywhere => MemberEvent::Lost,
                    // Nobody stands in for it, or it has had time to mend.
                    () if is_back && (away.awaited || !self.is_suspect(ost)) => {
                        MemberEvent::Returned
                    }
                    () => continue,
                };
                match self.mds.on_ost(ost, event).await {
                    Ok(rows) => {
                        let chains = rows.len();
                        tracing::info!(ost, ?event, chains, "members of chains have changed");
                    }
                    Err(errno) => tracing::error!(
                        ost, %errno,
                        "could not store what became of an OST; it is tried again"
                    ),
                }
            }
        }
        self.adopt_rows();
    }

    /// Whether somebody has said just now that he cannot reach an OST, or that it does not do what
    /// it should, although it is heard: each time it is believed again, writes wait for it.
    fn is_suspect(&self, ost: u16) -> bool {
        let mut suspects = self.suspects.lock();
        suspects.retain(|_, since| clock::since(*since) < SUSPECTED);
        suspects.contains_key(&ost)
    }

    /// Something happened to a member of a chain. Returns the row as it is then, and whether nobody
    /// acts by an older one.
    pub(crate) async fn on_member(
        &self,
        chain: ChainVersion,
        ost: u16,
        event: MemberEvent,
    ) -> FsResult<(Chain, bool)> {
        let row = self.mds.on_member(chain, ost, event).await?;
        if event == MemberEvent::Lost {
            self.suspects.lock().entry(ost).or_insert_with(clock::now);
        }
        self.adopt_rows();
        let members: Vec<u16> = row.members.iter().map(|member| member.ost).collect();
        let change = self.mds.chains().changed(chain.target);
        let is_settled = self.osses.know_row(&members, change);
        Ok((row, is_settled))
    }
}

impl<K: Kv, D: Disk> AsksMds for MdsServer<K, D> {
    fn tell_of_member(
        &self,
        chain: ChainVersion,
        ost: u16,
        event: MemberEvent,
    ) -> Asked<'_, Chain> {
        Box::pin(async move {
            loop {
                let (row, is_settled) = self.on_member(chain, ost, event).await?;
                if is_settled {
                    return Ok(row);
                }
                host::sleep(LOOK_AGAIN).await;
            }
        })
    }
}

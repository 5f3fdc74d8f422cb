//! The OSTs of one server, in the order of their numbers, and how much of what they answered for
//! is on stable storage. Whoever has it calls [`OstSet::settle`] every commit interval.
//!
//! Invariant: `committed` covers a change only when it is on stable storage. After a flush that
//! failed, on any OST, it never moves again.

use crate::disk::{Disk, LocalDisk};
use crate::{Bandwidth, ObjectStore, Ost, ScrubReport, ScrubStep, SpaceGrants};
use futures_util::future::try_join_all;
use glint_proto::limits::BULK_BYTES_MAX;
use glint_proto::{
    Answer, Bulk, ClientId, Errno, FsResult, ObjectId, OstReply, OstRequest, SpaceInfo, clock,
};
use glint_telemetry::Counter;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long an object must be left alone to get its checksums.
pub const SEAL_IDLE: Duration = Duration::from_secs(5);

/// OSTs, and how much of what they answered for is on stable storage.
pub struct OstSet<D: Disk = LocalDisk> {
    osts: Vec<Ost<D>>,
    grants: Arc<SpaceGrants>,
    /// Of each OST, if there are limits.
    bandwidth: Vec<Bandwidth>,
    commit_sync: bool,
    /// Changes of data that were answered for, and those that are on stable storage.
    accepted: AtomicU64,
    committed: AtomicU64,
}

impl<D: Disk> OstSet<D> {
    /// Serves these stores, which keep space for clients in `grants`, with a limit on the bytes
    /// that each moves in a second, if there is one. With `commit_sync` a change is on stable
    /// storage before it is answered. The error is why nothing can be called durable.
    pub fn start(
        stores: Vec<ObjectStore<D>>,
        grants: Arc<SpaceGrants>,
        bandwidth: Option<u64>,
        commit_sync: bool,
    ) -> Result<OstSet<D>, String> {
        for store in &stores {
            // Clients forget what survived the last run, so it must survive this one.
            if store.sync_all().is_err() {
                return Err(store.failure().unwrap_or("flushing data").to_owned());
            }
        }
        let limits = bandwidth.map(|limit| stores.iter().map(move |_| Bandwidth::new(limit)));
        Ok(OstSet {
            bandwidth: limits.into_iter().flatten().collect(),
            osts: stores.into_iter().map(Ost::new).collect(),
            grants,
            commit_sync,
            accepted: AtomicU64::new(0),
            committed: AtomicU64::new(0),
        })
    }

    /// Number of OSTs.
    pub fn count(&self) -> u16 {
        self.osts.len() as u16
    }

    /// Directory of each OST.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.osts.iter().map(|ost| ost.store().path())
    }

    /// Executes a request for one of them.
    pub async fn handle(
        &self,
        client: ClientId,
        index: u16,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        let Some(ost) = self.osts.get(usize::from(index)) else {
            return Answer::unchanged(Err(Errno::ENXIO));
        };
        let mut reply = ost.handle(client, request, bulk).await;
        if !request.is_modifying() || reply.is_err() {
            return Answer::unchanged(reply);
        }
        if self.commit_sync
            && let Err(errno) = ost.commit(&request).await
        {
            reply = Err(errno);
        }
        // Counted after it is done, so that whoever flushes after reading the count has it.
        Answer::changed(self.changed(), reply)
    }

    fn changed(&self) -> u64 {
        self.accepted.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The number that the next change gets, or one before it.
    pub fn next_change(&self) -> u64 {
        self.accepted.load(Ordering::Acquire) + 1
    }

    /// Takes the turn of a transfer. Returns how long it has to wait, where bandwidth is limited.
    pub fn turn(&self, index: u16, request: &OstRequest, bulk: &Bulk<'_>) -> Duration {
        let bytes = match (request, bulk) {
            (_, Bulk::Out(data)) => {
                glint_telemetry::count(size_class(data.len()), 1);
                data.len() as u64
            }
            (OstRequest::Read { len, .. }, _) => u64::from(*len),
            _ => return Duration::ZERO,
        };
        let limit = self.bandwidth.get(usize::from(index));
        limit.map_or(Duration::ZERO, |limit| limit.take(bytes, clock::now()))
    }

    /// Removes objects, each from one OST. Returns the number of the change, and the objects
    /// that are still there: one that fails stops no other.
    pub fn destroy(&self, objects: &[(u16, ObjectId)]) -> (u64, Vec<ObjectId>) {
        let mut failed = Vec::new();
        for (index, object) in objects {
            let removed = match self.osts.get(usize::from(*index)) {
                Some(ost) => ost.store().remove(*object),
                None => Err(std::io::ErrorKind::NotFound.into()),
            };
            if let Err(error) = removed {
                if failed.is_empty() {
                    // One line, however many there are: a failing disk fails for all.
                    tracing::error!(
                        %error, ost = index, %object,
                        "could not remove an object; it is tried again"
                    );
                }
                failed.push(*object);
            }
        }
        (self.changed(), failed)
    }

    /// Brings data to stable storage and seals objects that were left alone for `idle`, usually
    /// [`SEAL_IDLE`]. May take long.
    pub fn settle(&self, idle: Duration) {
        let accepted = self.accepted.load(Ordering::Acquire);
        let mut all = true;
        for ost in &self.osts {
            if let Err(error) = ost.store().settle(idle) {
                all = false;
                let path = ost.store().path().display();
                if ost.store().failure().is_none() {
                    tracing::error!(
                        %error, %path,
                        "could not seal objects; they have no checksums yet"
                    );
                }
            }
        }
        if all {
            self.committed.fetch_max(accepted, Ordering::AcqRel);
        }
    }

    /// Begins to compare all objects with their checksums, unless that is under way.
    pub fn begin_scrub(&self) {
        self.osts.iter().for_each(|ost| ost.store().begin_scrub());
    }

    /// Ends that before its end.
    pub fn stop_scrub(&self) {
        self.osts.iter().for_each(|ost| ost.store().stop_scrub());
    }

    /// Compares some more of each OST: none waits for another. May take long, where a disk does.
    pub fn scrub(&self) -> Vec<ScrubStep> {
        self.osts.iter().map(|ost| ost.store().scrub()).collect()
    }

    /// Whether that is under way.
    pub fn is_scrubbing(&self) -> bool {
        self.osts.iter().any(|ost| ost.store().scrub_report().is_running)
    }

    /// How far it is on each OST, and what was found.
    pub fn scrub_reports(&self) -> impl Iterator<Item = ScrubReport> {
        self.osts.iter().map(|ost| ost.store().scrub_report())
    }

    /// Why nothing here can be called durable any more, if that is so.
    pub fn failure(&self) -> Option<String> {
        self.osts.iter().find_map(|ost| ost.store().failure().map(str::to_owned))
    }

    /// Settles all OSTs before the end; see `ObjectStore::settle_last`.
    pub fn settle_last(&self) -> FsResult<()> {
        let settle = |ost: &Ost<D>| ost.store().settle_last().map_err(|e| Errno::from_io(&e));
        self.osts.iter().try_for_each(settle)
    }

    /// Everything answered for so far to stable storage.
    pub async fn commit(&self) -> FsResult<()> {
        let accepted = self.accepted.load(Ordering::Acquire);
        if accepted > self.committed() {
            // At the same time: each disk has its own work, and of those on one the first does all.
            try_join_all(self.osts.iter().map(Ost::commit_all)).await?;
            self.committed.fetch_max(accepted, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Changes up to this number are on stable storage.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    /// Keeps space only for clients that `knows` knows.
    pub fn retain_grants(&self, knows: impl Fn(ClientId) -> bool) {
        self.grants.retain(knows);
    }

    /// Space of the first one, if it can be told.
    pub fn first_space(&self) -> Option<SpaceInfo> {
        self.osts.first()?.store().space().ok()
    }

    /// Space of each.
    pub fn spaces(&self) -> Vec<SpaceInfo> {
        self.osts.iter().map(|ost| ost.store().space().unwrap_or_default()).collect()
    }
}

/// Counts requests by how much data they bring.
fn size_class(bytes: usize) -> Counter {
    match bytes {
        0..=0x1_0000 => Counter::WritesTo64K,
        0x1_0001..=0x10_0000 => Counter::WritesTo1M,
        BULK_BYTES_MAX.. => Counter::WritesFull,
        _ => Counter::WritesBelowFull,
    }
}

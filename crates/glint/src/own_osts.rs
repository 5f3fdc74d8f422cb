//! The OSTs of this process: of a data directory, in the order of their numbers.
//!
//! Invariant: `committed` covers a change only when it is on stable storage. After a flush that
//! failed, on any OST, it never moves again.

use crate::data_dir::DataDir;
use crate::descriptors;
use crate::servers::Settings;
use glint_ost::{Bandwidth, Grants, ObjectStore, Ost};
use glint_proto::limits::BULK_BYTES_MAX;
use glint_proto::{
    Answer, Bulk, ClientId, Errno, FsResult, ObjectId, OstReply, OstRequest, SpaceInfo,
};
use glint_telemetry::Counter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long an object must be left alone to get its checksums.
const SEAL_IDLE: Duration = Duration::from_secs(5);

/// OSTs, and how much of what they answered for is on stable storage.
pub struct OwnOsts {
    osts: Vec<Ost>,
    grants: Arc<Grants>,
    /// Of each OST, if there are limits.
    bandwidth: Vec<Bandwidth>,
    commit_sync: bool,
    /// Changes of data that were answered for, and those that are on stable storage.
    accepted: AtomicU64,
    committed: AtomicU64,
}

impl OwnOsts {
    /// Opens the object stores of a data directory.
    pub fn open(
        data: &DataDir,
        settings: &Settings,
    ) -> Result<OwnOsts, Box<dyn std::error::Error>> {
        let grants = Arc::<Grants>::default();
        let open_files = descriptors::budget(data.osts())?.objects as usize;
        let mut osts = Vec::new();
        for index in 0..data.osts() {
            let path = data.ost(index);
            let open_files = open_files / usize::from(data.osts());
            let store = ObjectStore::open(&path, open_files, grants.clone())?;
            // Clients forget what survived the last run, so it must survive this one.
            if store.sync_all().is_err() {
                return Err(data.give_up(store.failure().unwrap_or("flushing data")).into());
            }
            osts.push(Ost::new(store));
        }
        let limits = settings
            .ost_bandwidth
            .map(|limit| (0..data.osts()).map(move |_| Bandwidth::new(limit)));
        Ok(OwnOsts {
            osts,
            grants,
            bandwidth: limits.into_iter().flatten().collect(),
            commit_sync: settings.commit_sync,
            accepted: AtomicU64::new(0),
            committed: AtomicU64::new(0),
        })
    }

    /// Number of OSTs.
    pub fn count(&self) -> u16 {
        self.osts.len() as u16
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

    /// Waits for the turn of a transfer, where bandwidth is limited.
    pub async fn pace(&self, index: u16, request: &OstRequest, bulk: &Bulk<'_>) {
        let bytes = match (request, bulk) {
            (_, Bulk::Out(data)) => {
                glint_telemetry::count(size_class(data.len()), 1);
                data.len() as u64
            }
            (OstRequest::Read { len, .. }, _) => u64::from(*len),
            _ => return,
        };
        if let Some(limit) = self.bandwidth.get(usize::from(index)) {
            let pause = limit.take(bytes, Instant::now());
            if !pause.is_zero() {
                glint_net::host::sleep(pause).await;
            }
        }
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
                    tracing::error!(%error, ost = index, %object, "removing an object; it is tried again");
                }
                failed.push(*object);
            }
        }
        (self.changed(), failed)
    }

    /// Brings data to stable storage and seals quiet objects. May take long.
    pub fn settle(&self) {
        let accepted = self.accepted.load(Ordering::Acquire);
        let mut all = true;
        for ost in &self.osts {
            if let Err(error) = ost.store().settle(SEAL_IDLE) {
                all = false;
                let path = ost.store().path().display();
                if ost.store().failure().is_none() {
                    tracing::error!(%error, %path, "sealing objects");
                }
            }
        }
        if all {
            self.committed.fetch_max(accepted, Ordering::AcqRel);
        }
    }

    /// Why nothing here can be called durable any more, if that is so.
    pub fn failure(&self) -> Option<String> {
        self.osts.iter().find_map(|ost| ost.store().failure().map(str::to_owned))
    }

    /// The same at the end.
    pub fn settle_last(&self) -> FsResult<()> {
        let settle = |ost: &Ost| ost.store().settle_last().map_err(|e| Errno::from_io(&e));
        self.osts.iter().try_for_each(settle)
    }

    /// Everything answered for so far to stable storage.
    pub async fn commit(&self) -> FsResult<()> {
        let accepted = self.accepted.load(Ordering::Acquire);
        if accepted > self.committed() {
            for ost in &self.osts {
                ost.commit_all().await?;
            }
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

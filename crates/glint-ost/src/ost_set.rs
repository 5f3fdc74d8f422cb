//! The OSTs of one server, in the order of their numbers, and how much of what they answered for
//! is on stable storage. Whoever has it calls [`OstSet::settle`] every commit interval.
//!
//! Invariants:
//! - `committed` covers a change only when it is on stable storage, or has copies on other OSTs and
//!   whoever called [`OstSet::note_committed`] has seen to it that it is there. After a flush that
//!   failed, on any OST, it never moves again.
//! - No OST waits for the disk of another one.

use crate::changes::ChangesOfOst;
use crate::disk::{Disk, LocalDisk};
use crate::object_watches::ObjectWatches;
use crate::search::SearchProgress;
use crate::{
    Apart, Bandwidth, DiskWatch, Kept, ObjectStore, Ost, PassedBytes, ScrubReport, ScrubStep,
    SpaceGrants, Way,
};
use futures_util::future::{Either, join_all, select};
use glint_proto::limits::BULK_BYTES_MAX;
use glint_proto::{
    Answer, Bulk, ClientId, Errno, FsResult, ObjectId, OstReply, OstRequest, SpaceInfo, clock,
};
use glint_telemetry::Counter;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long an object must be left alone to get its checksums.
pub const SEAL_IDLE: Duration = Duration::from_secs(5);

/// OSTs, and how much of what they answered for is on stable storage.
pub struct OstSet<D: Disk = LocalDisk> {
    pub(crate) osts: Vec<Ost<D>>,
    grants: Arc<SpaceGrants>,
    /// Of each OST, if there are limits.
    pub(crate) bandwidth: Vec<Bandwidth>,
    commit_sync: bool,
    /// Changes of data that were answered for, and those that are on stable storage.
    accepted: AtomicU64,
    committed: Arc<AtomicU64>,
    /// Of each OST.
    changes: Vec<Arc<ChangesOfOst>>,
    pub(crate) object_watches: Arc<ObjectWatches>,
    /// Of each OST.
    pub(crate) searches: Vec<SearchProgress>,
}

/// Settling of all OSTs at once.
struct Settling {
    accepted: u64,
    left: AtomicUsize,
    has_failed: AtomicBool,
    committed: Arc<AtomicU64>,
}

impl Settling {
    /// One OST is settled, or not.
    fn on_settled(&self, is_settled: bool) {
        if !is_settled {
            self.has_failed.store(true, Ordering::Release);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 && !self.has_failed.load(Ordering::Acquire)
        {
            self.committed.fetch_max(self.accepted, Ordering::AcqRel);
        }
    }
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
        let object_watches = Arc::<ObjectWatches>::default();
        let ost = |store| Ost::new(store).noting_in(object_watches.clone());
        let limits = bandwidth.map(|limit| stores.iter().map(move |_| Bandwidth::new(limit)));
        Ok(OstSet {
            bandwidth: limits.into_iter().flatten().collect(),
            changes: stores.iter().map(|_| Arc::default()).collect(),
            searches: stores.iter().map(|_| SearchProgress::default()).collect(),
            osts: stores.into_iter().map(ost).collect(),
            grants,
            commit_sync,
            accepted: AtomicU64::new(0),
            committed: Arc::default(),
            object_watches,
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

    /// Executes a request for an object without copies, on one of them.
    pub async fn handle(
        &self,
        client: ClientId,
        index: u16,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        if let Some(watched) = self.answer_watch(None, &request) {
            return Answer::unchanged(watched);
        }
        self.handle_by(client, index, request, bulk, Way::InPlace).await
    }

    /// Executes a request for an object with copies on other OSTs, apart from the calling thread:
    /// whether or not anybody waits for it.
    pub async fn handle_apart(
        &self,
        client: ClientId,
        index: u16,
        request: OstRequest,
        bulk: Bulk<'_>,
        apart: Apart,
    ) -> Answer<OstReply> {
        self.handle_by(client, index, request, bulk, Way::Apart(apart)).await
    }

    async fn handle_by(
        &self,
        client: ClientId,
        index: u16,
        request: OstRequest,
        bulk: Bulk<'_>,
        way: Way,
    ) -> Answer<OstReply> {
        let Some(ost) = self.osts.get(usize::from(index)) else {
            return Answer::unchanged(Err(Errno::ENXIO));
        };
        let is_alone = matches!(way, Way::InPlace);
        let mut reply = ost.handle(client, request, bulk, way).await;
        if is_alone && reply.is_err() && ost.store().failure().is_some() {
            // Who asked has to be answered by the next run of the server: nobody else can.
            self.count_change(index, true);
        }
        if !request.is_modifying() || reply.is_err() {
            return Answer::unchanged(reply);
        }
        if self.commit_sync
            && let Err(errno) = ost.commit(&request, is_alone).await
        {
            reply = Err(errno);
        }
        // Counted after it is done, so that whoever flushes after reading the count has it.
        Answer::changed(self.changed(index, is_alone), reply)
    }

    /// Counts a change. Returns its number.
    fn changed(&self, index: u16, is_alone: bool) -> u64 {
        // Before the other: who finds that number has this OST flushed, too.
        self.count_change(index, is_alone);
        self.accepted.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn count_change(&self, index: u16, is_alone: bool) {
        if let Some(of_it) = self.changes.get(usize::from(index)) {
            let last = of_it.last.fetch_add(1, Ordering::AcqRel) + 1;
            if is_alone {
                of_it.last_alone.fetch_max(last, Ordering::AcqRel);
            }
        }
    }

    /// Of each OST, the size above which objects pass through memory, and the bytes that have.
    pub fn passed(&self) -> impl Iterator<Item = (Option<u64>, PassedBytes)> {
        self.osts.iter().map(|ost| ost.store().passed())
    }

    /// Disk of an OST, to be watched.
    pub fn watch(&self, index: u16) -> Option<&DiskWatch> {
        self.osts.get(usize::from(index)).map(Ost::watch)
    }

    /// Looks how the disks are; see [`DiskWatch::look`].
    pub fn look(&self) {
        self.osts.iter().for_each(|ost| ost.watch().look());
    }

    /// Whether the disk of an OST stands still, or has failed in this run.
    pub fn is_out_of_order(&self, index: u16) -> bool {
        let ost = self.osts.get(usize::from(index));
        ost.is_some_and(|ost| ost.watch().stands_still() || ost.store().failure().is_some())
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
    /// that are still there: one that fails stops no other, nor does a disk that stands still. An
    /// object that is still there may be removed later, when its disk goes on.
    pub async fn destroy(&self, objects: &[(u16, ObjectId)]) -> (u64, Vec<ObjectId>) {
        let of = |index: u16| {
            let its = objects.iter().filter(move |(ost, _)| *ost == index);
            self.destroy_on(index, its.map(|(_, object)| *object).collect())
        };
        let is_unknown = |(index, _): &&(u16, ObjectId)| *index >= self.count();
        let unknown = objects.iter().filter(is_unknown).map(|(_, object)| *object);
        let failed = join_all((0..self.count()).map(of)).await.into_iter().flatten();
        let failed = failed.chain(unknown).collect();
        (self.accepted.fetch_add(1, Ordering::AcqRel) + 1, failed)
    }

    async fn destroy_on(&self, index: u16, objects: Vec<ObjectId>) -> Vec<ObjectId> {
        let (Some(ost), false) = (self.osts.get(usize::from(index)), objects.is_empty()) else {
            return objects;
        };
        let removed = match ost.watch().stands_still() {
            true => None,
            false => {
                let (removed, still) = (ost.remove_all(objects.clone()), ost.watch().until_still());
                match select(pin!(removed), pin!(still)).await {
                    Either::Left((removed, _)) => removed,
                    Either::Right(_) => None,
                }
            }
        };
        let Some(failed) = removed else {
            tracing::error!(ost = index, "could not remove objects from a disk that stands still");
            return objects;
        };
        // On stable storage before it is told; where nothing can be, by the next run.
        self.count_change(index, true);
        // One line, however many there are: a failing disk fails for all.
        if let Some((object, errno)) = failed.first() {
            tracing::error!(
                %errno, ost = index, %object,
                "could not remove an object; it is tried again"
            );
        }
        failed.into_iter().map(|(object, _)| object).collect()
    }

    /// Removes an object of one OST, of which other OSTs have copies. `kept` is kept until that is
    /// done.
    pub async fn remove(&self, index: u16, object: ObjectId, kept: Kept) -> FsResult<()> {
        let ost = self.osts.get(usize::from(index)).ok_or(Errno::ENXIO)?;
        ost.remove(object, Some(kept)).await?;
        self.changed(index, false);
        Ok(())
    }

    /// Says that nobody is to read an object of one OST any more, of which others have copies, or that it
    /// was copied there whole; see [`ObjectStore::mark`]. `kept` is kept until that is done.
    pub async fn mark(
        &self,
        index: u16,
        object: ObjectId,
        is_unreadable: bool,
        kept: Kept,
    ) -> FsResult<()> {
        let ost = self.osts.get(usize::from(index)).ok_or(Errno::ENXIO)?;
        ost.mark(object, is_unreadable, kept).await
    }

    /// Whether an object of an OST is known not to be what was written.
    pub async fn is_unreadable(&self, index: u16, object: ObjectId) -> bool {
        let Some(ost) = self.osts.get(usize::from(index)) else { return false };
        ost.is_unreadable(object).await
    }

    /// Begins to bring data to stable storage, and to seal objects that were left alone for `idle`,
    /// usually [`SEAL_IDLE`], and since `noted`: which objects were changed before that is itself on
    /// stable storage. On each OST for which that is not under way. Waits for nothing.
    pub fn settle(&self, idle: Duration, noted: Instant) {
        let all = Arc::new(Settling {
            accepted: self.accepted.load(Ordering::Acquire),
            left: AtomicUsize::new(self.osts.len()),
            has_failed: AtomicBool::new(false),
            committed: self.committed.clone(),
        });
        for (ost, changes) in self.osts.iter().zip(&self.changes) {
            let upto = changes.last.load(Ordering::Acquire);
            let (its, of_all) = (changes.clone(), all.clone());
            let began = ost.settle(idle, noted, move |is_settled| {
                if is_settled {
                    its.synced.fetch_max(upto, Ordering::AcqRel);
                }
                of_all.on_settled(is_settled);
            });
            if !began {
                all.on_settled(changes.are_synced());
            }
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

    /// Whether an OST has failed in this run.
    pub fn has_failed_one(&self) -> bool {
        (0..self.count()).any(|index| self.failure(index).is_some())
    }

    /// Why nothing of an OST can be called durable any more, if that is so.
    pub fn failure(&self, index: u16) -> Option<&str> {
        self.osts.get(usize::from(index))?.store().failure()
    }

    /// Everything answered for so far to stable storage.
    pub async fn commit(&self) -> FsResult<()> {
        let accepted = self.accepted();
        let all = join_all((0..self.count()).map(|index| self.commit_one(index))).await;
        all.into_iter().collect::<FsResult<()>>()?;
        self.note_committed(accepted);
        Ok(())
    }

    /// Everything that one OST has answered for so far to stable storage: one flush for all who ask.
    pub async fn commit_one(&self, index: u16) -> FsResult<()> {
        let at = usize::from(index);
        let (Some(ost), Some(changes)) = (self.osts.get(at), self.changes.get(at)) else {
            return Err(Errno::ENXIO);
        };
        changes.commit(ost.commit_all()).await
    }

    /// Whether an OST has answered for changes of objects without copies that are not on stable
    /// storage, or has failed and was asked for an object without copies since.
    pub fn is_alone(&self, index: u16) -> bool {
        let is_alone = |changes: &Arc<ChangesOfOst>| {
            changes.last_alone.load(Ordering::Acquire) > changes.synced.load(Ordering::Acquire)
        };
        self.changes.get(usize::from(index)).is_some_and(is_alone)
    }

    /// Changes that were answered for so far.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Acquire)
    }

    /// Changes up to this number are on stable storage: here, or on each OST that counts for them.
    pub fn note_committed(&self, upto: u64) {
        self.committed.fetch_max(upto, Ordering::AcqRel);
    }

    /// Notes that changes up to this number, which were answered for so far, are on stable storage, if
    /// all of all OSTs are.
    pub fn note_if_synced(&self, upto: u64) {
        if self.changes.iter().all(|changes| changes.are_synced()) {
            self.note_committed(upto);
        }
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
        self.osts.first()?.space()
    }

    /// Space of each.
    pub fn spaces(&self) -> Vec<SpaceInfo> {
        self.osts.iter().map(|ost| ost.space().unwrap_or_default()).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::memory::{DiskOperation, Fault, MemoryDisk};
    use futures_lite::future::block_on;
    use glint_proto::Ino;

    #[test]
    fn an_ost_counts_as_alone_until_its_changes_without_copies_are_durable() {
        let store =
            |_| ObjectStore::on(MemoryDisk::default(), Path::new("ost"), 64, Arc::default());
        let stores = (0..2).map(store).collect();
        let osts = OstSet::start(stores, Arc::default(), None, false).unwrap();
        let object = ObjectId { ino: Ino(1), stripe: 0 };
        let write = OstRequest::Write { object, offset: 0, mtime: None, kept: false };
        let (client, data) = (ClientId(1), || Bulk::Out(b"data"));
        block_on(osts.handle_apart(client, 0, write, data(), Apart::default())).reply.unwrap();
        block_on(osts.handle(client, 1, write, data())).reply.unwrap();
        assert_eq!([osts.is_alone(0), osts.is_alone(1)], [false, true]);
        assert_eq!((osts.accepted(), osts.committed()), (2, 0));
        block_on(osts.commit_one(1)).unwrap();
        assert_eq!((osts.is_alone(1), osts.committed()), (false, 0));
        block_on(osts.commit()).unwrap();
        assert_eq!(osts.committed(), 2);
        let removed = block_on(osts.destroy(&[(0, object), (7, object)]));
        assert_eq!(removed, (3, vec![object]), "there is no OST 7");
        assert!(osts.is_alone(0), "a removal is durable before it is told");
        osts.settle(Duration::ZERO, clock::now() + Duration::from_secs(1));
        assert_eq!((osts.is_alone(0), osts.committed()), (false, 3));
    }

    /// Two orders for the same object may come in one request.
    #[test]
    fn an_object_that_is_named_twice_is_removed_once() {
        let (says, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let store =
                ObjectStore::on(MemoryDisk::default(), Path::new("ost"), 64, Arc::default());
            let osts = OstSet::start(vec![store], Arc::default(), None, false).unwrap();
            let object = ObjectId { ino: Ino(1), stripe: 0 };
            let write = OstRequest::Write { object, offset: 0, mtime: None, kept: false };
            let written = osts.handle(ClientId(1), 0, write, Bulk::Out(b"data"));
            block_on(written).reply.unwrap();
            says.send(block_on(osts.destroy(&[(0, object), (0, object)]))).unwrap();
        });
        let removed = done.recv_timeout(Duration::from_secs(30)).expect("it waits for itself");
        assert_eq!(removed, (2, Vec::new()));
    }

    #[test]
    fn an_ost_that_has_failed_counts_as_alone_once_it_is_asked_for_an_object_without_copies() {
        let disk = MemoryDisk::default();
        let store = ObjectStore::on(disk.clone(), Path::new("ost"), 64, Arc::default());
        let osts = OstSet::start(vec![store], Arc::default(), None, false).unwrap();
        let object = ObjectId { ino: Ino(1), stripe: 0 };
        let write = OstRequest::Write { object, offset: 0, mtime: None, kept: false };
        let (client, data) = (ClientId(1), || Bulk::Out(b"data"));
        block_on(osts.handle_apart(client, 0, write, data(), Apart::default())).reply.unwrap();
        disk.fail(Fault::new(DiskOperation::Sync, "", Errno::EIO.0, 1));
        block_on(osts.commit_one(0)).unwrap_err();
        assert!(osts.failure(0).is_some() && !osts.is_alone(0));
        block_on(osts.handle_apart(client, 0, write, data(), Apart::default())).reply.unwrap_err();
        assert!(!osts.is_alone(0), "others have copies");
        block_on(osts.handle(client, 0, write, data())).reply.unwrap_err();
        assert!(osts.is_alone(0), "the error is the client's only if the server goes on");
    }
}

//! The machine of the servers: the real MDS on an engine that can lose what was not synced, and
//! the real OSTs, each on a disk in memory that fails as fate says.
//!
//! Simplified: nothing runs beside the tasks of the machine, so a disk that stands still is a
//! machine that does. The engine of the MDS has a disk of its own, which does not fail.

use crate::world::executor::{Executor, Machine};
use glint_kv::memory::MemoryKv;
use glint_kv::{Batch, Keyspace, Kv, KvError, Pair, Precondition, TransactionId};
use glint_mds::{Config, Mds, Targets};
use glint_net::capability::Key;
use glint_net::host::Pipe;
use glint_net::{Service, SimulatedServer};
use glint_ost::disk::memory::{DiskOperation, Fault, MemoryDisk};
use glint_ost::{Grants, ObjectStore, OstSet, SEAL_IDLE};
use glint_proto::lock::{Callback, Cancel};
use glint_proto::message::{Hello, Survived, Welcome};
use glint_proto::oss::{OssReply, OssRequest};
use glint_proto::{
    Answer, Arrival, Bulk, ClientId, Committed, Cred, Errno, FsResult, Ino, Layout, MdsReply,
    MdsRequest, ObjectId, OstReply, OstRequest, Owner, Session,
};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The machine of the servers.
pub(crate) const SERVER: Machine = Machine(1);
/// In simulated time.
pub(crate) const LEASE: Duration = Duration::from_secs(12);
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
const HOUSEKEEPING: Duration = Duration::from_millis(100);
/// Objects that a store keeps open: few, so that it closes some.
const OPEN_FILES: usize = 4;

thread_local! {
    static EXECUTOR: RefCell<Option<Rc<Executor>>> = const { RefCell::new(None) };
}

/// The engine of the MDS, whose flush takes a while.
#[derive(Default)]
pub(crate) struct Engine {
    kv: MemoryKv,
}

impl Kv for Engine {
    type Value = Vec<u8>;

    async fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        self.kv.get(keyspace, key).await
    }

    async fn multi_get(
        &self,
        keyspace: Keyspace,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, KvError> {
        self.kv.multi_get(keyspace, keys).await
    }

    async fn scan(
        &self,
        keyspace: Keyspace,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<Pair>, KvError> {
        self.kv.scan(keyspace, from, to, limit).await
    }

    async fn commit(
        &self,
        batch: Batch,
        preconditions: &[Precondition],
    ) -> Result<TransactionId, KvError> {
        self.kv.commit(batch, preconditions).await
    }

    async fn sync(&self) -> Result<(), KvError> {
        let executor = EXECUTOR.with_borrow(Clone::clone);
        if let Some(executor) = executor {
            let time = Duration::from_micros(executor.below(5_000));
            executor.sleep(time).await;
        }
        self.kv.sync().await
    }

    fn durable(&self) -> TransactionId {
        self.kv.durable()
    }

    fn accepted(&self) -> TransactionId {
        self.kv.accepted()
    }
}

/// What outlives processes.
pub(crate) struct Storage {
    pub(crate) engine: Arc<Engine>,
    osts: Vec<MemoryDisk>,
}

/// The servers in one process.
pub(crate) struct Servers {
    mds: Mds<Arc<Engine>>,
    key: Key,
    osts: OstSet<MemoryDisk>,
    /// Files of which an object could not be removed.
    left: Mutex<BTreeSet<Ino>>,
    boot_verifier: u64,
    locks: bool,
}

impl Storage {
    /// Of so many OSTs, all of them empty.
    pub(crate) fn new(osts: u16) -> Storage {
        let osts = (0..osts).map(|_| MemoryDisk::default()).collect();
        Storage { engine: Arc::default(), osts }
    }

    /// What was not synced is gone; of objects anything of it.
    pub(crate) fn lose_power(&self, executor: &Executor) {
        self.engine.kv.lose_power();
        self.lose_objects(executor);
    }

    /// The same of objects only.
    pub(crate) fn lose_objects(&self, executor: &Executor) {
        for disk in &self.osts {
            disk.lose_power(&mut |limit| executor.below(limit));
        }
    }

    /// A disk fails to bring something to stable storage, once.
    pub(crate) fn fail_a_flush(&self, executor: &Executor) {
        let disk = &self.osts[executor.below(self.osts.len() as u64) as usize];
        let errno = Errno::EIO.0;
        disk.fail(Fault::new(DiskOperation::Sync, "", errno, 1));
    }

    /// Reading or writing objects of a file fails some times, or for ever.
    pub(crate) fn fail_file(&self, ino: Ino, operation: DiskOperation, times: u32) {
        for disk in &self.osts {
            let path = ObjectId { ino, stripe: 0 }.to_string();
            disk.fail(Fault::new(operation, &path, Errno::EIO.0, times));
        }
    }

    /// For a moment there are no descriptors.
    pub(crate) fn fail_opens(&self, times: u32) {
        for disk in &self.osts {
            disk.fail(Fault::new(DiskOperation::Open, "", Errno::EMFILE.0, times));
        }
    }

    /// Disks have room for so much.
    pub(crate) fn limit(&self, capacity: Option<u64>) {
        self.osts.iter().for_each(|disk| disk.limit(capacity));
    }

    /// Disks work again, and have room for everything.
    pub(crate) fn heal(&self) {
        self.osts.iter().for_each(MemoryDisk::heal);
        self.limit(None);
    }

    /// Files that have objects.
    pub(crate) fn files_with_objects(&self) -> Vec<Ino> {
        let stores = self.stores(&Arc::default());
        let mut found = Vec::new();
        for store in stores {
            let walked =
                store.walk(|stored| found.push(stored.object.ino), |path| panic!("{path:?}"));
            walked.unwrap_or_else(|error| panic!("looking for objects: {error}"));
        }
        found
    }

    fn stores(&self, grants: &Arc<Grants>) -> Vec<ObjectStore<MemoryDisk>> {
        let store = |disk: &MemoryDisk| {
            ObjectStore::on(disk.clone(), Path::new("ost"), OPEN_FILES, grants.clone())
        };
        self.osts.iter().map(store).collect()
    }

    /// Starts the servers.
    pub(crate) fn start(
        &self,
        executor: &Rc<Executor>,
        after_power_loss: bool,
        locks: bool,
    ) -> Arc<Servers> {
        EXECUTOR.replace(None);
        self.osts.iter().for_each(MemoryDisk::end_process);
        let boot_verifier = executor.below(u64::MAX);
        let mut after_power_loss = after_power_loss;
        let osts = loop {
            let grants = Arc::<Grants>::default();
            match OstSet::start(self.stores(&grants), grants, None, false) {
                Ok(osts) => break osts,
                // It ends, and is started again.
                Err(reason) => tracing::debug!(reason, "the OSTs do not start"),
            }
            self.lose_objects(executor);
            after_power_loss = true;
        };
        let config = Config {
            osts: self.osts.len() as u16,
            lease: LEASE,
            layout: Layout::default(),
            commit_sync: false,
            after_power_loss,
            mounted: false,
            locks,
            hash_seed: Some(executor.below(u64::MAX)),
            boot_verifier,
        };
        // A server begins with what it found on stable storage.
        let found = futures_lite::future::block_on(self.engine.sync());
        found.unwrap_or_else(|error| panic!("starting the engine: {error}"));
        let mds = futures_lite::future::block_on(Mds::start(self.engine.clone(), config));
        EXECUTOR.replace(Some(executor.clone()));
        let mds = mds.unwrap_or_else(|error| panic!("starting the MDS: {error}"));
        let servers = Arc::new(Servers {
            key: Key::new(mds.secret()),
            mds,
            osts,
            left: Mutex::default(),
            boot_verifier,
            locks,
        });
        let (world, service) = (executor.clone(), servers.clone());
        executor.spawn_on(SERVER, async move {
            let server = Rc::new(SimulatedServer::start(service.clone()));
            let (accepting, spawner) = (server.clone(), world.clone());
            world.network.listen(Some(Rc::new(move |pipe: Pipe| {
                let server = accepting.clone();
                spawner.spawn_on(SERVER, async move {
                    // It says why to the client.
                    let _ = server.serve(pipe).await;
                });
            })));
            for tick in 1u64.. {
                world.sleep(HOUSEKEEPING).await;
                service.mds.time_passes();
                service.osts.retain_grants(|client| service.mds.knows(client));
                // What fails is tried again with the next tick.
                if service.mds.expire(&*service).await.is_ok() {
                    while let Ok(true) = service.mds.reap(&*service).await {}
                }
                if tick % (COMMIT_INTERVAL.as_millis() / HOUSEKEEPING.as_millis()) as u64 == 0 {
                    // Whoever looks at them sees what fails.
                    service.osts.settle([SEAL_IDLE, Duration::ZERO][world.below(2) as usize]);
                    let _ = service.mds.sync().await;
                    server.care().await;
                }
            }
        });
        servers
    }
}

/// The processes of the servers end.
pub(crate) fn stop(executor: &Executor) {
    executor.network.listen(None);
    executor.network.cut(None);
    executor.kill(SERVER);
    executor.go_on(SERVER);
}

impl Targets for Servers {
    async fn destroy(&self, files: &[(Ino, Layout)]) -> FsResult<u64> {
        let own = self.osts.count();
        let objects_of = |(ino, layout): &(Ino, Layout)| {
            let (ino, layout) = (*ino, *layout);
            let stripes = 0..layout.stripe_count.max(1);
            stripes.map(move |stripe| (layout.ost_of(stripe, own), ObjectId { ino, stripe }))
        };
        let objects: Vec<_> = files.iter().flat_map(objects_of).collect();
        let (change, failed) = self.osts.destroy(&objects);
        self.left.lock().extend(failed.into_iter().map(|object| object.ino));
        Ok(change)
    }

    fn durable(&self) -> u64 {
        self.osts.committed()
    }

    fn left(&self) -> Vec<Ino> {
        std::mem::take(&mut *self.left.lock()).into_iter().collect()
    }

    fn fence(&self, _: u64) {}

    fn is_fenced(&self, _: u64) -> bool {
        true
    }
}

impl Servers {
    pub(crate) fn mds(&self) -> &Mds<Arc<Engine>> {
        &self.mds
    }

    /// The last thing of a process that ends by itself: all objects have checksums after it.
    pub(crate) fn settle_last(&self) {
        // Whoever looks at them sees what fails.
        let _ = self.osts.settle_last();
    }

    /// Why the process should end, if it should.
    pub(crate) fn failure(&self) -> Option<String> {
        self.osts.failure()
    }
}

impl Service for Servers {
    async fn mds(
        &self,
        arrival: &Arrival<'_>,
        cred: &Cred,
        request: &MdsRequest<'_>,
    ) -> Answer<MdsReply> {
        let answer = self.mds.handle(arrival, cred, request).await;
        tracing::debug!(id = ?arrival.id, replay = arrival.replay.is_some(), ?request, ?answer, "metadata");
        answer
    }

    async fn ost(
        &self,
        session: &Session,
        ost: u16,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        let client = session.client();
        let _running = match session.enter() {
            Ok(running) => running,
            Err(errno) => return Answer::unchanged(Err(errno)),
        };
        if self.locks && request.is_write() {
            self.mds.wrote(client);
        }
        let answer = self.osts.handle(client, ost, request, bulk).await;
        tracing::debug!(%client, ost, ?request, ?answer, "data");
        answer
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            fs_uuid: 1,
            boot_verifier: self.boot_verifier,
            osts: self.osts.count(),
            own_osts: self.osts.count(),
            osses: Vec::new(),
            session: 0,
            commit_sync: false,
            lease_ms: LEASE.as_millis() as u64,
            locks: self.locks,
            cache_ms: 1_000,
            root: Ino::ROOT,
            survived: Survived::ALL,
            capabilities: false,
            evicted: false,
        }
    }

    async fn connect(
        &self,
        client: ClientId,
        hello: &Hello,
        owner: Owner,
    ) -> FsResult<(bool, Arc<Session>)> {
        self.mds.connect(client, owner, &hello.host, &hello.mount_point).await
    }

    async fn resolve(&self, path: &str) -> FsResult<Ino> {
        self.mds.resolve(path).await
    }

    async fn is_within(&self, top: Ino, ino: Ino) -> FsResult<bool> {
        self.mds.is_within(top, ino).await
    }

    fn key(&self) -> Option<&Key> {
        Some(&self.key)
    }

    fn survived(&self, boot_verifier: u64) -> Option<Survived> {
        self.mds.survived(boot_verifier)
    }

    fn knows(&self, client: ClientId) -> bool {
        self.mds.knows(client)
    }

    fn in_process(&self) -> Arc<Session> {
        Session::new(ClientId::IN_PROCESS, self.boot_verifier, None)
    }

    fn heard(&self, session: &Session) {
        self.mds.heard(session);
    }

    fn recovered(&self, session: &Session) {
        self.mds.recovered(session.client());
    }

    async fn goodbye(&self, session: &Session) {
        // It does not fail here.
        let _ = self.mds.goodbye(session).await;
    }

    async fn commit(&self) -> FsResult<()> {
        self.osts.commit().await?;
        self.mds.sync().await
    }

    async fn oss(&self, _: Option<&str>, _: OssRequest) -> FsResult<OssReply> {
        Err(Errno::EOPNOTSUPP)
    }

    fn disconnect(&self, session: &Session) {
        self.mds.disconnect(session);
    }

    fn committed(&self) -> Committed {
        Committed { mds: self.mds.committed(), ost: self.osts.committed() }
    }

    fn cancel(&self, session: &Session, cancels: &[Cancel]) {
        self.mds.cancel(session.client(), cancels);
    }

    fn listen(&self, session: &Session) -> u64 {
        self.mds.listen(session.client())
    }

    async fn callbacks(&self, session: &Session, listening: u64) -> Option<Vec<Callback>> {
        self.mds.callbacks(session.client(), listening).await
    }

    fn status(&self) -> String {
        "{}".into()
    }
}

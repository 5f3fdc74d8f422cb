//! The machine of the servers: the real MDS on a disk that can lose what was not synced, and
//! a stand-in for OSTs on the same.

use crate::executor::{Executor, Machine};
use glint_kv::memory::MemoryKv;
use glint_kv::{Batch, Keyspace, Kv, KvError, Pair, Precondition, TransactionId};
use glint_mds::{Config, Mds, Targets};
use glint_net::capability::Key;
use glint_net::host::Pipe;
use glint_net::{Service, SimulatedServer};
use glint_proto::limits;
use glint_proto::lock::{Callback, Cancel};
use glint_proto::message::{Hello, Survived, Welcome};
use glint_proto::oss::{OssReply, OssRequest};
use glint_proto::{
    Answer, Arrival, Bulk, ClientId, Committed, Cred, Errno, Extents, FsResult, Ino, Layout,
    MdsReply, MdsRequest, ObjectAttr, ObjectId, OstReply, OstRequest, Owner, Session, SpaceInfo,
};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The machine of the servers.
pub(crate) const SERVER: Machine = Machine(1);
/// In simulated time.
pub(crate) const LEASE: Duration = Duration::from_secs(12);
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
const HOUSEKEEPING: Duration = Duration::from_millis(100);

thread_local! {
    static EXECUTOR: RefCell<Option<Rc<Executor>>> = const { RefCell::new(None) };
}

/// The engine of the MDS, whose flush takes a while.
#[derive(Default)]
pub(crate) struct Disk {
    kv: MemoryKv,
}

impl Kv for Disk {
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

type ObjectMap = BTreeMap<ObjectId, Vec<u8>>;

/// What objects there are: as answered, and on stable storage.
#[derive(Default)]
struct Objects {
    now: ObjectMap,
    durable: ObjectMap,
    accepted: u64,
    committed: u64,
}

/// What outlives processes.
#[derive(Default)]
pub(crate) struct Storage {
    pub(crate) disk: Arc<Disk>,
    objects: Arc<Mutex<Objects>>,
}

/// The servers in one process.
pub(crate) struct Servers {
    mds: Mds<Arc<Disk>>,
    key: Key,
    objects: Arc<Mutex<Objects>>,
    boot_verifier: u64,
    locks: bool,
}

impl Storage {
    /// Everything that was not synced is gone.
    pub(crate) fn lose_power(&self) {
        self.disk.kv.lose_power();
        let mut objects = self.objects.lock();
        objects.now = objects.durable.clone();
    }

    /// Files that have objects.
    pub(crate) fn files_with_objects(&self) -> Vec<Ino> {
        self.objects.lock().now.keys().map(|object| object.ino).collect()
    }

    /// Starts the servers.
    pub(crate) fn start(
        &self,
        executor: &Rc<Executor>,
        after_power_loss: bool,
        locks: bool,
    ) -> Arc<Servers> {
        EXECUTOR.replace(None);
        let boot_verifier = executor.below(u64::MAX);
        let config = Config {
            osts: 1,
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
        let found = futures_lite::future::block_on(self.disk.sync());
        found.unwrap_or_else(|error| panic!("starting the engine: {error}"));
        let mds = futures_lite::future::block_on(Mds::start(self.disk.clone(), config));
        EXECUTOR.replace(Some(executor.clone()));
        {
            let mut objects = self.objects.lock();
            objects.durable = objects.now.clone();
            (objects.accepted, objects.committed) = (0, 0);
        }
        let mds = mds.unwrap_or_else(|error| panic!("starting the MDS: {error}"));
        let servers = Arc::new(Servers {
            key: Key::new(mds.secret()),
            mds,
            objects: self.objects.clone(),
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
                while let Ok(true) = service.mds.reap(&*service).await {}
                if tick % (COMMIT_INTERVAL.as_millis() / HOUSEKEEPING.as_millis()) as u64 == 0 {
                    // It does not fail here.
                    let _ = service.commit().await;
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
}

impl Targets for Servers {
    async fn destroy(&self, files: &[(Ino, Layout)]) -> FsResult<u64> {
        let mut objects = self.objects.lock();
        objects.now.retain(|object, _| !files.iter().any(|(ino, _)| *ino == object.ino));
        objects.accepted += 1;
        Ok(objects.accepted)
    }

    fn durable(&self) -> u64 {
        self.objects.lock().committed
    }

    fn left(&self) -> Vec<Ino> {
        Vec::new()
    }

    async fn fence(&self, _: u64) {}
}

impl Servers {
    pub(crate) fn mds(&self) -> &Mds<Arc<Disk>> {
        &self.mds
    }

    fn object(&self, request: OstRequest, bulk: Bulk<'_>) -> FsResult<OstReply> {
        let mut all = self.objects.lock();
        let reply = match (request, bulk) {
            (OstRequest::Read { object, offset, len }, Bulk::In(room)) => {
                let data = all.now.get(&object).map_or(&[][..], Vec::as_slice);
                let from = data.get(offset as usize..).unwrap_or_default();
                let n = from.len().min(len as usize);
                room[..n].copy_from_slice(&from[..n]);
                OstReply::Data(n as u32)
            }
            (OstRequest::Write { object, offset, .. }, Bulk::Out(data)) => {
                let content = all.now.entry(object).or_default();
                let end = offset as usize + data.len();
                content.resize(content.len().max(end), 0);
                content[offset as usize..end].copy_from_slice(data);
                OstReply::Written(ObjectAttr::default())
            }
            (OstRequest::WriteExtents { object, count, .. }, Bulk::Out(bulk)) => {
                let content = all.now.entry(object).or_default();
                for (offset, data) in Extents::parse(bulk, count)? {
                    let end = offset as usize + data.len();
                    content.resize(content.len().max(end), 0);
                    content[offset as usize..end].copy_from_slice(data);
                }
                OstReply::Written(ObjectAttr::default())
            }
            (OstRequest::Truncate { object, size }, _) => {
                if size > 0 || all.now.contains_key(&object) {
                    all.now.entry(object).or_default().resize(size as usize, 0);
                }
                OstReply::Done
            }
            (OstRequest::Stat { object }, _) => {
                let attr = |data: &Vec<u8>| ObjectAttr {
                    size: data.len() as u64,
                    blocks: data.len().div_ceil(512) as u64,
                    ..ObjectAttr::default()
                };
                OstReply::Stat(all.now.get(&object).map(attr))
            }
            (OstRequest::Sync { object }, _) => {
                if let Some(data) = all.now.get(&object).cloned() {
                    all.durable.insert(object, data);
                }
                OstReply::Done
            }
            (OstRequest::SetTime { .. }, _) => OstReply::Done,
            (OstRequest::Reserve { bytes }, _) => {
                OstReply::Reserved { bytes, object_bytes_max: limits::FILE_BYTES_MAX }
            }
            (OstRequest::Space, _) => OstReply::Space(SpaceInfo::default()),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        Ok(reply)
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
        _session: &Session,
        _ost: u16,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        let reply = self.object(request, bulk);
        if !request.is_modifying() || reply.is_err() {
            return Answer::unchanged(reply);
        }
        let mut objects = self.objects.lock();
        objects.accepted += 1;
        tracing::debug!(transaction = objects.accepted, ?request, "data");
        Answer::changed(objects.accepted, reply)
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            fs_uuid: 1,
            boot_verifier: self.boot_verifier,
            osts: 1,
            own_osts: 1,
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
        self.mds.sync().await?;
        let mut objects = self.objects.lock();
        objects.durable = objects.now.clone();
        objects.committed = objects.accepted;
        Ok(())
    }

    async fn oss(&self, _: Option<&str>, _: OssRequest) -> FsResult<OssReply> {
        Err(Errno::EOPNOTSUPP)
    }

    fn disconnect(&self, session: &Session) {
        self.mds.disconnect(session);
    }

    fn committed(&self) -> Committed {
        Committed { mds: self.mds.committed(), ost: self.objects.lock().committed }
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

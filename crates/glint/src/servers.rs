//! The servers of one data directory in one process: an MDS and its OSTs.

use crate::data_dir::DataDir;
use crate::json;
use crate::rates::{Rates, Totals};
use glint_kv::local::{LocalKv, Options};
use glint_mds::{Config, Destroyer, Mds};
use glint_net::Service;
use glint_ost::{Bandwidth, Grants, ObjectStore, Ost};
use glint_proto::limits::{
    BULK_BYTES_MAX, CACHE_MS_ALONE, CACHE_MS_SHARED, COMMIT_INTERVAL_MS, LEASE_MS, journal_bytes,
    reserve_metadata, segment_bytes,
};
use glint_proto::lock::{Callback, Cancel};
use glint_proto::message::{Hello, Survived, Welcome};
use glint_proto::{
    Answer, Arrival, Bulk, ClientId, Committed, Cred, Errno, FsResult, Ino, Layout, MdsReply,
    MdsRequest, ObjectId, OstReply, OstRequest, SpaceInfo,
};
use glint_telemetry::Counter;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const CACHE_BYTES: u64 = 32 << 20;
const MEMTABLE_BYTES: u64 = 16 << 20;
/// How often the housekeeping thread looks around.
const HOUSEKEEPING: Duration = Duration::from_millis(100);
/// How long an object must be left alone to get its checksums.
const SEAL_IDLE: Duration = Duration::from_secs(5);

/// How the metadata engine of a data directory is opened, here and by fsck.
pub fn engine_options(data: &DataDir, commit_interval: Duration) -> Options {
    let total =
        rustix::fs::statvfs(data.path()).map_or(u64::MAX, |vfs| vfs.f_blocks * vfs.f_frsize);
    Options {
        journal_bytes: journal_bytes(total),
        segment_bytes: segment_bytes(total),
        cache_bytes: CACHE_BYTES,
        memtable_bytes: MEMTABLE_BYTES,
        commit_interval,
    }
}

/// How servers are set up.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Clients on a network may come.
    pub shared: bool,
    /// A client shares this process.
    pub mounted: bool,
    /// Longest time between an answer and stable storage.
    pub commit_interval: Duration,
    /// Answer only after stable storage.
    pub commit_sync: bool,
    /// How long a client may be silent.
    pub lease: Duration,
    /// The disk lost what was not synced.
    pub after_power_loss: bool,
    /// Bytes that each OST moves in a second, if that is limited.
    pub ost_bandwidth: Option<u64>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            shared: false,
            mounted: false,
            commit_interval: Duration::from_millis(COMMIT_INTERVAL_MS),
            commit_sync: false,
            lease: Duration::from_millis(LEASE_MS),
            after_power_loss: false,
            ost_bandwidth: None,
        }
    }
}

/// An MDS and its OSTs.
pub struct Servers {
    mds: Mds<LocalKv>,
    osts: Vec<Ost>,
    grants: Arc<Grants>,
    /// Of each OST, if there are limits.
    bandwidth: Vec<Bandwidth>,
    data: DataDir,
    boot_verifier: u64,
    settings: Settings,
    /// Changes of data that OSTs have answered for, and those that are on stable storage.
    data_accepted: AtomicU64,
    data_committed: AtomicU64,
    started: Instant,
    /// Totals of the last two seconds.
    totals: Mutex<[Totals; 2]>,
}

/// Servers and the thread that looks after them.
pub struct Running {
    /// The servers.
    pub servers: Arc<Servers>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Servers {
    /// Starts the servers of a data directory.
    pub fn start(data: DataDir, settings: Settings) -> Result<Running, Box<dyn std::error::Error>> {
        let kv = LocalKv::open(&data.mds(), engine_options(&data, settings.commit_interval))?;
        let data_survived = !data.is_after_restart_of_host() && !settings.after_power_loss;
        let boot_verifier = getrandom::u64().unwrap_or(1);
        let config = Config {
            osts: data.osts(),
            lease: settings.lease,
            layout: Layout::default(),
            commit_sync: settings.commit_sync,
            after_power_loss: !data_survived,
            mounted: settings.mounted,
            locks: settings.shared,
            hash_seed: None,
            boot_verifier,
        };
        let mds = futures_lite::future::block_on(Mds::start(kv, config))?;
        let grants = Arc::<Grants>::default();
        let mut osts = Vec::new();
        for index in 0..data.osts() {
            let store = ObjectStore::open(&data.ost(index), grants.clone())?;
            // Clients forget what survived the last run, so it must survive this one.
            store.sync_all()?;
            osts.push(Ost::new(store));
        }
        let limits = settings
            .ost_bandwidth
            .map(|limit| (0..data.osts()).map(move |_| Bandwidth::new(limit)));
        let bandwidth = limits.into_iter().flatten().collect();
        let servers = Arc::new(Servers {
            mds,
            osts,
            grants,
            bandwidth,
            data,
            boot_verifier,
            settings,
            data_accepted: AtomicU64::new(0),
            data_committed: AtomicU64::new(0),
            started: Instant::now(),
            totals: Mutex::new([Totals::now(); 2]),
        });
        let stop = Arc::new(AtomicBool::new(false));
        let spawn = |name: &str, work: fn(&Servers, &AtomicBool)| {
            let (servers, stop) = (servers.clone(), stop.clone());
            std::thread::Builder::new().name(name.into()).spawn(move || work(&servers, &stop))
        };
        let threads = vec![
            spawn("housekeeping", Servers::keep_house)?,
            spawn("settling", Servers::settle_objects)?,
        ];
        Ok(Running { servers, stop, threads })
    }

    /// Brings data to stable storage every commit interval and seals quiet objects. On
    /// a thread of its own, because a flush may take long.
    fn settle_objects(&self, stop: &AtomicBool) {
        let mut last = Instant::now();
        while !stop.load(Ordering::Acquire) {
            std::thread::sleep(HOUSEKEEPING);
            if last.elapsed() < self.settings.commit_interval {
                continue;
            }
            let accepted = self.data_accepted.load(Ordering::Acquire);
            let mut all = true;
            for ost in &self.osts {
                if let Err(error) = ost.store().settle(SEAL_IDLE) {
                    all = false;
                    let path = ost.store().path().display();
                    tracing::error!(%error, %path, "bringing data to stable storage");
                }
            }
            if all {
                self.data_committed.fetch_max(accepted, Ordering::AcqRel);
            }
            last = Instant::now();
            let mut totals = self.totals.lock();
            *totals = [totals[1], Totals::now()];
        }
    }

    /// What happens per second, over the last one or two seconds before `now`.
    pub fn rates(&self, now: &Totals) -> Rates {
        now.since(&self.totals.lock()[0])
    }

    /// Removes what deleted files left and watches the space, until told to stop.
    fn keep_house(&self, stop: &AtomicBool) {
        let mut noted = false;
        while !stop.load(Ordering::Acquire) {
            if !noted && !self.mds.is_recovering() {
                noted = true;
                if let Err(error) = self.data.note_served() {
                    tracing::error!(%error, "noting that this host serves the directory");
                }
            }
            self.watch_space();
            self.grants.retain(|c| c == ClientId::IN_PROCESS || self.mds.knows(c));
            match futures_lite::future::block_on(self.mds.reap(self)) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(errno) => tracing::error!(%errno, "removing deleted files"),
            }
            std::thread::sleep(HOUSEKEEPING);
        }
    }

    fn watch_space(&self) {
        if let Some(Ok(space)) = self.osts.first().map(|ost| ost.store().space()) {
            self.mds.set_full(space.free < reserve_metadata(space.total));
        }
    }

    /// Waits for the turn of a transfer, where bandwidth is limited.
    async fn pace(&self, ost: usize, request: &OstRequest, bulk: &Bulk<'_>) {
        let bytes = match (request, bulk) {
            (OstRequest::Write { .. }, Bulk::Out(data)) => {
                glint_telemetry::count(size_class(data.len()), 1);
                data.len() as u64
            }
            (OstRequest::Read { len, .. }, _) => u64::from(*len),
            _ => return,
        };
        if let Some(limit) = self.bandwidth.get(ost) {
            let pause = limit.take(bytes, Instant::now());
            if !pause.is_zero() {
                glint_net::host::sleep(pause).await;
            }
        }
    }

    /// The metadata server.
    pub fn mds(&self) -> &Mds<LocalKv> {
        &self.mds
    }

    /// Space of all OSTs; one file system under several counts once.
    pub fn space(&self) -> SpaceInfo {
        let mut sum = SpaceInfo::default();
        let mut counted = Vec::new();
        for space in self.osts.iter().filter_map(|ost| ost.store().space().ok()) {
            if !counted.contains(&space.file_system) {
                counted.push(space.file_system);
                sum.total += space.total;
                sum.free += space.free;
                sum.available += space.available;
            }
        }
        sum
    }

    /// Space of each OST.
    pub fn ost_spaces(&self) -> Vec<SpaceInfo> {
        self.osts.iter().map(|ost| ost.store().space().unwrap_or_default()).collect()
    }

    /// The data directory.
    pub fn data(&self) -> &DataDir {
        &self.data
    }

    /// Time since the start.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }
}

impl Running {
    /// Ends the servers cleanly: everything accepted is on stable storage after it.
    pub fn shut_down(mut self) -> FsResult<()> {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the servers panicked");
            }
        }
        for ost in &self.servers.osts {
            ost.store().settle_last().map_err(|e| Errno::from_io(&e))?;
        }
        futures_lite::future::block_on(self.servers.mds.shut_down())
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

impl Destroyer for Servers {
    async fn destroy(&self, files: &[(Ino, Layout)]) -> FsResult<u64> {
        let osts = self.osts.len() as u16;
        for (ino, layout) in files {
            for stripe in 0..layout.stripe_count.max(1) {
                let object = ObjectId { ino: *ino, stripe };
                let ost = &self.osts[layout.ost_of(stripe, osts) as usize];
                ost.store().remove(object).map_err(|e| Errno::from_io(&e))?;
            }
        }
        Ok(self.data_accepted.fetch_add(1, Ordering::AcqRel) + 1)
    }

    fn durable(&self) -> u64 {
        self.data_committed.load(Ordering::Acquire)
    }
}

impl Service for Servers {
    async fn mds(
        &self,
        arrival: &Arrival,
        cred: &Cred,
        request: &MdsRequest<'_>,
    ) -> Answer<MdsReply> {
        self.mds.handle(arrival, cred, request).await
    }

    async fn ost(
        &self,
        client: ClientId,
        ost: u16,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        let index = ost as usize;
        let Some(ost) = self.osts.get(index) else {
            return Answer::unchanged(Err(Errno::ENXIO));
        };
        self.pace(index, &request, &bulk).await;
        if self.settings.shared && matches!(request, OstRequest::Write { .. }) {
            self.mds.wrote(client);
        }
        let mut reply = ost.handle(client, request, bulk).await;
        if !request.is_modifying() || reply.is_err() {
            return Answer::unchanged(reply);
        }
        if self.settings.commit_sync
            && let Err(errno) = ost.commit(&request).await
        {
            reply = Err(errno);
        }
        // Counted after it is done, so that whoever flushes after reading the count has it.
        let transaction = self.data_accepted.fetch_add(1, Ordering::AcqRel) + 1;
        Answer::changed(transaction, reply)
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            fs_uuid: self.data.uuid(),
            boot_verifier: self.boot_verifier,
            osts: self.data.osts(),
            commit_sync: self.settings.commit_sync,
            lease_ms: self.settings.lease.as_millis() as u64,
            locks: self.settings.shared,
            cache_ms: if self.settings.shared { CACHE_MS_SHARED } else { CACHE_MS_ALONE },
            root: Ino::ROOT,
            survived: Survived::ALL,
            evicted: false,
        }
    }

    async fn connect(&self, client: ClientId, hello: &Hello) -> FsResult<bool> {
        self.mds.connect(client, &hello.host, &hello.mount_point).await
    }

    fn disconnect(&self, client: ClientId) {
        self.mds.disconnect(client);
    }

    async fn resolve(&self, path: &str) -> FsResult<Ino> {
        self.mds.resolve(path).await
    }

    async fn is_within(&self, top: Ino, ino: Ino) -> FsResult<bool> {
        self.mds.is_within(top, ino).await
    }

    fn survived(&self, boot_verifier: u64) -> Option<Survived> {
        self.mds.survived(boot_verifier)
    }

    fn knows(&self, client: ClientId) -> bool {
        self.mds.knows(client)
    }

    fn heard(&self, client: ClientId) {
        self.mds.heard(client);
    }

    fn recovered(&self, client: ClientId) {
        self.mds.recovered(client);
    }

    async fn goodbye(&self, client: ClientId) {
        if let Err(errno) = self.mds.goodbye(client).await {
            tracing::warn!(%client, %errno, "forgetting a client that ended");
        }
    }

    async fn commit(&self) -> FsResult<()> {
        let accepted = self.data_accepted.load(Ordering::Acquire);
        if accepted > self.data_committed.load(Ordering::Acquire) {
            for ost in &self.osts {
                ost.commit_all().await?;
            }
            self.data_committed.fetch_max(accepted, Ordering::AcqRel);
        }
        self.mds.sync().await
    }

    fn committed(&self) -> Committed {
        Committed { mds: self.mds.committed(), ost: self.data_committed.load(Ordering::Acquire) }
    }

    fn cancel(&self, client: ClientId, cancels: &[Cancel]) {
        self.mds.cancel(client, cancels);
    }

    fn listen(&self, client: ClientId) -> u64 {
        self.mds.listen(client)
    }

    async fn callbacks(&self, client: ClientId, listening: u64) -> Option<Vec<Callback>> {
        self.mds.callbacks(client, listening).await
    }

    fn status(&self) -> String {
        json::status(self).to_string()
    }
}

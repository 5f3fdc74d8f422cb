//! The servers of one data directory in one process: an MDS and its OSTs.

use crate::data_dir::DataDir;
use crate::json;
use crate::rates::{Rates, Totals};
use glint_kv::local::{LocalKv, Options};
use glint_mds::{Config, Destroyer, Mds};
use glint_net::Service;
use glint_ost::{ObjectStore, Ost};
use glint_proto::limits::{
    CACHE_MS_ALONE, CACHE_MS_SHARED, COMMIT_INTERVAL_MS, LEASE_MS, journal_bytes, reserve_metadata,
    segment_bytes,
};
use glint_proto::message::{Hello, Welcome};
use glint_proto::{
    Bulk, ClientId, Cred, Errno, FsResult, Ino, Layout, MdsReply, MdsRequest, ObjectId, OstReply,
    OstRequest, RequestId, SpaceInfo,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const CACHE_BYTES: u64 = 32 << 20;
const MEMTABLE_BYTES: u64 = 16 << 20;
/// How often the housekeeping thread looks around.
const HOUSEKEEPING: Duration = Duration::from_millis(100);
/// How long an object must be left alone to get its checksums.
const SEAL_IDLE: Duration = Duration::from_secs(5);

/// How the metadata engine of a data directory is opened, here and by fsck.
pub fn engine_options(data: &DataDir) -> Options {
    let total =
        rustix::fs::statvfs(data.path()).map_or(u64::MAX, |vfs| vfs.f_blocks * vfs.f_frsize);
    Options {
        journal_bytes: journal_bytes(total),
        segment_bytes: segment_bytes(total),
        cache_bytes: CACHE_BYTES,
        memtable_bytes: MEMTABLE_BYTES,
        commit_interval: Duration::from_millis(COMMIT_INTERVAL_MS),
    }
}

/// An MDS and its OSTs.
pub struct Servers {
    mds: Mds<LocalKv>,
    osts: Vec<Ost>,
    data: DataDir,
    boot_verifier: u64,
    shared: bool,
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
    /// Starts the servers of a data directory. `shared` says that clients on a
    /// network may come.
    pub fn start(data: DataDir, shared: bool) -> Result<Running, Box<dyn std::error::Error>> {
        let kv = LocalKv::open(&data.mds(), engine_options(&data))?;
        let config = Config {
            osts: data.osts(),
            lease: Duration::from_millis(LEASE_MS),
            layout: Layout::default(),
        };
        let mds = futures_lite::future::block_on(Mds::start(kv, config))?;
        let mut osts = Vec::new();
        for index in 0..data.osts() {
            osts.push(Ost::new(ObjectStore::open(&data.ost(index))?));
        }
        let servers = Arc::new(Servers {
            mds,
            osts,
            data,
            boot_verifier: getrandom::u64().unwrap_or(1),
            shared,
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
            if last.elapsed() < Duration::from_millis(COMMIT_INTERVAL_MS) {
                continue;
            }
            for ost in &self.osts {
                if let Err(error) = ost.store().settle(SEAL_IDLE) {
                    let path = ost.store().path().display();
                    tracing::error!(%error, %path, "bringing data to stable storage");
                }
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
        while !stop.load(Ordering::Acquire) {
            self.watch_space();
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

impl Destroyer for Servers {
    async fn destroy(&self, files: &[(Ino, Layout)]) -> FsResult<()> {
        let osts = self.osts.len() as u16;
        for (ino, layout) in files {
            for stripe in 0..layout.stripe_count.max(1) {
                let object = ObjectId { ino: *ino, stripe };
                let ost = &self.osts[layout.ost_of(stripe, osts) as usize];
                ost.store().remove(object).map_err(|e| Errno::from_io(&e))?;
            }
        }
        Ok(())
    }
}

impl Service for Servers {
    async fn mds(
        &self,
        cred: &Cred,
        id: Option<RequestId>,
        request: &MdsRequest<'_>,
    ) -> FsResult<MdsReply> {
        self.mds.handle(cred, id, request).await
    }

    async fn ost(&self, ost: u16, request: OstRequest, bulk: Bulk<'_>) -> FsResult<OstReply> {
        self.osts.get(ost as usize).ok_or(Errno::ENXIO)?.handle(request, bulk).await
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            fs_uuid: self.data.uuid(),
            boot_verifier: self.boot_verifier,
            osts: self.data.osts(),
            cache_ms: if self.shared { CACHE_MS_SHARED } else { CACHE_MS_ALONE },
        }
    }

    async fn connect(&self, client: ClientId, hello: &Hello) -> FsResult<()> {
        self.mds.connect(client, &hello.host, &hello.mount_point).await
    }

    fn disconnect(&self, client: ClientId) {
        self.mds.disconnect(client);
    }

    fn committed(&self) -> u64 {
        self.mds.committed()
    }

    fn status(&self) -> String {
        json::status(self).to_string()
    }
}

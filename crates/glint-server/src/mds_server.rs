//! The server with the MDS: of one data directory, with its OSTs, in one process.

use crate::data_dir::DataDir;
use crate::descriptors;
use crate::local_osts::{self, LocalOsts};
use crate::oss_registry::OssRegistry;
use crate::rates::{Rates, Totals};
use crate::status;
use crate::units::human_bytes;
use glint_kv::local::{Failure, LocalKv, Options};
use glint_mds::{Config, Mds, Targets};
use glint_net::Service;
use glint_net::capability::Key;
use glint_ost::SEAL_IDLE;
use glint_proto::limits::{
    CACHE_MS_ALONE, CACHE_MS_SHARED, COMMIT_INTERVAL_MS, LEASE_MS, journal_bytes, reserve_metadata,
    segment_bytes,
};
use glint_proto::lock::{Callback, Cancel};
use glint_proto::message::{Hello, Survived, Welcome};
use glint_proto::oss::{OssReply, OssRequest};
use glint_proto::watch::Beat;
use glint_proto::{
    Answer, Arrival, Bulk, ClientId, Committed, Cred, FsResult, Ino, Layout, MdsReply, MdsRequest,
    ObjectId, OstReply, OstRequest, Owner, Session, SpaceInfo,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const CACHE_BYTES: u64 = 32 << 20;
const MEMTABLE_BYTES: u64 = 16 << 20;
/// See nice(2): about a tenth of a core that others want to use.
const HOUSEKEEPING_NICE: i32 = 10;
/// How often the housekeeping thread looks around.
const HOUSEKEEPING: Duration = Duration::from_millis(100);

/// How the metadata engine of a data directory is opened, here and by fsck.
pub fn engine_options(data: &DataDir, commit_interval: Duration) -> Result<Options, String> {
    let total =
        rustix::fs::statvfs(data.path()).map_or(u64::MAX, |vfs| vfs.f_blocks * vfs.f_frsize);
    Ok(Options {
        journal_bytes: journal_bytes(total),
        segment_bytes: segment_bytes(total),
        cache_bytes: CACHE_BYTES,
        memtable_bytes: MEMTABLE_BYTES,
        open_tables: descriptors::budget(data.osts())?.tables as usize,
        commit_interval,
    })
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
    engine_failure: Failure,
    key: Key,
    osts: LocalOsts,
    osses: OssRegistry,
    data: DataDir,
    boot_verifier: u64,
    /// Of the client that shares this process, if there is one.
    in_process: Arc<Session>,
    settings: Settings,
    started: Instant,
    /// Totals of the last two seconds.
    totals: Mutex<[Totals; 2]>,
}

/// Servers and the thread that looks after them.
pub struct RunningServers {
    /// The servers.
    pub servers: Arc<Servers>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Servers {
    /// Starts the servers of a data directory.
    pub fn start(
        data: DataDir,
        settings: Settings,
    ) -> Result<RunningServers, Box<dyn std::error::Error>> {
        let kv = LocalKv::open(&data.mds(), engine_options(&data, settings.commit_interval)?)?;
        let engine_failure = kv.failure();
        let data_survived = !data.is_after_loss() && !settings.after_power_loss;
        let boot_verifier = getrandom::u64().unwrap_or(1);
        let osts = local_osts::open(&data, &settings)?;
        let osses = OssRegistry::new(&data, boot_verifier, settings.lease);
        let config = Config {
            osts: osses.osts(data.osts()),
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
        let own = Owner { certificate: None, secret: glint_net::random_secret() };
        let number = getrandom::u64().unwrap_or(1);
        let in_process = Session::new(ClientId::IN_PROCESS, number, Some(own));
        let servers = Arc::new(Servers {
            key: Key::new(mds.secret()),
            mds,
            engine_failure,
            osts,
            osses,
            data,
            boot_verifier,
            in_process,
            settings,
            started: Instant::now(),
            totals: Mutex::new([Totals::now(); 2]),
        });
        let stop = Arc::new(AtomicBool::new(false));
        let spawn = |name: &str, work: fn(&Servers, &AtomicBool)| {
            let (servers, stop) = (servers.clone(), stop.clone());
            std::thread::Builder::new().name(name.into()).spawn(move || work(&servers, &stop))
        };
        let threads = vec![
            spawn("watch", Servers::keep_time)?,
            spawn("eviction", Servers::expire_clients)?,
            spawn("housekeeping", Servers::keep_house)?,
            spawn("settling", Servers::settle_objects)?,
        ];
        Ok(RunningServers { servers, stop, threads })
    }

    /// Lets time pass. On a thread that waits for nothing else.
    fn keep_time(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            self.mds.time_passes();
            std::thread::sleep(HOUSEKEEPING);
        }
    }

    /// Gives up clients whose time is over.
    fn expire_clients(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            if let Err(errno) = futures_lite::future::block_on(self.mds.expire(self)) {
                tracing::error!(%errno, "giving up clients");
            }
            std::thread::sleep(HOUSEKEEPING);
        }
    }

    /// Brings data to stable storage every commit interval and seals quiet objects. On
    /// a thread of its own, because a flush may take long.
    fn settle_objects(&self, stop: &AtomicBool) {
        let mut last = Instant::now();
        while !stop.load(Ordering::Acquire) {
            std::thread::sleep(HOUSEKEEPING);
            // The other thread may be waiting for a server that does not answer.
            self.watch_space();
            if last.elapsed() < self.settings.commit_interval {
                continue;
            }
            self.osts.settle(SEAL_IDLE);
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
        // Nobody waits for objects to be destroyed, and it may be tens of thousands. (On Linux
        // this is about the calling thread.)
        if let Err(error) = rustix::process::setpriority_process(None, HOUSEKEEPING_NICE) {
            tracing::debug!(%error, "housekeeping at the usual priority");
        }
        let mut noted = false;
        while !stop.load(Ordering::Acquire) {
            if !noted && !self.mds.is_recovering() {
                noted = true;
                if let Err(error) = self.data.note_served() {
                    tracing::error!(%error, "noting that this host serves the directory");
                }
            }
            self.watch_space();
            self.osts.retain_grants(|c| c == ClientId::IN_PROCESS || self.mds.knows(c));
            match futures_lite::future::block_on(self.mds.reap(self)) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(errno) => tracing::error!(%errno, "removing deleted files"),
            }
            std::thread::sleep(HOUSEKEEPING);
        }
    }

    fn watch_space(&self) {
        self.mds.set_absent(self.osses.absent());
        // The tables lie beside the first one.
        if let Some(space) = self.osts.first_space() {
            self.mds.set_full(space.free < reserve_metadata(space.total));
        }
    }

    /// The metadata server.
    pub fn mds(&self) -> &Mds<LocalKv> {
        &self.mds
    }

    /// Space of all OSTs, of all servers.
    pub fn space(&self) -> SpaceInfo {
        let elsewhere = self.osses.infos().into_iter().flat_map(|oss| oss.space);
        SpaceInfo::sum(self.osts.spaces().into_iter().chain(elsewhere))
    }

    /// Space of each OST of this server.
    pub fn ost_spaces(&self) -> Vec<SpaceInfo> {
        self.osts.spaces()
    }

    /// The other servers of OSTs.
    pub fn other_servers(&self) -> &OssRegistry {
        &self.osses
    }

    /// Why nothing can be called durable any more, if that is so; then the server should end.
    pub fn failure(&self) -> Option<String> {
        self.engine_failure.get().cloned().or_else(|| self.osts.failure())
    }

    /// How things are, in a few words.
    pub fn in_short(&self) -> String {
        let available = human_bytes(self.space().available);
        let (inodes, clients) = (self.mds.inode_count(), self.mds.sessions().len());
        format!("available {available}  inodes {inodes}  clients {clients}")
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

impl RunningServers {
    /// Ends the servers cleanly: everything accepted is on stable storage after it.
    pub fn shut_down(mut self) -> FsResult<()> {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the servers panicked");
            }
        }
        self.servers.osts.settle_last()?;
        futures_lite::future::block_on(self.servers.mds.shut_down())
    }
}

impl Targets for Servers {
    async fn destroy(&self, files: &[(Ino, Layout)]) -> FsResult<u64> {
        let own = self.osts.count();
        let objects_of = |(ino, layout): &(Ino, Layout)| {
            let (ino, layout) = (*ino, *layout);
            let stripes = 0..layout.stripe_count.max(1);
            stripes.map(move |stripe| (layout.ost_of(stripe, own), ObjectId { ino, stripe }))
        };
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            files.iter().flat_map(objects_of).partition(|(ost, _)| *ost < own);
        let (change, failed) = self.osts.destroy(&here);
        self.osses.left(failed);
        self.osses.destroy(&elsewhere, change);
        Ok(change)
    }

    fn durable(&self) -> u64 {
        self.osses.durable(self.osts.committed())
    }

    fn left(&self) -> Vec<Ino> {
        self.osses.take_left()
    }

    fn fence(&self, session: u64) {
        self.osses.fence(session);
    }

    fn is_fenced(&self, session: u64) -> bool {
        self.osses.is_fenced(session)
    }
}

impl Service for Servers {
    async fn mds(
        &self,
        arrival: &Arrival<'_>,
        cred: &Cred,
        request: &MdsRequest<'_>,
    ) -> Answer<MdsReply> {
        self.mds.handle(arrival, cred, request).await
    }

    async fn ost(
        &self,
        session: &Session,
        ost: u16,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        local_osts::pace(&self.osts, ost, &request, &bulk).await;
        let client = session.client();
        let _running = match session.enter() {
            Ok(running) => running,
            Err(errno) => return Answer::unchanged(Err(errno)),
        };
        if self.settings.shared && request.is_write() {
            self.mds.wrote(client);
        }
        self.osts.handle(client, ost, request, bulk).await
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            fs_uuid: self.data.uuid(),
            boot_verifier: self.boot_verifier,
            osts: self.mds.osts(),
            own_osts: self.osts.count(),
            osses: self.osses.infos(),
            session: 0,
            commit_sync: self.settings.commit_sync,
            lease_ms: self.settings.lease.as_millis() as u64,
            locks: self.settings.shared,
            cache_ms: if self.settings.shared { CACHE_MS_SHARED } else { CACHE_MS_ALONE },
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

    async fn oss(&self, name: Option<&str>, request: OssRequest) -> FsResult<OssReply> {
        match request {
            OssRequest::Heartbeat(beat) => {
                let orders = self.osses.beat(&self.data, name, beat)?;
                self.mds.has_osts(self.osses.osts(self.osts.count()));
                Ok(OssReply::Orders { orders, secret: *self.mds.secret() })
            }
            OssRequest::IsSession { client, session, owner } => {
                // That of this process has shown its certificate to nobody here.
                let own = self.in_process.owner().map(|own| (self.in_process.number(), own.secret));
                let of_this_process = self.settings.mounted && own == Some((session, owner.secret));
                let is = of_this_process || self.mds.has_session(client, session, &owner);
                Ok(OssReply::Is(is))
            }
        }
    }

    fn knows(&self, client: ClientId) -> bool {
        self.mds.knows(client)
    }

    fn knows_oss(&self, request: &OssRequest) -> bool {
        match request {
            OssRequest::Heartbeat(beat) => self.osses.knows(beat),
            OssRequest::IsSession { .. } => true,
        }
    }

    fn in_process(&self) -> Arc<Session> {
        self.in_process.clone()
    }

    fn disconnect(&self, session: &Session) {
        self.mds.disconnect(session);
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

    fn heard(&self, session: &Session) {
        self.mds.heard(session);
    }

    fn recovered(&self, session: &Session) {
        self.mds.recovered(session.client());
    }

    async fn goodbye(&self, session: &Session) {
        if let Err(errno) = self.mds.goodbye(session).await {
            let client = session.client();
            tracing::warn!(%client, %errno, "forgetting a client that ended");
        }
    }

    async fn commit(&self) -> FsResult<()> {
        self.osts.commit().await?;
        self.mds.sync().await
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
        status::status(self).to_string()
    }

    fn beat(&self) -> Option<Beat> {
        Some(self.mds.beat())
    }
}

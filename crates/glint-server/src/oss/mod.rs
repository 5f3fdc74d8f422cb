//! A server with OSTs only (an OSS), beside the one with the MDS. Clients come with the
//! session that the MDS has named, and the MDS says which ones are good.
//!
//! Invariants:
//! - Nothing is executed for a session that the MDS has not said to be good, or has fenced.
//! - Nothing is executed while the MDS was not heard of for half a lease: it may have given the
//!   client up, and its locks to others.
//! - Objects that are to be destroyed are gone from stable storage before the MDS hears of it.

mod liaison;
mod runs;
mod sessions;

use crate::data_dir::DataDir;
use crate::local_osts::{self, LocalOsts};
use crate::mds_server::Settings;
use crate::units::human_bytes;
use futures_lite::future::block_on;
use glint_net::capability::Key;
use glint_net::{Address, Service};
use glint_ost::SEAL_IDLE;
use glint_proto::capability::SECRET_BYTES;
use glint_proto::lock::{Callback, Cancel};
use glint_proto::message::{Hello, Survived, Welcome};
use glint_proto::oss::{Orders, OssReply, OssRequest};
use glint_proto::{
    Answer, Arrival, Bulk, ClientId, Committed, Cred, Errno, FsResult, Ino, MdsReply, MdsRequest,
    ObjectId, OstReply, OstRequest, Owner, Session, SpaceInfo, clock,
};
use liaison::Liaison;
use runs::Runs;
use serde_json::json;
use sessions::{Entry, Sessions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the housekeeping thread looks around.
const HOUSEKEEPING: Duration = Duration::from_millis(100);
/// How long the server of the MDS may be silent at the start before whoever waits is told.
const SILENT_MAX: Duration = Duration::from_secs(3);
/// How long a request waits before it looks again whether the MDS was heard of.
const LATER: Duration = Duration::from_millis(20);

/// An OSS.
pub struct Oss {
    osts: LocalOsts,
    data: DataDir,
    settings: Settings,
    boot_verifier: u64,
    runs: Runs,
    sessions: Sessions,
    liaison: Liaison,
    /// File system, and number of the first OST here; once the MDS has said so.
    joined: OnceLock<(u128, u16)>,
    /// What capabilities are checked with; from then on, too.
    key: OnceLock<Key>,
    mds: String,
    stop: AtomicBool,
    started: Instant,
}

/// An OSS and its threads.
pub struct RunningOss {
    /// The server.
    pub oss: Arc<Oss>,
    threads: Vec<JoinHandle<()>>,
    report: mpsc::Receiver<Result<(), String>>,
}

impl Oss {
    /// Starts on a data directory, for the file system whose MDS is at `mds`. Clients reach it
    /// at `advertised`.
    pub fn start(
        data: DataDir,
        settings: Settings,
        mds: Address,
        advertised: String,
    ) -> Result<RunningOss, Box<dyn std::error::Error>> {
        let osts = local_osts::open(&data, &settings)?;
        let boot_verifier = getrandom::u64().unwrap_or(1);
        let survived = !data.is_after_loss() && !settings.after_power_loss;
        let runs = Runs::begin(&data, boot_verifier, survived)?;
        data.note_served()?;
        let sessions = Sessions::new(osts.count());
        let oss = Arc::new(Oss {
            osts,
            data,
            settings,
            boot_verifier,
            runs,
            sessions,
            liaison: Liaison::new(),
            joined: OnceLock::new(),
            key: OnceLock::new(),
            mds: mds.to_string(),
            stop: AtomicBool::new(false),
            started: Instant::now(),
        });
        let (reporter, report) = mpsc::channel();
        let (keeping, talking) = (oss.clone(), oss.clone());
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let threads = vec![
            thread("housekeeping").spawn(move || keeping.keep_house())?,
            thread("liaison")
                .spawn(move || talking.liaison.run(&talking, &mds, &advertised, &reporter))?,
        ];
        Ok(RunningOss { oss, threads, report })
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Brings data to stable storage every commit interval.
    fn keep_house(&self) {
        let mut last = Instant::now();
        while !self.is_stopping() {
            std::thread::sleep(HOUSEKEEPING);
            if last.elapsed() >= self.settings.commit_interval {
                self.osts.settle(SEAL_IDLE);
                self.osts.retain_grants(|client| self.sessions.knows(client));
                last = Instant::now();
            }
        }
    }

    fn fs_uuid(&self) -> u128 {
        self.joined.get().map_or_else(|| self.data.file_system(), |(uuid, _)| *uuid)
    }

    /// The MDS has said which file system this is.
    fn joined(&self, orders: &Orders, secret: &[u8; SECRET_BYTES]) -> Result<(), String> {
        let said = (orders.fs_uuid, orders.first_ost);
        if self.data.file_system() == 0 && self.joined.get().is_none() {
            self.data.store_file_system(orders.fs_uuid).map_err(|error| error.to_string())?;
        }
        self.key.get_or_init(|| Key::new(secret));
        match *self.joined.get_or_init(|| said) == said {
            true => Ok(()),
            false => Err("it serves another file system now".into()),
        }
    }

    /// Destroys objects, and whatever clients might still want to do to them. Returns those that
    /// are still there.
    fn destroy(
        &self,
        objects: &[(u16, ObjectId)],
    ) -> Result<Vec<ObjectId>, Box<dyn std::error::Error>> {
        let (change, failed) = self.osts.destroy(objects);
        block_on(self.osts.commit()).map_err(|errno| errno.to_string())?;
        self.runs.durable(&self.data, change)?;
        Ok(failed)
    }

    /// Why nothing can be called durable any more, if that is so; then the server should end.
    pub fn failure(&self) -> Option<String> {
        self.osts.failure()
    }

    /// See [`DataDir::give_up`].
    pub fn give_up(&self, reason: &str) -> String {
        self.data.give_up(reason)
    }

    /// How things are, in a few words.
    pub fn in_short(&self) -> String {
        let available = human_bytes(SpaceInfo::sum(self.osts.spaces()).available);
        format!("available {available}  clients {}", self.sessions.all().len())
    }
}

impl RunningOss {
    /// Waits until this is a part of its file system; false if it was `stopped` before. If that
    /// takes long, it `tells` once why.
    pub fn wait_joined(
        &self,
        stopped: impl Fn() -> bool,
        tell: impl Fn(&str),
    ) -> Result<bool, String> {
        let start = Instant::now();
        let mut told = false;
        loop {
            if !told && start.elapsed() > SILENT_MAX {
                let trouble = self.oss.liaison.trouble();
                let trouble = trouble.unwrap_or_else(|| "it has not answered yet".into());
                tell(&format!("waiting for the server of the MDS at {}: {trouble}", self.oss.mds));
                told = true;
            }
            match self.report.recv_timeout(Duration::from_millis(50)) {
                Ok(result) => return result.map(|()| true),
                Err(mpsc::RecvTimeoutError::Timeout) if !stopped() => {}
                Err(_) => return Ok(false),
            }
        }
    }

    /// Ends the server cleanly: everything accepted is on stable storage after it.
    pub fn shut_down(mut self) -> FsResult<()> {
        self.oss.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the server panicked");
            }
        }
        self.oss.osts.settle_last()
    }
}

impl Service for Oss {
    async fn mds(&self, _: &Arrival<'_>, _: &Cred, _: &MdsRequest<'_>) -> Answer<MdsReply> {
        Answer::unchanged(Err(Errno::EOPNOTSUPP))
    }

    async fn ost(
        &self,
        session: &Session,
        ost: u16,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        let first = self.joined.get().map_or(0, |(_, first)| *first);
        let Some(index) = ost.checked_sub(first) else {
            return Answer::unchanged(Err(Errno::ENXIO));
        };
        if index >= self.osts.count() {
            return Answer::unchanged(Err(Errno::ENXIO));
        }
        local_osts::pace(&self.osts, index, &request, &bulk).await;
        let _running = loop {
            match self.sessions.enter(session, index, clock::now()) {
                Entry::Running(guard, term) => break (guard, term),
                Entry::Later => glint_net::host::sleep(LATER).await,
                Entry::Never => return Answer::unchanged(Err(Errno::ESTALE)),
            }
        };
        self.osts.handle(session.client(), index, request, bulk).await
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            fs_uuid: self.fs_uuid(),
            boot_verifier: self.boot_verifier,
            osts: self.osts.count(),
            own_osts: self.osts.count(),
            osses: Vec::new(),
            session: 0,
            commit_sync: self.settings.commit_sync,
            lease_ms: self.settings.lease.as_millis() as u64,
            locks: false,
            cache_ms: 0,
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
        let number = hello.session;
        if !self.sessions.has(client, number, &owner) {
            let question = OssRequest::IsSession { client, session: number, owner };
            match self.liaison.ask(question).await? {
                OssReply::Is(true) => {}
                _ => return Err(Errno::ESTALE),
            }
        }
        Ok((false, self.sessions.admit(client, number, owner)?))
    }

    fn knows(&self, client: ClientId) -> bool {
        self.sessions.knows(client)
    }

    fn in_process(&self) -> Arc<Session> {
        // Nobody shares the process of an OSS.
        Session::new(ClientId::IN_PROCESS, self.boot_verifier, None)
    }

    async fn resolve(&self, _: &str) -> FsResult<Ino> {
        // There are no paths here. What a client may do, its capabilities say.
        Ok(Ino::ROOT)
    }

    async fn is_within(&self, _: Ino, _: Ino) -> FsResult<bool> {
        Ok(false)
    }

    fn key(&self) -> Option<&Key> {
        self.key.get()
    }

    fn survived(&self, boot_verifier: u64) -> Option<Survived> {
        self.runs.survived(boot_verifier)
    }

    fn heard(&self, _: &Session) {}

    fn recovered(&self, _: &Session) {}

    async fn goodbye(&self, session: &Session) {
        self.sessions.end(session.number());
    }

    async fn commit(&self) -> FsResult<()> {
        self.osts.commit().await
    }

    fn disconnect(&self, session: &Session) {
        self.sessions.disconnect(session, clock::now());
    }

    fn committed(&self) -> Committed {
        Committed { mds: 0, ost: self.osts.committed() }
    }

    async fn oss(&self, _: Option<&str>, _: OssRequest) -> FsResult<OssReply> {
        Err(Errno::EOPNOTSUPP)
    }

    fn cancel(&self, _: &Session, _: &[Cancel]) {}

    fn listen(&self, _: &Session) -> u64 {
        0
    }

    async fn callbacks(&self, _: &Session, _: u64) -> Option<Vec<Callback>> {
        None
    }

    fn status(&self) -> String {
        let first = self.joined.get().map_or(0, |(_, first)| *first);
        let spaces = self.osts.spaces();
        let space = SpaceInfo::sum(spaces.iter().copied());
        let client = |(session, connections): &(Arc<Session>, usize)| json!({"id": session.client().to_string(), "connections": connections});
        json!({
            "role": "oss",
            "version": env!("CARGO_PKG_VERSION"),
            "data": self.data.path().display().to_string(),
            "uuid": format!("{:032x}", self.fs_uuid()),
            "mds": {"address": self.mds, "reached": self.sessions.is_valid(clock::now())},
            "uptime_s": self.started.elapsed().as_secs(),
            "pid": std::process::id(),
            "failure": self.failure(),
            "space": {
                "total_bytes": space.total,
                "free_bytes": space.free,
                "available_bytes": space.available,
            },
            "osts": crate::status::osts(&self.data, first, &spaces),
            "clients": self.sessions.all().iter().map(client).collect::<Vec<_>>(),
        })
        .to_string()
    }
}

//! A server with OSTs only (an OSS), beside the one with the MDS. Clients come with the
//! session that the MDS has named, and the MDS says which ones are good.
//!
//! Invariants:
//! - Nothing is executed for a session that the MDS has not said to be good, or has fenced.
//! - Nothing is executed before this run has heard of the MDS, which says which OSTs are here.
//! - Nothing is executed while the MDS was not heard of for half a lease: it may have given the
//!   client up, and its locks to others.
//! - Objects that are to be destroyed are gone from stable storage before the MDS hears of it.

mod boot_history;
mod liaison;
mod sessions;

use crate::pace;
use crate::process::data_dir::DataDirError;
use crate::records::Records;
use crate::settings::Settings;
use crate::units::human_bytes;
use boot_history::BootHistory;
use glint_net::capability::Key;
use glint_net::{Address, Service};
use glint_ost::OstSet;
use glint_ost::disk::{Disk, LocalDisk};
use glint_proto::capability::SECRET_BYTES;
use glint_proto::lock::{Recall, Return};
use glint_proto::message::{Hello, Survived, Welcome};
use glint_proto::oss::{Orders, OssReply, OssRequest};
use glint_proto::{
    Answer, Arrival, Bulk, ClientId, Committed, Cred, Errno, FsResult, Ino, MdsReply, MdsRequest,
    ObjectId, OstReply, OstRequest, Owner, Session, SpaceInfo, clock,
};
use liaison::Liaison;
use serde_json::json;
use sessions::{Entry, Sessions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long a request waits before it looks again whether the MDS was heard of.
const LATER: Duration = Duration::from_millis(20);

/// An OSS. Whoever has it runs what it does beside requests: [`Oss::talk`],
/// [`Oss::destroy_ordered`], [`Oss::settle`].
pub struct Oss<D: Disk = LocalDisk> {
    osts: OstSet<D>,
    records: Arc<dyn Records>,
    settings: Settings,
    boot_verifier: u64,
    boot_history: BootHistory,
    sessions: Sessions,
    liaison: Liaison,
    /// File system, and number of the first OST here; once the MDS has said so.
    joined: OnceLock<(u128, u16)>,
    /// What capabilities are checked with; from then on, too.
    key: OnceLock<Key>,
    stop: AtomicBool,
    started: Instant,
}

impl<D: Disk> Oss<D> {
    /// Starts on OSTs, for the file system whose MDS is at `mds`. Clients reach it at
    /// `advertised`.
    pub fn start(
        osts: OstSet<D>,
        records: Arc<dyn Records>,
        settings: Settings,
        boot_verifier: u64,
        mds: Address,
        advertised: String,
    ) -> Result<Oss<D>, DataDirError> {
        let survived = !records.is_after_loss() && !settings.after_power_loss;
        let boot_history = BootHistory::begin(&*records, boot_verifier, survived)?;
        records.note_served()?;
        Ok(Oss {
            sessions: Sessions::new(osts.count()),
            osts,
            records,
            settings,
            boot_verifier,
            boot_history,
            liaison: Liaison::new(mds, advertised),
            joined: OnceLock::new(),
            key: OnceLock::new(),
            stop: AtomicBool::new(false),
            started: clock::now(),
        })
    }

    /// Ends [`Oss::talk`] soon, if it has begun.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.liaison.stop();
    }

    /// Whether it is to end.
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Brings data to stable storage and seals objects that were left alone for `idle`, every
    /// commit interval. May take long.
    pub fn settle(&self, idle: Duration) {
        self.osts.settle(idle);
        self.osts.retain_grants(|client| self.sessions.knows(client));
    }

    /// The last thing before the end: everything accepted is on stable storage after it.
    pub fn settle_last(&self) -> FsResult<()> {
        self.osts.settle_last()
    }

    /// For whom it waits before it is a part of its file system, and why.
    pub fn trouble(&self) -> String {
        self.liaison.trouble()
    }

    fn fs_uuid(&self) -> u128 {
        self.joined.get().map_or_else(|| self.records.file_system(), |(uuid, _)| *uuid)
    }

    /// The MDS has said which file system this is.
    fn joined(&self, orders: &Orders, secret: &[u8; SECRET_BYTES]) -> Result<(), String> {
        let said = (orders.fs_uuid, orders.first_ost);
        if self.records.file_system() == 0 && self.joined.get().is_none() {
            self.records.store_file_system(orders.fs_uuid).map_err(|error| error.to_string())?;
        }
        self.key.get_or_init(|| Key::new(secret));
        match *self.joined.get_or_init(|| said) == said {
            true => Ok(()),
            false => Err("it serves another file system now".into()),
        }
    }

    /// Destroys objects, and whatever clients might still want to do to them. Returns those that
    /// are still there.
    async fn destroy(&self, objects: &[(u16, ObjectId)]) -> Result<Vec<ObjectId>, String> {
        let (change, failed) = self.osts.destroy(objects);
        self.osts.commit().await.map_err(|errno| errno.to_string())?;
        self.boot_history.durable(&*self.records, change).map_err(|error| error.to_string())?;
        Ok(failed)
    }

    /// Why nothing can be called durable any more, if that is so; then the server should end.
    pub fn failure(&self) -> Option<String> {
        self.osts.failure()
    }

    /// How things are, in a few words.
    pub fn in_short(&self) -> String {
        let available = human_bytes(SpaceInfo::sum(self.osts.spaces()).available);
        format!("available {available}  clients {}", self.sessions.all().len())
    }
}

impl<D: Disk> Service for Oss<D> {
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
        // Which OSTs are here, it knows when it has heard of the MDS in this run.
        let first = loop {
            match self.joined.get() {
                Some((_, first)) => break *first,
                None => glint_net::host::sleep(LATER).await,
            }
        };
        let Some(index) = ost.checked_sub(first) else {
            return Answer::unchanged(Err(Errno::ENXIO));
        };
        if index >= self.osts.count() {
            return Answer::unchanged(Err(Errno::ENXIO));
        }
        pace(&self.osts, index, &request, &bulk).await;
        let _running = loop {
            match self.sessions.enter(session, index, clock::now()) {
                Entry::Running(guard, term) => break (guard, term),
                Entry::Later => glint_net::host::sleep(LATER).await,
                Entry::Never => return Answer::unchanged(Err(Errno::ESTALE)),
            }
        };
        let client = session.client();
        let answer = self.osts.handle(client, index, request, bulk).await;
        tracing::trace!(%client, ost, ?request, ?answer, "data at an OSS");
        answer
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
        self.boot_history.survived(boot_verifier)
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

    fn return_locks(&self, _: &Session, _: &[Return]) {}

    fn listen(&self, _: &Session) -> u64 {
        0
    }

    async fn recalls(&self, _: &Session, _: u64) -> Option<Vec<Recall>> {
        None
    }

    fn status(&self) -> String {
        let first = self.joined.get().map_or(0, |(_, first)| *first);
        let space = SpaceInfo::sum(self.osts.spaces());
        let client = |(session, connections): &(Arc<Session>, usize)| json!({"id": session.client().to_string(), "connections": connections});
        json!({
            "role": "oss",
            "version": env!("CARGO_PKG_VERSION"),
            "data": self.records.name(),
            "uuid": format!("{:032x}", self.fs_uuid()),
            "mds": {"address": self.liaison.mds().to_string(), "reached": self.sessions.is_valid(clock::now())},
            "uptime_s": clock::since(self.started).as_secs(),
            "pid": std::process::id(),
            "failure": self.failure(),
            "space": {
                "total_bytes": space.total,
                "free_bytes": space.free,
                "available_bytes": space.available,
            },
            "osts": crate::status::osts(&self.osts, first),
            "clients": self.sessions.all().iter().map(client).collect::<Vec<_>>(),
        })
        .to_string()
    }
}

//! The network transport of a client: one connection for each of its threads, so that a
//! reply arrives on the core that waits for it, one for recalls, and one that says that the client
//! lives.
//!
//! Invariants:
//! - A request keeps its (client, slot, xid) until it is answered, over any number
//!   of connections. So it is executed once.
//! - After the server has started anew, it is told what is open, and what it lost is sent
//!   again, before anything else is.
//! - All connections end when the `Remote` is dropped, on whichever thread they are.
//! - After this client was evicted, nothing that it was waiting for is sent again: its
//!   replies are forgotten, so it might be executed twice.

pub(crate) mod checking;
mod object_reads;

use crate::client::chain_rows::ChainRows;
use crate::client::cluster::ClientIdentity;
use crate::client::connection::Connection;
use crate::client::lease;
use crate::client::link::{Link, PATIENCE};
use crate::client::opens::ClosingGuard;
use crate::client::recovery::replay_budget::ReplayBudget;
use crate::client::remote::object_reads::copy_data;
use crate::client::session::ClientSession;
use crate::client::session::hello::{hello_of, welcome_of};
use crate::client::transport::{
    Durability, Granting, LockClient, LockTraffic, MdsRequests, MdsSession, OstRequests,
    PeerRequests, ServerStatistics, Transport,
};
use crate::transport::framing::ReceivedBulk;
use crate::transport::stream::Address;
use crate::{NetError, host};
use glint_proto::chain::{Chain, Destination, Forward, PeerReply, PeerRequest};
use glint_proto::limits::{AWAY_MS, LARGE_BULK_BYTES};
use glint_proto::lock::Return;
use glint_proto::message::{ObjectRead, OstOrder, Reply, Request, Welcome};
use glint_proto::oss::OssInfo;
use glint_proto::{
    Bulk, Capability, ClientId, Cred, Errno, FsResult, Ino, MdsRequest, ObjectId, OstReply,
    OstRequest, clock,
};
use glint_telemetry::{Layer, Span};
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Which server to use.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Where it is.
    pub address: Address,
    /// Shown by `glint status` of the server.
    pub mount_point: String,
}

/// A transport to servers on the network.
pub struct Remote {
    pub(super) session: Arc<ClientSession>,
    lease_thread: Option<JoinHandle<()>>,
}

pub(crate) fn random_client() -> ClientId {
    if host::is_simulated() {
        // The only client that draws its number there is the server of the MDS.
        return ClientId(1);
    }
    ClientId(getrandom::u64().unwrap_or(u64::from(std::process::id())).max(1))
}

/// Secret that makes a client's session its own; see [`glint_proto::Owner`].
pub fn random_secret() -> u128 {
    let half = || u128::from(getrandom::u64().unwrap_or(0));
    half() << 64 | half()
}

fn host_name() -> String {
    if host::is_simulated() {
        // Simulations must not depend on the host that they run on.
        return "simulated".into();
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Asks something, on the calling thread.
fn ask_once(address: &Address, client: ClientId, request: &Request<'_>) -> Result<Reply, NetError> {
    let no_runtime = |source| NetError::Io { what: "starting to ask".into(), source };
    crate::runtime(None).map_err(no_runtime)?.block_on(async {
        Link::open(address, client, PATIENCE).await?.ask(request, PATIENCE).await
    })
}

/// Says what it means that a server closes the connection at the first question.
pub(crate) fn explain_early_end(error: NetError, address: &Address) -> NetError {
    let is_end = match &error {
        NetError::Io { source, .. } => source.kind() == ErrorKind::UnexpectedEof,
        NetError::Closed => true,
        _ => false,
    };
    match (error, address) {
        // A TLS server cannot report this error to a plaintext client.
        (_, Address::Tcp(_)) if is_end => NetError::Refused(
            "it closed the connection; one that runs with --cert listens only to those who \
                 say --cert, too"
                .into(),
        ),
        (NetError::Io { what, source }, Address::Tls(..)) if is_end => {
            let what = format!("{what} (does it run with --cert?)");
            NetError::Io { what, source }
        }
        (NetError::Closed, Address::Tls(..)) => NetError::Io {
            what: "waiting for an answer (does it run with --cert?)".into(),
            source: ErrorKind::UnexpectedEof.into(),
        },
        (error, _) => error,
    }
}

impl Remote {
    /// Connects to a server and learns what it serves.
    pub fn connect(options: RemoteOptions) -> Result<Remote, NetError> {
        let client = random_client();
        let (host, secret) = (host_name(), random_secret());
        let hello = hello_of(host.clone(), &options, 0, 0, secret);
        let welcome = welcome_of(ask_once(&options.address, client, &hello)?)?;
        let budget = ReplayBudget::here();
        Remote::start(ClientSession::new(options, host, client, secret, welcome, None, budget))
    }

    /// One more server of the file system that `welcome` is of. It is connected to when it is
    /// there.
    pub(crate) fn oss(
        options: RemoteOptions,
        identity: &ClientIdentity,
        welcome: Welcome,
    ) -> Result<Remote, NetError> {
        let welcome = Welcome { boot_verifier: 0, ..welcome };
        let ClientIdentity { client, secret, .. } = *identity;
        let host = host_name();
        let (of, budget) = (Some(identity), ReplayBudget::here());
        Remote::start(ClientSession::new(options, host, client, secret, welcome, of, budget))
    }

    fn start(session: Arc<ClientSession>) -> Result<Remote, NetError> {
        if host::is_simulated() {
            return Ok(Remote::on_tasks(session));
        }
        let lease_thread = Some(lease::start_thread(&session)?);
        Ok(Remote { session, lease_thread })
    }

    /// A client of a simulated world, which knows already what its server will say.
    pub fn simulated(
        options: RemoteOptions,
        client: ClientId,
        secret: u128,
        welcome: Welcome,
    ) -> Remote {
        let (host, budget) = (host_name(), ReplayBudget::simulated());
        Remote::on_tasks(ClientSession::new(options, host, client, secret, welcome, None, budget))
    }

    /// The lease is kept by a task of this thread.
    fn on_tasks(session: Arc<ClientSession>) -> Remote {
        let keeping = session.clone();
        host::spawn(async move { keeping.keep_lease().await });
        Remote { session, lease_thread: None }
    }

    /// Asks a server for its `status` or `stats`, as JSON, to `reset` the latter, or to `scrub` its
    /// data and to end that (`scrub-stop`), to have heal rest (`heal-pause`, `heal-resume`), or what is
    /// to become of an OST ([`OstOrder`]).
    pub fn ask(address: &Address, what: &str) -> Result<String, NetError> {
        let request = match what {
            "stats" => Request::Stats,
            "reset" => Request::ResetStats,
            "scrub" => Request::Scrub { begins: true },
            "scrub-stop" => Request::Scrub { begins: false },
            "heal-pause" => Request::Heal { paused: true },
            "heal-resume" => Request::Heal { paused: false },
            what => match OstOrder::parse(what) {
                Some(OstOrder::GiveUp(request)) => Request::GiveUpOst(request),
                Some(OstOrder::Drain(request)) => Request::DrainOst(request),
                Some(OstOrder::Balance(request)) => Request::BalanceTurn(request),
                None => Request::Status,
            },
        };
        match ask_once(address, random_client(), &request)? {
            Reply::Json(text) => Ok(text),
            Reply::Refused(reason) => Err(NetError::Refused(reason)),
            Reply::Failed(_) => {
                Err(NetError::Refused("the certificate here does not allow that".into()))
            }
            _ => Err(NetError::Refused("it sent something else than JSON".into())),
        }
    }

    /// Has its session end, which is waited for when this is dropped: many are told first.
    pub(crate) fn stop(&self) {
        self.session.stop();
    }

    /// The connection of this thread, made when it is first needed.
    fn connection(&self) -> FsResult<Rc<Connection>> {
        Connection::of_thread(&self.session)
    }

    async fn call(&self, request: &Request<'_>, bulk: Bulk<'_>) -> FsResult<Reply> {
        self.call_while(request, bulk, &|| true).await
    }

    async fn exchange(
        &self,
        request: &Request<'_>,
        bulk: &Bulk<'_>,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<(Reply, ReceivedBulk)> {
        let _span = Span::start(Layer::Net, request.op() as u8);
        self.connection()?.call(request, bulk, is_held).await
    }

    /// What an OST has answered.
    fn ost_reply(&self, reply: Reply) -> FsResult<OstReply> {
        match reply {
            Reply::Ost { reply, .. } => reply,
            Reply::ChainMoved(row) => {
                self.session.learn_row(row);
                Err(Errno::EREMCHG)
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// A call that is EIO if `is_held` is not true any more when it could be sent.
    async fn call_while(
        &self,
        request: &Request<'_>,
        bulk: Bulk<'_>,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<Reply> {
        let (reply, data) = self.exchange(request, &bulk, is_held).await?;
        if let Bulk::In(room) = bulk.borrowed() {
            copy_data(room, &reply, data.bytes())?;
        }
        Ok(reply)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.stop();
        if let Some(lease_thread) = self.lease_thread.take() {
            // It ends soon, whatever the server does. It does not panic, and there would be nothing
            // left to do.
            let _ = lease_thread.join();
        }
        self.session.end();
    }
}

impl MdsRequests for Remote {
    async fn request(&self, cred: &Cred, request: &MdsRequest<'_>) -> Granting {
        // What a close says of the size or the time must not come after one that is set.
        match request {
            MdsRequest::Setattr { ino, set } if set.size.is_some() || set.mtime.is_some() => {
                self.session.opens.until_closed(*ino).await;
            }
            MdsRequest::Open { ino, flags } if flags.truncate => {
                self.session.opens.until_closed(*ino).await;
            }
            _ => {}
        }
        let call = Request::Mds { cred: cred.clone(), request: request.clone() };
        match self.call(&call, Bulk::None).await {
            Ok(Reply::Mds { reply, grants, .. }) => (reply, grants),
            Ok(_) => (Err(Errno::EPROTO), Vec::new()),
            Err(errno) => (Err(errno), Vec::new()),
        }
    }

    async fn post(&self, cred: &Cred, request: &MdsRequest<'_>) -> FsResult<()> {
        let call = Request::Mds { cred: cred.clone(), request: request.clone() };
        let connection = self.connection()?;
        let closing = match request {
            MdsRequest::Release { ino, .. } => Some(self.session.opens.begin_close(*ino)),
            _ => None,
        };
        connection.post(&call).await?;
        closing.into_iter().for_each(ClosingGuard::sent);
        Ok(())
    }
}

impl OstRequests for Remote {
    async fn ost(
        &self,
        to: Destination,
        request: OstRequest,
        capability: Option<Capability>,
        bulk: Bulk<'_>,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<OstReply> {
        let call = Request::Ost { to, request, capability, forward: None };
        self.ost_reply(self.call_while(&call, bulk, is_held).await?)
    }

    async fn read_objects(&self, reads: Vec<ObjectRead>, says: &dyn Fn(usize, FsResult<Vec<u8>>)) {
        if let [read] = reads[..]
            && read.len as usize >= LARGE_BULK_BYTES
        {
            return says(0, self.read_one(read).await);
        }
        self.read_many(reads, says).await;
    }

    fn share_rows(&self, rows: &Arc<ChainRows>) {
        let _ = self.session.chain_rows.set(rows.clone());
    }

    fn move_chain(&self, target: u16) {
        self.session.session_of_today();
        self.session.move_chain(target);
    }

    fn adopt_left(&self) {
        Connection::adopt_left(&self.session);
    }
}

impl PeerRequests for Remote {
    async fn forward(
        &self,
        to: Destination,
        forward: Forward,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> FsResult<OstReply> {
        let call = Request::Ost { to, request, capability: None, forward: Some(forward) };
        match self.call(&call, bulk).await? {
            Reply::Ost { reply, .. } => reply,
            Reply::ChainMoved(_) => Err(Errno::EREMCHG),
            _ => Err(Errno::EPROTO),
        }
    }

    async fn peer(&self, _ost: u16, request: PeerRequest) -> FsResult<PeerReply> {
        match self.call(&Request::Peer(request), Bulk::None).await? {
            Reply::Peer(reply) => reply,
            _ => Err(Errno::EPROTO),
        }
    }
}

impl MdsSession for Remote {
    fn welcome(&self) -> Welcome {
        self.session.welcome.clone()
    }

    fn identity(&self) -> ClientIdentity {
        ClientIdentity {
            client: self.session.client,
            session: self.session.session_for_osses.clone(),
            secret: self.session.secret,
            in_process: false,
        }
    }

    fn silence(&self) -> Duration {
        clock::since(*self.session.heard_at.lock())
    }

    async fn osses(&self) -> FsResult<Vec<OssInfo>> {
        match self.call(&Request::Osses, Bulk::None).await? {
            Reply::Osses(osses) => Ok(osses),
            _ => Err(Errno::EPROTO),
        }
    }

    async fn chains(&self) -> FsResult<Vec<Chain>> {
        match self.call(&Request::Chains, Bulk::None).await? {
            Reply::Chains(chains) => Ok(chains),
            _ => Err(Errno::EPROTO),
        }
    }
}

impl LockTraffic for Remote {
    fn set_lock_client(&self, lock_client: Weak<dyn LockClient>) {
        let _ = self.session.lock_client.set(lock_client);
    }

    async fn listen(&self) {
        crate::client::recalls::listen(&self.session).await;
    }

    async fn return_locks(&self, returns: Vec<Return>) -> FsResult<()> {
        self.call(&Request::Return(returns), Bulk::None).await.map(drop)
    }
}

impl ServerStatistics for Remote {
    async fn status(&self) -> FsResult<String> {
        match self.call(&Request::Status, Bulk::None).await? {
            Reply::Json(text) => Ok(text),
            _ => Err(Errno::EPROTO),
        }
    }

    async fn stats(&self) -> FsResult<String> {
        let servers = match self.call(&Request::Stats, Bulk::None).await? {
            Reply::Json(text) => serde_json::from_str(&text).map_err(|_| Errno::EPROTO)?,
            _ => return Err(Errno::EPROTO),
        };
        let mut rows = crate::stats::rows("client");
        if let serde_json::Value::Array(more) = servers {
            rows.extend(more);
        }
        Ok(serde_json::Value::Array(rows).to_string())
    }

    async fn reset_stats(&self) -> FsResult<()> {
        glint_telemetry::reset();
        match self.call(&Request::ResetStats, Bulk::None).await? {
            Reply::Failed(errno) => Err(errno),
            _ => Ok(()),
        }
    }
}

impl Durability for Remote {
    async fn commit(&self) -> FsResult<()> {
        match self.call(&Request::Ping { commit: true, hurry: false }, Bulk::None).await? {
            Reply::Pong(_) => Ok(()),
            Reply::Failed(errno) => Err(errno),
            _ => Err(Errno::EPROTO),
        }
    }

    async fn until_stable(&self) -> FsResult<()> {
        self.session.until_stable(async || self.commit().await).await
    }

    fn has_uncommitted(&self) -> bool {
        !self.session.replay_log.lock().is_empty()
    }

    fn unstable(&self, ino: Ino) -> Vec<(u16, ObjectId)> {
        self.session.replay_log.lock().objects_of(ino)
    }

    fn limit_uncommitted(&self, steps: u32) {
        self.session.replay_log.lock().budget().set_steps(steps);
    }

    fn uncommitted_steps(&self) -> u32 {
        self.session.replay_log.lock().budget().steps_that_fit()
    }

    async fn abandon(&self, ino: Ino) {
        self.session.abandon_replayed(ino).await;
    }

    fn take_failure(&self, ino: Ino) -> Option<Errno> {
        self.session.take_failure(ino)
    }
}

impl Transport for Remote {
    type Mds = Remote;

    fn mds(&self) -> &Remote {
        self
    }

    fn is_away(&self) -> bool {
        self.session.outage.is_now() || self.silence() > Duration::from_millis(AWAY_MS)
    }
}

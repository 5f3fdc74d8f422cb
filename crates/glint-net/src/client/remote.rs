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

use crate::client::cluster::ClientIdentity;
use crate::client::connection::Connection;
use crate::client::lease::{ask_on, connect_blocking};
use crate::client::session::{ClientSession, hello_of, welcome_of};
use crate::transport::stream::{Address, ReadWrite};
use crate::{Granting, LockClient, NetError, Transport};
use glint_proto::limits::AWAY_MS;
use glint_proto::lock::Cancel;
use glint_proto::message::{Reply, Request, Welcome};
use glint_proto::oss::{OssInfo, OssReply, OssRequest};
use glint_proto::{
    Bulk, Capability, ClientId, Cred, Errno, FsResult, Ino, MdsRequest, ObjectId, OstReply,
    OstRequest, clock,
};
use glint_telemetry::{Counter, Layer, Span};
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::atomic::Ordering;
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
    session: Arc<ClientSession>,
    heartbeat: Option<JoinHandle<()>>,
}

pub(crate) fn random_client() -> ClientId {
    ClientId(getrandom::u64().unwrap_or(u64::from(std::process::id())).max(1))
}

/// What makes a client's session its own; see [`glint_proto::Owner`].
pub fn random_secret() -> u128 {
    let half = || u128::from(getrandom::u64().unwrap_or(0));
    half() << 64 | half()
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

fn ask_once(address: &Address, client: ClientId, request: &Request<'_>) -> Result<Reply, NetError> {
    let asked = ask_on(&mut *connect_blocking(address)?, client, request);
    asked.map_err(|error| without_a_word(error, address))
}

/// Says what it means that a server closes the connection at the first question.
fn without_a_word(error: NetError, address: &Address) -> NetError {
    match (error, address) {
        // It would not say so in words that the other side understands.
        (NetError::Io { source, .. }, Address::Tcp(_))
            if source.kind() == ErrorKind::UnexpectedEof =>
        {
            NetError::Refused(
                "it closed the connection; one that runs with --cert listens only to those who \
                 say --cert, too"
                    .into(),
            )
        }
        (NetError::Io { what, source }, Address::Tls(..))
            if source.kind() == ErrorKind::UnexpectedEof =>
        {
            let what = format!("{what} (does it run with --cert?)");
            NetError::Io { what, source }
        }
        (error, _) => error,
    }
}

impl Remote {
    /// Does not change objects of a file again, because others may change them from now on.
    pub(crate) fn abandon(&self, ino: Ino) {
        self.session.abandon(ino, self.is_away());
    }

    /// Connects to a server and learns what it serves.
    pub fn connect(options: RemoteOptions) -> Result<Remote, NetError> {
        let client = random_client();
        let (host, secret) = (host_name(), random_secret());
        let hello = hello_of(host.clone(), &options, 0, 0, secret);
        let welcome = welcome_of(ask_once(&options.address, client, &hello)?)?;
        Remote::start(ClientSession::new(options, host, client, secret, welcome, None))
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
        Remote::start(ClientSession::new(options, host, client, secret, welcome, Some(identity)))
    }

    fn start(session: Arc<ClientSession>) -> Result<Remote, NetError> {
        let for_thread = session.clone();
        let heartbeat = std::thread::Builder::new()
            .name("lease".into())
            .spawn(move || for_thread.keep_lease())
            .map_err(|source| NetError::Io { what: "starting a thread".into(), source })?;
        let _ = session.heartbeat.set(heartbeat.thread().clone());
        Ok(Remote { session, heartbeat: Some(heartbeat) })
    }

    /// A client of a simulated world, which knows already what its server will say. Nobody
    /// keeps its lease but [`Remote::ping`].
    pub fn simulated(
        options: RemoteOptions,
        client: ClientId,
        secret: u128,
        welcome: Welcome,
    ) -> Remote {
        let session =
            ClientSession::new(options, "simulated".into(), client, secret, welcome, None);
        Remote { session, heartbeat: None }
    }

    /// Says that this client lives, and learns what is durable.
    pub async fn ping(&self) -> FsResult<()> {
        let hurry = self.session.replay_log.lock().is_filling();
        let sent = clock::now();
        match self.call(&Request::Ping { commit: false, hurry }, Bulk::None).await? {
            Reply::Pong(_) => {
                *self.session.heard.lock() = sent;
                Ok(())
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// Asks a server for its `status` or `stats`, as JSON, or to `reset` the latter.
    pub fn ask(address: &Address, what: &str) -> Result<String, NetError> {
        let request = match what {
            "stats" => Request::Stats,
            "reset" => Request::ResetStats,
            _ => Request::Status,
        };
        match ask_once(address, random_client(), &request)? {
            Reply::Json(text) => Ok(text),
            Reply::Failed(_) => {
                Err(NetError::Refused("the certificate here does not allow that".into()))
            }
            _ => Err(NetError::Refused("it sent something else than JSON".into())),
        }
    }

    /// The connection of this thread, made when it is first needed.
    fn connection(&self) -> FsResult<Rc<Connection>> {
        Connection::of_thread(&self.session)
    }

    async fn call(&self, request: &Request<'_>, bulk: Bulk<'_>) -> FsResult<Reply> {
        let _span = Span::start(Layer::Net, request.op() as u8);
        let connection = self.connection()?;
        let (reply, data) = connection.call(request, &bulk).await?;
        if let Bulk::In(room) = bulk {
            let data = data.bytes();
            room.get_mut(..data.len()).ok_or(Errno::EPROTO)?.copy_from_slice(data);
            glint_telemetry::count(Counter::BytesCopied, data.len() as u64);
        }
        Ok(reply)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.session.stop.store(true, Ordering::Release);
        if let Some(heartbeat) = self.heartbeat.take() {
            heartbeat.thread().unpark();
            // It does not panic; and there is nothing left to do.
            let _ = heartbeat.join();
        }
        self.session.end();
    }
}

impl Transport for Remote {
    async fn mds(&self, cred: &Cred, request: &MdsRequest<'_>) -> Granting {
        if let MdsRequest::Setattr { ino, set } = request
            && (set.size.is_some() || set.mtime.is_some())
        {
            self.session.opens.closed(*ino).await;
        }
        let call = Request::Mds { cred: cred.clone(), request: request.clone() };
        match self.call(&call, Bulk::None).await {
            Ok(Reply::Mds { reply, grants, .. }) => (reply, grants),
            Ok(_) => (Err(Errno::EPROTO), Vec::new()),
            Err(errno) => (Err(errno), Vec::new()),
        }
    }

    async fn mds_soon(&self, cred: &Cred, request: &MdsRequest<'_>) -> FsResult<()> {
        let call = Request::Mds { cred: cred.clone(), request: request.clone() };
        let connection = self.connection()?;
        if let MdsRequest::Release { ino, .. } = request {
            self.session.opens.closing(*ino);
        }
        connection.post(&call).await
    }

    async fn ost(
        &self,
        ost: u16,
        request: OstRequest,
        capability: Option<Capability>,
        bulk: Bulk<'_>,
    ) -> FsResult<OstReply> {
        match self.call(&Request::Ost { ost, request, capability }, bulk).await? {
            Reply::Ost { reply, .. } => reply,
            _ => Err(Errno::EPROTO),
        }
    }

    fn unstable(&self, ino: Ino) -> Vec<(u16, ObjectId)> {
        self.session.replay_log.lock().objects_of(ino)
    }

    fn has_uncommitted(&self) -> bool {
        !self.session.replay_log.lock().is_empty()
    }

    fn take_failure(&self, ino: Ino) -> Option<Errno> {
        self.session.take_failure(ino)
    }

    fn welcome(&self) -> Welcome {
        self.session.welcome.clone()
    }

    fn set_lock_client(&self, lock_client: Weak<dyn LockClient>) {
        let _ = self.session.lock_client.set(lock_client);
    }

    async fn listen(&self) {
        crate::client::recalls::listen(&self.session).await;
    }

    fn is_away(&self) -> bool {
        self.session.outage.is_now() || self.silence() > Duration::from_millis(AWAY_MS)
    }

    fn silence(&self) -> Duration {
        clock::since(*self.session.heard.lock())
    }

    async fn cancel(&self, cancels: Vec<Cancel>) -> FsResult<()> {
        self.call(&Request::Cancel(cancels), Bulk::None).await.map(drop)
    }

    fn identity(&self) -> ClientIdentity {
        ClientIdentity {
            client: self.session.client,
            session: self.session.for_osses.clone(),
            secret: self.session.secret,
            in_process: false,
        }
    }

    async fn osses(&self) -> FsResult<Vec<OssInfo>> {
        match self.call(&Request::Osses, Bulk::None).await? {
            Reply::Osses(osses) => Ok(osses),
            _ => Err(Errno::EPROTO),
        }
    }

    async fn commit(&self) -> FsResult<()> {
        self.call(&Request::Ping { commit: true, hurry: false }, Bulk::None).await.map(drop)
    }

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

/// The conversation of an OSS with the server of its MDS, on the thread that calls.
pub struct OssLink {
    stream: Box<dyn ReadWrite>,
    address: Address,
    /// It was answered.
    is_heard: bool,
}

impl OssLink {
    /// Connects.
    pub fn connect(address: &Address) -> Result<OssLink, NetError> {
        let stream = connect_blocking(address)?;
        Ok(OssLink { stream, address: address.clone(), is_heard: false })
    }

    /// Says or asks something.
    pub fn ask(&mut self, request: OssRequest) -> Result<FsResult<OssReply>, NetError> {
        let asked = ask_on(&mut *self.stream, ClientId::IN_PROCESS, &Request::Oss(request));
        let reply = match self.is_heard {
            true => asked?,
            false => asked.map_err(|error| without_a_word(error, &self.address))?,
        };
        self.is_heard = true;
        match reply {
            Reply::Oss(reply) => Ok(reply),
            _ => Err(NetError::Refused("it does not know what an OSS is".into())),
        }
    }
}

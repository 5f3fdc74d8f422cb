//! The network transport of a client: one connection for each of its threads, so that a
//! reply arrives on the core that waits for it, and one that says that the client lives.
//!
//! Invariants:
//! - A request keeps its (client, slot, xid) until it is answered, over any number
//!   of connections. So it is executed once.
//! - After the server has started anew, it is told what is open, and what it lost is sent
//!   again, before anything else is.
//! - After this client was evicted, nothing that it was waiting for is sent again: its
//!   replies are forgotten, so it might be executed twice.

use crate::connection::{Envelope, reply_of, request_frame};
use crate::kept::{Kept, KeptRequest, Lost};
use crate::link::Link;
use crate::stream::{Address, ReadWrite};
use crate::{Granting, Holder, NetError, Transport};
use glint_proto::frame::{HEADER_BYTES, Header};
use glint_proto::limits::{
    CONNECTIONS_PER_CLIENT_MAX, PING_MS, RECONNECT_MS_MAX, RECONNECT_MS_MIN,
};
use glint_proto::lock::Cancel;
use glint_proto::message::{Hello, Reply, Request, Survived, Welcome};
use glint_proto::{
    Bulk, ClientId, Committed, Cred, Errno, FsResult, Ino, MdsReply, MdsRequest, OstReply,
    OstRequest, clock, deferred,
};
use glint_telemetry::{Layer, Span};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the first connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Which server to use.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Where it is.
    pub address: Address,
    /// Shown by `glint status` of the server.
    pub mount_point: String,
}

/// Opens of one inode: readers, writers.
pub(crate) type OpenCount = (u32, u32);

/// What all threads of a client share.
pub(crate) struct Shared {
    pub(crate) options: RemoteOptions,
    host: String,
    pub(crate) client: ClientId,
    pub(crate) welcome: Welcome,
    connections: AtomicU16,
    opens: Mutex<HashMap<Ino, OpenCount>>,
    /// Closes that were sent and not answered, and who waits for them.
    closing: Mutex<HashMap<Ino, (u32, Vec<Waker>)>>,
    pub(crate) kept: Mutex<Kept>,
    /// The run of the server whose transactions are counted here.
    pub(crate) run: AtomicU64,
    /// The largest that was heard of.
    committed: [AtomicU64; 2],
    /// Boot verifier of the server that knows what is open, and evictions before that.
    pub(crate) reopened: futures_util::lock::Mutex<(u64, u64)>,
    /// Counts evictions.
    pub(crate) evictions: AtomicU64,
    stop: AtomicBool,
    heartbeat: OnceLock<std::thread::Thread>,
    /// When the last ping that was answered was sent.
    heard: Mutex<Instant>,
    holder: OnceLock<Weak<dyn Holder>>,
}

/// A transport to servers on the network.
pub struct Remote {
    shared: Arc<Shared>,
    heartbeat: Option<JoinHandle<()>>,
}

thread_local! {
    static LINKS: RefCell<HashMap<ClientId, Rc<Link>>> = RefCell::default();
}

fn random_client() -> ClientId {
    ClientId(getrandom::u64().unwrap_or(u64::from(std::process::id())).max(1))
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Sends one request and waits for its reply, on the calling thread.
fn ask_on(
    stream: &mut dyn ReadWrite,
    client: ClientId,
    request: &Request<'_>,
) -> Result<Reply, NetError> {
    let io = |what: &str| {
        let what = what.to_owned();
        move |source| NetError::Io { what, source }
    };
    let out = request_frame(Envelope::request(request.op(), client), request)?;
    stream.write_all(&out).map_err(io("sending"))?;
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).map_err(io("waiting for an answer"))?;
    let header = Header::decode(&head)?;
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).map_err(io("receiving"))?;
    header.check(&body, &[])?;
    reply_of(&body)
}

fn connect_blocking(address: &Address) -> Result<Box<dyn ReadWrite>, NetError> {
    let io = |source| NetError::Io { what: "connecting".into(), source };
    address.connect_blocking(CONNECT_TIMEOUT).map_err(io)
}

fn ask_once(address: &Address, client: ClientId, request: &Request<'_>) -> Result<Reply, NetError> {
    let asked = ask_on(&mut *connect_blocking(address)?, client, request);
    asked.map_err(|error| match (error, address) {
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
    })
}

impl Remote {
    /// Connects to a server and learns what it serves.
    pub fn connect(options: RemoteOptions) -> Result<Remote, NetError> {
        let client = random_client();
        let host = host_name();
        let hello = Hello {
            host: host.clone(),
            mount_point: options.mount_point.clone(),
            known: false,
            boot_verifier: 0,
        };
        let Reply::Welcome(welcome) = ask_once(&options.address, client, &Request::Hello(hello))?
        else {
            return Err(NetError::Refused("it did not welcome this client".into()));
        };
        let shared = Shared::new(options, host, client, welcome);
        let for_thread = shared.clone();
        let heartbeat = std::thread::Builder::new()
            .name("lease".into())
            .spawn(move || for_thread.keep_lease())
            .map_err(|source| NetError::Io { what: "starting a thread".into(), source })?;
        let _ = shared.heartbeat.set(heartbeat.thread().clone());
        Ok(Remote { shared, heartbeat: Some(heartbeat) })
    }

    /// A client of a simulated world, which knows already what its server will say. Nobody
    /// keeps its lease but [`Remote::ping`].
    pub fn simulated(options: RemoteOptions, client: ClientId, welcome: Welcome) -> Remote {
        let shared = Shared::new(options, "simulated".into(), client, welcome);
        Remote { shared, heartbeat: None }
    }

    /// Says that this client lives, and learns what is durable.
    pub async fn ping(&self) -> FsResult<()> {
        let commit = self.shared.kept.lock().is_filling();
        let sent = clock::now();
        match self.call(&Request::Ping { commit }, Bulk::None).await? {
            Reply::Pong(committed) => {
                *self.shared.heard.lock() = sent;
                let run = self.shared.run.load(Ordering::Acquire);
                self.shared.committed(run, committed, &mut drop);
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
            _ => Err(NetError::Refused("it sent something else than JSON".into())),
        }
    }

    /// The connection of this thread, made when it is first needed.
    fn link(&self) -> FsResult<Rc<Link>> {
        LINKS.with_borrow_mut(|links| {
            if let Some(link) = links.get(&self.shared.client)
                && link.is_kept()
            {
                return Ok(link.clone());
            }
            let number = self.shared.connections.fetch_add(1, Ordering::Relaxed);
            if number >= CONNECTIONS_PER_CLIENT_MAX {
                return Err(Errno::EMFILE);
            }
            let link = Link::start(self.shared.clone(), number);
            links.insert(self.shared.client, link.clone());
            Ok(link)
        })
    }

    async fn call(&self, request: &Request<'_>, bulk: Bulk<'_>) -> FsResult<Reply> {
        let _span = Span::start(Layer::Net, request.op() as u8);
        let link = self.link()?;
        let (out, room) = match bulk {
            Bulk::None => (&[][..], None),
            Bulk::Out(data) => (data, None),
            Bulk::In(room) => (&[][..], Some(room)),
        };
        let (reply, data) = link.call(request, out).await?;
        if let Some(room) = room {
            room.get_mut(..data.len()).ok_or(Errno::EPROTO)?.copy_from_slice(&data);
        }
        Ok(reply)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(heartbeat) = self.heartbeat.take() {
            heartbeat.thread().unpark();
            // It does not panic; and there is nothing left to do.
            let _ = heartbeat.join();
        }
    }
}

impl Shared {
    fn new(
        options: RemoteOptions,
        host: String,
        client: ClientId,
        welcome: Welcome,
    ) -> Arc<Shared> {
        Arc::new(Shared {
            options,
            host,
            client,
            connections: AtomicU16::new(0),
            opens: Mutex::default(),
            closing: Mutex::default(),
            kept: Mutex::default(),
            run: AtomicU64::new(welcome.boot_verifier),
            committed: Default::default(),
            reopened: futures_util::lock::Mutex::new((welcome.boot_verifier, 0)),
            evictions: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            heartbeat: OnceLock::new(),
            heard: Mutex::new(clock::now()),
            holder: OnceLock::new(),
            welcome,
        })
    }

    /// Who keeps the locks of this client.
    pub(crate) fn holder(&self) -> Option<Arc<dyn Holder>> {
        self.holder.get().and_then(Weak::upgrade)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(crate) fn hello(&self) -> Request<'static> {
        Request::Hello(Hello {
            host: self.host.clone(),
            mount_point: self.options.mount_point.clone(),
            known: true,
            boot_verifier: self.run.load(Ordering::Acquire),
        })
    }

    /// Follows what this client has open, to be able to say it again: from the answer of an
    /// open to that of a close.
    pub(crate) fn note_open(&self, request: &MdsRequest<'_>, reply: &FsResult<MdsReply>) {
        if let (MdsRequest::Batch { changes, .. }, Ok(MdsReply::Batched { failed, .. })) =
            (request, reply)
        {
            let failed = |at: usize| failed.iter().any(|(number, _)| *number as usize == at);
            for (at, change) in deferred::changes(changes).flatten().enumerate() {
                match change.change.opening() {
                    Some((_, _, true)) if failed(at) => {}
                    Some((ino, write, opened)) => self.count_open(ino, write, opened),
                    None => {}
                }
            }
            return;
        }
        let (ino, write, opened) = match (request, reply) {
            (MdsRequest::Open { ino, flags }, Ok(_)) => (*ino, flags.write, true),
            (MdsRequest::Create { open: Some(flags), .. }, Ok(MdsReply::Opened { attr, .. })) => {
                (attr.ino, flags.write, true)
            }
            (MdsRequest::Tmpfile { .. }, Ok(MdsReply::Opened { attr, .. })) => {
                (attr.ino, true, true)
            }
            (MdsRequest::AddOpens { ino, readers }, Ok(_)) => {
                self.opens.lock().entry(*ino).or_default().0 += readers;
                return;
            }
            (MdsRequest::Release { ino, write, .. }, _) => (*ino, *write, false),
            _ => return,
        };
        if !opened {
            self.note_closed(ino);
        }
        self.count_open(ino, write, opened);
    }

    fn count_open(&self, ino: Ino, write: bool, opened: bool) {
        let mut opens = self.opens.lock();
        let count = opens.entry(ino).or_default();
        let which = if write { &mut count.1 } else { &mut count.0 };
        *which = if opened { *which + 1 } else { which.saturating_sub(1) };
        if *count == (0, 0) {
            opens.remove(&ino);
        }
    }

    /// A close is sent.
    pub(crate) fn closing(&self, ino: Ino) {
        self.closing.lock().entry(ino).or_default().0 += 1;
    }

    /// Until no close of a file is under way: it would arrive after what is done next, and
    /// bring an old size.
    async fn closed(&self, ino: Ino) {
        poll_fn(|context| match self.closing.lock().get_mut(&ino) {
            Some((_, waiters)) => {
                waiters.push(context.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        })
        .await
    }

    /// A close is answered.
    fn note_closed(&self, ino: Ino) {
        let mut closing = self.closing.lock();
        let Some((count, waiters)) = closing.get_mut(&ino) else { return };
        *count -= 1;
        if *count == 0 {
            waiters.drain(..).for_each(Waker::wake);
            closing.remove(&ino);
        }
    }

    pub(crate) fn opens(&self) -> Vec<(Ino, OpenCount)> {
        let mut opens: Vec<_> = self.opens.lock().iter().map(|(i, count)| (*i, *count)).collect();
        opens.sort_unstable();
        opens
    }

    /// A run of the server has said what is durable.
    pub(crate) fn committed(
        &self,
        run: u64,
        committed: Committed,
        spare: &mut impl FnMut(Vec<u8>),
    ) {
        if run != self.run.load(Ordering::Acquire) {
            return;
        }
        let news = |which: usize, now: u64| {
            now > self.committed[which].load(Ordering::Relaxed)
                && self.committed[which].fetch_max(now, Ordering::AcqRel) < now
        };
        let (mds, ost) = (news(0, committed.mds), news(1, committed.ost));
        if mds || ost {
            self.kept.lock().committed(committed, spare);
        }
    }

    /// From now on transactions of this run are counted. Returns what of the last one has to
    /// be sent again.
    pub(crate) fn count_anew(&self, run: u64, survived: Survived) -> Lost {
        let mut kept = self.kept.lock();
        self.run.store(run, Ordering::Release);
        self.committed.iter().for_each(|which| which.store(0, Ordering::Release));
        kept.after_restart(survived)
    }

    /// Keeps a request until its transaction is durable.
    pub(crate) fn keep_mds(&self, transaction: u64, frame: Vec<u8>, reply: MdsReply) {
        self.keep(|kept| kept.add_mds(transaction, KeptRequest { frame, reply }));
    }

    /// Keeps a change of data until it is durable.
    pub(crate) fn keep_ost(&self, transaction: u64, frame: Vec<u8>) {
        self.keep(|kept| kept.add_ost(transaction, frame));
    }

    fn keep(&self, add: impl FnOnce(&mut Kept)) {
        let mut kept = self.kept.lock();
        let was_filling = kept.is_filling();
        add(&mut kept);
        if !was_filling && kept.is_filling() {
            self.hurry();
        }
    }

    /// Has the server make things durable now.
    fn hurry(&self) {
        if let Some(heartbeat) = self.heartbeat.get() {
            heartbeat.unpark();
        }
    }

    /// Until there is room to keep another request.
    pub(crate) async fn room(&self) {
        poll_fn(|context| {
            let mut kept = self.kept.lock();
            if !kept.is_full() {
                return Poll::Ready(());
            }
            kept.wait(context.waker().clone());
            self.hurry();
            Poll::Pending
        })
        .await
    }

    /// The server has forgotten this client.
    pub(crate) fn evicted(&self) {
        self.evictions.fetch_add(1, Ordering::AcqRel);
        let lost = {
            let mut kept = self.kept.lock();
            let lost = kept.len();
            kept.after_restart(Survived::ALL);
            lost
        };
        tracing::error!(
            server = %self.options.address,
            lost,
            open = self.opens.lock().len(),
            "this client was evicted: the server had not heard of it for its whole lease; \
             requests under way fail, and the last {lost} changes were perhaps not yet on \
             stable storage"
        );
    }

    /// Says every now and then that this client lives, and learns what is durable.
    fn keep_lease(&self) {
        let mut pause = RECONNECT_MS_MIN;
        while !self.stop.load(Ordering::Acquire) {
            let mut connected = false;
            if let Err(error) = self.ping_until_end(&mut connected) {
                tracing::debug!(%error, "keeping the lease");
            }
            if connected {
                pause = RECONNECT_MS_MIN;
            }
            std::thread::park_timeout(Duration::from_millis(pause));
            pause = (2 * pause).min(RECONNECT_MS_MAX);
        }
    }

    fn ping_until_end(&self, connected: &mut bool) -> Result<(), NetError> {
        let mut stream = connect_blocking(&self.options.address)?;
        let run = match ask_on(&mut *stream, self.client, &self.hello())? {
            Reply::Welcome(welcome) => {
                if welcome.evicted {
                    self.evicted();
                }
                welcome.boot_verifier
            }
            _ => return Err(NetError::Closed),
        };
        *connected = true;
        while !self.stop.load(Ordering::Acquire) {
            let commit = self.kept.lock().is_filling();
            let sent = clock::now();
            let pong = ask_on(&mut *stream, self.client, &Request::Ping { commit })?;
            *self.heard.lock() = sent;
            if let Reply::Pong(committed) = pong {
                self.committed(run, committed, &mut drop);
            }
            if !self.kept.lock().is_filling() {
                std::thread::park_timeout(Duration::from_millis(PING_MS));
            }
        }
        ask_on(&mut *stream, self.client, &Request::Bye).map(drop)
    }
}

impl Transport for Remote {
    async fn mds(&self, cred: &Cred, request: &MdsRequest<'_>) -> Granting {
        if let MdsRequest::Setattr { ino, set } = request
            && (set.size.is_some() || set.mtime.is_some())
        {
            self.shared.closed(*ino).await;
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
        let link = self.link()?;
        if let MdsRequest::Release { ino, .. } = request {
            self.shared.closing(*ino);
        }
        link.post(&call).await
    }

    async fn ost(&self, ost: u16, request: OstRequest, bulk: Bulk<'_>) -> FsResult<OstReply> {
        match self.call(&Request::Ost { ost, request }, bulk).await? {
            Reply::Ost { reply, .. } => reply,
            _ => Err(Errno::EPROTO),
        }
    }

    fn welcome(&self) -> Welcome {
        self.shared.welcome.clone()
    }

    fn set_holder(&self, holder: Weak<dyn Holder>) {
        let _ = self.shared.holder.set(holder);
    }

    async fn listen(&self) {
        crate::listen::listen(&self.shared).await;
    }

    fn silence(&self) -> Duration {
        clock::since(*self.shared.heard.lock())
    }

    async fn cancel(&self, cancels: Vec<Cancel>) -> FsResult<()> {
        self.call(&Request::Cancel(cancels), Bulk::None).await.map(drop)
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
        self.call(&Request::ResetStats, Bulk::None).await.map(drop)
    }
}

//! The network transport of a client: one connection for each of its threads, so
//! that a reply arrives on the core that waits for it.
//!
//! Invariants:
//! - A request keeps its (client, slot, xid) until it is answered, over any number
//!   of connections. So it is executed once.
//! - After the server has started anew, it is told what is open before anything
//!   else is sent to it.

use crate::connection::{Envelope, FrameReader, FrameWriter, append_frame};
use crate::stream::Address;
use crate::{NetError, Transport};
use glint_proto::frame::{HEADER_BYTES, Header};
use glint_proto::limits::{
    CONNECTIONS_PER_CLIENT_MAX, RECONNECT_MS_MAX, RECONNECT_MS_MIN, SLOTS_PER_CONNECTION,
};
use glint_proto::message::{Hello, Reply, Request, Welcome};
use glint_proto::{
    Bulk, ClientId, Cred, Errno, FsResult, Ino, MdsReply, MdsRequest, Op, OstReply, OstRequest,
};
use glint_telemetry::{Layer, Span};
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io::{Read, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

/// How long the first connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Which server to use.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// HOST:PORT.
    pub address: String,
    /// Shown by `glint status` of the server.
    pub mount_point: String,
}

/// Opens of one inode: readers, writers.
type OpenCount = (u32, u32);

struct Shared {
    options: RemoteOptions,
    host: String,
    client: ClientId,
    welcome: Welcome,
    connections: AtomicU16,
    opens: Mutex<HashMap<Ino, OpenCount>>,
    /// Boot verifier of the server that knows what is open.
    reopened: futures_util::lock::Mutex<u64>,
}

/// A transport to servers on the network.
pub struct Remote {
    shared: Arc<Shared>,
}

thread_local! {
    static CONNECTIONS: RefCell<HashMap<ClientId, Rc<Connection>>> = RefCell::default();
}

fn random_client() -> ClientId {
    ClientId(getrandom::u64().unwrap_or(u64::from(std::process::id())).max(1))
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Sends one request and waits for its reply, on the calling thread.
fn ask_blocking(address: &str, client: ClientId, request: &Request<'_>) -> Result<Reply, NetError> {
    let io = |what: &str| {
        let what = what.to_owned();
        move |source| NetError::Io { what, source }
    };
    let address = Address::parse(address);
    let mut stream = address.connect_blocking(CONNECT_TIMEOUT).map_err(io("connecting"))?;
    let mut out = Vec::new();
    let envelope = Envelope {
        op: request.op(),
        reply: false,
        client,
        slot: 0,
        xid: 0,
        boot_verifier: 0,
        committed: 0,
    };
    append_frame(&mut out, envelope, request, &[])
        .map_err(|_| NetError::Refused("the request is too long".into()))?;
    stream.write_all(&out).map_err(io("sending"))?;
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).map_err(io("waiting for an answer"))?;
    let header = Header::decode(&head)?;
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).map_err(io("receiving"))?;
    header.check(&body, &[])?;
    match glint_proto::message::decode(&body) {
        Ok(Reply::Refused(reason)) => Err(NetError::Refused(reason)),
        Ok(reply) => Ok(reply),
        Err(_) => Err(NetError::Refused("it sent something else than a reply".into())),
    }
}

impl Remote {
    /// Connects to a server and learns what it serves.
    pub fn connect(options: RemoteOptions) -> Result<Remote, NetError> {
        let client = random_client();
        let host = host_name();
        let hello = Hello { host: host.clone(), mount_point: options.mount_point.clone() };
        match ask_blocking(&options.address, client, &Request::Hello(hello))? {
            Reply::Welcome(welcome) => Ok(Remote {
                shared: Arc::new(Shared {
                    options,
                    host,
                    client,
                    connections: AtomicU16::new(0),
                    opens: Mutex::default(),
                    reopened: futures_util::lock::Mutex::new(welcome.boot_verifier),
                    welcome,
                }),
            }),
            _ => Err(NetError::Refused("it did not welcome this client".into())),
        }
    }

    /// Asks a server for its `status` or `stats`, as JSON, or to `reset` the latter.
    pub fn ask(address: &str, what: &str) -> Result<String, NetError> {
        let request = match what {
            "stats" => Request::Stats,
            "reset" => Request::ResetStats,
            _ => Request::Status,
        };
        match ask_blocking(address, random_client(), &request)? {
            Reply::Json(text) => Ok(text),
            _ => Err(NetError::Refused("it sent something else than JSON".into())),
        }
    }

    /// The connection of this thread, made when it is first needed.
    fn connection(&self) -> FsResult<Rc<Connection>> {
        CONNECTIONS.with_borrow_mut(|connections| {
            if let Some(connection) = connections.get(&self.shared.client)
                && connection.is_kept.get()
            {
                return Ok(connection.clone());
            }
            let number = self.shared.connections.fetch_add(1, Ordering::Relaxed);
            if number >= CONNECTIONS_PER_CLIENT_MAX {
                return Err(Errno::EMFILE);
            }
            let connection = Rc::new(Connection::new(self.shared.clone(), number));
            compio_runtime::spawn(connection.clone().keep_connected()).detach();
            connections.insert(self.shared.client, connection.clone());
            Ok(connection)
        })
    }

    async fn call(&self, request: &Request<'_>, bulk: Bulk<'_>) -> FsResult<Reply> {
        let _span = Span::start(Layer::Net, request.op() as u8);
        let connection = self.connection()?;
        let (out, room) = match bulk {
            Bulk::None => (&[][..], None),
            Bulk::Out(data) => (data, None),
            Bulk::In(room) => (&[][..], Some(room)),
        };
        let (reply, data) = connection.call(request, out).await?;
        if let Some(room) = room {
            room.get_mut(..data.len()).ok_or(Errno::EPROTO)?.copy_from_slice(&data);
        }
        Ok(reply)
    }
}

impl Shared {
    /// Follows what this client has open, to be able to say it again.
    fn note_open(&self, request: &MdsRequest<'_>, reply: &FsResult<MdsReply>) {
        let (ino, write, opened) = match (request, reply) {
            (MdsRequest::Open { ino, flags }, Ok(_)) => (*ino, flags.write, true),
            (MdsRequest::Create { open: Some(flags), .. }, Ok(MdsReply::Opened { attr, .. })) => {
                (attr.ino, flags.write, true)
            }
            (MdsRequest::Tmpfile { .. }, Ok(MdsReply::Opened { attr, .. })) => {
                (attr.ino, true, true)
            }
            (MdsRequest::Release { ino, write, .. }, _) => (*ino, *write, false),
            _ => return,
        };
        let mut opens = self.opens.lock();
        let count = opens.entry(ino).or_default();
        let which = if write { &mut count.1 } else { &mut count.0 };
        *which = if opened { *which + 1 } else { which.saturating_sub(1) };
        if *count == (0, 0) {
            opens.remove(&ino);
        }
    }
}

impl Transport for Remote {
    async fn mds(&self, cred: &Cred, request: &MdsRequest<'_>) -> FsResult<MdsReply> {
        let call = Request::Mds { cred: cred.clone(), request: request.clone() };
        match self.call(&call, Bulk::None).await? {
            Reply::Mds(reply) => {
                self.shared.note_open(request, &reply);
                reply
            }
            _ => Err(Errno::EPROTO),
        }
    }

    async fn ost(&self, ost: u16, request: OstRequest, bulk: Bulk<'_>) -> FsResult<OstReply> {
        match self.call(&Request::Ost { ost, request }, bulk).await? {
            Reply::Ost(reply) => reply,
            _ => Err(Errno::EPROTO),
        }
    }

    fn welcome(&self) -> Welcome {
        self.shared.welcome.clone()
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

/// A request on its way.
struct Pending {
    /// The whole frame, to be sent again on the next connection.
    frame: Vec<u8>,
    xid: u64,
    answer: Option<Result<(Reply, Vec<u8>), Errno>>,
    waker: Option<Waker>,
    /// Nobody waits any more; the slot is free once the answer is there.
    abandoned: bool,
}

struct Connection {
    shared: Arc<Shared>,
    first_slot: u16,
    free_slots: RefCell<Vec<u16>>,
    waiting_for_slot: RefCell<VecDeque<Waker>>,
    next_xid: Cell<u64>,
    pending: RefCell<HashMap<u16, Pending>>,
    writer: RefCell<Option<Rc<FrameWriter>>>,
    /// The task that keeps it connected lives; it ends with its runtime, and the thread
    /// may have another one later.
    is_kept: Cell<bool>,
}

/// Says when the task that keeps a connection is gone.
struct Keeper<'a>(&'a Connection);

impl Drop for Keeper<'_> {
    fn drop(&mut self) {
        self.0.is_kept.set(false);
    }
}

impl Connection {
    fn new(shared: Arc<Shared>, number: u16) -> Connection {
        let first_slot = number * SLOTS_PER_CONNECTION;
        Connection {
            shared,
            first_slot,
            free_slots: RefCell::new((0..SLOTS_PER_CONNECTION).rev().collect()),
            waiting_for_slot: RefCell::default(),
            // A slot's xids rise over all connections of this client's life.
            next_xid: Cell::new(1),
            pending: RefCell::default(),
            writer: RefCell::new(None),
            is_kept: Cell::new(true),
        }
    }

    async fn take_slot(&self) -> u16 {
        poll_fn(|context| match self.free_slots.borrow_mut().pop() {
            Some(slot) => Poll::Ready(self.first_slot + slot),
            None => {
                self.waiting_for_slot.borrow_mut().push_back(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    fn free_slot(&self, slot: u16) {
        self.free_slots.borrow_mut().push(slot - self.first_slot);
        if let Some(waker) = self.waiting_for_slot.borrow_mut().pop_front() {
            waker.wake();
        }
    }

    async fn call(&self, request: &Request<'_>, bulk: &[u8]) -> FsResult<(Reply, Vec<u8>)> {
        let slot = self.take_slot().await;
        let xid = self.next_xid.get();
        self.next_xid.set(xid + 1);
        let envelope = Envelope {
            op: request.op(),
            reply: false,
            client: self.shared.client,
            slot,
            xid,
            boot_verifier: 0,
            committed: 0,
        };
        let mut frame = Vec::with_capacity(HEADER_BYTES + 128 + bulk.len());
        if let Err(errno) = append_frame(&mut frame, envelope, request, bulk) {
            self.free_slot(slot);
            return Err(errno);
        }
        let writer = self.writer.borrow().clone();
        if let Some(writer) = &writer {
            writer.queue().extend_from_slice(&frame);
        }
        let pending = Pending { frame, xid, answer: None, waker: None, abandoned: false };
        self.pending.borrow_mut().insert(slot, pending);
        let mut call = CallGuard { connection: self, slot, done: false };
        if let Some(writer) = writer {
            // If it fails, the connection's keeper notices and sends it again.
            let _ = writer.flush().await;
        }
        let answer = poll_fn(|context| {
            let mut all = self.pending.borrow_mut();
            let Some(pending) = all.get_mut(&slot) else { return Poll::Ready(Err(Errno::EIO)) };
            match pending.answer.take() {
                Some(answer) => Poll::Ready(answer),
                None => {
                    pending.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await;
        call.done = true;
        self.pending.borrow_mut().remove(&slot);
        self.free_slot(slot);
        answer
    }

    /// Connects, serves the connection until it breaks, and connects again, for the
    /// life of the thread.
    async fn keep_connected(self: Rc<Self>) {
        let _keeper = Keeper(&self);
        let mut pause = RECONNECT_MS_MIN;
        loop {
            let (connected, error) = self.connect_and_read().await;
            self.writer.replace(None);
            if connected {
                pause = RECONNECT_MS_MIN;
            }
            tracing::warn!(
                server = self.shared.options.address,
                "connection lost: {error}; trying again in {pause} ms"
            );
            compio_runtime::time::sleep(Duration::from_millis(pause)).await;
            pause = (pause * 2).min(RECONNECT_MS_MAX);
        }
    }

    /// Returns whether it was ever connected, and why it is not any more.
    async fn connect_and_read(&self) -> (bool, NetError) {
        let mut reader = match self.establish().await {
            Ok(reader) => reader,
            Err(error) => return (false, error),
        };
        loop {
            match self.receive(&mut reader).await {
                Ok(()) => {}
                Err(error) => return (true, error),
            }
        }
    }

    async fn establish(&self) -> Result<FrameReader, NetError> {
        let io = |source| NetError::Io { what: "connecting".into(), source };
        let address = Address::parse(&self.shared.options.address);
        let stream = address.connect().await.map_err(io)?;
        let mut reader = FrameReader::new(stream.clone());
        let writer = Rc::new(FrameWriter::new(stream));
        let hello = Request::Hello(Hello {
            host: self.shared.host.clone(),
            mount_point: self.shared.options.mount_point.clone(),
        });
        let welcome = match self.ask_first(&writer, &mut reader, &hello).await? {
            Reply::Welcome(welcome) => welcome,
            Reply::Refused(reason) => return Err(NetError::Refused(reason)),
            _ => return Err(NetError::Refused("it did not welcome this client".into())),
        };
        if welcome.fs_uuid != self.shared.welcome.fs_uuid {
            return Err(NetError::Refused(
                "another file system is served at this address now".into(),
            ));
        }
        {
            let mut reopened = self.shared.reopened.lock().await;
            if *reopened != welcome.boot_verifier {
                let opens: Vec<(Ino, OpenCount)> =
                    self.shared.opens.lock().iter().map(|(ino, count)| (*ino, *count)).collect();
                for (ino, (readers, writers)) in opens {
                    let request = MdsRequest::Reopen { ino, readers, writers };
                    let request = Request::Mds { cred: Cred::ROOT, request };
                    self.ask_first(&writer, &mut reader, &request).await?;
                }
                *reopened = welcome.boot_verifier;
            }
        }
        // Requests that were on their way, oldest first, under their old identity.
        let mut again: Vec<(u64, Vec<u8>)> = self
            .pending
            .borrow()
            .values()
            .filter(|pending| pending.answer.is_none())
            .map(|pending| (pending.xid, pending.frame.clone()))
            .collect();
        again.sort_unstable_by_key(|(xid, _)| *xid);
        for (_, frame) in again {
            writer.queue().extend_from_slice(&frame);
        }
        self.writer.replace(Some(writer.clone()));
        writer.flush().await?;
        Ok(reader)
    }

    /// A request and its answer before the connection is open to others.
    async fn ask_first(
        &self,
        writer: &FrameWriter,
        reader: &mut FrameReader,
        request: &Request<'_>,
    ) -> Result<Reply, NetError> {
        let envelope = Envelope {
            op: request.op(),
            reply: false,
            client: self.shared.client,
            slot: u16::MAX,
            xid: 0,
            boot_verifier: 0,
            committed: 0,
        };
        append_frame(&mut writer.queue(), envelope, request, &[])
            .map_err(|_| NetError::Refused("the request is too long".into()))?;
        writer.flush().await?;
        let (pass, frames) = reader.next_pass().await?;
        let frame = frames.first().ok_or(NetError::Closed)?;
        glint_proto::message::decode(pass.body(frame))
            .map_err(|_| NetError::Refused("it sent something else than a reply".into()))
    }

    async fn receive(&self, reader: &mut FrameReader) -> Result<(), NetError> {
        let (pass, frames) = reader.next_pass().await?;
        crate::keep_awake::beat_here();
        for frame in &frames {
            let header = &frame.header;
            let reply: Result<Reply, Errno> = glint_proto::message::decode(pass.body(frame));
            if header.op == Op::Other
                && let Ok(Reply::Refused(reason)) = reply
            {
                return Err(NetError::Refused(reason));
            }
            let mut all = self.pending.borrow_mut();
            let Some(pending) = all.get_mut(&header.slot) else { continue };
            if pending.xid != header.xid || pending.answer.is_some() {
                // An answer to a request that was sent twice and is done.
                continue;
            }
            if pending.abandoned {
                all.remove(&header.slot);
                drop(all);
                self.free_slot(header.slot);
                continue;
            }
            pending.answer = Some(reply.map(|reply| (reply, pass.bulk(frame).to_vec())));
            if let Some(waker) = pending.waker.take() {
                waker.wake();
            }
        }
        Ok(())
    }
}

/// Sees to the slot of a call that is dropped before it was answered.
struct CallGuard<'a> {
    connection: &'a Connection,
    slot: u16,
    done: bool,
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut all = self.connection.pending.borrow_mut();
        if let Some(pending) = all.get_mut(&self.slot) {
            if pending.answer.is_none() {
                pending.abandoned = true;
                return;
            }
            all.remove(&self.slot);
        }
        drop(all);
        self.connection.free_slot(self.slot);
    }
}

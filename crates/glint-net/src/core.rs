//! One core of a server: the connections it serves, and the passes over what has come in
//! on them.
//!
//! A pass takes requests from the scheduler and executes each to its end, on this thread;
//! one that has to wait is parked as a task. The replies of a pass leave in one write for
//! each connection. Time is read once per pass.
//!
//! Invariants:
//! - Nothing here waits while others could be served: not for a disk, not for a lock, not for
//!   a client that does not read.
//! - A client with more requests than slots, or one that does not take its replies, is not
//!   read from until that is over; it costs others a few requests.

use crate::connection::{Envelope, Frame, FrameReader, FrameWriter, Pass, append_frame};
use crate::door::Place;
use crate::once::Once;
use crate::polling::Poller;
use crate::scheduler::Scheduler;
use crate::served::{Connection, UNDER_WAY_MAX, is_patient};
use crate::spare::Spare;
use crate::stream::Stream;
use crate::{NetError, Service, capability, host, keep_awake, stats, subtree};
use futures_util::poll;
use glint_proto::frame::{FrameError, NO_SLOT};
use glint_proto::limits::*;
use glint_proto::message::{Reply, Request, Survived};
use glint_proto::{
    Answer, Arrival, Bulk, Capability, ClientId, Cred, Errno, FsResult, MdsReply, MdsRequest, Op,
    OstReply, OstRequest, Owner, RequestId, Session, Timestamp, clock,
};
use glint_telemetry::{Counter, Layer, traced};
use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// Slots of a client, over all its connections.
const SLOTS_MAX: u16 = SLOTS_PER_CONNECTION * CONNECTIONS_PER_CLIENT_MAX;
/// Requests of one pass.
const PASS_REQUESTS: usize = 32;
/// To whose session is over.
const EVICTED: &str = "this client was evicted: it was not heard of for its whole lease";

/// A core.
pub(crate) struct Core<S: Service> {
    service: Arc<S>,
    boot_verifier: u64,
    /// Shared by all cores.
    once: Arc<Once>,
    scheduler: RefCell<Scheduler<Job<S>>>,
    worker: RefCell<Option<Waker>>,
    poller: Rc<Poller>,
    /// Connections with replies to send.
    dirty: RefCell<Vec<Rc<Connection<S>>>>,
    connections: RefCell<Vec<Weak<Connection<S>>>>,
    /// What was answered is being brought to stable storage.
    hurrying: Cell<bool>,
    spare: Option<Spare>,
}

/// A request that waits for its turn.
struct Job<S: Service> {
    connection: Rc<Connection<S>>,
    pass: Rc<Pass>,
    frame: Frame,
    received: Instant,
}

impl<S: Service> Core<S> {
    /// Starts the tasks of a core, in the runtime of this thread.
    pub(crate) fn start(service: Arc<S>, once: Arc<Once>, spare: Option<Spare>) -> Rc<Core<S>> {
        let core = Rc::new(Core {
            boot_verifier: service.welcome().boot_verifier,
            service,
            once,
            scheduler: RefCell::new(Scheduler::new(QUEUED_REQUESTS_MAX)),
            worker: RefCell::new(None),
            poller: Poller::start(),
            dirty: RefCell::default(),
            connections: RefCell::default(),
            hurrying: Cell::new(false),
            spare,
        });
        host::spawn(core.clone().work());
        core
    }

    /// Serves a connection until its end.
    pub(crate) async fn serve(
        self: Rc<Self>,
        stream: Stream,
        place: Option<Place>,
    ) -> Result<(), NetError> {
        let peer = stream.peer()?;
        let mut reader = FrameReader::new(stream.clone());
        let connection = Rc::new(Connection {
            service: self.service.clone(),
            writer: FrameWriter::new(stream),
            peer,
            place: RefCell::new(place),
            top: Cell::new(None),
            session: OnceCell::new(),
            under_way: Cell::new(0),
            patient: Cell::new(0),
            reader: RefCell::default(),
            has_replies: Cell::new(false),
            unfinished: reader.unfinished(),
        });
        self.connections.borrow_mut().push(Rc::downgrade(&connection));
        loop {
            let (pass, frames) = match reader.next_pass().await {
                Ok(pass) => pass,
                Err(NetError::Closed) => {
                    // Requests that are parked keep the connection, and nobody reads from it.
                    connection.writer.close();
                    return Ok(());
                }
                Err(error) => {
                    self.refuse(&connection, &error).await;
                    return Err(error);
                }
            };
            let received = Instant::now();
            let before = connection.under_way.get();
            let more = frames.iter().filter(|frame| !is_patient(&frame.header)).count();
            let excess = (before + more).saturating_sub(UNDER_WAY_MAX);
            for frame in frames {
                self.queue(Job {
                    connection: connection.clone(),
                    pass: pass.clone(),
                    frame,
                    received,
                });
            }
            drop(pass);
            self.poller.wait_ends();
            if let Some(worker) = self.worker.borrow_mut().take() {
                worker.wake();
            }
            if excess > 0 {
                let session = connection.session.get();
                tracing::debug!(?session, excess, "more requests than slots; reading slowly");
                let pauses = 1 + (excess / UNDER_WAY_MAX) as u64;
                connection.room().await;
                let pause = Duration::from_millis(FLOOD_PAUSE_MS * pauses);
                host::sleep(pause).await;
            }
            connection.room().await;
        }
    }

    /// Queues a request, or answers that there are too many.
    fn queue(&self, job: Job<S>) {
        let header = job.frame.header;
        let connection = job.connection.clone();
        let count = connection.count(&header);
        count.set(count.get() + 1);
        if connection.patient.get() > PATIENT_REQUESTS_MAX {
            let reply = Err(Errno::ENOLCK);
            let reply = Reply::Mds { transaction: 0, reply, grants: Vec::new() };
            // It is short.
            let _ = self.reply(&connection, &header, 0, &reply, &[]);
            return;
        }
        let pushed = self.scheduler.borrow_mut().push(header.client, header.op.is_urgent(), job);
        if pushed.is_err() {
            glint_telemetry::count(Counter::Busy, 1);
            let busy = Reply::Busy { retry_ms: BUSY_RETRY_MS };
            // It is short.
            let _ = self.reply(&connection, &header, 0, &busy, &[]);
        }
    }

    /// The passes.
    async fn work(self: Rc<Self>) {
        loop {
            poll_fn(|context| {
                if !self.scheduler.borrow().is_empty() || !self.dirty.borrow().is_empty() {
                    return Poll::Ready(());
                }
                self.poller.wait_begins();
                self.worker.replace(Some(context.waker().clone()));
                Poll::Pending
            })
            .await;
            self.pass();
            self.send_replies();
            if !self.scheduler.borrow().is_empty() {
                // Requests that have come in meanwhile may be urgent.
                host::yield_now().await;
            }
        }
    }

    fn pass(self: &Rc<Self>) {
        if !self.poller.is_polling() {
            keep_awake::beat_here();
        }
        let (now, started) = (Timestamp::now(), Instant::now());
        let mut executed = 0;
        while executed < PASS_REQUESTS {
            let Some(job) = self.scheduler.borrow_mut().pop() else { break };
            executed += 1;
            let waited = started.saturating_duration_since(job.received).as_nanos() as u64;
            glint_telemetry::record(Layer::NetQueue, job.frame.header.op as u8, waited, waited);
            host::run_or_spawn(traced(self.clone().answer(job, now)));
        }
        glint_telemetry::count(Counter::Passes, 1);
        glint_telemetry::count(Counter::Requests, executed as u64);
    }

    /// Sends the replies of a pass, one write for each connection.
    fn send_replies(&self) {
        let mut dirty = std::mem::take(&mut *self.dirty.borrow_mut());
        for connection in dirty.drain(..) {
            connection.has_replies.set(false);
            // A client that does not read keeps nobody else waiting.
            host::run_or_spawn(send(connection));
        }
        self.dirty.replace(dirty);
    }

    /// Executes one request and queues its reply.
    async fn answer(self: Rc<Self>, job: Job<S>, now: Timestamp) {
        let connection = job.connection.clone();
        if let Err(error) = self.execute(job, now).await {
            let client = connection.session.get().map(|session| session.client());
            tracing::warn!(?client, "request refused: {error}");
            self.refuse(&connection, &error).await;
        }
    }

    async fn execute(self: &Rc<Self>, job: Job<S>, now: Timestamp) -> Result<(), NetError> {
        let Job { connection, pass, frame, .. } = job;
        let header = frame.header;
        let request: Request<'_> = glint_proto::message::decode(pass.body(&frame))
            .map_err(|_| FrameError::Body(header.op.name()))?;
        // It was queued as what its header says.
        if request.op() != header.op {
            return Err(FrameError::Body(header.op.name()).into());
        }
        if let Some(spare) = &self.spare {
            spare.permits(&request).await;
        }
        let client = header.client;
        let refused = |reason: &str| NetError::Refused(reason.into());
        let session = || match connection.session.get() {
            Some(session) if session.client() != client => Err(refused("another client's request")),
            Some(session) if session.is_over() => Err(refused(EVICTED)),
            Some(session) => Ok(session),
            None => Err(refused("a request before hello")),
        };
        // A client's replies are remembered for each of its slots.
        if header.slot >= SLOTS_MAX && header.slot != NO_SLOT {
            let reason = format!("slot {}: a client has {SLOTS_MAX}", header.slot);
            return Err(NetError::Refused(reason));
        }
        let changes = match &request {
            Request::Mds { request, .. } | Request::Replay { request, .. } => {
                request.is_modifying()
            }
            Request::Ost { request, .. } => request.is_modifying(),
            _ => false,
        };
        if changes && header.slot == NO_SLOT {
            return Err(NetError::Refused("a change without a slot".into()));
        }
        let id = RequestId { client, slot: header.slot, xid: header.xid };
        let rights = connection.rights();
        let metadata = async |cred: Cred, request: MdsRequest<'_>, replay, proof| {
            let session = &**session()?;
            let arrival = Arrival {
                session: Some(session),
                id: Some(id),
                digest: header.body_crc,
                now,
                replay,
            };
            let replay = arrival.replay.as_ref();
            let (cred, request) = match self
                .admit(&connection, session, cred, request, replay, proof)
                .await
            {
                Ok(admitted) => admitted,
                Err(errno) => {
                    return Ok(Reply::Mds { transaction: 0, reply: Err(errno), grants: vec![] });
                }
            };
            let Answer { transaction, mut reply, mut grants } =
                self.service.mds(&arrival, &cred, &request).await;
            if let (Some(rights), Ok(reply)) = (rights, &mut reply) {
                rights.reply(reply);
                if let Some(key) = self.service.key() {
                    grants.extend(key.grants(session.number(), &request, reply));
                }
            }
            Ok::<_, NetError>(Reply::Mds { transaction, reply, grants })
        };
        let mut bulk = Vec::new();
        let reply = match request {
            Request::Status => Reply::Json(connection.status()),
            Request::Stats => Reply::Json(stats::as_json("server")),
            Request::ResetStats if rights.is_some() => Reply::Failed(Errno::EACCES),
            Request::ResetStats => {
                glint_telemetry::reset();
                Reply::Json("[]".into())
            }
            Request::Hello(_) if connection.session.get().is_some() => {
                return Err(refused("hello was said before"));
            }
            Request::Hello(mut hello) => {
                hello.check().map_err(not_admitted)?;
                let mut welcome = self.service.welcome();
                // Before it is known to anybody: who is refused is not waited for later.
                if let Some(path) = rights.and_then(|rights| rights.subtree.as_deref()) {
                    let found = self.service.resolve(path).await;
                    let absent = |errno| NetError::Refused(format!("its subtree {path}: {errno}"));
                    welcome.root = found.map_err(absent)?;
                    connection.top.set(Some(welcome.root));
                }
                if client == ClientId::IN_PROCESS {
                    return Err(refused("this is nobody's id"));
                }
                connection.is_known()?;
                let certificate = connection.peer.certificate;
                let owner = Owner { certificate, secret: hello.secret };
                let connected = self.service.connect(client, &hello, owner).await;
                let (is_new, session) = connected.map_err(not_admitted)?;
                welcome.session = session.number();
                // Of two hellos at the same time one is too many.
                if let Err(session) = connection.session.set(session) {
                    self.service.disconnect(&session);
                    return Err(refused("hello was said before"));
                }
                welcome.capabilities = rights.is_some();
                let survived = self.service.survived(hello.boot_verifier);
                welcome.evicted = hello.known && (is_new || survived.is_none());
                welcome.survived = survived.unwrap_or(Survived::ALL);
                Reply::Welcome(welcome)
            }
            Request::Osses => {
                session()?;
                Reply::Osses(self.service.welcome().osses)
            }
            Request::Oss(_) if !connection.peer.may_be_oss() => Reply::Oss(Err(Errno::EACCES)),
            Request::Oss(request) => {
                connection.is_known()?;
                Reply::Oss(self.service.oss(connection.peer.name.as_deref(), request).await)
            }
            Request::Ping { commit, hurry } => {
                self.service.heard(session()?);
                // Alone, the spare would wait for the disk.
                let alone = self.spare.as_ref().is_some_and(Spare::is_alone);
                if hurry && !alone && !self.hurrying.replace(true) {
                    let core = self.clone();
                    host::spawn(async move {
                        // Who waits for it hears of the failure.
                        let _ = core.service.commit().await;
                        core.hurrying.set(false);
                    });
                }
                if commit {
                    self.service.commit().await.map_err(|e| NetError::Refused(e.to_string()))?;
                }
                Reply::Pong(self.service.committed())
            }
            Request::Bye => {
                let session = session()?;
                self.service.commit().await.map_err(|e| NetError::Refused(e.to_string()))?;
                self.service.goodbye(session).await;
                Reply::Pong(self.service.committed())
            }
            Request::Recovered => {
                let session = session()?;
                let _running = session.enter().map_err(|_| refused(EVICTED))?;
                self.service.recovered(session);
                Reply::Pong(self.service.committed())
            }
            Request::Cancel(cancels) => {
                let session = session()?;
                let _running = session.enter().map_err(|_| refused(EVICTED))?;
                self.service.cancel(session, &cancels);
                Reply::Pong(self.service.committed())
            }
            Request::Listen => {
                let session = session()?;
                let _running = session.enter().map_err(|_| refused(EVICTED))?;
                let listening = self.service.listen(session);
                let session = session.clone();
                host::spawn(self.clone().call_back(connection.clone(), session, listening));
                Reply::Callbacks(Vec::new())
            }
            Request::Mds { cred, request } => metadata(cred, request, None, None).await?,
            Request::Replay { cred, request, reply, proof } => {
                metadata(cred, request, Some(reply), proof).await?
            }
            Request::Ost { ost, request, capability } => {
                let (session, received) = (session()?, pass.bulk(&frame));
                let change = self.ost(session, ost, request, received, &mut bulk);
                let Answer { transaction, reply, .. } =
                    match self.admit_ost(&connection, session, &request, capability) {
                        Err(errno) => Answer::unchanged(Err(errno)),
                        Ok(()) if request.is_modifying() => {
                            self.once.run(session, id, change).await
                        }
                        Ok(()) => change.await,
                    };
                Reply::Ost { transaction, reply }
            }
        };
        let committed = match reply {
            Reply::Mds { .. } => self.service.committed().mds,
            Reply::Ost { .. } => self.service.committed().ost,
            _ => 0,
        };
        self.reply(&connection, &header, committed, &reply, &bulk)
    }

    /// What is executed for a request of a client, if it may say that.
    async fn admit<'a>(
        &self,
        connection: &Connection<S>,
        session: &Session,
        cred: Cred,
        request: MdsRequest<'a>,
        replay: Option<&MdsReply>,
        proof: Option<Capability>,
    ) -> FsResult<(Cred, MdsRequest<'a>)> {
        let Some(rights) = connection.rights() else { return Ok((cred, request)) };
        let made = replay.and_then(|reply| capability::made(&request, reply));
        let made = made.map(|ino| (ino, proof));
        self.key()?.admit_mds(session.number(), &request, made)?;
        subtree::admit(&*self.service, connection.top.get(), &request).await?;
        Ok((rights.cred(cred), rights.mds(request)?))
    }

    fn admit_ost(
        &self,
        connection: &Connection<S>,
        session: &Session,
        request: &OstRequest,
        capability: Option<Capability>,
    ) -> FsResult<()> {
        request.check()?;
        let Some(rights) = connection.rights() else { return Ok(()) };
        rights.ost(request)?;
        self.key()?.admit_ost(session.number(), request, capability)
    }

    fn key(&self) -> FsResult<&capability::Key> {
        self.service.key().ok_or(Errno::EAGAIN)
    }

    /// Says on a connection what its client is asked, until one of them is gone.
    async fn call_back(
        self: Rc<Self>,
        connection: Rc<Connection<S>>,
        session: Arc<Session>,
        listening: u64,
    ) {
        while let Some(callbacks) = self.service.callbacks(&session, listening).await {
            let envelope = Envelope {
                reply: true,
                boot_verifier: self.boot_verifier,
                ..Envelope::request(Op::Callback, session.client())
            };
            let reply = Reply::Callbacks(callbacks);
            let queued = append_frame(&mut connection.writer.queue(), envelope, &reply, &[]);
            if queued.is_err() || connection.writer.flush().await.is_err() {
                // What was asked is said again when the client listens anew.
                return;
            }
        }
    }

    async fn ost(
        &self,
        session: &Session,
        ost: u16,
        request: OstRequest,
        received: &[u8],
        bulk: &mut Vec<u8>,
    ) -> Answer<OstReply> {
        let space = match request {
            _ if request.is_write() => Bulk::Out(received),
            OstRequest::Read { len, .. } => {
                if len as usize > BULK_BYTES_MAX {
                    return Answer::unchanged(Err(Errno::EINVAL));
                }
                bulk.resize(len as usize, 0);
                Bulk::In(bulk)
            }
            _ => Bulk::None,
        };
        let answer = self.service.ost(session, ost, request, space).await;
        match answer.reply {
            Ok(OstReply::Data(len)) => bulk.truncate(len as usize),
            _ => bulk.clear(),
        }
        answer
    }

    /// Queues a reply; the end of the pass sends it.
    fn reply(
        &self,
        connection: &Rc<Connection<S>>,
        request: &glint_proto::frame::Header,
        committed: u64,
        reply: &Reply,
        bulk: &[u8],
    ) -> Result<(), NetError> {
        let envelope = Envelope {
            op: request.op,
            reply: true,
            client: request.client,
            slot: request.slot,
            xid: request.xid,
            boot_verifier: self.boot_verifier,
            committed,
        };
        append_frame(&mut connection.writer.queue(), envelope, reply, bulk)
            .map_err(|_| FrameError::Body(request.op.name()))?;
        let count = connection.count(request);
        count.set(count.get() - 1);
        if !connection.has_replies.replace(true) {
            self.dirty.borrow_mut().push(connection.clone());
            // Replies of requests that were parked wait for no other pass.
            if let Some(worker) = self.worker.borrow_mut().take() {
                worker.wake();
            }
        }
        Ok(())
    }

    /// Tells the peer why, and closes the connection.
    async fn refuse(&self, connection: &Connection<S>, error: &NetError) {
        let reason = error.reason();
        let envelope = Envelope {
            op: Op::Other,
            reply: true,
            client: ClientId(0),
            slot: NO_SLOT,
            xid: 0,
            boot_verifier: self.boot_verifier,
            committed: 0,
        };
        let reply = Reply::Refused(reason);
        let queued = append_frame(&mut connection.writer.queue(), envelope, &reply, &[]);
        if queued.is_ok() {
            // The peer may be gone; there is nobody else to tell. And it gets what fits
            // into its socket: one that does not read is not waited for.
            let _ = poll!(Box::pin(connection.writer.flush()));
        }
        connection.writer.close();
    }

    /// Closes connections that stopped in the middle of a frame, and those of clients that
    /// were evicted. To be called every now and then.
    pub(crate) async fn care(&self) {
        self.once.forget_ended();
        self.connections.borrow_mut().retain(|connection| connection.strong_count() > 0);
        let all: Vec<Rc<Connection<S>>> =
            self.connections.borrow().iter().filter_map(Weak::upgrade).collect();
        for connection in all {
            let limit = Duration::from_millis(FRAME_MS_MAX);
            let stalled = connection.unfinished.get().is_some_and(|t| clock::since(t) > limit);
            let evicted = connection.session.get().is_some_and(|session| session.is_over());
            let reason = match (stalled, evicted) {
                _ if connection.is_overdue() => "it has not said who it is",
                (true, _) => "nothing came after the beginning of a frame",
                (_, true) => EVICTED,
                _ => continue,
            };
            self.refuse(&connection, &NetError::Refused(reason.into())).await;
        }
    }
}

/// Why a hello was not good.
fn not_admitted(errno: Errno) -> NetError {
    NetError::Refused(match errno {
        Errno::EACCES => "the client of this id has shown another certificate or secret".into(),
        Errno::EAGAIN => "not yet: what it did before is being ended".into(),
        Errno::ESTALE => "its session is over".into(),
        Errno::ENAMETOOLONG => "its host or its mount point has too long a name".into(),
        errno => errno.to_string(),
    })
}

async fn send<S: Service>(connection: Rc<Connection<S>>) {
    if let Err(error) = connection.writer.flush().await {
        tracing::debug!(%error, "sending replies");
        connection.writer.close();
    }
    connection.wake_reader();
}

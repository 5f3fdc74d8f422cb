//! The worker, a thread of a server that owns a core and a ring: the connections that it
//! serves, and the passes over what has come in on them.
//!
//! A pass takes requests from the scheduler and executes each to its end, on this thread;
//! one that has to wait is parked as a task. The replies of a pass leave in one write for
//! each connection. Time is read once per pass.
//!
//! Invariants:
//! - Nothing here waits while others could be served: not for a disk, not for a lock, not for
//!   a client that does not read.
//! - Who is in the middle of a frame is given [`FRAME_MS_MAX`] in which this thread looked for its
//!   rest, however long a disk kept it from that.
//! - A client with more requests than slots, or one that does not take its replies, is not
//!   read from until that is over; it costs others a few requests.

use crate::cpu::polling::Poller;
use crate::cpu::tuning::note_work;
use crate::server::connection::{ServedConnection, UNDER_WAY_MAX, is_patient};
use crate::server::connection_limits::Place;
use crate::server::reply_cache::ReplyCache;
use crate::server::scheduler::Scheduler;
use crate::server::spare::Spare;
use crate::transport::frame_writer::FrameWriter;
use crate::transport::framing::{Envelope, Frame, FrameReader, Pass, append_frame};
use crate::transport::stream::Stream;
use crate::{NetError, Service, host, keep_awake};
use futures_lite::future::yield_now;
use futures_util::poll;
use glint_memory::{BufferPool, PooledBuffer};
use glint_proto::frame::{FrameError, NO_SLOT};
use glint_proto::limits::*;
use glint_proto::message::Reply;
use glint_proto::{ClientId, Errno, Op, Timestamp, clock};
use glint_telemetry::{Counter, Layer, event, traced};
use glint_wait::Signal;
use std::cell::{Cell, OnceCell, RefCell};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests of one pass.
const PASS_REQUESTS: usize = 32;
/// To whose session is over.
pub(crate) const EVICTED: &str = "this client was evicted: it was not heard of for its whole lease";

/// A thread of a server, with its core and its ring.
pub(crate) struct Worker<S: Service> {
    pub(crate) service: Arc<S>,
    pub(crate) boot_verifier: u64,
    /// Shared by all workers.
    pub(crate) reply_cache: Arc<ReplyCache>,
    scheduler: RefCell<Scheduler<Job<S>>>,
    /// Passes of the worker, which wait for requests and for replies.
    work: Signal,
    poller: Rc<Poller>,
    /// Connections with replies to send.
    dirty: RefCell<Vec<Rc<ServedConnection<S>>>>,
    connections: RefCell<Vec<Weak<ServedConnection<S>>>>,
    /// How long it has read from connections, and when that was counted last.
    read: Cell<Duration>,
    counted: Cell<Instant>,
    /// Whether answered changes are being brought to stable storage.
    pub(crate) hurrying: Cell<bool>,
    pub(crate) spare: Option<Spare>,
    /// For the data of replies.
    pub(super) buffers: BufferPool,
}

/// A request that waits for its turn.
pub(crate) struct Job<S: Service> {
    pub(crate) connection: Rc<ServedConnection<S>>,
    pub(crate) pass: Rc<Pass>,
    pub(crate) frame: Frame,
    received: Instant,
}

impl<S: Service> Worker<S> {
    /// Starts the tasks of a worker, in the runtime of this thread.
    pub(crate) fn start(
        service: Arc<S>,
        reply_cache: Arc<ReplyCache>,
        spare: Option<Spare>,
    ) -> Rc<Worker<S>> {
        let worker = Rc::new(Worker {
            boot_verifier: service.welcome().boot_verifier,
            service,
            reply_cache,
            scheduler: RefCell::new(Scheduler::new(QUEUED_REQUESTS_MAX)),
            work: Signal::default(),
            poller: Poller::start(),
            dirty: RefCell::default(),
            connections: RefCell::default(),
            read: Cell::default(),
            counted: Cell::new(clock::now()),
            hurrying: Cell::new(false),
            spare,
            buffers: BufferPool::default(),
        });
        host::spawn(worker.clone().work());
        worker
    }

    /// Serves a connection until its end.
    pub(crate) async fn serve(
        self: Rc<Self>,
        stream: Stream,
        place: Option<Place>,
    ) -> Result<(), NetError> {
        let peer = stream.peer()?;
        let mut reader = FrameReader::new(stream.clone());
        let connection = Rc::new(ServedConnection {
            service: self.service.clone(),
            writer: FrameWriter::new(stream),
            peer,
            place: RefCell::new(place),
            top: Cell::new(None),
            session: OnceCell::new(),
            under_way: Cell::new(0),
            patient: Cell::new(0),
            waits: RefCell::default(),
            reader: Signal::default(),
            has_replies: Cell::new(false),
            unfinished: reader.unfinished(),
            stalled: Cell::new(None),
            is_read: Cell::new(false),
            began: self.read.get(),
        });
        self.connections.borrow_mut().push(Rc::downgrade(&connection));
        let received = self.receive(&connection, &mut reader).await;
        connection.ends();
        received
    }

    /// Queues what comes in on a connection, until its end.
    async fn receive(
        &self,
        connection: &Rc<ServedConnection<S>>,
        reader: &mut FrameReader,
    ) -> Result<(), NetError> {
        loop {
            connection.is_read.set(true);
            let received = reader.next_pass().await;
            connection.is_read.set(false);
            let (pass, frames) = match received {
                Ok(pass) => pass,
                Err(NetError::Closed) => {
                    // Requests that are parked keep the connection, and nobody reads from it.
                    connection.writer.close();
                    return Ok(());
                }
                Err(error) => {
                    self.refuse(connection, &error).await;
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
            self.work.wake();
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
            // The reply is short, so it fits into a frame.
            let _ = self.reply(&connection, &header, 0, &reply, PooledBuffer::default());
            return;
        }
        let pushed = self.scheduler.borrow_mut().push(header.client, header.op.is_urgent(), job);
        if pushed.is_err() {
            glint_telemetry::count(Counter::Busy, 1);
            let busy = Reply::Busy { retry_ms: BUSY_RETRY_MS };
            // The reply is short, so it fits into a frame.
            let _ = self.reply(&connection, &header, 0, &busy, PooledBuffer::default());
        }
    }

    /// The passes.
    async fn work(self: Rc<Self>) {
        loop {
            let look = || {
                if !self.scheduler.borrow().is_empty() || !self.dirty.borrow().is_empty() {
                    return Some(());
                }
                self.poller.wait_begins();
                None
            };
            self.work.until(look).await;
            self.pass();
            self.send_replies();
            if !self.scheduler.borrow().is_empty() {
                // Requests that have come in meanwhile may be urgent.
                yield_now().await;
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
            let worker = self.clone();
            host::run_or_spawn(async move { traced(pin!(worker.answer(job, now))).await });
        }
        note_work(executed as u64);
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
            if matches!(error, NetError::Closed) {
                return;
            }
            let client = connection.session.get().map(|session| session.client());
            tracing::warn!(event = event::REQUEST_REFUSED, ?client, "request refused: {error}");
            self.refuse(&connection, &error).await;
        }
    }

    /// Queues a reply; the end of the pass sends it.
    pub(crate) fn reply(
        &self,
        connection: &Rc<ServedConnection<S>>,
        request: &glint_proto::frame::Header,
        committed: u64,
        reply: &Reply,
        bulk: PooledBuffer,
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
        connection
            .writer
            .push_reply(envelope, reply, bulk)
            .map_err(|_| FrameError::Body(request.op.name()))?;
        let count = connection.count(request);
        count.set(count.get() - 1);
        if !connection.has_replies.replace(true) {
            self.dirty.borrow_mut().push(connection.clone());
            // Replies of requests that were parked wait for no other pass.
            self.work.wake();
        }
        Ok(())
    }

    /// Tells the peer why, and closes the connection.
    async fn refuse(&self, connection: &ServedConnection<S>, error: &NetError) {
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

    /// Notes that this worker has just looked for what has come in on all connections. To be
    /// called often: what is longer than a pause counts as one, in which it did not look.
    pub(crate) fn note_looked(&self) {
        let passed = clock::since(self.counted.replace(clock::now()));
        self.read.set(self.read.get() + passed.min(Duration::from_millis(PAUSE_MS_MIN)));
    }

    /// Frees buffers that are not needed, and closes connections that stopped in the middle of a
    /// frame, and those of clients that were evicted. To be called every now and then.
    pub(crate) async fn close_stale(&self) {
        self.reply_cache.forget_ended();
        self.buffers.trim();
        self.connections.borrow_mut().retain(|connection| connection.strong_count() > 0);
        let all: Vec<Rc<ServedConnection<S>>> =
            self.connections.borrow().iter().filter_map(Weak::upgrade).collect();
        for connection in all {
            let stalled = connection.is_stalled(self.read.get());
            let evicted = connection.session.get().is_some_and(|session| session.is_over());
            let reason = match (stalled, evicted) {
                _ if connection.is_overdue(self.read.get()) => "it has not said who it is",
                (true, _) => "nothing came after the beginning of a frame",
                (_, true) => EVICTED,
                _ => continue,
            };
            self.refuse(&connection, &NetError::Refused(reason.into())).await;
        }
    }
}

async fn send<S: Service>(connection: Rc<ServedConnection<S>>) {
    if let Err(error) = connection.writer.flush().await {
        tracing::debug!(%error, "sending replies");
        connection.writer.close();
    }
    connection.wake_reader();
}

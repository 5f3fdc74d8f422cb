//! The connection of one thread of a client to its server: it is made again whenever it
//! breaks, and what had no answer is sent again on the next one.

mod call_guard;
mod keeper;
pub(crate) mod left;
pub(crate) mod slots;
pub(crate) mod state;
mod unclaimed;

use crate::client::connection::call_guard::CallGuard;
use crate::client::connection::left::LeftConnection;
use crate::client::connection::slots::{Slots, Use};
use crate::client::connection::state::ConnectionState;
use crate::client::opens::{ClientOpens, OpenedFile};
use crate::client::recovery::frames::{capability_of, is_of_chain, object_of, parse};
use crate::client::recovery::replay_log::{UncommittedRequest, UncommittedWrite};
use crate::client::recovery::resent::ResentChange;
use crate::client::session::{ClientSession, SyncMark};
use crate::cpu::polling::Poller;
use crate::transport::frame_writer::{FrameWriter, KeptFrame};
use crate::transport::framing::{Envelope, Frame, FrameReader, Pass, ReceivedBulk};
use crate::{NetError, host};
use glint_proto::frame::NO_SLOT;
use glint_proto::limits::{SLOTS_PER_CONNECTION, SOON_MS};
use glint_proto::message::{Reply, Request};
use glint_proto::{Bulk, Committed, Errno, FsResult, Op, OstRequest};
use glint_wait::Signal;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::Duration;

const SLOTS: usize = SLOTS_PER_CONNECTION as usize;
/// Buffers kept for the next requests, and the largest of them.
const SPARES: usize = 256;
const SPARE_BYTES: usize = 4096;

/// A request on its way, which has no answer yet.
pub(crate) struct Pending {
    /// The whole frame, to be sent again on the next connection.
    pub(crate) frame: KeptFrame,
    pub(crate) xid: u64,
    pub(crate) answer: Option<Result<(Reply, ReceivedBulk), Errno>>,
    pub(crate) waker: Option<Waker>,
    /// Nobody waits any more; the slot is free once the answer is there.
    pub(crate) abandoned: bool,
    /// It sends a change of a chain again: nothing newer is sent before it is answered.
    pub(super) resent: Option<ResentChange>,
    /// The server was busy: it has not executed the request, and is not asked again yet.
    pub(super) rests: bool,
    /// File that its answer says is open.
    pub(super) opened: Option<OpenedFile>,
    /// Mark of the sync, if the request syncs an object.
    pub(crate) sync: Option<SyncMark>,
    /// Evictions before it, if it may be sent in the session after those: a change of data may
    /// rest on a lock that is lost.
    pub(crate) session: Option<u64>,
}

impl Pending {
    /// Whether it has to be answered though nobody waits: nothing newer is sent before.
    pub(super) fn has_to_end(&self) -> bool {
        self.resent.as_ref().is_some_and(ResentChange::is_under_way)
    }

    /// Counts a file as closed if it is a close that nobody waits for and that will not be answered.
    pub(super) fn on_no_answer(&self, opens: &ClientOpens) {
        if self.abandoned
            && self.answer.is_none()
            && let Some((_, Request::Mds { request, .. })) = parse(&self.frame.head)
        {
            opens.on_failed(&request);
        }
    }
}

/// The connection of a thread.
pub(crate) struct Connection {
    pub(crate) session: Arc<ClientSession>,
    pub(super) first_slot: u16,
    slots: Slots,
    next_xid: Cell<u64>,
    /// By slot; behind the slots, requests that need none.
    pub(super) pending: RefCell<Vec<Option<Pending>>>,
    /// How many of them are waited for.
    awaited: Cell<usize>,
    /// Closed with the task that keeps it connected, which ends with its runtime; the thread may
    /// have another one later.
    pub(super) state: RefCell<ConnectionState<Rc<FrameWriter>>>,
    poller: Rc<Poller>,
    /// Something is queued that a timer sends if nothing else does before.
    soon: Cell<bool>,
    /// Something is queued, and who sends it.
    unsent: Cell<bool>,
    flusher: Signal,
    /// Files whose opens nobody claims.
    pub(super) unclaimed: RefCell<Vec<OpenedFile>>,
    spares: RefCell<Vec<Vec<u8>>>,
    /// Evictions after which what was under way has failed.
    pub(super) evictions: Cell<u64>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let (number, next_xid) = (self.first_slot / SLOTS_PER_CONNECTION, self.next_xid.get());
        let requests = self.pending.get_mut();
        let left = LeftConnection::of(number, next_xid, requests);
        requests.iter().flatten().for_each(|one| one.on_no_answer(&self.session.opens));
        let mut numbers = self.session.connection_numbers.lock();
        match left {
            Some(left) => numbers.leave(left),
            None => numbers.give_back(number, next_xid),
        }
    }
}

impl Connection {
    /// Connects, in the runtime of this thread.
    pub(super) fn start(
        session: Arc<ClientSession>,
        number: u16,
        first_xid: u64,
    ) -> Rc<Connection> {
        let connection = Rc::new(Connection::new(session, number, first_xid));
        host::spawn(connection.clone().keep());
        host::spawn(connection.clone().keep_flushing());
        connection
    }

    fn new(session: Arc<ClientSession>, number: u16, first_xid: u64) -> Connection {
        Connection {
            first_slot: number * SLOTS_PER_CONNECTION,
            slots: Slots::default(),
            // A slot's xids rise over all connections of this client's life.
            next_xid: Cell::new(first_xid),
            pending: RefCell::new((0..SLOTS).map(|_| None).collect()),
            awaited: Cell::new(0),
            state: RefCell::new(ConnectionState::Connecting),
            poller: Poller::start(),
            soon: Cell::new(false),
            unsent: Cell::new(false),
            flusher: Signal::default(),
            unclaimed: RefCell::default(),
            spares: RefCell::default(),
            evictions: Cell::new(session.evictions.load(Ordering::Acquire)),
            session,
        }
    }

    fn keep_spare(&self, KeptFrame { mut head, .. }: KeptFrame) {
        let mut spares = self.spares.borrow_mut();
        if head.capacity() <= SPARE_BYTES && spares.len() < SPARES {
            head.clear();
            spares.push(head);
        }
    }

    /// Puts a request into a slot and into the queue of the connection, if there is one.
    async fn enqueue(
        &self,
        request: &Request<'_>,
        bulk: &Bulk<'_>,
        abandoned: bool,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<u16> {
        self.session.room(request).await;
        self.session.session_of_today();
        self.on_evictions();
        let patient = matches!(request, Request::Mds { request, .. } if request.is_patient());
        let slot = match (patient, request) {
            (true, _) => self.slots.take_place(),
            (_, Request::Ost { .. } | Request::ReadObjects(_)) => self.slots.take(Use::Data).await,
            _ => self.slots.take(Use::Metadata).await,
        };
        if !is_held() {
            self.slots.give(slot);
            return Err(Errno::EIO);
        }
        let xid = self.next_xid.get();
        self.next_xid.set(xid + 1);
        let envelope = Envelope {
            slot: if patient { NO_SLOT } else { self.first_slot + slot },
            xid,
            ..Envelope::request(request.op(), self.session.client)
        };
        let head = self.spares.borrow_mut().pop().unwrap_or_default();
        let frame = match KeptFrame::new(head, envelope, request, bulk) {
            Ok(frame) => frame,
            Err(errno) => {
                self.slots.give(slot);
                return Err(errno);
            }
        };
        if let Some(writer) = self.state.borrow().writer() {
            writer.push(&frame);
        }
        let sync = match request {
            Request::Ost { to, request: OstRequest::Sync { object }, .. } => {
                Some(self.session.mark_sync((to.target(), *object)))
            }
            _ => None,
        };
        let fresh = matches!(request, Request::Mds { request, .. } if request.op() != Op::Batch);
        let session = fresh.then(|| self.session.evictions.load(Ordering::Acquire));
        let (answer, waker, resent, rests, opened) = Default::default();
        let pending =
            Pending { frame, xid, answer, waker, abandoned, resent, rests, opened, sync, session };
        let mut all = self.pending.borrow_mut();
        if all.len() <= usize::from(slot) {
            all.resize_with(usize::from(slot) + 1, || None);
        }
        all[usize::from(slot)] = Some(pending);
        drop(all);
        Ok(slot)
    }

    /// Leaves a connection of a session that is over.
    pub(super) fn on_evictions(&self) {
        let evictions = self.session.evictions.load(Ordering::Acquire);
        let writer = self.state.borrow_mut().on_evictions(evictions);
        if let Some(writer) = writer {
            writer.close();
        }
    }

    /// Has what is queued sent when the tasks that are ready now have run: what they have to
    /// send goes with it.
    pub(super) fn flush(&self) {
        self.unsent.set(true);
        self.flusher.wake();
    }

    async fn keep_flushing(self: Rc<Self>) {
        let is_closed = || self.state.borrow().is_closed();
        let has_work = || (self.unsent.replace(false) || is_closed()).then_some(());
        loop {
            self.flusher.until(has_work).await;
            if is_closed() {
                return;
            }
            let unclaimed = std::mem::take(&mut *self.unclaimed.borrow_mut());
            if !unclaimed.is_empty() {
                host::spawn(self.clone().close_unclaimed(unclaimed));
            }
            let writer = self.state.borrow().writer().cloned();
            if let Some(writer) = writer {
                // If it fails, the keeper notices and sends it again.
                let _ = writer.flush().await;
            }
        }
    }

    /// Sends a request and waits for its answer. EIO if `is_held` is not true any more when it has
    /// its place among those that are under way: an eviction from then on fails it.
    pub(crate) async fn call(
        &self,
        request: &Request<'_>,
        bulk: &Bulk<'_>,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<(Reply, ReceivedBulk)> {
        let slot = self.enqueue(request, bulk, false, is_held).await?;
        self.awaited.set(self.awaited.get() + 1);
        let mut call = CallGuard { connection: self, slot, done: false };
        loop {
            self.flush();
            self.poller.wait_begins();
            let answer = poll_fn(|context| {
                let mut all = self.pending.borrow_mut();
                let Some(pending) = &mut all[slot as usize] else {
                    return Poll::Ready(Err(Errno::EIO));
                };
                match pending.answer.take() {
                    Some(answer) => Poll::Ready(answer),
                    None => {
                        pending.waker = Some(context.waker().clone());
                        Poll::Pending
                    }
                }
            })
            .await;
            if let Ok((Reply::Busy { retry_ms }, _)) = answer {
                let xid = self.rest(slot);
                host::sleep(Duration::from_millis(retry_ms.into())).await;
                self.send_again(slot, xid);
                continue;
            }
            call.done = true;
            self.awaited.set(self.awaited.get() - 1);
            self.finish(slot);
            return answer;
        }
    }

    /// The server was busy. Until the request is sent again no new connection sends it.
    /// Returns the request's number.
    fn rest(&self, slot: u16) -> u64 {
        let mut all = self.pending.borrow_mut();
        all[slot as usize].as_mut().map_or(0, |pending| {
            pending.rests = true;
            pending.xid
        })
    }

    /// A server that was busy is asked again, on the next connection if there is none now. What an
    /// eviction has failed meanwhile is not.
    pub(super) fn send_again(&self, slot: u16, xid: u64) {
        let mut all = self.pending.borrow_mut();
        let Some(pending) = all[slot as usize].as_mut().filter(|pending| pending.xid == xid) else {
            return;
        };
        pending.rests = false;
        if pending.answer.is_none()
            && let Some(writer) = self.state.borrow().writer()
        {
            writer.push(&pending.frame);
        }
    }

    /// A request is answered.
    pub(super) fn finish(&self, slot: u16) {
        let pending = self.pending.borrow_mut()[slot as usize].take();
        if let Some(pending) = pending {
            self.keep_spare(pending.frame);
        }
        self.slots.give(slot);
    }

    /// Sends a request whose answer nobody waits for: with the next one, or soon.
    pub(crate) async fn post(self: Rc<Self>, request: &Request<'_>) -> FsResult<()> {
        self.enqueue(request, &Bulk::None, true, &|| true).await?;
        if !self.soon.replace(true) {
            host::spawn(async move {
                host::sleep(Duration::from_millis(SOON_MS)).await;
                self.soon.set(false);
                self.flush();
            });
        }
        Ok(())
    }

    pub(super) async fn receive(self: &Rc<Self>, reader: &mut FrameReader) -> Result<(), NetError> {
        let (pass, frames) = reader.next_pass().await?;
        if !self.is_active() {
            // Of a session that is over: what these answers give, the server has forgotten.
            return Err(NetError::Closed);
        }
        if !self.poller.is_polling() {
            crate::cpu::keep_awake::beat_here();
        }
        self.poller.wait_ends();
        crate::cpu::tuning::note_work(frames.len() as u64);
        for frame in &frames {
            self.on_reply(&pass, frame)?;
        }
        // Some may still be waited for.
        if frames.len() < self.awaited.get() {
            self.poller.wait_begins();
        }
        Ok(())
    }

    /// Whether its session is not over.
    fn is_active(&self) -> bool {
        self.state.borrow().is_active_after(self.session.evictions.load(Ordering::Acquire))
    }

    /// A reply has come.
    fn on_reply(self: &Rc<Self>, pass: &Rc<Pass>, frame: &Frame) -> Result<(), NetError> {
        let header = &frame.header;
        let reply: Result<Reply, Errno> = glint_proto::message::decode(pass.body(frame));
        if header.op == Op::Other
            && let Ok(Reply::Refused(reason)) = reply
        {
            return Err(NetError::Refused(reason));
        }
        // A run that has ended: what survived of it was asked on another connection, so this one asks
        // again, too.
        if header.boot_verifier != self.session.boot_verifier.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut all = self.pending.borrow_mut();
        let slot = match header.slot {
            NO_SLOT => {
                let asked = |pending: &Option<Pending>| {
                    pending.as_ref().is_some_and(|pending| pending.xid == header.xid)
                };
                all.iter().skip(SLOTS).position(asked).map_or(NO_SLOT, |at| (SLOTS + at) as u16)
            }
            slot => slot.wrapping_sub(self.first_slot),
        };
        let Some(Some(pending)) = all.get_mut(slot as usize) else { return Ok(()) };
        if pending.xid != header.xid || pending.answer.is_some() {
            // An answer to a request that was sent twice and is done.
            return Ok(());
        }
        // Another thread may begin to count another run, from now until the answer is kept.
        let run_log = match &reply {
            Ok(Reply::Mds { transaction, reply: Ok(_), .. })
            | Ok(Reply::Ost { transaction, reply: Ok(_) })
                if *transaction > 0 =>
            {
                let Some(log) = self.session.log_of_run(header.boot_verifier) else {
                    return Ok(());
                };
                // Evictions are counted with the log locked.
                if !self.is_active() {
                    return Err(NetError::Closed);
                }
                Some(log)
            }
            _ => None,
        };
        let (reply, run_log) = match (reply, run_log) {
            (Ok(Reply::Ost { .. }), Some(log)) if log.is_overtaken(&pending.frame.head) => {
                (Ok(Reply::Ost { transaction: 0, reply: Err(Errno::EREMCHG) }), None)
            }
            answered => answered,
        };
        if ClientOpens::follow(header.op)
            && let Ok(Reply::Mds { reply, grants, .. }) = &reply
            && let Some((_, Request::Mds { request, .. })) = parse(&pending.frame.head)
        {
            pending.opened = self.session.opens.on_answer(&request, reply, grants);
        }
        // Given back when the log is not locked any more.
        let abandoned = pending.abandoned.then(|| pending.frame.head.clone());
        match (&reply, run_log) {
            (Ok(Reply::Mds { transaction, reply: Ok(reply), grants }), Some(log)) => {
                let frame = std::mem::take(&mut pending.frame);
                let (reply, capability) = (reply.clone(), capability_of(grants));
                log.keep_request(
                    *transaction,
                    UncommittedRequest { frame, reply, capability, retry: None },
                );
            }
            (Ok(Reply::Ost { transaction, reply: Ok(_) }), Some(log)) => {
                // A call that was dropped was made at another member since, where it is logged.
                let is_elsewhere = pending.abandoned && is_of_chain(&pending.frame.head);
                let object = object_of(&pending.frame.head).filter(|_| !is_elsewhere);
                if let Some(object) = object {
                    let frame = std::mem::take(&mut pending.frame);
                    log.keep_write(*transaction, UncommittedWrite { frame, object, retry: None });
                }
            }
            _ => {}
        }
        if let (Some(head), Ok(reply)) = (abandoned, &reply) {
            self.give_back(&head, reply, pending.opened);
        }
        let committed = match reply {
            Ok(Reply::Pong(committed)) => committed,
            Ok(Reply::Ost { .. }) => Committed { mds: 0, ost: header.committed },
            _ => Committed { mds: header.committed, ost: 0 },
        };
        let spare = &mut |frame| self.keep_spare(frame);
        self.session.on_committed(header.boot_verifier, committed, spare);
        if let (Some(sync), Ok(Reply::Ost { reply: Ok(_), .. })) = (pending.sync, &reply) {
            self.session.on_synced(sync, spare);
        }
        if let (true, &Ok(Reply::Busy { retry_ms })) = (pending.abandoned, &reply)
            && (pending.has_to_end() || !is_of_chain(&pending.frame.head))
        {
            // Nobody waits, but it has to be done. One to a chain is made again by another call if
            // it has to be: from here it might come after newer changes. None of these is made
            // before one that has to end, of which a copy from the last connection may still come.
            drop(all);
            let (xid, connection) = (self.rest(slot), self.clone());
            host::spawn(async move {
                host::sleep(Duration::from_millis(retry_ms.into())).await;
                connection.send_again(slot, xid);
                connection.flush();
            });
            return Ok(());
        }
        if pending.abandoned {
            drop(all);
            self.finish(slot);
            return Ok(());
        }
        pending.answer = Some(reply.map(|reply| (reply, ReceivedBulk::of(pass, frame))));
        if let Some(waker) = pending.waker.take() {
            waker.wake();
        }
        Ok(())
    }
}

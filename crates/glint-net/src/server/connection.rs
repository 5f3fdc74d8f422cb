//! A connection, as the server that serves it sees it.
//!
//! Invariant: what waits for a lock ends with the connection on which it would be answered.

use crate::server::access::rights::{Peer, Rights};
use crate::server::connection_limits::Place;
use crate::transport::frame_writer::FrameWriter;
use crate::{AdminService, NetError, SessionService, status_for_everybody};
use futures_util::future::{AbortHandle, abortable};
use glint_proto::frame::{Header, NO_SLOT};
use glint_proto::limits::{BULK_BYTES_MAX, FRAME_MS_MAX, HELLO_MS_MAX, SLOTS_PER_CONNECTION};
use glint_proto::{Ino, Op, Session};
use glint_wait::Signal;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests that may be under way on one connection: its slots, and what needs none.
pub(crate) const UNDER_WAY_MAX: usize = SLOTS_PER_CONNECTION as usize + 4;
/// Replies that wait for a client that does not read them.
const BACKLOG_BYTES_MAX: usize = 2 * BULK_BYTES_MAX;

/// Requests of a connection that may wait for locks.
#[derive(Default)]
pub(crate) struct Waits {
    /// Nothing more is received.
    ended: bool,
    next: u64,
    all: BTreeMap<u64, AbortHandle>,
}

/// One connection.
pub(crate) struct ServedConnection<S: SessionService + AdminService> {
    pub(crate) service: Arc<S>,
    pub(crate) writer: FrameWriter,
    /// Peer at the other end.
    pub(crate) peer: Peer,
    /// Place among the connections of the server, where these are counted.
    pub(crate) place: RefCell<Option<Place>>,
    /// The part of the tree that it is bound to, if it is.
    pub(crate) top: Cell<Option<Ino>>,
    /// Session of the requests, once the client has said hello.
    pub(crate) session: OnceCell<Arc<Session>>,
    /// Requests received and not yet answered: those in slots, and those that wait for locks,
    /// which keep nobody from being read.
    pub(crate) under_way: Cell<usize>,
    pub(crate) patient: Cell<usize>,
    /// How to end those that wait.
    pub(crate) waits: RefCell<Waits>,
    /// Wakes the reader, which waits while too much is under way or not yet sent.
    pub(crate) reader: Signal,
    pub(crate) has_replies: Cell<bool>,
    /// Somebody waits for what comes in; and when it began, in time in which its worker has read.
    pub(crate) is_read: Cell<bool>,
    pub(crate) began: Duration,
    /// Since when it is in the middle of a frame.
    pub(crate) unfinished: Rc<Cell<Option<Instant>>>,
    /// Value of `unfinished`, and when it was seen first, in time in which the worker has read.
    pub(crate) stalled: Cell<Option<(Instant, Duration)>>,
}

impl<S: SessionService + AdminService> Drop for ServedConnection<S> {
    fn drop(&mut self) {
        if let Some(session) = self.session.get() {
            self.service.disconnect(session);
        }
    }
}

impl<S: SessionService + AdminService> ServedConnection<S> {
    /// Counter of a request.
    pub(crate) fn count(&self, request: &Header) -> &Cell<usize> {
        if is_patient(request) { &self.patient } else { &self.under_way }
    }

    /// Rights of the other end; `None` if it has all.
    pub(crate) fn rights(&self) -> Option<&Rights> {
        (!self.peer.rights.is_all()).then_some(&self.peer.rights)
    }

    /// Takes a place among those who have said who they are, if so many of its certificate may
    /// come.
    pub(crate) fn admit_peer(&self) -> Result<(), NetError> {
        let mut place = self.place.borrow_mut();
        match place.as_mut().is_none_or(|place| place.known(self.peer.certificate)) {
            true => Ok(()),
            false => {
                Err(NetError::Refused("there are too many connections of this certificate".into()))
            }
        }
    }

    /// Does what may wait, as long as this connection lasts; `None` if it ends before.
    pub(crate) async fn while_it_lasts<T>(&self, task: impl Future<Output = T>) -> Option<T> {
        let (task, handle) = abortable(task);
        let number = {
            let waits = &mut *self.waits.borrow_mut();
            if waits.ended {
                return None;
            }
            waits.next += 1;
            waits.all.insert(waits.next, handle);
            waits.next
        };
        let done = task.await.ok();
        self.waits.borrow_mut().all.remove(&number);
        done
    }

    /// Nothing more is received on it: nobody hears of what waits.
    pub(crate) fn ends(&self) {
        let mut waits = self.waits.borrow_mut();
        waits.ended = true;
        let all = std::mem::take(&mut waits.all);
        drop(waits);
        all.into_values().for_each(|handle| handle.abort());
    }

    /// Whether the rest of a frame has not come for too long, though it was read from, at this
    /// time of a worker that has read.
    pub(crate) fn is_stalled(&self, read: Duration) -> bool {
        let unfinished = self.unfinished.get().filter(|_| self.is_read.get());
        let seen = unfinished.map(|since| match self.stalled.get() {
            Some((before, seen)) if before == since => (since, seen),
            _ => (since, read),
        });
        self.stalled.set(seen);
        seen.is_some_and(|(_, seen)| {
            read.saturating_sub(seen) > Duration::from_millis(FRAME_MS_MAX)
        })
    }

    /// Whether it should have said who it is long ago, at this time of its worker.
    pub(crate) fn is_overdue(&self, read: Duration) -> bool {
        read.saturating_sub(self.began) > Duration::from_millis(HELLO_MS_MAX)
            && self.place.borrow().as_ref().is_some_and(Place::is_stranger)
    }

    /// The state of a server, as far as it is for the other end: administrators see all of it,
    /// others nothing of other clients nor of hosts.
    pub(crate) fn status(&self) -> String {
        let text = self.service.status();
        if self.rights().is_none() {
            return text;
        }
        let own = self.session.get().map(|session| session.client().to_string());
        status_for_everybody(&text, own.as_deref())
    }

    pub(crate) fn is_full(&self) -> bool {
        self.under_way.get() >= UNDER_WAY_MAX || self.writer.backlog() > BACKLOG_BYTES_MAX
    }

    /// Until the client has taken some of its replies.
    pub(crate) async fn room(&self) {
        self.reader.until(|| (!self.is_full()).then_some(())).await;
    }

    pub(crate) fn wake_reader(&self) {
        if !self.is_full() {
            self.reader.wake();
        }
    }
}

/// Whether a request may wait for a lock without being in anybody's way.
pub(crate) fn is_patient(request: &Header) -> bool {
    request.slot == NO_SLOT && matches!(request.op, Op::Flock | Op::Lock)
}

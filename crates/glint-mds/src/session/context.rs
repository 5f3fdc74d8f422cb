//! Context of an operation: the caller it acts for, and what it leaves for its answer.

use crate::error::OpResult;
use crate::locking::namespace_locks::Key;
use glint_proto::lock::{Bits, Grant};
use glint_proto::{
    Arrival, Attr, ClientId, Cred, FsResult, Ino, MdsReply, Placement, RequestGuard, Timestamp,
};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};

/// Everything an operation knows about its caller.
pub(crate) struct Context<'a> {
    pub(crate) cred: &'a Cred,
    pub(crate) client: ClientId,
    pub(crate) now: Timestamp,
    pub(crate) arrival: &'a Arrival<'a>,
    /// Since it changes something; see [`Context::begin`].
    running: RefCell<Option<RequestGuard<'a>>>,
    /// Of a change of a batch: the number of the inode that it makes, over how many OSTs that
    /// is laid out, and what the reply record says after it.
    given: Option<(Ino, Placement)>,
    pub(crate) progress: Option<MdsReply>,
    /// Whether the client gets locks, once somebody asked.
    pub(crate) locking: Cell<Option<bool>>,
    /// Inode that its maker was asked for, because nobody else knows it; see
    /// [`crate::locking::delegation`].
    pub(crate) asked_for: Cell<Ino>,
    /// Keys of what the operation changes; see [`crate::locking::commit_on_sharing`].
    pub(crate) changes: RefCell<SmallVec<[Key; 4]>>,
    /// Number of its transaction, if it had one.
    pub(crate) transaction: Cell<u64>,
    /// Bits that the operation changes, and grants to its caller; see
    /// [`crate::locking::client_locks`].
    pub(crate) changing: RefCell<SmallVec<[(Ino, Bits); 4]>>,
    pub(crate) grants: RefCell<Vec<Grant>>,
    /// Reply that was committed with its change, where its answer is compared with that.
    committed: RefCell<Option<Box<MdsReply>>>,
}

impl<'a> Context<'a> {
    /// Of a request that has just come.
    pub(crate) fn new(arrival: &'a Arrival<'a>, cred: &'a Cred) -> Context<'a> {
        Context {
            cred,
            client: arrival.id.map_or(ClientId::IN_PROCESS, |id| id.client),
            // A replayed change has the time at which it was first executed.
            now: arrival.replay.as_ref().and_then(attr_of).map_or(arrival.now, |attr| attr.ctime),
            arrival,
            running: RefCell::new(None),
            given: None,
            progress: None,
            locking: Cell::new(None),
            asked_for: Cell::new(Ino(0)),
            changes: RefCell::default(),
            transaction: Cell::new(0),
            changing: RefCell::default(),
            grants: RefCell::default(),
            committed: RefCell::default(),
        }
    }

    /// From here to [`Context::end`] it changes something for its session, which is not over
    /// before that: ESTALE if it is over already. Nothing on this way waits for a client.
    pub(crate) fn begin(&self) -> FsResult<()> {
        let mut running = self.running.borrow_mut();
        if let (None, Some(session)) = (&*running, self.arrival.session) {
            *running = Some(session.enter()?);
        }
        Ok(())
    }

    /// Ends what [`Context::begin`] began.
    pub(crate) fn end(&self) {
        self.running.take();
    }

    /// Notes the reply that was committed with the change, for [`Context::is_as_committed`]. A
    /// request without a number cannot be asked again.
    pub(crate) fn note_committed(&self, reply: &MdsReply) {
        if cfg!(debug_assertions) && self.arrival.id.is_some() {
            *self.committed.borrow_mut() = Some(Box::new(reply.clone()));
        }
    }

    /// Whether an answer is the reply that was committed with the change, if there was one: that is
    /// what the client hears when it asks again after a restart.
    pub(crate) fn is_as_committed(&self, answer: &OpResult) -> bool {
        match (self.committed.borrow().as_deref(), answer) {
            (None, _) => true,
            (Some(committed), Ok(reply)) => committed == reply,
            (Some(_), Err(_)) => false,
        }
    }

    /// Something changes that was not locked for it, because nobody knew it.
    pub(crate) fn changes(&self, key: Key) {
        self.changes.borrow_mut().push(key);
    }

    /// Whether the request was executed before, by a run that lost it.
    pub(crate) fn is_replay(&self) -> bool {
        self.arrival.replay.is_some()
    }

    /// Of one change of a batch.
    pub(crate) fn part<'b>(
        &'b self,
        cred: &'b Cred,
        now: Timestamp,
        given: Option<(Ino, Placement)>,
        progress: MdsReply,
    ) -> Context<'b> {
        let part = Context::new(self.arrival, cred);
        let locking = self.locking.clone();
        Context { now, given, progress: Some(progress), locking, ..part }
    }

    /// The number that the new inode has, and where it is laid out (over no OSTs: not said): from
    /// its client, or from when it was first made. See
    /// [`Mds::check_given`](crate::service::Mds::check_given).
    pub(crate) fn given(&self) -> Option<(Ino, Placement)> {
        let before = match self.arrival.replay.as_ref() {
            // The inode was there before the request, and has its number.
            Some(MdsReply::Opened { created: false, .. }) => None,
            replay => replay.and_then(attr_of),
        };
        self.given.or(before.map(|attr| (attr.ino, attr.layout.placement())))
    }
}

/// Attributes of the inode in an answer.
fn attr_of(reply: &MdsReply) -> Option<&Attr> {
    match reply {
        MdsReply::Attr(attr) | MdsReply::Opened { attr, .. } => Some(attr),
        _ => None,
    }
}

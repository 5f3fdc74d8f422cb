//! Changes of chains that are sent again, from then until no head makes them any more.
//!
//! A call that is dropped may leave its request with the head, which executes requests of several
//! connections in any order. So the change stays noted here until it has ended.
//!
//! Invariants:
//! - Before it has ended, nothing else is sent to its chain by the same row. By a newer row it is: a
//!   head that makes a change by that row begins none by an older one, and what it has begun has its
//!   turn before.
//! - Before it has ended, this client returns no lock of its file, nor ends its session (`lease.rs`).
//!   For that a newer row is not enough: a head that has not heard of it makes what is in its socket.
//!
//! A change ends with one of these:
//! - Its answer. On another connection it is sent again under its old number, also where its thread
//!   has ended (`connection/left.rs`). That keeps copies in old sockets from being executed, which
//!   the end of a connection does not.
//! - A sync that another head has answered by a newer row. It has taken over: all members that
//!   anybody may read know that row, make nothing by older ones, and have in doubt what they have
//!   made differently. Whoever returns the lock asks for that sync.
//! - The loss of the chain: nobody reads what servers that were given up still make.
//! - The eviction of this client: the MDS gives its locks to others once nothing of the session is
//!   executed anywhere.
//!
//! So a head that only this client cannot reach, and that stays the head, keeps all calls of this
//! client to the chain and such returns of locks waiting until it is evicted: a lease after the
//! recall, or sixteen if it writes to other servers meanwhile. Where nobody has recalled the lock (a
//! file is opened to be written, and its clean pages are forgotten) that is without a limit.
//!
//! A server in this process makes the change in a task of its own ([`InProcess`](crate::InProcess)):
//! that ends the change, or the thread does, with all that the server does on it.

use crate::client::chain_rows::ChainRows;
use crate::client::recovery::abandoned::ObjectToSync;
use crate::client::recovery::frames::{changed_chain, object_of};
use glint_proto::chain::{ChainVersion, Destination};
use glint_proto::{Ino, ObjectId, OstRequest};
use glint_wait::WaitList;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A head, and the row by which a change is sent to it.
type HeadByRow = (u16, ChainVersion);

/// Changes that are under way so, of all servers of a client.
#[derive(Default)]
pub(crate) struct ResentChanges {
    under_way: Mutex<ResentTable>,
    /// How many there are: mostly none. What must be seen was noted before a lock that the reader
    /// has taken since ([`ChainRows::moved`]).
    count: AtomicUsize,
    ended: WaitList,
}

#[derive(Default)]
struct ResentTable {
    next: u64,
    changes: Vec<ResentEntry>,
}

/// To whom a change is sent, and its object.
#[derive(Clone, Copy)]
struct ResentEntry {
    number: u64,
    to: HeadByRow,
    of: ObjectToSync,
}

/// One of them, until this is dropped.
pub(crate) struct ResentChange {
    rows: Arc<ChainRows>,
    number: u64,
}

impl ResentTable {
    fn note(&mut self, to: HeadByRow, of: ObjectToSync) -> u64 {
        self.next += 1;
        self.changes.push(ResentEntry { number: self.next, to, of });
        self.next
    }
}

impl ResentChanges {
    fn change<R>(&self, change: impl FnOnce(&mut ResentTable) -> R) -> R {
        let mut under_way = self.under_way.lock();
        let result = change(&mut under_way);
        self.count.store(under_way.changes.len(), Ordering::Relaxed);
        result
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    fn is_any(&self, is_meant: impl FnMut(&ResentEntry) -> bool) -> bool {
        !self.is_empty() && self.under_way.lock().changes.iter().any(is_meant)
    }

    /// Ends the waits for changes.
    fn end(&self, is_meant: impl Fn(&ResentEntry) -> bool) {
        self.change(|all| all.changes.retain(|one| !is_meant(one)));
        self.ended.wake();
    }

    /// Forgets everything: the MDS has evicted this client.
    pub(crate) fn clear(&self) {
        self.end(|_| true);
    }

    /// Forgets what was sent to the members of a chain: their servers were all given up.
    pub(crate) fn on_loss(&self, target: u16) {
        self.end(|one| one.to.1.target == target);
    }

    /// A head has answered a sync by this row. What was sent by older ones to others is made no more.
    pub(crate) fn on_synced(&self, (head, by): HeadByRow) {
        if self.is_empty() {
            return;
        }
        self.end(|one| {
            let (before, older) = one.to;
            older.target == by.target && older.version < by.version && before != head
        });
    }

    /// Has those look again who wait: some chain has a newer row.
    pub(crate) fn on_row(&self) {
        self.ended.wake();
    }
}

impl ResentChange {
    /// Notes a change before it is sent again.
    pub(crate) fn new(rows: &Arc<ChainRows>, to: HeadByRow, of: ObjectToSync) -> ResentChange {
        let number = rows.resent.change(|all| all.note(to, of));
        ResentChange { rows: rows.clone(), number }
    }

    /// Notes a change once more, if it is noted, for who may know of it longer.
    fn again(rows: &Arc<ChainRows>, to: HeadByRow, object: ObjectId) -> Option<ResentChange> {
        let number = rows.resent.change(|all| {
            let is_it = |one: &&ResentEntry| (one.to, one.of.object) == (to, object);
            let ResentEntry { to, of, .. } = *all.changes.iter().find(is_it)?;
            Some(all.note(to, of))
        })?;
        Some(ResentChange { rows: rows.clone(), number })
    }

    /// Notes what is left of a call with this frame that is dropped, if it sends a change again.
    pub(crate) fn of_dropped(rows: &Arc<ChainRows>, frame: &[u8]) -> Option<ResentChange> {
        if rows.resent.is_empty() {
            return None;
        }
        ResentChange::again(rows, changed_chain(frame)?, object_of(frame)?.1)
    }

    /// Notes what a server in this process is about to execute, if it makes a change again.
    pub(crate) fn of_own(
        rows: &Arc<ChainRows>,
        to: Destination,
        request: &OstRequest,
    ) -> Option<ResentChange> {
        if rows.resent.is_empty() || !request.is_modifying() {
            return None;
        }
        ResentChange::again(rows, (to.ost, to.chain?), request.object()?)
    }

    /// Whether a head may still make it: then it has to be answered.
    pub(crate) fn is_under_way(&self) -> bool {
        self.rows.resent.is_any(|one| one.number == self.number)
    }
}

impl Drop for ResentChange {
    fn drop(&mut self) {
        self.rows.resent.end(|one| one.number == self.number);
    }
}

impl ChainRows {
    /// Waits until nothing is under way that was sent again by this row, or there is a newer one.
    pub(crate) async fn until_none_resent(&self, by: ChainVersion) {
        // The rows are not looked at with the list locked.
        let is_newest = || self.get(by.target).is_some_and(|row| row.version == by.version);
        let is_one = || self.resent.is_any(|one| one.to.1 == by) && is_newest();
        self.resent.ended.until(|| (!is_one()).then_some(())).await;
    }

    /// Waits until no head makes a change any more that was sent to it again, of the files that are
    /// meant.
    pub(crate) async fn until_not_resent(&self, is_meant: impl Fn(Ino) -> bool + Copy) {
        self.resent.ended.until(|| (!self.is_resent(is_meant)).then_some(())).await;
    }

    /// Whether a head may still make a change of such a file that was sent to it again.
    pub(crate) fn is_resent(&self, is_meant: impl Fn(Ino) -> bool) -> bool {
        self.resent.is_any(|one| is_meant(one.of.object.ino))
    }

    /// The chain and the object of a change of such a file that was sent again to one that is the head
    /// no more, if another one is.
    pub(crate) fn resent_to_former_head(
        &self,
        is_meant: impl Fn(Ino) -> bool,
    ) -> Option<(u16, ObjectToSync)> {
        let all: Vec<ResentEntry> = self.resent.under_way.lock().changes.clone();
        let has_another_head = |(before, by): HeadByRow| {
            let now = self.get(by.target).and_then(|row| row.head());
            now.is_some_and(|now| now != before)
        };
        let is_former = |one: &ResentEntry| is_meant(one.of.object.ino) && has_another_head(one.to);
        let former = all.into_iter().find(is_former);
        former.map(|one| (one.to.1.target, one.of))
    }
}

//! Changes of chains that are sent again, from then until their head makes them no more.
//!
//! Invariant: no change of a chain that the client has given up is sent, or made, after a newer one
//! within one row. A call that is dropped may leave its request with the head, which executes
//! requests of several connections in any order. So such a request stays here, and nothing newer
//! is sent to the chain, nor is the lock of its file returned, until one of these:
//!
//! - It is answered. On a new connection it is sent again under its old number, which also keeps a
//!   copy of it on the old connection from being executed later.
//! - There is a newer row. Servers begin nothing by an older one; what they have begun has its turn
//!   before whatever is sent by the newer row, or is in doubt when another head takes over.
//! - The MDS has evicted this client. It gives locks to others once nothing of the old session is
//!   executed at any server.
//!
//! The end of a connection is none of them: what was sent on it may arrive and be executed later.
//! A head that is gone is out of the row within seconds, and whoever waits asks for rows. One that
//! is cut off from this client alone is waited for until it is reached; or the lock is recalled,
//! and the MDS evicts the client after a lease.
//!
//! Of a call to a server in this process nothing is left here when it is dropped. Its disk may
//! still make the change, and makes nothing else of the chain before (`members/terms.rs` of
//! `glint-server`).

use crate::client::chain_rows::ChainRows;
use crate::client::recovery::frames::{changed_chain, object_of};
use glint_proto::Ino;
use glint_proto::chain::ChainVersion;
use glint_wait::WaitList;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// By which row a change is sent, and its file.
#[derive(Clone, Copy)]
struct ResentEntry {
    number: u64,
    by: ChainVersion,
    ino: Ino,
}

/// One of them, until this is dropped.
pub(crate) struct ResentChange {
    rows: Arc<ChainRows>,
    number: u64,
}

impl ResentChanges {
    fn change<R>(&self, change: impl FnOnce(&mut ResentTable) -> R) -> R {
        let mut under_way = self.under_way.lock();
        let result = change(&mut under_way);
        self.count.store(under_way.changes.len(), Ordering::Relaxed);
        result
    }

    /// By which rows those are sent that are meant.
    fn rows_of(&self, is_meant: impl Fn(&ResentEntry) -> bool) -> Vec<ChainVersion> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let under_way = self.under_way.lock();
        under_way.changes.iter().filter(|one| is_meant(one)).map(|one| one.by).collect()
    }

    /// Forgets everything: the MDS has evicted this client.
    pub(crate) fn clear(&self) {
        self.change(|all| all.changes.clear());
        self.ended.wake();
    }

    /// Has those look again who wait: some chain has a newer row.
    pub(crate) fn on_row(&self) {
        self.ended.wake();
    }
}

impl ResentChange {
    /// Notes a change before it is sent again.
    pub(crate) fn new(rows: &Arc<ChainRows>, by: ChainVersion, ino: Ino) -> ResentChange {
        let number = rows.resent.change(|all| {
            all.next += 1;
            all.changes.push(ResentEntry { number: all.next, by, ino });
            all.next
        });
        ResentChange { rows: rows.clone(), number }
    }

    /// Notes what is left of a call with this frame that is dropped, if it sends a change again.
    pub(crate) fn of_dropped(rows: &Arc<ChainRows>, frame: &[u8]) -> Option<ResentChange> {
        if rows.resent.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let ((_, by), (_, object)) = (changed_chain(frame)?, object_of(frame)?);
        let is_resent = |one: &ResentEntry| (one.by, one.ino) == (by, object.ino);
        let is_one = !rows.resent.rows_of(is_resent).is_empty();
        is_one.then(|| ResentChange::new(rows, by, object.ino))
    }

    /// Whether a head may still make it before what is newer.
    pub(crate) fn is_under_way(&self) -> bool {
        self.rows.may_be_made(|one| one.number == self.number)
    }
}

impl Drop for ResentChange {
    fn drop(&mut self) {
        let ResentChange { rows, number } = self;
        rows.resent.change(|all| all.changes.retain(|one| one.number != *number));
        rows.resent.ended.wake();
    }
}

impl ChainRows {
    /// Waits until nothing is under way that was sent again by this row, or there is a newer one.
    pub(crate) async fn until_none_resent(&self, by: ChainVersion) {
        let is_over = || !self.may_be_made(|one| one.by == by);
        self.resent.ended.until(|| is_over().then_some(())).await;
    }

    /// Waits until no head makes a change of a file any more that was sent to it again.
    pub(crate) async fn until_not_resent(&self, ino: Ino) {
        self.resent.ended.until(|| (!self.is_resent(ino)).then_some(())).await;
    }

    /// Whether a head may still make a change of a file that was sent to it again.
    pub(crate) fn is_resent(&self, ino: Ino) -> bool {
        self.may_be_made(|one| one.ino == ino)
    }

    /// Whether one of those is under way that are meant, by a row that is still the newest.
    fn may_be_made(&self, is_meant: impl Fn(&ResentEntry) -> bool) -> bool {
        // The rows are not looked at with the list locked.
        let rows = self.resent.rows_of(is_meant);
        rows.into_iter().any(|by| self.get(by.target).is_some_and(|row| row.version == by.version))
    }
}

//! Changes of chains that are sent again, from then until their head makes them no more: nothing
//! newer is sent to the chain before, nor may others change the file.
//!
//! Invariant: a call that is dropped leaves its change here until that is answered. Requests of
//! several connections are executed in any order: it might be made after what is newer. By another
//! row than its own nobody makes it.

use crate::client::chain_rows::ChainRows;
use crate::client::recovery::frames::{changed_chain, object_of};
use glint_proto::Ino;
use glint_proto::chain::ChainVersion;
use glint_wait::WaitList;
use parking_lot::Mutex;
use std::sync::Arc;

/// Changes that are under way so, of all servers of a client.
#[derive(Default)]
pub(crate) struct ResentChanges {
    /// By which row each is sent, and its file.
    under_way: Mutex<Vec<(ChainVersion, Ino)>>,
    ended: WaitList,
}

/// One of them, until this is dropped.
pub(crate) struct ResentChange {
    rows: Arc<ChainRows>,
    by: ChainVersion,
    ino: Ino,
}

impl ResentChange {
    pub(crate) fn new(rows: &Arc<ChainRows>, by: ChainVersion, ino: Ino) -> ResentChange {
        rows.resent.under_way.lock().push((by, ino));
        ResentChange { rows: rows.clone(), by, ino }
    }

    /// What is left of a call with this frame that is dropped, if it sends a change again.
    pub(crate) fn of_dropped(rows: &Arc<ChainRows>, frame: &[u8]) -> Option<ResentChange> {
        if rows.resent.under_way.lock().is_empty() {
            return None;
        }
        let ((_, by), (_, object)) = (changed_chain(frame)?, object_of(frame)?);
        let is_resent = rows.resent.under_way.lock().contains(&(by, object.ino));
        is_resent.then(|| ResentChange::new(rows, by, object.ino))
    }

    /// Whether a head may still make it.
    pub(crate) fn is_by_newest_row(&self) -> bool {
        self.rows.is_newest(self.by)
    }
}

impl Drop for ResentChange {
    fn drop(&mut self) {
        let mut under_way = self.rows.resent.under_way.lock();
        if let Some(at) = under_way.iter().position(|one| *one == (self.by, self.ino)) {
            under_way.swap_remove(at);
        }
        drop(under_way);
        self.rows.resent.ended.wake();
    }
}

impl ChainRows {
    /// Waits until nothing is under way that was sent again by this row.
    pub(crate) async fn until_none_resent(&self, by: ChainVersion) {
        let is_one = || self.resent.under_way.lock().iter().any(|(row, _)| *row == by);
        self.resent.ended.until(|| (!is_one()).then_some(())).await;
    }

    /// Whether a head may still make a change of a file that was sent to it again.
    pub(crate) fn is_resent(&self, ino: Ino) -> bool {
        let under_way = self.resent.under_way.lock().clone();
        under_way.into_iter().any(|(by, of)| of == ino && self.is_newest(by))
    }

    /// Whether no newer row is known.
    fn is_newest(&self, by: ChainVersion) -> bool {
        self.get(by.target).is_some_and(|row| row.version == by.version)
    }
}

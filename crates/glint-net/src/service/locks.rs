//! Locks that clients keep: how they are recalled and returned.

use glint_proto::Session;
use glint_proto::lock::{Recall, Return};
use std::future::{Future, ready};

/// Recalls locks from clients, and hears of their return.
///
/// Promises: recalls of a client go to its last listening only, in their order, and those that
/// nobody heard are said again to the next one. Where no locks are given, nothing is recalled.
pub trait LockService {
    /// Takes locks that a client returns, or its answers to questions.
    fn return_locks(&self, _session: &Session, _returns: &[Return]) {}

    /// Begins to listen to recalls, for a client. Returns what names its listening.
    fn listen(&self, _session: &Session) -> u64 {
        0
    }

    /// The next recalls for a client; `None` when it is gone, or listens anew.
    fn recalls(
        &self,
        _session: &Session,
        _listening: u64,
    ) -> impl Future<Output = Option<Vec<Recall>>> {
        ready(None)
    }
}

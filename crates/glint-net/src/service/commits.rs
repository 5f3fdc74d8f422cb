//! Stable storage: what of the answered is there, and what was there when a run ended.

use glint_proto::message::Survived;
use glint_proto::{Committed, FsResult};
use std::future::Future;

/// Brings changes to stable storage, and says which are there.
///
/// Promises: what is said to be committed survives a loss of power; numbers only rise within a run.
pub trait CommitService {
    /// Everything answered so far to stable storage.
    fn commit(&self) -> impl Future<Output = FsResult<()>>;

    /// The last transactions on stable storage.
    fn last_committed(&self) -> Committed;

    /// True when nothing reaches stable storage any more, so that the server is about to end; unless it
    /// is false again before anybody has seen to that.
    fn has_failed(&self) -> bool;

    /// Transactions that survived of the run with this boot verifier; `None` if it is too long ago.
    fn survival(&self, boot_verifier: u64) -> Option<Survived>;
}

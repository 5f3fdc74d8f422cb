//! A request of a client that has no answer yet.

use crate::client::session::SyncMark;
use glint_proto::Errno;
use glint_proto::message::Reply;
use std::task::Waker;

/// A request on its way.
pub(crate) struct Pending {
    /// The whole frame, to be sent again on the next connection.
    pub(crate) frame: Vec<u8>,
    pub(crate) xid: u64,
    pub(crate) answer: Option<Result<(Reply, Vec<u8>), Errno>>,
    pub(crate) waker: Option<Waker>,
    /// Nobody waits any more; the slot is free once the answer is there.
    pub(crate) abandoned: bool,
    /// It syncs an object.
    pub(crate) sync: Option<SyncMark>,
    /// Evictions before it, if it may be sent in the session after those: a change of data may
    /// rest on a lock that is lost.
    pub(crate) session: Option<u64>,
}

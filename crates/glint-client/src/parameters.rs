//! Parameters of a client, which its servers and its mount set when it begins. None changes as long
//! as the client lives.

use glint_proto::Ino;
use glint_proto::limits::CACHE_MS_SHARED;
use glint_proto::message::Welcome;
use std::time::Duration;

/// Parameters under which a client works.
pub(crate) struct ClientParameters {
    /// The directory that it sees as the root.
    pub(crate) root: Ino,
    /// The servers give locks.
    pub(crate) gives_locks: bool,
    /// How long servers wait for a word of it before its locks are given to others.
    pub(crate) lease: Duration,
    /// For how long what is known without locks is relied on.
    pub(crate) cache_time: Duration,
    /// OSTs execute only what the MDS has explicitly allowed.
    pub(crate) needs_capabilities: bool,
    /// Changes are on stable storage when their call returns, and so data is at its OST.
    pub(crate) write_through: bool,
    /// Data is read ahead: it does not come from this process.
    pub(crate) reads_ahead: bool,
    /// Reading never changes an inode.
    pub(crate) noatime: bool,
}

impl ClientParameters {
    /// Parameters that the MDS sets in its welcome. It may be `in_process`.
    pub(crate) fn of(welcome: &Welcome, in_process: bool, noatime: bool) -> ClientParameters {
        ClientParameters {
            root: welcome.root,
            gives_locks: welcome.locks,
            lease: Duration::from_millis(welcome.lease_ms),
            cache_time: Duration::from_millis(welcome.cache_ms),
            needs_capabilities: welcome.capabilities,
            write_through: welcome.commit_sync,
            reads_ahead: !in_process,
            noatime,
        }
    }

    /// Whether no other client can change anything.
    pub(crate) fn is_alone(&self) -> bool {
        !self.gives_locks && self.cache_time > Duration::from_millis(CACHE_MS_SHARED)
    }
}

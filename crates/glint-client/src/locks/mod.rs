//! Locks that this client holds: on data and for programs, and how they are returned.

pub(crate) mod data_locks;
pub(crate) mod lease_watch;
pub(crate) mod posix;
pub(crate) mod recall;
pub(crate) mod reclaim;
pub(crate) mod return_queue;
pub(crate) mod threads;
pub(crate) mod turns;

use crate::locks::lease_watch::Suspension;
use crate::locks::posix::PosixLocks;
use crate::locks::recall::RecallInbox;
use crate::locks::return_queue::ReturnQueue;

/// State that keeping locks needs beside the locks of each inode.
#[derive(Default)]
pub(crate) struct LockKeeping {
    /// Recalls of servers, for the thread that answers.
    pub(crate) inbox: RecallInbox,
    /// Locks to return, until they are sent.
    pub(crate) returns: ReturnQueue,
    /// POSIX locks that programs hold.
    pub(crate) posix: PosixLocks,
    /// Until when what is cached may be used.
    pub(crate) suspension: Suspension,
}

//! Locks that this client holds: on data and for programs, and how they are returned.

pub(crate) mod data_locks;
pub(crate) mod lease_watch;
pub(crate) mod posix;
pub(crate) mod recall;
pub(crate) mod reclaim;
pub(crate) mod threads;
pub(crate) mod turns;

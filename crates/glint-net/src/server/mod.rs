//! Servers: connections that come, the worker that serves them, and the passes in which it
//! executes requests.

pub(crate) mod access;
pub(crate) mod commits;
pub(crate) mod connection;
pub(crate) mod connection_limits;
pub(crate) mod execute;
pub(crate) mod listener;
pub(crate) mod reads;
pub(crate) mod refusals;
pub(crate) mod reply_cache;
pub(crate) mod scheduler;
pub(crate) mod spare;
pub(crate) mod worker;

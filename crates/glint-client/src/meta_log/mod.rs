//! The write-back log: changes of names and attributes that this client makes under a delegation,
//! and sends later.

mod flush_before;
pub(crate) mod local_ops;
pub(crate) mod log;
mod sender;

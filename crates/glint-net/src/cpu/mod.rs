//! Processors: the runtime of a thread, how long it looks for work before it sleeps, and what
//! keeps a core from slowing down meanwhile.

pub mod keep_awake;
pub mod polling;
pub(crate) mod runtime;

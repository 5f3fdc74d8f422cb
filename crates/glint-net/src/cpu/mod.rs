//! Processors: the runtime of a thread, how long it looks for work before it sleeps, what keeps a
//! core from slowing down meanwhile, and whether these pay.

pub mod keep_awake;
pub mod polling;
pub(crate) mod runtime;
mod trial;
pub(crate) mod tuning;

//! Wire format: frames, messages, and their parts. The modules are those of the crate, too.

pub mod by_hand;
pub mod capability;
pub mod deferred;
pub mod extents;
pub mod frame;
#[cfg(test)]
mod golden;
pub mod lock;
pub mod message;
pub mod op;
pub mod oss;
pub mod reclaim;
pub(crate) mod rpc;

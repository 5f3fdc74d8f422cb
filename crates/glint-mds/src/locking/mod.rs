//! Locks: those of an operation while it runs ([`namespace_locks`]), those that clients hold
//! ([`client_locks`], [`recalls`], [`delegation`], [`client_data_locks`]), those of programs
//! ([`posix_locks`]), and switches of layouts that others wait for ([`move_doubts`]).

pub(crate) mod client_data_locks;
pub(crate) mod client_locks;
pub(crate) mod commit_on_sharing;
pub(crate) mod delegation;
pub(crate) mod move_doubts;
pub(crate) mod namespace_locks;
pub(crate) mod posix_locks;
mod recall_queue;
pub(crate) mod recalls;

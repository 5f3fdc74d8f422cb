//! Locks: those of an operation while it runs ([`namespace_locks`]), those that clients hold
//! ([`claims`], [`recalls`], [`delegation`], [`data_claims`]), and those of programs ([`posix_locks`]).

pub(crate) mod claims;
pub(crate) mod commit_on_sharing;
pub(crate) mod data_claims;
pub(crate) mod delegation;
pub(crate) mod namespace_locks;
pub(crate) mod posix_locks;
pub(crate) mod recalls;

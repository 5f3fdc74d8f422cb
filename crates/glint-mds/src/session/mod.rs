//! Clients: their sessions, what they have open, and what is left of them after a restart.

pub(crate) mod batch;
pub(crate) mod boot_history;
pub(crate) mod context;
pub(crate) mod open_files;
pub(crate) mod recovery;
pub(crate) mod sessions;

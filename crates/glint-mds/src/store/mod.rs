//! Inodes, entries and numbers, as the engine below stores them and as they are found again.

pub(crate) mod alloc;
pub(crate) mod directories;
#[cfg(test)]
mod golden;
pub(crate) mod keys;
pub(crate) mod names;
pub(crate) mod record;
pub(crate) mod subtree;
pub(crate) mod tables;

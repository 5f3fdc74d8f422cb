//! The table of chains: who holds which copies, and may be used for what.

pub(crate) mod contents;
pub(crate) mod drain;
pub(crate) mod emptied;
pub(crate) mod losses;
pub(crate) mod membership;
pub(crate) mod named_files;
pub(crate) mod outdated;
pub(crate) mod placement;
pub(crate) mod policy;
pub(crate) mod relaid;
pub(crate) mod table;

//! Space and bandwidth: what users may still write, what is kept for whom, and how fast.

pub(crate) mod bandwidth;
pub(crate) mod grants;
pub(crate) mod reserve;

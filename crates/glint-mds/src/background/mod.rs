//! Work that no request waits for: removing what nothing leads to any more, and the offline check.

pub(crate) mod check;
pub(crate) mod destroyed;
pub(crate) mod reaper;

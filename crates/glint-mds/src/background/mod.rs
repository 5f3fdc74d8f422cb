//! Work that no request waits for: removing what nothing leads to any more, and the checks.

pub(crate) mod check;
pub(crate) mod check_online;
pub(crate) mod destroyed;
pub(crate) mod namespace_pages;
pub(crate) mod object_uses;
pub(crate) mod reaper;

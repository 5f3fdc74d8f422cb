//! Commands about where data lies, and in what state it is: a file each.

mod drain;
mod file_handle;
pub(crate) mod heal;
pub(crate) mod lost;
mod moves;
mod order;
pub(crate) mod ost;
pub(crate) mod rebalance;
pub(crate) mod restripe;
pub(crate) mod scrub;
pub(crate) mod stripe;

//! Data of files that moves to other OSTs while it is used.

mod drain;
mod rebalance;
mod restripe;

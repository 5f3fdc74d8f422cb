//! The world of a run: machines, their network and disks, and the dice.

pub(crate) mod chance;
pub(crate) mod executor;
pub(crate) mod felled;
pub(crate) mod hosts;
pub(crate) mod kernel;
pub(crate) mod lapses;
pub(crate) mod moved;
pub(crate) mod network;
pub(crate) mod peers;
pub(crate) mod records;
pub(crate) mod removed;

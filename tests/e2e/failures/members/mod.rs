//! Members of chains that fail in every way, under load that is compared with what was
//! acknowledged.
//!
//! Promises: at any time one member is struck at most, and the next one only when all members serve
//! again; whoever fails says which seed, round, way and member it was.

mod at_random;
mod cold;
mod crew;
mod faults;
mod oss_hosts;
mod programs;
mod stamps;
mod tree;
mod verified;

//! Tests of the client on servers that do what a test says, one binary for all.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod ahead;
mod closes;
mod data_write_back;
mod delegations;
mod directories;
mod fs_stat;
mod grants;
mod lookups;
mod memory;
mod moves;
mod scans;
mod silence;
#[path = "../support/mod.rs"]
mod support;

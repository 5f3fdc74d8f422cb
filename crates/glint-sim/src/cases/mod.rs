//! Worlds of one purpose each, which random runs do not meet or cannot judge: a test calls each of
//! them (`tests/cases.rs`), and they panic where it fails. They are not tests beside their code,
//! because all of the simulation would be built a second time for those.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

pub mod attributes;
pub mod copies;
pub mod failed_disk;
pub mod random;
pub mod requests;
pub mod round_trips;

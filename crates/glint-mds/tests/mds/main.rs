//! Tests of the MDS on an engine in memory, one binary for all: the generic code of the engine is
//! compiled once.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod changed_directories;
mod check;
mod copies;
mod drain;
mod listing;
mod model;
mod operations;
mod races;
mod sessions;
#[path = "../support/mod.rs"]
mod support;
mod writers;
mod xattrs;

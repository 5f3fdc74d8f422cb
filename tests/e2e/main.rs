//! The end-to-end tests, one binary for all suites: `cluster::heal::NAME` is a test of
//! `cluster/heal.rs`. The runner (`runner/`) gives each test a process of its own.

mod cluster;
mod failures;
mod mount;

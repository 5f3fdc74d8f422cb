//! Deterministic simulation of clients and servers that fail.
//!
//! Promises: the same seed gives the same run. The code under test is the real one: the
//! client library, its connections and replay log, frames, the service loop and its
//! scheduler, the MDS, the OSTs, the servers that are made of them and how they are one cluster (joining,
//! heartbeats, orders, fences). Only what touches a machine is simulated: the network, which delays,
//! repeats and reorders requests and breaks connections anywhere; time; the engine of the MDS, which
//! keeps what was synced, and makes some reads wait; the disks of OSTs, which keep at least that, and fail, fill up and stand
//! still. Processes are killed and power is lost at any point.
//!
//! The oracle: every call returns what it must, once, whatever happens in between; what the
//! contract says survives is there, or an error was told; the namespace is consistent at the end; nothing hangs. In some
//! runs a client that keeps to no rule says anything at any time, and nobody else notices.
//!
//! Does not know: FUSE, threads, real disks, and of kernels no more than the pages of files that
//! they keep. Those are what the end-to-end tests are for.

pub mod cases;
mod contested;
mod fate;
pub mod fuzz;
mod hostile;
mod oracle;
mod power_losses;
mod scenario;
mod truncations;
mod workload;
mod world;

pub use power_losses::run_power_losses;
pub use scenario::{Outcome, run, run_with};
pub use truncations::run_truncations;
pub use world::lapses::Lapse;

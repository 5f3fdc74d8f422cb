//! A process that serves: threads, the data directory, limits of the process, what is drawn at
//! random. What it serves is below, and is the same in the simulation.

pub mod data_dir;
pub mod descriptors;
mod ending;
mod local_osts;
mod mds;
mod oss;
mod rounds;

pub use mds::{RunningMds, engine_options};
pub use oss::RunningOss;

//! What a server is made of: the MDS with OSTs of its own, or an OSS (OSTs of another host), and
//! how they are one cluster: who is a member, who is heard, who is fenced before locks are free.
//!
//! Promises:
//! - A data directory is served by one process, and opened only by a version that understands it.
//! - Nothing of an evicted client reaches an OST once its locks are free.
//! - An OSS serves only while the MDS knows that it does, and has done what the MDS ordered.
//!
//! Does not know: command lines, terminals, signals, mounts. It listens through `glint-net`.

pub mod data_dir;
pub mod descriptors;
mod local_osts;
mod mds_server;
mod oss;
mod oss_registry;
mod rates;
mod status;
mod units;

pub use mds_server::{RunningServers, Servers, Settings, engine_options};
pub use oss::Oss;
pub use rates::{Rates, Totals};
pub use units::human_bytes;

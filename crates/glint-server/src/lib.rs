//! Parts of a server: the MDS with OSTs of its own, or an OSS (OSTs of another host), and how they
//! are one cluster: who is a member, who is heard, who is fenced before locks are free.
//!
//! Promises:
//! - A data directory is served by one process, and opened only by a version that understands it.
//! - Nothing of an evicted client reaches an OST once its locks are free.
//! - An OSS serves only while the MDS knows that it does, and has done what the MDS ordered.
//!
//! What a server is has no threads, sockets or files of its own: it is generic over the engine and
//! the disk, keeps what it must remember in [`Records`], and time is that of a runtime or of a
//! simulation. What makes it a process of this host is in `process`.
//!
//! Does not know: command lines, terminals, signals, mounts. It listens through `glint-net`.

mod mds_server;
mod oss;
mod oss_registry;
mod process;
mod rates;
mod records;
mod repairs;
mod replication;
mod rounds;
mod scrubbing;
mod settings;
mod start;
mod status;
mod units;
mod warm_start;

pub use mds_server::MdsServer;
pub use oss::Oss;
pub use oss_registry::OssRegistry;
pub use process::data_dir::{self, DataDirError};
pub use process::{RunningMds, RunningOss, descriptors, engine_options};
pub use rates::{Rates, Totals};
pub use records::{
    HotPart, LogStore, OssIdentity, OssRuns, Records, RecordsError, ServerLog, StartError,
};
pub use replication::{StoppedLogs, awaited_searches, note_missing};
pub use rounds::Round;
pub use settings::{Drawn, Settings};
pub use start::start_osts;
pub use units::human_bytes;

use glint_ost::OstSet;
use glint_ost::disk::Disk;
use glint_proto::{Bulk, OstRequest};

/// Waits for the turn of a transfer, where bandwidth is limited.
async fn pace<D: Disk>(osts: &OstSet<D>, index: u16, request: &OstRequest, bulk: &Bulk<'_>) {
    let pause = osts.turn(index, request, bulk);
    if !pause.is_zero() {
        glint_net::host::sleep(pause).await;
    }
}

//! How a server is set up, and what is drawn for a run of it.

use crate::scrubbing::SCRUB_BANDWIDTH;
use glint_ost::ObjectCache;
use glint_proto::Layout;
use glint_proto::limits::{
    COMMIT_INTERVAL_MS, ENGINE_CACHE_BYTES, LEASE_MS, OBJECT_CACHE_BYTES_MAX,
};
use std::time::Duration;

/// How servers are set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Clients on a network may come.
    pub shared: bool,
    /// A client shares this process.
    pub mounted: bool,
    /// Longest time between an answer and stable storage.
    pub commit_interval: Duration,
    /// Answer only after stable storage.
    pub commit_sync: bool,
    /// How long a client may be silent.
    pub lease: Duration,
    /// The disk lost what was not synced.
    pub after_power_loss: bool,
    /// Bytes of tables that the engine of the MDS keeps in memory.
    pub engine_cache_bytes: u64,
    /// Data of objects that OSTs keep in memory.
    pub object_cache: ObjectCache,
    /// Whether what was read most is loaded after the start.
    pub warm_start: bool,
    /// Bytes that each OST moves in a second, if that is limited.
    pub ost_bandwidth: Option<u64>,
    /// Bytes a second that are compared with their checksums in the background; 0 for none.
    pub scrub_bandwidth: u64,
    /// Bytes a second that this server gives to members of chains that lag, if that is limited.
    pub heal_bandwidth: Option<u64>,
    /// Members that serve which a change needs at least, and whether it fails where there are fewer,
    /// and does not wait; if it was said.
    pub min_replicas: Option<(u8, bool)>,
    /// Layout of files in a new file system, where no directory says otherwise.
    pub layout: Layout,
    /// Label of all that the OSTs of the server of the MDS fail together with; empty for that
    /// server alone.
    pub failure_domain: String,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            shared: false,
            mounted: false,
            commit_interval: Duration::from_millis(COMMIT_INTERVAL_MS),
            commit_sync: false,
            lease: Duration::from_millis(LEASE_MS),
            after_power_loss: false,
            engine_cache_bytes: ENGINE_CACHE_BYTES,
            object_cache: ObjectCache::UpToIfShort(OBJECT_CACHE_BYTES_MAX),
            warm_start: true,
            ost_bandwidth: None,
            scrub_bandwidth: SCRUB_BANDWIDTH,
            heal_bandwidth: None,
            min_replicas: None,
            layout: Layout::default(),
            failure_domain: String::new(),
        }
    }
}

/// Random numbers of one run of a server with an MDS. Nobody can foretell them, but a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Drawn {
    /// Names the run.
    pub boot_verifier: u64,
    /// Number of the session of the client that shares this process, and the secret of its owner.
    pub session: u64,
    /// See `session`.
    pub secret: u128,
    /// Seed of the hash of names in a new file system; drawn by the MDS if there is none.
    pub hash_seed: Option<u64>,
}

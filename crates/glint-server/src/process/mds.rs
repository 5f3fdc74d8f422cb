//! The server with the MDS as a process: of one data directory, with threads that look after it.

use super::data_dir::DataDir;
use super::ending::{EndError, Ending, Ends};
use super::{descriptors, local_osts, rounds};
use crate::mds_server::MdsServer;
use crate::records::Records;
use crate::settings::{Drawn, Settings};
use futures_lite::future::block_on;
use glint_kv::local::{LocalKv, Options};
use glint_net::tls::TlsIdentity;
use glint_net::{Cluster, InProcess};
use glint_ost::OstSet;
use glint_proto::FsResult;
use glint_proto::chain::SERVER_MOUNT_POINT;
use glint_proto::limits::{journal_bytes, segment_bytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const MEMTABLE_BYTES: u64 = 16 << 20;
/// Most reads of tables that wait for their disk beside the workers.
const READERS: usize = 16;
/// Longest time in which the last metadata is on stable storage before the end.
const METADATA_MAX: Duration = Duration::from_secs(30);

/// How the metadata engine of a data directory is opened, here and by fsck.
pub fn engine_options(data: &DataDir, settings: &Settings) -> Result<Options, String> {
    let total = data.table_space().map_or(u64::MAX, |space| space.total);
    Ok(Options {
        journal_bytes: journal_bytes(total),
        segment_bytes: segment_bytes(total),
        cache_bytes: settings.engine_cache_bytes,
        memtable_bytes: MEMTABLE_BYTES,
        open_tables: descriptors::budget(data.osts())?.tables as usize,
        commit_interval: settings.commit_interval,
        readers: READERS,
    })
}

/// A server with an MDS and the threads that look after it.
pub struct RunningMds {
    /// The server.
    pub server: Arc<MdsServer>,
    data: Arc<DataDir>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl RunningMds {
    /// Starts the server of a data directory.
    pub fn start(
        data: DataDir,
        settings: Settings,
    ) -> Result<RunningMds, Box<dyn std::error::Error>> {
        let kv = LocalKv::open(&data.mds(), engine_options(&data, &settings)?)?;
        let osts = local_osts::open(&data, &settings)?;
        let drawn = Drawn {
            boot_verifier: getrandom::u64().unwrap_or(1),
            session: getrandom::u64().unwrap_or(1),
            secret: glint_net::random_secret(),
            hash_seed: None,
        };
        let data = Arc::new(data);
        let server = Arc::new(block_on(MdsServer::start(kv, osts, data.clone(), settings, drawn))?);
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let is_stopping = move |_: &MdsServer| stopping.load(Ordering::Acquire);
        let threads = rounds::spawn(&server, server.rounds(), is_stopping)?;
        Ok(RunningMds { server, data, stop, threads })
    }

    /// Reaches the other servers as `tls`, if that is given. What copies need.
    pub fn reach_peers(&self, tls: Option<TlsIdentity>) {
        let transport = InProcess::new(self.server.clone());
        self.server.reach_peers(Cluster::new(transport, tls, SERVER_MOUNT_POINT.into()));
    }

    /// See [`DataDir::give_up`].
    pub fn give_up(&self, reason: &str) -> String {
        self.data.give_up(reason)
    }

    /// Ends the server cleanly: everything accepted is on stable storage after it, but for disks that
    /// stand still: what was not flushed there counts as lost in the next run.
    pub fn shut_down(self) -> Result<(), String> {
        self.stop.store(true, Ordering::Release);
        let ending = Ending::new(&self.server, &self.data);
        ending.join(self.threads);
        self.server.leave_peers();
        let settled = ending.settle();
        let stored = ending.last(METADATA_MAX, |server| block_on(server.mds().shut_down()));
        let stored = match stored {
            Some(stored) => stored.map_err(EndError::Failed),
            None => Err(EndError::StandStill(vec![self.data.mds()])),
        };
        settled.and(stored).map_err(|error| ending.give_up(&error))
    }
}

impl Ends for MdsServer {
    fn osts(&self) -> &OstSet {
        self.osts()
    }

    fn look(&self) {
        self.look_at_disks();
    }

    async fn keep_heat(&self) {
        self.keep_hot().await;
    }

    async fn sync_log(&self) -> FsResult<()> {
        self.replication().sync_log().await
    }
}

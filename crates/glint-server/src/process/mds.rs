//! The server with the MDS as a process: of one data directory, with threads that look after it.

use super::data_dir::DataDir;
use super::{descriptors, local_osts, rounds};
use crate::mds_server::MdsServer;
use crate::records::Records;
use crate::settings::{Drawn, Settings};
use futures_lite::future::block_on;
use glint_kv::local::{LocalKv, Options};
use glint_net::tls::TlsIdentity;
use glint_net::{Cluster, InProcess};
use glint_proto::FsResult;
use glint_proto::chain::SERVER_MOUNT_POINT;
use glint_proto::limits::{journal_bytes, segment_bytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

const MEMTABLE_BYTES: u64 = 16 << 20;
/// Most reads of tables that wait for their disk beside the workers.
const READERS: usize = 16;

/// How the metadata engine of a data directory is opened, here and by fsck.
pub fn engine_options(data: &DataDir, settings: &Settings) -> Result<Options, String> {
    let total =
        rustix::fs::statvfs(data.path()).map_or(u64::MAX, |vfs| vfs.f_blocks * vfs.f_frsize);
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

    /// Ends the server cleanly: everything accepted is on stable storage after it.
    pub fn shut_down(mut self) -> FsResult<()> {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the server panicked");
            }
        }
        self.server.leave_peers();
        block_on(self.server.shut_down())
    }
}

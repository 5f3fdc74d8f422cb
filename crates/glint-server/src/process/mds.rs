//! The server with the MDS as a process: of one data directory, with threads that look after it.

use super::data_dir::DataDir;
use super::{HOUSEKEEPING, descriptors, local_osts};
use crate::mds_server::MdsServer;
use crate::settings::{Drawn, Settings};
use futures_lite::future::block_on;
use glint_kv::local::{LocalKv, Options};
use glint_ost::SEAL_IDLE;
use glint_proto::FsResult;
use glint_proto::limits::{journal_bytes, segment_bytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const CACHE_BYTES: u64 = 32 << 20;
const MEMTABLE_BYTES: u64 = 16 << 20;
/// See nice(2): about a tenth of a core that others want to use.
const HOUSEKEEPING_NICE: i32 = 10;

/// How the metadata engine of a data directory is opened, here and by fsck.
pub fn engine_options(data: &DataDir, commit_interval: Duration) -> Result<Options, String> {
    let total =
        rustix::fs::statvfs(data.path()).map_or(u64::MAX, |vfs| vfs.f_blocks * vfs.f_frsize);
    Ok(Options {
        journal_bytes: journal_bytes(total),
        segment_bytes: segment_bytes(total),
        cache_bytes: CACHE_BYTES,
        memtable_bytes: MEMTABLE_BYTES,
        open_tables: descriptors::budget(data.osts())?.tables as usize,
        commit_interval,
    })
}

/// A server with an MDS and the threads that look after it.
pub struct RunningServers {
    /// The server.
    pub servers: Arc<MdsServer>,
    data: Arc<DataDir>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl RunningServers {
    /// Starts the server of a data directory.
    pub fn start(
        data: DataDir,
        settings: Settings,
    ) -> Result<RunningServers, Box<dyn std::error::Error>> {
        let kv = LocalKv::open(&data.mds(), engine_options(&data, settings.commit_interval)?)?;
        let osts = local_osts::open(&data, &settings)?;
        let drawn = Drawn {
            boot_verifier: getrandom::u64().unwrap_or(1),
            session: getrandom::u64().unwrap_or(1),
            secret: glint_net::random_secret(),
            hash_seed: None,
        };
        let data = Arc::new(data);
        let servers =
            Arc::new(block_on(MdsServer::start(kv, osts, data.clone(), settings, drawn))?);
        let stop = Arc::new(AtomicBool::new(false));
        let spawn = |name: &str, work: fn(&MdsServer, &AtomicBool)| {
            let (servers, stop) = (servers.clone(), stop.clone());
            std::thread::Builder::new().name(name.into()).spawn(move || work(&servers, &stop))
        };
        let threads = vec![
            spawn("watch", keep_time)?,
            spawn("eviction", expire_clients)?,
            spawn("housekeeping", keep_house)?,
            spawn("settling", settle_objects)?,
        ];
        Ok(RunningServers { servers, data, stop, threads })
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
                tracing::error!("a thread of the servers panicked");
            }
        }
        block_on(self.servers.shut_down())
    }
}

/// Lets time pass. On a thread that waits for nothing else.
fn keep_time(servers: &MdsServer, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        servers.mds().time_passes();
        std::thread::sleep(HOUSEKEEPING);
    }
}

/// Gives up clients whose time is over.
fn expire_clients(servers: &MdsServer, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        block_on(servers.expire());
        std::thread::sleep(HOUSEKEEPING);
    }
}

/// Brings data to stable storage every commit interval and seals quiet objects. On
/// a thread of its own, because a flush may take long.
fn settle_objects(servers: &MdsServer, stop: &AtomicBool) {
    let mut last = Instant::now();
    while !stop.load(Ordering::Acquire) {
        std::thread::sleep(HOUSEKEEPING);
        // The other thread may be waiting for a server that does not answer.
        servers.watch_space();
        if last.elapsed() < servers.commit_interval() {
            continue;
        }
        servers.settle(SEAL_IDLE);
        servers.note_totals();
        last = Instant::now();
    }
}

/// Removes what deleted files left and watches the space, until told to stop.
fn keep_house(servers: &MdsServer, stop: &AtomicBool) {
    // Nobody waits for objects to be destroyed, and it may be tens of thousands. (On Linux
    // this is about the calling thread.)
    if let Err(error) = rustix::process::setpriority_process(None, HOUSEKEEPING_NICE) {
        tracing::debug!(%error, "housekeeping at the usual priority");
    }
    while !stop.load(Ordering::Acquire) {
        if !block_on(servers.keep_house()) {
            std::thread::sleep(HOUSEKEEPING);
        }
    }
}

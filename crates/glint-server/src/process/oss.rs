//! An OSS as a process: of one data directory, with threads that look after it.

use super::data_dir::DataDir;
use super::ending::{Ending, Ends};
use super::{local_osts, rounds};
use crate::oss::Oss;
use crate::settings::Settings;
use futures_lite::future::block_on;
use glint_net::{Address, Cluster, Remote, RemoteOptions};
use glint_ost::OstSet;
use glint_proto::FsResult;
use glint_proto::chain::SERVER_MOUNT_POINT;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the server of the MDS may be silent at the start before whoever waits is told.
const SILENT_MAX: Duration = Duration::from_secs(3);

/// Pause before the server of the MDS is asked again to let this one in as a client.
const RETRY: Duration = Duration::from_millis(100);

/// An OSS and its threads.
pub struct RunningOss {
    /// The server.
    pub oss: Arc<Oss>,
    data: Arc<DataDir>,
    threads: Vec<JoinHandle<()>>,
    report: mpsc::Receiver<Result<(), String>>,
}

impl RunningOss {
    /// Starts on a data directory, for the file system whose MDS is at `mds`. Clients reach it
    /// at `advertised`; see [`Oss::start`].
    pub fn start(
        data: DataDir,
        settings: Settings,
        mds: Address,
        advertised: String,
        failure_domain: String,
    ) -> Result<RunningOss, Box<dyn std::error::Error>> {
        let osts = local_osts::open(&data, &settings)?;
        let (mds_address, shown) = (mds.clone(), format!("{SERVER_MOUNT_POINT} {advertised}"));
        let boot_verifier = getrandom::u64().unwrap_or(1);
        let data = Arc::new(data);
        let records = data.clone();
        let oss =
            Oss::start(osts, records, settings, boot_verifier, mds, advertised, failure_domain)?;
        let oss = Arc::new(oss);
        let (reporter, report) = mpsc::channel();
        let (talking, destroying) = (oss.clone(), oss.clone());
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let mut threads = rounds::spawn(&oss, oss.rounds(), Oss::is_stopping)?;
        threads.push(thread("destroy").spawn(move || block_on(destroying.destroy_ordered()))?);
        let reaching = oss.clone();
        threads.push(thread("peers").spawn(move || reach_peers(&reaching, &mds_address, &shown))?);
        threads.push(thread("liaison").spawn(move || talk(&talking, &reporter))?);
        Ok(RunningOss { oss, data, threads, report })
    }

    /// Waits until this is a part of its file system; false if it was `stopped` before. If that
    /// takes long, it `tells` once why.
    pub fn wait_joined(
        &self,
        stopped: impl Fn() -> bool,
        tell: impl Fn(&str),
    ) -> Result<bool, String> {
        let start = Instant::now();
        let mut told = false;
        loop {
            if !told && start.elapsed() > SILENT_MAX {
                tell(&format!("waiting for {}", self.oss.trouble()));
                told = true;
            }
            match self.report.recv_timeout(Duration::from_millis(50)) {
                Ok(result) => return result.map(|()| true),
                Err(mpsc::RecvTimeoutError::Timeout) if !stopped() => {}
                Err(_) => return Ok(false),
            }
        }
    }

    /// See [`DataDir::give_up`].
    pub fn give_up(&self, reason: &str) -> String {
        self.data.give_up(reason)
    }

    /// Ends the server cleanly: everything accepted is on stable storage after it, but for disks that
    /// stand still: what was not flushed there counts as lost in the next run.
    pub fn shut_down(self) -> Result<(), String> {
        self.oss.stop();
        let ending = Ending::new(&self.oss, &self.data);
        ending.join(self.threads);
        self.oss.leave_peers();
        ending.settle().map_err(|error| ending.give_up(&error))
    }
}

impl Ends for Oss {
    fn osts(&self) -> &OstSet {
        self.ost_set()
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

/// Reaches the other servers, as a client of the MDS, as soon as that is there and there are copies
/// to be kept.
fn reach_peers(oss: &Arc<Oss>, mds: &Address, shown: &str) {
    let tls = match mds {
        Address::Tls(_, identity) => Some(identity.clone()),
        Address::Tcp(_) | Address::Unix(_) => None,
    };
    while !oss.is_stopping() {
        std::thread::sleep(RETRY);
        if !oss.has_chains() {
            continue;
        }
        let options = RemoteOptions { address: mds.clone(), mount_point: shown.to_owned() };
        match Remote::connect(options) {
            Ok(remote) => {
                return oss.reach_peers(Cluster::new(remote, tls, shown.to_owned()));
            }
            Err(error) => tracing::debug!(%error, "no way to the server of the MDS yet"),
        }
    }
}

/// Talks to the server of the MDS. Nothing on this thread waits for a disk.
fn talk(oss: &Oss, reporter: &mpsc::Sender<Result<(), String>>) {
    // The caller that waits for the report may have gone.
    let report = |result| _ = reporter.send(result);
    match glint_net::runtime(None) {
        Ok(runtime) => runtime.block_on(oss.talk(&report)),
        Err(error) => report(Err(format!("starting a thread: {error}"))),
    }
}

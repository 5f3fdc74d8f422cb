//! The end of a server in a process, also beside disks that stand still.
//!
//! Invariants:
//! - What goes on is waited for; a disk that stands still is not, and is named.
//! - All is flushed before anything is sealed, and sealing ends with the process. Objects that were
//!   changed and not sealed are found by that after a loss of power, as those of a server that was
//!   killed.
//! - Nothing that is stored says that an end was a clean one. That something was not flushed is stored:
//!   it counts as lost in the next run, whatever becomes of what the kernel has of it.

use super::data_dir::DataDir;
use futures_lite::future::block_on;
use glint_ost::{DiskWatch, OstSet};
use glint_proto::{Errno, FsResult};
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Longest time in which threads end what they are at, and in which they do beside a disk that stands
/// still.
const THREADS_MAX: Duration = Duration::from_secs(10);
const THREADS_BESIDE_STILL_MAX: Duration = Duration::from_secs(1);
/// Longest time in which it is stored what was read most.
const HEAT_MAX: Duration = Duration::from_secs(2);
/// Longest time in which the log of changed objects is on stable storage.
const LOG_MAX: Duration = Duration::from_secs(20);
/// Longest time in which what is flushed is sealed. The rest has no checksums until it is read in
/// the next run.
const SEAL_MAX: Duration = Duration::from_secs(5);
/// Longest time in which it is stored that something counts as lost.
const NOTE_MAX: Duration = Duration::from_secs(5);
/// How often the disks are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Why a server ended before all was on stable storage.
#[derive(Debug)]
pub(super) enum EndError {
    /// Something failed.
    Failed(Errno),
    /// Nothing was heard of the disks of these directories.
    StandStill(Vec<PathBuf>),
}

impl fmt::Display for EndError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndError::Failed(errno) => write!(f, "{errno}"),
            EndError::StandStill(paths) => {
                let paths: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
                write!(f, "the disk of {} stands still, and was not waited for", paths.join(", "))
            }
        }
    }
}

/// A server as it ends.
pub(super) trait Ends: Send + Sync + 'static {
    /// Its OSTs.
    fn osts(&self) -> &OstSet;

    /// Looks how its disks are. Waits for nothing.
    fn look(&self);

    /// Stores what was read most.
    fn keep_heat(&self) -> impl Future<Output = ()>;

    /// Brings the log of changed objects to stable storage.
    fn sync_log(&self) -> impl Future<Output = FsResult<()>>;
}

/// The end of a server, which takes no requests any more.
pub(super) struct Ending<'a, S> {
    server: &'a Arc<S>,
    data: &'a Arc<DataDir>,
}

impl<'a, S: Ends> Ending<'a, S> {
    pub(super) fn new(server: &'a Arc<S>, data: &'a Arc<DataDir>) -> Ending<'a, S> {
        Ending { server, data }
    }

    /// Waits for threads, but not for ever.
    pub(super) fn join(&self, threads: Vec<JoinHandle<()>>) {
        let begun = Instant::now();
        self.wait(THREADS_MAX, || {
            let is_left = begun.elapsed() > THREADS_BESIDE_STILL_MAX && !self.still().is_empty();
            is_left || threads.iter().all(JoinHandle::is_finished)
        });
        for thread in threads {
            if !thread.is_finished() {
                let name = thread.thread().name().unwrap_or_default();
                tracing::warn!(thread = name, still = ?self.still(), "a thread of the server has not ended");
            } else if thread.join().is_err() {
                tracing::error!("a thread of the server panicked");
            }
        }
    }

    /// Brings everything to stable storage, and seals what can be sealed soon.
    pub(super) fn settle(&self) -> Result<(), EndError> {
        self.last(HEAT_MAX, |server| block_on(server.keep_heat()));
        // What has its checksums is not found after a loss of power: it is noted for certain.
        let noted = self.last(LOG_MAX, |server| block_on(server.sync_log()));
        let seals = matches!(noted, Some(Ok(())));
        let (says, flushed) = mpsc::channel();
        let settle = |index: u16| {
            let (server, says) = (self.server.clone(), says.clone());
            thread::Builder::new().name(format!("end ost{index}")).spawn(move || {
                let flushed = server.osts().flush_last(index);
                let seals = seals && flushed.is_ok();
                // Nobody may wait for it any more.
                let _ = says.send((index, flushed));
                if seals && let Err(errno) = server.osts().seal_last(index) {
                    tracing::warn!(%errno, index, "could not seal objects; they have no checksums yet");
                }
            })
        };
        let osts = 0..self.server.osts().count();
        let threads: Result<Vec<JoinHandle<()>>, _> = osts.clone().map(settle).collect();
        let threads = threads.map_err(|_| EndError::Failed(Errno::EAGAIN))?;
        drop(says);
        let (result, left) = self.flushed(&flushed, osts.collect());
        let is_done =
            |(index, thread): (u16, &JoinHandle<()>)| left.contains(&index) || thread.is_finished();
        if !self.wait(SEAL_MAX, || (0..).zip(&threads).all(is_done)) {
            tracing::info!("objects that were changed last have no checksums yet");
        }
        let mut still: Vec<PathBuf> = left.iter().map(|index| self.data.ost(*index)).collect();
        if noted.is_none() {
            still.push(self.data.path().to_owned());
        }
        result.and(noted.unwrap_or(Ok(()))).map_err(EndError::Failed)?;
        if still.is_empty() { Ok(()) } else { Err(EndError::StandStill(still)) }
    }

    /// Notes that what was not flushed counts as lost. Returns what to tell whoever looks after the
    /// server.
    pub(super) fn give_up(&self, why: &EndError) -> String {
        let (data, reason) = (self.data.clone(), why.to_string());
        self.last(NOTE_MAX, move |_| data.give_up(&reason)).unwrap_or_else(|| {
            format!("{why}. Start this server with --after-power-loss: that could not be stored")
        })
    }

    /// Waits until these OSTs are flushed, or stand still. Returns those that do, and the first error
    /// of others.
    fn flushed(
        &self,
        flushed: &mpsc::Receiver<(u16, FsResult<()>)>,
        mut left: BTreeSet<u16>,
    ) -> (FsResult<()>, BTreeSet<u16>) {
        let mut result = Ok(());
        while !left.is_empty() {
            match flushed.recv_timeout(LOOK) {
                Ok((index, done)) => {
                    left.remove(&index);
                    result = result.and(done);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    self.server.look();
                    if left.iter().all(|index| self.stands_still(*index)) {
                        break;
                    }
                }
                // Threads that panicked have flushed nothing.
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return (result.and(Err(Errno::EIO)), BTreeSet::new());
                }
            }
        }
        (result, left)
    }

    /// Has a thread do something, and waits for it so long. Returns what it says, if it has ended.
    pub(super) fn last<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce(&S) -> T + Send + 'static,
    ) -> Option<T> {
        let server = self.server.clone();
        let thread = thread::Builder::new().name("end".into()).spawn(move || work(&server)).ok()?;
        if !self.wait(limit, || thread.is_finished()) {
            return None;
        }
        thread.join().ok()
    }

    /// Waits until something is so. Returns whether it was within this time.
    fn wait(&self, limit: Duration, is_done: impl Fn() -> bool) -> bool {
        let begun = Instant::now();
        while !is_done() {
            if begun.elapsed() > limit {
                return false;
            }
            thread::sleep(LOOK);
            self.server.look();
        }
        true
    }

    fn stands_still(&self, index: u16) -> bool {
        self.server.osts().watch(index).is_some_and(DiskWatch::stands_still)
    }

    /// Directories of OSTs whose disks stand still.
    fn still(&self) -> Vec<PathBuf> {
        let osts = 0..self.server.osts().count();
        osts.filter(|index| self.stands_still(*index)).map(|index| self.data.ost(index)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::data_dir::Role;
    use crate::process::local_osts;
    use crate::records::Records;
    use crate::settings::Settings;
    use glint_ost::CallKind;

    struct Server(OstSet);

    impl Ends for Server {
        fn osts(&self) -> &OstSet {
            &self.0
        }

        fn look(&self) {
            self.0.look();
        }

        async fn keep_heat(&self) {}

        async fn sync_log(&self) -> FsResult<()> {
            Ok(())
        }
    }

    #[test]
    fn what_goes_on_is_waited_for_and_a_disk_that_stands_still_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let data = Arc::new(DataDir::open_or_create(dir.path(), Some(2), Role::Oss).unwrap());
        let server = Arc::new(Server(local_osts::open(&data, &Settings::default()).unwrap()));
        let ending = Ending::new(&server, &data);
        ending.settle().unwrap();
        assert_eq!(ending.last(HEAT_MAX, |server| server.osts().count()), Some(2));

        let (end, ended) = mpsc::channel::<()>();
        let waits = thread::spawn(move || _ = ended.recv());
        let goes_on = thread::spawn(|| thread::sleep(Duration::from_millis(100)));
        let call = server.osts().watch(1).unwrap().begin(CallKind::Short);
        let begun = Instant::now();
        ending.join(vec![waits, goes_on]);
        assert!(begun.elapsed() < THREADS_MAX, "{:?}", begun.elapsed());
        assert_eq!(ending.still(), [data.ost(1)]);
        let never = |_: &Server| thread::sleep(Duration::from_secs(60));
        assert_eq!(ending.last(Duration::from_millis(50), never), None);
        drop((call, end));
        ending.settle().unwrap();
        assert!(!data.is_after_loss());
        let told = ending.give_up(&EndError::StandStill(ending.still()));
        assert!(told.contains("stands still") && data.is_after_loss(), "{told}");
    }
}

//! Threads that ask for listings beside the one that walks. A server executes what comes on a connection
//! on one of its cores, and each thread has a connection of its own.
//!
//! Invariants:
//! - A walk that has one request under way makes it by itself, and no thread is started for it.
//! - Each request is answered: one that a thread did not make is made by who walks.

use super::TreeClient;
use async_channel::{Receiver, Sender};
use glint_client::{Caller, ScannedPage};
use glint_proto::posix::ScanFilter;
use glint_proto::{FsResult, Ino};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most threads: a walk has one request more under way.
const THREADS_MAX: usize = 3;
/// How long the end of a walk waits for requests that nobody wants any more: the session of the client
/// ends with the last of them.
const END_MAX: Duration = Duration::from_millis(300);

/// Pages of directories, or why there are none.
pub(super) type Scanned = FsResult<Vec<FsResult<ScannedPage>>>;

/// A listing to ask for.
#[derive(Clone)]
pub(super) struct ToScan {
    pub(super) client: Arc<TreeClient>,
    pub(super) caller: Caller,
    pub(super) directories: Vec<(Ino, u64)>,
    pub(super) filter: Option<ScanFilter>,
}

impl ToScan {
    async fn scan(self) -> Scanned {
        self.client.scan(&self.caller, &self.directories, self.filter.as_ref()).await
    }
}

struct Job {
    scan: ToScan,
    answer: Sender<Scanned>,
}

/// The threads of a tree.
pub(super) struct ScanThreads {
    jobs: Sender<Job>,
    taken: Receiver<Job>,
    threads: RefCell<Vec<JoinHandle<()>>>,
    under_way: Cell<usize>,
}

impl Default for ScanThreads {
    fn default() -> ScanThreads {
        let (jobs, taken) = async_channel::unbounded();
        ScanThreads { jobs, taken, threads: RefCell::default(), under_way: Cell::new(0) }
    }
}

/// A request that is under way.
struct UnderWay<'a>(&'a Cell<usize>);

impl<'a> UnderWay<'a> {
    fn begin(count: &'a Cell<usize>) -> UnderWay<'a> {
        count.set(count.get() + 1);
        UnderWay(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl ScanThreads {
    /// Asks for a listing: here, or beside others that are under way.
    pub(super) async fn scan(&self, scan: ToScan) -> Scanned {
        let others = self.under_way.get();
        let _under_way = UnderWay::begin(&self.under_way);
        if others == 0 || (scan.filter.is_none() && !ScanThreads::has_cores()) {
            return scan.scan().await;
        }
        self.start_for(others);
        let (answer, answered) = async_channel::bounded(1);
        let job = Job { scan: scan.clone(), answer };
        if self.threads.borrow().is_empty() || self.jobs.try_send(job).is_err() {
            return scan.scan().await;
        }
        match answered.recv().await {
            Ok(scanned) => scanned,
            Err(_) => scan.scan().await,
        }
    }

    /// Whether threads have cores of their own, beside that of the walk and one for a server. Without
    /// them they only help if the walk has little to do, as the server leaves most out.
    fn has_cores() -> bool {
        std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 2)
    }

    /// Starts threads until there is one for each of so many requests.
    fn start_for(&self, requests: usize) {
        let mut threads = self.threads.borrow_mut();
        // One that has panicked answers nobody.
        threads.retain(|thread| !thread.is_finished());
        while threads.len() < requests.min(THREADS_MAX) {
            let taken = self.taken.clone();
            let thread = std::thread::Builder::new().name("scan".into());
            match thread.spawn(move || work(&taken)) {
                Ok(thread) => threads.push(thread),
                // Those that there are, or who walks, make them.
                Err(_) => return,
            }
        }
    }
}

/// Makes requests until the tree is not needed any more.
fn work(jobs: &Receiver<Job>) {
    let Ok(runtime) = glint_net::runtime(None) else {
        // Who waits for them makes them.
        while jobs.recv_blocking().is_ok() {}
        return;
    };
    runtime.block_on(async {
        while let Ok(Job { scan, answer }) = jobs.recv().await {
            // It holds the client no longer than that.
            let scanned = scan.scan().await;
            // Nobody waits for it if the walk has ended.
            let _ = answer.try_send(scanned);
        }
    });
}

impl Drop for ScanThreads {
    fn drop(&mut self) {
        self.jobs.close();
        // Nobody wants what is left.
        while self.taken.try_recv().is_ok() {}
        let begun = Instant::now();
        let threads = self.threads.take();
        while threads.iter().any(|thread| !thread.is_finished()) && begun.elapsed() < END_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

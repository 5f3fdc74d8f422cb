//! How long this machine stood still while something was measured.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Sleep of a thread without work, at a time.
const STEP: Duration = Duration::from_millis(5);

/// A thread that only sleeps, and by how much it overslept: whatever a test waited for had to wait
/// for the machine at least as long. So a bound on time is what is promised, and the stalls.
pub struct Stalls {
    shared: Arc<Observed>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Observed {
    stop: AtomicBool,
    /// When the sleep began that has not ended yet: a stall may last when it is asked for.
    asleep: Mutex<Option<Instant>>,
    total_nanos: AtomicU64,
}

impl Stalls {
    /// Measures from now on.
    pub fn start() -> Stalls {
        let shared = Arc::<Observed>::default();
        let its = shared.clone();
        let thread = std::thread::spawn(move || {
            while !its.stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                *its.asleep.lock().unwrap() = Some(begun);
                std::thread::sleep(STEP);
                let mut asleep = its.asleep.lock().unwrap();
                *asleep = None;
                let stall = begun.elapsed().saturating_sub(STEP).as_nanos() as u64;
                its.total_nanos.fetch_add(stall, Ordering::Relaxed);
            }
        });
        Stalls { shared, thread: Some(thread) }
    }

    /// Does something, and says how long that took besides.
    pub fn timed<T>(&self, work: impl FnOnce() -> T) -> (T, Duration) {
        let (begun, before) = (Instant::now(), self.total());
        let result = work();
        (result, begun.elapsed().saturating_sub(self.total().saturating_sub(before)))
    }

    /// All of them together: what a chain of many steps may have taken longer.
    pub fn total(&self) -> Duration {
        let asleep = self.shared.asleep.lock().unwrap();
        Duration::from_nanos(self.shared.total_nanos.load(Ordering::Relaxed)) + lasting(*asleep)
    }
}

fn lasting(asleep: Option<Instant>) -> Duration {
    asleep.map_or(Duration::ZERO, |begun| begun.elapsed().saturating_sub(STEP))
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// How long threads waited for a core: with many who want one, whoever works most waits longest,
/// and a thread that sleeps does not notice. Nothing where the kernel does not count it.
pub struct Delays(Vec<(PathBuf, u64)>);

impl Delays {
    /// Counts from now on, for each thread of these processes.
    pub fn of(processes: &[u32]) -> Delays {
        let tasks = |pid: &u32| fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
        let files = processes.iter().flat_map(tasks).flatten();
        let counted = files.filter_map(|task| {
            let file = task.path().join("schedstat");
            waited(&file).map(|nanos| (file, nanos))
        });
        Delays(counted.collect())
    }

    /// How long the thread waited that waited longest.
    pub fn since(&self) -> Duration {
        let each =
            self.0.iter().filter_map(|(file, then)| Some(waited(file)?.saturating_sub(*then)));
        Duration::from_nanos(each.max().unwrap_or(0))
    }
}

/// Nanoseconds that a thread was ready to run and did not.
fn waited(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.split_whitespace().nth(1)?.parse().ok()
}

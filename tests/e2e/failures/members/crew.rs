//! Some who work all the time while members fail, and can be asked to rest.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use support::stalls::Stalls;
use support::{PATIENCE, at_length, eventually};

/// Longest time of what needs no stable storage, beside what the machine stands still: the promise
/// is 4 s, and here other tests run.
pub(super) const CALL_MAX: Duration = Duration::from_secs(15);
/// Longest time of an fsync: the promise is 20 s where a disk stands still.
pub(super) const SYNC_MAX: Duration = Duration::from_secs(30);

/// What happens at the moment, for those who have to say it, and whether they are to go on.
pub(super) struct Course {
    seed: u64,
    now: Mutex<String>,
    is_over: AtomicBool,
    /// Somebody of the crew has failed.
    has_failed: AtomicBool,
    stalls: Stalls,
}

impl Course {
    pub(super) fn new(seed: u64) -> Arc<Course> {
        println!("seed {seed}; SEED=n takes another one, ROUNDS=n makes more rounds");
        Arc::new(Course {
            seed,
            now: Mutex::new("the beginning".to_owned()),
            is_over: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            stalls: Stalls::start(),
        })
    }

    /// From now on this happens.
    pub(super) fn comes_to(&self, what: &str) {
        println!("{what}");
        what.clone_into(&mut self.now.lock().unwrap());
    }

    /// What happens, as every message of a failure begins.
    pub(super) fn now(&self) -> String {
        format!("seed {}, {}", self.seed, self.now.lock().unwrap())
    }

    /// Fails if one of the crew has: its own message stands above.
    pub(super) fn must_be_well(&self) {
        let has_failed = self.has_failed.load(Ordering::Relaxed);
        assert!(!has_failed, "{}: the load has failed", self.now());
    }

    /// Waits until something holds, as long as the crew is well.
    pub(super) fn wait_until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        eventually(&format!("{}: {what}", self.now()), || {
            self.must_be_well();
            holds()
        });
    }

    /// A call, or a few for one thing, that must succeed within some time.
    pub(super) fn call<T>(
        &self,
        what: &str,
        path: &Path,
        longest: Duration,
        call: impl FnOnce() -> std::io::Result<T>,
    ) -> T {
        let before = self.now();
        let (result, took) = self.stalls.timed(call);
        let value = result.unwrap_or_else(|error| {
            panic!("{}: to {what} {}: {error} (begun at {before})", self.now(), path.display())
        });
        assert!(
            took < longest,
            "{}: to {what} {} took {took:?} (begun at {before})",
            self.now(),
            path.display()
        );
        value
    }

    /// What was found must be what was acknowledged.
    pub(super) fn must_be_same(&self, path: &Path, difference: Option<String>) {
        if let Some(difference) = difference {
            panic!("{}: {}: {difference}", self.now(), path.display());
        }
    }
}

/// Somebody who works.
pub(super) trait Worker: Send {
    /// Does one thing, and compares what it sees.
    fn step(&mut self, course: &Course);

    /// Compares all that it knows with what both mounts show.
    fn verify(&mut self, _course: &Course) {}

    /// How long it rests after each step: the machine has two cores.
    fn pause(&self) -> Duration {
        Duration::from_millis(at_length(20, 10))
    }
}

/// All of them, each in a thread of its own.
pub(super) struct Crew {
    pub(super) course: Arc<Course>,
    /// Each is locked while it does something.
    workers: Vec<Arc<Mutex<Box<dyn Worker>>>>,
    threads: Vec<JoinHandle<()>>,
}

/// Notes that a thread has failed.
struct Notes<'a>(&'a Course);

impl Drop for Notes<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.has_failed.store(true, Ordering::Relaxed);
        }
    }
}

impl Crew {
    pub(super) fn start(course: Arc<Course>, workers: Vec<Box<dyn Worker>>) -> Crew {
        let share = |worker| Arc::new(Mutex::new(worker));
        let workers: Vec<Arc<Mutex<Box<dyn Worker>>>> = workers.into_iter().map(share).collect();
        let start = |worker: &Arc<Mutex<Box<dyn Worker>>>| {
            let (worker, course) = (worker.clone(), course.clone());
            std::thread::spawn(move || {
                let _notes = Notes(&course);
                let is_over = || {
                    course.is_over.load(Ordering::Relaxed)
                        || course.has_failed.load(Ordering::Relaxed)
                };
                while !is_over() {
                    let pause = {
                        let mut worker = worker.lock().unwrap();
                        worker.step(&course);
                        worker.pause()
                    };
                    std::thread::sleep(pause);
                }
            })
        };
        let threads = workers.iter().map(start).collect();
        Crew { course, workers, threads }
    }

    /// All rest, while something is looked at; then each compares all that it knows.
    pub(super) fn rest(&self, look: impl FnOnce()) {
        let lock = self.workers.iter().map(|worker| {
            self.course.must_be_well();
            worker.lock().unwrap_or_else(|_| panic!("{}: a worker failed", self.course.now()))
        });
        let mut all: Vec<_> = lock.collect();
        look();
        all.iter_mut().for_each(|worker| worker.verify(&self.course));
    }

    /// All end, and compare all that they know for the last time.
    pub(super) fn end(mut self) {
        self.course.is_over.store(true, Ordering::Relaxed);
        let all_ended = || self.threads.iter().all(JoinHandle::is_finished);
        let begun = std::time::Instant::now();
        while !all_ended() {
            assert!(begun.elapsed() < PATIENCE, "{}: the load does not end", self.course.now());
            std::thread::sleep(Duration::from_millis(20));
        }
        for thread in self.threads.drain(..) {
            assert!(thread.join().is_ok(), "{}: the load has failed", self.course.now());
        }
        self.rest(|| ());
    }
}

impl Drop for Crew {
    /// Also when the test fails.
    fn drop(&mut self) {
        self.course.is_over.store(true, Ordering::Relaxed);
    }
}

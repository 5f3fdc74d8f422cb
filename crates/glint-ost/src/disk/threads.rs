//! Threads of one disk, for calls that may wait for it.
//!
//! Invariants:
//! - No disk takes threads of another one: each has [`THREADS_MAX`] of its own, and what comes
//!   while all of them wait for it waits, too.
//! - What was handed over is done, whether or not anybody still waits for it: a thread that ends is
//!   not counted any more when the lock is free under which it has seen that nothing is to be done.
//! - What others wait for as well ([`First`]) is begun at once, and never stands behind calls that
//!   wait for the disk.

use glint_telemetry::Counter;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Most threads that wait for one disk.
pub(crate) const THREADS_MAX: usize = 64;
/// See [`ThreadPool::idle`].
const IDLE: Duration = Duration::from_secs(10);

/// Something that a thread does before its work, and that others may wait for.
pub type First = Box<dyn FnOnce() -> io::Result<()> + Send>;
/// Something to do; it is told how it went with what came first.
pub(crate) type Work = Box<dyn FnOnce(io::Result<()>) + Send>;
/// Both, or what is left of them.
type Task = Box<dyn FnOnce() + Send>;

/// The threads of a disk, which are started as they are needed.
#[derive(Clone, Default)]
pub(crate) struct DiskThreads(Arc<ThreadPool>);

struct ThreadPool {
    /// Most threads that there are.
    most: usize,
    /// A thread ends when it had nothing to do for so long.
    idle: Duration,
    state: Mutex<Waiting>,
    comes: Condvar,
}

impl Default for ThreadPool {
    fn default() -> ThreadPool {
        ThreadPool {
            most: THREADS_MAX,
            idle: IDLE,
            state: Mutex::default(),
            comes: Condvar::default(),
        }
    }
}

#[derive(Default)]
struct Waiting {
    tasks: VecDeque<Task>,
    idle: usize,
    threads: usize,
}

/// A thread, which is counted until it ends in whatever way.
struct Counted<'a>(&'a ThreadPool);

impl Counted<'_> {
    /// Counts it no more, while the lock is held under which it has seen that there is nothing to do:
    /// otherwise work could come in between, be left to it because there are as many threads as there
    /// may be, and wait until more comes.
    fn end(self, state: &mut Waiting) {
        state.threads -= 1;
        std::mem::forget(self);
    }
}

/// Where a task has panicked; the lock is not held then.
impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.state.lock().threads -= 1;
    }
}

impl DiskThreads {
    /// How many there are.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.state.lock().threads
    }

    /// Has one of them do this. Where none can be started and none is there, it is dropped.
    pub(crate) fn run(&self, first: Option<First>, work: Work) {
        glint_telemetry::count(Counter::HandOvers, 1);
        let mut state = self.0.state.lock();
        let is_idle = state.idle > state.tasks.len();
        let is_crowded = !is_idle && state.threads >= self.0.most;
        let first = match first {
            Some(first) if is_crowded => {
                drop(state);
                return self.run_beside(first, work);
            }
            first => first,
        };
        state.tasks.push_back(Box::new(move || work(first.map_or(Ok(()), |first| first()))));
        if is_idle || is_crowded {
            drop(state);
            self.0.comes.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let pool = self.0.clone();
        if start(move || pool.work()).is_err() {
            let mut state = self.0.state.lock();
            state.threads -= 1;
            if state.threads == 0 {
                let dropped = std::mem::take(&mut state.tasks);
                drop(state);
                drop(dropped);
            }
        }
    }

    /// Has a thread of its own do what comes first, while all others wait for the disk: one at a time,
    /// as there is one at a time of whatever others wait for.
    fn run_beside(&self, first: First, work: Work) {
        let threads = self.clone();
        // Where it cannot be started both are dropped.
        let _ = start(move || {
            let done = first();
            threads.run(None, Box::new(move |_| work(done)));
        });
    }
}

fn start(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let started = thread::Builder::new().name("disk".into()).spawn(work);
    started.map(drop).inspect_err(|error| {
        tracing::error!(%error, "could not start a thread for a disk");
    })
}

impl ThreadPool {
    fn work(&self) {
        let counted = Counted(self);
        let mut state = self.state.lock();
        loop {
            while let Some(task) = state.tasks.pop_front() {
                drop(state);
                task();
                state = self.state.lock();
            }
            state.idle += 1;
            let is_over = self.comes.wait_for(&mut state, self.idle).timed_out();
            state.idle -= 1;
            if is_over && state.tasks.is_empty() {
                return counted.end(&mut state);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn work_that_waits_keeps_none_that_does_not_until_all_threads_wait() {
        let threads = DiskThreads::default();
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock();
        let (said, hears) = mpsc::channel();
        let run = |waits: bool| {
            let (gate, said) = (gate.clone(), said.clone());
            let work = move |_| {
                if waits {
                    drop(gate.lock());
                }
                said.send(waits).unwrap();
            };
            threads.run(None, Box::new(work));
        };
        (1..THREADS_MAX).for_each(|_| run(true));
        run(false);
        assert!(!hears.recv_timeout(Duration::from_secs(10)).unwrap());
        run(true);
        run(false);
        assert!(hears.recv_timeout(Duration::from_millis(50)).is_err());
        // What others wait for does not stand behind them; its own work does.
        let (is_first, first_done) = mpsc::channel();
        let says = said.clone();
        threads.run(
            Some(Box::new(move || {
                is_first.send(()).unwrap();
                Err(io::ErrorKind::StorageFull.into())
            })),
            Box::new(move |done| says.send(done.is_ok()).unwrap()),
        );
        first_done.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(hears.recv_timeout(Duration::from_millis(50)).is_err());
        drop(closed);
        let rest: Vec<bool> = hears.iter().take(THREADS_MAX + 2).collect();
        assert_eq!(rest.iter().filter(|waited| **waited).count(), THREADS_MAX);
        assert!(threads.count() <= THREADS_MAX);
    }

    /// Work comes just when the only thread ends: it is not left to one that does not look again.
    #[test]
    fn work_that_comes_when_threads_end_is_done() {
        let pool = ThreadPool { most: 1, idle: Duration::from_micros(30), ..ThreadPool::default() };
        let threads = DiskThreads(Arc::new(pool));
        let (said, hears) = mpsc::channel();
        for round in 0..20_000_u32 {
            let says = said.clone();
            threads.run(None, Box::new(move |_| says.send(round).unwrap()));
            assert_eq!(hears.recv_timeout(Duration::from_secs(10)), Ok(round));
            // Until its time is over, more or less.
            let begun = std::time::Instant::now();
            while begun.elapsed() < Duration::from_micros(u64::from(round % 200)) {
                std::hint::spin_loop();
            }
        }
    }
}

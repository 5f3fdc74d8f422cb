//! Threads of one disk, for calls that may wait for it.
//!
//! Invariants:
//! - No disk takes threads of another one: each has [`THREADS_MAX`] of its own, and what comes
//!   while all of them wait for it waits, too.
//! - What was handed over is done, whether or not anybody still waits for it.
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
const THREADS_MAX: usize = 64;
/// A thread ends when it had nothing to do for so long.
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

#[derive(Default)]
struct ThreadPool {
    state: Mutex<Waiting>,
    comes: Condvar,
}

#[derive(Default)]
struct Waiting {
    tasks: VecDeque<Task>,
    idle: usize,
    threads: usize,
}

/// A thread, which is counted until it ends in whatever way.
struct Counted<'a>(&'a ThreadPool);

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
        let is_crowded = !is_idle && state.threads >= THREADS_MAX;
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
        let _counted = Counted(self);
        let mut state = self.state.lock();
        loop {
            while let Some(task) = state.tasks.pop_front() {
                drop(state);
                task();
                state = self.state.lock();
            }
            state.idle += 1;
            let is_over = self.comes.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if is_over && state.tasks.is_empty() {
                return;
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
}

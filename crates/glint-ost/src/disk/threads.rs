//! Threads of one disk, for calls that may wait for it.
//!
//! Invariants:
//! - No disk takes threads of another one: each has [`THREADS_MAX`] of its own, and what comes
//!   while all of them wait for it waits, too.
//! - What was handed over is done, whether or not anybody still waits for it.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Most threads that wait for one disk.
const THREADS_MAX: usize = 64;
/// A thread ends when it had nothing to do for so long.
const IDLE: Duration = Duration::from_secs(10);

/// Something to do.
type Work = Box<dyn FnOnce() + Send>;

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
    work: VecDeque<Work>,
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
    pub(crate) fn run(&self, work: Work) {
        let mut state = self.0.state.lock();
        state.work.push_back(work);
        if state.idle >= state.work.len() || state.threads >= THREADS_MAX {
            drop(state);
            self.0.comes.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let pool = self.0.clone();
        let started = thread::Builder::new().name("disk".into()).spawn(move || pool.work());
        if let Err(error) = started {
            tracing::error!(%error, "could not start a thread for a disk");
            let mut state = self.0.state.lock();
            state.threads -= 1;
            if state.threads == 0 {
                let dropped = std::mem::take(&mut state.work);
                drop(state);
                drop(dropped);
            }
        }
    }
}

impl ThreadPool {
    fn work(&self) {
        let _counted = Counted(self);
        let mut state = self.state.lock();
        loop {
            while let Some(work) = state.work.pop_front() {
                drop(state);
                work();
                state = self.state.lock();
            }
            state.idle += 1;
            let is_over = self.comes.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if is_over && state.work.is_empty() {
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
            threads.run(Box::new(move || {
                if waits {
                    drop(gate.lock());
                }
                said.send(waits).unwrap();
            }));
        };
        (1..THREADS_MAX).for_each(|_| run(true));
        run(false);
        assert!(!hears.recv_timeout(Duration::from_secs(10)).unwrap());
        run(true);
        run(false);
        assert!(hears.recv_timeout(Duration::from_millis(50)).is_err());
        drop(closed);
        let rest: Vec<bool> = hears.iter().take(THREADS_MAX + 1).collect();
        assert_eq!(rest.iter().filter(|waited| **waited).count(), THREADS_MAX);
        assert!(threads.count() <= THREADS_MAX);
    }
}

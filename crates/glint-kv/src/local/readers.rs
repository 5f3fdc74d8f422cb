//! Threads that read tables for tasks that must not wait for a disk.
//!
//! Invariants:
//! - There are no more than were asked for, started as they are needed. What comes while all of them
//!   wait for the disk waits, too: how much that is, those bound who admit requests.
//! - What was handed over is done or dropped, and whoever waits for it hears of either.

use glint_telemetry::Counter;
use glint_wait::Monitor;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

type Task = Box<dyn FnOnce() + Send>;

/// The threads of an engine.
pub(super) struct Readers(Arc<ReadQueue>);

struct ReadQueue {
    /// Most threads that there are.
    most: usize,
    state: Mutex<WaitingReads>,
    comes: Condvar,
}

#[derive(Default)]
struct WaitingReads {
    tasks: VecDeque<Task>,
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    /// No more comes: threads end when nothing is left.
    stop: bool,
}

/// What became of a read.
enum Outcome<R> {
    UnderWay,
    Done(R),
    /// It was dropped, or it panicked.
    Lost,
}

/// The end of a read on its thread, which says that it is lost unless it says something else.
struct End<R>(Arc<Monitor<Outcome<R>>>);

impl<R> Drop for End<R> {
    fn drop(&mut self) {
        self.0.change(|outcome| {
            if matches!(outcome, Outcome::UnderWay) {
                *outcome = Outcome::Lost;
            }
        });
    }
}

/// How often this thread has slept, for a disk or for others. One that is only kept from its core
/// has not.
pub(super) fn times_slept() -> i64 {
    // SAFETY: all zeros are a valid `rusage`, which has only numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it writes into the structure.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) } != 0;
    if failed { 0 } else { usage.ru_nvcsw }
}

impl Readers {
    /// At most so many threads.
    pub(super) fn new(most: usize) -> Readers {
        let (state, comes) = Default::default();
        Readers(Arc::new(ReadQueue { most, state, comes }))
    }

    /// Has a thread read, and parks the calling task meanwhile. `None` if there is no thread for it,
    /// or it panicked: the caller has to read by itself. A read that nobody waits for any more is
    /// not begun.
    pub(super) async fn run<R: Send + 'static>(
        &self,
        read: impl FnOnce() -> R + Send + 'static,
    ) -> Option<R> {
        glint_telemetry::count(Counter::HandOvers, 1);
        let outcome = Arc::new(Monitor::new(Outcome::UnderWay));
        let end = End(outcome.clone());
        self.hand_over(Box::new(move || {
            if Arc::strong_count(&end.0) == 1 {
                // Who waited is gone.
                return;
            }
            let result = read();
            end.0.change(|outcome| *outcome = Outcome::Done(result));
        }));
        let take = |outcome: &mut Outcome<R>| match std::mem::replace(outcome, Outcome::UnderWay) {
            Outcome::UnderWay => None,
            Outcome::Done(result) => Some(Some(result)),
            Outcome::Lost => Some(None),
        };
        outcome.until(take).await
    }

    fn hand_over(&self, task: Task) {
        let mut state = self.0.state.lock();
        state.tasks.push_back(task);
        if state.idle >= state.tasks.len() || state.threads.len() >= self.0.most {
            drop(state);
            self.0.comes.notify_one();
            return;
        }
        let queue = self.0.clone();
        let started = std::thread::Builder::new().name("tables".into()).spawn(move || queue.work());
        match started {
            Ok(thread) => state.threads.push(thread),
            Err(error) => {
                tracing::error!(%error, "could not start a thread that reads tables");
                if state.threads.is_empty() {
                    let dropped = std::mem::take(&mut state.tasks);
                    drop(state);
                    drop(dropped);
                }
            }
        }
    }
}

impl ReadQueue {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            while let Some(task) = state.tasks.pop_front() {
                drop(state);
                // Who waits for it hears that it is lost.
                let _ = catch_unwind(AssertUnwindSafe(task));
                state = self.state.lock();
            }
            if state.stop {
                return;
            }
            state.idle += 1;
            self.comes.wait(&mut state);
            state.idle -= 1;
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        let threads = {
            let mut state = self.0.state.lock();
            state.stop = true;
            std::mem::take(&mut state.threads)
        };
        self.0.comes.notify_all();
        for thread in threads {
            // They catch panics.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once, zip};
    use std::pin::pin;
    use std::sync::mpsc;

    #[test]
    fn reads_are_made_by_no_more_threads_than_there_may_be() {
        let readers = Readers::new(2);
        let (opens, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let read = |number: u32| {
            let gate = gate.clone();
            readers.run(move || {
                gate.lock().recv().unwrap();
                number
            })
        };
        let all = zip(zip(read(1), read(2)), zip(read(3), read(4)));
        let mut all = pin!(all);
        assert!(block_on(poll_once(all.as_mut())).is_none());
        assert_eq!(readers.0.state.lock().threads.len(), 2);
        (0..4).for_each(|_| opens.send(()).unwrap());
        assert_eq!(block_on(all), ((Some(1), Some(2)), (Some(3), Some(4))));
        assert_eq!(readers.0.state.lock().threads.len(), 2);
    }

    #[test]
    fn a_thread_knows_that_it_slept() {
        let before = times_slept();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(times_slept() > before);
    }

    #[test]
    fn a_read_that_is_lost_is_told() {
        let readers = Readers::new(1);
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        assert_eq!(block_on(readers.run(|| -> u32 { panic!("a damaged table") })), None);
        std::panic::set_hook(hook);
        assert_eq!(block_on(readers.run(|| 5)), Some(5));
    }

    #[test]
    fn a_read_that_nobody_waits_for_is_not_made() {
        let readers = Readers::new(1);
        let (opens, gate) = mpsc::channel::<()>();
        let first = readers.run(move || gate.recv().unwrap());
        let mut first = pin!(first);
        assert!(block_on(poll_once(first.as_mut())).is_none());
        let made = Arc::new(Mutex::new(0));
        let read = || {
            let made = made.clone();
            readers.run(move || *made.lock() += 1)
        };
        let mut dropped = Box::pin(read());
        assert!(block_on(poll_once(dropped.as_mut())).is_none());
        drop(dropped);
        opens.send(()).unwrap();
        assert_eq!(block_on(zip(first, read())), (Some(()), Some(())));
        assert_eq!(*made.lock(), 1);
    }

    #[test]
    fn nobody_is_left_waiting_when_many_come_at_once() {
        let readers = Readers::new(3);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 0..5_000 {
                        assert_eq!(block_on(readers.run(move || number)), Some(number));
                    }
                });
            }
        });
    }
}

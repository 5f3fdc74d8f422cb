//! The wait list and turns under all interleavings of a few threads, up to a number of preemptions. It is the
//! same source: `sync` is loom's here.

#![allow(clippy::unwrap_used, dead_code, reason = "a test fails by panicking")]

#[path = "../src/list.rs"]
#[allow(unreachable_pub, reason = "public in the library")]
mod list;
#[path = "../src/turns.rs"]
#[allow(unreachable_pub, reason = "public in the library")]
mod turns;

/// Locks and atomics of both, in the model.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}

use list::WaitList;
use loom::sync::Arc;
use loom::thread::{self, Thread};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};
use sync::{AtomicUsize, Ordering};
use turns::Turns;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

/// A task that is never woken again is a thread that loom finds parked for ever.
fn block_on<T>(task: impl Future<Output = T>) -> T {
    let mut task = pin!(task);
    let waker = Waker::from(std::sync::Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(result) = task.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        thread::park();
    }
}

fn explore(test: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(test);
}

/// Something to take, and who waits for it.
#[derive(Default)]
struct Tokens {
    free: AtomicUsize,
    turns: Turns,
}

impl Tokens {
    fn take(&self) -> Option<()> {
        let one_less = |free: usize| free.checked_sub(1);
        self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).ok().map(drop)
    }

    fn give(&self) {
        self.free.fetch_add(1, Ordering::Relaxed);
        self.turns.call(&());
    }
}

#[test]
fn what_comes_after_a_look_is_not_missed() {
    explore(|| {
        let (count, list) = (Arc::new(AtomicUsize::new(0)), Arc::new(WaitList::default()));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (count, list) = (count.clone(), list.clone());
                thread::spawn(move || {
                    count.fetch_add(1, Ordering::Relaxed);
                    list.wake();
                })
            })
            .collect();
        block_on(list.until(|| (count.load(Ordering::Relaxed) == 2).then_some(())));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn one_event_for_each_of_two_that_wait() {
    explore(|| {
        let tokens = Arc::new(Tokens::default());
        let other = {
            let tokens = tokens.clone();
            thread::spawn(move || block_on(tokens.turns.take((), || tokens.take())))
        };
        let giver = {
            let tokens = tokens.clone();
            thread::spawn(move || (0..2).for_each(|_| tokens.give()))
        };
        block_on(tokens.turns.take((), || tokens.take()));
        other.join().unwrap();
        giver.join().unwrap();
        assert!(tokens.take().is_none() && tokens.turns.is_empty());
    });
}

#[test]
fn the_turn_of_one_that_is_dropped_goes_to_the_next() {
    explore(|| {
        let tokens = Arc::new(Tokens::default());
        let impatient = {
            let tokens = tokens.clone();
            thread::spawn(move || {
                let polled = {
                    let mut taken = pin!(tokens.turns.take((), || tokens.take()));
                    taken.as_mut().poll(&mut Context::from_waker(Waker::noop()))
                };
                if polled.is_ready() {
                    tokens.give();
                }
            })
        };
        let giver = {
            let tokens = tokens.clone();
            thread::spawn(move || tokens.give())
        };
        block_on(tokens.turns.take((), || tokens.take()));
        impatient.join().unwrap();
        giver.join().unwrap();
        assert!(tokens.turns.is_empty());
    });
}

#[test]
fn who_wakes_one_key_forgets_no_other() {
    explore(|| {
        let list = Arc::new(WaitList::default());
        let done: Arc<[AtomicUsize; 2]> = Arc::default();
        let waiters: Vec<_> = (0..2)
            .map(|key| {
                let (list, done) = (list.clone(), done.clone());
                let is_done = move || (done[key].load(Ordering::Relaxed) == 1).then_some(());
                thread::spawn(move || block_on(list.until_with(key, is_done)))
            })
            .collect();
        for key in [1, 0] {
            done[key].store(1, Ordering::Relaxed);
            list.wake_where(|other| *other == key);
        }
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
}

//! Tasks that take from something that there is little of, each in its turn.
//!
//! Invariants:
//! - Nobody takes before one of the same key who waits: who comes back at once, as one who has just
//!   given back what others wait for, queues behind them.
//! - Where there is something for the first one, that one is woken: by the event, by the one before
//!   it that has taken, or by the one before it that is dropped.
//! - Nobody is woken under the lock of the queue.

use crate::sync::{AtomicUsize, Mutex, Ordering, fence};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Tasks that wait for their turn, of any threads. A key says what for: turns of one key are no
/// concern of another.
pub struct Turns<K = ()> {
    queue: Mutex<Queue<K>>,
    /// How many wait, for those who come and those who wake.
    len: AtomicUsize,
}

struct Queue<K> {
    next: u64,
    /// By number.
    waiting: VecDeque<Entry<K>>,
}

struct Entry<K> {
    number: u64,
    key: K,
    /// Left by the one who waits, taken by the one who wakes.
    waker: Option<Waker>,
}

/// The place of a task in a queue, which it leaves when it is dropped.
struct Place<'a, K: PartialEq> {
    turns: &'a Turns<K>,
    number: Option<u64>,
}

impl<K> Default for Turns<K> {
    fn default() -> Turns<K> {
        Turns {
            queue: Mutex::new(Queue { next: 0, waiting: VecDeque::new() }),
            len: AtomicUsize::new(0),
        }
    }
}

impl<K> std::fmt::Debug for Turns<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turns").finish_non_exhaustive()
    }
}

impl<K: PartialEq> Queue<K> {
    fn first_of(&mut self, key: &K) -> Option<&mut Entry<K>> {
        self.waiting.iter_mut().find(|entry| entry.key == *key)
    }

    /// Waker of the first one of a key, if it sleeps.
    fn waker_of(&mut self, key: &K) -> Option<Waker> {
        self.first_of(key)?.waker.take()
    }
}

impl<K: PartialEq> Turns<K> {
    /// Waits for the turn of this task among those of `key`, and then until `take` gives something,
    /// which is called under the lock of the queue.
    pub async fn take<R>(&self, key: K, mut take: impl FnMut() -> Option<R>) -> R
    where
        K: Clone,
    {
        if self.is_empty()
            && let Some(taken) = take()
        {
            return taken;
        }
        let mut place = Place { turns: self, number: None };
        poll_fn(|context| {
            let mut queue = self.queue.lock();
            let number = place.number.unwrap_or(queue.next);
            if place.number.is_none() {
                queue.next += 1;
                queue.waiting.push_back(Entry { number, key: key.clone(), waker: None });
                self.len.store(queue.waiting.len(), Ordering::Relaxed);
                place.number = Some(number);
                // Changes before an event that found nobody are seen now.
                fence(Ordering::SeqCst);
            }
            let is_first = queue.first_of(&key).is_some_and(|first| first.number == number);
            if is_first && let Some(taken) = take() {
                drop(queue);
                place.leave();
                return Poll::Ready(taken);
            }
            if let Some(entry) = queue.waiting.iter_mut().find(|entry| entry.number == number) {
                entry.waker = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// There may be something for the first one of a key.
    pub fn call(&self, key: &K) {
        // Changes before this fence are seen by whoever enters after it.
        fence(Ordering::SeqCst);
        if self.is_empty() {
            return;
        }
        let waker = self.queue.lock().waker_of(key);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<K> Turns<K> {
    /// Whether somebody waits whose key is meant, and has not just been woken.
    pub fn is_awaited(&self, mut is_meant: impl FnMut(&K) -> bool) -> bool {
        let asleep = |entry: &Entry<K>| entry.waker.is_some() && is_meant(&entry.key);
        !self.is_empty() && self.queue.lock().waiting.iter().any(asleep)
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }
}

impl<K: PartialEq> Place<'_, K> {
    /// Leaves the queue, and passes the turn on.
    fn leave(&mut self) {
        let Some(number) = self.number.take() else { return };
        let mut queue = self.turns.queue.lock();
        let at = queue.waiting.iter().position(|entry| entry.number == number);
        let left = at.and_then(|at| queue.waiting.remove(at));
        self.turns.len.store(queue.waiting.len(), Ordering::Relaxed);
        let next = left.and_then(|entry| queue.waker_of(&entry.key));
        drop(queue);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

impl<K: PartialEq> Drop for Place<'_, K> {
    fn drop(&mut self) {
        self.leave();
    }
}

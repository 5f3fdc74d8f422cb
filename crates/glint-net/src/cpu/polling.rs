//! Polling before sleep: a thread that waits for a message looks for it for a short time
//! before it goes to sleep, because waking it up takes several times as long as most
//! messages take to come.
//!
//! Polling tunes itself: it goes on as long as messages come meanwhile; when most do not it
//! rests, longer each time. So a thread that is idle, or whose messages take long, does not
//! poll, but for a few tries a second. Nobody yields meanwhile: since Linux 6.18
//! sched_yield(2) gives up milliseconds of a thread's share.

use crate::host;
use compio_runtime::Runtime;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// Longest time that is polled at once.
const WINDOW: Duration = Duration::from_micros(100);
/// First and longest rest.
const REST_MIN: Duration = Duration::from_millis(10);
const REST_MAX: Duration = Duration::from_secs(1);
/// Weight of the last wait in the share of waits that were short: one in so many.
const MEMORY: f32 = 16.0;

static ENABLED: AtomicBool = AtomicBool::new(true);

/// Whether threads of this process poll; they do where it pays unless they are told not to.
pub fn enable(enabled: bool) {
    ENABLED.store(enabled, Ordering::Relaxed);
}

/// Decides how long to poll.
struct Tuner {
    /// Share of waits that polling shortened.
    hits: f32,
    rest: Duration,
    rests_until: Option<Instant>,
}

impl Tuner {
    fn new() -> Tuner {
        Tuner { hits: 0.75, rest: REST_MIN, rests_until: None }
    }

    /// Whether to poll in a wait that begins now.
    fn polls(&mut self, now: Instant) -> bool {
        match self.rests_until {
            Some(until) if now < until => false,
            Some(_) => {
                // Another try, which a few misses end.
                self.rests_until = None;
                self.hits = 0.6;
                true
            }
            None => true,
        }
    }

    /// A wait in which it polled has ended after `time`.
    fn waited(&mut self, now: Instant, time: Duration) {
        let hit = if time <= WINDOW { 1.0 } else { 0.0 };
        self.hits += (hit - self.hits) / MEMORY;
        if self.hits < 0.5 {
            self.rests_until = Some(now + self.rest);
            self.rest = (2 * self.rest).min(REST_MAX);
        } else if self.hits > 0.8 {
            self.rest = REST_MIN;
        }
    }
}

/// Polls on behalf of one thread.
pub(crate) struct Poller {
    tuner: RefCell<Tuner>,
    /// When the wait began, and whether it polls.
    waiting: Cell<Option<(Instant, bool)>>,
    waker: RefCell<Option<Waker>>,
}

impl Poller {
    /// A poller, with a task that lives as long.
    pub(crate) fn start() -> Rc<Poller> {
        let poller = Rc::new(Poller {
            tuner: RefCell::new(Tuner::new()),
            waiting: Cell::new(None),
            waker: RefCell::new(None),
        });
        if !host::is_simulated() {
            host::spawn(run(Rc::downgrade(&poller)));
        }
        poller
    }

    /// Something is waited for from now on.
    pub(crate) fn wait_begins(&self) {
        if self.waiting.get().is_some() || !ENABLED.load(Ordering::Relaxed) || host::is_simulated()
        {
            return;
        }
        let now = Instant::now();
        let polls = self.tuner.borrow_mut().polls(now);
        self.waiting.set(Some((now, polls)));
        if polls && let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Ends the current wait: its event has come.
    pub(crate) fn wait_ends(&self) {
        if let Some((since, true)) = self.waiting.take() {
            let now = Instant::now();
            self.tuner.borrow_mut().waited(now, now - since);
        }
    }

    /// Whether waits are being shortened, so that nobody else need keep the core awake.
    pub(crate) fn is_polling(&self) -> bool {
        self.waiting.get().is_some_and(|(_, polls)| polls)
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

async fn run(poller: Weak<Poller>) {
    // Waking the driver makes the next look at the ring return at once.
    let driver = Runtime::with_current(Runtime::waker);
    poll_fn(|context| {
        let Some(poller) = poller.upgrade() else { return Poll::Ready(()) };
        match poller.waiting.get() {
            Some((since, true)) if since.elapsed() < WINDOW => {
                driver.wake_by_ref();
                context.waker().wake_by_ref();
            }
            _ => {
                poller.waker.replace(Some(context.waker().clone()));
            }
        }
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_polls_while_that_helps_and_rests_longer_and_longer() {
        let mut tuner = Tuner::new();
        let mut now = Instant::now();
        for _ in 0..100 {
            assert!(tuner.polls(now));
            tuner.waited(now, WINDOW / 2);
        }
        // Requests that take longer than it polls.
        let mut polled = 0;
        for _ in 0..10_000 {
            now += Duration::from_millis(1);
            if tuner.polls(now) {
                tuner.waited(now, WINDOW * 5);
                polled += 1;
            }
        }
        assert!(polled < 100, "it polled {polled} times in ten seconds in vain");
        // Waits are short again: the tuner finds out within its longest rest.
        now += REST_MAX;
        for _ in 0..20 {
            assert!(tuner.polls(now));
            tuner.waited(now, WINDOW / 4);
        }
    }
}

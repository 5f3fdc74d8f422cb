//! Polling before sleep: a thread that waits for a message looks for it for a short time
//! before it goes to sleep, because waking it up takes several times as long as most
//! messages take to come.
//!
//! Polling tunes itself: it goes on as long as messages come meanwhile; when most do not it
//! rests, longer each time. So a thread that is idle, or whose messages take long, does not
//! poll, but for a few tries a second. It also rests while others want its core: where servers
//! and clients share a few cores, what one polls is time in which another one would have sent the
//! message. Nobody yields meanwhile: since Linux 6.18 sched_yield(2) gives up milliseconds of a
//! thread's share.

use crate::cpu::keep_awake::preemptions;
use crate::cpu::tuning::{self, POLLING};
use crate::host;
use compio_runtime::Runtime;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// Longest time that is polled at once.
const WINDOW: Duration = Duration::from_micros(100);
/// First and longest rest.
const REST_MIN: Duration = Duration::from_millis(10);
const REST_MAX: Duration = Duration::from_secs(1);
/// How often it is looked whether others want the core of a thread that polls.
const LOOK: Duration = Duration::from_millis(4);
/// They do if it is taken from the thread more often than once in this time. (Housekeeping of a
/// kernel takes it some ten times a second.)
const TAKEN: Duration = Duration::from_millis(2);
/// Weight of the last wait in the share of waits that were short: one in so many.
const MEMORY: f32 = 16.0;

/// Whether threads of this process poll; they do where it pays unless they are told not to.
pub fn enable(enabled: bool) {
    tuning::allow(POLLING, enabled);
}

/// Decides how long to poll.
struct Tuner {
    /// Share of waits that polling shortened.
    hits: f32,
    rest: Duration,
    rests_until: Option<Instant>,
}

/// Looks whether others want the core of a thread.
struct Demand {
    /// When it looked last, and how often the core had been taken from the thread by then.
    looked: (Instant, u64),
}

impl Demand {
    fn new(now: Instant) -> Demand {
        Demand { looked: (now, preemptions()) }
    }

    /// Whether they wanted it since the last look; false if that was just now.
    fn is_high(&mut self, now: Instant, taken: impl FnOnce() -> u64) -> bool {
        let (then, before) = self.looked;
        let time = now.saturating_duration_since(then);
        if time < LOOK {
            return false;
        }
        let taken = taken();
        self.looked = (now, taken);
        TAKEN * u32::try_from(taken.saturating_sub(before)).unwrap_or(u32::MAX) > time
    }
}

impl Tuner {
    fn new() -> Tuner {
        Tuner { hits: 0.75, rest: REST_MIN, rests_until: None }
    }

    /// Whether to poll in a wait that begins now.
    fn polls(&mut self, now: Instant, is_wanted: impl FnOnce() -> bool) -> bool {
        match self.rests_until {
            Some(until) if now < until => false,
            Some(_) if is_wanted() => {
                self.rests(now);
                false
            }
            Some(_) => {
                // Another try, which a few misses end.
                self.rests_until = None;
                self.hits = 0.6;
                true
            }
            None => true,
        }
    }

    fn rests(&mut self, now: Instant) {
        self.rests_until = Some(now + self.rest);
        self.rest = (2 * self.rest).min(REST_MAX);
    }

    /// A wait in which it polled has ended after `time`.
    fn waited(&mut self, now: Instant, time: Duration, is_wanted: bool) {
        let hit = if time <= WINDOW { 1.0 } else { 0.0 };
        self.hits += (hit - self.hits) / MEMORY;
        if self.hits < 0.5 || is_wanted {
            self.rests(now);
        } else if self.hits > 0.8 {
            self.rest = REST_MIN;
        }
    }
}

/// Polls on behalf of one thread.
pub(crate) struct Poller {
    tuner: RefCell<Tuner>,
    demand: RefCell<Demand>,
    /// When the wait began, and whether it polls.
    waiting: Cell<Option<(Instant, bool)>>,
    waker: RefCell<Option<Waker>>,
}

impl Poller {
    /// A poller, with a task that lives as long.
    pub(crate) fn start() -> Rc<Poller> {
        let poller = Rc::new(Poller {
            tuner: RefCell::new(Tuner::new()),
            demand: RefCell::new(Demand::new(Instant::now())),
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
        if self.waiting.get().is_some() || host::is_simulated() || !tuning::is_on(POLLING) {
            return;
        }
        let now = Instant::now();
        let is_wanted = || self.demand.borrow_mut().is_high(now, preemptions);
        let polls = self.tuner.borrow_mut().polls(now, is_wanted);
        self.waiting.set(Some((now, polls)));
        if polls && let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Ends the current wait: its event has come.
    pub(crate) fn wait_ends(&self) {
        if let Some((since, true)) = self.waiting.take() {
            let now = Instant::now();
            let is_wanted = self.demand.borrow_mut().is_high(now, preemptions);
            self.tuner.borrow_mut().waited(now, now - since, is_wanted);
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
            assert!(tuner.polls(now, || false));
            tuner.waited(now, WINDOW / 2, false);
        }
        // Requests that take longer than it polls.
        let mut polled = 0;
        for _ in 0..10_000 {
            now += Duration::from_millis(1);
            if tuner.polls(now, || false) {
                tuner.waited(now, WINDOW * 5, false);
                polled += 1;
            }
        }
        assert!(polled < 100, "it polled {polled} times in ten seconds in vain");
        // Waits are short again: the tuner finds out within its longest rest.
        now += REST_MAX;
        for _ in 0..20 {
            assert!(tuner.polls(now, || false));
            tuner.waited(now, WINDOW / 4, false);
        }
    }
    #[test]
    fn it_rests_while_others_want_the_core() {
        let mut now = Instant::now();
        let mut demand = Demand { looked: (now, 100) };
        let mut look = |millis, taken| {
            now += Duration::from_millis(millis);
            demand.is_high(now, || taken)
        };
        assert!(!look(1, 1000), "it has just looked");
        assert!(!look(4, 102), "once in 2.5 ms");
        assert!(look(4, 105));
        assert!(!look(1000, 150), "by housekeeping");
        let (mut tuner, mut now) = (Tuner::new(), now);
        let mut polled = 0;
        for _ in 0..10_000 {
            now += Duration::from_millis(1);
            if tuner.polls(now, || true) {
                polled += 1;
                tuner.waited(now, WINDOW / 2, true);
            }
        }
        assert_eq!(polled, 1, "until it has looked");
        now += REST_MAX;
        assert!(tuner.polls(now, || false));
        tuner.waited(now, WINDOW / 2, false);
        assert!(tuner.polls(now, || true), "it polls until a wait has ended");
    }
}

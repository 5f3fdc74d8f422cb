//! How long others could be heard: time, less that in which this process stood still or one of
//! the threads that hear did.
//!
//! Invariant: whoever is counted as silent for a time was silent while all threads ran, and
//! after each pause the threads ran for a while before anybody is counted out: what lay in the
//! sockets has been looked at.

use crate::clock;
use crate::limits::{BEAT_MS, PAUSE_MS_MIN, SETTLE_MS};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A moment, in time in which others could be heard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Moment(Duration);

impl std::ops::Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, time: Duration) -> Moment {
        Moment(self.0 + time)
    }
}

/// Said by a thread that hears others, every [`BEAT_MS`]; it is not watched any more when this
/// is dropped.
pub struct Beat(Arc<Mutex<Instant>>);

impl Beat {
    /// The thread runs.
    pub fn runs(&self) {
        *self.0.lock() = clock::now();
    }

    /// How often it says so.
    pub const EVERY: Duration = Duration::from_millis(BEAT_MS);
}

struct State {
    threads: Vec<Weak<Mutex<Instant>>>,
    looked: Instant,
    now: Moment,
    /// The end of the last pause.
    paused: Moment,
}

/// The watch of a server. Its time passes with [`Watch::look`].
pub struct Watch(Mutex<State>);

impl Default for Watch {
    fn default() -> Watch {
        let (looked, now) = (clock::now(), Moment::default());
        Watch(Mutex::new(State { threads: Vec::new(), looked, now, paused: now }))
    }
}

impl Watch {
    /// One more thread hears others.
    pub fn add_thread(&self) -> Beat {
        let beat = Arc::new(Mutex::new(clock::now()));
        self.0.lock().threads.push(Arc::downgrade(&beat));
        Beat(beat)
    }

    /// Lets time pass. To be called more often than every [`PAUSE_MS_MIN`].
    pub fn look(&self) {
        let (mut state, now) = (self.0.lock(), clock::now());
        let pause = Duration::from_millis(PAUSE_MS_MIN);
        let passed = now.saturating_duration_since(state.looked);
        state.looked = now;
        let mut paused = passed >= pause;
        state.threads.retain(|thread| {
            let thread = thread.upgrade();
            let stands =
                |ran: &Arc<Mutex<Instant>>| now.saturating_duration_since(*ran.lock()) >= pause;
            paused |= thread.as_ref().is_some_and(stands);
            thread.is_some()
        });
        match paused {
            true => state.paused = state.now,
            false => state.now = state.now + passed,
        }
    }

    /// Now.
    pub fn now(&self) -> Moment {
        self.0.lock().now
    }

    /// Whether somebody who was last heard at `then` could be heard for longer than `time`
    /// since, and was not.
    pub fn is_over(&self, then: Moment, time: Duration) -> bool {
        let state = self.0.lock();
        state.now > then + time && state.now >= state.paused + Duration::from_millis(SETTLE_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    /// Time passes, with a look every 100 ms.
    fn pass(watch: &Watch, now: &mut Instant, time: Duration, beat: Option<&Beat>) {
        let end = *now + time;
        while *now < end {
            *now += Duration::from_millis(100);
            clock::simulate(Some(*now));
            beat.inspect(|beat| beat.runs());
            watch.look();
        }
    }

    #[test]
    fn pauses_count_for_nobody() {
        let mut now = Instant::now();
        clock::simulate(Some(now));
        let (watch, heard) = (Watch::default(), Moment::default());
        let beat = watch.add_thread();
        pass(&watch, &mut now, LEASE - Duration::from_millis(200), Some(&beat));
        // The whole process is stopped.
        now += LEASE * 10;
        clock::simulate(Some(now));
        watch.look();
        // A thread hangs, at a disk that is frozen.
        pass(&watch, &mut now, LEASE * 2, None);
        assert!(!watch.is_over(heard, LEASE));
        pass(&watch, &mut now, Duration::from_millis(SETTLE_MS - 200), Some(&beat));
        assert!(!watch.is_over(heard, LEASE), "what lies in the sockets comes first");
        pass(&watch, &mut now, Duration::from_millis(400), Some(&beat));
        assert!(watch.is_over(heard, LEASE));
        // One that has ended is not waited for.
        drop(beat);
        let heard = watch.now();
        pass(&watch, &mut now, LEASE + Duration::from_millis(200), None);
        assert!(watch.is_over(heard, LEASE));
        clock::simulate(None);
    }
}

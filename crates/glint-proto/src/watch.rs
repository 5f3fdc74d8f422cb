//! How long others could be heard: time, less that in which this process stood still or the
//! threads that hear did.
//!
//! Time is measured twice. What somebody owes may lie with one thread, so it is late by the time
//! in which *all* threads ran. Who lives says so again, to a thread that runs, if it is not
//! answered: so silence is measured by the time in which *any* thread ran, and one that stands
//! still for ever (at a disk) keeps nobody here who is gone.
//!
//! Invariants:
//! - Whoever is counted as late for a time owed it while all threads ran; whoever is counted as
//!   silent was silent while one ran.
//! - After each pause the threads ran for a while before anybody is counted out: what lay in the
//!   sockets has been looked at.

use crate::clock;
use crate::limits::{BEAT_MS, PAUSE_MS_MIN, SETTLE_MS};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A moment, in time in which others could be heard: by all threads, and by any.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Moment {
    all: Duration,
    any: Duration,
}

impl std::ops::Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, time: Duration) -> Moment {
        Moment { all: self.all + time, any: self.any + time }
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

struct WatchedTime {
    threads: Vec<Weak<Mutex<Instant>>>,
    looked: Instant,
    now: Moment,
    /// The end of the last pause.
    paused: Moment,
}

/// The watch of a server. Its time passes with [`Watch::look`].
pub struct Watch(Mutex<WatchedTime>);

impl Default for Watch {
    fn default() -> Watch {
        let (looked, now) = (clock::now(), Moment::default());
        let threads = Vec::new();
        Watch(Mutex::new(WatchedTime { threads, looked, now, paused: now }))
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
        let stopped = passed >= pause;
        state.threads.retain(|thread| thread.strong_count() > 0);
        let ran = |thread: &Weak<Mutex<Instant>>| thread.upgrade().map(|ran| *ran.lock());
        let silences = state.threads.iter().filter_map(ran);
        let silences = silences.map(|ran| now.saturating_duration_since(ran));
        let (mut count, mut standing) = (0, 0);
        for silence in silences {
            count += 1;
            standing += usize::from(silence >= pause);
        }
        let WatchedTime { now, paused, .. } = &mut *state;
        match stopped || standing > 0 {
            true => paused.all = now.all,
            false => now.all += passed,
        }
        match stopped || (count > 0 && standing == count) {
            true => paused.any = now.any,
            false => now.any += passed,
        }
    }

    /// Now.
    pub fn now(&self) -> Moment {
        self.0.lock().now
    }

    /// Whether somebody owes something since `then` that could be heard for longer than `time`,
    /// whichever thread it comes to.
    pub fn is_over(&self, then: Moment, time: Duration) -> bool {
        let WatchedTime { now, paused, .. } = *self.0.lock();
        now.all > then.all + time && now.all >= paused.all + Duration::from_millis(SETTLE_MS)
    }

    /// Whether somebody who was last heard at `then` could be heard for longer than `time`
    /// since, by a thread or another, and was not.
    pub fn is_silent(&self, then: Moment, time: Duration) -> bool {
        let WatchedTime { now, paused, .. } = *self.0.lock();
        now.any > then.any + time && now.any >= paused.any + Duration::from_millis(SETTLE_MS)
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
        pass(&watch, &mut now, LEASE.saturating_sub(Duration::from_millis(200)), Some(&beat));
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

    #[test]
    fn one_thread_that_stands_still_keeps_nobody_who_is_gone() {
        let mut now = Instant::now();
        clock::simulate(Some(now));
        let (watch, then) = (Watch::default(), Moment::default());
        let (_hangs, runs) = (watch.add_thread(), watch.add_thread());
        pass(&watch, &mut now, LEASE, Some(&runs));
        assert!(!watch.is_silent(then, LEASE));
        pass(&watch, &mut now, Duration::from_millis(200), Some(&runs));
        assert!(watch.is_silent(then, LEASE), "whoever lives came to the other thread");
        pass(&watch, &mut now, LEASE * 2, Some(&runs));
        assert!(!watch.is_over(then, LEASE), "what it owes may lie with the one that hangs");
        // Nobody is heard while both hang.
        let then = watch.now();
        pass(&watch, &mut now, LEASE * 2, None);
        assert!(!watch.is_silent(then, LEASE));
        // A pause is one only when it is long enough; until then time passed.
        let before = Duration::from_millis(PAUSE_MS_MIN);
        pass(&watch, &mut now, LEASE.saturating_sub(before), Some(&runs));
        assert!(!watch.is_silent(then, LEASE));
        pass(&watch, &mut now, before + Duration::from_millis(200), Some(&runs));
        assert!(watch.is_silent(then, LEASE));
        clock::simulate(None);
    }
}

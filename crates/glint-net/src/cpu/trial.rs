//! Whether a policy pays, found by trying: slices of time with it and without it take turns while
//! work goes on, and the side that gets more done stays. No I/O and no clock.
//!
//! Invariants:
//! - A slice counts only if work went on to its end: a pause says nothing of a policy.
//! - With as much done without a policy as with it, it stays off: it costs processors. It is off until
//!   it was tried, and after a pause until work has gone on for a while nothing is tried. A trial that
//!   a pause interrupts leaves what was found before.
//! - What was found is tried again, the more rarely the longer it has stayed the same, and soon if the
//!   rate of the work has become another one.

use std::time::Duration;

/// Length of a slice. Longer than the tick of a scheduler, so that it holds several of its decisions.
const SLICE: Duration = Duration::from_millis(16);
/// Work ends a slice late by no more than this, or there was a pause.
const LATE_MAX: Duration = Duration::from_millis(8);
/// Least work of a slice.
const WORK_MIN: u64 = 24;
/// Pairs of slices, with and without, that a decision is made of.
const PAIRS: usize = 8;
/// What is gained at least, in parts of what was done: less may be chance.
const GAIN_MIN: f64 = 0.03;
/// Work that goes on so long is tried.
const LONG_ENOUGH: Duration = Duration::from_millis(400);
/// First and longest time between two trials.
const STAY_MIN: Duration = Duration::from_secs(1);
const STAY_MAX: Duration = Duration::from_secs(32);
/// A rate has become another one when it has changed by more than this factor.
const OTHER_RATE: f64 = 1.6;

/// The policies that are tried; one after the other.
pub(super) const POLICIES: usize = 2;

/// Trials of policies, each while the others stay as they are.
pub(super) struct Trials {
    /// What was found last of each.
    found: [bool; POLICIES],
    /// Those that are tried; others are off.
    allowed: [bool; POLICIES],
    phase: Phase,
    /// When the current slice began, and the work until then.
    began: Option<(Duration, u64)>,
    stay: Duration,
    changed: bool,
}

enum Phase {
    /// One of the policies is tried. Work of slices with it and without it; it is on in the current
    /// one or not.
    Trial { policy: usize, pairs: Vec<[u64; 2]>, half: Option<u64>, is_on: bool },
    /// Until then nothing is tried; rate of the work when this began.
    Stay { until: Duration, rate: Option<f64> },
}

impl Trials {
    pub(super) fn new() -> Trials {
        Trials {
            found: [false; POLICIES],
            allowed: [true; POLICIES],
            phase: Phase::Stay { until: LONG_ENOUGH, rate: None },
            began: None,
            stay: STAY_MIN,
            changed: false,
        }
    }

    /// A policy may be used, or must not.
    pub(super) fn allow(&mut self, policy: usize, allowed: bool) {
        self.allowed[policy] = allowed;
        // Counted from the first work, if there was none yet.
        let now = self.began.map_or(Duration::ZERO, |(began, _)| began);
        self.phase = Phase::Stay { until: now + LONG_ENOUGH, rate: None };
    }

    /// Whether a policy is on now.
    pub(super) fn is_on(&self, policy: usize) -> bool {
        let is_on = match &self.phase {
            Phase::Trial { policy: tried, is_on, .. } if *tried == policy => *is_on,
            _ => self.found[policy],
        };
        is_on && self.allowed[policy]
    }

    /// When the next call of [`Trials::on_work`] is due.
    pub(super) fn due(&self) -> Duration {
        self.began.map_or(Duration::ZERO, |(began, _)| began + SLICE)
    }

    /// So much work was done in all until now, when some has just been done.
    pub(super) fn on_work(&mut self, now: Duration, work: u64) {
        let Some((began, before)) = self.began.replace((now, work)) else {
            if let Phase::Stay { until, .. } = &mut self.phase {
                *until += now;
            }
            return;
        };
        let (time, done) = (now.saturating_sub(began), work - before);
        if time < SLICE {
            self.began = Some((began, before));
            return;
        }
        let is_whole = time < SLICE + LATE_MAX && done >= WORK_MIN;
        let per_slice = done as f64 * SLICE.as_secs_f64() / time.as_secs_f64();
        match &mut self.phase {
            Phase::Stay { until, rate } => {
                let is_other = is_whole
                    && rate.is_some_and(|rate| {
                        per_slice > rate * OTHER_RATE || per_slice * OTHER_RATE < rate
                    });
                if is_whole {
                    // A mean of the last ones: one slice alone varies.
                    *rate = Some(rate.map_or(per_slice, |rate| rate + (per_slice - rate) / 8.0));
                } else {
                    *until = (*until).max(now + LONG_ENOUGH);
                }
                if is_other {
                    *until = (*until).min(now + STAY_MIN);
                    self.stay = STAY_MIN;
                }
                if now >= *until {
                    self.changed = false;
                    self.begin_trial(0);
                }
            }
            Phase::Trial { policy, half, is_on, .. } if !is_whole => {
                (*half, *is_on) = (None, self.found[*policy]);
            }
            Phase::Trial { policy, pairs, half, is_on } => {
                let done = per_slice as u64;
                match half.take() {
                    None => {
                        *half = Some(done);
                        *is_on = !*is_on;
                    }
                    Some(first) => {
                        // The next pair begins with the side that this one ends with, so that
                        // work that grows favours neither.
                        pairs.push(if *is_on { [done, first] } else { [first, done] });
                        if pairs.len() == PAIRS {
                            let (policy, pays) = (*policy, pays(pairs));
                            self.decide(policy, pays, now);
                        }
                    }
                }
            }
        }
    }

    fn decide(&mut self, policy: usize, pays: bool, now: Duration) {
        self.changed |= self.found[policy] != pays;
        self.found[policy] = pays;
        self.begin_trial(policy + 1);
        if let Phase::Stay { until, .. } = &mut self.phase {
            self.stay = if self.changed { STAY_MIN } else { (2 * self.stay).min(STAY_MAX) };
            *until = now + self.stay;
        }
    }

    /// Tries the first policy from this one on that may be used; stays as it is if none is left.
    fn begin_trial(&mut self, first: usize) {
        self.phase = match (first..POLICIES).find(|policy| self.allowed[*policy]) {
            Some(policy) => {
                let is_on = self.found[policy];
                Phase::Trial { policy, pairs: Vec::with_capacity(PAIRS), half: None, is_on }
            }
            None => Phase::Stay { until: Duration::MAX, rate: None },
        };
    }
}

/// Whether more was done with a policy than without: by the middle of the pairs, since what disturbs
/// one is large.
fn pays(pairs: &[[u64; 2]]) -> bool {
    let mut gains: Vec<f64> =
        pairs.iter().map(|[with, without]| *with as f64 / (*without).max(1) as f64).collect();
    gains.sort_by(f64::total_cmp);
    let middle = &gains[gains.len() / 4..gains.len() - gains.len() / 4];
    middle.iter().sum::<f64>() / middle.len() as f64 > 1.0 + GAIN_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work whose rate depends on the policies, and varies by some tenths.
    struct Work {
        now: Duration,
        done: u64,
        chance: u64,
    }

    impl Work {
        fn new() -> Work {
            Work { now: Duration::from_secs(1), done: 0, chance: 7 }
        }

        /// Works for so long; returns how much was done in a second.
        fn run(
            &mut self,
            trials: &mut Trials,
            time: Duration,
            rate: impl Fn([bool; 2]) -> f64,
        ) -> f64 {
            let (from, end) = (self.done, self.now + time);
            while self.now < end {
                // Some of a slice is slow, some fast.
                self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let noise = 0.7 + 0.6 * (self.chance >> 40) as f64 / (1u64 << 24) as f64;
                let rate = rate([trials.is_on(0), trials.is_on(1)]) * noise;
                self.now += Duration::from_micros(200);
                self.done += (rate * 0.0002).max(1.0) as u64;
                if self.now >= trials.due() {
                    trials.on_work(self.now, self.done);
                }
            }
            (self.done - from) as f64 / time.as_secs_f64()
        }
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn the_faster_side_stays_whichever_it_is() {
        for best in [[false, false], [false, true], [true, false], [true, true]] {
            let rate = |is_on: [bool; 2]| {
                let slower = (0..2).filter(|policy| is_on[*policy] != best[*policy]).count();
                100_000.0 * 0.8f64.powi(slower as i32)
            };
            let (mut trials, mut work) = (Trials::new(), Work::new());
            work.run(&mut trials, Duration::from_secs(2), rate);
            let done = work.run(&mut trials, LONG, rate);
            let always = Work::new().run(&mut Trials::new(), LONG, |_| 100_000.0);
            assert!(done > 0.97 * always, "{best:?}: {done} of {always}");
        }
    }

    #[test]
    fn what_brings_nothing_is_off() {
        let (mut trials, mut work) = (Trials::new(), Work::new());
        work.run(&mut trials, LONG, |_| 50_000.0);
        assert_eq!([trials.is_on(0), trials.is_on(1)], [false, false]);
    }

    #[test]
    fn other_work_is_tried_anew_soon() {
        let (mut trials, mut work) = (Trials::new(), Work::new());
        let first = |is_on: [bool; 2]| if is_on[0] { 80_000.0 } else { 100_000.0 };
        work.run(&mut trials, 3 * LONG, first);
        assert!(!trials.is_on(0));
        let other = |is_on: [bool; 2]| if is_on[0] { 400_000.0 } else { 280_000.0 };
        work.run(&mut trials, Duration::from_secs(3), other);
        assert!(trials.is_on(0) || matches!(trials.phase, Phase::Trial { policy: 0, .. }));
        let done = work.run(&mut trials, LONG, other);
        let always = Work::new().run(&mut Trials::new(), LONG, |_| 400_000.0);
        assert!(done > 0.95 * always, "{done} of {always}");
    }

    #[test]
    fn work_with_pauses_decides_nothing() {
        let (mut trials, mut work) = (Trials::new(), Work::new());
        for _ in 0..200 {
            work.run(&mut trials, SLICE / 2, |is_on| if is_on[0] { 80_000.0 } else { 40_000.0 });
            work.now += Duration::from_millis(100);
        }
        assert_eq!(trials.found, [false, false]);
    }

    #[test]
    fn a_pause_in_a_trial_leaves_what_was_found_before() {
        let (mut trials, mut work) = (Trials::new(), Work::new());
        while !trials.is_on(0) {
            work.run(&mut trials, SLICE, |_| 100_000.0);
        }
        // A request now and then, for long: no slice of it is whole.
        for _ in 0..500 {
            work.now += Duration::from_millis(30);
            work.done += 1;
            trials.on_work(work.now, work.done);
            assert!(!trials.is_on(0) && !trials.is_on(1));
        }
    }

    #[test]
    fn short_work_after_a_pause_is_not_tried() {
        let (mut trials, mut work) = (Trials::new(), Work::new());
        let rate = |_: [bool; 2]| 100_000.0;
        work.run(&mut trials, LONG_ENOUGH / 2, rate);
        for _ in 0..20 {
            work.now += Duration::from_secs(5);
            work.run(&mut trials, LONG_ENOUGH / 2, |is_on| {
                assert_eq!(is_on, [false, false]);
                100_000.0
            });
        }
    }

    #[test]
    fn what_must_not_be_is_off_and_not_tried() {
        let (mut trials, mut work) = (Trials::new(), Work::new());
        trials.allow(0, false);
        work.run(&mut trials, LONG, |is_on| {
            assert!(!is_on[0]);
            if is_on[1] { 90_000.0 } else { 60_000.0 }
        });
        assert!(trials.is_on(1) || matches!(trials.phase, Phase::Trial { policy: 1, .. }));
    }
}

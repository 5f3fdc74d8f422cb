//! A pace: when so much of some work is due.

use std::time::{Duration, Instant};

/// Work that is that much late, because a disk was slow, is not caught up with.
const LATE: Duration = Duration::from_millis(500);

/// The time at which so much is due.
pub(crate) struct Pace {
    per_s: f64,
    begun: Instant,
    done: f64,
}

impl Pace {
    /// So much a second; 0: as fast as it goes.
    pub(crate) fn new(per_s: f64) -> Pace {
        Pace { per_s, begun: Instant::now(), done: 0.0 }
    }

    /// Notes what was done, and waits until more is due.
    pub(crate) fn wait(&mut self, done: f64) {
        if self.per_s == 0.0 {
            return;
        }
        self.done += done;
        let due = self.begun + Duration::from_secs_f64(self.done / self.per_s);
        let now = Instant::now();
        if now > due + LATE {
            (self.begun, self.done) = (now, 0.0);
        }
        std::thread::sleep(due.saturating_duration_since(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_kept_and_nothing_is_caught_up_with() {
        let mut pace = Pace::new(20.0);
        let begun = Instant::now();
        (0..6).for_each(|_| pace.wait(1.0));
        assert!(begun.elapsed() >= Duration::from_millis(299), "{:?}", begun.elapsed());
        pace.begun -= Duration::from_secs(10);
        pace.wait(1.0);
        assert_eq!(pace.done, 0.0, "it begins anew");
        let begun = Instant::now();
        Pace::new(0.0).wait(f64::MAX);
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}

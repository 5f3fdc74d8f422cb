//! How often a client looks how much memory there is.

use std::time::Duration;

/// Bytes that caches may grow by in a second: who looks again when spare memory may be used up looks
/// in time.
const GROWTH_PER_S: u64 = 500 << 20;
/// Pause between two looks, with little memory and with much.
const LOOK_MIN: Duration = Duration::from_millis(20);
const LOOK_MAX: Duration = Duration::from_secs(1);
/// The same while more is held than is allowed.
const LOOK_SHRINKING: Duration = Duration::from_millis(50);

/// Pauses between looks. While a look finds nothing new each is twice as long as the one before: a
/// client that nobody uses holds what it cannot give up for as long as a file is open, and memory may
/// be short for as long as another program runs.
#[derive(Default)]
pub(super) struct Pace {
    pause: Duration,
    is_seldom: bool,
}

impl Pace {
    /// Returns the pause after a look that found so many bytes to spare, and more held than is allowed
    /// or not; something was new, or nothing.
    pub(super) fn next(&mut self, spare: u64, is_over: bool, is_new: bool) -> Duration {
        let until_short = Duration::from_millis(spare.saturating_mul(1000) / GROWTH_PER_S);
        let longest = if is_over { LOOK_SHRINKING } else { LOOK_MAX };
        let due = until_short.clamp(LOOK_MIN, longest);
        self.pause = if is_new { due } else { (2 * self.pause).clamp(due, LOOK_MAX) };
        self.is_seldom = self.pause > due;
        self.pause
    }

    /// Returns true if the last pause is longer than it would be if something were new.
    pub(super) fn is_seldom(&self) -> bool {
        self.is_seldom
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks in a minute in which nothing is new.
    fn looks(spare: u64, is_over: bool) -> u32 {
        let (mut pace, mut time, mut looks) = (Pace::default(), Duration::ZERO, 0);
        time += pace.next(spare, is_over, true);
        while time < Duration::from_secs(60) {
            time += pace.next(spare, is_over, false);
            looks += 1;
        }
        looks
    }

    #[test]
    fn an_idle_client_looks_once_a_second() {
        for (spare, is_over) in [(u64::MAX, true), (u64::MAX, false), (0, true), (0, false)] {
            let looks = looks(spare, is_over);
            assert!((59..70).contains(&looks), "{looks} with {spare} to spare, {is_over}");
        }
    }

    #[test]
    fn what_is_new_is_looked_at_in_time() {
        let mut pace = Pace::default();
        let pauses: Vec<_> = (0..10).map(|_| pace.next(0, false, false)).collect();
        assert_eq!(pauses[9], LOOK_MAX);
        assert!(pace.is_seldom());
        assert_eq!(pace.next(0, false, true), LOOK_MIN);
        assert!(!pace.is_seldom());
        assert_eq!(pace.next(GROWTH_PER_S / 10, false, true), Duration::from_millis(100));
        assert_eq!(pace.next(u64::MAX, true, true), LOOK_SHRINKING);
        assert_eq!(pace.next(u64::MAX, true, false), 2 * LOOK_SHRINKING);
        assert_eq!(pace.next(u64::MAX, false, false), LOOK_MAX, "there is enough");
    }
}

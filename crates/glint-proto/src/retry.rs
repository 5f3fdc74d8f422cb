//! Retries of operations that failed for a reason that may pass: for how long and after which
//! pauses.
//!
//! Invariant: nothing is given up because time went by in which nobody tried: a disk that works
//! again has fewer failures than that.

use crate::Errno;
use crate::limits::{DISK_FAILS_MIN, DISK_FAILS_MS_MAX, RESEND_MS_MAX, RESEND_MS_MIN};
use std::time::{Duration, Instant};

/// Something that has failed, and is to be tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failing {
    /// The first failure since it last worked, whatever its reason.
    pub since: Instant,
    /// The last failure.
    pub last: Instant,
    /// Reason of the last failure.
    pub errno: Errno,
    /// Earliest moment of the next try.
    pub rests_until: Instant,
    /// Failures in a row for that reason, and the first of them.
    times: u32,
    first: Instant,
}

impl Errno {
    /// Whether what failed with it is worth another try.
    pub fn may_pass(self) -> bool {
        self.passes_within().is_some()
    }

    /// How long it may last; `None` if it does not pass.
    fn passes_within(self) -> Option<Duration> {
        match self {
            // A disk that fails once may work the next time; one that goes on failing does not.
            Errno::EIO => Some(Duration::from_millis(DISK_FAILS_MS_MAX)),
            Errno::EMFILE
            | Errno::ENFILE
            | Errno::ENOMEM
            | Errno::EAGAIN
            | Errno::EINTR
            | Errno::EBUSY
            | Errno::ETIMEDOUT
            | Errno::ENOTCONN
            // An OST that is not known yet.
            | Errno::ENXIO => Some(Duration::MAX),
            _ => None,
        }
    }
}

impl Failing {
    /// One more failure of what has failed like this before, if it has; `None` if it is given up.
    pub fn again(before: Option<Failing>, errno: Errno, now: Instant) -> Option<Failing> {
        let limit = errno.passes_within()?;
        let since = before.map_or(now, |before| before.since);
        let (times, first) = match before {
            Some(before) if before.errno == errno => (before.times + 1, before.first),
            _ => (1, now),
        };
        if times >= DISK_FAILS_MIN && now.saturating_duration_since(first) >= limit {
            return None;
        }
        let (min, max) =
            (Duration::from_millis(RESEND_MS_MIN), Duration::from_millis(RESEND_MS_MAX));
        let pause = now.saturating_duration_since(since).clamp(min, max);
        Some(Failing { since, last: now, errno, rests_until: now + pause, times, first })
    }

    /// A copy of the failure that is tried again at once.
    pub fn at_once(self, now: Instant) -> Failing {
        Failing { last: now, rests_until: now, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Failures at these milliseconds; when the last one is tried again.
    fn after(failures: &[(u64, Errno)]) -> Option<u64> {
        let begun = Instant::now();
        let mut failing = None;
        for (ms, errno) in failures {
            let now = begun + Duration::from_millis(*ms);
            failing = Some(Failing::again(failing, *errno, now)?);
        }
        failing.map(|failing| failing.rests_until.duration_since(begun).as_millis() as u64)
    }

    #[test]
    fn a_disk_that_goes_on_failing_is_given_up() {
        let eio = |at: &[u64]| at.iter().map(|ms| (*ms, Errno::EIO)).collect::<Vec<_>>();
        assert_eq!(after(&eio(&[0])), Some(50));
        assert_eq!(after(&eio(&[0, 50, 100, 200, 400])), Some(800));
        assert_eq!(after(&eio(&[0, 50, 100, 200, 400, 800])), Some(1_600));
        assert_eq!(after(&eio(&[0, 50, 100, 200, 400, 800, 1_600])), None);
    }

    #[test]
    fn time_in_which_nobody_tried_is_no_failure() {
        assert_eq!(after(&[(0, Errno::EIO), (60_000, Errno::EIO)]), Some(61_000));
        let other = [(0, Errno::EMFILE), (60_000, Errno::EMFILE), (60_001, Errno::EIO)];
        assert_eq!(after(&other), Some(61_001), "for another reason");
    }

    #[test]
    fn what_passes_is_tried_for_ever_and_what_does_not_never() {
        let descriptors: Vec<_> = (0..1_000).map(|n| (n * 1_000, Errno::EMFILE)).collect();
        assert_eq!(after(&descriptors), Some(1_000_000));
        assert_eq!(after(&[(0, Errno::ENOSPC)]), None);
    }
}

//! When memory that caches have freed is given back to the system.
//!
//! The allocator has a heap for each few threads, and memory that is freed stays with the heap that it is
//! of. While programs that scan a tree go from core to core, other threads serve them: then the inodes lie
//! in one heap after the other, no more than may be known in all, and the free memory of the others adds up.
//! So it is given back also where memory is ample, each time that many inodes were forgotten.

use crate::memory::MemoryKeeping;
use std::time::{Duration, Instant};

/// What was freed before it is given back at once: inodes that take some MB, and bytes of data.
const INODES: usize = 8192;
const BYTES: usize = 4 << 20;
/// Inodes that were forgotten before it is given back where memory is ample: what takes some 10 MB. Not
/// more often than that: who needs memory meanwhile waits for it.
const INODES_AMPLE: usize = 32_768;
const TIME_AMPLE: Duration = Duration::from_secs(5);
/// How long less than that may stay with the allocator.
const TIME: Duration = Duration::from_secs(1);

/// What caches hold.
#[derive(Clone, Copy)]
pub(super) struct CacheUse {
    pub(super) inodes: usize,
    /// How many were forgotten so far.
    pub(super) forgotten: usize,
    /// Of data.
    pub(super) bytes: usize,
}

/// When memory was last given back to the system, how many inodes had been forgotten then, and the most
/// that was held since.
pub(super) struct GivenBack {
    at: Instant,
    forgotten: usize,
    most: CacheUse,
    /// What is allowed, and since when, if it became less and nothing was given back later than that has
    /// had time.
    allowed: (usize, u32),
    less_since: Option<Instant>,
}

impl GivenBack {
    pub(super) fn new(at: Instant) -> GivenBack {
        let most = CacheUse { inodes: 0, forgotten: 0, bytes: 0 };
        GivenBack { at, forgotten: 0, most, allowed: (usize::MAX, 0), less_since: None }
    }

    /// Returns true if it is to be given back now. Where nothing was freed that would find nothing, and
    /// look at all of the heap for it.
    pub(super) fn is_due(&mut self, now: Instant, held: CacheUse, keeping: &MemoryKeeping) -> bool {
        let (inodes_max, steps) = keeping.allowed();
        if inodes_max < self.allowed.0 || steps > self.allowed.1 {
            self.less_since = Some(now);
        }
        self.allowed = (inodes_max, steps);
        self.most.inodes = self.most.inodes.max(held.inodes);
        self.most.bytes = self.most.bytes.max(held.bytes);
        if !keeping.is_less() {
            let is_due = held.forgotten.wrapping_sub(self.forgotten) >= INODES_AMPLE
                && now.saturating_duration_since(self.at) >= TIME_AMPLE;
            if is_due {
                self.note(now, held);
            }
            return is_due;
        }
        let inodes = self.most.inodes - held.inodes;
        let is_freed = inodes > 0 || self.most.bytes - held.bytes >= BYTES;
        let is_late = now.saturating_duration_since(self.at) >= TIME;
        // Free names, requests and buffers are not counted.
        let has_followed = |since| now.saturating_duration_since(since) >= TIME;
        let is_after_step = self.less_since.is_some_and(has_followed);
        let is_due = inodes >= INODES || (is_late && is_freed) || is_after_step;
        if is_due {
            self.note(now, held);
            self.less_since.take_if(|since| has_followed(*since));
        }
        is_due
    }

    /// It is given back now.
    fn note(&mut self, now: Instant, held: CacheUse) {
        (self.at, self.forgotten, self.most) = (now, held.forgotten, held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Held;
    use glint_memory::Supply;

    #[test]
    fn memory_is_given_back_after_something_was_freed_and_once_after_a_step() {
        let (keeping, begun) = (MemoryKeeping::default(), Instant::now());
        let mut given_back = GivenBack::new(begun);
        let at = |ms| begun + Duration::from_millis(ms);
        let held = |inodes| CacheUse { inodes, forgotten: 0, bytes: 0 };
        assert!(!given_back.is_due(at(1000), held(100_000), &keeping));
        assert!(!given_back.is_due(at(2000), held(50_000), &keeping), "memory is ample");
        let entries = Held { entries: 50_000, entries_max: 500_000, data_steps: 6 };
        keeping.look(Duration::from_secs(3), Supply::Short, entries);
        let mut due = |ms, held| given_back.is_due(at(ms), held, &keeping);
        assert!(due(3000, held(50_000)), "what was freed before");
        assert!(!due(3050, held(45_000)), "a little, soon");
        assert!(due(3100, held(40_000)), "much");
        assert!(!due(3900, held(40_000)));
        assert!(due(4000, held(40_000)), "the step has had its time");
        let looks = (0..600).filter(|n| due(4100 + 100 * n, held(40_000))).count();
        assert_eq!(looks, 0, "nothing was freed");
        assert!(due(70_000, held(39_999)));
        assert!(!due(72_000, CacheUse { bytes: BYTES, ..held(39_999) }));
        assert!(due(73_000, held(39_999)), "data was sent");
    }

    #[test]
    fn memory_of_what_a_scan_has_replaced_is_given_back_though_there_is_enough() {
        let (keeping, begun) = (MemoryKeeping::default(), Instant::now());
        let mut given_back = GivenBack::new(begun);
        let dues = |given_back: &mut GivenBack, forgotten: std::ops::Range<usize>| {
            let due = |forgotten: &usize| {
                let held = CacheUse { inodes: 100_000, forgotten: *forgotten, bytes: 0 };
                let now = begun + Duration::from_millis(*forgotten as u64);
                given_back.is_due(now, held, &keeping)
            };
            forgotten.step_by(1000).filter(due).count()
        };
        assert_eq!(dues(&mut given_back, 0..INODES_AMPLE), 0, "a few");
        let more = INODES_AMPLE..100 * INODES_AMPLE;
        assert!((90..100).contains(&dues(&mut given_back, more)));
    }
}

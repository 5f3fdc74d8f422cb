//! Whether a disk is prompt, slow, or stands still, as seen from outside of the threads that use it.
//!
//! A call notes when it began, in a place of its own; whoever watches looks at all of them every
//! [`LOOKED_MS_MAX`] or more often.
//!
//! Invariants:
//! - A look touches no disk and waits for nothing.
//! - Time counts only while somebody looks: a process that stood still blames no disk.
//! - A call beside which its thread does other things ([`SeenCall`]) lasts as long as that thread has
//!   looked for its end, and a look adds no more than [`LOOK`]: a thread that is held up elsewhere
//!   blames no disk, nor does a busy one.
//! - Calls of threads and [`SeenCall`]s take no places from each other.

use glint_proto::clock;
use glint_wait::WaitList;
use parking_lot::Mutex;
use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Calls of threads that are watched at once. More are made all the same: where so many are under
/// way, the oldest of them says enough.
const CALLS_MAX: usize = 128;
/// Most [`SeenCall`]s at once: no more are made.
pub(super) const SEEN_CALLS_MAX: usize = 32;
/// How often a thread looks for the end of such a call. Much less than a disk has: a large read waits
/// in the ring for several parts, one after the other, and for a pass of its thread after each.
pub(super) const LOOK: Duration = Duration::from_millis(25);
/// Most time that counts between two looks.
const LOOKED_MS_MAX: u64 = 200;
/// A call that takes so long makes its disk a slow one for some time.
const SLOW_MS: u64 = 300;
const SLOW_FOR_MS: u64 = 5_000;
/// A disk stands still when a call takes so long; those that flush may take longer.
const STILL_MS: u64 = 3_000;
const FLUSH_STILL_MS: u64 = 20_000;

/// How long a call of a disk may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallKind {
    /// It needs the disk at most for a few blocks.
    Short,
    /// It waits for what others have written.
    Flush,
    /// It is many calls.
    Long,
}

/// A disk, as it is watched.
pub struct DiskWatch {
    /// Milliseconds in which somebody has looked.
    now_ms: AtomicU64,
    looked: Mutex<Option<Instant>>,
    /// Calls of threads, as their [stamps](stamp) say; 0 for a free place.
    calls: [AtomicU64; CALLS_MAX],
    /// Milliseconds that a [`SeenCall`] has lasted, and one more; 0 for a free place.
    seen_calls: [AtomicU64; SEEN_CALLS_MAX],
    slow_until_ms: AtomicU64,
    is_slow: AtomicBool,
    is_still: AtomicBool,
    changed: WaitList,
}

/// A call under way.
pub struct WatchedCall<'a>(Option<&'a AtomicU64>);

impl Drop for WatchedCall<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(0, Ordering::Release);
        }
    }
}

/// A call under way, for the end of which a thread looks every [`LOOK`].
pub(crate) struct SeenCall {
    watch: Arc<DiskWatch>,
    place: usize,
    looked: Instant,
    lasts_ms: u64,
}

impl SeenCall {
    /// Notes that the thread has looked, and the call has not ended.
    pub(crate) fn look(&mut self) {
        let now = clock::now();
        let passed = now.saturating_duration_since(self.looked);
        self.looked = now;
        self.lasts_ms += passed.min(LOOK).as_millis() as u64;
        self.watch.seen_calls[self.place].store(self.lasts_ms + 1, Ordering::Relaxed);
    }
}

impl Drop for SeenCall {
    fn drop(&mut self) {
        self.watch.seen_calls[self.place].store(0, Ordering::Release);
    }
}

/// When a call began, and in the lowest bit whether it flushes. Never 0.
fn stamp(began_ms: u64, flushes: bool) -> u64 {
    (began_ms + 1) << 1 | u64::from(flushes)
}

/// Takes one of these places for a call, if one is free.
fn take(places: &[AtomicU64], stamp: u64) -> Option<usize> {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    // Threads that were started one after the other are not in each other's line.
    let first = THREAD.with(|thread| thread * 8 + thread / 16);
    let mut next = (0..places.len()).map(|next| (first + next) % places.len());
    next.find(|place| {
        let place = &places[*place];
        // An exchange that fails would take the line from other threads.
        place.load(Ordering::Relaxed) == 0
            && place.compare_exchange(0, stamp, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    })
}

impl Default for DiskWatch {
    fn default() -> DiskWatch {
        DiskWatch {
            now_ms: AtomicU64::new(0),
            looked: Mutex::default(),
            calls: array::from_fn(|_| AtomicU64::new(0)),
            seen_calls: array::from_fn(|_| AtomicU64::new(0)),
            slow_until_ms: AtomicU64::new(0),
            is_slow: AtomicBool::new(false),
            is_still: AtomicBool::new(false),
            changed: WaitList::default(),
        }
    }
}

impl DiskWatch {
    /// Notes that a call begins: two loads and an exchange on a line that no other thread uses.
    pub fn begin(&self, kind: CallKind) -> WatchedCall<'_> {
        if kind == CallKind::Long {
            return WatchedCall(None);
        }
        let stamp = stamp(self.now_ms.load(Ordering::Relaxed), kind == CallKind::Flush);
        WatchedCall(take(&self.calls, stamp).map(|place| &self.calls[place]))
    }

    /// Notes that a short call begins beside which this thread does other things; `None` if there are
    /// [`SEEN_CALLS_MAX`].
    pub(crate) fn begin_seen(self: &Arc<Self>) -> Option<SeenCall> {
        let place = take(&self.seen_calls, 1)?;
        Some(SeenCall { watch: Arc::clone(self), place, looked: clock::now(), lasts_ms: 0 })
    }

    /// How many of these there are.
    #[cfg(test)]
    pub(super) fn seen_calls(&self) -> usize {
        self.seen_calls.iter().filter(|call| call.load(Ordering::Acquire) != 0).count()
    }

    /// Looks how long calls have been under way.
    pub fn look(&self) {
        let passed = {
            let (now, mut looked) = (clock::now(), self.looked.lock());
            let before = looked.replace(now);
            before.map_or(0, |before| now.saturating_duration_since(before).as_millis() as u64)
        };
        let passed = passed.min(LOOKED_MS_MAX);
        let now_ms = self.now_ms.fetch_add(passed, Ordering::Relaxed) + passed;
        let under_way = |call: &AtomicU64| Some(call.load(Ordering::Relaxed)).filter(|&ms| ms > 0);
        let seen = self.seen_calls.iter().filter_map(under_way).map(|ms| ms - 1);
        let (mut longest, mut longest_flush) = (seen.max().unwrap_or(0), 0);
        for stamp in self.calls.iter().filter_map(under_way) {
            let lasts = now_ms.saturating_sub((stamp >> 1) - 1);
            let of_kind = if stamp & 1 == 1 { &mut longest_flush } else { &mut longest };
            *of_kind = lasts.max(*of_kind);
        }
        if longest >= SLOW_MS {
            self.slow_until_ms.store(now_ms + SLOW_FOR_MS, Ordering::Relaxed);
        }
        self.is_slow.store(now_ms < self.slow_until_ms.load(Ordering::Relaxed), Ordering::Relaxed);
        let is_still = longest >= STILL_MS || longest_flush >= FLUSH_STILL_MS;
        if self.is_still.swap(is_still, Ordering::AcqRel) != is_still {
            self.changed.wake();
        }
    }

    /// Whether it was slow a moment ago.
    pub fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::Relaxed)
    }

    /// Whether a call has been under way for so long that the disk is not relied on.
    pub fn stands_still(&self) -> bool {
        self.is_still.load(Ordering::Acquire)
    }

    /// Waits until it stands still.
    pub async fn until_still(&self) {
        self.changed.until(|| self.stands_still().then_some(())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Looks every 100 ms for so long.
    fn look_for(watch: &DiskWatch, now: &mut Instant, ms: u64) {
        for _ in 0..ms / 100 {
            *now += Duration::from_millis(100);
            clock::simulate(Some(*now));
            watch.look();
        }
    }

    #[test]
    fn a_call_that_does_not_end_makes_a_disk_slow_and_then_one_that_stands_still() {
        let (watch, mut now) = (DiskWatch::default(), Instant::now());
        let seen = |watch: &DiskWatch| (watch.is_slow(), watch.stands_still());
        look_for(&watch, &mut now, 1000);
        let call = watch.begin(CallKind::Short);
        look_for(&watch, &mut now, 200);
        assert_eq!(seen(&watch), (false, false));
        look_for(&watch, &mut now, 200);
        assert_eq!(seen(&watch), (true, false));
        look_for(&watch, &mut now, 3000);
        assert_eq!(seen(&watch), (true, true));
        drop(call);
        look_for(&watch, &mut now, 100);
        assert_eq!(seen(&watch), (true, false), "it is not trusted at once");
        look_for(&watch, &mut now, 6000);
        assert_eq!(seen(&watch), (false, false));
        clock::simulate(None);
    }

    #[test]
    fn flushes_have_longer_and_a_process_that_stood_still_blames_nobody() {
        let (watch, mut now) = (DiskWatch::default(), Instant::now());
        look_for(&watch, &mut now, 1000);
        let flush = watch.begin(CallKind::Flush);
        let _many = watch.begin(CallKind::Long);
        look_for(&watch, &mut now, 19_000);
        assert!(!watch.stands_still() && !watch.is_slow());
        look_for(&watch, &mut now, 1500);
        assert!(watch.stands_still());
        drop(flush);
        let _call = watch.begin(CallKind::Short);
        look_for(&watch, &mut now, 100);
        assert!(!watch.stands_still());
        now += Duration::from_secs(60);
        look_for(&watch, &mut now, 100);
        assert!(!watch.stands_still());
        clock::simulate(None);
    }

    /// The thread that reads is held up by another disk for a minute, and then busy.
    #[test]
    fn a_call_lasts_as_long_as_its_thread_has_looked_for_its_end() {
        let (watch, mut now) = (Arc::new(DiskWatch::default()), Instant::now());
        look_for(&watch, &mut now, 1000);
        let mut call = watch.begin_seen().unwrap();
        look_for(&watch, &mut now, 60_000);
        assert!(!watch.is_slow() && !watch.stands_still());
        call.look();
        look_for(&watch, &mut now, 100);
        assert!(!watch.is_slow() && !watch.stands_still(), "its end may be seen any moment");
        for _ in 0..10 {
            look_for(&watch, &mut now, 100);
            call.look();
        }
        look_for(&watch, &mut now, 100);
        assert!(!watch.is_slow(), "each part of it has waited for the thread");
        for _ in 0..u128::from(STILL_MS) / LOOK.as_millis() {
            now += LOOK;
            clock::simulate(Some(now));
            call.look();
        }
        look_for(&watch, &mut now, 100);
        assert!(watch.is_slow() && watch.stands_still());
        drop(call);
        look_for(&watch, &mut now, 100);
        assert!(!watch.stands_still());
        clock::simulate(None);
    }

    #[test]
    fn calls_that_threads_look_for_take_no_places_of_others() {
        let watch = Arc::new(DiskWatch::default());
        let mut seen: Vec<_> = (0..SEEN_CALLS_MAX).map(|_| watch.begin_seen().unwrap()).collect();
        assert!(watch.begin_seen().is_none());
        let calls: Vec<_> = (0..CALLS_MAX).map(|_| watch.begin(CallKind::Short)).collect();
        assert!(calls.iter().all(|call| call.0.is_some()));
        drop((seen.pop(), calls));
        assert!(watch.begin_seen().is_some());
        drop(seen);
        assert_eq!(watch.seen_calls(), 0);
    }

    #[test]
    fn calls_beyond_those_that_are_watched_are_made_all_the_same() {
        let watch = DiskWatch::default();
        let calls: Vec<_> = (0..2 * CALLS_MAX).map(|_| watch.begin(CallKind::Short)).collect();
        drop(calls);
        assert!(watch.calls.iter().all(|call| call.load(Ordering::Relaxed) == 0));
    }
}

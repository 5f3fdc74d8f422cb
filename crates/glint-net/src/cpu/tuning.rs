//! Which policies of the threads of this process are on: those with which more requests are handled
//! in the same time, as [`Trials`] finds out while they come. What wakes a core up costs 1 µs on one
//! machine and 50 µs on another, with programs that leave it idle or not, so no rule of ours knows.

use crate::cpu::trial::{POLICIES, Trials};
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Polling before sleep.
pub(super) const POLLING: usize = 0;
/// Keeping cores awake.
pub(super) const KEEP_AWAKE: usize = 1;

/// Counters of work: threads share one only if there are more of them.
const COUNTERS: usize = 32;

#[repr(align(128))]
#[derive(Default)]
struct Counter(AtomicU64);

struct Tuning {
    start: Instant,
    work: [Counter; COUNTERS],
    /// When the trials are to be looked at, in nanoseconds since the start.
    due: AtomicU64,
    trials: Mutex<Trials>,
    is_on: [AtomicBool; POLICIES],
}

static TUNING: LazyLock<Tuning> = LazyLock::new(|| Tuning {
    start: Instant::now(),
    work: Default::default(),
    due: AtomicU64::new(0),
    trials: Mutex::new(Trials::new()),
    is_on: Default::default(),
});

thread_local! {
    static COUNTER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A policy may be used where it pays, or must not.
pub(super) fn allow(policy: usize, allowed: bool) {
    let mut trials = TUNING.trials.lock();
    trials.allow(policy, allowed);
    TUNING.follow(&trials);
}

/// Whether a policy is on.
pub(super) fn is_on(policy: usize) -> bool {
    TUNING.is_on[policy].load(Ordering::Relaxed)
}

/// So many requests or replies have come in, or were executed.
pub fn note_work(many: u64) {
    if !crate::host::is_simulated() {
        TUNING.note_work(many);
    }
}

impl Tuning {
    fn note_work(&self, many: u64) {
        let counter = COUNTER.get().unwrap_or_else(|| {
            static THREADS: AtomicUsize = AtomicUsize::new(0);
            let counter = THREADS.fetch_add(1, Ordering::Relaxed) % COUNTERS;
            COUNTER.set(Some(counter));
            counter
        });
        self.work[counter].0.fetch_add(many, Ordering::Relaxed);
        let now = self.start.elapsed();
        if now >= Duration::from_nanos(self.due.load(Ordering::Relaxed))
            && let Some(mut trials) = self.trials.try_lock()
        {
            let work = self.work.iter().map(|counter| counter.0.load(Ordering::Relaxed)).sum();
            trials.on_work(now, work);
            self.due.store(trials.due().as_nanos() as u64, Ordering::Relaxed);
            self.follow(&trials);
        }
    }

    fn follow(&self, trials: &Trials) {
        for (policy, is_on) in self.is_on.iter().enumerate() {
            is_on.store(trials.is_on(policy), Ordering::Relaxed);
        }
    }
}

//! Keeps a core out of its sleep state between two requests of a burst.
//!
//! Each request wakes somebody: a server, a client that waits for its reply, a caller of a
//! mount, whom the scheduler wakes on any core that is idle. A core that has gone to sleep
//! takes up to 50 µs to come back, more than the whole request. So while requests come
//! in bursts on a core, a thread of the policy SCHED_IDLE (sched(7)) keeps that core
//! running. It takes no time from anybody: every other thread preempts it at once and
//! the scheduler counts its core as idle. It ends within `WINDOW` of the last
//! burst and within `HOLD` of its own core's part in it, so an idle mount costs
//! nothing and a core without callers is left alone.

use crate::cpu::tuning::{self, KEEP_AWAKE};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Requests that follow each other within this time are a burst.
const BURST: Duration = Duration::from_micros(300);
/// How long cores are kept awake after the last request of a burst.
const WINDOW: Duration = Duration::from_millis(1);
/// How long a core is kept awake after its last request, in a burst of others: callers
/// move, and come back.
const HOLD: Duration = Duration::from_millis(10);
/// Times are renewed in steps of this, so that cores do not fight for a cache line.
const STEP_NS: u64 = 20_000;
/// Pauses between two looks at the clock.
const PAUSES: usize = 32;

#[repr(align(128))]
#[derive(Default)]
struct CoreUse {
    until_ns: AtomicU64,
    /// The thread sleeps and has to be woken.
    asleep: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Activity {
    cores: Vec<CoreUse>,
    start: Instant,
    /// Last request on any core; 0 before the first.
    last_ns: AtomicU64,
    /// End of the window of the last burst.
    until_ns: AtomicU64,
    stop: AtomicBool,
}

/// The threads of this process, started when they are first needed.
struct KeepAwake {
    activity: Arc<Activity>,
}

static GLOBAL: OnceLock<KeepAwake> = OnceLock::new();

/// Whether this process keeps cores awake; it does where it pays unless it is told not to.
pub fn enable(enabled: bool) {
    tuning::allow(KEEP_AWAKE, enabled);
}

/// A request or a reply has come in on this core.
pub fn beat(core: usize) {
    if tuning::is_on(KEEP_AWAKE) {
        GLOBAL.get_or_init(|| KeepAwake::new(possible_cores())).beat(core);
    }
}

/// A request or a reply has come in on the core that this thread runs on.
pub fn beat_here() {
    if crate::host::is_simulated() {
        return;
    }
    beat(rustix::thread::sched_getcpu());
}

/// How often the scheduler has taken a core from this thread while it ran.
pub(crate) fn preemptions() -> u64 {
    // SAFETY: a structure of integers, for which zeroes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives through the call.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) } != 0;
    if failed { 0 } else { usage.ru_nivcsw as u64 }
}

/// Number of CPUs that this machine can have, online or not.
pub fn possible_cores() -> usize {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let count = |range: &str| match range.split_once('-') {
        Some((first, last)) => {
            let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
            Some(last.checked_sub(first)? + 1)
        }
        None => range.parse::<usize>().ok().map(|_| 1),
    };
    list.trim().split(',').filter_map(count).sum::<usize>().max(1)
}

impl KeepAwake {
    fn new(cores: usize) -> KeepAwake {
        let cores =
            (0..cores).map(|_| CoreUse { asleep: true.into(), ..CoreUse::default() }).collect();
        let activity = Arc::new(Activity {
            cores,
            start: Instant::now(),
            last_ns: AtomicU64::new(0),
            until_ns: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        KeepAwake { activity }
    }

    fn beat(&self, core: usize) {
        self.beat_at(core, self.activity.now_ns());
    }

    fn beat_at(&self, core: usize, now: u64) {
        let activity = &*self.activity;
        let Some(state) = activity.cores.get(core) else { return };
        let last = activity.last_ns.load(Ordering::Relaxed);
        let gap = now.saturating_sub(last);
        if gap > STEP_NS {
            activity.last_ns.store(now, Ordering::Relaxed);
        }
        if last == 0 || gap > BURST.as_nanos() as u64 {
            return;
        }
        for (until, length) in [(&activity.until_ns, WINDOW), (&state.until_ns, HOLD)] {
            let end = now + length.as_nanos() as u64;
            if until.load(Ordering::Relaxed) + STEP_NS < end {
                until.store(end, Ordering::SeqCst);
            }
        }
        if state.asleep.load(Ordering::SeqCst) && state.asleep.swap(false, Ordering::SeqCst) {
            self.wake(core);
        }
    }

    fn wake(&self, core: usize) {
        let mut thread = self.activity.cores[core].thread.lock();
        if let Some(running) = &*thread {
            running.thread().unpark();
            return;
        }
        let activity = self.activity.clone();
        let name = format!("keep-awake-{core}");
        // Without the thread everything works, only slower.
        *thread = std::thread::Builder::new().name(name).spawn(move || activity.run(core)).ok();
    }
}

impl Drop for KeepAwake {
    fn drop(&mut self) {
        self.activity.stop.store(true, Ordering::SeqCst);
        for core in &self.activity.cores {
            let Some(thread) = core.thread.lock().take() else { continue };
            thread.thread().unpark();
            // The thread does not panic, and there is nothing to do if it did.
            let _ = thread.join();
        }
    }
}

impl Activity {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn is_wanted(&self, core: &CoreUse) -> bool {
        let until = self.until_ns.load(Ordering::SeqCst).min(core.until_ns.load(Ordering::SeqCst));
        self.now_ns() < until
    }

    fn run(&self, core: usize) {
        if let Err(error) = become_idle_on(core) {
            tracing::debug!(%error, core, "not keeping this core awake");
            return;
        }
        let state = &self.cores[core];
        while !self.stop.load(Ordering::SeqCst) {
            if self.is_wanted(state) {
                (0..PAUSES).for_each(|_| std::hint::spin_loop());
                // A kernel with lazy preemption would let whoever was woken on this
                // core wait for the next tick; a way through the kernel ends that.
                rustix::thread::sched_yield();
                continue;
            }
            state.asleep.store(true, Ordering::SeqCst);
            // A request between the look at the clock and the line above has seen this
            // thread awake.
            if self.is_wanted(state) {
                state.asleep.store(false, Ordering::SeqCst);
                continue;
            }
            std::thread::park();
        }
    }
}

/// Binds the calling thread to one core, to run only when nobody else wants it.
fn become_idle_on(core: usize) -> std::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set)?;
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure lives through the call, and 0 is the calling thread.
    let failed =
        unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) } != 0;
    if failed { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the thread of this name sleeps, and what it has cost.
    fn thread(name: &str) -> Option<(bool, u64)> {
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            // Threads of other tests come and go.
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            if stat.contains(name) {
                let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split(' ').collect();
                let ticks = |field: usize| fields[field].parse::<u64>().unwrap();
                return Some((fields[1] == "S", ticks(12) + ticks(13)));
            }
        }
        None
    }

    #[test]
    fn it_runs_in_bursts_and_rests_afterwards() {
        let awake = KeepAwake::new(1);
        let is_running = || awake.activity.cores[0].thread.lock().is_some();
        let mut at = 1 + awake.activity.now_ns();
        awake.beat_at(0, at);
        at += 2_000_000;
        awake.beat_at(0, at);
        assert!(!is_running(), "two calls far apart are no burst");
        for _ in 0..100 {
            at += BURST.as_nanos() as u64 / 2;
            awake.beat_at(0, at);
        }
        assert!(is_running());
        // The thread has the lowest priority of all, so that others say when it comes to rest.
        // Where it may not run on this core it has ended.
        let ended = || {
            awake.activity.cores[0]
                .thread
                .lock()
                .as_ref()
                .is_none_or(std::thread::JoinHandle::is_finished)
        };
        let rests = || {
            let is_over = !awake.activity.is_wanted(&awake.activity.cores[0]);
            is_over && thread("keep-awake-0").is_some_and(|(sleeps, _)| sleeps)
        };
        let begun = Instant::now();
        while !rests() && !ended() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not come to rest");
            std::thread::sleep(Duration::from_millis(5));
        }
        let rested = thread("keep-awake-0");
        std::thread::sleep(Duration::from_millis(300));
        assert!(ended() || thread("keep-awake-0") == rested, "it costs nothing when idle");
    }
}

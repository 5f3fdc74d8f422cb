//! Memory of a client: how much its caches may hold, and how they are made to.
//!
//! A thread of its own looks how much memory there is for this process (`glint-memory`), more often
//! the less there is. While it is short, or nobody has used the client for long, less is allowed, in
//! steps, and the parts follow: inodes, and with them their locks and the kernel's, within a round of the
//! thread that returns locks (`locks/threads.rs`, `cache/prune.rs`); names that are free, data that was
//! read ahead, and room for data that is written behind, here and at once. What is dirty or open stays:
//! dirty data is sent earlier.
//!
//! No call waits for any of this longer than 10 ms. Nothing here runs on a thread that serves calls. A
//! lock that calls need is held for one inode, one file or some thousand names of a directory at a
//! time, or to copy one of 64 parts of the list of inodes. The allocator's lock is held while free
//! pages are given back to the system, so that is done again for every few MB. A writer that waits for
//! room waits for its OSTs, as ever, with less room.

mod given_back;
mod pace;

use crate::client::Client;
use crate::memory::given_back::{CacheUse, GivenBack};
use crate::memory::pace::Pace;
use glint_memory::{Allowance, CacheLook, Supply, SupplyWatch};
use glint_net::Transport;
use glint_proto::limits::NEGATIVE_DENTRIES_MAX;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How much the caches of a client may hold.
pub(crate) struct MemoryKeeping {
    allowance: Mutex<Allowance>,
    /// What follows from it: entries, and those of a client that is used, steps of caches of bytes,
    /// and whether nobody uses them.
    entries_max: AtomicUsize,
    entries_max_used: AtomicUsize,
    steps: AtomicU32,
    is_idle: AtomicBool,
    is_tight: AtomicBool,
    is_short: AtomicBool,
    /// A program has called something since the last look.
    was_used: AtomicBool,
    /// The thread that looks, and whether it looks seldom until the client is used.
    watcher: OnceLock<Thread>,
    is_seldom: AtomicBool,
    /// After how many milliseconds without that caches are idle; 0 for never.
    idle_ms: AtomicU64,
}

impl Default for MemoryKeeping {
    fn default() -> MemoryKeeping {
        MemoryKeeping {
            allowance: Mutex::default(),
            entries_max: AtomicUsize::new(usize::MAX),
            entries_max_used: AtomicUsize::new(usize::MAX),
            steps: AtomicU32::new(0),
            is_idle: AtomicBool::new(false),
            is_tight: AtomicBool::new(false),
            is_short: AtomicBool::new(false),
            was_used: AtomicBool::new(false),
            watcher: OnceLock::new(),
            is_seldom: AtomicBool::new(false),
            idle_ms: AtomicU64::new(0),
        }
    }
}

impl MemoryKeeping {
    /// Notes that a program has called something.
    pub(crate) fn note_use(&self) {
        // Read first: calls of all cores come here.
        if !self.was_used.load(Ordering::Relaxed) {
            self.was_used.store(true, Ordering::SeqCst);
            if self.is_seldom.load(Ordering::SeqCst)
                && let Some(watcher) = self.watcher.get()
            {
                watcher.unpark();
            }
        }
    }

    /// Waits so long before the next look; not longer than until the first use, if looks are seldom.
    fn pause(&self, pause: Duration, is_seldom: bool) {
        self.is_seldom.store(is_seldom, Ordering::SeqCst);
        if !is_seldom || !self.was_used.load(Ordering::SeqCst) {
            std::thread::park_timeout(pause);
        }
    }

    /// Sets how long nobody must have used the client before it returns its locks.
    pub(crate) fn set_idle_after(&self, time: Option<Duration>) {
        let ms = time.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1));
        self.idle_ms.store(ms, Ordering::Relaxed);
    }

    /// Returns true if memory is short.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Most entries that are allowed. The first call after a break ends it, before the next look.
    fn entries_max(&self) -> usize {
        // What follows from the look that has seen the last use is read after that.
        let is_used = self.was_used.load(Ordering::Acquire);
        let max = if is_used { &self.entries_max_used } else { &self.entries_max };
        max.load(Ordering::Relaxed)
    }

    /// Returns true if nobody has used the client for long.
    fn is_idle(&self) -> bool {
        !self.was_used.load(Ordering::Acquire) && self.is_idle.load(Ordering::Relaxed)
    }

    /// Entries and steps that are allowed.
    fn allowed(&self) -> (usize, u32) {
        (self.entries_max(), self.steps.load(Ordering::Relaxed))
    }

    /// Returns true if less is allowed than with ample memory, or to a client that is used.
    fn is_less(&self) -> bool {
        self.entries_max() != usize::MAX
    }

    fn look(&self, at: Duration, supply: Supply, held: Held) -> Looked {
        let idle_ms = self.idle_ms.load(Ordering::Relaxed);
        let look = CacheLook {
            entries: held.entries,
            entries_max: held.entries_max,
            data_steps: held.data_steps,
            was_used: self.was_used.load(Ordering::Relaxed),
            idle_after: (idle_ms > 0).then_some(Duration::from_millis(idle_ms)),
        };
        let mut allowance = self.allowance.lock();
        let before = allowance.steps();
        let is_less = allowance.look(at, supply, look);
        self.entries_max_used.store(allowance.entries_max_used(), Ordering::Relaxed);
        self.entries_max.store(allowance.entries_max(), Ordering::Relaxed);
        self.is_idle.store(allowance.is_idle(), Ordering::Relaxed);
        if look.was_used {
            // After what follows from it. A call in between is as good as one before.
            self.was_used.store(false, Ordering::Release);
        }
        self.steps.store(allowance.steps(), Ordering::Relaxed);
        self.is_tight.store(supply == Supply::Tight, Ordering::Relaxed);
        self.is_short.store(supply == Supply::Short, Ordering::Relaxed);
        Looked { was_used: look.was_used, is_changed: is_less || allowance.steps() != before }
    }
}

/// Result of a look.
struct Looked {
    was_used: bool,
    /// Less is allowed than before, or more.
    is_changed: bool,
}

/// What the caches of a client hold: see [`CacheLook`].
struct Held {
    entries: usize,
    entries_max: usize,
    data_steps: u32,
}

impl<T: Transport> Client<T> {
    /// Most inodes that may be known now.
    pub(crate) fn inodes_max(&self) -> usize {
        self.kernel_memory.inodes_max().min(self.memory.entries_max())
    }

    /// Has this client return its locks when [`crate::Vfs::note_use`] was not called for so long;
    /// never, if no time is said.
    pub fn return_locks_after(&self, idle: Option<Duration>) {
        self.memory.set_idle_after(idle);
    }

    /// Tells this client how much memory there is, at a time since any beginning: caches shrink, or may
    /// grow again. [`crate::RunningClient`] does it by itself.
    pub fn note_memory(&self, at: Duration, supply: Supply) {
        self.follow_memory(at, supply);
    }

    /// The same. Returns true if less is allowed than before, or more, or the client was used.
    fn follow_memory(&self, at: Duration, supply: Supply) -> bool {
        let known = self.cache.len();
        let entries_max = self.kernel_memory.inodes_max();
        let held = Held { entries: known, entries_max, data_steps: self.data_steps() };
        let looked = self.memory.look(at, supply, held);
        if !looked.is_changed {
            return looked.was_used;
        }
        let steps = self.memory.steps.load(Ordering::Relaxed);
        let is_idle = self.memory.is_idle();
        self.cache.negative_max.store(NEGATIVE_DENTRIES_MAX >> steps, Ordering::Relaxed);
        self.cache.limit_negative();
        self.data.limits.set_steps(steps);
        self.transport.limit_uncommitted(steps);
        self.data.ahead_memory.set_steps(steps);
        if self.data.ahead_memory.is_over() {
            let open = self.handles.forget_read_ahead();
            for file in open.into_iter().filter_map(|ino| self.cache.find(ino)) {
                if let Some(rare) = file.lock().rare.made() {
                    rare.data.forget_around();
                }
            }
        }
        self.data.prefetched.set_steps(steps, is_idle);
        let is_short = steps > 0 || is_idle;
        self.directories_ahead.set_short(is_short);
        if is_short {
            self.handles.forget_pages_ahead();
        }
        tracing::info!(
            ?supply, is_idle, known, inodes_max = self.inodes_max(), data = %part(steps),
            "caches may hold more or less than before"
        );
        true
    }

    /// What the caches hold.
    fn cache_use(&self) -> CacheUse {
        let ahead = self.data.ahead_memory.used() + self.data.prefetched.bytes();
        let bytes = self.data.limits.counts().0 + ahead;
        CacheUse { inodes: self.cache.len(), forgotten: self.cache.forgotten(), bytes }
    }

    /// After how many steps data and free names would still fit, also data that waits to be durable.
    fn data_steps(&self) -> u32 {
        let negative = self.cache.negative.load(Ordering::Relaxed);
        let negative = glint_memory::steps_that_fit(negative, NEGATIVE_DENTRIES_MAX);
        let ahead = self.data.ahead_memory.steps_that_fit();
        let read = ahead.min(self.data.prefetched.steps_that_fit());
        let written = self.data.limits.steps_that_fit().min(self.transport.uncommitted_steps());
        written.min(read).min(negative)
    }

    /// Looks how much memory there is, again and again.
    pub(crate) fn watch_memory(&self) {
        let watch = SupplyWatch::of_this_process();
        self.data.limits.set_memory(watch.total());
        let begun = Instant::now();
        let mut given_back = GivenBack::new(begun);
        let _ = self.memory.watcher.set(std::thread::current());
        let (mut pace, mut before) = (Pace::default(), None);
        while !self.locks.inbox.is_stopped() {
            let look = watch.look();
            let mut is_new = self.follow_memory(begun.elapsed(), look.supply);
            let now = Some((look.supply, self.cache.len(), self.data_steps()));
            is_new |= std::mem::replace(&mut before, now) != now;
            if given_back.is_due(Instant::now(), self.cache_use(), &self.memory) {
                glint_memory::give_back_free_pages();
            }
            let is_over = self.cache.len() > self.inodes_max();
            let pause = pace.next(look.spare, is_over, is_new);
            self.memory.pause(pause, pace.is_seldom());
        }
    }

    /// The state of memory, for `glint status`.
    pub(crate) fn memory_status(&self) -> Value {
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let supply = match (is(&self.memory.is_short), is(&self.memory.is_tight)) {
            (true, _) => "short",
            (_, true) => "tight",
            _ => "ample",
        };
        let steps = self.memory.steps.load(Ordering::Relaxed);
        json!({"supply": supply, "idle": self.memory.is_idle(), "inodes_max": self.inodes_max(),
            "inodes_max_ample": self.kernel_memory.inodes_max(), "data_part": part(steps)})
    }
}

/// Which part of their data caches may hold after so many steps.
fn part(steps: u32) -> String {
    if steps == 0 { "all".into() } else { format!("1/{}", 1u32 << steps) }
}

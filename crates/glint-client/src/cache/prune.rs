//! The kernel keeps inodes for as long as it has memory, and what it keeps is known here. So it is
//! asked to forget when that is too many.

use crate::cache::{Cache, SHARDS};
use glint_proto::Ino;
use glint_proto::limits::KNOWN_INODES_MAX;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Inodes that the kernel is asked to forget in one message: what a pipe of it takes in pages.
const BATCH: usize = 1024;

/// How much the kernel may keep.
pub(crate) struct KernelMemory {
    /// Inodes above which the kernel is asked to forget some.
    inodes_max: AtomicUsize,
    /// Whether somebody asks it just now.
    is_asked: AtomicBool,
}

impl Default for KernelMemory {
    fn default() -> KernelMemory {
        KernelMemory {
            inodes_max: AtomicUsize::new(KNOWN_INODES_MAX),
            is_asked: AtomicBool::new(false),
        }
    }
}

impl KernelMemory {
    /// Sets how many inodes the kernel may keep.
    pub(crate) fn limit(&self, inodes_max: usize) {
        self.inodes_max.store(inodes_max, Ordering::Relaxed);
    }

    /// How many that are.
    pub(crate) fn inodes_max(&self) -> usize {
        self.inodes_max.load(Ordering::Relaxed)
    }

    /// Begins to ask the kernel, unless that is being done.
    pub(crate) fn begin_to_ask(&self) -> bool {
        !self.is_asked.swap(true, Ordering::AcqRel)
    }

    /// The kernel was asked.
    pub(crate) fn end_to_ask(&self) {
        self.is_asked.store(false, Ordering::Release);
    }
}

impl Cache {
    /// Asks the kernel to forget as many inodes as are known above `limit`: of one part after the
    /// other those whose locks are oldest. May wait for requests under way.
    pub(crate) fn prune(&self, limit: usize) {
        let mut excess = self.len().saturating_sub(limit);
        for _ in 0..SHARDS {
            // A scan may find more in a round than a part has.
            match self.prune_next(excess) {
                Some(asked) if asked < excess => excess -= asked,
                _ => return,
            }
        }
    }

    /// Asks the kernel to forget inodes of the next part, at most so many. Returns how many that
    /// are; `None` if it cannot be asked.
    fn prune_next(&self, excess: usize) -> Option<usize> {
        let kernel = self.kernel()?;
        let shard = self.next_pruned.fetch_add(1, Ordering::Relaxed);
        let mut found: Vec<(u64, Ino)> = Vec::new();
        for inode in self.of_shard(shard) {
            if let Some(state) = inode.try_lock()
                && state.pins.has_lookups()
                && !state.pins.is_open()
            {
                found.push((state.granted(), inode.ino));
            }
        }
        found.sort_unstable();
        // In every second round all of them: the oldest may be in use for ever.
        let lap = shard / SHARDS;
        let some = if lap.is_multiple_of(2) { found.len().div_ceil(2) } else { found.len() };
        let some = some.min(excess);
        for part in found[..some].chunks(BATCH) {
            let inos: Vec<Ino> = part.iter().map(|(_, ino)| *ino).collect();
            if !kernel.forget_unused(&inos) {
                return None;
            }
        }
        Some(some)
    }
}

//! The kernel keeps inodes for as long as it has memory, and what it keeps is known here. So it is
//! asked to forget when that is too many.

use crate::cache::{Cache, SHARDS};
use glint_proto::Ino;
use std::sync::atomic::Ordering;

/// Inodes that the kernel is asked to forget in one message: what a pipe of it takes in pages.
const BATCH: usize = 1024;

impl Cache {
    /// Asks the kernel to forget inodes, if more than `limit` are known: of a part of them those
    /// whose locks are oldest. May wait for requests under way.
    pub(crate) fn prune(&self, limit: usize) {
        let (Some(kernel), Some(excess)) = (self.kernel(), self.len().checked_sub(limit)) else {
            return;
        };
        let shard = self.next_pruned.fetch_add(1, Ordering::Relaxed);
        let mut found: Vec<(u64, Ino)> = Vec::new();
        for inode in self.of_shard(shard) {
            if let Some(state) = inode.try_lock()
                && state.pins.has_lookups()
                && !state.pins.is_open()
            {
                found.push((state.bits.granted(), inode.ino));
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
                return;
            }
        }
    }
}

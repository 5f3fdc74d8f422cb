//! Memory of what is read ahead: all files share a limit, and those that nobody has read yet another.
//!
//! Invariant: blocks that are kept to find out how much of them is read take a quarter of the limit at
//! most, of all files together, and none is in the way of another one for longer than [`KEPT_FOR`],
//! though nobody reads its file any more.

use crate::data::read_ahead::BlockAhead;
use glint_proto::clock;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Memory for all files.
pub(super) const MAX: usize = 128 << 20;
/// Memory for small files that nobody has read yet.
const PREFETCHED_MAX: usize = 32 << 20;

/// One of so many bytes is for blocks that are kept.
const KEPT_PART: usize = 4;
/// For how long a block is kept that is in the way of another one.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// Memory that is used for reading ahead.
#[derive(Clone)]
pub(crate) struct ReadAheadMemory(Arc<MemoryUse>);

struct MemoryUse {
    used: AtomicUsize,
    max: AtomicUsize,
    /// With ample memory.
    most: usize,
    /// Blocks that are kept, the oldest one first. Whoever has one kept lets it go.
    kept: Mutex<VecDeque<KeptBlock>>,
}

struct KeptBlock {
    since: Instant,
    block: Arc<BlockAhead>,
}

impl Default for ReadAheadMemory {
    fn default() -> ReadAheadMemory {
        ReadAheadMemory::of(MAX)
    }
}

impl ReadAheadMemory {
    /// Memory for small files that nobody has read yet.
    pub(crate) fn for_prefetched() -> ReadAheadMemory {
        ReadAheadMemory::of(PREFETCHED_MAX)
    }

    fn of(most: usize) -> ReadAheadMemory {
        let (used, max) = (AtomicUsize::new(0), AtomicUsize::new(most));
        ReadAheadMemory(Arc::new(MemoryUse { used, max, most, kept: Mutex::default() }))
    }

    /// Halves the limit of ample memory so many times.
    pub(crate) fn set_steps(&self, steps: u32) {
        self.0.max.store(self.0.most >> steps, Ordering::Release);
    }

    /// After how many steps what is used would still fit.
    pub(crate) fn steps_that_fit(&self) -> u32 {
        glint_memory::steps_that_fit(self.used(), self.0.most)
    }

    /// Returns true if more is used than may be.
    pub(crate) fn is_over(&self) -> bool {
        self.used() > self.limit()
    }

    /// Returns true if half of what may be used is.
    pub(super) fn is_half_used(&self) -> bool {
        2 * self.used() >= self.limit()
    }

    /// Bytes that may still be used.
    pub(crate) fn left(&self) -> usize {
        self.0.max.load(Ordering::Acquire).saturating_sub(self.used())
    }

    /// Takes so many bytes, if they are there.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let max = self.limit();
        let take = |used: usize| (used + bytes <= max).then_some(used + bytes);
        self.0.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok()
    }

    /// Gives so many back.
    pub(super) fn give(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Keeps a block until [`let_go`](ReadAheadMemory::let_go), or until another one needs its place
    /// some time later. Returns false if there is no place.
    pub(super) fn keep(&self, block: &Arc<BlockAhead>) -> bool {
        let (now, most) = (clock::now(), (self.limit() / KEPT_PART) as u64);
        let mut kept = self.0.kept.lock();
        let mut bytes = kept.iter().map(|one| one.block.len).sum::<u64>() + block.len;
        let is_old = |one: &&KeptBlock| now.saturating_duration_since(one.since) >= KEPT_FOR;
        while bytes > most
            && let Some(old) = kept.front().filter(is_old)
        {
            bytes -= old.block.len;
            kept.pop_front();
        }
        let fits = bytes <= most;
        if fits {
            kept.push_back(KeptBlock { since: now, block: block.clone() });
        }
        fits
    }

    /// Lets a block go that was kept, if it still is.
    pub(super) fn let_go(&self, block: &Arc<BlockAhead>) {
        self.0.kept.lock().retain(|one| !Arc::ptr_eq(&one.block, block));
    }

    /// Bytes that may be used as of now.
    pub(crate) fn limit(&self) -> usize {
        self.0.max.load(Ordering::Acquire)
    }

    /// Bytes that are used.
    pub(crate) fn used(&self) -> usize {
        self.0.used.load(Ordering::Acquire)
    }
}

//! Memory of what is read ahead: all files share a limit, and those that nobody has read yet another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory for all files.
pub(super) const MAX: usize = 128 << 20;
/// Memory for small files that nobody has read yet.
const PREFETCHED_MAX: usize = 32 << 20;

/// Memory that is used for reading ahead.
#[derive(Clone)]
pub(crate) struct ReadAheadMemory(Arc<MemoryUse>);

struct MemoryUse {
    used: AtomicUsize,
    max: AtomicUsize,
    /// With ample memory.
    most: usize,
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
        ReadAheadMemory(Arc::new(MemoryUse { used, max, most }))
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

    /// Bytes that may be used as of now.
    pub(crate) fn limit(&self) -> usize {
        self.0.max.load(Ordering::Acquire)
    }

    /// Bytes that are used.
    pub(crate) fn used(&self) -> usize {
        self.0.used.load(Ordering::Acquire)
    }
}

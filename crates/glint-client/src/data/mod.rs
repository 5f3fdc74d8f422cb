//! Data of files: over which OSTs it lies, what was written and is not sent, what is read ahead.

pub(crate) mod capabilities;
pub(crate) mod dirty;
pub(crate) mod extents;
pub(crate) mod file_data;
pub(crate) mod gate;
mod mover;
pub(crate) mod placement;
pub(crate) mod prefetch;
pub(crate) mod read_ahead;
mod stripes;
pub(crate) mod write_back;
pub(crate) mod write_limits;

use crate::data::gate::DataGate;
use crate::data::mover::MoveCounts;
use crate::data::prefetch::PrefetchedFiles;
use crate::data::read_ahead::{ReadAheadMemory, RegionPace};
use crate::data::write_limits::WriteLimits;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Memory, space and numbers that the files of a client share for their data.
#[derive(Default)]
pub(crate) struct SharedByFiles {
    pub(crate) limits: WriteLimits,
    pub(crate) ahead_memory: ReadAheadMemory,
    pub(crate) region_pace: RegionPace,
    pub(crate) prefetched: PrefetchedFiles,
    pub(crate) gate: DataGate,
    moves: MoveCounts,
    /// Counts what was asked of objects for closes.
    glimpses: AtomicU64,
    counts_pages: AtomicBool,
    /// From which size on files that are moved are copied before they are locked, if that was set.
    pub(crate) ahead_bytes_min: OnceLock<u64>,
}

impl SharedByFiles {
    /// Numbers what is asked of objects for a close; from 1.
    pub(crate) fn next_glimpse(&self) -> u64 {
        self.glimpses.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// From now on dirty pages are counted to decide what to send.
    pub(crate) fn count_pages(&self) {
        self.counts_pages.store(true, Ordering::Relaxed);
    }

    /// Whether they are.
    pub(crate) fn counts_pages(&self) -> bool {
        self.counts_pages.load(Ordering::Relaxed)
    }
}

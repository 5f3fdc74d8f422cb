//! Data that passes through memory: objects above a limit leave no pages in the page cache, so
//! that streams push out neither inodes and directory blocks nor small objects. If nobody says a
//! limit they do so once memory is short: what is free is of no use to anybody.
//!
//! Measured on Linux 6.18, MB/s on xfs and ext4, a loop device as fast as memory, three rounds in
//! turns. "Advice" is POSIX_FADV_DONTNEED: for writes by a thread that writes back and drops what
//! a stream has left, for reads behind each read. All but plain calls left no page:
//!
//! ```text
//!                                     plain        RWF_DONTCACHE  advice
//! two streams of writes of 4 MiB      3010, 1385   6283, 2636     5737, 2655
//! one of writes of 64 KiB             1898, 1056   2339,  797
//! one of writes of 4 KiB               870,  336    329,   67     679, 210 (dropped each second)
//! two streams of reads of 1 MiB       1292, 1740   1831, 1584     2863, 2337
//! one of reads of 64 KiB              2490, 1249    620,  164     2065,  948
//! one of reads of 4 KiB               1557,  642    154,   18     1789,  974
//! ```
//!
//! - Writes of whole pages, [`STREAM_BYTES_MIN`] or more of them, carry RWF_DONTCACHE: the kernel
//!   begins to write them back at once, and drops them when that is done. No other thread is woken.
//! - Other writes stay in memory until the store has settled, and are dropped then, by advice.
//!   Each on its own would be written and dropped, and an unaligned one that follows would read the
//!   page that both share.
//! - Reads are advised: RWF_DONTCACHE drops a folio with the first byte that is read of it, also
//!   what the kernel has read ahead, and reads it again for the next one.
//! - Heal writes its pieces with RWF_DONTCACHE whatever the limit is: the disk has its work in small
//!   parts, and not that of a commit interval at once, behind which everybody waits who syncs.
//! - Checks and copies of small objects read with RWF_DONTCACHE: pages that were there stay.
//!
//! Invariants:
//! - Durability is as without it: a write is in the memory of the system when it returns, and on
//!   stable storage after a sync. What is dropped is clean, whoever asks for that.
//! - While memory counts as free nothing is dropped, and what stayed then is left to the kernel.
//! - Where the kernel or the file system refuses RWF_DONTCACHE (before Linux 6.16, tmpfs), that is
//!   remembered, and writes are dropped by advice after the store has settled.

use crate::disk::{DiskFile, DiskResult};
use glint_memory::MemoryLimits;
use glint_proto::ObjectId;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shortest write that the kernel writes back and drops by itself.
const STREAM_BYTES_MIN: usize = 64 << 10;
const PAGE_BYTES: u64 = 4096;
/// Largest folio of the page cache, which advice drops as a whole or not at all.
const FOLIO_BYTES_MAX: u64 = 2 << 20;
/// Memory is short if less than this part of it is free, of the machine or of a control group.
const FREE_PART: u64 = 8;
/// How often to look how much is free: a stream takes some tens of MB meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Most objects with ranges to be dropped when the store has settled.
const LATER_MAX: usize = 1 << 16;

/// Bytes from an offset on, up to another one.
pub(crate) type Range = (u64, u64);

/// What passed through the memory of an OST in this run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PassedBytes {
    /// Bytes read and not kept.
    pub read: u64,
    /// Bytes written and not kept.
    pub written: u64,
}

/// Which data of objects an OST keeps in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectCache {
    /// All, as the system sees fit.
    All,
    /// That of objects of at most so many bytes.
    UpTo(u64),
    /// The same once memory of the host is short, and all before.
    UpToIfShort(u64),
}

/// Whether memory of this host is free, as it was lately.
pub(crate) struct FreeMemory {
    is_free: AtomicBool,
    /// When somebody has looked: nanoseconds since `begun`.
    looked: AtomicU64,
    begun: Instant,
    every: Duration,
    look: Box<dyn Fn() -> bool + Send + Sync>,
}

impl FreeMemory {
    /// Memory of the machine, and of the control groups that this process is in now.
    fn of_this_host() -> FreeMemory {
        let limits = MemoryLimits::of_this_process();
        let look = move || limits.free().all(|memory| memory.is_part(FREE_PART));
        FreeMemory::new(LOOK_EVERY, look)
    }

    fn new(every: Duration, look: impl Fn() -> bool + Send + Sync + 'static) -> FreeMemory {
        let (is_free, look) = (AtomicBool::new(look()), Box::new(look));
        FreeMemory { is_free, looked: AtomicU64::new(0), begun: Instant::now(), every, look }
    }

    /// Whether at least an eighth of it is free.
    fn is_free(&self) -> bool {
        let now = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let looked = self.looked.load(Ordering::Relaxed);
        let is_due = u128::from(now.saturating_sub(looked)) >= self.every.as_nanos();
        let relaxed = Ordering::Relaxed;
        // One thread looks for all.
        if is_due && self.looked.compare_exchange(looked, now, relaxed, relaxed).is_ok() {
            self.is_free.store((self.look)(), Ordering::Relaxed);
        }
        self.is_free.load(Ordering::Relaxed)
    }
}

/// Which data an OST does not keep in memory.
pub(crate) struct Passing {
    /// Objects of more bytes pass through; `None` if no object does.
    limit: Option<u64>,
    /// While it is free all stay, if that is wanted.
    memory: Option<FreeMemory>,
    /// The kernel or the file system refuses RWF_DONTCACHE.
    is_refused: AtomicBool,
    read: AtomicU64,
    written: AtomicU64,
    /// Ranges that are dropped when the store has settled, one for each object.
    later: Mutex<BTreeMap<ObjectId, Range>>,
}

impl Passing {
    /// What is not to be kept passes through.
    pub(crate) fn new(cache: ObjectCache) -> Passing {
        let (limit, memory) = match cache {
            ObjectCache::All => (None, None),
            ObjectCache::UpTo(limit) => (Some(limit), None),
            ObjectCache::UpToIfShort(limit) => (Some(limit), Some(FreeMemory::of_this_host())),
        };
        Passing {
            limit,
            memory,
            is_refused: AtomicBool::new(false),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
            later: Mutex::default(),
        }
    }

    /// Size above which objects pass through, if any do.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Returns true if objects of this size pass through.
    pub(crate) fn passes(&self, size: u64) -> bool {
        self.limit.is_some_and(|limit| size > limit)
            && !self.memory.as_ref().is_some_and(FreeMemory::is_free)
    }

    /// Bytes that have passed.
    pub(crate) fn passed(&self) -> PassedBytes {
        let get = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        PassedBytes { read: get(&self.read), written: get(&self.written) }
    }

    /// Calls `passing`, which the kernel may refuse, or `plain`. Returns whether the data stays in
    /// memory, too.
    fn attempt(
        &self,
        passing: impl FnOnce() -> DiskResult<usize>,
        plain: impl FnOnce() -> DiskResult<usize>,
    ) -> DiskResult<(usize, bool)> {
        if self.is_refused.load(Ordering::Relaxed) {
            return plain().map(|n| (n, true));
        }
        match passing() {
            Err(Errno::OPNOTSUPP | Errno::INVAL) => {
                let n = plain()?;
                // The arguments are right.
                self.is_refused.store(true, Ordering::Relaxed);
                Ok((n, true))
            }
            done => done.map(|n| (n, false)),
        }
    }

    /// Writes some of `data` into an object that passes through.
    pub(crate) fn write(
        &self,
        file: &impl DiskFile,
        object: ObjectId,
        data: &[u8],
        offset: u64,
    ) -> DiskResult<usize> {
        let whole_pages = data.len() & !(PAGE_BYTES as usize - 1);
        let to_page = (offset.next_multiple_of(PAGE_BYTES) - offset) as usize;
        let (n, stays) = if to_page > 0 || data.len() < STREAM_BYTES_MIN {
            let is_stream = data.len() >= STREAM_BYTES_MIN;
            let part = if is_stream { &data[..to_page] } else { data };
            (file.write(part, offset)?, true)
        } else {
            let data = &data[..whole_pages];
            self.attempt(|| file.write_passing(data, offset), || file.write(data, offset))?
        };
        self.written.fetch_add(n as u64, Ordering::Relaxed);
        if stays {
            self.drop_later(object, (offset, offset.saturating_add(n as u64)));
        }
        Ok(n)
    }

    /// Reads from an object whose pages stay, without adding any.
    pub(crate) fn read_adding_none(
        &self,
        file: &impl DiskFile,
        buffer: &mut [u8],
        offset: u64,
    ) -> DiskResult<usize> {
        if self.is_refused.load(Ordering::Relaxed) {
            return file.read(buffer, offset);
        }
        match file.read_passing(buffer, offset) {
            Err(Errno::OPNOTSUPP | Errno::INVAL) => {
                let n = file.read(buffer, offset)?;
                self.is_refused.store(true, Ordering::Relaxed);
                Ok(n)
            }
            read => read,
        }
    }

    /// Drops bytes that were read from an object that passes through, with the folios in which they
    /// begin: folios lie at multiples of their size.
    pub(crate) fn drop_read(&self, file: &impl DiskFile, (from, to): Range, bytes: usize) {
        if to > from {
            self.read.fetch_add(bytes as u64, Ordering::Relaxed);
            file.drop_cached(from & !(FOLIO_BYTES_MAX - 1), to);
        }
    }

    /// Has bytes of an object dropped when the store has settled.
    pub(crate) fn drop_later(&self, object: ObjectId, (from, to): Range) {
        let mut later = self.later.lock();
        if let Some(range) = later.get_mut(&object) {
            *range = (range.0.min(from), range.1.max(to));
        } else if later.len() < LATER_MAX {
            later.insert(object, (from, to));
        }
    }

    /// Takes what is to be dropped, once it is on stable storage.
    pub(crate) fn take_later(&self) -> BTreeMap<ObjectId, Range> {
        std::mem::take(&mut self.later.lock())
    }
}

#[cfg(test)]
mod tests;

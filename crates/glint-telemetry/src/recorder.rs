//! One shard of histograms per thread; readers add the shards up.

use crate::{Histogram, Layer, OPS_MAX};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const CELLS: usize = Layer::ALL.len() * OPS_MAX;

/// Things that are only counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Counter {
    /// Bytes read by users.
    BytesRead,
    /// Bytes written by users.
    BytesWritten,
    /// Frames received by a server.
    Requests,
    /// Passes of a server over its ready requests; replies of one pass leave together.
    Passes,
    /// Requests answered from their reply record instead of being executed again.
    Replays,
    /// Writes to the journals on disk: flushes, and batches that reach the tables.
    JournalWrites,
    /// Requests that were told to come back because too many waited.
    Busy,
    /// Writes to objects, by the data that one request brings: up to 64 KiB.
    WritesTo64K,
    /// Up to 1 MiB.
    WritesTo1M,
    /// Below the largest request.
    WritesBelowFull,
    /// As much as a request can bring.
    WritesFull,
    /// Locks that were recalled.
    Recalls,
    /// Bytes that were read ahead, and then read.
    BytesReadAhead,
    /// Small files whose data was asked for before they were read.
    FilesPrefetched,
    /// Those of them that were read.
    FilesPrefetchedRead,
    /// Windows that were fetched around small reads.
    WindowsFetched,
    /// Later reads that one which was kept has answered, or was on its way for.
    WindowsHit,
    /// First reads of small files that were sent beside the request for their lock.
    ReadsBesideLock,
    /// Those of them whose data was used.
    ReadsBesideLockUsed,
    /// Pages of directories that were asked for at the first lookup there.
    PagesGuessed,
    /// Those of them that answered another lookup, too.
    PagesGuessedUsed,
    /// Directories that were listed before a program did, which walks a tree.
    DirectoriesListedAhead,
    /// Those of them that it has listed.
    DirectoriesListedAheadUsed,
    /// Clients that were evicted.
    Evictions,
    /// Writes of data behind a call that failed.
    WriteErrors,
    /// Bytes of files that were copied within this process, from one buffer into another.
    BytesCopied,
    /// Calls of disks that were handed to another thread, because they may wait.
    HandOvers,
    /// Inodes that a client forgot because it knew more than it may keep, which is none while nobody uses it.
    InodesEvicted,
    /// Files that were opened to be read by the kernel itself, from their objects.
    PassthroughOpens,
}

impl Counter {
    /// All counters.
    pub const ALL: [Counter; 29] = [
        Counter::BytesRead,
        Counter::BytesWritten,
        Counter::Requests,
        Counter::Passes,
        Counter::Replays,
        Counter::JournalWrites,
        Counter::Busy,
        Counter::WritesTo64K,
        Counter::WritesTo1M,
        Counter::WritesBelowFull,
        Counter::WritesFull,
        Counter::Recalls,
        Counter::BytesReadAhead,
        Counter::FilesPrefetched,
        Counter::FilesPrefetchedRead,
        Counter::WindowsFetched,
        Counter::WindowsHit,
        Counter::ReadsBesideLock,
        Counter::ReadsBesideLockUsed,
        Counter::PagesGuessed,
        Counter::PagesGuessedUsed,
        Counter::DirectoriesListedAhead,
        Counter::DirectoriesListedAheadUsed,
        Counter::Evictions,
        Counter::WriteErrors,
        Counter::BytesCopied,
        Counter::HandOvers,
        Counter::InodesEvicted,
        Counter::PassthroughOpens,
    ];

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Counter::BytesRead => "bytes_read",
            Counter::BytesWritten => "bytes_written",
            Counter::Requests => "requests",
            Counter::Passes => "passes",
            Counter::Replays => "replays",
            Counter::JournalWrites => "journal_writes",
            Counter::Busy => "busy",
            Counter::WritesTo64K => "object_writes_to_64k",
            Counter::WritesTo1M => "object_writes_to_1m",
            Counter::WritesBelowFull => "object_writes_below_4m",
            Counter::WritesFull => "object_writes_4m",
            Counter::Recalls => "recalls",
            Counter::BytesReadAhead => "bytes_read_ahead",
            Counter::FilesPrefetched => "files_prefetched",
            Counter::FilesPrefetchedRead => "files_prefetched_read",
            Counter::WindowsFetched => "windows_read_around",
            Counter::WindowsHit => "windows_read_around_hits",
            Counter::ReadsBesideLock => "reads_beside_lock",
            Counter::ReadsBesideLockUsed => "reads_beside_lock_used",
            Counter::PagesGuessed => "pages_guessed",
            Counter::PagesGuessedUsed => "pages_guessed_used",
            Counter::DirectoriesListedAhead => "directories_listed_ahead",
            Counter::DirectoriesListedAheadUsed => "directories_listed_ahead_used",
            Counter::Evictions => "evictions",
            Counter::WriteErrors => "write_errors",
            Counter::BytesCopied => "bytes_copied",
            Counter::HandOvers => "hand_overs",
            Counter::InodesEvicted => "inodes_evicted",
            Counter::PassthroughOpens => "passthrough_opens",
        }
    }
}

struct Shard {
    cells: [AtomicPtr<Histogram>; CELLS],
    counters: [AtomicU64; Counter::ALL.len()],
}

static SHARDS: Mutex<Vec<&'static Shard>> = Mutex::new(Vec::new());
/// Counts resets; after one, threads time everything again for a while.
pub(crate) static RESETS: AtomicU64 = AtomicU64::new(0);

static FREE: Mutex<Vec<&'static Shard>> = Mutex::new(Vec::new());

/// Gives the shard back when its thread ends, so that shards are bounded by the
/// largest number of threads alive at once.
struct OwnShard(&'static Shard);

impl Drop for OwnShard {
    fn drop(&mut self) {
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}

thread_local! {
    static MINE: OwnShard = OwnShard(take_shard());
}

fn take_shard() -> &'static Shard {
    if let Some(shard) = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop() {
        return shard;
    }
    let shard: &'static Shard = Box::leak(Box::new(Shard {
        cells: [const { AtomicPtr::new(std::ptr::null_mut()) }; CELLS],
        counters: [const { AtomicU64::new(0) }; Counter::ALL.len()],
    }));
    SHARDS.lock().unwrap_or_else(PoisonError::into_inner).push(shard);
    shard
}

impl Shard {
    fn get(&self, cell: usize) -> Option<&Histogram> {
        // SAFETY: a cell is null or points to a histogram that was leaked by
        // `record` and is never freed.
        unsafe { self.cells[cell].load(Ordering::Acquire).as_ref() }
    }
}

/// Adds one duration in nanoseconds, `own` of which was spent in the layer itself.
pub fn record(layer: Layer, op: u8, nanos: u64, own: u64) {
    with_histogram(layer, op, |histogram| histogram.add(nanos, own));
}

/// Counts something that was not timed.
pub(crate) fn tick(layer: Layer, op: u8) {
    with_histogram(layer, op, Histogram::tick);
}

fn with_histogram(layer: Layer, op: u8, work: impl FnOnce(&Histogram)) {
    // A thread that is being torn down loses its last values.
    let _ = MINE.try_with(|own| {
        let cell = layer as usize * OPS_MAX + (op as usize).min(OPS_MAX - 1);
        let histogram = own.0.get(cell).unwrap_or_else(|| {
            let new: &'static mut Histogram = Box::leak(Box::default());
            own.0.cells[cell].store(new, Ordering::Release);
            new
        });
        work(histogram);
    });
}

/// Adds to a counter.
pub fn count(counter: Counter, by: u64) {
    let _ = MINE.try_with(|own| {
        let cell = &own.0.counters[counter as usize];
        cell.store(cell.load(Ordering::Relaxed) + by, Ordering::Relaxed);
    });
}

/// Value of a counter, of this thread and those that ended before it began.
pub fn counted_here(counter: Counter) -> u64 {
    let value = |own: &OwnShard| own.0.counters[counter as usize].load(Ordering::Relaxed);
    MINE.try_with(value).unwrap_or_default()
}

/// Measurements of one layer and operation, over all threads.
pub struct Row {
    /// Layer.
    pub layer: Layer,
    /// Operation.
    pub op: u8,
    /// Values in nanoseconds.
    pub histogram: Histogram,
}

/// Everything recorded so far, top layer first.
pub fn snapshot() -> Vec<Row> {
    let shards = SHARDS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut rows = Vec::new();
    for layer in Layer::ALL {
        for op in 0..OPS_MAX {
            let cell = layer as usize * OPS_MAX + op;
            let mut parts = shards.iter().filter_map(|shard| shard.get(cell)).peekable();
            if parts.peek().is_none() {
                continue;
            }
            let histogram = Histogram::default();
            for part in parts {
                histogram.merge(part);
            }
            if histogram.count() > 0 {
                rows.push(Row { layer, op: op as u8, histogram });
            }
        }
    }
    rows
}

/// Count and sum in nanoseconds of what a layer has recorded so far, over all threads: nothing of it
/// is copied.
pub fn totals(layer: Layer) -> (u64, u64) {
    let shards = SHARDS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let cells = layer as usize * OPS_MAX..(layer as usize + 1) * OPS_MAX;
    let parts = shards.iter().flat_map(|shard| cells.clone().filter_map(|cell| shard.get(cell)));
    parts.fold((0, 0), |(count, sum), part| (count + part.count(), sum + part.sum()))
}

/// Value of every counter, over all threads.
pub fn counters() -> [(Counter, u64); Counter::ALL.len()] {
    let shards = SHARDS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Counter::ALL.map(|counter| {
        let total =
            shards.iter().map(|s| s.counters[counter as usize].load(Ordering::Relaxed)).sum();
        (counter, total)
    })
}

/// Starts all histograms again. Values added at the same moment may be lost.
pub fn reset() {
    RESETS.fetch_add(1, Ordering::Relaxed);
    for shard in SHARDS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        for cell in 0..CELLS {
            if let Some(histogram) = shard.get(cell) {
                histogram.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up() {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    for _ in 0..1000 {
                        record(Layer::Journal, 62, 10, 10);
                        count(Counter::Replays, 1);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let rows = snapshot();
        let row = rows.iter().find(|r| r.layer == Layer::Journal && r.op == 62).unwrap();
        assert_eq!(row.histogram.count(), 4000);
        let (count, nanos) = totals(Layer::Journal);
        assert!(count >= 4000 && nanos >= 40_000, "{count} in {nanos} ns");
        assert_eq!(counters()[Counter::Replays as usize].1, 4000);
    }
}

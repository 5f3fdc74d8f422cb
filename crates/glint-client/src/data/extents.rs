//! The extents of an object that are not at its OST yet, with what finds a few among many: an
//! index by age, one of those that are full, one of those that failed, one of what is on its way.
//!
//! Invariant: an extent has the failures of its own bytes, and those of no other: one bad block
//! neither costs the data beside it, nor is kept for ever because the others succeed.

use glint_proto::Errno;
use glint_proto::extents::extents_bulk_bytes;
use glint_proto::limits::EXTENTS_PER_WRITE_MAX;
use glint_proto::retry::Failing;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// Choice of the extents to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    /// Extents that fill their block.
    Full,
    /// Full extents, and what was written up to this moment.
    Before(Instant),
    /// One of them, whichever: enough is dirty.
    Some,
}

/// Data that is contiguous in an object.
pub(crate) struct Extent {
    /// Shared with connections once it was sent: who changes it then changes a copy.
    pub(crate) data: Arc<Vec<u8>>,
    /// When the oldest of it was written.
    pub(crate) since: Instant,
    pub(crate) retry: Option<Retry>,
}

/// Failure of an extent that could not be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    pub(crate) failing: Failing,
    /// The extent failed for too long among others, any of which may be the reason: the next
    /// request carries nothing else, and decides.
    alone: bool,
}

impl Retry {
    /// One more failure of an extent that was sent together with others, or alone; `None` if
    /// it is given up.
    pub(crate) fn after(
        before: Option<Retry>,
        errno: Errno,
        now: Instant,
        others: bool,
    ) -> Option<Retry> {
        let last = before.map(|retry| retry.failing);
        match (Failing::again(last, errno, now), last) {
            (Some(failing), _) => Some(Retry { failing, alone: before.is_some_and(|b| b.alone) }),
            (None, Some(failing)) if others => {
                Some(Retry { failing: failing.at_once(now), alone: true })
            }
            (None, _) => None,
        }
    }

    /// Retry of an extent that was two before: the one that has failed for longer.
    fn of_both(one: Option<Retry>, other: Option<Retry>) -> Option<Retry> {
        one.into_iter().chain(other).min_by_key(|retry| retry.failing.since)
    }
}

/// An object, and what waits for it.
pub(crate) struct DirtyObject {
    pub(crate) stripe: u16,
    pub(crate) extents: BTreeMap<u64, Extent>,
    /// Offsets of extents by age, and of those that are full; of those that failed, by the
    /// moment from which they may be sent again, and these stand in no other index.
    pub(crate) ages: BTreeSet<(Instant, u64)>,
    pub(crate) full: BTreeSet<u64>,
    pub(crate) resting: BTreeSet<(Instant, u64)>,
    pub(crate) bytes: usize,
    /// Extents on their way, from their beginnings to their ends; and the requests that they are
    /// in, by their first one: when the oldest was written, and how much it is.
    pub(crate) in_flight: BTreeMap<u64, u64>,
    pub(crate) flights: SmallVec<[(u64, Instant, usize); 2]>,
}

impl DirtyObject {
    pub(crate) fn new(stripe: u16) -> DirtyObject {
        DirtyObject {
            stripe,
            extents: BTreeMap::new(),
            ages: BTreeSet::new(),
            full: BTreeSet::new(),
            resting: BTreeSet::new(),
            bytes: 0,
            in_flight: BTreeMap::new(),
            flights: SmallVec::new(),
        }
    }

    pub(crate) fn insert(&mut self, offset: u64, extent: Extent, block: u64) {
        self.bytes += extent.data.len();
        match &extent.retry {
            Some(retry) => {
                self.resting.insert((retry.failing.rests_until, offset));
            }
            None => {
                self.ages.insert((extent.since, offset));
                if extent.data.len() as u64 == block {
                    self.full.insert(offset);
                }
            }
        }
        self.extents.insert(offset, extent);
    }

    pub(crate) fn remove(&mut self, offset: u64) -> Option<Extent> {
        let extent = self.extents.remove(&offset)?;
        self.bytes -= extent.data.len();
        match &extent.retry {
            Some(retry) => {
                self.resting.remove(&(retry.failing.rests_until, offset));
            }
            None => {
                self.ages.remove(&(extent.since, offset));
                self.full.remove(&offset);
            }
        }
        Some(extent)
    }

    /// Beginnings of the extents that overlap a range or touch it, in order; none of another
    /// block.
    pub(crate) fn touching(&self, offset: u64, end: u64, block: u64) -> SmallVec<[u64; 4]> {
        let start_of_block = offset - offset % block;
        let last = end.min(start_of_block + block - 1);
        let before = self.extents.range(start_of_block..offset).next_back();
        let reaches =
            |(start, extent): &(&u64, &Extent)| *start + extent.data.len() as u64 >= offset;
        let within = self.extents.range(offset..=last).map(|(start, _)| *start);
        before.filter(reaches).map(|(start, _)| *start).into_iter().chain(within).collect()
    }

    /// Whether what is on its way overlaps a range.
    fn has_in_flight(&self, start: u64, end: u64) -> bool {
        self.in_flight.range(..end).next_back().is_some_and(|(_, to)| *to > start)
    }

    fn flies(&self, offset: u64) -> bool {
        let end = offset + self.extents.get(&offset).map_or(0, |extent| extent.data.len() as u64);
        self.has_in_flight(offset, end)
    }

    /// Extents that failed, and are not on their way again.
    pub(crate) fn failed(&self) -> impl Iterator<Item = (&Extent, Failing)> {
        let extents = self.resting.iter().filter_map(|(_, offset)| self.extents.get(offset));
        extents.filter_map(|extent| Some((extent, extent.retry?.failing)))
    }

    /// When the oldest data that waits was written.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let failed = self.failed().map(|(extent, _)| extent.since);
        self.ages.first().map(|(since, _)| *since).into_iter().chain(failed).min()
    }

    /// Gives up what waits. Returns how much it was.
    pub(crate) fn clear(&mut self) -> usize {
        self.extents.clear();
        self.ages.clear();
        self.full.clear();
        self.resting.clear();
        std::mem::take(&mut self.bytes)
    }

    /// As many of these as one request carries, in the order in which they lie on the disk.
    fn together<'a>(
        &self,
        offsets: impl Iterator<Item = &'a u64>,
        block: u64,
    ) -> SmallVec<[u64; 1]> {
        let mut bytes = 0;
        let mut chosen: SmallVec<[u64; 1]> = SmallVec::new();
        for offset in offsets.filter(|offset| !self.flies(**offset)) {
            let Some(extent) = self.extents.get(offset) else { continue };
            let alone = extent.retry.is_some_and(|retry| retry.alone);
            bytes += extent.data.len();
            let count = chosen.len() + 1;
            let fits = !alone && extents_bulk_bytes(count, bytes) <= block as usize;
            if count > 1 && (count > EXTENTS_PER_WRITE_MAX || !fits) {
                break;
            }
            chosen.push(*offset);
            if alone {
                break;
            }
        }
        chosen.sort_unstable();
        chosen
    }

    /// Beginnings of extents that are due and may be sent at `now`, as many as travel together.
    pub(crate) fn due(&self, due: Due, now: Instant, block: u64) -> SmallVec<[u64; 1]> {
        let rested = self.resting.iter().take_while(|(until, _)| *until <= now);
        let again = self.together(rested.map(|(_, offset)| offset), block);
        if !again.is_empty() {
            return again;
        }
        let free = |offset: &&u64| !self.flies(**offset);
        if let Some(full) = self.full.iter().find(free) {
            return SmallVec::from_slice(&[*full]);
        }
        match due {
            Due::Full => SmallVec::new(),
            Due::Some => match self.bytes as u64 >= block {
                true => self.ages.iter().map(|(_, offset)| offset).find(free).copied(),
                false => None,
            }
            .into_iter()
            .collect(),
            Due::Before(then) => {
                let old = self.ages.iter().take_while(|(since, _)| *since <= then);
                self.together(old.map(|(_, offset)| offset), block)
            }
        }
    }

    /// Writes what lies in one block. Returns by how much the data grew.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8], now: Instant, block: u64) -> usize {
        let before = self.bytes;
        let end = offset + data.len() as u64;
        let touching = self.touching(offset, end, block);
        if let [start] = touching[..]
            && start <= offset
            && let Some(extent) = self.extents.get_mut(&start)
        {
            // The write goes on where an extent ended, or changes one.
            let len = extent.data.len();
            overwrite(Arc::make_mut(&mut extent.data), (offset - start) as usize, data);
            self.bytes += extent.data.len() - len;
            if extent.data.len() as u64 == block && extent.retry.is_none() {
                self.full.insert(start);
            }
            return self.bytes - before;
        }
        let mut parts = touching.into_iter();
        let mut part = || parts.next().and_then(|start| Some((start, self.remove(start)?)));
        let (start, mut merged) = match part() {
            Some((start, first)) if start <= offset => (start, first),
            Some((start, later)) => {
                // The write begins before all that is there.
                let mut merged = Extent {
                    data: memory(offset, data.len(), block),
                    since: later.since.min(now),
                    retry: later.retry,
                };
                Arc::make_mut(&mut merged.data).extend_from_slice(data);
                append(&mut merged, offset, start, &later);
                (offset, merged)
            }
            None => {
                let data = memory(offset, data.len(), block);
                (offset, Extent { data, since: now, retry: None })
            }
        };
        while let Some((start_of_later, later)) = part() {
            // Overwritten below as far as the new data reaches.
            let gap = (start_of_later - start) as usize;
            if merged.data.len() < gap {
                Arc::make_mut(&mut merged.data).resize(gap, 0);
            }
            append(&mut merged, start, start_of_later, &later);
            merged.since = merged.since.min(later.since);
            merged.retry = Retry::of_both(merged.retry, later.retry);
        }
        overwrite(Arc::make_mut(&mut merged.data), (offset - start) as usize, data);
        self.insert(start, merged, block);
        self.bytes - before
    }
}

impl DirtyObject {
    /// Puts an extent back under what was written since. Returns how much of it that is.
    pub(crate) fn put_back(&mut self, offset: u64, extent: Extent, block: u64) -> usize {
        let end = offset + extent.data.len() as u64;
        let newer: SmallVec<[(u64, Extent); 4]> = self
            .touching(offset, end, block)
            .into_iter()
            .filter_map(|start| Some((start, self.remove(start)?)))
            .collect();
        let all =
            extent.data.len() + newer.iter().map(|(_, newer)| newer.data.len()).sum::<usize>();
        let before = self.bytes;
        self.insert(offset, extent, block);
        for (start, newer) in newer {
            self.write(start, &newer.data, newer.since, block);
        }
        before + all - self.bytes
    }
}

/// Memory for an extent that begins with `len` bytes at `offset`. Where a stream comes into its next
/// block that gets all at once. Others grow as data comes: a small file that took a whole block first, and
/// gave the rest back when it was sent, asked the kernel for memory three times.
fn memory(offset: u64, len: usize, block: u64) -> Arc<Vec<u8>> {
    let is_next_of_stream = offset > 0 && offset.is_multiple_of(block);
    Arc::new(Vec::with_capacity(if is_next_of_stream { len.max(block as usize) } else { len }))
}

/// Puts `later`, which begins at `start_of_later`, behind or into `merged`, which begins at
/// `start` and stays as it is where both have bytes.
fn append(merged: &mut Extent, start: u64, start_of_later: u64, later: &Extent) {
    let end = start + merged.data.len() as u64;
    let skip = end.saturating_sub(start_of_later) as usize;
    if let Some(rest) = later.data.get(skip..) {
        Arc::make_mut(&mut merged.data).extend_from_slice(rest);
    }
}

fn overwrite(target: &mut Vec<u8>, at: usize, data: &[u8]) {
    let inside = target.len().saturating_sub(at).min(data.len());
    target[at..at + inside].copy_from_slice(&data[..inside]);
    target.extend_from_slice(&data[inside..]);
}

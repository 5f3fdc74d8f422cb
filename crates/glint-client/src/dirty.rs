//! What was written to a file and is not at its OSTs yet: extents of its objects.
//!
//! An extent grows as long as writes touch it, up to the aligned block that one request
//! carries, and is *full* then. So requests are formed from what is contiguous in an object,
//! whoever wrote it and in whichever order, and never from the number of dirty pages.
//!
//! Invariants:
//! - Extents of an object do not overlap and do not cross blocks.
//! - No extent is sent while one that overlaps it is on its way: the later write would
//!   otherwise be able to arrive first.

use std::collections::BTreeMap;
use std::time::Instant;

/// Data that is contiguous in an object.
pub(crate) struct Extent {
    pub(crate) data: Vec<u8>,
    /// When the oldest of it was written.
    since: Instant,
}

/// An extent on its way.
pub(crate) struct Flying {
    pub(crate) stripe: u16,
    pub(crate) offset: u64,
    pub(crate) data: Vec<u8>,
}

/// Which extents to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    /// Those that fill their block.
    Full,
    /// Those, and what was written before this moment.
    Before(Instant),
    /// One of them, whichever: enough is dirty.
    Some,
    /// All.
    All,
}

/// The dirty data of a file.
pub(crate) struct Dirty {
    block: u64,
    extents: BTreeMap<(u16, u64), Extent>,
    flying: Vec<(u16, u64, u64)>,
    full: usize,
}

impl Dirty {
    /// For requests of at most `block` bytes, a power of two.
    pub(crate) fn new(block: usize) -> Dirty {
        Dirty { block: block as u64, extents: BTreeMap::new(), flying: Vec::new(), full: 0 }
    }

    /// Whether everything is at the OSTs.
    pub(crate) fn is_clean(&self) -> bool {
        self.extents.is_empty() && self.flying.is_empty()
    }

    /// Whether something is on its way.
    pub(crate) fn is_flying(&self) -> bool {
        !self.flying.is_empty()
    }

    /// Whether an extent is full.
    pub(crate) fn has_full(&self) -> bool {
        self.full > 0
    }

    /// How much waits.
    pub(crate) fn bytes(&self) -> usize {
        self.extents.values().map(|extent| extent.data.len()).sum()
    }

    /// When the oldest data that waits was written.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.extents.values().map(|extent| extent.since).min()
    }

    /// Writes into an object. Returns by how many bytes the dirty data grew. New extents get
    /// their memory from `buffer`.
    pub(crate) fn write(
        &mut self,
        stripe: u16,
        offset: u64,
        data: &[u8],
        now: Instant,
        buffer: &mut impl FnMut(usize) -> Vec<u8>,
    ) -> usize {
        let (mut at, mut rest, mut grown) = (offset, data, 0);
        while !rest.is_empty() {
            let room = (self.block - at % self.block) as usize;
            let (piece, after) = rest.split_at(room.min(rest.len()));
            grown += self.write_piece(stripe, at, piece, now, buffer);
            (at, rest) = (at + piece.len() as u64, after);
        }
        grown
    }

    /// Writes what lies in one block.
    fn write_piece(
        &mut self,
        stripe: u16,
        offset: u64,
        data: &[u8],
        now: Instant,
        buffer: &mut impl FnMut(usize) -> Vec<u8>,
    ) -> usize {
        let start_of_block = offset - offset % self.block;
        let end = offset + data.len() as u64;
        // Everything in this block that the new data touches, in order.
        let touched: Vec<u64> = self
            .extents
            .range((stripe, start_of_block)..=(stripe, end.min(start_of_block + self.block - 1)))
            .filter(|((_, start), extent)| start + extent.data.len() as u64 >= offset)
            .map(|((_, start), _)| *start)
            .collect();
        let mut before = 0;
        let mut parts = touched.into_iter().filter_map(|start| {
            let extent = self.extents.remove(&(stripe, start))?;
            before += extent.data.len();
            if extent.data.len() as u64 == self.block {
                self.full -= 1;
            }
            Some((start, extent))
        });
        let (start, mut merged) = match parts.next() {
            Some((start, first)) if start <= offset => (start, first),
            Some((start, later)) => {
                // It begins before all that is there.
                let mut merged = Extent { data: buffer(data.len()), since: later.since.min(now) };
                merged.data.extend_from_slice(data);
                append(&mut merged, offset, start, &later);
                (offset, merged)
            }
            None => (offset, Extent { data: buffer(data.len()), since: now }),
        };
        for (start_of_later, later) in parts {
            // Overwritten below as far as the new data reaches.
            let gap = (start_of_later - start) as usize;
            if merged.data.len() < gap {
                merged.data.resize(gap, 0);
            }
            append(&mut merged, start, start_of_later, &later);
            merged.since = merged.since.min(later.since);
        }
        overwrite(&mut merged.data, (offset - start) as usize, data);
        let after = merged.data.len();
        if after as u64 == self.block {
            self.full += 1;
        }
        self.extents.insert((stripe, start), merged);
        after - before
    }

    /// Takes an extent out that is due and may be sent.
    pub(crate) fn take(&mut self, due: Due) -> Option<Flying> {
        self.take_of(due, |_| true)
    }

    /// The same, of some stripes only.
    pub(crate) fn take_of(&mut self, due: Due, stripes: impl Fn(u16) -> bool) -> Option<Flying> {
        let is_due = |extent: &Extent| match due {
            Due::All => true,
            Due::Some => self.bytes() >= self.block as usize,
            Due::Full => extent.data.len() as u64 == self.block,
            Due::Before(then) => extent.since <= then || extent.data.len() as u64 == self.block,
        };
        let overlaps = |stripe: u16, start: u64, end: u64| {
            self.flying.iter().any(|(s, from, to)| *s == stripe && *from < end && start < *to)
        };
        let key = self.extents.iter().find_map(|((stripe, start), extent)| {
            let end = start + extent.data.len() as u64;
            (is_due(extent) && stripes(*stripe) && !overlaps(*stripe, *start, end))
                .then_some((*stripe, *start))
        })?;
        let extent = self.extents.remove(&key)?;
        if extent.data.len() as u64 == self.block {
            self.full -= 1;
        }
        let (stripe, offset) = key;
        self.flying.push((stripe, offset, offset + extent.data.len() as u64));
        Some(Flying { stripe, offset, data: extent.data })
    }

    /// An extent has arrived, or is given up.
    pub(crate) fn landed(&mut self, stripe: u16, offset: u64) {
        self.flying.retain(|(s, start, _)| (*s, *start) != (stripe, offset));
    }

    /// Gives all that waits up. Returns how much it was, by stripe.
    pub(crate) fn discard(&mut self) -> Vec<(u16, usize)> {
        self.full = 0;
        let all = std::mem::take(&mut self.extents);
        all.into_iter().map(|((stripe, _), extent)| (stripe, extent.data.len())).collect()
    }
}

/// Puts `later`, which begins at `start_of_later`, behind or into `merged`, which begins at
/// `start` and stays as it is where both have bytes.
fn append(merged: &mut Extent, start: u64, start_of_later: u64, later: &Extent) {
    let end = start + merged.data.len() as u64;
    let skip = end.saturating_sub(start_of_later) as usize;
    if let Some(rest) = later.data.get(skip..) {
        merged.data.extend_from_slice(rest);
    }
}

fn overwrite(target: &mut Vec<u8>, at: usize, data: &[u8]) {
    let inside = target.len().saturating_sub(at).min(data.len());
    target[at..at + inside].copy_from_slice(&data[..inside]);
    target.extend_from_slice(&data[inside..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const BLOCK: usize = 64;

    fn fresh(_: usize) -> Vec<u8> {
        Vec::new()
    }

    #[test]
    fn writes_in_any_order_make_full_requests() {
        let mut dirty = Dirty::new(BLOCK);
        let now = Instant::now();
        // Two writers, strided: the even pieces, then the odd ones.
        for parity in [0, 1] {
            for piece in (0..16u64).filter(|piece| piece % 2 == parity) {
                dirty.write(0, piece * 16, &[piece as u8; 16], now, &mut fresh);
            }
        }
        for block in 0..4u64 {
            let flying = dirty.take(Due::Full).expect("a full extent");
            assert_eq!((flying.offset, flying.data.len()), (block * 64, BLOCK));
            assert_eq!(flying.data[17], (block * 4 + 1) as u8);
            dirty.landed(0, flying.offset);
        }
        assert!(dirty.is_clean());
    }

    #[test]
    fn what_overlaps_a_request_on_its_way_waits() {
        let mut dirty = Dirty::new(BLOCK);
        let now = Instant::now();
        dirty.write(3, 0, b"old", now, &mut fresh);
        let first = dirty.take(Due::All).unwrap();
        dirty.write(3, 1, b"new", now, &mut fresh);
        assert!(dirty.take(Due::All).is_none() && !dirty.is_clean());
        dirty.write(3, 20, b"else", now, &mut fresh);
        assert_eq!(dirty.take(Due::All).unwrap().offset, 20);
        dirty.landed(first.stripe, first.offset);
        assert_eq!(dirty.take(Due::All).unwrap().data, b"new");
        assert!(dirty.take(Due::Before(now)).is_none());
    }

    #[test]
    fn random_writes_read_back() {
        let mut seed = 7u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        let mut dirty = Dirty::new(BLOCK);
        let mut model: HashMap<(u16, u64), u8> = HashMap::new();
        let mut store: HashMap<(u16, u64), u8> = HashMap::new();
        let mut bytes = 0;
        let land = |flying: Flying, store: &mut HashMap<(u16, u64), u8>| {
            for (i, byte) in flying.data.iter().enumerate() {
                store.insert((flying.stripe, flying.offset + i as u64), *byte);
            }
        };
        for step in 0..5000u64 {
            if random(4) == 0 {
                if let Some(flying) = dirty.take(Due::All) {
                    bytes -= flying.data.len();
                    dirty.landed(flying.stripe, flying.offset);
                    land(flying, &mut store);
                }
                continue;
            }
            let (stripe, offset, len) = (random(2) as u16, random(400), 1 + random(150));
            let data: Vec<u8> = (0..len).map(|i| (step + i) as u8).collect();
            bytes += dirty.write(stripe, offset, &data, Instant::now(), &mut fresh);
            for (i, byte) in data.iter().enumerate() {
                model.insert((stripe, offset + i as u64), *byte);
            }
            let held: usize = dirty.extents.values().map(|extent| extent.data.len()).sum();
            assert_eq!(held, bytes, "what grew is what is there");
        }
        while let Some(flying) = dirty.take(Due::All) {
            dirty.landed(flying.stripe, flying.offset);
            land(flying, &mut store);
        }
        assert!(dirty.is_clean() && dirty.full == 0);
        assert_eq!(store, model);
    }
}

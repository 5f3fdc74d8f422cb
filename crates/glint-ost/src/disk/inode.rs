//! A file of the disk in memory: what it is, and what of it is on stable storage.

use super::memory::Decide;
use glint_proto::Timestamp;
use std::collections::BTreeMap;

/// Bytes that are written or lost as one: smaller than a page, so that small files have several.
pub(super) const BLOCK_BYTES: u64 = 128;

pub(super) type Block = [u8; BLOCK_BYTES as usize];

/// A file in some state.
#[derive(Clone, Default)]
pub(super) struct Content {
    pub(super) size: u64,
    pub(super) blocks: BTreeMap<u64, Block>,
    pub(super) attributes: BTreeMap<String, Vec<u8>>,
    pub(super) mtime: Timestamp,
}

/// A change that is not on stable storage.
pub(super) enum Change {
    Block(u64, Block),
    /// The size, and what was past it is gone.
    Size(u64),
    /// A write went past the end.
    Grow(u64),
    Hole(u64, u64),
    Attribute(String, Option<Vec<u8>>),
    Time(Timestamp),
}

pub(super) struct Inode {
    pub(super) path: String,
    pub(super) now: Content,
    pub(super) synced: Content,
    pub(super) changes: Vec<Change>,
}

impl Content {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Block(index, block) => drop(self.blocks.insert(*index, *block)),
            Change::Size(size) => {
                self.clear(*size, u64::MAX);
                self.size = *size;
            }
            Change::Grow(size) => self.size = *size,
            Change::Hole(from, to) => self.clear(*from, *to),
            Change::Attribute(name, Some(value)) => {
                self.attributes.insert(name.clone(), value.clone());
            }
            Change::Attribute(name, None) => drop(self.attributes.remove(name)),
            Change::Time(time) => self.mtime = *time,
        }
    }

    /// Bytes of a range read as zeros.
    fn clear(&mut self, from: u64, to: u64) {
        let (first, last) = (from / BLOCK_BYTES, to / BLOCK_BYTES);
        self.blocks.retain(|index, block| {
            let start = index * BLOCK_BYTES;
            if *index < first || *index > last {
                return true;
            }
            let (from, to) = (from.max(start) - start, (to - start).min(BLOCK_BYTES));
            block[from as usize..to as usize].fill(0);
            to - from < BLOCK_BYTES
        });
    }

    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        let len = (buffer.len() as u64).min(self.size.saturating_sub(offset)) as usize;
        let (buffer, end) = (&mut buffer[..len], offset + len as u64);
        buffer.fill(0);
        for (index, block) in self.blocks.range(offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)) {
            let start = index * BLOCK_BYTES;
            let (from, to) = (offset.max(start), end.min(start + BLOCK_BYTES));
            buffer[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&block[(from - start) as usize..(to - start) as usize]);
        }
        len
    }
}

impl Inode {
    pub(super) fn change(&mut self, change: Change) {
        self.now.apply(&change);
        self.changes.push(change);
    }

    pub(super) fn sync(&mut self) {
        for change in self.changes.drain(..) {
            self.synced.apply(&change);
        }
    }

    /// A sync failed: nobody remembers that its blocks are not on the disk.
    pub(super) fn forget_blocks(&mut self) {
        self.changes.retain(|change| !matches!(change, Change::Block(..)));
    }

    pub(super) fn lose_power(&mut self, decide: Decide<'_>) {
        let is_state = |change: &Change| !matches!(change, Change::Block(..));
        let states = self.changes.iter().filter(|change| is_state(change)).count();
        let mut left = decide(states as u64 + 1);
        // Blocks that are written in place may be there before the state that was changed earlier.
        let mut in_place = true;
        for change in self.changes.drain(..) {
            match change {
                Change::Block(index, _) => {
                    let is_there = self.synced.blocks.contains_key(&index);
                    if (left > 0 || (in_place && is_there)) && decide(2) == 0 {
                        self.synced.apply(&change);
                    }
                }
                _ if left > 0 => {
                    left -= 1;
                    self.synced.apply(&change);
                }
                Change::Size(_) | Change::Hole(..) => in_place = false,
                _ => {}
            }
        }
        let size = self.synced.size;
        self.synced.clear(size, u64::MAX);
        self.now = self.synced.clone();
    }
}

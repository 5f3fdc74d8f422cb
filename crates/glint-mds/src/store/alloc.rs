//! Inode numbers: taken in blocks per directory, so that the inodes of one
//! directory are neighbours.
//!
//! Invariants:
//! - A number is handed out only below a mark that is durable, and allocation begins at the
//!   mark after a restart. So none is ever reused; the rest of a block is given up.
//! - A number that a client names was granted to that client, or handed out by an earlier run:
//!   never one that is still to be handed out to somebody.

use crate::error::errno;
use crate::store::keys;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::{ClientId, Errno, FsResult, Ino};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;

/// Numbers a directory takes at once.
const BLOCK: u64 = 64;
/// Numbers covered by one write of the mark.
const MARK_STEP: u64 = 1 << 18;
/// Directories that hold a block; beyond that all blocks are given up.
const DIRECTORIES_MAX: usize = 8192;
/// Granted ranges of one client that are remembered; neighbours count as one. Those before them
/// were used up long ago.
const GRANTED_RANGES_MAX: usize = 4096;

#[derive(Default)]
struct Numbers {
    next: u64,
    mark: u64,
    blocks: HashMap<Ino, (u64, u64)>,
    granted: HashMap<ClientId, Vec<Range<u64>>>,
}

/// Whether a number is in one of these ranges, which are sorted.
fn has(granted: &[Range<u64>], ino: Ino) -> bool {
    let at = granted.partition_point(|range| range.end <= ino.0);
    granted.get(at).is_some_and(|range| range.contains(&ino.0))
}

/// A mark so far above the next number. The numbers never end in practice.
fn above(next: u64, count: u64) -> FsResult<u64> {
    next.checked_add(count).ok_or(Errno::ENOSPC)
}

/// The allocator.
pub(crate) struct Allocator {
    state: Mutex<Numbers>,
    /// Numbers below it were handed out by earlier runs, if at all.
    first: u64,
    /// Held while a mark is committed, so that marks reach the engine in order.
    extending: futures_util::lock::Mutex<()>,
}

impl Allocator {
    /// Begins at the committed mark.
    pub(crate) fn new(mark: u64) -> Allocator {
        Allocator {
            state: Mutex::new(Numbers { next: mark, mark, ..Numbers::default() }),
            first: mark,
            extending: futures_util::lock::Mutex::new(()),
        }
    }

    /// A new number for an inode in `directory`.
    pub(crate) async fn allocate(&self, kv: &impl Kv, directory: Ino) -> FsResult<Ino> {
        loop {
            if let Some(ino) = self.take(directory) {
                return Ok(ino);
            }
            let _extending = self.extending.lock().await;
            let mark = {
                let state = self.state.lock();
                if state.next + BLOCK <= state.mark {
                    continue;
                }
                above(state.next, MARK_STEP)?
            };
            self.extend(kv, mark).await?;
        }
    }

    /// `count` numbers for a client, which begin a block.
    pub(crate) async fn grant(&self, kv: &impl Kv, client: ClientId, count: u32) -> FsResult<u64> {
        let count = u64::from(count).next_multiple_of(BLOCK);
        loop {
            {
                let mut state = self.state.lock();
                if state.next + count <= state.mark {
                    let first = state.next;
                    state.next += count;
                    let granted = state.granted.entry(client).or_default();
                    match granted.last_mut() {
                        Some(last) if last.end == first => last.end += count,
                        _ => granted.push(first..first + count),
                    }
                    if granted.len() > GRANTED_RANGES_MAX {
                        granted.remove(0);
                    }
                    return Ok(first);
                }
            }
            let _extending = self.extending.lock().await;
            let mark = above(self.state.lock().next, count + MARK_STEP)?;
            self.extend(kv, mark).await?;
        }
    }

    /// Whether a number was handed out by an earlier run, so that this one never will.
    pub(crate) fn is_of_earlier_run(&self, ino: Ino) -> bool {
        ino.0 > Ino::ROOT.0 && ino.0 < self.first
    }

    /// Whether a client may make an inode under this number: the number was granted to it.
    pub(crate) fn is_granted_to(&self, client: ClientId, ino: Ino) -> bool {
        let state = self.state.lock();
        self.is_of_earlier_run(ino)
            || state.granted.get(&client).is_some_and(|granted| has(granted, ino))
    }

    /// Whether a client was granted numbers in this run.
    pub(crate) fn has_granted(&self, client: ClientId) -> bool {
        self.state.lock().granted.contains_key(&client)
    }

    /// The client that a number was granted to in this run.
    pub(crate) fn holder_of(&self, ino: Ino) -> Option<ClientId> {
        let state = self.state.lock();
        state.granted.iter().find(|(_, granted)| has(granted, ino)).map(|(client, _)| *client)
    }

    /// A client is gone.
    pub(crate) fn forget_client(&self, client: ClientId) {
        self.state.lock().granted.remove(&client);
    }

    async fn extend(&self, kv: &impl Kv, mark: u64) -> FsResult<()> {
        let mut batch = Batch::new();
        batch.put(Keyspace::Meta, keys::META_NEXT_INO, &mark.to_be_bytes());
        kv.commit(batch, &[]).await.map_err(errno)?;
        // Numbers below it may reach OSTs, which may keep what the MDS loses.
        kv.sync().await.map_err(errno)?;
        self.state.lock().mark = mark;
        Ok(())
    }

    /// A number from the directory's block, or the first of a new block.
    fn take(&self, directory: Ino) -> Option<Ino> {
        let mut state = self.state.lock();
        if let Some((next, end)) = state.blocks.get_mut(&directory)
            && *next < *end
        {
            *next += 1;
            return Some(Ino(*next - 1));
        }
        if state.next + BLOCK > state.mark {
            return None;
        }
        let start = state.next;
        state.next += BLOCK;
        if state.blocks.len() >= DIRECTORIES_MAX {
            state.blocks.clear();
        }
        state.blocks.insert(directory, (start + 1, start + BLOCK));
        Some(Ino(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::block_on;
    use glint_kv::memory::MemoryKv;
    use std::collections::HashSet;

    #[test]
    fn neighbours_in_a_directory_and_never_twice() {
        let kv = MemoryKv::default();
        let mut seen = HashSet::new();
        let mut mark = 2;
        for _ in 0..3 {
            let allocator = Allocator::new(mark);
            let first = block_on(allocator.allocate(&kv, Ino(1))).unwrap();
            let other = block_on(allocator.allocate(&kv, Ino(7))).unwrap();
            let second = block_on(allocator.allocate(&kv, Ino(1))).unwrap();
            assert_eq!(second.0, first.0 + 1);
            for ino in [first, other, second] {
                assert!(seen.insert(ino), "{ino} was handed out before");
            }
            let stored = block_on(kv.get(Keyspace::Meta, keys::META_NEXT_INO)).unwrap().unwrap();
            mark = keys::parse_u64(&stored).unwrap();
        }
    }
    #[test]
    fn a_client_makes_inodes_only_under_its_own_numbers() {
        let (kv, allocator) = (MemoryKv::default(), Allocator::new(1000));
        let (a, b) = (ClientId(1), ClientId(2));
        let grant = |client, count| block_on(allocator.grant(&kv, client, count)).unwrap();
        let (of_a, of_b) = (grant(a, 100), grant(b, 64));
        let more_of_a = grant(a, 64);
        let free = block_on(allocator.allocate(&kv, Ino(1))).unwrap();
        for ino in [of_a, of_a + 99, more_of_a, 2, 999] {
            assert!(allocator.is_granted_to(a, Ino(ino)), "{ino}");
        }
        for ino in [0, 1, of_b, free.0, free.0 + 1, 1 << 63, u64::MAX - (1 << 19), u64::MAX] {
            assert!(!allocator.is_granted_to(a, Ino(ino)), "{ino}");
        }
        for (ino, holder) in [(of_a + 99, Some(a)), (more_of_a, Some(a)), (of_b, Some(b))] {
            assert_eq!(allocator.holder_of(Ino(ino)), holder);
        }
        assert!([2, free.0, u64::MAX].iter().all(|ino| allocator.holder_of(Ino(*ino)).is_none()));
        assert!(allocator.is_of_earlier_run(Ino(999)) && !allocator.is_of_earlier_run(Ino(of_a)));
        allocator.forget_client(a);
        assert!(!allocator.is_granted_to(a, Ino(of_a)));
    }
}

//! Inode numbers: taken in blocks per directory, so that the inodes of one
//! directory are neighbours.
//!
//! Invariant: a number is handed out only below a mark that is durable, and
//! allocation begins at the mark after a restart. So none is ever reused; the
//! rest of a block is given up.

use crate::error::errno;
use crate::keys;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::{FsResult, Ino};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Numbers a directory takes at once.
const BLOCK: u64 = 64;
/// Numbers covered by one write of the mark.
const MARK_STEP: u64 = 1 << 18;
/// Directories that hold a block; beyond that all blocks are given up.
const DIRECTORIES_MAX: usize = 8192;

#[derive(Default)]
struct State {
    next: u64,
    mark: u64,
    blocks: HashMap<Ino, (u64, u64)>,
}

/// The allocator.
pub(crate) struct Allocator {
    state: Mutex<State>,
    /// Held while a mark is committed, so that marks reach the engine in order.
    extending: futures_util::lock::Mutex<()>,
}

impl Allocator {
    /// Begins at the committed mark.
    pub(crate) fn new(mark: u64) -> Allocator {
        Allocator {
            state: Mutex::new(State { next: mark, mark, blocks: HashMap::new() }),
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
                state.next + MARK_STEP
            };
            self.extend(kv, mark).await?;
        }
    }

    /// The number that an inode had before it was lost.
    pub(crate) async fn use_again(&self, kv: &impl Kv, ino: Ino) -> FsResult<Ino> {
        loop {
            {
                let mut state = self.state.lock();
                if ino.0 < state.mark {
                    if ino.0 >= state.next {
                        state.next = (ino.0 + 1).next_multiple_of(BLOCK);
                    }
                    return Ok(ino);
                }
            }
            let _extending = self.extending.lock().await;
            self.extend(kv, ino.0 + MARK_STEP).await?;
        }
    }

    /// `count` numbers for a client, which begin a block.
    pub(crate) async fn lease(&self, kv: &impl Kv, count: u32) -> FsResult<u64> {
        let count = u64::from(count).next_multiple_of(BLOCK);
        loop {
            {
                let mut state = self.state.lock();
                if state.next + count <= state.mark {
                    let first = state.next;
                    state.next += count;
                    return Ok(first);
                }
            }
            let _extending = self.extending.lock().await;
            let mark = self.state.lock().next + count + MARK_STEP;
            self.extend(kv, mark).await?;
        }
    }

    /// Whether a number was handed out; by this run or one before.
    pub(crate) fn was_given(&self, ino: Ino) -> bool {
        ino.0 > Ino::ROOT.0 && ino.0 < self.state.lock().next
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
}

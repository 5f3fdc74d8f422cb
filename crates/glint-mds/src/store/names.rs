//! Names of directories whose whole content is known, because they were made by this run: so
//! whether a name is free needs no search in the engine.
//!
//! Invariant: of a directory that is here, every name that the engine holds is here, too,
//! by its hash. Names come before they are committed and never go; so what is not here is
//! not there, and what is here may be.

use glint_proto::Ino;
use glint_wait::Sharded;
use parking_lot::RwLock;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 64;
/// Hashes of all directories; beyond that directories are given up. 10 bytes each.
const HASHES_MAX: usize = 8 << 20;

/// Keys are hashes already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

type Hashes = HashSet<u64, BuildHasherDefault<AsItIs>>;

/// The names.
pub(crate) struct Names {
    shards: Sharded<RwLock<HashMap<Ino, Hashes>>>,
    count: AtomicUsize,
    limit: usize,
}

impl Names {
    pub(crate) fn new() -> Names {
        Names::with_limit(HASHES_MAX)
    }

    fn with_limit(limit: usize) -> Names {
        let shards = Sharded::new(SHARDS);
        Names { shards, count: AtomicUsize::new(0), limit }
    }

    fn shard(&self, directory: Ino) -> &RwLock<HashMap<Ino, Hashes>> {
        self.shards.of(directory.0)
    }

    /// A directory that nobody knows yet is empty.
    pub(crate) fn begin(&self, directory: Ino) {
        if self.count.load(Ordering::Relaxed) < self.limit {
            self.shard(directory).write().insert(directory, Hashes::default());
        }
    }

    /// A name is about to be committed.
    pub(crate) fn add(&self, directory: Ino, hash: u64) {
        let mut shard = self.shard(directory).write();
        let Some(known) = shard.get_mut(&directory) else { return };
        if known.insert(hash) && self.count.fetch_add(1, Ordering::Relaxed) >= self.limit {
            // Not worth its place any more, or another is not.
            let given_up = shard.remove(&directory).map_or(0, |known| known.len());
            self.count.fetch_sub(given_up, Ordering::Relaxed);
        }
    }

    /// Whether a name may exist.
    pub(crate) fn may_exist(&self, directory: Ino, hash: u64) -> bool {
        let shard = self.shard(directory).read();
        shard.get(&directory).is_none_or(|known| known.contains(&hash))
    }

    /// A directory is gone.
    pub(crate) fn forget(&self, directory: Ino) {
        let known = self.shard(directory).write().remove(&directory);
        self.count.fetch_sub(known.map_or(0, |known| known.len()), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_there_is_known_not_to_be() {
        let names = Names::with_limit(100);
        assert!(names.may_exist(Ino(5), 1), "nothing is known of it");
        names.begin(Ino(5));
        assert!(!names.may_exist(Ino(5), 1));
        names.add(Ino(5), 1);
        assert!(names.may_exist(Ino(5), 1) && !names.may_exist(Ino(5), 2));
        names.forget(Ino(5));
        assert!(names.may_exist(Ino(5), 2));
        assert_eq!(names.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn memory_is_bounded() {
        let names = Names::with_limit(100);
        for directory in 0..50 {
            names.begin(Ino(directory));
            (0..10).for_each(|hash| names.add(Ino(directory), hash));
        }
        assert!(names.count.load(Ordering::Relaxed) <= 100);
        let known = (0..50).filter(|directory| !names.may_exist(Ino(*directory), 77)).count();
        assert!((1..=10).contains(&known), "{known} directories");
        names.add(Ino(0), 77);
        assert!(names.may_exist(Ino(0), 77));
    }
}

//! Commit on sharing: what one client did and another builds on is brought to stable
//! storage first (the rule is Lustre's).
//!
//! Invariant: an operation of one client is executed only when every operation of another
//! client on the same names, inodes and directories is durable. So after a loss of power
//! the operations that a client replays depend on nothing that only another client could
//! replay, and that one may be gone.
//!
//! Times and link counts of a directory that names come and go in do not count: they are
//! made again by whoever replays.

use crate::locking::namespace_locks::Key;
use glint_proto::ClientId;
use glint_wait::Sharded;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

const SHARDS: usize = 64;
/// Marks of a shard above which those that are durable are dropped.
const MARKS: usize = 256;

#[derive(Clone, Copy)]
struct Mark {
    client: ClientId,
    transaction: u64,
}

#[derive(Default)]
struct Shard {
    marks: HashMap<u64, Mark>,
    /// Number of marks at which to look for durable ones.
    limit: usize,
}

/// Changes that are not durable yet, with the clients that made them.
pub(crate) struct Sharing {
    enabled: AtomicBool,
    shards: Sharded<Mutex<Shard>>,
}

impl Sharing {
    pub(crate) fn new() -> Sharing {
        let shards = Sharded::new(SHARDS);
        Sharing { enabled: AtomicBool::new(false), shards }
    }

    /// There are several clients now. What was done before must be durable before any of
    /// them goes on.
    pub(crate) fn enable(&self) -> bool {
        !self.enabled.swap(true, Ordering::AcqRel)
    }

    fn shard(&self, fingerprint: u64) -> &Mutex<Shard> {
        self.shards.of(fingerprint)
    }

    /// Whether another client changed this in a transaction above `durable`.
    pub(crate) fn depends(&self, client: ClientId, key: Key, durable: u64) -> bool {
        if !self.enabled.load(Ordering::Acquire) {
            return false;
        }
        let fingerprint = key.fingerprint();
        let shard = self.shard(fingerprint).lock();
        let mark = shard.marks.get(&fingerprint);
        mark.is_some_and(|mark| mark.client != client && mark.transaction > durable)
    }

    /// A client changed this.
    pub(crate) fn note(&self, client: ClientId, key: Key, transaction: u64, durable: u64) {
        if !self.enabled.load(Ordering::Acquire) {
            return;
        }
        let fingerprint = key.fingerprint();
        let mut shard = self.shard(fingerprint).lock();
        shard.marks.insert(fingerprint, Mark { client, transaction });
        if shard.marks.len() > shard.limit.max(MARKS) {
            shard.marks.retain(|_, mark| mark.transaction > durable);
            shard.limit = 2 * shard.marks.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::Ino;

    #[test]
    fn only_others_and_only_what_is_not_durable() {
        let sharing = Sharing::new();
        let (a, b) = (ClientId(1), ClientId(2));
        let key = Key::Name(Ino(1), 7);
        sharing.note(a, key, 5, 0);
        assert!(!sharing.depends(b, key, 0), "one client alone shares nothing");
        assert!(sharing.enable());
        assert!(!sharing.enable());
        sharing.note(a, key, 6, 0);
        assert!(sharing.depends(b, key, 5));
        assert!(!sharing.depends(b, key, 6));
        assert!(!sharing.depends(a, key, 0));
        assert!(!sharing.depends(b, Key::Name(Ino(1), 8), 0));
        for i in 0..100_000 {
            sharing.note(a, Key::Inode(Ino(i)), 7 + i, i);
        }
        let kept: usize = sharing.shards.iter().map(|s| s.lock().marks.len()).sum();
        assert!(kept < SHARDS * 2 * MARKS, "{kept} marks");
    }
}

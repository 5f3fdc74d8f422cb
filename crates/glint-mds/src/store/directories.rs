//! Records of directories in use, so that the parent of every name is not read from the
//! engine again for every operation.
//!
//! Invariant: what is here is what the engine holds. A commit renews the records it
//! writes before its operation releases its locks and is answered. A reader that missed
//! puts in what it read only if no commit renewed its shard since it began to read.

use crate::store::record::InodeRecord;
use glint_kv::{Batch, Keyspace};
use glint_proto::Ino;
use glint_wait::Sharded;
use parking_lot::Mutex;
use std::collections::HashMap;

const SHARDS: usize = 64;
const RECORDS_PER_SHARD: usize = 256;

#[derive(Default)]
struct Shard {
    /// Renewals so far.
    renewals: u64,
    records: HashMap<Ino, InodeRecord>,
}

/// The cache.
pub(crate) struct Directories {
    shards: Sharded<Mutex<Shard>>,
}

/// Token that a reader that missed has to show when it comes back.
#[derive(Clone, Copy)]
pub(crate) struct Missed(u64);

/// Effect of a batch on cached inodes: new records of directories that are here, and the end of
/// what is known of others.
pub(crate) struct Renewal(Vec<(Ino, Option<InodeRecord>)>);

impl Directories {
    pub(crate) fn new() -> Directories {
        Directories { shards: Sharded::new(SHARDS) }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        self.shards.of(ino.0)
    }

    pub(crate) fn get(&self, ino: Ino) -> Result<InodeRecord, Missed> {
        let shard = self.shard(ino).lock();
        shard.records.get(&ino).cloned().ok_or(Missed(shard.renewals))
    }

    /// Orders a change of a directory's entries, whose record is about to be committed, behind those of
    /// others that hold its shared lock, too, and have committed since it was read: who has seen theirs
    /// does not see it go back in time. (But for one that commits between this and the commit, or while
    /// the record is not kept here.)
    pub(crate) fn order_times(&self, directory: &mut InodeRecord) {
        let ino = directory.attr.ino;
        let latest = self.shard(ino).lock().records.get(&ino).map(|known| known.attr.ctime);
        if let Some(latest) = latest.filter(|latest| *latest > directory.attr.ctime) {
            (directory.attr.mtime, directory.attr.ctime) = (latest.next(), latest.next());
        }
    }

    /// Keeps what a reader found after it missed.
    pub(crate) fn keep(&self, record: &InodeRecord, missed: Missed) {
        let mut shard = self.shard(record.attr.ino).lock();
        if shard.renewals != missed.0 {
            return;
        }
        if shard.records.len() >= RECORDS_PER_SHARD
            && let Some(other) = shard.records.keys().next().copied()
        {
            shard.records.remove(&other);
        }
        shard.records.insert(record.attr.ino, record.clone());
    }

    /// Effect that a batch is going to have on the cache.
    pub(crate) fn prepare(&self, batch: &Batch) -> Renewal {
        let mut renewal = Vec::new();
        for write in batch.writes().filter(|write| write.keyspace == Keyspace::Inode) {
            let Some(ino) = Ino::from_key(write.key) else { continue };
            // Inodes that are not cached need no decoding, only the end of what readers know.
            let known = self.shard(ino).lock().records.contains_key(&ino);
            let value = write.value.filter(|_| known);
            renewal.push((ino, value.and_then(|bytes| InodeRecord::decode(ino, bytes).ok())));
        }
        Renewal(renewal)
    }

    /// The batch is committed.
    pub(crate) fn renew(&self, renewal: Renewal) {
        for (ino, record) in renewal.0 {
            let mut shard = self.shard(ino).lock();
            shard.renewals += 1;
            match record {
                None => drop(shard.records.remove(&ino)),
                Some(record) => {
                    if let Some(known) = shard.records.get_mut(&ino)
                        && !is_same_but_older(&record, known)
                    {
                        *known = record;
                    }
                }
            }
        }
    }
}

/// Creates of one directory run in parallel and all renew its times: the latest stays,
/// whichever comes here first. All other changes exclude each other by locks.
fn is_same_but_older(new: &InodeRecord, known: &InodeRecord) -> bool {
    let mut times = new.clone();
    (times.attr.mtime, times.attr.ctime) = (known.attr.mtime, known.attr.ctime);
    new.attr.ctime < known.attr.ctime && times == *known
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::{FileType, Timestamp};

    fn record(ino: u64, secs: i64) -> InodeRecord {
        let now = Timestamp { secs, nanos: 0 };
        let mut record = InodeRecord::new(Ino(ino), FileType::Directory.mode_bits() | 0o755, now);
        record.attr.atime = Timestamp::default();
        record
    }

    fn batch(record: Option<&InodeRecord>) -> Batch {
        let mut batch = Batch::new();
        match record {
            Some(record) => batch.put(Keyspace::Inode, &Ino(5).key(), &record.encode()),
            None => batch.delete(Keyspace::Inode, &Ino(5).key()),
        }
        batch
    }

    fn mtime(directories: &Directories) -> i64 {
        directories.get(Ino(5)).unwrap_or_else(|_| record(5, -1)).attr.mtime.secs
    }

    #[test]
    fn a_slow_reader_does_not_bring_the_past_back() {
        let directories = Directories::new();
        let Err(missed) = directories.get(Ino(5)) else { panic!("it is empty") };
        directories.renew(directories.prepare(&batch(Some(&record(5, 2)))));
        directories.keep(&record(5, 1), missed);
        assert_eq!(mtime(&directories), -1);
        let Err(missed) = directories.get(Ino(5)) else { panic!("nothing was kept") };
        directories.keep(&record(5, 2), missed);
        assert_eq!(mtime(&directories), 2);
        directories.renew(directories.prepare(&batch(Some(&record(5, 3)))));
        assert_eq!(mtime(&directories), 3);
        directories.renew(directories.prepare(&batch(None)));
        assert_eq!(mtime(&directories), -1);
    }

    #[test]
    fn parallel_creates_leave_the_latest_time_and_other_changes_win() {
        let directories = Directories::new();
        let Err(missed) = directories.get(Ino(5)) else { panic!("it is empty") };
        directories.keep(&record(5, 1), missed);
        directories.renew(directories.prepare(&batch(Some(&record(5, 9)))));
        directories.renew(directories.prepare(&batch(Some(&record(5, 8)))));
        assert_eq!(mtime(&directories), 9);
        let mut chmod = record(5, 4);
        chmod.attr.mode ^= 0o22;
        directories.renew(directories.prepare(&batch(Some(&chmod))));
        assert_eq!(mtime(&directories), 4, "a clock that was set back changes nothing");
    }
}

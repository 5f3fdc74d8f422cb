//! Records that are right in memory and will be stored soon, many in one batch: what the
//! last close of a file knows about its size.
//!
//! Invariant: a record is here only while the stored one says that the objects know the
//! size (`size_on_ost`), so that losing this table loses nothing: the objects are asked
//! again. Whoever stores or deletes a record takes it out of here, under the same lock.

use crate::error::errno;
use crate::locks::{Key, Want};
use crate::record::InodeRecord;
use crate::service::Mds;
use glint_kv::{Batch, Kv};
use glint_proto::{FsResult, Ino};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 64;
/// Records stored in one batch.
const BATCH: usize = 64;
/// When so many wait, others are stored at once.
const RECORDS_MAX: usize = 16_384;

/// The table.
pub(crate) struct Later {
    count: AtomicUsize,
    shards: [Mutex<HashMap<Ino, InodeRecord>>; SHARDS],
}

impl Later {
    pub(crate) fn new() -> Later {
        Later { count: AtomicUsize::new(0), shards: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, InodeRecord>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// The record of an inode, if it waits here.
    pub(crate) fn get(&self, ino: Ino) -> Option<InodeRecord> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.shard(ino).lock().get(&ino).cloned()
    }

    /// Takes a record to store it soon; false if there is no room.
    pub(crate) fn put(&self, record: &InodeRecord) -> bool {
        if self.count.load(Ordering::Relaxed) >= RECORDS_MAX {
            return false;
        }
        let ino = record.attr.ino;
        if self.shard(ino).lock().insert(ino, record.clone()).is_none() {
            self.count.fetch_add(1, Ordering::AcqRel);
        }
        true
    }

    /// The inode is stored or deleted.
    pub(crate) fn remove(&self, ino: Ino) {
        if self.count.load(Ordering::Acquire) > 0 && self.shard(ino).lock().remove(&ino).is_some() {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn some(&self, limit: usize) -> Vec<Ino> {
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(shard.lock().keys().take(limit - found.len()));
        }
        found
    }
}

impl<K: Kv> Mds<K> {
    /// Stores what waits.
    pub(crate) async fn store_later(&self) -> FsResult<()> {
        loop {
            let inodes = self.later.some(BATCH);
            if inodes.is_empty() {
                return Ok(());
            }
            let wanted: Vec<Want> =
                inodes.iter().map(|ino| Want::exclusive(Key::Inode(*ino))).collect();
            let _held = self.locks.acquire(&wanted).await;
            let mut batch = Batch::new();
            // Some may have been stored by others in the meantime.
            let records: Vec<InodeRecord> =
                inodes.iter().filter_map(|ino| self.later.get(*ino)).collect();
            for record in &records {
                batch.put(glint_kv::Keyspace::Inode, &record.attr.ino.key(), &record.encode());
            }
            self.kv.commit(batch, &[]).await.map_err(errno)?;
            records.iter().for_each(|record| self.later.remove(record.attr.ino));
        }
    }
}

//! Open object files, so that a request costs no path walk.
//!
//! Bounded: when a shard is full the file that was opened first is closed.
//!
//! Invariant: an object has one [`ObjectFile`] at a time, because that is where its
//! changes are counted; so one that is in use is not closed, even beyond the bound.

use crate::object::ObjectFile;
use glint_proto::ObjectId;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

const SHARDS: usize = 32;
const FILES_PER_SHARD: usize = 48;

#[derive(Default)]
struct Shard {
    open: HashMap<ObjectId, Arc<ObjectFile>>,
    order: VecDeque<ObjectId>,
}

/// The cache.
pub(crate) struct Files {
    shards: Vec<Mutex<Shard>>,
}

impl Files {
    pub(crate) fn new() -> Files {
        Files { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, object: ObjectId) -> &Mutex<Shard> {
        &self.shards[(object.ino.0 as usize ^ object.stripe as usize) % SHARDS]
    }

    /// The open file of an object, opened by `open` if it is not there. `open` runs
    /// under the shard's lock, so an object has one entry.
    pub(crate) fn get<E>(
        &self,
        object: ObjectId,
        open: impl FnOnce() -> Result<Option<ObjectFile>, E>,
    ) -> Result<Option<Arc<ObjectFile>>, E> {
        let mut shard = self.shard(object).lock();
        if let Some(file) = shard.open.get(&object) {
            return Ok(Some(file.clone()));
        }
        let Some(file) = open()? else { return Ok(None) };
        let file = Arc::new(file);
        for _ in 0..shard.order.len() {
            if shard.order.len() < FILES_PER_SHARD {
                break;
            }
            let Some(oldest) = shard.order.pop_front() else { break };
            // Nobody can take a new reference while the shard is locked.
            match shard.open.get(&oldest) {
                Some(file) if Arc::strong_count(file) > 1 => shard.order.push_back(oldest),
                _ => drop(shard.open.remove(&oldest)),
            }
        }
        shard.open.insert(object, file.clone());
        shard.order.push_back(object);
        Ok(Some(file))
    }

    /// Forgets an object that is being removed.
    pub(crate) fn forget(&self, object: ObjectId) {
        let mut shard = self.shard(object).lock();
        if shard.open.remove(&object).is_some() {
            shard.order.retain(|other| *other != object);
        }
    }
}

//! Open object files, so that a request costs no path walk.
//!
//! Bounded: when a shard is full the file that was opened first is closed. Where the process
//! has no descriptors left all the same, those that nobody uses are closed at once.
//!
//! Invariant: an object has one [`ObjectFile`] at a time, because that is where its
//! changes are counted; so one that is in use is not closed, even beyond the bound. Nor is one
//! whose checksums were taken off and may be there again after a loss of power: who opens it
//! again would not know, and write over what they cover. Once that is there, checksums of what was
//! not touched outlive their file here, for [`KEPT_MAX`] objects of a shard. Nor does who uses an object
//! close it when it was removed meanwhile: that frees all of its blocks, and may wait for the disk. It is
//! closed by who [removes](Files::forget) another one or [settles](Files::close_removed) the store.

use crate::disk::DiskFile;
use crate::store::checksum::Sums;
use crate::store::object::ObjectFile;
use glint_proto::ObjectId;
use glint_wait::Sharded;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

const SHARDS_MAX: usize = 32;
/// Files for which a shard is worth while.
const FILES_PER_SHARD_MIN: usize = 4;
/// Most objects of a shard whose checksums are kept until they are opened again, as they are to be
/// sealed; of more, all of what is on the disk then gets new ones.
const KEPT_MAX: usize = 256;

struct Shard<F: DiskFile> {
    open: HashMap<ObjectId, Arc<ObjectFile<F>>>,
    order: VecDeque<ObjectId>,
    /// Checksums of objects that were closed while these were off.
    kept: HashMap<ObjectId, Arc<Sums>>,
}

impl<F: DiskFile> Default for Shard<F> {
    fn default() -> Shard<F> {
        Shard { open: HashMap::new(), order: VecDeque::new(), kept: HashMap::new() }
    }
}

impl<F: DiskFile> Shard<F> {
    /// Closes the files that were opened first until there are fewer than `bound`, or all
    /// that are left are in use, or do not get to stable storage by `sync`. Returns how many.
    fn close(&mut self, bound: usize, sync: &impl Fn(&F) -> bool) -> usize {
        let before = self.open.len();
        for _ in 0..self.order.len() {
            if self.order.len() < bound {
                break;
            }
            let Some(oldest) = self.order.pop_front() else { break };
            // Nobody can take a new reference while the shard is locked.
            match self.open.get(&oldest) {
                Some(file) if Arc::strong_count(file) > 1 => self.order.push_back(oldest),
                Some(file) if file.is_leaving() && (bound > 1 || !sync(file.file())) => {
                    self.order.push_back(oldest);
                }
                _ => {
                    let closed = self.open.remove(&oldest);
                    let sums = closed.and_then(|file| file.kept_sums());
                    if let Some(sums) = sums.filter(|_| self.kept.len() < KEPT_MAX) {
                        self.kept.insert(oldest, sums);
                    }
                }
            }
        }
        before - self.open.len()
    }
}

/// The cache.
pub(crate) struct Files<F: DiskFile> {
    shards: Sharded<Mutex<Shard<F>>>,
    files_per_shard: usize,
    /// Objects that were in use when they were removed, until nobody uses them any more.
    removed: Mutex<Vec<Arc<ObjectFile<F>>>>,
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

impl<F: DiskFile> Files<F> {
    /// With room for so many.
    pub(crate) fn new(capacity: usize) -> Files<F> {
        let shards = (capacity / FILES_PER_SHARD_MIN).clamp(1, SHARDS_MAX);
        let files_per_shard = (capacity / shards).max(1);
        Files { shards: Sharded::new(shards), files_per_shard, removed: Mutex::default() }
    }

    /// For how many there is room.
    pub(crate) fn capacity(&self) -> usize {
        self.shards.iter().len() * self.files_per_shard
    }

    fn shard(&self, object: ObjectId) -> &Mutex<Shard<F>> {
        self.shards.of(object.ino.0 ^ u64::from(object.stripe))
    }

    /// The open file of an object, opened by `open` if it is not there. `open` runs
    /// under the shard's lock, so an object has one entry. Files that are closed for it are brought to
    /// stable storage by `sync`, where that has to be; it says whether they are.
    pub(crate) fn get(
        &self,
        object: ObjectId,
        open: impl Fn() -> io::Result<Option<ObjectFile<F>>>,
        sync: impl Fn(&F) -> bool,
    ) -> io::Result<Option<Arc<ObjectFile<F>>>> {
        let mut shard = self.shard(object).lock();
        if let Some(file) = shard.open.get(&object) {
            return Ok(Some(file.clone()));
        }
        let opened = match open() {
            Err(error) if is_out_of_descriptors(&error) && self.close_unused(&mut shard, &sync) => {
                open()
            }
            opened => opened,
        };
        let Some(file) = opened? else { return Ok(None) };
        let file = Arc::new(file.keeping(shard.kept.remove(&object)));
        shard.close(self.files_per_shard, &sync);
        shard.open.insert(object, file.clone());
        shard.order.push_back(object);
        Ok(Some(file))
    }

    /// The open file of an object, if that is there and can be told without waiting.
    pub(crate) fn known(&self, object: ObjectId) -> Option<Arc<ObjectFile<F>>> {
        self.shard(object).try_lock()?.open.get(&object).cloned()
    }

    /// Does something with each open file.
    pub(crate) fn each_open(&self, each: impl Fn(&ObjectFile<F>)) {
        for shard in &self.shards {
            let open: Vec<_> = shard.lock().open.values().cloned().collect();
            open.iter().for_each(|file| each(file));
        }
    }

    /// Closes what nobody uses, in `shard` and wherever nobody is. Returns whether there was
    /// anything.
    fn close_unused(&self, shard: &mut Shard<F>, sync: &impl Fn(&F) -> bool) -> bool {
        // The calling thread has one locked, so it must not wait for the others.
        let others = self.shards.iter().filter_map(Mutex::try_lock);
        shard.close(1, sync) + others.map(|mut other| other.close(1, sync)).sum::<usize>() > 0
    }

    /// Forgets an object that is being removed, and closes others that were.
    pub(crate) fn forget(&self, object: ObjectId) {
        let mut shard = self.shard(object).lock();
        shard.kept.remove(&object);
        let forgotten = shard.open.remove(&object);
        if forgotten.is_some() {
            shard.order.retain(|other| *other != object);
        }
        drop(shard);
        // Nobody takes a new reference any more.
        let used = forgotten.filter(|file| Arc::strong_count(file) > 1);
        self.removed.lock().extend(used);
        self.close_removed();
    }

    /// Closes removed objects that nobody uses any more.
    pub(crate) fn close_removed(&self) {
        let is_unused = |file: &mut Arc<ObjectFile<F>>| Arc::strong_count(file) == 1;
        let unused: Vec<_> = self.removed.lock().extract_if(.., is_unused).collect();
        // Others may be looked at meanwhile.
        drop(unused);
    }
}

#[cfg(test)]
mod tests {
    use crate::disk::memory::{DiskOperation, Fault, MemoryDisk};
    use crate::disk::{Disk, DiskFile};
    use crate::store::object::ReadMode;
    use crate::store::object_store::{ObjectStore, path_of};
    use glint_proto::{Ino, ObjectId};
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn checksums_of_what_is_not_touched_outlive_their_file() {
        let disk = MemoryDisk::default();
        let store = ObjectStore::on(disk.clone(), Path::new("ost"), 1, Arc::default());
        let object = |ino| ObjectId { ino: Ino(ino), stripe: 0 };
        let write = |ino, at| store.write(object(ino), at, &[7; 1000], None, false).map(drop);
        let settle = || store.settle(Duration::ZERO, None).unwrap();
        let is_read = || {
            let file = store.file(object(1), None).unwrap().unwrap();
            file.checked_read(10, &mut [0], ReadMode::Waiting).is_ok()
        };
        write(1, 0).unwrap();
        write(1, 100_000).unwrap();
        settle();
        disk.open(&path_of(object(1))).unwrap().write(&[6], 10).unwrap();
        for _ in 0..3 {
            write(1, 100_000).unwrap();
            write(2, 0).unwrap();
            assert!(!is_read());
            write(2, 0).unwrap();
            settle();
            assert!(store.is_sealed(object(1)) && !is_read());
        }
        // One that is made anew under its number has none.
        write(1, 100_000).unwrap();
        write(2, 0).unwrap();
        store.remove(object(1)).unwrap();
        write(1, 0).unwrap();
        settle();
        assert!(is_read());
    }

    #[test]
    fn an_object_that_is_removed_while_it_is_used_is_not_closed_by_who_uses_it() {
        let store = ObjectStore::on(MemoryDisk::default(), Path::new("ost"), 64, Arc::default());
        let object = |ino| ObjectId { ino: Ino(ino), stripe: 0 };
        let use_removed = |ino| {
            store.write(object(ino), 0, b"bytes", None, false).unwrap();
            let used = store.open_file(object(ino)).unwrap();
            let left = Arc::downgrade(&used);
            store.remove(object(ino)).unwrap();
            store.settle(Duration::ZERO, None).unwrap();
            drop(used);
            assert!(left.strong_count() == 1, "who has used it would wait for the disk");
            left
        };
        let left = use_removed(1);
        store.settle(Duration::ZERO, None).unwrap();
        assert_eq!(left.strong_count(), 0);
        let left = use_removed(2);
        store.remove(object(3)).unwrap();
        assert_eq!(left.strong_count(), 0);
    }

    #[test]
    fn a_sync_before_a_file_is_closed_that_fails_is_an_error_for_good() {
        let disk = MemoryDisk::default();
        let store = ObjectStore::on(disk.clone(), Path::new("ost"), 1, Arc::default());
        let object = |ino| ObjectId { ino: Ino(ino), stripe: 0 };
        store.write(object(1), 0, b"sums", None, false).unwrap();
        store.settle(Duration::ZERO, None).unwrap();
        // Its checksums are taken off, which is perhaps not on stable storage.
        store.write(object(1), 4, b"more", None, false).unwrap();
        let path = object(1).to_string();
        disk.fail(Fault::new(DiskOperation::Sync, &path, libc::EIO, 1));
        assert!(store.write(object(2), 0, b"other", None, false).is_err());
        assert!(store.failure().unwrap().contains("an object"));
        assert!(store.sync_all().is_err(), "what it had not written looks clean");
    }
}

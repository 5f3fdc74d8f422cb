//! The search for copies that were changed since they were sealed: of what a loss of power has left,
//! these are all that can have changed not long before, also where no log says so.
//!
//! Invariants:
//! - Of an OST that [awaits its search](OstSet::await_search) no object is sealed, until who has
//!   it searched has noted on stable storage what was found ([`OstSet::end_search`]). So all that had no
//!   checksums when power was lost is found however late that is, whatever is changed meanwhile. More is
//!   found then: objects that were changed since, too.
//! - Who searches is a thread of the disk itself: no OST waits for the search of another one.
//! - Each call of the disk is watched by itself: one that does not end is seen, however few there are;
//!   that there are many is not taken for that.
//! - An OST whose objects cannot be listed has failed, as one that cannot be flushed. Others go on. An
//!   object that cannot be looked at counts as changed, and holds up no other.

use crate::disk::{CallKind, Disk, DiskWatch};
use crate::ost_set::OstSet;
use crate::service::{Apart, Ost};
use crate::store::object_store::{DIRECTORIES, ObjectStore, directory_name, parse_name};
use glint_proto::{Errno, FsResult, ObjectId};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Objects that a thread looks at before others of the disk have their turn.
const ENTRIES: usize = 256;

/// How far the search of an OST is.
#[derive(Default)]
pub(crate) struct SearchProgress {
    directories: AtomicUsize,
    found: AtomicUsize,
}

/// Of objects that were looked at, those that may have been changed.
#[derive(Default)]
struct LookedAt {
    found: Vec<ObjectId>,
    /// How many of them could not be looked at, and which was the first, and why.
    unknown: usize,
    first: Option<(ObjectId, rustix::io::Errno)>,
}

impl LookedAt {
    fn add(&mut self, next: LookedAt) {
        self.found.extend(next.found);
        self.unknown += next.unknown;
        self.first = self.first.or(next.first);
    }
}

impl<D: Disk> ObjectStore<D> {
    /// Objects with copies in a directory.
    fn copies_in(&self, directory: usize) -> io::Result<Vec<ObjectId>> {
        let names = self.disk.names(&directory_name(directory));
        let names = names.map_err(|error| self.not_listed(error))?;
        let objects = names.iter().filter_map(|name| name.to_str().and_then(parse_name));
        Ok(objects.filter(|object| object.is_of_chain()).collect())
    }

    /// Those of some objects that have no checksums on the disk, or none that this version reads: all that
    /// were changed since they were sealed, also if nobody remembers that; but times that were set keep
    /// them. They are sealed once they are left alone.
    fn unsealed_of(&self, objects: &[ObjectId], watch: &DiskWatch) -> LookedAt {
        let mut looked_at = LookedAt::default();
        for object in objects {
            let _call = watch.begin(CallKind::Short);
            match self.seal_is_on(*object) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(errno) => {
                    looked_at.unknown += 1;
                    looked_at.first = looked_at.first.or(Some((*object, errno)));
                }
            }
            looked_at.found.push(*object);
            self.sealer.note(*object, Some(0));
        }
        looked_at
    }

    /// All of them.
    #[cfg(test)]
    pub(crate) fn unsealed_copies(&self) -> io::Result<Vec<ObjectId>> {
        let mut all = LookedAt::default();
        for directory in 0..DIRECTORIES {
            all.add(self.unsealed_of(&self.copies_in(directory)?, &DiskWatch::default()));
        }
        Ok(all.found)
    }

    /// Objects could not be listed: an error for good, unless the process lacks what it needs for that.
    fn not_listed(&self, error: io::Error) -> io::Error {
        let shortages = [libc::EMFILE, libc::ENFILE, libc::ENOMEM];
        if !error.raw_os_error().is_some_and(|errno| shortages.contains(&errno)) {
            self.fails(format!("listing objects in {}: {error}", self.path().display()));
        }
        error
    }
}

/// Has a thread of an OST's disk do a part of a search, or of a list.
pub(crate) async fn on_its_disk<D: Disk, T: Send + 'static>(
    ost: &Ost<D>,
    kind: CallKind,
    work: impl FnOnce(&ObjectStore<D>) -> io::Result<T> + Send + 'static,
) -> FsResult<T> {
    match ost.apart_unless_dropped(kind, Apart::default(), work).await {
        Ok(done) => done.map_err(|error| Errno::from_io(&error)),
        // There was no thread for it.
        Err(_) => Err(Errno::EAGAIN),
    }
}

impl<D: Disk> OstSet<D> {
    /// Has nothing sealed on an OST until its search has ended: called before anything is.
    pub fn await_search(&self, index: u16) {
        self.hold_seals(index, true);
    }

    fn hold_seals(&self, index: u16, are_held: bool) {
        if let Some(ost) = self.osts.get(usize::from(index)) {
            ost.store().sealer.hold(are_held);
        }
    }

    /// Whether an OST is to be searched, or is being searched.
    pub fn awaits_search(&self, index: u16) -> bool {
        let ost = self.osts.get(usize::from(index));
        ost.is_some_and(|ost| ost.store().sealer.is_held())
    }

    /// The part of an OST, from 0 to 1, that was searched, and how many objects were found there; if it
    /// awaits the end of its search.
    pub fn searched(&self, index: u16) -> Option<(f64, usize)> {
        let progress = self.searches.get(usize::from(index));
        let progress = progress.filter(|_| self.awaits_search(index))?;
        let done = progress.directories.load(Ordering::Relaxed) as f64 / DIRECTORIES as f64;
        Some((done, progress.found.load(Ordering::Relaxed)))
    }

    /// Searches an OST. Returns objects with copies that were changed since they were sealed. An error
    /// is one for good if the OST has [failed](OstSet::failure) then.
    pub async fn search(&self, index: u16) -> FsResult<Vec<ObjectId>> {
        let ost = self.osts.get(usize::from(index)).ok_or(Errno::ENXIO)?;
        let progress = self.searches.get(usize::from(index)).ok_or(Errno::ENXIO)?;
        // Of each object the calls are watched; where no thread waits, that it comes to its turn.
        let kind = if D::WAITS { CallKind::Long } else { CallKind::Short };
        let mut all = LookedAt::default();
        for directory in 0..DIRECTORIES {
            progress.directories.store(directory, Ordering::Relaxed);
            let list = move |store: &ObjectStore<D>| store.copies_in(directory);
            let objects = on_its_disk(ost, CallKind::Short, list).await?;
            for some in objects.chunks(ENTRIES) {
                let (some, watch) = (some.to_vec(), ost.watch.clone());
                let look = move |store: &ObjectStore<D>| Ok(store.unsealed_of(&some, &watch));
                all.add(on_its_disk(ost, kind, look).await?);
                progress.found.store(all.found.len(), Ordering::Relaxed);
            }
        }
        progress.directories.store(DIRECTORIES, Ordering::Relaxed);
        if let Some((object, errno)) = all.first {
            let error = io::Error::from(errno);
            tracing::warn!(
                %error, %object, objects = all.unknown, path = %ost.store().path().display(),
                "could not look at objects; they count as changed before power was lost"
            );
        }
        Ok(all.found)
    }

    /// What was found on an OST is noted, on stable storage.
    pub fn end_search(&self, index: u16) {
        self.hold_seals(index, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::memory::{DiskOperation, Fault, MemoryDisk};
    use futures_lite::future::block_on;
    use glint_proto::{Ino, clock};
    use parking_lot::Mutex;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: ObjectId::OF_CHAINS };

    fn store(disk: &MemoryDisk) -> ObjectStore<MemoryDisk> {
        ObjectStore::on(disk.clone(), Path::new("ost"), 64, Arc::default())
    }

    /// OSTs on these disks that await their search.
    fn osts(disks: &[MemoryDisk]) -> OstSet<MemoryDisk> {
        let stores = disks.iter().map(store).collect();
        let osts = OstSet::start(stores, Arc::default(), None, false).unwrap();
        (0..osts.count()).for_each(|index| osts.await_search(index));
        osts
    }

    #[test]
    fn what_is_changed_and_left_alone_before_it_is_found_is_not_sealed() {
        let disk = MemoryDisk::default();
        store(&disk).write(OBJECT, 0, b"before", None, false).unwrap();
        let osts = osts(&[disk]);
        let its = osts.osts[0].store();
        its.write(OBJECT, 0, b"meanwhile", None, false).unwrap();
        its.settle(Duration::ZERO, None).unwrap();
        its.settle_last().unwrap();
        assert!(!its.is_sealed(OBJECT) && osts.awaits_search(0));
        assert_eq!(block_on(osts.search(0)).unwrap(), [OBJECT]);
        its.settle(Duration::ZERO, None).unwrap();
        assert!(!its.is_sealed(OBJECT), "nobody has noted it");
        osts.end_search(0);
        its.settle(Duration::ZERO, None).unwrap();
        assert!(its.is_sealed(OBJECT) && !osts.awaits_search(0));
    }

    #[test]
    fn an_ost_whose_objects_cannot_be_listed_fails_alone() {
        let disks = [MemoryDisk::default(), MemoryDisk::default()];
        disks.iter().for_each(|disk| {
            store(disk).write(OBJECT, 0, b"before", None, false).unwrap();
        });
        let osts = osts(&disks);
        disks[0].fail(Fault::new(DiskOperation::List, "05/", libc::EMFILE, 1));
        block_on(osts.search(0)).unwrap_err();
        assert_eq!(osts.failure(0), None, "descriptors come back");
        disks[0].fail(Fault::new(DiskOperation::List, "05/", libc::EIO, 1));
        block_on(osts.search(0)).unwrap_err();
        assert!(osts.failure(0).unwrap().contains("listing objects in ost"));
        assert!(osts.is_out_of_order(0) && osts.awaits_search(0));
        assert_eq!(block_on(osts.search(1)).unwrap(), [OBJECT]);
        assert!(osts.failure(1).is_none() && !osts.is_out_of_order(1));
    }

    #[test]
    fn a_call_of_a_search_that_does_not_end_is_seen_and_that_there_are_many_is_not() {
        let disk = MemoryDisk::default();
        store(&disk).write(OBJECT, 0, b"before", None, false).unwrap();
        let osts = Arc::new(osts(std::slice::from_ref(&disk)));
        osts.look();
        let (of, stood_still) = (Arc::downgrade(&osts), Arc::<Mutex<Vec<bool>>>::default());
        let seen = stood_still.clone();
        // The first call takes four seconds, and each other one a moment.
        disk.wait(Arc::new(move || {
            let osts = of.upgrade().unwrap();
            let mut seen = seen.lock();
            let looks = if seen.is_empty() { 40 } else { 1 };
            for _ in 0..looks {
                clock::simulate(Some(clock::now() + Duration::from_millis(100)));
                osts.look();
            }
            seen.push(osts.is_out_of_order(0));
            Box::pin(std::future::ready(()))
        }));
        assert_eq!(block_on(osts.search(0)).unwrap(), [OBJECT]);
        clock::simulate(None);
        let stood_still = stood_still.lock();
        assert_eq!(stood_still.len(), DIRECTORIES + 1, "one call lists a directory");
        assert!(stood_still[0] && !stood_still[1..].contains(&true), "{stood_still:?}");
    }

    #[test]
    fn an_object_that_cannot_be_looked_at_counts_as_changed_and_holds_up_no_other() {
        let disk = MemoryDisk::default();
        let other = ObjectId { ino: Ino(8), ..OBJECT };
        let sealed = ObjectId { ino: Ino(9), ..OBJECT };
        let before = store(&disk);
        for object in [OBJECT, sealed] {
            before.write(object, 0, b"before", None, false).unwrap();
        }
        before.settle(Duration::ZERO, None).unwrap();
        before.write(other, 0, b"before", None, false).unwrap();
        let osts = osts(std::slice::from_ref(&disk));
        assert_eq!(osts.searched(0), Some((0.0, 0)));
        disk.fail(Fault::new(DiskOperation::Open, &OBJECT.to_string(), libc::EUCLEAN, 1));
        let mut found = block_on(osts.search(0)).unwrap();
        found.sort_unstable();
        assert_eq!(found, [OBJECT, other]);
        assert_eq!((osts.failure(0), osts.searched(0)), (None, Some((1.0, 2))));
        osts.end_search(0);
        assert_eq!(osts.searched(0), None);
    }
}

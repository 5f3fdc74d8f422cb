//! The search for copies that were changed since they were sealed: of what a loss of power has left,
//! these are all that can have changed not long before, also where no log says so.
//!
//! Invariants:
//! - Of an OST that [awaits its search](OstSet::await_search) no object is sealed, until who has
//!   it searched has noted on stable storage what was found ([`OstSet::end_search`]). So all that had no
//!   checksums when power was lost is found however late that is, whatever is changed meanwhile. More is
//!   found then: objects that were changed since, too.
//! - Who searches is a thread of the disk itself: no OST waits for the search of another one.
//! - An OST whose objects cannot be listed has failed, as one that cannot be flushed. Others go on.

use crate::disk::{CallKind, Disk};
use crate::ost_set::OstSet;
use crate::service::Apart;
use crate::store::object_store::{DIRECTORIES, ObjectStore, directory_name, parse_name};
use glint_proto::{Errno, FsResult, ObjectId};
use std::io;

impl<D: Disk> ObjectStore<D> {
    /// Objects with copies that have no checksums on the disk, or none that this version reads: all that
    /// were changed since they were sealed, also if nobody remembers that; but times that were set keep
    /// them. They are sealed once they are left alone.
    pub(crate) fn unsealed_copies(&self) -> io::Result<Vec<ObjectId>> {
        let mut found = Vec::new();
        for shard in 0..DIRECTORIES {
            let names = self.disk.names(&directory_name(shard));
            let names = names.map_err(|error| self.not_listed(error))?;
            let objects = names.iter().filter_map(|name| name.to_str().and_then(parse_name));
            found.extend(objects.filter(|object| object.is_of_chain() && !self.is_sealed(*object)));
        }
        found.iter().for_each(|object| self.sealer.note(*object, Some(0)));
        Ok(found)
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

    /// Searches an OST. Returns objects with copies that were changed since they were sealed. An error
    /// is one for good if the OST has [failed](OstSet::failure) then.
    pub async fn search(&self, index: u16) -> FsResult<Vec<ObjectId>> {
        let ost = self.osts.get(usize::from(index)).ok_or(Errno::ENXIO)?;
        let (kind, apart) = (CallKind::Long, Apart::default());
        match ost.apart_unless_dropped(kind, apart, ObjectStore::unsealed_copies).await {
            Ok(found) => found.map_err(|error| Errno::from_io(&error)),
            // There was no thread for it.
            Err(_) => Err(Errno::EAGAIN),
        }
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
    use glint_proto::Ino;
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
}

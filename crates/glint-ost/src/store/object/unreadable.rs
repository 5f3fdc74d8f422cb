//! An object that is known not to be what was written: no other copy of it could be read when it was
//! to be copied here.
//!
//! Invariants:
//! - None of its bytes is read, also after a restart, whatever parts of it are changed.
//! - It is so until it is removed, cut to nothing, or was copied whole: no sooner than that is on stable
//!   storage.

use super::{ATTRIBUTE, ObjectFile, Seal};
use crate::disk::{Disk, DiskFile};
use crate::store::object_store::ObjectStore;
use glint_proto::{ObjectId, Timestamp};
use std::io;
use std::sync::atomic::Ordering;

/// Stands in the place of the checksums. These are longer.
pub(crate) const UNREADABLE: [u8; 1] = [0xff];

/// Error of who reads it.
pub(crate) fn unreadable() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "no copy of it could be read")
}

impl<F: DiskFile> ObjectFile<F> {
    pub(crate) fn is_unreadable(&self) -> io::Result<bool> {
        Ok(matches!(*self.known_seal()?, Seal::Unreadable))
    }

    fn set_unreadable(&self) -> io::Result<()> {
        let mut seal = self.seal.write();
        self.file.set_attribute(ATTRIBUTE, &UNREADABLE)?;
        *seal = Seal::Unreadable;
        Ok(())
    }

    /// Returns the number of changes with which the object is to be sealed.
    fn set_readable(&self) -> io::Result<u64> {
        let mut seal = self.seal.write();
        if matches!(*seal, Seal::Unreadable) {
            self.file.remove_attribute(ATTRIBUTE)?;
            *seal = Seal::Open(None);
        }
        self.is_queued.store(true, Ordering::Release);
        Ok(self.changes.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// All bytes of the object are gone. If that cannot be noted, it stays unreadable.
    pub(super) fn end_unreadable(&self, seal: &mut Seal) {
        let is_over = match seal {
            Seal::Unreadable => self.file.remove_attribute(ATTRIBUTE).is_ok(),
            Seal::Leaving(_) => true,
            Seal::Unknown | Seal::Open(_) | Seal::Sealed(_) => false,
        };
        if is_over {
            *seal = Seal::Open(None);
        }
    }
}

impl<D: Disk> ObjectStore<D> {
    /// Whether an object is known not to be what was written.
    pub fn is_unreadable(&self, object: ObjectId) -> io::Result<bool> {
        self.file(object, None)?.map_or(Ok(false), |file| file.is_unreadable())
    }

    /// Has nobody read an object any more, which is made if it is not there: on stable storage. Or, if
    /// not `is_unreadable`, ends that: it was copied here whole.
    pub fn mark(&self, object: ObjectId, is_unreadable: bool) -> io::Result<()> {
        self.works()?;
        let create = is_unreadable.then(Timestamp::now);
        let Some(file) = self.file(object, create)? else { return Ok(()) };
        if is_unreadable {
            file.set_unreadable()?;
            self.sealer.touch();
            return self.sync(object);
        }
        if file.is_unreadable()? {
            self.sync(object)?;
            self.sealer.note(object, Some(file.set_readable()?));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::memory::MemoryDisk;
    use crate::store::object::ReadMode;
    use glint_proto::Ino;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    const OBJECT: ObjectId = ObjectId { ino: Ino(1), stripe: 0 };

    fn store(disk: &MemoryDisk) -> ObjectStore<MemoryDisk> {
        ObjectStore::on(disk.clone(), Path::new("ost"), 64, Arc::default())
    }

    fn read(store: &ObjectStore<MemoryDisk>) -> io::Result<Vec<u8>> {
        let mut room = vec![0; 16];
        let file = store.file(OBJECT, None)?.unwrap();
        let n = file.checked_read(0, &mut room, ReadMode::Waiting)?;
        room.truncate(n);
        Ok(room)
    }

    #[test]
    fn it_is_not_read_until_all_of_it_is_gone_or_was_copied() {
        let disk = MemoryDisk::default();
        let first = store(&disk);
        first.write(OBJECT, 0, b"old", None, false).unwrap();
        first.mark(OBJECT, true).unwrap();
        drop(first);
        let store = store(&disk);
        let is_refused = || {
            assert_eq!(read(&store).unwrap_err().kind(), io::ErrorKind::InvalidData);
            assert!(store.seek(OBJECT, 0, true).is_err() && store.check(OBJECT).is_err());
            assert!(store.is_unreadable(OBJECT).unwrap());
        };
        is_refused();
        store.write(OBJECT, 0, b"n", None, false).unwrap();
        store.truncate(OBJECT, 2).unwrap();
        store.settle(Duration::ZERO, None).unwrap();
        is_refused();
        store.mark(OBJECT, false).unwrap();
        assert_eq!(read(&store).unwrap(), b"nl");
        store.settle(Duration::ZERO, None).unwrap();
        assert!(store.check(OBJECT).unwrap().is_some(), "it has checksums again");
        store.mark(OBJECT, true).unwrap();
        is_refused();
        store.truncate(OBJECT, 0).unwrap();
        store.write(OBJECT, 0, b"other", None, false).unwrap();
        assert_eq!(read(&store).unwrap(), b"other");
        store.mark(OBJECT, true).unwrap();
        store.remove(OBJECT).unwrap();
        store.write(OBJECT, 0, b"new", None, false).unwrap();
        assert_eq!(read(&store).unwrap(), b"new");
    }
}

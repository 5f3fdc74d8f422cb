//! Which objects of an OST are read most, and how they come into memory again after a restart.
//!
//! Objects are remembered by the numbers of their inodes, in ranges ([`Heat`]): those of one range
//! are neighbours in one directory. They are loaded a directory at a time, in the order of their
//! names, so that the local file system reads directory blocks and inodes as they lie on the disk;
//! and of objects that are kept in memory at all their data, too.

use crate::disk::{Disk, DiskFile};
use crate::ost_set::OstSet;
use crate::store::object::{ATTRIBUTE, ATTRIBUTE_BYTES_MAX};
use crate::store::object_store::{
    DIRECTORIES, ObjectStore, SHARD_SHIFT, directory_name, parse_name, path_of,
};
use glint_proto::limits::OBJECT_CACHE_BYTES_MAX;
use glint_proto::{ObjectId, OstRequest, clock};
use glint_telemetry::{Heat, HotRange};
use std::time::Instant;

/// Table of objects in [`Heat`].
const OBJECTS: u8 = 0;
/// Bytes after which a step ends: what is read ahead is waited for by nobody.
const STEP_BYTES: u64 = 4 << 20;

impl<D: Disk> ObjectStore<D> {
    /// Notes that an object is read, if that is what a request does. What is only written says nothing
    /// about what will be read.
    pub(crate) fn note_read(&self, request: &OstRequest) {
        use OstRequest::{Read, Seek, Stat};
        if let Read { object, .. } | Stat { object } | Seek { object, .. } = request {
            self.heat.on_reads(OBJECTS, 1, || (object.ino.0, object.ino.0));
        }
    }

    /// Loads an object. Returns how many bytes of data that are, if it is there.
    fn load(&self, object: ObjectId) -> Option<u64> {
        let file = self.disk.open_to_read(&path_of(object)).ok()?;
        let size = file.stat().ok()?.size;
        // It may have no checksums.
        let _ = file.attribute(ATTRIBUTE, &mut [0; ATTRIBUTE_BYTES_MAX]);
        let most = self.passing().limit().unwrap_or(OBJECT_CACHE_BYTES_MAX);
        if size > most {
            return Some(0);
        }
        file.will_need(size);
        Some(size)
    }
}

/// Loading of objects of one OST, as far as it has come.
#[derive(Debug)]
pub struct Warming {
    /// Ranges of the numbers of inodes, sorted.
    ranges: Vec<(u64, u64)>,
    /// Directories with objects of them that are left, the hottest one at the end; and how many there
    /// were.
    directories: Vec<usize>,
    count: usize,
    /// Objects of the last one that are left, in the order in which they are taken from the end.
    objects: Vec<ObjectId>,
    /// Objects that were loaded.
    loaded: u64,
    /// Bytes of their data.
    bytes: u64,
}

impl Warming {
    /// Loads the objects in these ranges, the hottest of which come first.
    pub fn new(hot: &[HotRange]) -> Warming {
        let mut directories = Vec::new();
        for range in hot {
            let (first, last) = (range.first >> SHARD_SHIFT, range.last >> SHARD_SHIFT);
            // They lie over all directories in turns.
            for block in first..=last.min(first.saturating_add(DIRECTORIES as u64 - 1)) {
                let directory = (block % DIRECTORIES as u64) as usize;
                if !directories.contains(&directory) {
                    directories.push(directory);
                }
            }
        }
        directories.reverse();
        let mut ranges: Vec<_> = hot.iter().map(|range| (range.first, range.last)).collect();
        ranges.sort_unstable();
        let (count, objects) = (directories.len(), Vec::new());
        Warming { ranges, directories, count, objects, loaded: 0, bytes: 0 }
    }

    /// Directories that were looked through, and how many there are to be.
    pub fn parts(&self) -> (u64, u64) {
        let left = self.directories.len() + usize::from(!self.objects.is_empty());
        ((self.count - left) as u64, self.count as u64)
    }

    /// Objects that were loaded, and the bytes of their data.
    pub fn loaded(&self) -> (u64, u64) {
        (self.loaded, self.bytes)
    }

    fn is_hot(&self, object: ObjectId) -> bool {
        let behind = self.ranges.partition_point(|(first, _)| *first <= object.ino.0);
        behind > 0 && object.ino.0 <= self.ranges[behind - 1].1
    }

    /// The next object, once those of a directory are known.
    fn next(&mut self, disk: &impl Disk) -> Option<ObjectId> {
        loop {
            if let Some(object) = self.objects.pop() {
                return Some(object);
            }
            let name = directory_name(self.directories.pop()?);
            // Whoever reads an object of it will be told.
            let names = disk.names(&name).unwrap_or_default();
            let hot = names.iter().filter_map(|name| parse_name(name.to_str()?));
            self.objects = hot.filter(|object| self.is_hot(*object)).collect();
            self.objects.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
}

impl<D: Disk> OstSet<D> {
    /// Which objects of an OST are read most.
    pub fn heat(&self, index: u16) -> Option<&Heat> {
        Some(&self.osts.get(usize::from(index))?.store().heat)
    }

    /// Loads some more objects of an OST, until then at most. Returns whether there are more. Does
    /// nothing while the disk is slow.
    pub fn warm(&self, index: u16, warming: &mut Warming, until: Instant) -> bool {
        let Some(ost) = self.osts.get(usize::from(index)) else { return false };
        if ost.watch().is_slow() || ost.watch().stands_still() {
            return true;
        }
        let store = ost.store();
        let end = warming.bytes + STEP_BYTES;
        while let Some(object) = warming.next(&store.disk) {
            if let Some(bytes) = store.load(object) {
                (warming.loaded, warming.bytes) = (warming.loaded + 1, warming.bytes + bytes);
            }
            if clock::now() >= until || warming.bytes >= end {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::memory::MemoryDisk;
    use glint_proto::Ino;
    use std::path::Path;
    use std::time::Duration;

    const BLOCK: u64 = 1 << SHARD_SHIFT;

    fn object(ino: u64) -> ObjectId {
        ObjectId { ino: Ino(ino), stripe: 0 }
    }

    fn range(first: u64, last: u64) -> HotRange {
        HotRange { table: OBJECTS, first, last }
    }

    #[test]
    fn directories_come_in_the_order_of_their_heat_and_each_once() {
        let warming = Warming::new(&[range(5 * BLOCK, 7 * BLOCK - 1), range(0, 6 * BLOCK - 1)]);
        assert_eq!(warming.directories, [4, 3, 2, 1, 0, 6, 5]);
        assert_eq!(Warming::new(&[range(0, u64::MAX)]).parts(), (0, DIRECTORIES as u64));
        let warming = Warming::new(&[range(u64::MAX - 1, u64::MAX)]);
        assert_eq!(warming.directories, [DIRECTORIES - 1]);
        assert!(warming.is_hot(object(u64::MAX)) && !warming.is_hot(object(7)));
        assert_eq!(Warming::new(&[]).parts(), (0, 0));
    }

    #[test]
    fn objects_of_hot_ranges_are_loaded_and_no_others() {
        let store =
            ObjectStore::on(MemoryDisk::default(), Path::new("ost"), 64, Default::default());
        for ino in 0..3 * BLOCK {
            store.write(object(ino), 0, b"data", None, false).unwrap();
        }
        store.write(object(1), OBJECT_CACHE_BYTES_MAX, b"large", None, false).unwrap();
        let osts = OstSet::start(vec![store], Default::default(), None, false).unwrap();
        let read = OstRequest::Read { object: object(BLOCK), offset: 0, len: 1 };
        let write = OstRequest::Truncate { object: object(0), size: 9 };
        for _ in 0..200 {
            osts.osts[0].store().note_read(&write);
            osts.osts[0].store().note_read(&read);
        }
        let hot = osts.heat(0).unwrap().ranges();
        assert_eq!(hot, [range(BLOCK, 2 * BLOCK - 1)]);

        let mut warming = Warming::new(&[hot[0], range(1, 2)]);
        let now = clock::now();
        assert!(osts.warm(0, &mut warming, now));
        assert_eq!((warming.loaded(), warming.parts()), ((1, 4), (0, 2)));
        let later = now + Duration::from_secs(3600);
        while osts.warm(0, &mut warming, later) {}
        assert_eq!((warming.loaded(), warming.parts()), ((BLOCK + 2, 4 * BLOCK + 4), (2, 2)));
        assert!(!osts.warm(1, &mut warming, later) && osts.heat(1).is_none());
    }
}

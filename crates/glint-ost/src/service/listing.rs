//! Lists of the objects of an OST, for a check that goes on beside requests.
//!
//! Invariants:
//! - All OSTs list in one order ([`list_order`]): a comparison keeps a page of each.
//! - An object that is there all the time is in a page. One that is made or removed meanwhile may
//!   be.
//! - A page is bounded in objects, and ends soon. The names of a directory are not read anew for
//!   each: a request that goes on where a page has ended gets those that were read for it, while
//!   they are kept, and never any that were read before the list came to the directory.
//! - Each call of the disk for a look at an object is watched by itself: several slow ones are none
//!   that stands still. Reading the names of a directory is not watched: a disk may need seconds
//!   for a hundred thousand of them, which nobody else waits for.
//! - Nobody waits for a list: no lock is taken, and no open file of the store. An object is open
//!   only while its size and its seal are looked at.
//! - A seal is the one on the disk: it is taken off before a byte changes (`store/object.rs`), so
//!   an object that has one was not being changed then. Equal copies that are sealed in blocks of
//!   one size, as by one version, have the same digest.

use crate::disk::{CallKind, Disk, DiskFile, DiskResult, DiskWatch};
use crate::ost_set::OstSet;
use crate::search::on_its_disk;
use crate::service::Ost;
use crate::store::checksum::Sums;
use crate::store::object::unreadable::UNREADABLE;
use crate::store::object::{ATTRIBUTE, ATTRIBUTE_BYTES_MAX};
use crate::store::object_store::{
    DIRECTORIES, ObjectStore, SHARD_SHIFT, directory_name, parse_name, path_of, shard_of,
};
use glint_proto::limits::CHECKED_RECORDS_MAX;
use glint_proto::message::{NamespacePage, NamespaceQuery, StoredFact, StoredSeal};
use glint_proto::{Errno, FsResult, Ino, ObjectId, clock};
use parking_lot::Mutex;
use std::io;
use std::time::{Duration, Instant};

/// Objects that a thread looks at before others of the disk have their turn.
const AT_ONCE: usize = 16;
/// Objects of a directory that are kept for the next pages: 1 MiB.
const NAMES_MAX: usize = 64 << 10;
/// A page that has taken so long ends, however short it is: somebody waits for it.
const PAGE_TIME: Duration = Duration::from_secs(1);

/// Lists of objects are in the order of this.
pub fn list_order(object: ObjectId) -> (usize, ObjectId) {
    (shard_of(object), object)
}

/// The last object that a directory can have.
fn last_of(directory: usize) -> ObjectId {
    let others = !((DIRECTORIES as u64 - 1) << SHARD_SHIFT);
    ObjectId { ino: Ino(others | (directory as u64) << SHARD_SHIFT), stripe: u16::MAX }
}

/// The rest of the directory in which a page has ended last.
#[derive(Default)]
pub(crate) struct NamesAhead(Mutex<Option<DirectoryNames>>);

/// Objects of a directory, as its names were read.
struct DirectoryNames {
    /// In their order, those that come after this one.
    objects: Vec<ObjectId>,
    after: Option<ObjectId>,
    /// There are no others.
    are_all: bool,
    /// When it was begun to read them.
    read: Instant,
}

impl NamesAhead {
    /// Those after the object with which a page has ended.
    fn take(&self, after: ObjectId) -> Option<DirectoryNames> {
        self.0.lock().take_if(|names| names.after == Some(after))
    }

    /// Keeps those that a page has not told of, after some that it has. Returns the last one of
    /// these.
    fn keep(&self, mut names: DirectoryNames, told: usize) -> Option<ObjectId> {
        names.after = names.objects.drain(..told).next_back();
        let last = names.after;
        let mut kept = self.0.lock();
        // Another list may have begun since these were read, and be here, too.
        let is_newer = kept.as_ref().is_none_or(|kept| kept.read <= names.read);
        if is_newer && !names.objects.is_empty() {
            *kept = Some(names);
        }
        last
    }
}

/// The directory in which a list goes on after this object.
fn directory_after(object: ObjectId) -> usize {
    let directory = shard_of(object);
    if object == last_of(directory) { directory + 1 } else { directory }
}

impl<D: Disk> ObjectStore<D> {
    /// The first objects of a directory, after this one, and so many at most.
    fn objects_after(
        &self,
        directory: usize,
        after: Option<ObjectId>,
        most: usize,
    ) -> io::Result<Vec<ObjectId>> {
        let names = self.disk.names(&directory_name(directory))?;
        let objects = names.iter().filter_map(|name| name.to_str().and_then(parse_name));
        let after = after.map(list_order);
        let is_next = |object: &ObjectId| {
            shard_of(*object) == directory && after.is_none_or(|after| list_order(*object) > after)
        };
        let mut objects: Vec<ObjectId> = objects.filter(is_next).collect();
        objects.sort_unstable();
        objects.truncate(most);
        Ok(objects)
    }

    /// Reads the size and the seal of an object. One that cannot be opened has a size all the same.
    fn size_and_seal(&self, path: &str, watch: &DiskWatch) -> DiskResult<(u64, StoredSeal)> {
        let Ok(file) = watched(watch, || self.disk.open_to_read(path)) else {
            return Ok((watched(watch, || self.disk.size(path))?, StoredSeal::None));
        };
        let mut value = [0u8; ATTRIBUTE_BYTES_MAX];
        let seal = match watched(watch, || file.attribute(ATTRIBUTE, &mut value)) {
            Ok(len) => stored_seal(&value[..len]),
            Err(_) => StoredSeal::None,
        };
        // After the seal: of one that grows in between, a later look finds no seal.
        Ok((watched(watch, || file.stat())?.size, seal))
    }

    /// Looks at those of some objects that are there.
    fn facts_of(&self, objects: &[ObjectId], watch: &DiskWatch) -> Vec<StoredFact> {
        let fact = |object: &ObjectId| {
            let (size, seal) = match self.size_and_seal(&path_of(*object), watch) {
                Ok((size, seal)) => (Ok(size), seal),
                Err(rustix::io::Errno::NOENT) => return None,
                Err(error) => (Err(Errno::from_io(&error.into())), StoredSeal::None),
            };
            Some(StoredFact { object: *object, size, seal })
        };
        objects.iter().filter_map(fact).collect()
    }
}

/// Makes a call of the disk that is watched by itself.
fn watched<T>(watch: &DiskWatch, call: impl FnOnce() -> T) -> T {
    let _call = watch.begin(CallKind::Short);
    call()
}

/// Decodes the attribute with the checksums of an object.
fn stored_seal(value: &[u8]) -> StoredSeal {
    if value == UNREADABLE {
        return StoredSeal::Damaged;
    }
    match (Sums::decode(value), value.last_chunk()) {
        (Some(sums), _) if sums.has_damage() => StoredSeal::Damaged,
        // It ends with a checksum of the size and of all checksums.
        (Some(sums), Some(digest)) => StoredSeal::Whole {
            size: sums.size(),
            block_log2: sums.block_log2(),
            digest: u32::from_le_bytes(*digest),
        },
        _ => StoredSeal::None,
    }
}

/// How a part of a list is watched as a whole: where no thread waits, that it comes to its turn.
fn part_kind<D: Disk>() -> CallKind {
    if D::WAITS { CallKind::Long } else { CallKind::Short }
}

impl<D: Disk> Ost<D> {
    /// Has the disk look at some objects.
    async fn facts(&self, objects: &[ObjectId]) -> FsResult<Vec<StoredFact>> {
        let mut facts = Vec::new();
        for some in objects.chunks(AT_ONCE) {
            let (some, watch) = (some.to_vec(), self.watch.clone());
            let look = move |store: &ObjectStore<D>| Ok(store.facts_of(&some, &watch));
            facts.extend(on_its_disk(self, part_kind::<D>(), look).await?);
        }
        Ok(facts)
    }

    /// Reads the names of a directory that come after this object.
    async fn names_after(
        &self,
        directory: usize,
        after: Option<ObjectId>,
    ) -> FsResult<DirectoryNames> {
        let read = clock::now();
        let list = move |store: &ObjectStore<D>| store.objects_after(directory, after, NAMES_MAX);
        let objects = on_its_disk(self, part_kind::<D>(), list).await?;
        let are_all = objects.len() < NAMES_MAX;
        Ok(DirectoryNames { objects, after, are_all, read })
    }

    /// A page of its objects, after this one; and after which one to go on, if there may be more.
    async fn list(&self, after: Option<ObjectId>) -> FsResult<(Vec<StoredFact>, Option<ObjectId>)> {
        let begun = clock::now();
        let mut stored = Vec::new();
        let mut kept = after.and_then(|after| self.names_ahead.take(after));
        for directory in after.map_or(0, directory_after)..DIRECTORIES {
            let names = match kept.take() {
                Some(names) => names,
                None => self.names_after(directory, after).await?,
            };
            let room = CHECKED_RECORDS_MAX - stored.len();
            let here = &names.objects[..room.min(names.objects.len())];
            let mut told = 0;
            for some in here.chunks(AT_ONCE) {
                stored.extend(self.facts(some).await?);
                told += some.len();
                if clock::since(begun) > PAGE_TIME {
                    break;
                }
            }
            if told < names.objects.len() || !names.are_all {
                return Ok((stored, self.names_ahead.keep(names, told)));
            }
            // Some may be gone since, so the page is perhaps not full.
            if told == room || clock::since(begun) > PAGE_TIME {
                return Ok((stored, Some(last_of(directory))));
            }
        }
        Ok((stored, None))
    }
}

impl<D: Disk> OstSet<D> {
    /// Answers a query about objects on an OST here, of which the first has this number.
    /// An error is a sentence for people.
    pub async fn check_stored(
        &self,
        first: u16,
        query: NamespaceQuery,
    ) -> Result<NamespacePage, String> {
        let (ost, after, objects) = match query {
            NamespaceQuery::Stored { ost, after } => (ost, after, None),
            NamespaceQuery::StoredAgain { ost, objects } => (ost, None, Some(objects)),
            _ => return Err("only the server with the MDS has a namespace; ask that".into()),
        };
        let found = ost.checked_sub(first).and_then(|index| self.osts.get(usize::from(index)));
        let its = found.ok_or_else(|| format!("OST {ost} is not on this server"))?;
        let listed = match objects {
            Some(objects) if objects.len() > CHECKED_RECORDS_MAX => Err(Errno::EINVAL),
            Some(objects) => its.facts(&objects).await.map(|stored| (stored, None)),
            None => its.list(after).await,
        };
        let failed = |errno: Errno| format!("the objects of OST {ost} cannot be listed: {errno}");
        let (stored, last) = listed.map_err(failed)?;
        let next = last.map(|last| NamespaceQuery::Stored { ost, after: Some(last) });
        Ok(NamespacePage { stored, next, ..NamespacePage::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::memory::{DiskOperation, Fault, MemoryDisk};
    use crate::store::object::ReadMode;
    use futures_lite::future::block_on;
    use std::path::Path;
    use std::sync::Arc;

    fn store(disk: &MemoryDisk) -> ObjectStore<MemoryDisk> {
        ObjectStore::on(disk.clone(), Path::new("ost"), 64, Arc::default())
    }

    fn served(disk: &MemoryDisk) -> OstSet<MemoryDisk> {
        OstSet::start(vec![store(disk)], Arc::default(), None, false).unwrap()
    }

    fn object(ino: u64) -> ObjectId {
        ObjectId { ino: Ino(ino), stripe: 0 }
    }

    #[test]
    fn all_is_listed_in_one_order_a_page_at_a_time() {
        let disk = MemoryDisk::default();
        let before = store(&disk);
        // Most of them in one directory, and others in those before and after it.
        let many = (0..2 * CHECKED_RECORDS_MAX as u64 + 7).map(|n| n << 18 | 5 << SHARD_SHIFT);
        let inos: Vec<u64> = many.chain([1, 2, 255 << SHARD_SHIFT]).collect();
        for ino in &inos {
            before.write(object(*ino), 0, b"data", None, false).unwrap();
        }
        let osts = served(&disk);
        let mut next = Some(NamespaceQuery::Stored { ost: 3, after: None });
        let (mut listed, mut pages) = (Vec::new(), 0);
        while let Some(query) = next {
            let page = block_on(osts.check_stored(3, query)).unwrap();
            assert!(page.stored.len() <= CHECKED_RECORDS_MAX);
            listed.extend(page.stored);
            next = page.next;
            pages += 1;
        }
        assert!(pages >= 3 && listed.iter().all(|fact| fact.size == Ok(4)));
        let found: Vec<ObjectId> = listed.iter().map(|fact| fact.object).collect();
        let mut right: Vec<ObjectId> = inos.iter().map(|ino| object(*ino)).collect();
        right.sort_by_key(|object| list_order(*object));
        assert!(found == right, "{} of {}", found.len(), right.len());
    }

    #[test]
    fn the_names_of_a_directory_are_read_once_for_its_pages() {
        let disk = MemoryDisk::default();
        let before = store(&disk);
        let many = 2 * CHECKED_RECORDS_MAX as u64 + 7;
        for ino in (0..many).map(|n| n << 18 | 5 << SHARD_SHIFT) {
            before.write(object(ino), 0, b"data", None, false).unwrap();
        }
        let osts = served(&disk);
        let list = |after| block_on(osts.check_stored(3, NamespaceQuery::Stored { ost: 3, after }));
        let first = list(None).unwrap();
        disk.fail(Fault::new(DiskOperation::List, "05/", libc::EIO, u32::MAX));
        let (mut listed, mut next) = (first.stored.len(), first.next);
        while let Some(NamespaceQuery::Stored { after, .. }) = next {
            let page = list(after).unwrap();
            (listed, next) = (listed + page.stored.len(), page.next);
        }
        assert_eq!(listed as u64, many);
        let again = first.stored.last().map(|last| last.object);
        assert!(list(None).is_err() && list(again).is_err(), "nothing is kept for another list");
    }

    #[test]
    fn a_list_goes_on_after_any_directory() {
        for directory in [0, 1, 254, 255] {
            assert_eq!(shard_of(last_of(directory)), directory);
            assert_eq!(directory_after(last_of(directory)), directory + 1);
            let next = object((directory as u64 + 1) << SHARD_SHIFT);
            let is_before = list_order(last_of(directory)) < list_order(next);
            assert_eq!(is_before, directory < 255);
        }
    }

    #[test]
    fn objects_are_looked_at_again_where_they_are() {
        let disk = MemoryDisk::default();
        store(&disk).write(object(1), 0, b"data", None, false).unwrap();
        let osts = served(&disk);
        let ask = |ost, objects| {
            block_on(osts.check_stored(3, NamespaceQuery::StoredAgain { ost, objects }))
        };
        let both = ask(3, vec![object(1), object(2)]).unwrap().stored;
        let unsealed = StoredFact { object: object(1), size: Ok(4), seal: StoredSeal::None };
        assert_eq!(both, [unsealed]);
        assert!(ask(2, Vec::new()).unwrap_err().contains("OST 2 is not on this server"));
        assert!(ask(4, Vec::new()).is_err());
        assert!(ask(3, vec![object(1); CHECKED_RECORDS_MAX + 1]).is_err());
        disk.fail(Fault::new(DiskOperation::List, "05/", libc::EIO, 1));
        let list = NamespaceQuery::Stored { ost: 3, after: None };
        assert!(block_on(osts.check_stored(3, list)).unwrap_err().contains("cannot be listed"));
        assert_eq!(osts.failure(0), None, "a check is no reason to give up an OST");
    }

    #[test]
    fn slow_calls_one_after_the_other_are_no_disk_that_stands_still() {
        let (watch, mut now) = (DiskWatch::default(), Instant::now());
        let mut wait = |seconds: u64| {
            for _ in 0..10 * seconds {
                now += Duration::from_millis(100);
                clock::simulate(Some(now));
                watch.look();
            }
        };
        wait(1);
        for _ in 0..4 {
            watched(&watch, || wait(2));
        }
        let seen = (watch.is_slow(), watch.stands_still());
        clock::simulate(None);
        assert_eq!(seen, (true, false));
    }

    #[test]
    fn equal_copies_have_equal_seals_however_they_were_written() {
        const LEN: u64 = 200_000;
        let data: Vec<u8> = (0..LEN).map(|n| (n % 251) as u8).collect();
        let disks = [MemoryDisk::default(), MemoryDisk::default(), MemoryDisk::default()];
        let stores = disks.each_ref().map(store);
        let seal = |store: &ObjectStore<MemoryDisk>| {
            store.settle(Duration::ZERO, None).unwrap();
            store.facts_of(&[object(1)], &DiskWatch::default())[0].seal
        };
        let write = |store: &ObjectStore<MemoryDisk>, from: usize, data: &[u8]| {
            store.write(object(1), from as u64, data, None, false).unwrap();
        };
        write(&stores[0], 0, &data);
        // In parts, sealed between them.
        write(&stores[1], 100_000, &data[100_000..]);
        assert!(matches!(seal(&stores[1]), StoredSeal::Whole { size: LEN, .. }));
        write(&stores[1], 0, &data[..100_000]);
        write(&stores[2], 0, &data);
        stores[2].truncate(object(1), 100_000).unwrap();
        write(&stores[2], 100_000, &data[100_000..]);
        let [one, two, three] = stores.each_ref().map(seal);
        assert!(matches!(one, StoredSeal::Whole { size: LEN, block_log2: 16, .. }));
        assert!(one == two && one == three, "{one:?} {two:?} {three:?}");

        write(&stores[1], 70_000, b"other");
        let unsealed = stores[1].facts_of(&[object(1)], &DiskWatch::default());
        assert_eq!((unsealed[0].size, unsealed[0].seal), (Ok(LEN), StoredSeal::None));
        assert_ne!(seal(&stores[1]), one);
        // What is cut off behind the server's back keeps the size of its seal.
        disks[0].open(&path_of(object(1))).unwrap().set_size(1000).unwrap();
        let cut = stores[0].facts_of(&[object(1)], &DiskWatch::default());
        assert_eq!((cut[0].size, cut[0].seal), (Ok(1000), one));
    }

    #[test]
    fn what_is_known_to_be_damaged_is_said_and_what_is_no_seal_is_none() {
        let sealed = Sums::compute(|_, _| Ok(0), 0, &[], None).unwrap().encode();
        assert!(matches!(stored_seal(&sealed), StoredSeal::Whole { size: 0, .. }));
        assert_eq!(stored_seal(&UNREADABLE), StoredSeal::Damaged);
        for value in [&[][..], &[1, 16, 0], &sealed[1..]] {
            assert_eq!(stored_seal(value), StoredSeal::None);
        }

        let disk = MemoryDisk::default();
        let store = store(&disk);
        store.write(object(1), 0, b"data", None, false).unwrap();
        store.settle(Duration::ZERO, None).unwrap();
        disk.open(&path_of(object(1))).unwrap().write(b"rot!", 0).unwrap();
        let file = store.file(object(1), None).unwrap().unwrap();
        assert!(file.checked_read(0, &mut [0; 4], ReadMode::Waiting).is_err());
        let facts = store.facts_of(&[object(1)], &DiskWatch::default());
        assert_eq!(facts[0].seal, StoredSeal::Damaged);
    }
}

//! Lists of the objects of an OST, for a check that goes on beside requests.
//!
//! Invariants:
//! - All OSTs list in one order ([`list_order`]): who compares them keeps a page of each.
//! - An object that is there all the time is in a page. One that is made or removed meanwhile may
//!   be.
//! - A page is bounded in objects, and ends soon.
//! - Looks at objects are watched, each by itself. Reading the names of a directory is not: where it
//!   has a hundred thousand of them, a disk may need seconds for what nobody else waits for, and
//!   would be taken for one that stands still.
//! - Nobody waits for a list: no object is opened, and no lock is taken.

use crate::disk::{CallKind, Disk, DiskWatch};
use crate::ost_set::OstSet;
use crate::search::on_its_disk;
use crate::service::Ost;
use crate::store::object_store::{
    DIRECTORIES, ObjectStore, SHARD_SHIFT, directory_name, parse_name, path_of, shard_of,
};
use glint_proto::limits::CHECKED_RECORDS_MAX;
use glint_proto::message::{NamespacePage, NamespaceQuery, StoredFact};
use glint_proto::{Errno, FsResult, Ino, ObjectId, clock};
use std::io;
use std::time::Duration;

/// Objects that a thread looks at before others of the disk have their turn.
const AT_ONCE: usize = 64;
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

    /// Those of some objects that are there.
    fn facts_of(&self, objects: &[ObjectId], watch: &DiskWatch) -> Vec<StoredFact> {
        let fact = |object: &ObjectId| {
            let _call = watch.begin(CallKind::Short);
            let size = match self.disk.size(&path_of(*object)) {
                Ok(size) => Ok(size),
                Err(rustix::io::Errno::NOENT) => return None,
                Err(error) => Err(Errno::from_io(&error.into())),
            };
            Some(StoredFact { object: *object, size })
        };
        objects.iter().filter_map(fact).collect()
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

    /// A page of its objects, after this one; and after which one to go on, if there may be more.
    async fn list(&self, after: Option<ObjectId>) -> FsResult<(Vec<StoredFact>, Option<ObjectId>)> {
        let begun = clock::now();
        let mut stored = Vec::new();
        for directory in after.map_or(0, shard_of)..DIRECTORIES {
            let most = CHECKED_RECORDS_MAX - stored.len();
            let list = move |store: &ObjectStore<D>| store.objects_after(directory, after, most);
            let objects = on_its_disk(self, part_kind::<D>(), list).await?;
            for some in objects.chunks(AT_ONCE) {
                stored.extend(self.facts(some).await?);
                if clock::since(begun) > PAGE_TIME {
                    return Ok((stored, some.last().copied()));
                }
            }
            // Some may be gone since, so the page is perhaps not full; but here there may be more.
            if objects.len() == most {
                return Ok((stored, objects.last().copied()));
            }
            if clock::since(begun) > PAGE_TIME {
                return Ok((stored, Some(last_of(directory))));
            }
        }
        Ok((stored, None))
    }
}

impl<D: Disk> OstSet<D> {
    /// Answers what a check asks about objects on an OST here, of which the first has this number.
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
    fn a_list_goes_on_after_any_directory() {
        for directory in [0, 1, 254, 255] {
            assert_eq!(shard_of(last_of(directory)), directory);
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
        assert_eq!(both, [StoredFact { object: object(1), size: Ok(4) }]);
        assert!(ask(2, Vec::new()).unwrap_err().contains("OST 2 is not on this server"));
        assert!(ask(4, Vec::new()).is_err());
        assert!(ask(3, vec![object(1); CHECKED_RECORDS_MAX + 1]).is_err());
        disk.fail(Fault::new(DiskOperation::List, "05/", libc::EIO, 1));
        let list = NamespaceQuery::Stored { ost: 3, after: None };
        assert!(block_on(osts.check_stored(3, list)).unwrap_err().contains("cannot be listed"));
        assert_eq!(osts.failure(0), None, "a check is no reason to give up an OST");
    }
}

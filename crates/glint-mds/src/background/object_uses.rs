//! Where objects are to be, for a check of OSTs that goes on beside requests.
//!
//! Invariants:
//! - No object is called nobody's that a file has, or may have once a client that is there has told
//!   of the file, or that somebody removes.
//! - An end is said only of a file that has a name and is not written: its last writer has said how
//!   large its objects are, and no other changes that without saying so first.
//! - No end is said while clients of the last run are waited for: they send again the writes that
//!   the OSTs of this server have lost.

use super::namespace_pages::after;
use crate::error::errno;
use crate::service::Mds;
use crate::session::sessions::is_of_server;
use crate::store::record::InodeRecord;
use glint_kv::{Keyspace, Kv};
use glint_proto::limits::CHECKED_RECORDS_MAX;
use glint_proto::message::{NamespacePage, NamespaceQuery, ObjectUse, UsedObject};
use glint_proto::{Attr, Errno, FsResult, Ino, ObjectId};

impl<K: Kv> Mds<K> {
    /// Returns where some objects are to be, in their order. `own` OSTs are those of the MDS's own
    /// server.
    pub async fn object_uses(&self, objects: &[ObjectId], own: u16) -> FsResult<Vec<UsedObject>> {
        if objects.len() > CHECKED_RECORDS_MAX {
            return Err(Errno::EINVAL);
        }
        let sessions = self.kv.scan(Keyspace::Session, &[], &[0xff; 9], usize::MAX).await;
        let sessions = sessions.map_err(errno)?;
        let may_be_told =
            self.is_recovering() || sessions.iter().any(|(_, value)| !is_of_server(value));
        let mut uses = Vec::with_capacity(objects.len());
        for object in objects {
            let (used, end) = self.object_use(*object, own).await?;
            let end = end.filter(|_| !self.is_recovering());
            let is_granted = || self.allocator.holder_of(object.ino).is_some();
            let used = match used {
                ObjectUse::Nobody if may_be_told || is_granted() => ObjectUse::Unknown,
                used => used,
            };
            uses.push(UsedObject { object: *object, used, end });
        }
        Ok(uses)
    }

    /// Returns a page of objects with the ends of files, of inodes from this one on. `own` as
    /// above.
    pub async fn object_ends(&self, from: Ino, own: u16) -> FsResult<NamespacePage> {
        if self.is_recovering() {
            return Ok(NamespacePage::default());
        }
        let (from, to) = (from.key(), [0xff; 9]);
        let found = self.kv.scan(Keyspace::Inode, &from, &to, CHECKED_RECORDS_MAX).await;
        let found = found.map_err(errno)?;
        let uses = found.iter().filter_map(|(key, value)| {
            let ino = Ino::from_key(key).filter(|_| key.len() == 8)?;
            let attr = InodeRecord::decode(ino, value).ok()?.attr;
            let last = attr.layout.pieces(attr.size.checked_sub(1)?, 1).next()?;
            let end = end_in(&attr, last.stripe)?;
            let object = attr.layout.object(ino, last.stripe);
            let used = self.use_at(attr.layout.ost_of(last.stripe, own));
            Some(UsedObject { object, used, end: Some(end) })
        });
        let uses = uses.collect();
        let last = found.last().filter(|_| found.len() == CHECKED_RECORDS_MAX);
        let next = last.map(|(key, _)| NamespaceQuery::Ends(after(key)));
        Ok(NamespacePage { uses, next, ..NamespacePage::default() })
    }

    /// Returns where an object is to be, if no client is there, and the end of its file in it.
    async fn object_use(&self, object: ObjectId, own: u16) -> FsResult<(ObjectUse, Option<u64>)> {
        let key = object.ino.key();
        if let Some(value) = self.kv.get(Keyspace::Inode, &key).await.map_err(errno)? {
            let record = InodeRecord::decode(object.ino, value.as_ref());
            let Some(attr) = record.ok().map(|record| record.attr).filter(Attr::is_file) else {
                // The objects of a damaged inode are not known.
                return Ok((ObjectUse::Unknown, None));
            };
            if let Some(stripe) = attr.layout.stripe_of(object) {
                let used = self.use_at(attr.layout.ost_of(stripe, own));
                return Ok((used, end_in(&attr, stripe)));
            }
            if attr.size_on_ost {
                // Somebody writes it, or has crashed meanwhile.
                return Ok((ObjectUse::Unknown, None));
            }
        }
        // Objects that are to be destroyed, or that data moves to, are under the number of the
        // file, or their own.
        let last = [key.as_slice(), &[0xff; 3]].concat();
        let left = self.kv.scan(Keyspace::Orphan, &key, &last, 1).await.map_err(errno)?;
        Ok((if left.is_empty() { ObjectUse::Nobody } else { ObjectUse::Unknown }, None))
    }

    fn use_at(&self, target: u16) -> ObjectUse {
        match self.chains.get(target) {
            Some(row) => {
                ObjectUse::Copies { chain: row.id, version: row.version, members: row.members }
            }
            // One that does not exist is found with the inode.
            None => ObjectUse::Alone(target),
        }
    }
}

/// Returns the bytes of the object of a stripe, if the file is known to end in it.
fn end_in(attr: &Attr, stripe: u16) -> Option<u64> {
    let end = attr.layout.object_size(stripe, attr.size);
    let is_known = attr.is_file() && !attr.size_on_ost && attr.nlink > 0;
    let is_last = end > 0 && attr.layout.file_size(stripe, end) == attr.size;
    (is_known && is_last).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::{Layout, Timestamp};

    #[test]
    fn a_file_ends_in_one_of_its_objects() {
        const UNIT: u64 = 1 << 16;
        let layout = Layout { stripe_bytes_log2: 16, stripe_count: 3, ..Layout::default() };
        let attr = Attr { layout, ..Attr::new(Ino(7), 0o100_644, Timestamp::default()) };
        let ends = |size| [0, 1, 2].map(|stripe| end_in(&Attr { size, ..attr }, stripe));
        assert_eq!(ends(0), [None; 3]);
        assert_eq!(ends(5), [Some(5), None, None]);
        assert_eq!(ends(UNIT), [Some(UNIT), None, None]);
        assert_eq!(ends(2 * UNIT + 1), [None, None, Some(1)]);
        assert_eq!(ends(3 * UNIT), [None, None, Some(UNIT)]);
        assert_eq!(ends(3 * UNIT + 7), [Some(UNIT + 7), None, None]);
        for unknown in [
            Attr { size_on_ost: true, ..attr },
            Attr { nlink: 0, ..attr },
            Attr { mode: 0o040_755, ..attr },
        ] {
            assert_eq!(end_in(&Attr { size: 5, ..unknown }, 0), None, "{unknown:?}");
        }
    }
}

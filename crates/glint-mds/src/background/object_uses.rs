//! Where objects are to be, for a check of what OSTs have that goes on beside requests.
//!
//! Invariants:
//! - No object is called nobody's that a file has, or may have once a client that is there has told
//!   of the file, or that somebody removes.
//! - No end is told of a file that is open to be written, or whose objects know better how large it
//!   is, nor of one that has no name: its objects go first.

use crate::background::namespace_pages::after;
use crate::error::errno;
use crate::service::Mds;
use crate::session::sessions::is_of_server;
use crate::store::record::InodeRecord;
use glint_kv::{Keyspace, Kv};
use glint_proto::limits::CHECKED_RECORDS_MAX;
use glint_proto::message::{FileEnd, NamespacePage, NamespaceQuery, ObjectUse};
use glint_proto::{Attr, Errno, FsResult, Ino, ObjectId};

impl<K: Kv> Mds<K> {
    /// Where some objects are to be, in their order. `own` OSTs are those of the MDS's own server.
    pub async fn object_uses(&self, objects: &[ObjectId], own: u16) -> FsResult<Vec<ObjectUse>> {
        if objects.len() > CHECKED_RECORDS_MAX {
            return Err(Errno::EINVAL);
        }
        let sessions = self.kv.scan(Keyspace::Session, &[], &[0xff; 9], usize::MAX).await;
        let sessions = sessions.map_err(errno)?;
        let may_be_told =
            self.is_recovering() || sessions.iter().any(|(_, value)| !is_of_server(value));
        let mut uses = Vec::with_capacity(objects.len());
        for object in objects {
            let its = self.object_use(*object, own).await?;
            let is_granted = || self.allocator.holder_of(object.ino).is_some();
            uses.push(match its {
                ObjectUse::Nobody if may_be_told || is_granted() => ObjectUse::Unknown,
                its => its,
            });
        }
        Ok(uses)
    }

    /// The same of one, if no client is there.
    async fn object_use(&self, object: ObjectId, own: u16) -> FsResult<ObjectUse> {
        let key = object.ino.key();
        if let Some(value) = self.kv.get(Keyspace::Inode, &key).await.map_err(errno)? {
            let record = InodeRecord::decode(object.ino, value.as_ref());
            let Some(attr) = record.ok().map(|record| record.attr).filter(Attr::is_file) else {
                // Of one that is damaged nobody knows what it has.
                return Ok(ObjectUse::Unknown);
            };
            if let Some(stripe) = attr.layout.stripe_of(object) {
                return Ok(self.use_at(attr.layout.ost_of(stripe, own)));
            }
            if attr.size_on_ost {
                // Somebody writes it, or has crashed meanwhile.
                return Ok(ObjectUse::Unknown);
            }
        }
        // What is to be destroyed, or moved to, is under the number of the file, or of the object.
        let last = [key.as_slice(), &[0xff; 3]].concat();
        let left = self.kv.scan(Keyspace::Orphan, &key, &last, 1).await.map_err(errno)?;
        Ok(if left.is_empty() { ObjectUse::Nobody } else { ObjectUse::Unknown })
    }

    /// Ends of files, in the order of their inodes, from this one on: a page.
    pub async fn file_ends(&self, from: Ino, own: u16) -> FsResult<NamespacePage> {
        let (from, to) = (from.key(), [0xff; 9]);
        let found = self.kv.scan(Keyspace::Inode, &from, &to, CHECKED_RECORDS_MAX).await;
        let found = found.map_err(errno)?;
        let ends = found.iter().filter_map(|(key, value)| self.end_of(key, value, own)).collect();
        let last = found.last().filter(|_| found.len() == CHECKED_RECORDS_MAX);
        let next = last.map(|(key, _)| NamespaceQuery::Ends(after(key)));
        Ok(NamespacePage { ends, next, ..NamespacePage::default() })
    }

    /// The same of some inodes.
    pub async fn file_ends_again(&self, inodes: &[Ino], own: u16) -> FsResult<NamespacePage> {
        if inodes.len() > CHECKED_RECORDS_MAX {
            return Err(Errno::EINVAL);
        }
        let mut page = NamespacePage::default();
        for ino in inodes {
            let key = ino.key();
            let value = self.kv.get(Keyspace::Inode, &key).await.map_err(errno)?;
            page.ends.extend(value.and_then(|value| self.end_of(&key, value.as_ref(), own)));
        }
        Ok(page)
    }

    fn end_of(&self, key: &[u8], value: &[u8], own: u16) -> Option<FileEnd> {
        let ino = Ino::from_key(key).filter(|_| key.len() == 8)?;
        let Attr { size, size_on_ost, nlink, layout, .. } =
            InodeRecord::decode(ino, value).ok().map(|record| record.attr).filter(Attr::is_file)?;
        if size_on_ost || nlink == 0 {
            return None;
        }
        let last = layout.pieces(size.checked_sub(1)?, 1).next()?;
        let used = self.use_at(layout.ost_of(last.stripe, own));
        Some(FileEnd {
            object: layout.object(ino, last.stripe),
            bytes: last.object_offset + 1,
            used,
        })
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

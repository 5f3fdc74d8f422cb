//! Where objects are to be, for a check of what OSTs have that goes on beside requests.
//!
//! Invariant: no object is called nobody's that a file has, or may have once a client that is there
//! has told of the file, or that somebody removes.

use crate::error::errno;
use crate::service::Mds;
use crate::session::sessions::is_of_server;
use crate::store::record::InodeRecord;
use glint_kv::{Keyspace, Kv};
use glint_proto::limits::CHECKED_RECORDS_MAX;
use glint_proto::message::ObjectUse;
use glint_proto::{Attr, Errno, FsResult, ObjectId};

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

//! Permission checks, from the caller's credentials and the stored ACLs.

use crate::error::errno;
use crate::service::Mds;
use crate::store::keys;
use crate::store::record::InodeRecord;
use glint_kv::{Keyspace, Kv};
use glint_proto::posix::acl::{Acl, XATTR_ACCESS};
use glint_proto::posix::{may_change_entries, permit};
use glint_proto::{Cred, FsResult, Ino};

impl<K: Kv> Mds<K> {
    /// EACCES unless `cred` may do all of `want` to the inode.
    pub(crate) async fn permit(
        &self,
        record: &InodeRecord,
        cred: &Cred,
        want: u32,
    ) -> FsResult<()> {
        permit(&record.attr, self.acl_for(record, cred).await?.as_ref(), cred, want)
    }

    /// ENOENT or EACCES unless `cred` may change entries of the directory.
    pub(crate) async fn may_change_entries(
        &self,
        directory: &InodeRecord,
        cred: &Cred,
    ) -> FsResult<()> {
        may_change_entries(&directory.attr, self.acl_for(directory, cred).await?.as_ref(), cred)
    }

    /// The access ACL of an inode, if it has one and `cred` is subject to it.
    async fn acl_for(&self, record: &InodeRecord, cred: &Cred) -> FsResult<Option<Acl>> {
        match record.has_acl && !cred.is_superuser() {
            true => self.acl(record.attr.ino, XATTR_ACCESS).await,
            false => Ok(None),
        }
    }

    /// An ACL attribute of an inode.
    pub(crate) async fn acl(&self, ino: Ino, name: &[u8]) -> FsResult<Option<Acl>> {
        let value = self.kv.get(Keyspace::Xattr, &keys::xattr(ino, name)).await.map_err(errno)?;
        value.map(|value| Acl::parse(value.as_ref())).transpose()
    }
}

//! Permission checks, from the caller's credentials and the stored ACLs.

use crate::error::errno;
use crate::service::Mds;
use crate::store::keys;
use crate::store::record::InodeRecord;
use glint_kv::{Keyspace, Kv};
use glint_proto::posix::acl::{Acl, XATTR_ACCESS};
use glint_proto::posix::{may_change_entries, permit};
use glint_proto::{Attr, Cred, Errno, FsResult, Ino};

impl<K: Kv> Mds<K> {
    /// EACCES unless `cred` may do all of `want` to the inode.
    pub(crate) async fn permit(
        &self,
        record: &InodeRecord,
        cred: &Cred,
        want: u32,
    ) -> FsResult<()> {
        self.decide(record, cred, |attr, acl| permit(attr, acl, cred, want)).await
    }

    /// ENOENT or EACCES unless `cred` may change entries of the directory.
    pub(crate) async fn may_change_entries(
        &self,
        directory: &InodeRecord,
        cred: &Cred,
    ) -> FsResult<()> {
        self.decide(directory, cred, |attr, acl| may_change_entries(attr, acl, cred)).await
    }

    /// Applies `rule` to an inode's attributes and its access ACL, if it has one and `cred` is
    /// subject to it.
    async fn decide(
        &self,
        record: &InodeRecord,
        cred: &Cred,
        rule: impl Fn(&Attr, Option<&Acl>) -> FsResult<()>,
    ) -> FsResult<()> {
        if !record.has_acl || cred.is_superuser() {
            return rule(&record.attr, None);
        }
        let ino = record.attr.ino;
        if let Some(acl) = self.acl(ino, XATTR_ACCESS).await? {
            return rule(&record.attr, Some(&acl));
        }
        // The ACL was removed after the record was read. Its mode has the mask in the place of the
        // group's bits, and says nothing without the list; that of the newer record does.
        let record = self.stored_inode(ino).await?.ok_or(Errno::ESTALE)?;
        let acl = match record.has_acl {
            true => Some(self.acl(ino, XATTR_ACCESS).await?.ok_or(Errno::EACCES)?),
            false => None,
        };
        rule(&record.attr, acl.as_ref())
    }

    /// An ACL attribute of an inode.
    pub(crate) async fn acl(&self, ino: Ino, name: &[u8]) -> FsResult<Option<Acl>> {
        let value = self.kv.get(Keyspace::Xattr, &keys::xattr(ino, name)).await.map_err(errno)?;
        value.map(|value| Acl::parse(value.as_ref())).transpose()
    }
}

//! Permission checks, from the caller's credentials.

use crate::acl::{Acl, XATTR_ACCESS};
use crate::error::errno;
use crate::keys;
use crate::record::InodeRecord;
use crate::service::Mds;
use glint_kv::{Keyspace, Kv};
use glint_proto::{Cred, Errno, FsResult, Ino};

/// Permission to read.
pub(crate) const READ: u32 = 4;
/// Permission to write.
pub(crate) const WRITE: u32 = 2;
/// Permission to execute, or to search a directory.
pub(crate) const EXEC: u32 = 1;

fn mode_permits(record: &InodeRecord, cred: &Cred, want: u32) -> bool {
    let attr = &record.attr;
    let bits = if cred.uid == attr.uid {
        attr.mode >> 6
    } else if cred.is_member(attr.gid) {
        attr.mode >> 3
    } else {
        attr.mode
    };
    bits & want == want
}

impl<K: Kv> Mds<K> {
    /// EACCES unless `cred` may do all of `want` to the inode.
    pub(crate) async fn permit(
        &self,
        record: &InodeRecord,
        cred: &Cred,
        want: u32,
    ) -> FsResult<()> {
        if cred.is_superuser() {
            // Execution needs some x bit, of files; directories are searchable.
            let runnable = record.attr.is_dir() || record.attr.mode & 0o111 != 0;
            return if want & EXEC == 0 || runnable { Ok(()) } else { Err(Errno::EACCES) };
        }
        let permitted = match self.access_acl(record).await? {
            Some(acl) => acl.permits(cred, record.attr.uid, record.attr.gid, want),
            None => mode_permits(record, cred, want),
        };
        if permitted { Ok(()) } else { Err(Errno::EACCES) }
    }

    async fn access_acl(&self, record: &InodeRecord) -> FsResult<Option<Acl>> {
        if !record.has_acl {
            return Ok(None);
        }
        self.acl(record.attr.ino, XATTR_ACCESS).await
    }

    /// An ACL attribute of an inode.
    pub(crate) async fn acl(&self, ino: Ino, name: &[u8]) -> FsResult<Option<Acl>> {
        let value = self.kv.get(Keyspace::Xattr, &keys::xattr(ino, name)).await.map_err(errno)?;
        value.map(|value| Acl::parse(value.as_ref())).transpose()
    }
}

/// EPERM unless `cred` owns the inode.
pub(crate) fn permit_owner(record: &InodeRecord, cred: &Cred) -> FsResult<()> {
    if cred.is_superuser() || cred.uid == record.attr.uid { Ok(()) } else { Err(Errno::EPERM) }
}

/// EPERM if the directory is sticky and `cred` owns neither it nor the entry.
pub(crate) fn permit_sticky(
    directory: &InodeRecord,
    entry: &InodeRecord,
    cred: &Cred,
) -> FsResult<()> {
    let restricted = directory.attr.mode & 0o1000 != 0
        && !cred.is_superuser()
        && cred.uid != directory.attr.uid
        && cred.uid != entry.attr.uid;
    if restricted { Err(Errno::EPERM) } else { Ok(()) }
}

//! Extended attributes, and with them POSIX ACLs.

use crate::acl::{Acl, XATTR_ACCESS, XATTR_DEFAULT};
use crate::error::errno;
use crate::keys;
use crate::permission::permit_owner;
use crate::record::InodeRecord;
use crate::service::{Context, Mds};
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::limits::{XATTR_LIST_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use glint_proto::lock::Bits;
use glint_proto::{Errno, FsResult, Ino, MdsReply, XattrFlags};

impl<K: Kv> Mds<K> {
    pub(crate) async fn getxattr(&self, ino: Ino, name: &[u8]) -> FsResult<MdsReply> {
        let record = self.inode(ino).await?;
        if !record.has_xattr {
            return Err(Errno::ENODATA);
        }
        let value = self.kv.get(Keyspace::Xattr, &keys::xattr(ino, name)).await.map_err(errno)?;
        Ok(MdsReply::Bytes(value.ok_or(Errno::ENODATA)?.as_ref().to_vec()))
    }

    pub(crate) async fn listxattr(&self, ino: Ino) -> FsResult<MdsReply> {
        let record = self.inode(ino).await?;
        let mut names = Vec::new();
        if record.has_xattr {
            for (key, _) in self.scan_inode(Keyspace::Xattr, ino, usize::MAX).await? {
                names.extend_from_slice(&key[8..]);
                names.push(0);
            }
        }
        if names.len() > XATTR_LIST_BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        Ok(MdsReply::Bytes(names))
    }

    pub(crate) async fn setxattr(
        &self,
        context: &Context<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> FsResult<MdsReply> {
        if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
            return Err(Errno::ERANGE);
        }
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        let _held = self.lock_attributes(context, ino).await;
        let mut record = self.inode(ino).await?;
        permit_xattr(&record, context, name)?;
        self.need_space(context)?;
        self.claim(context, ino, Bits::ATTR)?;
        let key = keys::xattr(ino, name);
        let old = self.kv.get(Keyspace::Xattr, &key).await.map_err(errno)?;
        if flags.create && old.is_some() {
            return Err(Errno::EEXIST);
        }
        if flags.replace && old.is_none() {
            return Err(Errno::ENODATA);
        }
        let mut batch = Batch::new();
        record.has_xattr = true;
        let stored = match name {
            XATTR_ACCESS => self.set_access_acl(&mut record, value, flags)?,
            XATTR_DEFAULT if record.attr.is_dir() => {
                record.has_default_acl = true;
                Some(Acl::parse(value)?.encode())
            }
            XATTR_DEFAULT => return Err(Errno::EACCES),
            _ => Some(value.to_vec()),
        };
        match stored {
            Some(value) => batch.put(Keyspace::Xattr, &key, &value),
            None => batch.delete(Keyspace::Xattr, &key),
        }
        record.attr.ctime = context.now;
        self.put_inode(&mut batch, &record);
        self.commit(context, batch, MdsReply::Done).await
    }

    /// The mode follows the list; a list that says no more than the mode is not kept.
    fn set_access_acl(
        &self,
        record: &mut InodeRecord,
        value: &[u8],
        flags: XattrFlags,
    ) -> FsResult<Option<Vec<u8>>> {
        let acl = Acl::parse(value)?;
        record.attr.mode = (record.attr.mode & !0o777) | acl.mode_bits();
        if flags.kill_sgid {
            record.attr.mode &= !0o2000;
        }
        record.has_acl = !acl.is_trivial();
        Ok(record.has_acl.then(|| acl.encode()))
    }

    pub(crate) async fn removexattr(
        &self,
        context: &Context<'_>,
        ino: Ino,
        name: &[u8],
    ) -> FsResult<MdsReply> {
        let _held = self.lock_attributes(context, ino).await;
        let mut record = self.inode(ino).await?;
        permit_xattr(&record, context, name)?;
        let key = keys::xattr(ino, name);
        if self.kv.get(Keyspace::Xattr, &key).await.map_err(errno)?.is_none() {
            return Err(Errno::ENODATA);
        }
        self.claim(context, ino, Bits::ATTR)?;
        match name {
            XATTR_ACCESS => record.has_acl = false,
            XATTR_DEFAULT => record.has_default_acl = false,
            _ => {}
        }
        let mut batch = Batch::new();
        batch.delete(Keyspace::Xattr, &key);
        record.attr.ctime = context.now;
        self.put_inode(&mut batch, &record);
        self.commit(context, batch, MdsReply::Done).await
    }
}

/// Who may change which attribute, as xattr(7) says. Write permission for `user.`
/// is checked by the kernel, which knows how the file was reached.
fn permit_xattr(record: &InodeRecord, context: &Context<'_>, name: &[u8]) -> FsResult<()> {
    let superuser = context.cred.is_superuser();
    if name.starts_with(b"system.posix_acl_") {
        return permit_owner(record, context.cred);
    }
    if name.starts_with(b"user.") {
        let plain = record.attr.is_file() || record.attr.is_dir();
        return if plain { Ok(()) } else { Err(Errno::EPERM) };
    }
    let privileged = name.starts_with(b"trusted.") || name.starts_with(b"security.");
    match (privileged, superuser) {
        (true, true) => Ok(()),
        (true, false) => Err(Errno::EPERM),
        (false, _) => Err(Errno::EOPNOTSUPP),
    }
}

//! Extended attributes, and with them POSIX ACLs.
//!
//! Invariants:
//! - An inode has no more attributes than one list names and one batch deletes: the names and the
//!   number are bounded, and so are the bytes of all values (ENOSPC beyond, as in ext4 and xfs).
//! - Never more than a page of attributes is in memory at once. An inode from before there were
//!   limits is read, and emptied, page by page.

use crate::error::{OpResult, errno};
use crate::service::{Context, Mds};
use crate::store::keys;
use crate::store::record::InodeRecord;
use glint_kv::{Batch, Keyspace, Kv, Pair};
use glint_proto::limits::{
    XATTR_COUNT_MAX, XATTR_LIST_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
    XATTR_VALUES_BYTES_MAX,
};
use glint_proto::lock::Bits;
use glint_proto::posix::acl::{Acl, XATTR_ACCESS, XATTR_DEFAULT};
use glint_proto::posix::{WRITE, XATTR_CAPABILITY, permit_owner};
use glint_proto::{Errno, FsResult, Ino, MdsReply, XattrFlags};

/// Attributes that are read at once: a page is at most 1 MiB.
const XATTR_PAGE: usize = 16;

impl<K: Kv> Mds<K> {
    pub(crate) async fn getxattr(&self, ino: Ino, name: &[u8]) -> FsResult<MdsReply> {
        let record = self.inode(ino).await?;
        if record.attr.has_no_xattrs {
            return Err(Errno::ENODATA);
        }
        let value = self.kv.get(Keyspace::Xattr, &keys::xattr(ino, name)).await.map_err(errno)?;
        Ok(MdsReply::Bytes(value.ok_or(Errno::ENODATA)?.as_ref().to_vec()))
    }

    pub(crate) async fn listxattr(&self, ino: Ino) -> FsResult<MdsReply> {
        let record = self.inode(ino).await?;
        let mut names = Vec::new();
        let mut from = ino.key().to_vec();
        loop {
            let page = self.xattr_page(&record, &mut from).await?;
            if page.is_empty() {
                break;
            }
            for (key, _) in page {
                names.extend_from_slice(&key[8..]);
                names.push(0);
            }
            if names.len() > XATTR_LIST_BYTES_MAX {
                return Err(Errno::E2BIG);
            }
        }
        Ok(MdsReply::Bytes(names))
    }

    /// Attributes of an inode from a key on, which then is the one that follows them. Empty after
    /// the last one.
    async fn xattr_page(&self, record: &InodeRecord, from: &mut Vec<u8>) -> FsResult<Vec<Pair>> {
        if record.attr.has_no_xattrs {
            return Ok(Vec::new());
        }
        let to = keys::after(record.attr.ino);
        let page = self.kv.scan(Keyspace::Xattr, from, &to, XATTR_PAGE).await.map_err(errno)?;
        if let Some((last, _)) = page.last() {
            *from = [last.as_slice(), &[0]].concat();
        }
        Ok(page)
    }

    /// Whether an inode may get, or change, the attribute under `key`: to a value of so many bytes.
    async fn permit_usage(
        &self,
        record: &InodeRecord,
        key: &[u8],
        value_bytes: usize,
    ) -> FsResult<()> {
        let (mut count, mut names, mut values) = (1, key.len() - 8 + 1, value_bytes);
        let mut from = record.attr.ino.key().to_vec();
        loop {
            let page = self.xattr_page(record, &mut from).await?;
            if page.is_empty() {
                return Ok(());
            }
            for (other, value) in page.iter().filter(|(other, _)| other != key) {
                count += 1;
                names += other.len() - 8 + 1;
                values += value.len();
            }
            if count > XATTR_COUNT_MAX
                || names > XATTR_LIST_BYTES_MAX
                || values > XATTR_VALUES_BYTES_MAX
            {
                return Err(Errno::ENOSPC);
            }
        }
    }

    /// Puts the removal of all attributes of an inode into a batch.
    pub(crate) async fn delete_xattrs(
        &self,
        batch: &mut Batch,
        record: &InodeRecord,
    ) -> FsResult<()> {
        let mut from = record.attr.ino.key().to_vec();
        loop {
            let page = self.xattr_page(record, &mut from).await?;
            if page.is_empty() {
                return Ok(());
            }
            page.iter().for_each(|(key, _)| batch.delete(Keyspace::Xattr, key));
        }
    }

    /// Whether an inode has more attributes than one batch deletes: it is from before there were
    /// limits.
    pub(crate) async fn has_excess_xattrs(&self, record: &InodeRecord) -> FsResult<bool> {
        let (mut count, mut from) = (0, record.attr.ino.key().to_vec());
        while count <= XATTR_COUNT_MAX {
            match self.xattr_page(record, &mut from).await?.len() {
                0 => break,
                more => count += more,
            }
        }
        Ok(count > XATTR_COUNT_MAX)
    }

    /// Deletes, in a batch for each page, what is more than one batch deletes. For an inode without
    /// names that nobody has open.
    pub(crate) async fn delete_excess_xattrs(&self, record: &InodeRecord) -> FsResult<()> {
        while self.has_excess_xattrs(record).await? {
            let mut from = record.attr.ino.key().to_vec();
            let mut batch = Batch::new();
            let page = self.xattr_page(record, &mut from).await?;
            page.iter().for_each(|(key, _)| batch.delete(Keyspace::Xattr, key));
            self.kv.commit(batch, &[]).await.map_err(errno)?;
        }
        Ok(())
    }

    pub(crate) async fn setxattr(
        &self,
        context: &Context<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> OpResult {
        if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
            return Err(Errno::ERANGE.into());
        }
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Errno::E2BIG.into());
        }
        let _held = self.lock_attributes(context, ino).await;
        let mut record = self.inode(ino).await?;
        permit_xattr(&record, context, name)?;
        self.need_space(context)?;
        if name == XATTR_CAPABILITY {
            self.claim_from_all(context, ino, Bits::PLAIN)?;
        }
        self.claim(context, ino, Bits::ATTR)?;
        let key = keys::xattr(ino, name);
        let old = self.kv.get(Keyspace::Xattr, &key).await.map_err(errno)?;
        if flags.create && old.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if flags.replace && old.is_none() {
            return Err(Errno::ENODATA.into());
        }
        self.permit_usage(&record, &key, value.len()).await?;
        let mut batch = Batch::new();
        let stored = match name {
            XATTR_ACCESS => self.set_access_acl(&mut record, value, flags)?,
            XATTR_DEFAULT if record.attr.is_dir() => {
                record.has_default_acl = true;
                Some(Acl::parse(value)?.encode())
            }
            XATTR_DEFAULT => return Err(Errno::EACCES.into()),
            _ => Some(value.to_vec()),
        };
        match stored {
            Some(value) => {
                record.attr.has_no_xattrs = false;
                batch.put(Keyspace::Xattr, &key, &value);
            }
            None => batch.delete(Keyspace::Xattr, &key),
        }
        record.attr.change_at(context.now);
        self.put_inode(&mut batch, &record);
        self.commit(context, batch, MdsReply::Attr(record.attr)).await
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
    ) -> OpResult {
        let _held = self.lock_attributes(context, ino).await;
        let mut record = self.inode(ino).await?;
        match name {
            XATTR_CAPABILITY => self.permit_capability_removal(&record, context).await?,
            _ => permit_xattr(&record, context, name)?,
        }
        let key = keys::xattr(ino, name);
        if self.kv.get(Keyspace::Xattr, &key).await.map_err(errno)?.is_none() {
            return Err(Errno::ENODATA.into());
        }
        self.claim(context, ino, Bits::ATTR)?;
        match name {
            XATTR_ACCESS => record.has_acl = false,
            XATTR_DEFAULT => record.has_default_acl = false,
            _ => {}
        }
        let mut batch = Batch::new();
        batch.delete(Keyspace::Xattr, &key);
        record.attr.change_at(context.now);
        self.put_inode(&mut batch, &record);
        self.commit(context, batch, MdsReply::Attr(record.attr)).await
    }
}

impl<K: Kv> Mds<K> {
    /// EPERM unless the caller may remove file capabilities: its owner, who may change the owner,
    /// and those who may write the file, or have it open to be written. The kernel takes them from a
    /// file as the caller of chown(2), truncate(2) or fallocate(2); a program that removes them it
    /// has asked for CAP_SETFCAP.
    async fn permit_capability_removal(
        &self,
        record: &InodeRecord,
        context: &Context<'_>,
    ) -> FsResult<()> {
        let may_write = permit_owner(&record.attr, context.cred).is_ok()
            || self.opens.is_writer(context.client, record.attr.ino)
            || self.permit(record, context.cred, WRITE).await.is_ok();
        if may_write { Ok(()) } else { Err(Errno::EPERM) }
    }
}

/// Permits changes of an attribute as xattr(7) says. Write permission for `user.` is checked by the
/// kernel, which knows how the file was reached.
fn permit_xattr(record: &InodeRecord, context: &Context<'_>, name: &[u8]) -> FsResult<()> {
    let superuser = context.cred.is_superuser();
    if name.starts_with(b"system.posix_acl_") {
        return permit_owner(&record.attr, context.cred);
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

//! setattr (chmod, chown, truncate, utimens), atime, layouts.

use crate::acl::XATTR_ACCESS;
use crate::error::errno;
use crate::keys;
use crate::locks::{Held, Key, Want};
use crate::permission::{WRITE, permit_owner};
use crate::record::InodeRecord;
use crate::service::{Context, Mds};
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::limits::FILE_BYTES_MAX;
use glint_proto::lock::Bits;
use glint_proto::{Attr, Errno, FsResult, Ino, Layout, MdsReply, Placement, SetAttr, SetTime};

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const GROUP_EXEC: u32 = 0o010;
pub(crate) const XATTR_CAPABILITY: &[u8] = b"security.capability";

impl<K: Kv> Mds<K> {
    /// Locks the attributes of an inode, of whichever type.
    pub(crate) async fn lock_attributes(&self, context: &Context<'_>, ino: Ino) -> Held<'_> {
        self.lock(context, &[Want::exclusive(Key::Dir(ino)), Want::exclusive(Key::Inode(ino))])
            .await
    }

    /// Gives the client the attributes of an inode, unless another one is writing it: then
    /// they change without word.
    pub(crate) fn grant_attributes(&self, context: &Context<'_>, ino: Ino) {
        if !self.opens.has_other_writer(context.client, ino) {
            self.grant(context, ino, Bits::ATTR | Bits::OPEN);
        }
    }

    pub(crate) async fn setattr(
        &self,
        context: &Context<'_>,
        ino: Ino,
        set: &SetAttr,
    ) -> FsResult<MdsReply> {
        let _held = self.lock_attributes(context, ino).await;
        let mut record = self.inode(ino).await?;
        self.permit_setattr(context, &record, set).await?;
        if *set
            == (SetAttr {
                kill_suidgid: set.kill_suidgid,
                kill_capability: true,
                ..SetAttr::default()
            })
            && self.is_plain(&record).await?
        {
            self.grant(context, ino, Bits::PLAIN);
            self.grant_attributes(context, ino);
            return Ok(MdsReply::Attr(record.attr));
        }
        if let Some(mode) = set.mode
            && (Attr { mode: (record.attr.mode & !0o7777) | mode, ..record.attr.clone() })
                .has_set_id()
        {
            self.claim_from_all(context, ino, Bits::PLAIN)?;
        }
        self.claim(context, ino, Bits::ATTR)?;
        self.grant_attributes(context, ino);
        let mut batch = Batch::new();
        if set.uid.is_some() || set.gid.is_some() {
            record.attr.uid = set.uid.unwrap_or(record.attr.uid);
            record.attr.gid = set.gid.unwrap_or(record.attr.gid);
            if !record.attr.is_dir() {
                kill_set_id(&mut record);
                kill_capability(&record, &mut batch);
            }
        }
        if let Some(mode) = set.mode {
            self.chmod(context, &mut record, mode, &mut batch).await?;
        }
        if set.kill_suidgid {
            kill_set_id(&mut record);
        }
        if set.kill_capability || set.size.is_some() {
            kill_capability(&record, &mut batch);
        }
        if let Some(size) = set.size {
            if size > record.attr.size {
                self.need_space(context)?;
            }
            // The caller now changes the objects; until its writers close they
            // are what counts, so a crash in between leaves the old size.
            record.attr.size = size;
            record.attr.size_on_ost = true;
            record.attr.mtime = context.now;
            self.opens.resized(context.client, ino);
        }
        let time = |set: SetTime| match set {
            SetTime::Now => context.now,
            SetTime::At(time) => time,
        };
        if let Some(atime) = set.atime {
            record.attr.atime = time(atime);
        }
        if let Some(mtime) = set.mtime {
            record.attr.mtime = time(mtime);
            self.opens.dated(context.client, ino, record.attr.mtime);
        }
        record.attr.ctime = set.ctime.unwrap_or(context.now);
        if set.kill_capability && !record.attr.has_set_id() {
            self.grant(context, ino, Bits::PLAIN);
        }
        self.put_inode(&mut batch, &record);
        self.commit(context, batch, MdsReply::Attr(record.attr)).await
    }

    /// Whether a write has nothing to take from a file.
    pub(crate) async fn is_plain(&self, record: &InodeRecord) -> FsResult<bool> {
        if !record.attr.is_file() || record.attr.has_set_id() {
            return Ok(false);
        }
        let key = keys::xattr(record.attr.ino, XATTR_CAPABILITY);
        let capable =
            record.has_xattr && self.kv.get(Keyspace::Xattr, &key).await.map_err(errno)?.is_some();
        Ok(!capable)
    }

    /// chmod(2), chown(2), truncate(2) and utimensat(2) on who may do what.
    async fn permit_setattr(
        &self,
        context: &Context<'_>,
        record: &InodeRecord,
        set: &SetAttr,
    ) -> FsResult<()> {
        let cred = context.cred;
        if set.mode.is_some() {
            permit_owner(record, cred)?;
        }
        if let Some(uid) = set.uid
            && !cred.is_superuser()
            && (uid != record.attr.uid || cred.uid != uid)
        {
            return Err(Errno::EPERM);
        }
        if let Some(gid) = set.gid
            && !cred.is_superuser()
            && (cred.uid != record.attr.uid || (gid != record.attr.gid && !cred.is_member(gid)))
        {
            return Err(Errno::EPERM);
        }
        if let Some(size) = set.size {
            match record.attr.file_type() {
                glint_proto::FileType::Regular => {}
                glint_proto::FileType::Directory => return Err(Errno::EISDIR),
                _ => return Err(Errno::EINVAL),
            }
            if size > FILE_BYTES_MAX {
                return Err(Errno::EFBIG);
            }
            // Through an open descriptor the right was checked when it was opened.
            if !self.opens.is_writer(context.client, record.attr.ino) {
                self.permit(record, cred, WRITE).await?;
            }
        }
        let explicit = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
        if explicit(set.atime) || explicit(set.mtime) {
            permit_owner(record, cred)?;
        } else if (set.atime.is_some() || set.mtime.is_some())
            && set.size.is_none()
            && permit_owner(record, cred).is_err()
        {
            self.permit(record, cred, WRITE).await?;
        }
        Ok(())
    }

    async fn chmod(
        &self,
        context: &Context<'_>,
        record: &mut InodeRecord,
        mode: u32,
        batch: &mut Batch,
    ) -> FsResult<()> {
        let mut mode = mode & 0o7777;
        let cred = context.cred;
        let foreign_group =
            !cred.is_superuser() && cred.groups.is_some() && !cred.is_member(record.attr.gid);
        if foreign_group && !record.attr.is_dir() {
            mode &= !SETGID;
        }
        record.attr.mode = (record.attr.mode & !0o7777) | mode;
        if record.has_acl
            && let Some(mut acl) = self.acl(record.attr.ino, XATTR_ACCESS).await?
        {
            acl.chmod(mode);
            let key = keys::xattr(record.attr.ino, XATTR_ACCESS);
            batch.put(Keyspace::Xattr, &key, &acl.encode());
        }
        Ok(())
    }

    /// The inode was read: relatime, as mount(8) describes it.
    pub(crate) async fn touch(&self, context: &Context<'_>, ino: Ino) -> FsResult<MdsReply> {
        let _held = self.lock_attributes(context, ino).await;
        let mut record = self.inode(ino).await?;
        if !record.attr.needs_atime(context.now) {
            return Ok(MdsReply::Attr(record.attr));
        }
        self.claim(context, ino, Bits::ATTR)?;
        record.attr.atime = context.now;
        let mut batch = Batch::new();
        self.put_inode(&mut batch, &record);
        self.commit(context, batch, MdsReply::Attr(record.attr)).await
    }

    pub(crate) async fn set_layout(
        &self,
        context: &Context<'_>,
        ino: Ino,
        mut layout: Layout,
    ) -> FsResult<MdsReply> {
        let osts = match context.given() {
            Some((_, placement)) if placement.osts > 0 => placement.osts,
            _ => self.osts().max(1),
        };
        if !layout.is_valid() || layout.stripe_count > osts || osts > self.osts().max(1) {
            return Err(Errno::EINVAL);
        }
        let _held = self.lock_attributes(context, ino).await;
        let mut record = self.inode(ino).await?;
        permit_owner(&record, context.cred)?;
        match record.attr.file_type() {
            glint_proto::FileType::Directory => record.layout_set = true,
            // Data that is written stays where it is.
            glint_proto::FileType::Regular if record.has_objects => return Err(Errno::EEXIST),
            glint_proto::FileType::Regular => {
                layout.stripe_count =
                    if layout.stripe_count == 0 { osts } else { layout.stripe_count };
                match context.given() {
                    Some((_, Placement { first, osts: 1.. })) if first < osts => {
                        (layout.first_ost, layout.osts) = (first, osts);
                    }
                    _ => self.with_absent(|absent| layout.place(ino, osts, absent)),
                }
            }
            _ => return Err(Errno::EINVAL),
        }
        self.claim(context, ino, Bits::ATTR)?;
        record.attr.layout = layout;
        record.attr.ctime = context.now;
        let mut batch = Batch::new();
        self.put_inode(&mut batch, &record);
        self.commit(context, batch, MdsReply::Attr(record.attr)).await
    }
}

/// What a write by another user, a truncation or a change of owner takes from an executable:
/// set-user-id and set-group-id (chown(2)).
pub(crate) fn kill_set_id(record: &mut InodeRecord) {
    record.attr.mode &= !SETUID;
    if record.attr.mode & GROUP_EXEC != 0 {
        record.attr.mode &= !SETGID;
    }
}

/// What any change of data takes from it: capabilities(7).
pub(crate) fn kill_capability(record: &InodeRecord, batch: &mut Batch) {
    if record.has_xattr {
        batch.delete(Keyspace::Xattr, &keys::xattr(record.attr.ino, XATTR_CAPABILITY));
    }
}

//! setattr (chmod, chown, truncate, utimens), atime, layouts.

use crate::error::{OpResult, Stop, errno};
use crate::locking::namespace_locks::{Held, Key, Want};
use crate::service::{Context, Mds};
use crate::store::keys;
use crate::store::record::InodeRecord;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::lock::Bits;
use glint_proto::posix::acl::XATTR_ACCESS;
use glint_proto::posix::{
    Needs, WRITE, XATTR_CAPABILITY, apply_setattr, kill_set_id, permit_owner, permit_setattr,
};
use glint_proto::{Attr, Errno, FsResult, Ino, Layout, MdsReply, Placement, SetAttr};

impl<K: Kv> Mds<K> {
    /// Locks the attributes of an inode, of whichever type.
    pub(crate) async fn lock_attributes(&self, context: &Context<'_>, ino: Ino) -> Held<'_> {
        self.lock(context, &[Want::exclusive(Key::Dir(ino)), Want::exclusive(Key::Inode(ino))])
            .await
    }

    /// Gives the client the attributes of an inode, unless another one is writing it: then
    /// they change without word. If nobody else may write it either, the client is given that, too.
    pub(crate) fn grant_attributes(&self, context: &Context<'_>, ino: Ino) {
        if !self.opens.has_other_writer(context.client, ino) {
            self.grant(context, ino, Bits::ATTR | Bits::OPEN | Bits::UNWRITTEN);
        }
    }

    pub(crate) async fn setattr(&self, context: &Context<'_>, ino: Ino, set: &SetAttr) -> OpResult {
        let _held = self.lock_attributes(context, ino).await;
        let mut record = self.inode(ino).await?;
        self.check_setattr(context, &record, set).await?;
        if self.has_nothing_to_take(context, &record, set).await? {
            if !record.attr.has_set_id() {
                self.grant(context, ino, Bits::PLAIN);
            }
            self.grant_attributes(context, ino);
            self.withhold_uncertain(context, &record.attr);
            return Ok(MdsReply::Attr(record.attr));
        }
        if let Some(mode) = set.mode
            && (Attr { mode: (record.attr.mode & !0o7777) | mode, ..record.attr.clone() })
                .has_set_id()
        {
            self.claim_from_all(context, ino, Bits::PLAIN)?;
        }
        // Whose size is set is cut or extended next, under a lock to write.
        let unwritten = if set.size.is_some() { Bits::UNWRITTEN } else { Bits::NONE };
        self.claim(context, ino, Bits::ATTR | unwritten)?;
        self.grant_attributes(context, ino);
        self.withhold_uncertain(context, &record.attr);
        if set.size.is_some_and(|size| size > record.attr.size) {
            self.need_space(context)?;
        }
        let mut batch = Batch::new();
        let effects = apply_setattr(&mut record.attr, set, context.cred, context.now);
        if effects.kills_capability {
            kill_capability(&record, &mut batch);
        }
        if let Some(permissions) = effects.permissions {
            self.chmod_acl(&record, permissions, &mut batch).await?;
        }
        if set.size.is_some() {
            self.opens.resized(context.client, ino);
        }
        if set.mtime.is_some() {
            self.opens.dated(context.client, ino, record.attr.mtime);
        }
        if set.kill_capability && !record.attr.has_set_id() {
            self.grant(context, ino, Bits::PLAIN);
        }
        self.put_inode(&mut batch, &record);
        self.commit(context, batch, MdsReply::Attr(record.attr)).await
    }

    /// Whether no write has anything to take from a file.
    pub(crate) async fn is_plain(&self, record: &InodeRecord) -> FsResult<bool> {
        let may_have = !record.attr.is_file() || record.attr.has_set_id();
        Ok(!may_have && !self.is_capable(record).await?)
    }

    /// Whether a file has capabilities.
    async fn is_capable(&self, record: &InodeRecord) -> FsResult<bool> {
        if record.attr.has_no_xattrs {
            return Ok(false);
        }
        let key = keys::xattr(record.attr.ino, XATTR_CAPABILITY);
        Ok(self.kv.get(Keyspace::Xattr, &key).await.map_err(errno)?.is_some())
    }

    /// Whether a setattr is that of a write, and the file has nothing that it takes.
    async fn has_nothing_to_take(
        &self,
        context: &Context<'_>,
        record: &InodeRecord,
        set: &SetAttr,
    ) -> FsResult<bool> {
        let kill_suidgid = set.kill_suidgid;
        let of_write = SetAttr { kill_suidgid, kill_capability: true, ..SetAttr::default() };
        if *set != of_write || !record.attr.is_file() || self.is_capable(record).await? {
            return Ok(false);
        }
        let mut left = record.attr.clone();
        if kill_suidgid {
            kill_set_id(&mut left, context.cred)?;
        }
        Ok(left.mode == record.attr.mode)
    }

    /// chmod(2), chown(2), truncate(2) and utimensat(2) on who may do what.
    async fn check_setattr(
        &self,
        context: &Context<'_>,
        record: &InodeRecord,
        set: &SetAttr,
    ) -> FsResult<()> {
        let is_writer = || self.opens.is_writer(context.client, record.attr.ino);
        match permit_setattr(&record.attr, context.cred, set)? {
            Needs::Nothing => Ok(()),
            Needs::WriteOrOpen if is_writer() => Ok(()),
            Needs::WriteOrOpen | Needs::Write => self.permit(record, context.cred, WRITE).await,
        }
    }

    /// Changes the access ACL as chmod(2) does.
    async fn chmod_acl(
        &self,
        record: &InodeRecord,
        permissions: u32,
        batch: &mut Batch,
    ) -> FsResult<()> {
        if record.has_acl
            && let Some(mut acl) = self.acl(record.attr.ino, XATTR_ACCESS).await?
        {
            acl.chmod(permissions);
            let key = keys::xattr(record.attr.ino, XATTR_ACCESS);
            batch.put(Keyspace::Xattr, &key, &acl.encode());
        }
        Ok(())
    }

    /// Notes that an inode was read: relatime, as mount(8) describes it. Waits for no other client,
    /// because it travels with changes that others may wait for. So the access time is left alone if
    /// the inode has changed since it was read, perhaps by who set that time, or if another client
    /// changes it by itself; and those who have cached the attributes are told, but not waited for.
    pub(crate) async fn touch(&self, context: &Context<'_>, ino: Ino) -> OpResult {
        let _held = self.lock_attributes(context, ino).await;
        let Some(mut record) = self.find_inode(ino).await? else { return Ok(MdsReply::Done) };
        if !self.is_seen(context, &record) {
            return Ok(MdsReply::Done);
        }
        let has_changed = context.now < record.attr.ctime;
        if has_changed || !record.attr.needs_atime(context.now) {
            return Ok(MdsReply::Attr(record.attr));
        }
        let is_cached = match self.claim(context, ino, Bits::ATTR) {
            Ok(()) => false,
            Err(Stop::Conflict(_)) => true,
            Err(stop) => return Err(stop),
        };
        record.attr.atime = context.now;
        let mut batch = Batch::new();
        self.put_inode(&mut batch, &record);
        let reply = self.commit(context, batch, MdsReply::Attr(record.attr)).await;
        if is_cached {
            self.client_locks.recall(context.client, ino, Bits::ATTR);
        }
        reply
    }

    pub(crate) async fn set_layout(
        &self,
        context: &Context<'_>,
        ino: Ino,
        mut layout: Layout,
    ) -> OpResult {
        if !layout.is_valid() {
            return Err(Errno::EINVAL.into());
        }
        let _held = self.lock_attributes(context, ino).await;
        let mut record = self.inode(ino).await?;
        // Before chains are made: not everybody has some made.
        permit_owner(&record.attr, context.cred)?;
        let there_are = match layout.replicas {
            0 | 1 => self.osts().max(1),
            copies => self.make_chains(copies).await.map_err(|error| {
                tracing::warn!(copies, %error, "a layout with so many copies is refused");
                error.errno()
            })?,
        };
        let osts = match context.given() {
            Some((_, placement)) if placement.osts > 0 => placement.osts,
            _ => there_are,
        };
        if layout.stripe_count > osts || osts > there_are {
            return Err(Errno::EINVAL.into());
        }
        match record.attr.file_type() {
            glint_proto::FileType::Directory => record.layout_set = true,
            // Data that is written stays where it is.
            glint_proto::FileType::Regular if record.has_objects => {
                return Err(Errno::EEXIST.into());
            }
            glint_proto::FileType::Regular => {
                let is_any_count = layout.stripe_count == 0;
                layout.stripe_count = if is_any_count { osts } else { layout.stripe_count };
                match context.given() {
                    Some((_, Placement { first, osts: 1.. })) if first < osts => {
                        (layout.first_ost, layout.osts) = (first, osts);
                    }
                    _ => {
                        let asked = layout.stripe_count;
                        self.with_targets(layout.replicas, |_, avoided| {
                            layout.place(ino, osts, avoided);
                        })?;
                        if layout.stripe_count < asked && !is_any_count {
                            return Err(Errno::ENOSPC.into());
                        }
                    }
                }
            }
            _ => return Err(Errno::EINVAL.into()),
        }
        self.claim(context, ino, Bits::ATTR)?;
        if record.attr.is_file() {
            layout.number_objects(record.attr.layout.first_object);
        } else {
            layout.first_object = 0;
        }
        record.attr.layout = layout;
        record.attr.change_at(context.now);
        let mut batch = Batch::new();
        self.put_inode(&mut batch, &record);
        self.commit(context, batch, MdsReply::Attr(record.attr)).await
    }
}

/// Removes the file capabilities, as any change of data does: capabilities(7).
pub(crate) fn kill_capability(record: &InodeRecord, batch: &mut Batch) {
    if !record.attr.has_no_xattrs {
        batch.delete(Keyspace::Xattr, &keys::xattr(record.attr.ino, XATTR_CAPABILITY));
    }
}

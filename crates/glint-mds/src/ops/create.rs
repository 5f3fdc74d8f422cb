//! create+open, mknod, mkdir, symlink, and files without a name (O_TMPFILE).

use crate::error::OpResult;
use crate::locking::namespace_locks::{Key, Want};
use crate::service::{Context, Mds};
use crate::store::keys::{self, Orphan};
use crate::store::record::InodeRecord;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::lock::Bits;
use glint_proto::message::check_name;
use glint_proto::posix::acl::{Acl, XATTR_ACCESS, XATTR_DEFAULT};
use glint_proto::posix::{EXEC, New, check_new, entry_added, may_add_entry, new_inode};
use glint_proto::{
    Avoided, Errno, FileType, FsResult, Ino, Layout, MdsReply, MdsRequest, Placement,
};
use std::sync::atomic::Ordering;

impl<K: Kv> Mds<K> {
    pub(crate) async fn create(&self, context: &Context<'_>, request: &MdsRequest<'_>) -> OpResult {
        let MdsRequest::Create { parent, name, mode, umask, rdev, target, open, exclusive } =
            *request
        else {
            return Err(Errno::EPROTO.into());
        };
        check_name(name)?;
        let kind = FileType::from_mode(mode).ok_or(Errno::EINVAL)?;
        let new = New { kind, mode, umask, rdev, target };
        check_new(&new, context.cred)?;
        let is_dir = kind == FileType::Directory;
        // A new directory changes its parent's link count; nothing else here
        // changes the parent in a way that another create could undo.
        let parent_lock =
            if is_dir { Want::parent(parent) } else { Want::shared(Key::Dir(parent)) };
        let name_lock = Want::exclusive(Key::Name(parent, self.cookie(name)));
        let _held = self.lock(context, &[parent_lock, name_lock]).await;

        let mut directory = self.directory(parent).await?;
        if let Some((ino, _)) = self.find_entry(parent, name).await? {
            self.permit(&directory, context.cred, EXEC).await?;
            return match open {
                Some(flags) if !exclusive => {
                    let answer = |attr| MdsReply::Opened { attr, created: false };
                    self.open(context, ino, flags, answer).await
                }
                _ => Err(Errno::EEXIST.into()),
            };
        }
        self.may_change_entries(&directory, context.cred).await?;
        self.need_space(context)?;
        self.claim(context, parent, Bits::NEGATIVE | Bits::ATTR)?;
        may_add_entry(&directory.attr, is_dir)?;

        let _number = self.lock_given(context).await;
        let mut batch = Batch::new();
        let mut record = self.new_record(context, &directory, &new, &mut batch).await?;
        record.attr.size_on_ost = open.is_some_and(|flags| flags.write);
        record.parent = parent;
        if is_dir {
            self.names.begin(record.attr.ino);
        }
        entry_added(&mut directory.attr, is_dir, context.now);
        self.put_entry(&mut batch, parent, name, record.attr.ino, kind);
        self.put_inode(&mut batch, &record);
        self.put_directory(context, &mut batch, &mut directory);
        let ino = record.attr.ino;
        let has_default_acl = record.has_default_acl;
        let attr = record.attr;
        // Nobody else knows it before the commit.
        // What comes with a batch may be changed by the rest of it.
        let plain = open.is_some() && !attr.has_set_id() && context.progress.is_none();
        let unplain = if plain { Bits::NONE } else { Bits::PLAIN };
        // Only a file has data that others might write.
        let dataless = if attr.is_file() { Bits::NONE } else { Bits::UNWRITTEN };
        self.grant(context, ino, Bits::SHARED & !(unplain | dataless));
        let reply = match open {
            Some(_) => MdsReply::Opened { attr, created: true },
            None => MdsReply::Attr(attr),
        };
        if is_dir && !has_default_acl {
            self.grant_delegation(context, ino);
        }
        if let (Some(flags), MdsReply::Opened { attr: made, .. }) = (open, &reply) {
            self.grant_data(context, made, flags.write);
        }
        let reply = self.commit(context, batch, reply).await?;
        match open {
            // The client has said what it has open.
            _ if context.is_replay() => {}
            Some(flags) if flags.write => self.opens.first_writer(context.client, ino, true),
            Some(_) => self.opens.add(context.client, ino, false),
            None => {}
        }
        self.inodes.fetch_add(1, Ordering::Relaxed);
        Ok(reply)
    }

    /// O_TMPFILE: an open inode that no directory names, until it is linked.
    pub(crate) async fn tmpfile(
        &self,
        context: &Context<'_>,
        parent: Ino,
        mode: u32,
        umask: u32,
    ) -> OpResult {
        let _held = self.lock(context, &[Want::shared(Key::Dir(parent))]).await;
        let directory = self.directory(parent).await?;
        self.may_change_entries(&directory, context.cred).await?;
        self.need_space(context)?;
        let _number = self.lock_given(context).await;
        let mut batch = Batch::new();
        let kind = FileType::Regular;
        let new = New { kind, mode, umask, rdev: 0, target: b"" };
        let mut record = self.new_record(context, &directory, &new, &mut batch).await?;
        record.attr.nlink = 0;
        record.parent = parent;
        record.attr.size_on_ost = true;
        self.put_inode(&mut batch, &record);
        let ino = record.attr.ino;
        let plain = if record.attr.has_set_id() { Bits::NONE } else { Bits::PLAIN };
        self.grant(context, ino, Bits::ATTR | plain);
        self.grant_data(context, &record.attr, true);
        batch.put(Keyspace::Orphan, &ino.key(), &Orphan::Open.value());
        context.begin()?;
        // Counted as open before it can be seen, or the reaper might take it.
        if !context.is_replay() {
            self.opens.first_writer(context.client, ino, true);
        }
        self.opens.unlink(ino);
        let reply = MdsReply::Opened { attr: record.attr, created: true };
        let reply = self.commit(context, batch, reply).await;
        match &reply {
            Ok(_) => {
                self.inodes.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => {
                self.opens.remove(context.client, ino, true, None);
            }
        }
        reply
    }

    /// The record of a new inode: owner, mode, layout and ACLs as its directory
    /// and its creator make them (open(2), acl(5)).
    async fn new_record(
        &self,
        context: &Context<'_>,
        directory: &InodeRecord,
        new: &New<'_>,
        batch: &mut Batch,
    ) -> FsResult<InodeRecord> {
        let is_dir = new.kind == FileType::Directory;
        let given = context.given();
        let ino = match given {
            Some(given) => {
                self.check_given(context, given, directory.attr.layout.replicas).await?;
                given.0
            }
            None => self.allocator.allocate(&self.kv, directory.attr.ino).await?,
        };
        context.changes(if is_dir { Key::Dir(ino) } else { Key::Inode(ino) });
        let default = match directory.has_default_acl && new.kind != FileType::Symlink {
            true => self.acl(directory.attr.ino, XATTR_DEFAULT).await?,
            false => None,
        };
        let inherit =
            |osts, avoided: Avoided<'_>| directory.attr.layout.inherit(ino, is_dir, osts, avoided);
        let layout = match given {
            Some((_, Placement { first, osts })) if osts > 0 => {
                match inherit(osts, Avoided::default()) {
                    layout if is_dir => layout,
                    layout => Layout { first_ost: first, ..layout },
                }
            }
            _ if is_dir => inherit(self.osts(), Avoided::default()),
            _ => self.with_targets(directory.attr.layout.replicas, inherit)?,
        };
        let of = (&directory.attr, default.as_ref());
        let made = new_inode((ino, layout), new, of, context.cred, context.now);
        let mut record = InodeRecord::of(made.attr);
        record.layout_set = is_dir && directory.layout_set;
        record.target = new.target.to_vec();
        let mut put_acl = |name: &[u8], acl: &Acl| {
            batch.put(Keyspace::Xattr, &keys::xattr(ino, name), &acl.encode());
            record.attr.has_no_xattrs = false;
        };
        if let Some(acl) = &made.acl {
            put_acl(XATTR_ACCESS, acl);
            record.has_acl = true;
        }
        if let Some(acl) = default.as_ref().filter(|_| is_dir) {
            put_acl(XATTR_DEFAULT, acl);
            record.has_default_acl = true;
        }
        Ok(record)
    }
}

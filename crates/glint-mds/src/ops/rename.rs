//! rename, with RENAME_NOREPLACE and RENAME_EXCHANGE.

use crate::error::OpResult;
use crate::locking::namespace_locks::{Key, Want};
use crate::service::{Context, Mds};
use crate::store::record::InodeRecord;
use glint_kv::{Batch, Kv};
use glint_proto::lock::Bits;
use glint_proto::message::check_name;
use glint_proto::posix::{Renaming, WRITE, may_rename, may_replace, renamed};
use glint_proto::{Errno, FsResult, Ino, MdsReply, RenameFlags, clock};

/// Directories deeper than this are refused as a loop.
const DEPTH_MAX: usize = 1 << 16;

impl<K: Kv> Mds<K> {
    pub(crate) async fn rename(
        &self,
        context: &Context<'_>,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        flags: RenameFlags,
    ) -> OpResult {
        if flags.exchange && flags.no_replace {
            return Err(Errno::EINVAL.into());
        }
        check_name(name)?;
        check_name(new_name)?;
        loop {
            // Which inodes take part must be known before the locks can be taken
            // in order; the names are read again under them.
            let source = self.find_entry(parent, name).await?.ok_or(Errno::ENOENT)?;
            let target = self.find_entry(new_parent, new_name).await?;
            let moves_directory = |entry: Option<(Ino, glint_proto::FileType)>| {
                entry.is_some_and(|(_, kind)| kind == glint_proto::FileType::Directory)
            };
            let mut wanted = vec![
                Want::exclusive(Key::Name(parent, self.cookie(name))),
                Want::exclusive(Key::Name(new_parent, self.cookie(new_name))),
            ];
            let directories = moves_directory(Some(source)) || moves_directory(target);
            for dir in [parent, new_parent] {
                let shared = Want::shared(Key::Dir(dir));
                wanted.push(if directories { Want::parent(dir) } else { shared });
            }
            if directories && parent != new_parent {
                wanted.push(Want::exclusive(Key::Tree));
            }
            for (ino, _) in [Some(source), target].into_iter().flatten() {
                wanted.push(Want::exclusive(Key::Dir(ino)));
                wanted.push(Want::exclusive(Key::Inode(ino)));
            }
            let _held = self.lock(context, &wanted).await;
            if self.find_entry(parent, name).await? != Some(source)
                || self.find_entry(new_parent, new_name).await? != target
            {
                continue;
            }
            let ends = Ends {
                parent,
                name,
                new_parent,
                new_name,
                source: source.0,
                target: target.map(|(ino, _)| ino),
            };
            return self.rename_locked(context, &ends, flags).await;
        }
    }

    async fn rename_locked(
        &self,
        context: &Context<'_>,
        ends: &Ends<'_>,
        flags: RenameFlags,
    ) -> OpResult {
        let cred = context.cred;
        let same_parent = ends.parent == ends.new_parent;
        for ino in [Some(ends.source), ends.target].into_iter().flatten() {
            self.look(context, ino)?;
        }
        let mut from = self.directory(ends.parent).await?;
        let mut to = self.directory(ends.new_parent).await?;
        let mut source = self.find_inode(ends.source).await?.ok_or(Errno::EIO)?;
        let mut target = match ends.target {
            Some(ino) => Some(self.find_inode(ino).await?.ok_or(Errno::EIO)?),
            None => None,
        };
        self.may_change_entries(&from, cred).await?;
        self.may_change_entries(&to, cred).await?;
        let replaced = target.as_ref().map(|target| &target.attr);
        may_rename((&from.attr, &source.attr), (&to.attr, replaced), flags, cred)?;
        if ends.target == Some(ends.source) {
            return Ok(MdsReply::Done);
        }
        if !same_parent {
            self.check_move(context, &source, ends.new_parent).await?;
            if let Some(target) = target.as_ref().filter(|_| flags.exchange) {
                self.check_move(context, target, ends.parent).await?;
            }
        }
        if !flags.exchange
            && let Some(target) = &target
        {
            let is_empty = !target.attr.is_dir() || self.is_empty(target.attr.ino).await?;
            may_replace(&source.attr, &target.attr, is_empty)?;
        }
        if target.is_none() {
            self.need_space(context)?;
        }
        self.claim(context, ends.parent, Bits::ATTR)?;
        self.claim(context, ends.new_parent, Bits::ATTR | Bits::NEGATIVE)?;
        self.claim(context, ends.source, Bits::ENTRY | Bits::ATTR)?;
        if let Some(target) = ends.target {
            self.claim(context, target, Bits::ALL)?;
        }

        let mut batch = Batch::new();
        let parts = Renaming {
            from: &mut from.attr,
            to: (!same_parent).then_some(&mut to.attr),
            source: &mut source.attr,
            target: target.as_mut().map(|target| &mut target.attr),
        };
        renamed(parts, flags.exchange, context.now);
        match &mut target {
            Some(target) if flags.exchange => {
                target.moves(ends.new_parent, ends.parent);
                let kind = target.attr.file_type();
                self.put_entry(&mut batch, ends.parent, ends.name, target.attr.ino, kind);
                self.put_inode(&mut batch, target);
            }
            Some(target) if target.attr.nlink > 0 => {
                target.loses_name(ends.new_parent);
                self.put_inode(&mut batch, target);
            }
            Some(target) => {
                if !target.attr.is_dir() {
                    self.opens.linger(target.attr.ino, clock::now());
                }
                self.drop_inode(&mut batch, target).await?;
            }
            None => {}
        }
        if !flags.exchange {
            self.delete_entry(&mut batch, ends.parent, ends.name);
        }
        source.moves(ends.parent, ends.new_parent);
        let kind = source.attr.file_type();
        self.put_entry(&mut batch, ends.new_parent, ends.new_name, source.attr.ino, kind);
        self.put_inode(&mut batch, &source);
        self.put_directory(context, &mut batch, &mut from);
        if !same_parent {
            self.put_directory(context, &mut batch, &mut to);
        }
        let reply = match ends.target {
            Some(ino) if !flags.exchange => MdsReply::Removed { ino },
            _ => MdsReply::Done,
        };
        self.commit(context, batch, reply).await
    }

    /// Moving a directory to another parent: it must not become its own ancestor,
    /// and its ".." changes, for which it must be writable.
    async fn check_move(
        &self,
        context: &Context<'_>,
        moved: &InodeRecord,
        new_parent: Ino,
    ) -> FsResult<()> {
        if !moved.attr.is_dir() {
            return Ok(());
        }
        let mut ancestor = new_parent;
        for _ in 0..DEPTH_MAX {
            if ancestor == moved.attr.ino {
                return Err(Errno::EINVAL);
            }
            if ancestor == Ino::ROOT {
                return self.permit(moved, context.cred, WRITE).await;
            }
            ancestor = self.directory(ancestor).await?.parent;
        }
        Err(Errno::ELOOP)
    }
}

/// Both ends of a rename, with the inodes found under the locks.
struct Ends<'a> {
    parent: Ino,
    name: &'a [u8],
    new_parent: Ino,
    new_name: &'a [u8],
    source: Ino,
    target: Option<Ino>,
}

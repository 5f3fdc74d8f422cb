//! unlink and rmdir.

use crate::error::OpResult;
use crate::locking::namespace_locks::{Key, Want};
use crate::service::{Context, Mds};
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::lock::Bits;
use glint_proto::posix::{entry_removed, may_rmdir, may_unlink};
use glint_proto::{Errno, FsResult, Ino, MdsReply};

impl<K: Kv> Mds<K> {
    pub(crate) async fn unlink(&self, context: &Context<'_>, parent: Ino, name: &[u8]) -> OpResult {
        let _name = self
            .lock(
                context,
                &[
                    Want::shared(Key::Dir(parent)),
                    Want::exclusive(Key::Name(parent, self.cookie(name))),
                ],
            )
            .await;
        let mut directory = self.directory(parent).await?;
        let (ino, _) = self.find_entry(parent, name).await?.ok_or(Errno::ENOENT)?;
        let _inode = self.lock(context, &[Want::exclusive(Key::Inode(ino))]).await;
        let mut record = self.find_inode(ino).await?.ok_or(Errno::EIO)?;
        self.may_change_entries(&directory, context.cred).await?;
        may_unlink(&directory.attr, &record.attr, context.cred)?;
        self.claim(context, parent, Bits::ATTR)?;
        let last = record.attr.nlink <= 1;
        let opened = if last { Bits::OPEN } else { Bits::NONE };
        self.claim(context, ino, Bits::ENTRY | Bits::ATTR | opened)?;
        let mut batch = Batch::new();
        entry_removed(&mut directory.attr, &mut record.attr, context.now);
        if record.attr.nlink == 0 {
            self.drop_inode(&mut batch, &mut record).await?;
        } else {
            record.loses_name(parent);
            self.put_inode(&mut batch, &record);
        }
        self.delete_entry(&mut batch, parent, name);
        self.put_directory(context, &mut batch, &mut directory);
        self.commit(context, batch, MdsReply::Removed { ino }).await
    }

    pub(crate) async fn rmdir(&self, context: &Context<'_>, parent: Ino, name: &[u8]) -> OpResult {
        if name == b"." {
            return Err(Errno::EINVAL.into());
        }
        if name == b".." {
            return Err(Errno::ENOTEMPTY.into());
        }
        loop {
            // The child must be known before the locks can be taken in order; the
            // name is read again under them.
            let (ino, _) = self.find_entry(parent, name).await?.ok_or(Errno::ENOENT)?;
            let _held = self
                .lock(
                    context,
                    &[
                        Want::parent(parent),
                        Want::exclusive(Key::Dir(ino)),
                        Want::exclusive(Key::Name(parent, self.cookie(name))),
                        // An open of it has this lock alone: it comes before, and the directory is
                        // kept until it is closed, or it finds nothing.
                        Want::exclusive(Key::Inode(ino)),
                    ],
                )
                .await;
            let mut directory = self.directory(parent).await?;
            match self.find_entry(parent, name).await? {
                None => return Err(Errno::ENOENT.into()),
                Some((now, _)) if now != ino => continue,
                Some(_) => {}
            }
            self.look(context, ino)?;
            let mut record = self.find_inode(ino).await?.ok_or(Errno::EIO)?;
            self.may_change_entries(&directory, context.cred).await?;
            let is_empty = self.is_empty(ino).await?;
            may_rmdir(&directory.attr, &record.attr, is_empty, context.cred)?;
            self.claim(context, parent, Bits::ATTR)?;
            self.claim(context, ino, Bits::ALL)?;
            let mut batch = Batch::new();
            entry_removed(&mut directory.attr, &mut record.attr, context.now);
            self.drop_inode(&mut batch, &mut record).await?;
            self.delete_entry(&mut batch, parent, name);
            self.put_directory(context, &mut batch, &mut directory);
            return self.commit(context, batch, MdsReply::Removed { ino }).await;
        }
    }

    /// Whether a directory has no entries.
    pub(crate) async fn is_empty(&self, ino: Ino) -> FsResult<bool> {
        Ok(self.scan_inode(Keyspace::Entry, ino, 1).await?.is_empty())
    }
}

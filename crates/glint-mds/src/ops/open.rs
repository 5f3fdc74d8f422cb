//! open and release of existing files.

use crate::error::errno;
use crate::locks::{Key, Want};
use crate::permission::{EXEC, READ, WRITE};
use crate::service::{Context, Mds};
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::{Errno, FileType, FsResult, Ino, MdsReply, ObjectAttr, OpenFlags};
use std::sync::atomic::Ordering;

impl<K: Kv> Mds<K> {
    pub(crate) async fn open(
        &self,
        context: &Context<'_>,
        ino: Ino,
        flags: OpenFlags,
    ) -> FsResult<MdsReply> {
        let _held = self.locks.acquire(&[Want::exclusive(Key::Inode(ino))]).await;
        let mut record = self.inode(ino).await?;
        match record.attr.file_type() {
            FileType::Directory if flags.write || flags.truncate => return Err(Errno::EISDIR),
            FileType::Symlink => return Err(Errno::ELOOP),
            _ => {}
        }
        let mut want = 0;
        if flags.exec {
            want |= EXEC;
        } else if flags.read {
            want |= READ;
        }
        if flags.write || flags.truncate {
            want |= WRITE;
        }
        self.permit(&record, context.cred, want).await?;
        let mut batch = Batch::new();
        let is_file = record.attr.is_file();
        if is_file && flags.truncate {
            record.attr.mtime = context.now;
            record.attr.ctime = context.now;
            record.attr.size = 0;
            if flags.kill_suidgid {
                self.kill_privileges(&mut record, &mut batch);
            }
        }
        // From here on the objects know the size better than the record.
        let first_writer = is_file && flags.write && !record.attr.size_on_ost;
        if first_writer || (is_file && flags.truncate) {
            record.attr.size_on_ost = true;
            self.put_inode(&mut batch, &record);
        }
        let reply = self.commit(context, batch, MdsReply::Attr(record.attr)).await?;
        self.opens.add(context.client, ino, flags.write);
        Ok(reply)
    }

    /// One open less. The last writer brings the size home.
    pub(crate) async fn release(
        &self,
        context: &Context<'_>,
        ino: Ino,
        write: bool,
        wrote: Option<ObjectAttr>,
    ) -> FsResult<MdsReply> {
        let _held = self.locks.acquire(&[Want::exclusive(Key::Inode(ino))]).await;
        self.opens.remove(context.client, ino, write);
        let record = match wrote {
            Some(_) => self.find_inode(ino).await?,
            None => None,
        };
        let mut batch = Batch::new();
        if let (Some(objects), Some(mut record)) = (wrote, record)
            && record.attr.size_on_ost
            && !self.opens.has_writer(ino)
        {
            record.attr.size_on_ost = false;
            record.has_objects = true;
            record.attr.size = objects.size;
            record.attr.blocks = objects.blocks;
            record.attr.mtime = objects.mtime;
            record.attr.ctime = record.attr.ctime.max(objects.ctime);
            self.put_inode(&mut batch, &record);
        }
        if !self.opens.is_open(ino) {
            // If it has no name left, it goes now.
            self.orphan_closed(ino).await?;
        }
        self.commit(context, batch, MdsReply::Done).await
    }

    async fn orphan_closed(&self, ino: Ino) -> FsResult<()> {
        let orphan = self.kv.get(Keyspace::Orphan, &ino.key()).await.map_err(errno)?;
        if orphan.is_some() {
            self.orphans.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }
}

//! open and release of existing files.

use crate::error::{OpResult, Stop, errno};
use crate::locking::namespace_locks::{Held, Key, Want};
use crate::ops::attributes::kill_capability;
use crate::service::{Context, Mds};
use crate::session::open_files::Count;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::lock::Bits;
use glint_proto::posix::{EXEC, READ, WRITE, kill_set_id};
use glint_proto::{Attr, Errno, FileType, Ino, MdsReply, ObjectAttr, OpenFlags};
use std::sync::atomic::Ordering;

impl<K: Kv> Mds<K> {
    /// Opens an inode. `answer` makes the reply of the whole request, which its record says, too: if
    /// the server starts again before the client has heard it, that is what it is told.
    pub(crate) async fn open(
        &self,
        context: &Context<'_>,
        ino: Ino,
        flags: OpenFlags,
        answer: fn(Attr) -> MdsReply,
    ) -> OpResult {
        let _held = self.lock(context, &[Want::exclusive(Key::Inode(ino))]).await;
        self.look(context, ino)?;
        let mut record = self.inode(ino).await?;
        match record.attr.file_type() {
            FileType::Directory if flags.write || flags.truncate => {
                return Err(Errno::EISDIR.into());
            }
            FileType::Symlink => return Err(Errno::ELOOP.into()),
            _ => {}
        }
        // The reaper has not come yet.
        if record.attr.nlink == 0 && !context.is_replay() && !self.opens.is_open(ino) {
            return Err(Errno::ESTALE.into());
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
        if flags.write || flags.truncate {
            // The lock to write, which is next, needs that others return UNWRITTEN.
            self.claim(context, ino, Bits::ATTR | Bits::UNWRITTEN)?;
        }
        let mut batch = Batch::new();
        let is_file = record.attr.is_file();
        if is_file && flags.truncate {
            record.attr.mtime = context.now;
            record.attr.change_at(context.now);
            record.attr.size = 0;
            if flags.kill_suidgid {
                kill_set_id(&mut record.attr, context.cred)?;
            }
            kill_capability(&record, &mut batch);
        }
        // From here on the objects know the size better than the record.
        let was_on_ost = record.attr.size_on_ost;
        let first_writer = is_file && flags.write && !was_on_ost;
        let has_no_name = record.attr.nlink == 0;
        if first_writer || (is_file && flags.truncate) {
            record.attr.size_on_ost = true;
            self.put_inode(&mut batch, &record);
        }
        self.grant_attributes(context, ino);
        if was_on_ost {
            self.withhold_uncertain(context, &record.attr);
        }
        if is_file {
            self.grant_data(context, &record.attr, flags.write);
            let capable = !flags.truncate && !self.is_plain(&record).await?;
            if flags.write && !capable && !record.attr.has_set_id() {
                self.grant(context, ino, Bits::PLAIN);
            }
        }
        let reply = self.commit(context, batch, answer(record.attr)).await?;
        if context.is_replay() {
            // The client has said what it has open.
            self.opens.resized(context.client, ino);
        } else if first_writer && !flags.truncate {
            self.opens.first_writer(context.client, ino, false);
        } else {
            if flags.truncate {
                self.opens.resized(context.client, ino);
            }
            self.opens.add(context.client, ino, flags.write);
            if flags.truncate && !flags.write {
                self.opens.cut_by_reader(context.client, ino);
            }
        }
        if has_no_name {
            // It may have been kept by something else until just now.
            self.opens.unlink(ino);
        }
        Ok(reply)
    }

    /// Replaces what a client has open of a file by what it says. The last writer of others may have
    /// brought the size home meanwhile: the client was evicted, or the server started again.
    pub(crate) async fn reopen(&self, context: &Context<'_>, ino: Ino, count: Count) -> OpResult {
        let enter = |has_no_name| self.opens.replace(context.client, ino, count, has_no_name);
        self.enter_open(context, ino, count.writers > 0, enter).await
    }

    /// Adds an open of which the last run has told its client.
    pub(crate) async fn add_opened(
        &self,
        context: &Context<'_>,
        ino: Ino,
        write: bool,
    ) -> OpResult {
        let enter = |has_no_name| {
            self.opens.add(context.client, ino, write);
            if has_no_name {
                self.opens.unlink(ino);
            }
        };
        self.enter_open(context, ino, write, enter).await
    }

    /// Enters what a client has open already, perhaps to write; `enter` is told whether the inode has
    /// no name.
    async fn enter_open(
        &self,
        context: &Context<'_>,
        ino: Ino,
        writes: bool,
        enter: impl FnOnce(bool),
    ) -> OpResult {
        let _held = match writes {
            true => Some(self.expect_writer(context, ino).await?),
            false => None,
        };
        context.begin()?;
        let orphan = self.kv.get(Keyspace::Orphan, &ino.key()).await.map_err(errno)?;
        enter(orphan.is_some());
        Ok(MdsReply::Done)
    }

    /// A client had a file open to write before anybody here knew: its objects are what counts, durably,
    /// and no other client knows its attributes, until the returned locks and the change end.
    async fn expect_writer(&self, context: &Context<'_>, ino: Ino) -> Result<Held<'_>, Stop> {
        let held = self.lock(context, &[Want::exclusive(Key::Inode(ino))]).await;
        // The replay of what made a file says it too.
        let record = self.find_inode(ino).await?.filter(|record| record.attr.is_file());
        let Some(mut record) = record else { return Ok(held) };
        self.claim(context, ino, Bits::ATTR)?;
        context.begin()?;
        if !record.attr.size_on_ost {
            record.attr.size_on_ost = true;
            let mut batch = Batch::new();
            self.put_inode(&mut batch, &record);
            // Clients remember no answer to this, and may not come back to say it again.
            self.commit_batch(batch).await?;
            self.kv.sync().await.map_err(errno)?;
        }
        Ok(held)
    }

    /// One open less. The last writer brings the size home.
    pub(crate) async fn release(
        &self,
        context: &Context<'_>,
        ino: Ino,
        write: bool,
        wrote: Option<(u64, Option<ObjectAttr>)>,
    ) -> OpResult {
        let _held = self.lock(context, &[Want::exclusive(Key::Inode(ino))]).await;
        if write || wrote.is_some() {
            self.claim(context, ino, Bits::ATTR)?;
        }
        context.begin()?;
        if context.is_replay() {
            // The client has said what it has open, after this close; how large the file is, its
            // objects say.
            self.opens.resized(context.client, ino);
            return Ok(MdsReply::Done);
        }
        let left = self.opens.remove(context.client, ino, write, wrote);
        if left.gone {
            self.orphans.fetch_add(1, Ordering::AcqRel);
        }
        let knows = left.wrote.is_some() || (write && left.unchanged);
        if !knows || left.doubtful || left.writers || left.gone {
            return Ok(MdsReply::Done);
        }
        let Some(mut record) = self.find_inode(ino).await? else { return Ok(MdsReply::Done) };
        if !record.attr.size_on_ost {
            return Ok(MdsReply::Done);
        }
        if left.wrote.is_some_and(|objects| objects.size < record.attr.size) {
            // Whoever cuts a file has said so before: a copy of an object is lost, and the objects
            // say how large the file is once another copy is there.
            return Ok(MdsReply::Done);
        }
        record.attr.size_on_ost = false;
        match left.wrote {
            Some(objects) => {
                record.has_objects = true;
                record.attr.size = objects.size;
                record.attr.blocks = objects.blocks;
                record.attr.mtime = objects.mtime;
                record.attr.ctime = record.attr.ctime.max(objects.ctime);
            }
            None => record.has_objects &= !left.fresh,
        }
        let mut batch = Batch::new();
        self.put_inode(&mut batch, &record);
        self.commit(context, batch, MdsReply::Done).await
    }
}

//! The calls on the data of an open file, and how far the kernel may keep it in pages.
//!
//! Invariant: what is changed around the pages of the kernel is changed for them, too, when the
//! call returns: see [`crate::adapter::pages`].

use crate::abi::reply::*;
use crate::abi::*;
use crate::adapter::dispatch::{Adapter, Call, parse};
use glint_client::{Caching, Caller, Handle, Open, Vfs, WriteHow, Writer};
use glint_proto::lock::Range;
use glint_proto::{Cred, Errno, FsResult, Ino};
use std::pin::{Pin, pin};
use std::sync::Arc;
use zerocopy::FromBytes;

/// Whether a file that is opened so may be written; and mapped to be written.
fn writes(flags: u32) -> (bool, bool) {
    let access = flags as i32 & libc::O_ACCMODE;
    (access != libc::O_RDONLY, access == libc::O_RDWR)
}

impl<F: Vfs> Adapter<F> {
    /// A file was opened, and nobody waits for it any more. Returns which, and with which flags.
    pub(crate) fn abandoned(
        &self,
        opcode: Opcode,
        header: &InHeader,
        fixed: &[u8],
        reply: &[u8],
    ) -> (Ino, u32) {
        let flags = u32::read_from_prefix(fixed).map_or(0, |(flags, _)| flags);
        let ino = match (opcode, EntryOut::read_from_prefix(reply)) {
            (Opcode::Create | Opcode::Tmpfile, Ok((entry, _))) => self.ino(entry.nodeid),
            _ => self.ino(header.nodeid),
        };
        if let (true, mappable) = writes(flags)
            && opcode != Opcode::Opendir
        {
            self.pages.close(ino, mappable);
        }
        (ino, flags)
    }
}

impl<F: Vfs> Call<'_, F> {
    /// Tells the kernel what it may do with a file that was opened with `flags` of open(2). A close
    /// has nothing to flush of pages. They may be kept if nobody else can write. After an error the
    /// file is not open.
    ///
    /// Opens that may write go around the pages. A write through them is there before it is sent,
    /// and if the page is dropped in between (another one writes around it) and read again, it has
    /// the old bytes, which come back when it is stored to. And a page would wait for a lock in the
    /// middle of a write. Without pages, a write is one copy less.
    ///
    /// Where both this mount and others write, the kernel does not learn where the file ends: of
    /// attributes that a write has overtaken it drops the size (`fuse_change_attributes` in
    /// fs/fuse/inode.c). So who reads then asks for each read.
    pub(crate) async fn opened(&self, open: &Open, flags: u32) -> FsResult<OpenOut> {
        let Open { handle, created, valid, .. } = *open;
        let ino = open.attr.ino;
        let (may_write, mappable) = writes(flags);
        let passed = match self.adapter.passthrough.get() {
            // Apart from the state of other requests: it is large.
            Some(passthrough) => Box::pin(self.adapter.pass(passthrough, open, flags)).await?,
            None => None,
        };
        let others = !created && valid.attr.is_zero();
        let ends_anywhere = others && self.adapter.pages.is_written(ino);
        if may_write {
            self.adapter.pages.open(ino, mappable);
        }
        let asked = self.adapter.direct_io || flags as i32 & libc::O_DIRECT != 0;
        let around = asked || may_write || ends_anywhere;
        let pages = match (&passed, around, self.adapter.caching) {
            (Some(passed), ..) if passed.around => FOPEN_PASSTHROUGH | FOPEN_DIRECT_IO,
            // Pages from before would be old when they are used again.
            (Some(_), ..) => FOPEN_PASSTHROUGH,
            (None, true, _) => FOPEN_DIRECT_IO,
            (None, false, Caching::Timed) => 0,
            // The kernel is told to forget those that it has, and that takes a moment.
            (None, false, _) if !self.fs.pages_are_current() => 0,
            (None, false, _) => FOPEN_KEEP_CACHE,
        };
        // A close tells of errors of writing behind, and ends the locks of its process
        // (fcntl(2)). What was just made has neither, for all that anybody knows.
        let flushes = self.adapter.caching == Caching::Locked
            && !created
            && (may_write || self.fs.may_have_posix_locks(ino));
        let flush = if flushes { 0 } else { FOPEN_NOFLUSH };
        // While writes are under way beside each other, the kernel keeps the object by which the inode
        // was passed through, and refuses every open with another one (`fuse_inode_uncached_io_start`
        // in fs/fuse/iomode.c). Who gets the object keeps it from being another.
        let parallel = match self.adapter.passthrough.get().is_some() && passed.is_none() {
            true => 0,
            false => FOPEN_PARALLEL_DIRECT_WRITES,
        };
        let open_flags = flush | parallel | pages;
        let backing_id = passed.map_or(0, |passed| passed.object.id());
        Ok(OpenOut { backing_id, ..open_out(handle, open_flags) })
    }

    /// A file that was opened with these flags is closed.
    pub(crate) fn closed(&self, flags: u32) {
        if let (true, mappable) = writes(flags) {
            self.adapter.pages.close(self.ino, mappable);
        }
    }

    /// Changes data around the pages of the kernel: `range`, or more within `stale`.
    pub(crate) async fn around_pages<R>(
        &self,
        range: Range,
        stale: Range,
        change: Pin<&mut impl Future<Output = R>>,
    ) -> R {
        let changing = self.adapter.pages.change(self.ino, range, stale).await;
        let result = change.await;
        if let (Some(pages), Some(kernel)) = (changing.executed(), &self.adapter.kernel) {
            let (kernel, ino): (Arc<_>, _) = (kernel.clone(), self.ino);
            blocking::unblock(move || kernel.forget_pages(ino, pages)).await;
        }
        result
    }

    pub(crate) async fn read(self) -> FsResult<usize> {
        let arg: ReadIn = parse(self.fixed)?;
        let room = self.buffer.get_mut(..arg.size as usize).ok_or(Errno::EINVAL)?;
        // A read for a program names the lock owner, a read for the page cache does not.
        let pages = arg.read_flags & READ_LOCKOWNER == 0;
        if pages {
            self.adapter.pages.read(self.ino, Range::of(arg.offset, arg.size.into()));
        }
        self.fs.read(Handle(arg.fh), arg.offset, room, pages).await
    }

    pub(crate) async fn write(self) -> FsResult<usize> {
        let arg: WriteIn = parse(self.fixed)?;
        let data = self.buffer[..self.len].get(..arg.size as usize).ok_or(Errno::EPROTO)?;
        let how = WriteHow {
            sync: self.adapter.sync || arg.flags as i32 & libc::O_DSYNC != 0,
            pages: arg.write_flags & WRITE_CACHE != 0,
            writer: match arg.write_flags & WRITE_KILL_SUIDGID {
                0 => Writer::Privileged,
                _ => {
                    let Caller { cred: Cred { uid, gid, .. }, pid } = self.caller;
                    Writer::Process { uid, gid, pid }
                }
            },
        };
        let range = Range::of(arg.offset, arg.size.into());
        if how.pages {
            let bringing = self.adapter.pages.bring(self.ino, range);
            for part in &bringing.parts {
                let data =
                    &data[(part.start - range.start) as usize..(part.end - range.start) as usize];
                self.fs.write(Handle(arg.fh), part.start, data, how).await?;
            }
        } else {
            let write = pin!(self.fs.write(Handle(arg.fh), arg.offset, data, how));
            // An append goes where the file ends now, which may be further than the kernel knows.
            let appends = arg.flags as i32 & libc::O_APPEND != 0;
            let stale = if appends { Range { end: u64::MAX, ..range } } else { range };
            self.around_pages(range, stale, write).await?;
        }
        put(self.buffer, &WriteOut { size: arg.size, padding: 0 })
    }

    pub(crate) async fn fallocate(self) -> FsResult<usize> {
        let arg: FallocateIn = parse(self.fixed)?;
        let mode = arg.mode as i32;
        let handle = Handle(arg.fh);
        let change = pin!(self.fs.fallocate(&self.caller, handle, mode, arg.offset, arg.length));
        match mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) {
            0 => change.await,
            _ => {
                let range = Range::of(arg.offset, arg.length);
                self.around_pages(range, range, change).await
            }
        }?;
        Ok(0)
    }

    pub(crate) async fn lseek(self) -> FsResult<usize> {
        let arg: LseekIn = parse(self.fixed)?;
        let hole = match arg.whence as i32 {
            libc::SEEK_DATA => false,
            libc::SEEK_HOLE => true,
            _ => return Err(Errno::EINVAL),
        };
        let offset = self.fs.lseek(Handle(arg.fh), arg.offset, hole).await?;
        put(self.buffer, &LseekOut { offset })
    }

    pub(crate) async fn copy_range(self) -> FsResult<usize> {
        let arg: CopyFileRangeIn = parse(self.fixed)?;
        if self.adapter.pages.may_be_mapped(self.adapter.ino(arg.nodeid_out)) {
            // The kernel drops all pages of the range afterwards, also what was stored to them
            // meanwhile. It copies by itself then.
            return Err(Errno::EOPNOTSUPP);
        }
        let (from, to) = ((Handle(arg.fh_in), arg.off_in), (Handle(arg.fh_out), arg.off_out));
        // The kernel may ask for all at once; a bounded part keeps replies prompt.
        let len = arg.len.min(64 << 20);
        let size = self.fs.copy_range(&self.caller, from, to, len).await? as u32;
        put(self.buffer, &WriteOut { size, padding: 0 })
    }

    pub(crate) async fn flush(self) -> FsResult<usize> {
        let arg: FlushIn = parse(self.fixed)?;
        let result = self.fs.flush(Handle(arg.fh)).await.map(|()| 0);
        if self.adapter.caching == Caching::Locked && self.fs.may_have_posix_locks(self.ino) {
            // fcntl(2): any close of a file ends the locks of its process on it.
            self.unlock(Handle(arg.fh), arg.lock_owner, false).await?;
        }
        result
    }

    pub(crate) async fn release(self) -> FsResult<usize> {
        let arg: ReleaseIn = parse(self.fixed)?;
        self.closed(arg.flags);
        let unlocked = match arg.release_flags & RELEASE_FLOCK_UNLOCK != 0 {
            true => self.unlock(Handle(arg.fh), arg.lock_owner, true).await,
            false => Ok(()),
        };
        // The kernel does not say it again, so the file is released whatever happened before.
        let released = self.adapter.release(self.ino, Handle(arg.fh), arg.flags).await;
        released.and(unlocked).map(|()| 0)
    }
}

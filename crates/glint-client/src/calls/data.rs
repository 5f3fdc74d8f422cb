//! The calls on the data of files: what they lock, flush and learn.

use crate::cache::inode::CachedInode;
use crate::calls::open_files::OpenFile;
use crate::client::Client;
use crate::data::read_ahead::{AHEAD_LATE, BlockAhead, Plan, Regions, is_slow};
use crate::vfs::{Caller, Handle, WriteHow, Writer};
use futures_util::future::{Either, select};
use glint_lock::held::Use;
use glint_net::{Transport, host};
use glint_proto::limits::{FILE_BYTES_MAX, FUSE_IO_BYTES_MAX};
use glint_proto::lock::Range;
use glint_proto::{Errno, FsResult, Ino, Layout, MdsReply, MdsRequest, clock};
use glint_telemetry::Counter;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<T: Transport> Client<T> {
    /// Everything of an inode to stable storage.
    pub(crate) async fn sync_inode(&self, ino: Ino) -> FsResult<()> {
        let mut known = None;
        if let Some(inode) = self.inode(ino) {
            self.flush_inode(&inode).await?;
            let state = inode.lock();
            known = state.attributes().cloned();
        }
        let attr = match known {
            Some(attr) => attr,
            None => match self.ask_as_root(&MdsRequest::Getattr { ino }).await? {
                MdsReply::Attr(attr) | MdsReply::Glimpsed { attr, .. } => attr,
                _ => return Err(Errno::EPROTO),
            },
        };
        let metadata = self.ask_as_root(&MdsRequest::Sync);
        if !attr.is_file() {
            return metadata.await.map(drop);
        }
        let data = self.sync_objects(ino, self.latest_layout(ino, attr.layout));
        futures_util::future::try_join(data, metadata).await.map(drop)
    }

    pub(crate) async fn read(
        &self,
        handle: Handle,
        offset: u64,
        buffer: &mut [u8],
        pages: bool,
    ) -> FsResult<usize> {
        let file = self.handles.get(handle)?;
        self.touch(&file).await;
        let _inside = self.data.gate.enter(file.ino).await;
        let n = match self.inode(file.ino) {
            Some(inode) => {
                let purpose = match pages {
                    true => Use::Fill(Range::of(offset, buffer.len() as u64)),
                    false => Use::Call,
                };
                let is_first = self.parameters.reads_ahead && file.ahead.lock().is_unused();
                if is_first && self.data.prefetched.is_on() {
                    self.prefetch_after(&inode);
                }
                // Apart from the state of other reads: it is large.
                let (_guard, read) = match is_first {
                    true => {
                        Box::pin(self.lock_and_read(&inode, &file, purpose, offset, buffer)).await?
                    }
                    false => (self.lock_data(&inode, Range::ALL, false, purpose).await?, None),
                };
                // The stamp before anything that it is about is looked at.
                let stamp = {
                    let mut state = inode.lock();
                    // Made, so that whatever changes later is counted.
                    let data = &mut state.rare.make().data;
                    if pages {
                        data.note_pages();
                    }
                    if let Some((stamp, block)) = data.take_prefetched() {
                        file.ahead.lock().prefetched(block, stamp);
                        glint_telemetry::count(Counter::FilesPrefetchedRead, 1);
                    }
                    data.stamp()
                };
                self.flush_inode(&inode).await?;
                // What is here was read under locks, which others may have soon.
                match read {
                    Some(n) => n,
                    None if self.parameters.reads_ahead && !self.is_suspended() => {
                        self.read_with_ahead(&inode, &file, stamp, offset, buffer, pages).await?
                    }
                    None => self.read_file(&file, offset, buffer).await?,
                }
            }
            None => self.read_file(&file, offset, buffer).await?,
        };
        glint_telemetry::count(Counter::BytesRead, n as u64);
        Ok(n)
    }

    /// Reads what was perhaps read ahead, and reads ahead. A lock on the data is held.
    async fn read_with_ahead(
        &self,
        inode: &Arc<CachedInode>,
        file: &Arc<OpenFile>,
        stamp: u64,
        offset: u64,
        buffer: &mut [u8],
        pages: bool,
    ) -> FsResult<usize> {
        let known = inode.lock().attributes().map(|attr| attr.size);
        let size = match known {
            Some(size) => size,
            None => self.size_to_read_ahead(file, stamp).await?,
        };
        let read = offset..offset + buffer.len() as u64;
        let layout = self.layout_of_open(file);
        let spread = layout.stripe_bytes() * u64::from(layout.stripe_count);
        let memory = &self.data.ahead_memory;
        let (plan, is_scattered) = {
            let mut state = inode.lock();
            let mut ahead = file.ahead.lock();
            let plan = match Regions::are_in(size) && state.rare.data.stamp() == stamp {
                true => {
                    let regions = state.rare.make().data.regions();
                    regions.plan(&read, size, ahead.window(), stamp, memory)
                }
                false => Plan::default(),
            };
            drop(state);
            let plan = ahead.plan(read.clone(), size, spread, stamp, plan, memory);
            let is_scattered = ahead.is_scattered(&read, plan.is_in_sequence);
            (plan, is_scattered)
        };
        let Plan { here, fetch, is_in_sequence } = plan;
        if is_in_sequence {
            fetch.into_iter().for_each(|block| self.begin_to_fetch(file, vec![block]));
        } else if !fetch.is_empty() {
            self.begin_to_fetch(file, fetch);
        }
        if is_scattered
            && pages
            && here.is_empty()
            && self.data.prefetched.is_on()
            // Apart from the state of other reads: it is large.
            && let Some(done) =
                Box::pin(self.read_around(inode, file, stamp, size, offset, buffer)).await
        {
            return Ok(done);
        }
        let begun = clock::now();
        let mut done = 0;
        for block in &here {
            let copied = block.copy(offset + done as u64, &mut buffer[done..]);
            match select(pin!(copied), pin!(host::sleep(AHEAD_LATE))).await {
                Either::Left((Some(len), _)) => done += len,
                Either::Left((None, _)) => break,
                Either::Right(_) => {
                    block.give_up();
                    break;
                }
            }
        }
        // Less than that is not all: a block has not come, or the file has become shorter.
        if here.is_empty() || (done as u64) < (buffer.len() as u64).min(size.saturating_sub(offset))
        {
            done = self.read_file(file, offset, buffer).await?;
        } else {
            glint_telemetry::count(Counter::BytesReadAhead, done as u64);
        }
        if is_slow(clock::since(begun), done) {
            file.ahead.lock().widen();
        }
        Ok(done)
    }

    /// The size of a file whose attributes are not known because it is open to be written
    /// elsewhere; 0 while nothing is read ahead. It holds under the lock on the data.
    async fn size_to_read_ahead(&self, file: &OpenFile, stamp: u64) -> FsResult<u64> {
        let known = file.ahead.lock().size(stamp);
        if let Some(size) = known {
            return Ok(size);
        }
        let size = self
            .glimpse(file.ino, self.layout_of_open(file))
            .await?
            .map_or(0, |objects| objects.size);
        file.ahead.lock().note_size(stamp, size);
        Ok(size)
    }

    /// Reads a block of an open file, which may lie in several objects.
    pub(crate) async fn fetch_ahead(&self, file: &OpenFile, block: &BlockAhead) {
        let mut data = vec![0; block.len as usize];
        let result = self.read_file(file, block.offset, &mut data).await;
        block.fill(result.ok().map(|len| {
            data.truncate(len);
            data
        }));
    }

    pub(crate) async fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        how: WriteHow,
    ) -> FsResult<()> {
        let file = self.handles.get_to_change(handle)?;
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(Errno::EFBIG);
        }
        let inode = self.inode(file.ino);
        let inside = self.data.gate.enter(file.ino).await;
        if !how.pages {
            self.take_privileges(inode.as_deref(), &file, how.writer).await?;
        }
        match inode {
            Some(inode) => {
                self.error_of(&inode, &file)?;
                if inode.lock().rare.delegation.is_never_created() {
                    return Err(Errno::EIO);
                }
                self.room_to_write(&file, offset, data.len()).await;
                let at_end = file.append && !how.pages;
                let range = if at_end { Range::ALL } else { Range::of(offset, data.len() as u64) };
                let purpose = if how.pages { Use::Bring } else { Use::Call };
                // Pages are under locks on the whole file.
                let range = if how.pages { Range::ALL } else { range };
                let guard = self.lock_data(&inode, range, true, purpose).await?;
                file.wrote.store(true, Ordering::Release);
                let offset = if at_end { self.end_of(&inode, &file).await? } else { offset };
                match self.space_is_kept(&file, offset, data.len()).await? {
                    true => self.write_behind(&inode, &file, offset, data),
                    false => self.write_now(&inode, &file, offset, data, &guard).await?,
                }
                if self.parameters.write_through {
                    self.flush_inode(&inode).await?;
                    self.error_of(&inode, &file)?;
                }
            }
            None => {
                file.wrote.store(true, Ordering::Release);
                self.write_file(&file, offset, data, &|| true).await?;
            }
        }
        drop(inside);
        glint_telemetry::count(Counter::BytesWritten, data.len() as u64);
        if how.sync {
            self.sync_file(handle).await?;
        }
        Ok(())
    }

    /// End of a file, in bytes. A lock to write all of it is held.
    pub(crate) async fn end_of(&self, inode: &Arc<CachedInode>, file: &OpenFile) -> FsResult<u64> {
        let known = inode.lock().attributes().map(|attr| attr.size);
        if let Some(size) = known {
            return Ok(size);
        }
        self.flush_inode(inode).await?;
        Ok(self
            .glimpse(file.ino, self.layout_of_open(file))
            .await?
            .map_or(0, |objects| objects.size))
    }

    /// Truncates the data of a file, which nobody else reads or writes meanwhile.
    pub(crate) async fn cut(&self, ino: Ino, layout: Layout, size: u64) -> FsResult<()> {
        let _inside = self.data.gate.enter(ino).await;
        let Some(inode) = self.inode(ino) else {
            let layout = self.latest_layout(ino, layout);
            return self.truncate_objects(ino, layout, size, &|| true).await;
        };
        let guard = self.lock_data(&inode, Range::ALL, true, Use::Call).await?;
        inode.lock().rare.make().data.set_layout(Some(layout));
        let layout = self.latest_layout(ino, layout);
        // Data that could not be written yet would come back later. Lost data is told to the
        // writer.
        self.flush_inode(&inode).await?;
        let cut = self.truncate_objects(ino, layout, size, &|| guard.is_held()).await;
        inode.lock().rare.make().data.change();
        cut
    }

    /// Brings written data to stable storage; an error if some of it is lost.
    pub(crate) async fn sync_file(&self, handle: Handle) -> FsResult<()> {
        let file = self.handles.get(handle)?;
        let synced = self.sync_inode(file.ino).await;
        match self.inode(file.ino) {
            Some(inode) => self.error_of(&inode, &file).and(synced),
            None => synced,
        }
    }

    /// All that this client changed to stable storage.
    pub(crate) async fn sync_all(&self) -> FsResult<()> {
        let errors = self.data.limits.counts().1;
        let mut result = Ok(());
        if self.has_locks() {
            for inode in self.cache.all() {
                result = result.and(self.flush_inode(&inode).await);
            }
        }
        self.flush_before(&MdsRequest::Sync).await;
        if self.data.limits.counts().1 > errors {
            result = result.and(Err(Errno::EIO));
        }
        result.and(self.transport.commit().await)
    }

    /// fallocate(2).
    pub(crate) async fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> FsResult<()> {
        let file = self.handles.get_to_change(handle)?;
        let known =
            libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        if mode & !known != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if offset.checked_add(len).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(Errno::EFBIG);
        }
        let inode = self.inode(file.ino);
        self.take_privileges(inode.as_deref(), &file, Writer::of(caller)).await?;
        let _inside = self.data.gate.enter(file.ino).await;
        let Some(inode) = inode else {
            file.wrote.store(true, Ordering::Release);
            return self.allocate_file(&file, mode, offset, len, &|| true).await;
        };
        let guard = self.lock_data(&inode, Range::ALL, true, Use::Call).await?;
        file.wrote.store(true, Ordering::Release);
        self.flush_inode(&inode).await?;
        let update = self.cache.begin_update(&[file.ino]);
        let result = self.allocate_file(&file, mode, offset, len, &|| guard.is_held()).await;
        drop(update);
        inode.lock().rare.make().data.change();
        result
    }

    /// Finds data or a hole.
    pub(crate) async fn seek(&self, handle: Handle, offset: u64, hole: bool) -> FsResult<u64> {
        let file = self.handles.get(handle)?;
        let _inside = self.data.gate.enter(file.ino).await;
        let _guard = match self.inode(file.ino) {
            Some(inode) => {
                let guard = self.lock_data(&inode, Range::ALL, false, Use::Call).await?;
                self.flush_inode(&inode).await?;
                Some(guard)
            }
            None => None,
        };
        let size = self.size_of(file.ino).await?;
        self.seek_objects(file.ino, self.layout_of_open(&file), offset, size, hole).await
    }

    /// Copies from one file to another. Returns how much, which is less after an error.
    pub(crate) async fn copy_range(
        &self,
        caller: &Caller,
        (from, mut from_offset): (Handle, u64),
        (to, mut to_offset): (Handle, u64),
        len: u64,
    ) -> FsResult<u64> {
        let how = WriteHow { writer: Writer::of(caller), ..WriteHow::default() };
        let mut buffer = vec![0u8; (len as usize).min(FUSE_IO_BYTES_MAX)];
        let mut done = 0;
        while done < len {
            let want = ((len - done) as usize).min(buffer.len());
            // Both apart from the state of each call.
            let n = Box::pin(self.read(from, from_offset, &mut buffer[..want], false)).await?;
            if n == 0 {
                break;
            }
            match Box::pin(self.write(to, to_offset, &buffer[..n], how)).await {
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
                Ok(()) => {}
            }
            (from_offset, to_offset) = (from_offset + n as u64, to_offset + n as u64);
            done += n as u64;
        }
        Ok(done)
    }
}

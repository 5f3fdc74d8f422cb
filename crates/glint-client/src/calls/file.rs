//! The calls that touch the data of files: what they lock, flush and learn.

use crate::cache::inode::CachedInode;
use crate::calls::open_files::OpenFile;
use crate::client::Client;
use crate::data::read_ahead::{BlockAhead, is_slow};
use crate::vfs::{Caller, Found, FsStat, Handle, Valid, Vfs, WriteHow};
use glint_lock::held::Use;
use glint_net::{MdsRequests, MdsSession, Transport, host};
use glint_proto::limits::FILE_BYTES_MAX;
use glint_proto::lock::Range;
use glint_proto::{
    Bulk, Errno, FsResult, Ino, Layout, MdsReply, MdsRequest, ObjectAttr, OstReply, OstRequest,
    SetAttr, SpaceInfo, Timestamp, clock,
};
use glint_telemetry::Counter;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// A close finds out what to say of a file. It waits for changes of the file, and they for it:
/// what it says would otherwise be older than what they set, and arrive later.
struct CloseGuard<'a>(&'a CachedInode);

impl CloseGuard<'_> {
    async fn begin(inode: &CachedInode) -> CloseGuard<'_> {
        inode.until(|state| (!state.is_updating()).then(|| state.pins.begin_close())).await;
        CloseGuard(inode)
    }
}

impl Drop for CloseGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().pins.end_close();
        self.0.wake();
    }
}

impl<T: Transport> Client<T> {
    /// The attributes, if they are known.
    pub(crate) fn getattr_locally(&self, ino: Ino) -> Option<Found> {
        self.cache.attributes(ino)
    }

    /// Sets attributes: of a size the data follows, of times the objects.
    pub(crate) async fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        set: &SetAttr,
    ) -> FsResult<Found> {
        if let Some(found) = self.setattr_locally(caller, ino, set) {
            return Ok(found);
        }
        if let Some(size) = set.size {
            self.check_size(ino, size).await?;
        }
        let inode = self.inode(ino);
        // Nobody reads or writes while a size is set, and nobody else has unsent data that is
        // older than a time that is set.
        let mut guard = None;
        if let Some(inode) = &inode {
            let dates = set.mtime.is_some() && inode.lock().objects_have_times();
            if set.size.is_some() || dates {
                // The kernel writes no pages back while it sets a size.
                let purpose = if set.size.is_some() { Use::Bring } else { Use::Call };
                guard = Some(self.lock_data(inode, Range::ALL, true, purpose).await?);
            }
            if set.size.is_some() {
                self.flush_inode(inode).await?;
            }
        }
        let update = inode.as_ref().map(|_| self.cache.begin_update(&[ino]));
        let request = MdsRequest::Setattr { ino, set: set.clone() };
        let reply = self.ask(caller, &request).await;
        self.note_privileges_given(set.mode, b"");
        let MdsReply::Attr(mut attr) = reply? else { return Err(Errno::EPROTO) };
        if let Some(size) = set.size {
            self.truncate_objects(ino, attr.layout, size).await?;
        }
        let (mtime, ctime) = (attr.mtime, attr.ctime);
        if let Some(inode) = &inode {
            let mut state = inode.lock();
            if set.size.is_some() {
                state.data.change();
            }
            if set.mtime.is_some() || set.size.is_some() {
                state.data.set_mtime(mtime);
            }
        }
        if set.mtime.is_some() && attr.is_file() && attr.size_on_ost {
            // While the file is being written the objects are asked for the time,
            // so they must know what was set; and last, whatever is on its way to them.
            if let Some(inode) = &inode {
                if guard.is_none() {
                    guard = Some(self.lock_data(inode, Range::ALL, true, Use::Call).await?);
                }
                inode.until(|state| (!state.data.dirty().has_in_flight()).then_some(())).await;
            }
            self.set_object_times(&attr).await?;
            attr = self.with_unsent(attr, None).await?;
            (attr.mtime, attr.ctime) = (mtime, ctime);
        } else {
            attr = self.with_unsent(attr, None).await?;
        }
        drop(guard);
        match (inode, update) {
            (Some(inode), Some(update)) => {
                update.learn(&attr);
                drop(update);
                let valid = Valid::under(false, inode.lock().attributes().is_some());
                Ok(Found { attr, valid: valid.without_attr() })
            }
            _ => Ok(Found { attr, valid: Valid::timed(self.terms.cache_time) }),
        }
    }

    /// Sets the access time, if that is due.
    pub(crate) async fn touch(&self, file: &OpenFile) {
        if file.atime_done.swap(true, Ordering::Relaxed) {
            return;
        }
        let now = Timestamp::now();
        if self.cache.attributes(file.ino).is_some_and(|found| !found.attr.needs_atime(now)) {
            return;
        }
        // A read does not fail because its time could not be noted.
        let update = self.begin_update(&[file.ino]);
        match self.ask_as_root(&MdsRequest::Touch { ino: file.ino }).await {
            Ok(MdsReply::Attr(attr)) if !attr.size_on_ost => {
                if let Some(update) = update {
                    update.learn(&attr);
                }
            }
            Ok(_) => {}
            Err(errno) => tracing::debug!(ino = %file.ino, %errno, "access time not set"),
        }
    }

    /// statfs(2).
    pub(crate) async fn statfs(&self) -> FsResult<FsStat> {
        let MdsReply::Statfs { inodes } = self.ask(&Caller::ROOT, &MdsRequest::Statfs).await?
        else {
            return Err(Errno::EPROTO);
        };
        let mut spaces = Vec::new();
        for ost in self.placement.own() {
            match self.ask_ost(ost, OstRequest::Space, Bulk::None).await? {
                OstReply::Space(space) => spaces.push(space),
                _ => return Err(Errno::EPROTO),
            }
        }
        // The others may be out of reach; the MDS knows what they said last.
        spaces.extend(self.transport.mds().osses().await?.into_iter().flat_map(|oss| oss.space));
        let SpaceInfo { total, free, available, .. } = SpaceInfo::sum(spaces);
        Ok(FsStat { inodes, total, free, available })
    }

    pub(crate) async fn release(&self, handle: Handle) -> FsResult<()> {
        let file = self.handles.remove(handle)?;
        let inode = self.inode(file.ino);
        self.end_posix_locks(&file).await;
        if let Some(inode) = &inode {
            inode.lock().pins.close(file.shared);
            if !file.declared && inode.until(|state| state.pins.close_undeclared()).await {
                self.cache.note_idle(inode);
                return Ok(());
            }
        }
        if file.made > 0 {
            return self.release_locally(file);
        }
        let mut closing = None;
        let wrote = match file.wrote.load(Ordering::Acquire) && !file.is_dir {
            true => {
                if let Some(inode) = &inode {
                    self.flush_closed(inode).await;
                    closing = Some(CloseGuard::begin(inode).await);
                }
                self.say_written(inode.as_deref(), &file).await
            }
            false => None,
        };
        let request = MdsRequest::Release { ino: file.ino, write: file.write, wrote };
        let result = self.transport.mds().post(&Caller::ROOT.cred, &request).await;
        drop(closing);
        if let Some(inode) = &inode {
            self.cache.note_idle(inode);
        }
        result
    }

    /// What a close says of a file that was written.
    pub(crate) async fn say_written(
        &self,
        inode: Option<&CachedInode>,
        file: &OpenFile,
    ) -> Option<(u64, Option<ObjectAttr>)> {
        let number = self.data.next_glimpse();
        let known = inode.and_then(|inode| self.written(inode, file.layout));
        let objects = match known {
            Some(objects) => Ok(Some(objects)),
            None => self.glimpse(file.ino, file.layout).await,
        };
        match objects {
            Ok(objects) => {
                if let (Some(inode), Some(objects)) = (inode, objects) {
                    let mut state = inode.lock();
                    let clean = state.data.is_clean();
                    if let Some(attr) = state.attributes_mut().filter(|_| clean) {
                        attr.blocks = objects.blocks;
                    }
                }
                objects.map(|objects| (number, Some(objects)))
            }
            Err(errno) => {
                // The file is closed nevertheless, and its objects are asked by whoever needs
                // to know.
                tracing::warn!(ino = %file.ino, %errno, "asking the objects of a closed file");
                Some((number, None))
            }
        }
    }

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
        let data = self.sync_objects(ino, attr.layout);
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
        let n = match self.inode(file.ino) {
            Some(inode) => {
                let purpose = match pages {
                    true => Use::Fill(Range::of(offset, buffer.len() as u64)),
                    false => Use::Call,
                };
                let _guard = self.lock_data(&inode, Range::ALL, false, purpose).await?;
                // The stamp before anything that it is about is looked at.
                let stamp = {
                    let mut state = inode.lock();
                    if pages {
                        state.data.note_pages();
                    }
                    state.data.stamp()
                };
                self.flush_inode(&inode).await?;
                match self.terms.reads_ahead {
                    true => self.read_with_ahead(&inode, &file, stamp, offset, buffer).await?,
                    false => self.read_file(&file, offset, buffer).await?,
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
        inode: &CachedInode,
        file: &Arc<OpenFile>,
        stamp: u64,
        offset: u64,
        buffer: &mut [u8],
    ) -> FsResult<usize> {
        let known = inode.lock().attributes().map(|attr| attr.size);
        let size = match known {
            Some(size) => size,
            None => self.size_to_read_ahead(file, stamp).await?,
        };
        let read = offset..offset + buffer.len() as u64;
        let spread = file.layout.stripe_bytes() * u64::from(file.layout.stripe_count);
        let plan = file.ahead.lock().plan(read, size, spread, stamp, &self.data.ahead_memory);
        for block in plan.fetch {
            match self.me.get().and_then(Weak::upgrade) {
                Some(client) => host::spawn(client.fetch_ahead(file.clone(), block)),
                None => block.fill(None),
            }
        }
        let begun = clock::now();
        let mut done = 0;
        for block in &plan.here {
            match block.copy(offset + done as u64, &mut buffer[done..]).await {
                Some(len) => done += len,
                None => break,
            }
        }
        // Less than that is not all: a block has not come, or the file has become shorter.
        if plan.here.is_empty()
            || (done as u64) < (buffer.len() as u64).min(size.saturating_sub(offset))
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
        let size = self.glimpse(file.ino, file.layout).await?.map_or(0, |objects| objects.size);
        file.ahead.lock().note_size(stamp, size);
        Ok(size)
    }

    async fn fetch_ahead(self: Arc<Self>, file: Arc<OpenFile>, block: Arc<BlockAhead>) {
        let mut data = vec![0; block.len as usize];
        let result = self.read_file(&file, block.offset, &mut data).await;
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
        let file = self.handles.get(handle)?;
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(Errno::EFBIG);
        }
        file.wrote.store(true, Ordering::Release);
        let inode = self.inode(file.ino);
        if !how.pages {
            self.take_privileges(inode.as_deref(), &file, how.keeps_set_id).await?;
        }
        match inode {
            Some(inode) => {
                self.error_of(&inode, &file)?;
                if inode.lock().delegation.is_never_created() {
                    return Err(Errno::EIO);
                }
                self.room_to_write(&file, offset, data.len()).await;
                let at_end = file.append && !how.pages;
                let range = if at_end { Range::ALL } else { Range::of(offset, data.len() as u64) };
                let purpose = if how.pages { Use::Bring } else { Use::Call };
                // Pages are under locks on the whole file.
                let range = if how.pages { Range::ALL } else { range };
                let _guard = self.lock_data(&inode, range, true, purpose).await?;
                let offset = if at_end { self.end_of(&inode, &file).await? } else { offset };
                match self.space_is_kept(&file, offset, data.len()).await? {
                    true => self.write_behind(&inode, &file, offset, data).await,
                    false => self.write_now(&inode, &file, offset, data).await?,
                }
                if self.terms.write_through {
                    self.flush_inode(&inode).await?;
                    self.error_of(&inode, &file)?;
                }
            }
            None => self.write_file(&file, offset, data).await?,
        }
        glint_telemetry::count(Counter::BytesWritten, data.len() as u64);
        if how.sync {
            Vfs::fsync(self, handle).await?;
        }
        Ok(())
    }

    /// Where a file ends. A lock to write all of it is held.
    pub(crate) async fn end_of(&self, inode: &Arc<CachedInode>, file: &OpenFile) -> FsResult<u64> {
        let known = inode.lock().attributes().map(|attr| attr.size);
        if let Some(size) = known {
            return Ok(size);
        }
        self.flush_inode(inode).await?;
        Ok(self.glimpse(file.ino, file.layout).await?.map_or(0, |objects| objects.size))
    }

    /// Truncates the data of a file, which nobody else reads or writes meanwhile.
    pub(crate) async fn cut(&self, ino: Ino, layout: Layout, size: u64) -> FsResult<()> {
        let Some(inode) = self.inode(ino) else {
            return self.truncate_objects(ino, layout, size).await;
        };
        let _guard = self.lock_data(&inode, Range::ALL, true, Use::Call).await?;
        inode.lock().data.set_layout(Some(layout));
        // What could not be written yet would come back later. What is lost is told to whoever
        // wrote it.
        self.flush_inode(&inode).await?;
        self.truncate_objects(ino, layout, size).await?;
        inode.lock().data.change();
        Ok(())
    }
}

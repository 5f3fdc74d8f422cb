//! Sends what was written to the OSTs: full extents at once, the rest when it is asked for or
//! has become old.
//!
//! Invariants:
//! - Dirty data is limited, for each OST and in all; who writes waits for room.
//! - Nothing is written behind for which no OST keeps space: a full disk is an error of the write.
//! - What could not be sent for a reason that may pass stays dirty, and is sent again.
//! - What is lost is told to each open file once, at its next write, fsync or close.

use crate::cache::inode::CachedInode;
use crate::calls::open_files::OpenFile;
use crate::client::Client;
use crate::data::dirty::{Dirty, ExtentsInFlight, Failed};
use crate::data::extents::Due;
use crate::locks::data_locks::DataLockGuard;
use futures_util::stream::{FuturesUnordered, StreamExt};
use glint_net::{Transport, host};
use glint_proto::extents::{extents_bulk_bytes, put_extents};
use glint_proto::limits::{BULK_BYTES_MAX, RESEND_MS_MAX, SPACE_GRANT_BYTES};
use glint_proto::retry::Failing;
use glint_proto::{Bulk, Errno, FsResult, Ino, Layout, ObjectAttr, OstReply, OstRequest, clock};
use glint_telemetry::{Counter, event};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Every file system of an OST can have objects of this size.
const LARGE_FILE_BYTES: u64 = 1 << 34;
/// Longest time that written data stays in memory only.
pub(crate) const AGE_MAX: Duration = Duration::from_secs(1);

impl<T: Transport> Client<T> {
    /// Puts data into the write cache. A lock on it is held.
    pub(crate) fn write_behind(
        &self,
        inode: &Arc<CachedInode>,
        file: &OpenFile,
        offset: u64,
        data: &[u8],
    ) {
        let now = clock::now();
        let (mut first, mut full, mut due, mut more) = (false, false, Due::Full, 0);
        let layout = self.layout_of_open(file);
        for piece in layout.pieces(offset, data.len() as u64) {
            let ost = self.placement.ost_of(layout, piece.stripe);
            let start = (piece.file_offset - offset) as usize;
            let part = &data[start..start + piece.len as usize];
            // Counted first: it may have been sent before this task goes on.
            self.data.limits.add(ost, part.len());
            glint_telemetry::count(Counter::BytesCopied, part.len() as u64);
            let mut state = inode.lock();
            let (grown, begins) =
                state.rare.make().data.write(piece.stripe, piece.object_offset, part, now);
            let dirty = state.rare.data.dirty();
            full |= dirty.has_full();
            if self.data.counts_pages() && dirty.bytes() >= BULK_BYTES_MAX {
                (full, due) = (true, Due::Some);
            }
            drop(state);
            first |= begins;
            more += grown;
            if grown < part.len() {
                // Nothing more is sent for what was dirty before.
                self.data.limits.remove(ost, part.len() - grown);
                self.data.limits.keeps(ost, (part.len() - grown) as u64);
            }
        }
        inode.lock().wrote(offset + data.len() as u64, glint_proto::Timestamp::now(), more);
        if first {
            self.cache.note_dirty(inode.ino);
        }
        if full && let Some(client) = self.me.get().and_then(Weak::upgrade) {
            let inode = inode.clone();
            host::spawn(async move { client.send_due(&inode, due).await });
        }
    }

    /// Whether the OSTs keep space for this data, so that it can be written behind. EFBIG if
    /// their objects end before it.
    pub(crate) async fn space_is_kept(
        &self,
        file: &OpenFile,
        offset: u64,
        len: usize,
    ) -> FsResult<bool> {
        let layout = self.layout_of_open(file);
        for piece in layout.pieces(offset, len as u64) {
            let ost = self.placement.ost_of(layout, piece.stripe);
            let mut taken = self.data.limits.take_kept(ost, piece.len);
            if !taken {
                self.ask_for_space(ost, SPACE_GRANT_BYTES.max(piece.len)).await;
                taken = self.data.limits.take_kept(ost, piece.len);
            }
            let end = piece.object_offset.saturating_add(piece.len);
            let fits = self.data.limits.object_bytes_max(ost).is_none_or(|max| end <= max);
            if taken && fits {
                continue;
            }
            // Space that was taken is for others.
            let taken = piece.file_offset - offset + if taken { piece.len } else { 0 };
            for piece in layout.pieces(offset, taken) {
                self.data.limits.keeps(self.placement.ost_of(layout, piece.stripe), piece.len);
            }
            return if fits { Ok(false) } else { Err(Errno::EFBIG) };
        }
        Ok(true)
    }

    async fn ask_for_space(&self, ost: u16, bytes: u64) {
        let request = OstRequest::GrantSpace { bytes };
        if let Ok(OstReply::SpaceGranted { bytes, object_bytes_max }) =
            self.ask_ost(ost, request, Bulk::None, &|| true).await
        {
            self.data.limits.objects_end(ost, object_bytes_max);
            self.data.limits.keeps(ost, bytes);
        }
    }

    /// EFBIG if a file of this size has an object that its OST cannot have.
    pub(crate) async fn check_size(&self, ino: Ino, size: u64) -> FsResult<()> {
        if size <= LARGE_FILE_BYTES {
            return Ok(());
        }
        let layout = self.layout_of(ino).await?;
        for stripe in 0..layout.stripe_count.max(1) {
            let ost = self.placement.ost_of(layout, stripe);
            if self.data.limits.object_bytes_max(ost).is_none() {
                self.ask_for_space(ost, 0).await;
            }
            let max = self.data.limits.object_bytes_max(ost);
            if max.is_some_and(|max| layout.object_size(stripe, size) > max) {
                return Err(Errno::EFBIG);
            }
        }
        Ok(())
    }

    /// Writes at once what could not be written behind, under a lock.
    pub(crate) async fn write_now(
        &self,
        inode: &Arc<CachedInode>,
        file: &OpenFile,
        offset: u64,
        data: &[u8],
        guard: &DataLockGuard,
    ) -> FsResult<()> {
        self.flush_inode(inode).await?;
        self.write_file(file, offset, data, &|| guard.is_held()).await?;
        let mut state = inode.lock();
        state.rare.make().data.change();
        state.wrote(offset + data.len() as u64, glint_proto::Timestamp::now(), data.len());
        Ok(())
    }

    /// Waits until there is room to write to a file.
    pub(crate) async fn room_to_write(&self, file: &OpenFile, offset: u64, len: usize) {
        let layout = self.layout_of_open(file);
        for piece in layout.pieces(offset, len as u64) {
            self.data.limits.room(self.placement.ost_of(layout, piece.stripe)).await;
        }
    }

    /// Sends what is due of a file, and waits for it.
    pub(crate) async fn send_due(&self, inode: &Arc<CachedInode>, due: Due) {
        self.send_where(inode, due, |_, _| true).await;
    }

    /// Sends old extents, which wait for OSTs that have enough to do, and may become full
    /// meanwhile.
    pub(crate) async fn send_old(&self, inode: &Arc<CachedInode>, then: Instant) {
        let idle =
            |layout, stripe| !self.data.limits.is_busy(self.placement.ost_of(layout, stripe));
        self.send_where(inode, Due::Before(then), idle).await;
    }

    async fn send_where(
        &self,
        inode: &Arc<CachedInode>,
        due: Due,
        stripes: impl Fn(Layout, u16) -> bool,
    ) {
        let mut sending = FuturesUnordered::new();
        // The layout with each extent: the file may have moved since the last one was taken.
        let take = || {
            let mut state = inode.lock();
            let layout = state.rare.data.layout()?;
            let of_it = |stripe| stripes(layout, stripe);
            state
                .rare
                .made()?
                .data
                .take(due, clock::now(), of_it)
                .map(|in_flight| (layout, in_flight))
        };
        loop {
            while let Some((layout, in_flight)) = take() {
                sending.push(self.send(inode, layout, in_flight));
            }
            if sending.next().await.is_none() {
                return;
            }
        }
    }

    async fn send(&self, inode: &Arc<CachedInode>, layout: Layout, in_flight: ExtentsInFlight) {
        let stripe = in_flight.stripe;
        let ost = self.placement.ost_of(layout, stripe);
        // Before the permit: who waits for the MDS keeps nobody else from this OST.
        let never_created = self.until_created(inode).await.is_err();
        let permit = self.data.limits.permit(ost).await;
        let mtime = inode.lock().rare.data.mtime();
        // Extents may be discarded while they wait for their turn: locks are lost with a session.
        let lives = || inode.lock().rare.data.dirty().lives(&in_flight);
        let object = layout.object(inode.ino, stripe);
        let result = match (&in_flight.extents[..], never_created) {
            (_, true) => Err(Errno::EIO),
            ([(offset, extent)], _) => {
                let request = OstRequest::Write { object, offset: *offset, mtime, kept: true };
                self.ask_ost(ost, request, Bulk::Shared(&extent.data), &lives).await
            }
            (extents, _) => {
                let len = extents_bulk_bytes(extents.len(), in_flight.bytes());
                let mut bulk = Vec::with_capacity(len);
                put_extents(extents.iter().map(|(at, extent)| (*at, &extent.data[..])), &mut bulk);
                glint_telemetry::count(Counter::BytesCopied, bulk.len() as u64);
                let count = extents.len() as u32;
                let request = OstRequest::WriteExtents { object, count, mtime, kept: true };
                self.ask_ost(ost, request, Bulk::Shared(&Arc::new(bulk)), &lives).await
            }
        };
        drop(permit);
        let bytes = match result {
            Ok(OstReply::Written(attr)) => self.on_arrived(inode, in_flight, attr),
            Ok(_) => self.on_failed(inode, in_flight, Errno::EPROTO),
            // There never will be an inode that it belongs to.
            Err(errno) if never_created => self.lose(inode, in_flight, errno),
            Err(errno) => self.on_failed(inode, in_flight, errno),
        };
        self.data.limits.remove(ost, bytes);
        inode.wake();
    }

    /// A request has been executed. Returns how much is not dirty any more.
    fn on_arrived(
        &self,
        inode: &CachedInode,
        in_flight: ExtentsInFlight,
        attr: ObjectAttr,
    ) -> usize {
        let mut state = inode.lock();
        state.rare.make().data.on_arrived(&in_flight, attr);
        state.learn_blocks();
        drop(state);
        in_flight.bytes()
    }

    /// A request could not be executed: what it carried waits for another attempt, or is lost.
    /// Returns how much is not dirty any more.
    fn on_failed(&self, inode: &CachedInode, in_flight: ExtentsInFlight, errno: Errno) -> usize {
        let stripe = in_flight.stripe;
        let failed = inode.lock().rare.make().data.on_failed(in_flight, errno, clock::now());
        let Failed { first, overwritten, lost } = failed;
        if first {
            tracing::warn!(ino = %inode.ino, stripe, %errno,
                "could not write cached data; it is tried again");
        }
        if lost > 0 {
            self.count_lost(inode, stripe, lost, errno);
        }
        overwritten + lost
    }

    fn lose(&self, inode: &CachedInode, in_flight: ExtentsInFlight, errno: Errno) -> usize {
        let lost = in_flight.bytes();
        inode.lock().rare.make().data.give_up(&in_flight, errno);
        self.count_lost(inode, in_flight.stripe, lost, errno);
        lost
    }

    /// Forgets the size of a file whose data was lost: it is as large as its objects are, and whoever wants
    /// to know asks them.
    fn forget_size(&self, inode: &CachedInode) {
        let mut state = inode.lock();
        state.lose_attributes();
        state.rare.make().data.change();
        drop(state);
        if let Some(kernel) = self.cache.kernel() {
            kernel.forget_attributes(inode.ino);
        }
    }

    /// Data of an inode is lost, of which its open files hear.
    fn count_lost(&self, inode: &CachedInode, stripe: u16, lost: usize, errno: Errno) {
        self.forget_size(inode);
        tracing::error!(event = event::DATA_LOST, ino = %inode.ino, stripe, lost, %errno,
            "could not write cached data; it is lost");
        self.data.limits.count_error();
    }

    /// Longest wait for data that cannot be sent, of callers that must not wait for ever: long
    /// enough for a failure that passes, and shorter than a server waits for a lock.
    fn patience(&self) -> Duration {
        self.parameters.lease / 2
    }

    /// Everything that was written to an inode so far to its OSTs. What is lost meanwhile is
    /// told to its open files; an error says that data is still here, and is tried again.
    pub(crate) async fn flush_inode(&self, inode: &Arc<CachedInode>) -> FsResult<()> {
        {
            let state = inode.lock();
            if state.rare.data.is_clean() {
                return Ok(());
            }
            if state.rare.data.layout().is_none() {
                return Err(Errno::EIO);
            }
        }
        let begun = clock::now();
        loop {
            let completions = inode.lock().rare.data.dirty().completions();
            self.send_due(inode, Due::Before(begun)).await;
            let (flies, failing) = {
                let state = inode.lock();
                let dirty = state.rare.data.dirty();
                if !dirty.has_older(begun) {
                    return Ok(());
                }
                (dirty.has_in_flight(), dirty.failing())
            };
            let now = clock::now();
            let too_long = |failing: &Failing| {
                failing.last >= begun
                    && now.saturating_duration_since(failing.since) >= self.patience()
            };
            if let Some(failing) = failing.filter(too_long) {
                return Err(failing.errno);
            }
            if flies {
                // Waits for extents that others send, or that overlap.
                let completed = |dirty: &Dirty| dirty.completions() != completions;
                let goes_on = |dirty: &Dirty| completed(dirty) || !dirty.has_in_flight();
                inode.until(|state| goes_on(state.rare.data.dirty()).then_some(())).await;
            } else if let Some(failing) = failing {
                host::sleep(failing.rests_until.saturating_duration_since(now)).await;
            }
        }
    }

    /// Flushes without an end: until all data is there, or lost.
    pub(crate) async fn flush_closed(&self, inode: &Arc<CachedInode>) {
        while let Err(errno) = self.flush_inode(inode).await {
            tracing::warn!(ino = %inode.ino, %errno, "a closed file has data that is not written");
            host::sleep(Duration::from_millis(RESEND_MS_MAX)).await;
        }
    }

    /// Flushes once for a caller that does not wait longer: data that is still here is lost.
    pub(crate) async fn flush_or_discard(&self, inode: &Arc<CachedInode>) {
        let Err(errno) = self.flush_inode(inode).await else { return };
        let lost = self.discard(inode, errno);
        tracing::error!(
            event = event::DATA_LOST, ino = %inode.ino, lost, %errno,
            "what was cached could not be written"
        );
        inode.until(|state| (!state.rare.data.dirty().has_in_flight()).then_some(())).await;
    }

    /// Gives up what was not written of an inode.
    pub(crate) fn discard(&self, inode: &CachedInode, errno: Errno) -> usize {
        let mut state = inode.lock();
        let Some(layout) = state.rare.data.layout() else { return 0 };
        let discarded = state.rare.make().data.discard(errno);
        drop(state);
        let lost = discarded.iter().map(|(_, bytes)| bytes).sum();
        if lost > 0 {
            for (stripe, bytes) in discarded {
                self.data.limits.remove(self.placement.ost_of(layout, stripe), bytes);
            }
            self.data.limits.count_error();
            self.forget_size(inode);
            inode.wake();
        }
        lost
    }

    /// The error of writing behind that this open file has not been told of.
    pub(crate) fn error_of(&self, inode: &CachedInode, file: &OpenFile) -> FsResult<()> {
        let failure = self.transport.take_failure(inode.ino);
        if failure.is_some() {
            self.data.limits.count_error();
        }
        let mut state = inode.lock();
        failure.into_iter().for_each(|errno| state.rare.make().data.lose(errno));
        state.rare.made().map_or(Ok(()), |rare| rare.data.tell(&file.error_seen))
    }

    /// Attributes of the objects of a file, if all were heard when they were written.
    pub(crate) fn written(&self, inode: &CachedInode, layout: Layout) -> Option<ObjectAttr> {
        let state = inode.lock();
        if !state.owns_size() || !state.rare.data.has_objects() {
            return None;
        }
        let attr = state.attributes()?;
        let whole = state.rare.data.objects(layout, attr.size)?;
        // Nobody else writes, so the times are what was done here: those of the objects may be
        // of before a program set them.
        Some(ObjectAttr { mtime: attr.mtime, ctime: attr.ctime, ..whole })
    }
}

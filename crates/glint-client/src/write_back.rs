//! Sends what was written to the OSTs: full extents at once, the rest when it is asked for or
//! has become old.
//!
//! Invariants:
//! - Dirty data is limited, for each OST and in all; who writes waits for room.
//! - Nothing is written behind for which no OST keeps space: a full disk is an error of the write.
//! - An error is not lost: each open file hears of it once, at its next write, fsync or close.

use crate::client::Client;
use crate::dirty::{Due, Flying};
use crate::handles::OpenFile;
use crate::node::Node;
use futures_util::stream::{FuturesUnordered, StreamExt};
use glint_net::{Transport, host};
use glint_proto::limits::{
    BULK_BYTES_MAX, DIRTY_BYTES_MAX, DIRTY_BYTES_PER_OST_MAX, RESERVE_BYTES, RPCS_PER_OST_MAX,
};
use glint_proto::{
    Bulk, Errno, FsResult, Layout, ObjectAttr, ObjectId, OstReply, OstRequest, clock,
};
use glint_telemetry::Counter;
use parking_lot::{Mutex, MutexGuard};
use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Longest time that written data stays in memory only.
pub(crate) const AGE_MAX: Duration = Duration::from_secs(1);
/// Buffers kept for the next extents.
const SPARES: usize = 32;

#[derive(Default)]
struct Room {
    total: usize,
    total_max: Option<usize>,
    osts: Vec<Ost>,
    waiting: Vec<Waker>,
    spares: Vec<Vec<u8>>,
    errors: u64,
}

#[derive(Clone, Default)]
struct Ost {
    dirty: usize,
    requests: usize,
    /// Space that it keeps for this client.
    kept: u64,
}

/// Limits of what is written behind.
#[derive(Default)]
pub(crate) struct WriteBack {
    room: Mutex<Room>,
}

/// Permission to have a request on its way to an OST.
struct Permit<'a>(&'a WriteBack, u16);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut room = self.0.room.lock();
        room.ost(self.1).requests -= 1;
        wake(room);
    }
}

impl Room {
    fn ost(&mut self, ost: u16) -> &mut Ost {
        let index = usize::from(ost);
        if self.osts.len() <= index {
            self.osts.resize(index + 1, Ost::default());
        }
        &mut self.osts[index]
    }

    /// An eighth of the memory of this machine, and not more than the limit.
    fn total_max(&mut self) -> usize {
        *self.total_max.get_or_insert_with(|| {
            let info = rustix::system::sysinfo();
            let bytes = info.totalram as usize * (info.mem_unit as usize).max(1);
            (bytes / 8).clamp(2 * DIRTY_BYTES_PER_OST_MAX, DIRTY_BYTES_MAX)
        })
    }
}

/// Wakes all who wait. Not under the lock, which they may be waiting for.
fn wake(mut room: MutexGuard<'_, Room>) {
    let waiting = std::mem::take(&mut room.waiting);
    drop(room);
    waiting.into_iter().for_each(Waker::wake);
}

impl WriteBack {
    /// Waits for room for data of an OST.
    async fn room(&self, ost: u16) {
        self.until(|room| {
            let full =
                room.total >= room.total_max() || room.ost(ost).dirty >= DIRTY_BYTES_PER_OST_MAX;
            (!full).then_some(())
        })
        .await
    }

    async fn permit(&self, ost: u16) -> Permit<'_> {
        self.until(|room| {
            let ost = room.ost(ost);
            (ost.requests < RPCS_PER_OST_MAX).then(|| ost.requests += 1)
        })
        .await;
        Permit(self, ost)
    }

    async fn until<R>(&self, mut look: impl FnMut(&mut Room) -> Option<R>) -> R {
        poll_fn(|context| {
            let mut room = self.room.lock();
            match look(&mut room) {
                Some(found) => Poll::Ready(found),
                None => {
                    room.waiting.push(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn added(&self, ost: u16, bytes: usize) {
        let mut room = self.room.lock();
        room.total += bytes;
        room.ost(ost).dirty += bytes;
    }

    fn removed(&self, ost: u16, bytes: usize, spare: Option<Vec<u8>>) {
        let mut room = self.room.lock();
        room.total -= bytes;
        room.ost(ost).dirty -= bytes;
        if let Some(mut spare) = spare
            && spare.capacity() >= BULK_BYTES_MAX
            && room.spares.len() < SPARES
        {
            spare.clear();
            room.spares.push(spare);
        }
        wake(room);
    }

    /// Memory for an extent that begins with `len` bytes. Small ones get what they need, and
    /// grow if more comes.
    fn buffer(&self, len: usize) -> Vec<u8> {
        if len < 64 << 10 {
            return Vec::with_capacity(len);
        }
        self.room.lock().spares.pop().unwrap_or_else(|| Vec::with_capacity(BULK_BYTES_MAX))
    }

    /// Whether an OST has as many requests as it gets: more of them, and smaller ones, would
    /// bring nothing there any sooner.
    pub(crate) fn is_busy(&self, ost: u16) -> bool {
        self.room.lock().ost(ost).requests >= RPCS_PER_OST_MAX
    }

    /// Whether somebody waits for room, and nothing is on its way that would make some.
    pub(crate) fn is_stuck(&self) -> bool {
        let room = self.room.lock();
        !room.waiting.is_empty() && room.osts.iter().all(|ost| ost.requests == 0)
    }

    /// Something that was accepted is lost.
    pub(crate) fn count_error(&self) {
        self.room.lock().errors += 1;
        glint_telemetry::count(Counter::WriteErrors, 1);
    }

    /// Dirty bytes, and errors so far.
    pub(crate) fn counts(&self) -> (usize, u64) {
        let room = self.room.lock();
        (room.total, room.errors)
    }
}

impl<T: Transport> Client<T> {
    /// Puts data into the write cache. A lock on it is held.
    pub(crate) async fn write_behind(
        &self,
        node: &Arc<Node>,
        file: &OpenFile,
        offset: u64,
        data: &[u8],
    ) {
        let now = clock::now();
        let (mut full, mut due) = (false, Due::Full);
        for piece in file.layout.pieces(offset, data.len() as u64) {
            let ost = self.ost_of(file.layout, piece.stripe);
            let start = (piece.file_offset - offset) as usize;
            let part = &data[start..start + piece.len as usize];
            // Counted first: it may have been sent before this task goes on.
            self.write_back.added(ost, part.len());
            let mut buffer = |len| self.write_back.buffer(len);
            let mut state = node.state();
            let grown =
                state.dirty.write(piece.stripe, piece.object_offset, part, now, &mut buffer);
            full |= state.dirty.has_full();
            if self.counts_pages.load(Ordering::Relaxed) && state.dirty.bytes() >= BULK_BYTES_MAX {
                (full, due) = (true, Due::Some);
            }
            drop(state);
            if grown < part.len() {
                self.write_back.removed(ost, part.len() - grown, None);
            }
        }
        let mut state = node.state();
        let first = state.wrote_to.is_none();
        state.wrote(offset + data.len() as u64, glint_proto::Timestamp::now());
        drop(state);
        if first {
            self.cache.note_dirty(node.ino);
        }
        if full && let Some(client) = self.me.get().and_then(Weak::upgrade) {
            let (node, layout) = (node.clone(), file.layout);
            host::spawn(async move { client.send_due(&node, layout, due).await });
        }
    }

    /// Whether the OSTs keep space for this data, so that it can be written behind.
    pub(crate) async fn space_is_kept(&self, file: &OpenFile, offset: u64, len: usize) -> bool {
        for piece in file.layout.pieces(offset, len as u64) {
            let ost = self.ost_of(file.layout, piece.stripe);
            let take = || {
                let mut room = self.write_back.room.lock();
                let kept = &mut room.ost(ost).kept;
                let enough = *kept >= piece.len;
                *kept -= if enough { piece.len } else { 0 };
                enough
            };
            if take() {
                continue;
            }
            let bytes = RESERVE_BYTES.max(piece.len);
            let reserve = OstRequest::Reserve { bytes };
            if let Ok(OstReply::Reserved(more)) = self.ask_ost(ost, reserve, Bulk::None).await {
                self.write_back.room.lock().ost(ost).kept += more;
            }
            if !take() {
                return false;
            }
        }
        true
    }

    /// Writes at once what could not be written behind. A lock on it is held.
    pub(crate) async fn write_now(
        &self,
        node: &Arc<Node>,
        file: &OpenFile,
        offset: u64,
        data: &[u8],
    ) -> FsResult<()> {
        self.flush_node(node).await?;
        self.write_file(file, offset, data).await?;
        let mut state = node.state();
        state.data_changes();
        state.wrote(offset + data.len() as u64, glint_proto::Timestamp::now());
        if state.dirty.is_clean() {
            state.wrote_to = None;
        }
        Ok(())
    }

    /// Waits until there is room to write to a file.
    pub(crate) async fn room_to_write(&self, file: &OpenFile, offset: u64, len: usize) {
        for piece in file.layout.pieces(offset, len as u64) {
            self.write_back.room(self.ost_of(file.layout, piece.stripe)).await;
        }
    }

    /// Sends what is due of a file, and waits for it.
    pub(crate) async fn send_due(&self, node: &Arc<Node>, layout: Layout, due: Due) {
        let mut sending = FuturesUnordered::new();
        let take = || match due {
            // What is old waits for OSTs that have enough to do, and may become full meanwhile.
            Due::Before(_) => {
                let busy = |stripe| self.write_back.is_busy(self.ost_of(layout, stripe));
                node.state().dirty.take_of(due, |stripe| !busy(stripe))
            }
            _ => node.state().dirty.take(due),
        };
        loop {
            while let Some(flying) = take() {
                sending.push(self.send(node, layout, flying));
            }
            if sending.next().await.is_none() {
                return;
            }
        }
    }

    async fn send(&self, node: &Arc<Node>, layout: Layout, flying: Flying) {
        let Flying { stripe, offset, data } = flying;
        let ost = self.ost_of(layout, stripe);
        let made = node.state().made;
        if self.backlog.is_pending(made) {
            // No object without an inode that it belongs to.
            self.backlog.until(made).await;
        }
        let unborn = node.state().unborn;
        let permit = self.write_back.permit(ost).await;
        let mtime = node.state().mtime;
        let object = ObjectId { ino: node.ino, stripe };
        let request = OstRequest::Write { object, offset, mtime, kept: true };
        let result = match unborn {
            true => Err(Errno::EIO),
            false => self.ask_ost(ost, request, Bulk::Out(&data)).await,
        };
        drop(permit);
        let mut state = node.state();
        state.dirty.landed(stripe, offset);
        match result {
            Ok(OstReply::Written(attr)) => {
                let known = state.objects.entry(stripe).or_insert(attr);
                known.size = known.size.max(attr.size);
                known.blocks = known.blocks.max(attr.blocks);
                known.mtime = known.mtime.max(attr.mtime);
                known.ctime = known.ctime.max(attr.ctime);
            }
            Ok(_) => state.fail(Errno::EPROTO),
            Err(errno) => {
                tracing::error!(ino = %node.ino, stripe, offset, len = data.len(), %errno,
                    "writing cached data failed; it is lost");
                state.fail(errno);
            }
        }
        if state.dirty.is_clean() {
            // From now on the objects know.
            state.wrote_to = None;
        }
        let failed = result.is_err();
        drop(state);
        if failed {
            self.write_back.count_error();
        }
        let len = data.len();
        self.write_back.removed(ost, len, Some(data));
        node.wake();
    }

    /// Everything written to an inode to its OSTs.
    pub(crate) async fn flush_node(&self, node: &Arc<Node>) -> FsResult<()> {
        let (layout, before) = {
            let state = node.state();
            if state.dirty.is_clean() {
                return Ok(());
            }
            (state.layout, state.error)
        };
        let Some(layout) = layout else { return Err(Errno::EIO) };
        self.send_due(node, layout, Due::All).await;
        // What others send, or what overlapped it.
        loop {
            let more = node
                .until(|state| match state.dirty.oldest() {
                    Some(_) => Some(true),
                    None => state.dirty.is_clean().then_some(false),
                })
                .await;
            if !more {
                break;
            }
            self.send_due(node, layout, Due::All).await;
            let waits = node.state().dirty.oldest().is_some();
            if waits {
                // It overlaps something that another task has on its way.
                host::sleep(Duration::from_micros(100)).await;
            }
        }
        match node.state().error {
            Some((number, errno)) if before.is_none_or(|(old, _)| old < number) => Err(errno),
            _ => Ok(()),
        }
    }

    /// Gives up what was not written of an inode.
    pub(crate) fn discard(&self, node: &Node) -> usize {
        let mut state = node.state();
        let Some(layout) = state.layout else { return 0 };
        let discarded = state.dirty.discard();
        let lost = discarded.iter().map(|(_, bytes)| bytes).sum();
        if lost > 0 {
            state.fail(Errno::EIO);
            drop(state);
            for (stripe, bytes) in discarded {
                self.write_back.removed(self.ost_of(layout, stripe), bytes, None);
            }
            self.write_back.count_error();
        }
        lost
    }

    /// The error of writing behind that this open file has not been told of.
    pub(crate) fn error_of(&self, node: &Node, file: &OpenFile) -> FsResult<()> {
        let Some((number, errno)) = node.state().error else { return Ok(()) };
        match file.told.fetch_max(number, Ordering::AcqRel) < number {
            true => Err(errno),
            false => Ok(()),
        }
    }

    /// What the objects of a file say, if it was all heard when they were written.
    pub(crate) fn written(&self, node: &Node, layout: Layout) -> Option<ObjectAttr> {
        let state = node.state();
        if !state.owns_size() || state.objects.is_empty() {
            return None;
        }
        let attr = state.attributes()?;
        let mut whole = ObjectAttr { size: attr.size, ..ObjectAttr::default() };
        // Nobody else writes, so the times are what was done here: those of the objects may be
        // of before a program set them.
        let times = (attr.mtime, attr.ctime);
        for stripe in 0..layout.stripe_count.max(1) {
            match state.objects.get(&stripe) {
                Some(object) => whole.add(object),
                // It has none if the file ends before it.
                None if layout.object_size(stripe, attr.size) == 0 => {}
                None => return None,
            }
        }
        (whole.mtime, whole.ctime) = times;
        Some(whole)
    }
}

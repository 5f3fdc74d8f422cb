//! Data calls: a range of a file becomes pieces of objects, and pieces become
//! requests to OSTs.
//!
//! Invariants:
//! - No object without an inode: nothing changes an object of a file that was made here before the
//!   MDS knows the file ([`Client::until_created`]).
//! - What the objects say about size and times is asked from all objects
//!   of a file, and only believed while the inode says so (`size_on_ost`).
//! - Who changes several objects at once returns when all requests have ended, also after an error.

use crate::cache::inode::CachedInode;
use crate::calls::open_files::OpenFile;
use crate::client::Client;
use futures_util::future::{join_all, try_join_all};
use glint_net::Transport;
use glint_proto::layout::Piece;
use glint_proto::{
    Attr, Bulk, Errno, FsResult, Ino, Layout, ObjectAttr, ObjectId, OstReply, OstRequest, Timestamp,
};

/// Answers to all of these requests, or the first error, once none is under way: one that is
/// executed later would come after the lock was returned, or the objects were removed.
async fn all_ended<R>(
    requests: impl Iterator<Item = impl Future<Output = FsResult<R>>>,
) -> FsResult<Vec<R>> {
    join_all(requests).await.into_iter().collect()
}

impl<T: Transport> Client<T> {
    /// A request to an OST, with what allows it if that is needed. It is EIO if it changes what is
    /// not locked any more (`is_held`) when its turn comes to be sent.
    pub(crate) async fn ask_ost(
        &self,
        ost: u16,
        request: OstRequest,
        bulk: Bulk<'_>,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<OstReply> {
        let known = |object: ObjectId| self.cache.find(object.ino);
        let needs_inode = request.is_modifying() || self.parameters.needs_capabilities;
        let inode = request.object().filter(|_| needs_inode).and_then(known);
        if let Some(inode) = inode.as_ref().filter(|_| request.is_modifying()) {
            self.until_created(inode).await?;
        }
        let inode = inode.filter(|_| self.parameters.needs_capabilities);
        let capability =
            inode.and_then(|inode| inode.lock().rare.capabilities.for_request(&request));
        self.transport.ost(ost.into(), request, capability, bulk, is_held).await
    }

    /// Waits until the MDS knows of an inode that was made here, so that there is no object without
    /// one. EIO if it never will, because the change was lost or refused.
    pub(crate) async fn until_created(&self, inode: &CachedInode) -> FsResult<()> {
        let creation = inode.lock().rare.delegation.creation();
        if self.log.is_pending(creation) {
            self.log.until_answered(creation).await;
        }
        if inode.lock().rare.delegation.is_never_created() { Err(Errno::EIO) } else { Ok(()) }
    }

    /// One request to each object of a file, all at once.
    pub(crate) async fn each_object(
        &self,
        ino: Ino,
        layout: Layout,
        request: impl Fn(u16, ObjectId) -> OstRequest,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<Vec<OstReply>> {
        let ask = |stripe| {
            let request = request(stripe, layout.object(ino, stripe));
            self.ask_ost(self.placement.ost_of(layout, stripe), request, Bulk::None, is_held)
        };
        if layout.stripe_count <= 1 {
            return Ok(vec![ask(0).await?]);
        }
        all_ended((0..layout.stripe_count).map(ask)).await
    }

    /// Attributes of the objects of a file together; `None` if it has no object.
    pub(crate) async fn glimpse(&self, ino: Ino, layout: Layout) -> FsResult<Option<ObjectAttr>> {
        let replies = self
            .each_object(ino, layout, |_, object| OstRequest::Stat { object }, &|| true)
            .await?;
        let mut whole: Option<ObjectAttr> = None;
        for (stripe, reply) in replies.into_iter().enumerate() {
            let OstReply::Stat(stat) = reply else { return Err(Errno::EPROTO) };
            let Some(object) = stat else { continue };
            let whole = whole.get_or_insert_default();
            whole.size = whole.size.max(layout.file_size(stripe as u16, object.size));
            whole.add(&object);
        }
        Ok(whole)
    }

    /// Puts into `attr` what only the objects know.
    pub(crate) async fn complete(&self, mut attr: Attr) -> FsResult<Attr> {
        if attr.size_on_ost && attr.is_file() {
            match self.glimpse(attr.ino, attr.layout).await? {
                Some(objects) => {
                    attr.size = objects.size;
                    attr.blocks = objects.blocks;
                    attr.mtime = objects.mtime;
                    attr.ctime = attr.ctime.max(objects.ctime);
                }
                None => (attr.size, attr.blocks) = (0, 0),
            }
        }
        Ok(attr)
    }

    pub(crate) async fn truncate_objects(
        &self,
        ino: Ino,
        layout: Layout,
        size: u64,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<()> {
        let request = |stripe, object: ObjectId| OstRequest::Truncate {
            object,
            size: layout.object_size(stripe, size),
        };
        self.each_object(ino, layout, request, is_held).await.map(drop)
    }

    pub(crate) async fn set_object_times(
        &self,
        attr: &Attr,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<()> {
        let layout = self.latest_layout(attr.ino, attr.layout);
        self.set_objects_time(attr.ino, layout, attr.mtime, is_held).await
    }

    /// Sets the time of objects of a file.
    pub(crate) async fn set_objects_time(
        &self,
        ino: Ino,
        layout: Layout,
        mtime: Timestamp,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<()> {
        let request = |_, object| OstRequest::SetTime { object, mtime };
        self.each_object(ino, layout, request, is_held).await.map(drop)
    }

    pub(crate) async fn sync_objects(&self, ino: Ino, layout: Layout) -> FsResult<()> {
        self.each_object(ino, layout, |_, object| OstRequest::Sync { object }, &|| true)
            .await
            .map(drop)
    }

    pub(crate) async fn read_file(
        &self,
        file: &OpenFile,
        offset: u64,
        buffer: &mut [u8],
    ) -> FsResult<usize> {
        self.read_objects(file.ino, self.layout_of_open(file), offset, buffer).await
    }

    /// Where the data of an open file lies. A lock on it is held, or it does not move.
    pub(crate) fn layout_of_open(&self, file: &OpenFile) -> Layout {
        self.latest_layout(file.ino, file.layout)
    }

    /// The latest that is known of the layout of a file, which was `then` once.
    pub(crate) fn latest_layout(&self, ino: Ino, then: Layout) -> Layout {
        let known = match self.has_locks() {
            true => self.cache.find(ino).and_then(|inode| inode.lock().rare.data.layout()),
            false => self.data.gate.moved(ino),
        };
        known.filter(|known| then.is_before(known)).unwrap_or(then)
    }

    pub(crate) async fn read_objects(
        &self,
        ino: Ino,
        layout: Layout,
        offset: u64,
        buffer: &mut [u8],
    ) -> FsResult<usize> {
        let mut reads = Vec::new();
        let mut rest = &mut *buffer;
        for piece in layout.pieces(offset, rest.len() as u64) {
            let (room, after) = rest.split_at_mut(piece.len as usize);
            rest = after;
            reads.push(self.read_piece(ino, layout, piece, room));
        }
        // One stripe needs no joining, and a short read is the end of the file.
        if layout.stripe_count <= 1 {
            return match reads.pop() {
                Some(read) => read.await,
                None => Ok(0),
            };
        }
        let lengths = try_join_all(reads).await?;
        let total = buffer.len();
        if lengths.iter().sum::<usize>() == total {
            return Ok(total);
        }
        // Some object ended early: a hole, or the end of the file.
        let size = self.glimpse(ino, layout).await?.map_or(0, |objects| objects.size);
        let end = (size.saturating_sub(offset) as usize).min(total);
        for (piece, got) in layout.pieces(offset, total as u64).zip(lengths) {
            let start = (piece.file_offset - offset) as usize;
            buffer[start + got..start + piece.len as usize].fill(0);
        }
        Ok(end)
    }

    async fn read_piece(
        &self,
        ino: Ino,
        layout: Layout,
        piece: Piece,
        room: &mut [u8],
    ) -> FsResult<usize> {
        let request = OstRequest::Read {
            object: layout.object(ino, piece.stripe),
            offset: piece.object_offset,
            len: room.len() as u32,
        };
        let ost = self.placement.ost_of(layout, piece.stripe);
        match self.ask_ost(ost, request, Bulk::In(room), &|| true).await? {
            OstReply::Data(len) => Ok(len as usize),
            _ => Err(Errno::EPROTO),
        }
    }

    pub(crate) async fn write_file(
        &self,
        file: &OpenFile,
        offset: u64,
        data: &[u8],
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<()> {
        self.write_objects(file.ino, self.layout_of_open(file), offset, data, is_held).await
    }

    pub(crate) async fn write_objects(
        &self,
        ino: Ino,
        layout: Layout,
        offset: u64,
        data: &[u8],
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<()> {
        let write = |piece: Piece| {
            let start = (piece.file_offset - offset) as usize;
            let request = OstRequest::Write {
                object: layout.object(ino, piece.stripe),
                offset: piece.object_offset,
                mtime: None,
                kept: false,
            };
            let bulk = Bulk::Out(&data[start..start + piece.len as usize]);
            self.ask_ost(self.placement.ost_of(layout, piece.stripe), request, bulk, is_held)
        };
        let mut pieces = layout.pieces(offset, data.len() as u64);
        if layout.stripe_count <= 1 {
            return match pieces.next() {
                Some(piece) => write(piece).await.map(drop),
                None => Ok(()),
            };
        }
        all_ended(pieces.map(write)).await.map(drop)
    }

    /// fallocate(2) of a range that ends within the largest file: what lies of it in an object is
    /// contiguous there, so one request for each.
    pub(crate) async fn allocate_file(
        &self,
        file: &OpenFile,
        mode: i32,
        offset: u64,
        len: u64,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<()> {
        let layout = self.layout_of_open(file);
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        let allocate = |stripe: u16| {
            let start = layout.object_size(stripe, offset);
            let len = layout.object_size(stripe, end) - start;
            let object = layout.object(file.ino, stripe);
            let request = OstRequest::Fallocate { object, mode, offset: start, len };
            let ost = self.placement.ost_of(layout, stripe);
            (len > 0).then(|| self.ask_ost(ost, request, Bulk::None, is_held))
        };
        all_ended((0..layout.stripe_count.max(1)).filter_map(allocate)).await.map(drop)
    }

    /// SEEK_DATA and SEEK_HOLE of lseek(2), in a file of `size` bytes: what the objects find
    /// first, one request to each at most.
    pub(crate) async fn seek_objects(
        &self,
        ino: Ino,
        layout: Layout,
        offset: u64,
        size: u64,
        hole: bool,
    ) -> FsResult<u64> {
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        let Some(here) = layout.pieces(offset, size - offset).next() else {
            return Err(Errno::ENXIO);
        };
        let found = self.seek_object((ino, layout), here.stripe, offset, size, hole).await?;
        if layout.stripe_count <= 1 || found < here.file_offset + here.len {
            // No other object has anything before that.
            return if found < size || hole { Ok(found) } else { Err(Errno::ENXIO) };
        }
        let others = (0..layout.stripe_count).filter(|stripe| *stripe != here.stripe);
        let asked =
            others.map(|stripe| self.seek_object((ino, layout), stripe, offset, size, hole));
        let found = try_join_all(asked).await?.into_iter().fold(found, u64::min);
        if found < size || hole { Ok(found) } else { Err(Errno::ENXIO) }
    }

    /// Offset in the file of the next data or hole of an object; the end of the file if it has
    /// none.
    async fn seek_object(
        &self,
        (ino, layout): (Ino, Layout),
        stripe: u16,
        offset: u64,
        size: u64,
        hole: bool,
    ) -> FsResult<u64> {
        let start = layout.object_size(stripe, offset);
        if start >= layout.object_size(stripe, size) {
            return Ok(size);
        }
        let object = layout.object(ino, stripe);
        let request = OstRequest::Seek { object, offset: start, hole };
        let ost = self.placement.ost_of(layout, stripe);
        match self.ask_ost(ost, request, Bulk::None, &|| true).await? {
            // Past the end of its object everything is a hole.
            OstReply::Offset(found) => match found.or(hole.then_some(start)) {
                Some(at) => Ok(layout.file_offset(stripe, at.max(start)).min(size)),
                None => Ok(size),
            },
            _ => Err(Errno::EPROTO),
        }
    }
}

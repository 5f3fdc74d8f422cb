//! Reads of an object.
//!
//! What is in memory is copied at once, by who asks. A miss of a request that may wait in place is read
//! by the [ring](crate::disk::ring) of the calling thread. Threads of the disk are left with reads
//! apart, those of a thread without a ring or of a disk that was slow or has many reads, those of
//! objects that pass through memory, and those that find damage.

use super::{Apart, Ost, Way};
use crate::disk::ring::ReadPlace;
use crate::disk::{CallKind, Disk};
use crate::store::object::ReadMode;
use crate::store::object::planned::ObjectDescriptor;
use crate::store::object_store::ObjectStore;
use glint_proto::ObjectId;
use glint_telemetry::Counter;
use rustix::io::Errno;
use std::io;
use std::mem;
use std::ops::{Deref, DerefMut, Range};

/// Where the data of a read goes.
pub(super) enum Room<'a> {
    Borrowed(&'a mut [u8]),
    /// It may be taken away meanwhile.
    Lent(&'a mut Vec<u8>),
}

impl Deref for Room<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Room::Borrowed(room) => room,
            Room::Lent(room) => room,
        }
    }
}

impl DerefMut for Room<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Room::Borrowed(room) => room,
            Room::Lent(room) => room,
        }
    }
}

/// A part of a buffer, and the rest of it.
struct PartOf {
    data: Vec<u8>,
    range: Range<usize>,
}

impl Deref for PartOf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.data[self.range.clone()]
    }
}

impl DerefMut for PartOf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.data[self.range.clone()]
    }
}

impl<D: Disk> Ost<D> {
    /// Reads until `whole` is full or the object ends.
    pub(super) async fn read(
        &self,
        object: ObjectId,
        offset: u64,
        mut whole: Room<'_>,
        way: Way,
    ) -> io::Result<u32> {
        let is_apart = D::WAITS && (matches!(way, Way::Apart(..)) || self.watch.is_slow());
        let adds_none = matches!(way, Way::Apart(Apart { adds_none: true, .. }));
        let waiting = if adds_none { ReadMode::AddingNone } else { ReadMode::Waiting };
        // Where all is memory, nothing has to be tried first.
        let here = if self.store.is_memory() { ReadMode::Waiting } else { ReadMode::InMemory };
        let mut call = (!is_apart).then(|| self.watch.begin(CallKind::Short));
        self.store.turn().await;
        let mut done = 0;
        while done < whole.len() {
            let at = offset + done as u64;
            let room = &mut whole[done..];
            let read = match (is_apart, self.store.open_file(object)) {
                // What the kernel begins to read ahead then would stay.
                (true, Some(file)) if !adds_none => file.read_at_once(at, room, here),
                (true, _) => Err(Errno::AGAIN.into()),
                (false, known) => {
                    match known.map_or_else(|| self.store.file(object, None), |f| Ok(Some(f)))? {
                        Some(file) => file.checked_read(at, room, here),
                        None => Ok(0),
                    }
                }
            };
            let n = match read.map_err(|e| (e.raw_os_error(), e)) {
                Ok(n) => n,
                Err((Some(libc::EINTR), _)) => continue,
                Err((Some(libc::EAGAIN | libc::EOPNOTSUPP), _)) => {
                    // While it waits for its turn among others, this disk is not blamed.
                    drop(call.take());
                    let read = self.read_missing(object, at, &mut whole, done, !is_apart, waiting);
                    // Requests that find all in memory have no room for its state. If the object does
                    // not exist, it is as if it ended here.
                    let Some(n) = Box::pin(read).await? else { break };
                    n
                }
                Err((_, error)) => return Err(error),
            };
            if n == 0 {
                break;
            }
            done += n;
        }
        drop(call);
        Ok(done as u32)
    }

    /// Reads what is not in memory, behind what was `done`. Returns `None` if the object does not exist.
    async fn read_missing(
        &self,
        object: ObjectId,
        offset: u64,
        whole: &mut Room<'_>,
        done: usize,
        is_in_place: bool,
        waiting: ReadMode,
    ) -> io::Result<Option<usize>> {
        if is_in_place && let Some(n) = self.read_by_ring(object, offset, whole, done).await? {
            return Ok(Some(n));
        }
        self.read_by_thread(object, offset, &mut whole[done..], waiting).await
    }

    /// Reads by the ring of this thread, behind what was `done`. Returns `None` where a thread of the
    /// disk has to read, also to find an error once more.
    async fn read_by_ring(
        &self,
        object: ObjectId,
        offset: u64,
        room: &mut Room<'_>,
        done: usize,
    ) -> io::Result<Option<usize>> {
        if !D::WAITS {
            return Ok(None);
        }
        // Before anything is held for it.
        let Some(place) = ReadPlace::take(&self.watch) else { return Ok(None) };
        let Some(file) = self.store.open_file(object) else { return Ok(None) };
        let Some(planned) = file.plan_read(offset, room.len() - done) else { return Ok(None) };
        let (from, to) = planned.range();
        let (len, descriptor) = ((to - from) as usize, ObjectDescriptor(file.clone()));
        // Who asked is gone with the ring.
        let ended = Errno::CANCELED;
        if let Room::Lent(data) = room
            && planned.is_all_wanted()
        {
            let part = PartOf { data: mem::take(*data), range: done..done + len };
            let read = place.read(descriptor, from, part).await;
            let (read, part) = read.ok_or(ended)?;
            let found = read.and_then(|len| Ok(file.finish_read(&planned, &part[..len])?.len()));
            **data = part.data;
            return Ok(found.ok());
        }
        let buffer = self.buffers.dirty(len);
        let read = place.read(descriptor, from, buffer).await;
        let (read, buffer) = read.ok_or(ended)?;
        let found = read.and_then(|len| file.finish_read(&planned, &buffer[..len]));
        Ok(found.ok().map(|found| {
            room[done..done + found.len()].copy_from_slice(found);
            glint_telemetry::count(Counter::BytesCopied, found.len() as u64);
            found.len()
        }))
    }

    /// Has a thread of the disk read. Returns `None` if the object does not exist.
    async fn read_by_thread(
        &self,
        object: ObjectId,
        offset: u64,
        room: &mut [u8],
        waiting: ReadMode,
    ) -> io::Result<Option<usize>> {
        let (len, buffers) = (room.len(), self.buffers.clone());
        let miss = move |store: &ObjectStore<D>| {
            let Some(file) = store.file(object, None)? else { return Ok(None) };
            let mut data = buffers.dirty(len);
            let n = file.checked_read(offset, &mut data, waiting)?;
            data.truncate(n);
            Ok::<_, io::Error>(Some(data))
        };
        let data = self.apart(CallKind::Short, Apart::default(), miss).await?;
        Ok(data.map(|data| {
            room[..data.len()].copy_from_slice(&data);
            glint_telemetry::count(Counter::BytesCopied, data.len() as u64);
            data.len()
        }))
    }
}

//! Reads of an object.
//!
//! Bytes that are in memory are copied at once, by the calling thread. A miss of a request that may wait
//! in place is read by the [ring](crate::disk::ring) of that thread. Threads of the disk are left with
//! reads apart, those of a thread without a ring, of a disk that was slow or has many reads, or of a
//! file system that knows no read that may not wait, those of objects that pass through memory, and
//! those that find damage.

mod held_object;
#[cfg(test)]
mod tests;

use super::{Apart, Ost, Way};
use crate::disk::ring::ReadPlace;
use crate::disk::{CallKind, Disk};
use crate::store::object::ReadMode;
use crate::store::object_store::ObjectStore;
use glint_proto::ObjectId;
use glint_telemetry::Counter;
use held_object::HeldObject;
use rustix::io::Errno;
use std::io;
use std::mem;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Where the data of a read goes.
pub(super) enum Output<'a> {
    Borrowed(&'a mut [u8]),
    /// It may be taken away meanwhile.
    Lent(&'a mut Vec<u8>),
}

impl Deref for Output<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Output::Borrowed(data) => data,
            Output::Lent(data) => data,
        }
    }
}

impl DerefMut for Output<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Output::Borrowed(data) => data,
            Output::Lent(data) => data,
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
    /// Reads until `output` is full or the object ends.
    pub(super) async fn read(
        &self,
        object: ObjectId,
        offset: u64,
        mut output: Output<'_>,
        way: Way,
    ) -> io::Result<u32> {
        let is_apart = D::WAITS && (matches!(way, Way::Apart(..)) || self.hands_over());
        let adds_none = matches!(way, Way::Apart(Apart { adds_none: true, .. }));
        let waiting = if adds_none { ReadMode::AddingNone } else { ReadMode::Waiting };
        // Where all is memory, nothing has to be tried first.
        let here = if self.store.is_memory() { ReadMode::Waiting } else { ReadMode::InMemory };
        let mut call = (!is_apart).then(|| self.watch.begin(CallKind::Short));
        self.store.turn().await;
        let mut done = 0;
        while done < output.len() {
            let at = offset + done as u64;
            let rest = &mut output[done..];
            let read = match (is_apart, self.store.open_file(object)) {
                // What the kernel begins to read ahead then would stay.
                (true, Some(file)) if !adds_none => file.read_at_once(at, rest, here),
                (true, _) => Err(Errno::AGAIN.into()),
                (false, known) => {
                    match known.map_or_else(|| self.store.file(object, None), |f| Ok(Some(f)))? {
                        Some(file) => file.checked_read(at, rest, here),
                        None => Ok(0),
                    }
                }
            };
            let n = match read.map_err(|e| (e.raw_os_error(), e)) {
                Ok(n) => n,
                Err((Some(libc::EINTR), _)) => continue,
                Err((Some(errno @ (libc::EAGAIN | libc::EOPNOTSUPP)), _)) => {
                    // While it waits for its turn among others, this disk is not blamed.
                    drop(call.take());
                    // Otherwise no file of this disk can be read without waiting.
                    let by_ring = !is_apart && errno == libc::EAGAIN;
                    let read = self.read_missing(object, at, &mut output, done, by_ring, waiting);
                    // Requests that find all in memory have no place for its state. If the object does
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

    /// Reads bytes that are not in memory, behind those that are `done`. Returns `None` if the object
    /// does not exist.
    async fn read_missing(
        &self,
        object: ObjectId,
        offset: u64,
        output: &mut Output<'_>,
        done: usize,
        by_ring: bool,
        waiting: ReadMode,
    ) -> io::Result<Option<usize>> {
        if by_ring && let Some(n) = self.read_by_ring(object, offset, output, done).await? {
            return Ok(Some(n));
        }
        self.read_by_thread(object, offset, &mut output[done..], waiting).await
    }

    /// Reads by the ring of this thread, behind the bytes that are `done`. Returns `None` where a thread
    /// of the disk has to read, also to find an error once more.
    async fn read_by_ring(
        &self,
        object: ObjectId,
        offset: u64,
        output: &mut Output<'_>,
        done: usize,
    ) -> io::Result<Option<usize>> {
        if !D::WAITS {
            return Ok(None);
        }
        // Before anything is held for it.
        let Some(place) = ReadPlace::take(&self.watch) else { return Ok(None) };
        let Some(file) = self.store.open_file(object) else { return Ok(None) };
        let Some(planned) = file.plan_read(offset, output.len() - done) else { return Ok(None) };
        let held = Arc::new(HeldObject(file));
        let (from, to) = planned.range();
        let len = (to - from) as usize;
        // The caller is gone with the ring.
        let ended = Errno::CANCELED;
        if let Output::Lent(data) = output
            && planned.is_all_wanted()
        {
            let part = PartOf { data: mem::take(*data), range: done..done + len };
            let (read, part) = place.read(held.clone(), from, part).await.ok_or(ended)?;
            let found = read.and_then(|len| Ok(held.finish_read(&planned, &part[..len])?.len()));
            **data = part.data;
            return Ok(found.ok());
        }
        let buffer = self.buffers.dirty(len);
        let (read, buffer) = place.read(held.clone(), from, buffer).await.ok_or(ended)?;
        let found = read.and_then(|len| held.finish_read(&planned, &buffer[..len]));
        Ok(found.ok().map(|found| {
            output[done..done + found.len()].copy_from_slice(found);
            glint_telemetry::count(Counter::BytesCopied, found.len() as u64);
            found.len()
        }))
    }

    /// Has a thread of the disk read. Returns `None` if the object does not exist.
    async fn read_by_thread(
        &self,
        object: ObjectId,
        offset: u64,
        output: &mut [u8],
        waiting: ReadMode,
    ) -> io::Result<Option<usize>> {
        let (len, buffers) = (output.len(), self.buffers.clone());
        let miss = move |store: &ObjectStore<D>| {
            let Some(file) = store.file(object, None)? else { return Ok(None) };
            let mut data = buffers.dirty(len);
            let n = file.checked_read(offset, &mut data, waiting)?;
            data.truncate(n);
            Ok::<_, io::Error>(Some(data))
        };
        let data = self.apart(CallKind::Short, Apart::default(), miss).await?;
        Ok(data.map(|data| {
            output[..data.len()].copy_from_slice(&data);
            glint_telemetry::count(Counter::BytesCopied, data.len() as u64);
            data.len()
        }))
    }
}

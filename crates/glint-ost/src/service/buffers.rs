//! Buffers for the data of requests that the disk executes apart, which are used again. A large one
//! that is made anew for each request has its pages from the kernel, zeroed, one fault each: that
//! costs as much as copying the data into it.
//!
//! Invariants:
//! - Nobody sees what an earlier request has left in a buffer: it is overwritten or cut off.
//! - Memory is bounded: no more than [`KEPT_BYTES_MAX`] are kept, and what was not needed from one
//!   [trim](DataBuffers::trim) to the next is freed.

use glint_proto::Bulk;
use glint_telemetry::Counter;
use parking_lot::Mutex;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Shorter ones are the allocator's, which has their pages.
const KEPT_LEN_MIN: usize = 64 << 10;
/// Bytes of unused buffers that are kept.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// Buffers of one disk.
#[derive(Clone, Default)]
pub(super) struct DataBuffers(Arc<Mutex<Unused>>);

#[derive(Default)]
struct Unused {
    /// The last one was used last.
    buffers: Vec<Vec<u8>>,
    /// How many there were at least since the last trim.
    least: usize,
}

/// Data of a request; its buffer is kept for others when this is dropped.
pub(super) struct RequestData {
    of: DataBuffers,
    data: Vec<u8>,
}

/// Data of a write, for as long as the write takes.
pub(super) enum WriteData {
    Copied(RequestData),
    Shared(Arc<Vec<u8>>),
}

impl DataBuffers {
    /// Keeps the data of a write: a copy of it, unless it is shared.
    pub(super) fn keep(&self, bulk: &Bulk<'_>) -> WriteData {
        if let Bulk::Shared(data) = bulk {
            return WriteData::Shared(Arc::clone(data));
        }
        let data = bulk.data();
        glint_telemetry::count(Counter::BytesCopied, data.len() as u64);
        WriteData::Copied(self.copy(data))
    }

    fn copy(&self, data: &[u8]) -> RequestData {
        let mut buffer = self.take(data.len());
        buffer.clear();
        buffer.extend_from_slice(data);
        RequestData { of: self.clone(), data: buffer }
    }

    /// Returns room for `len` bytes, to be overwritten: it holds whatever it held before.
    pub(super) fn room(&self, len: usize) -> RequestData {
        let mut buffer = self.take(len);
        buffer.resize(len, 0);
        RequestData { of: self.clone(), data: buffer }
    }

    fn take(&self, len: usize) -> Vec<u8> {
        if len >= KEPT_LEN_MIN {
            let mut unused = self.0.lock();
            if let Some(at) = unused.buffers.iter().rposition(|one| one.capacity() >= len) {
                let buffer = unused.buffers.remove(at);
                unused.least = unused.least.min(unused.buffers.len());
                return buffer;
            }
        }
        Vec::with_capacity(len)
    }

    /// Frees buffers that were not needed since the last call.
    pub(super) fn trim(&self) {
        let mut unused = self.0.lock();
        let least = unused.least.min(unused.buffers.len());
        // Those at the front were used longest ago.
        let freed: Vec<Vec<u8>> = unused.buffers.drain(..least).collect();
        unused.least = unused.buffers.len();
        drop(unused);
        drop(freed);
    }
}

impl RequestData {
    /// Cuts off what was not overwritten.
    pub(super) fn truncate(&mut self, len: usize) {
        self.data.truncate(len);
    }
}

impl Deref for RequestData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.data
    }
}

impl DerefMut for RequestData {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }
}

impl Deref for WriteData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            WriteData::Copied(data) => data,
            WriteData::Shared(data) => data,
        }
    }
}

impl Drop for RequestData {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.data);
        if buffer.capacity() < KEPT_LEN_MIN {
            return;
        }
        let mut unused = self.of.0.lock();
        let kept: usize = unused.buffers.iter().map(Vec::capacity).sum();
        if kept + buffer.capacity() <= KEPT_BYTES_MAX {
            unused.buffers.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 1 << 20;

    fn unused(buffers: &DataBuffers) -> usize {
        buffers.0.lock().buffers.len()
    }

    #[test]
    fn buffers_are_used_again_and_show_nothing_of_what_they_held() {
        let buffers = DataBuffers::default();
        let first = buffers.copy(&vec![7; LEN]);
        let at = first.as_ptr();
        drop(first);
        let second = buffers.copy(&vec![8; LEN / 2]);
        assert_eq!((second.as_ptr(), &second[..]), (at, &vec![8; LEN / 2][..]));
        drop(second);
        let mut third = buffers.room(LEN);
        assert_eq!((third.as_ptr(), third.len()), (at, LEN));
        third[..3].copy_from_slice(b"new");
        third.truncate(3);
        assert_eq!(&third[..], b"new");
        assert_ne!(buffers.room(LEN).as_ptr(), at, "it is in use");
    }

    #[test]
    fn shared_data_is_kept_without_a_copy() {
        let (buffers, shared) = (DataBuffers::default(), Arc::new(vec![7; LEN]));
        let kept = buffers.keep(&Bulk::Shared(&shared));
        assert_eq!((kept.as_ptr(), kept.len()), (shared.as_ptr(), LEN));
        let copied = buffers.keep(&Bulk::Out(&shared));
        assert_ne!(copied.as_ptr(), shared.as_ptr());
        drop((kept, copied));
        assert_eq!((unused(&buffers), Arc::strong_count(&shared)), (1, 1));
    }

    #[test]
    fn little_is_kept_and_nothing_for_long() {
        let buffers = DataBuffers::default();
        drop(buffers.copy(b"short"));
        assert_eq!(unused(&buffers), 0);
        let many: Vec<RequestData> = (0..40).map(|_| buffers.room(LEN)).collect();
        drop(many);
        assert_eq!(unused(&buffers), KEPT_BYTES_MAX / LEN);
        buffers.trim();
        let two = (buffers.room(LEN), buffers.room(LEN));
        drop(two);
        buffers.trim();
        assert_eq!(unused(&buffers), 2, "as many as were used at once");
        buffers.trim();
        assert_eq!(unused(&buffers), 0);
    }
}

//! Buffers for the data of requests, which are used again. A large one that is made anew for each
//! request has its pages from the kernel, zeroed, one fault each: that costs as much as copying the
//! data into it.
//!
//! Invariants:
//! - Nobody sees what an earlier request has left in a buffer: it is overwritten or cut off.
//! - A small request gets no large buffer, see [`LARGER_MAX`].
//! - Memory is bounded: no more than [`KEPT_BYTES_MAX`] are kept, and what was not needed from one
//!   [trim](BufferPool::trim) to the next is freed.

use parking_lot::Mutex;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Shorter ones are the allocator's, which has their pages.
const KEPT_LEN_MIN: usize = 64 << 10;
/// Bytes of unused buffers that are kept.
const KEPT_BYTES_MAX: usize = 16 << 20;
/// A buffer has room for at most so many times the bytes for which it is given out: a connection that
/// does not read holds as many replies as it may, and each would hold a buffer of the largest.
const LARGER_MAX: usize = 2;

/// Buffers of one disk, or of one thread.
#[derive(Clone, Default)]
pub struct BufferPool(Arc<Mutex<Unused>>);

#[derive(Default)]
struct Unused {
    /// The last one was used last.
    buffers: Vec<Vec<u8>>,
    /// How many there were at least since the last trim.
    least: usize,
}

/// Data of a request; its buffer is kept for others when this is dropped. One that is of no pool is
/// empty.
#[derive(Default)]
pub struct PooledBuffer {
    of: Option<BufferPool>,
    data: Vec<u8>,
}

impl BufferPool {
    /// Returns a copy of some data.
    pub fn copy(&self, data: &[u8]) -> PooledBuffer {
        let mut buffer = self.take(data.len());
        buffer.clear();
        buffer.extend_from_slice(data);
        PooledBuffer { of: Some(self.clone()), data: buffer }
    }

    /// Returns a buffer of `len` bytes, to be overwritten: it holds whatever it held before.
    pub fn dirty(&self, len: usize) -> PooledBuffer {
        let mut buffer = self.take(len);
        buffer.resize(len, 0);
        PooledBuffer { of: Some(self.clone()), data: buffer }
    }

    fn take(&self, len: usize) -> Vec<u8> {
        if len >= KEPT_LEN_MIN {
            let mut unused = self.0.lock();
            let fits = |one: &Vec<u8>| (len..=LARGER_MAX * len).contains(&one.capacity());
            if let Some(at) = unused.buffers.iter().rposition(fits) {
                let buffer = unused.buffers.remove(at);
                unused.least = unused.least.min(unused.buffers.len());
                return buffer;
            }
        }
        Vec::with_capacity(len)
    }

    /// Frees buffers that were not needed since the last call.
    pub fn trim(&self) {
        let mut unused = self.0.lock();
        let least = unused.least.min(unused.buffers.len());
        // Those at the front were used longest ago.
        let freed: Vec<Vec<u8>> = unused.buffers.drain(..least).collect();
        unused.least = unused.buffers.len();
        drop(unused);
        drop(freed);
    }
}

impl PooledBuffer {
    /// Bytes of memory that this holds.
    pub fn capacity(&self) -> usize {
        self.data.capacity()
    }

    /// The data, to be taken away and brought back.
    pub fn data_mut(&mut self) -> &mut Vec<u8> {
        &mut self.data
    }

    /// Cuts off what was not overwritten.
    pub fn truncate(&mut self, len: usize) {
        self.data.truncate(len);
    }
}

impl std::fmt::Debug for PooledBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.data.len())
    }
}

impl Deref for PooledBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.data
    }
}

impl DerefMut for PooledBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let Some(of) = self.of.take().filter(|_| self.data.capacity() >= KEPT_LEN_MIN) else {
            return;
        };
        let buffer = std::mem::take(&mut self.data);
        let mut unused = of.0.lock();
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

    fn unused(buffers: &BufferPool) -> usize {
        buffers.0.lock().buffers.len()
    }

    #[test]
    fn buffers_are_used_again_and_show_nothing_of_what_they_held() {
        let buffers = BufferPool::default();
        let first = buffers.copy(&vec![7; LEN]);
        let at = first.as_ptr();
        drop(first);
        let second = buffers.copy(&vec![8; LEN / 2]);
        assert_eq!((second.as_ptr(), &second[..]), (at, &vec![8; LEN / 2][..]));
        drop(second);
        assert_ne!(buffers.dirty(LEN / 2 - 1).as_ptr(), at, "it is much larger");
        let mut third = buffers.dirty(LEN);
        assert_eq!((third.as_ptr(), third.len()), (at, LEN));
        third[..3].copy_from_slice(b"new");
        third.truncate(3);
        assert_eq!(&third[..], b"new");
        assert_ne!(buffers.dirty(LEN).as_ptr(), at, "it is in use");
    }

    #[test]
    fn little_is_kept_and_nothing_for_long() {
        let buffers = BufferPool::default();
        drop(buffers.copy(b"short"));
        assert_eq!(unused(&buffers), 0);
        let many: Vec<PooledBuffer> = (0..40).map(|_| buffers.dirty(LEN)).collect();
        drop(many);
        assert_eq!(unused(&buffers), KEPT_BYTES_MAX / LEN);
        buffers.trim();
        let two = (buffers.dirty(LEN), buffers.dirty(LEN));
        drop(two);
        buffers.trim();
        assert_eq!(unused(&buffers), 2, "as many as were used at once");
        buffers.trim();
        assert_eq!(unused(&buffers), 0);
    }
}

//! The buffer of a read while the kernel may write into it.
//!
//! Invariant: it is taken out when the kernel is done, or never freed. The end of a ring does not
//! wait for reads that wait for a disk, and the kernel would overwrite allocations in the place of
//! their buffers.
//!
//! Safety argument of this module: all bytes of the buffer are initialized before the kernel has it,
//! and only the kernel writes to them before it is taken out.

use compio_buf::{IntoInner, IoBuf, IoBufMut, SetLen};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::DerefMut;
use std::slice;

/// A buffer that the kernel fills.
pub(super) struct ReadBuffer<B>(ManuallyDrop<B>);

impl<B> ReadBuffer<B> {
    pub(super) fn new(buffer: B) -> ReadBuffer<B> {
        ReadBuffer(ManuallyDrop::new(buffer))
    }
}

/// Called after the completion of the read: the kernel is done.
impl<B> IntoInner for ReadBuffer<B> {
    type Inner = B;

    fn into_inner(self) -> B {
        ManuallyDrop::into_inner(self.0)
    }
}

impl<B: DerefMut<Target = [u8]> + 'static> IoBuf for ReadBuffer<B> {
    fn as_init(&self) -> &[u8] {
        &self.0
    }
}

impl<B: DerefMut<Target = [u8]> + 'static> IoBufMut for ReadBuffer<B> {
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        let bytes: &mut [u8] = &mut self.0;
        let (start, len) = (bytes.as_mut_ptr().cast(), bytes.len());
        // SAFETY: these are the same bytes, borrowed for as long. The kernel gets them, and writes bytes
        // that are initialized.
        unsafe { slice::from_raw_parts_mut(start, len) }
    }
}

impl<B> SetLen for ReadBuffer<B> {
    /// Keeps the length: the number of bytes that were read is returned beside the buffer.
    unsafe fn set_len(&mut self, _: usize) {}
}

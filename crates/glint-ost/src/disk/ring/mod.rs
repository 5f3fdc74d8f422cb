//! Reads of a disk by the ring (io_uring) of the calling thread: no thread is woken for them, and as
//! many as are asked for are at the disk at a time.
//!
//! The kernel gives such a read to the disk while it is submitted, and copies the bytes when they
//! are there and the thread looks at its ring. No thread waits for it where the file system can do
//! that (ext4, XFS, btrfs). A thread of the kernel does for a disk that takes no reads at the moment.
//! Each ring has a bounded number of those, for all disks: four for each core
//! (IORING_REGISTER_IOWQ_MAX_WORKERS of io_uring_register(2)). So files for which the kernel always
//! needs one, since their file system knows no read that may not wait (EOPNOTSUPP), are not read here:
//! one disk would hold up reads of all others.
//!
//! A submission may have to read a block of the file system itself, or to wait until the disk takes
//! one request more, and does so in this thread. So this is for requests that would open the file
//! here, too; those that must not wait here for a disk have its [threads](super::threads).
//!
//! Invariants:
//! - File and buffer belong to a read until the kernel is done with it, though its caller has gone: it
//!   is a task of its own. If its ring ends before, its buffer is [never freed](buffer).
//! - No more than [`SEEN_CALLS_MAX`](super::watch::SEEN_CALLS_MAX) reads are at a disk, of all rings
//!   together: fewer than its queue takes requests, and than a ring does. Nothing waits for one of these
//!   places: a thread that is held up by another disk does not give them back.
//! - The watch of the disk sees each read, also one that has no caller any more: its place there is its
//!   place at the disk.

mod buffer;

use super::watch::{DiskWatch, LOOK, SeenCall};
use buffer::ReadBuffer;
use compio_buf::{BufResult, IntoInner};
use compio_driver::op::ReadAt;
use compio_runtime::Runtime;
use compio_runtime::time::timeout;
use futures_channel::oneshot;
use std::io;
use std::ops::DerefMut;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;

/// The place of a read among those that are at a disk.
pub(crate) struct ReadPlace(SeenCall);

fn has_ring() -> bool {
    Runtime::try_with_current(|runtime| runtime.driver_type().is_iouring()).unwrap_or(false)
}

impl ReadPlace {
    /// Takes a place for a read by the ring of this thread, which begins at once; `None` if the thread
    /// has no ring, or there are enough reads at the disk.
    pub(crate) fn take(watch: &Arc<DiskWatch>) -> Option<ReadPlace> {
        has_ring().then(|| watch.begin_seen())?.map(ReadPlace)
    }

    /// Fills a buffer with the bytes of a file from `offset` on. Returns how many these are, and the
    /// buffer; `None` if the ring has ended.
    pub(crate) async fn read<B>(
        self,
        file: impl AsFd + 'static,
        offset: u64,
        buffer: B,
    ) -> Option<(io::Result<usize>, B)>
    where
        B: DerefMut<Target = [u8]> + 'static,
    {
        let (says, done) = oneshot::channel();
        let read = async move {
            let read = read(self.0, file, offset, buffer).await;
            // The caller may have gone.
            let _ = says.send(read);
        };
        compio_runtime::spawn(read).detach();
        done.await.ok()
    }
}

async fn read<B>(
    mut call: SeenCall,
    file: impl AsFd + 'static,
    offset: u64,
    buffer: B,
) -> (io::Result<usize>, B)
where
    B: DerefMut<Target = [u8]> + 'static,
{
    let read = ReadAt::new(file, offset, ReadBuffer::new(buffer));
    let mut read = pin!(compio_runtime::submit(read));
    let BufResult(len, read) = loop {
        match timeout(LOOK, read.as_mut()).await {
            Ok(done) => break done,
            Err(_) => call.look(),
        }
    };
    (len, read.into_inner().into_inner())
}

#[cfg(test)]
mod tests;

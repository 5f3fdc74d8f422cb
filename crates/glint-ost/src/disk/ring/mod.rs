//! Reads of a disk by the ring (io_uring) of the thread that asks: none is handed over, and as many
//! are at the disk as are asked for.
//!
//! The kernel gives such a read to the disk while it is submitted, and copies the bytes when they
//! are there and this thread looks at its ring. No thread waits for it where the file system can do
//! that (ext4, XFS, btrfs). Elsewhere one of the kernel does, and so it does for a disk that takes no
//! reads at the moment. Each ring has a bounded number of those, for all disks: four for each core
//! (IORING_REGISTER_IOWQ_MAX_WORKERS of io_uring_register(2)).
//!
//! A submission may have to read a block of the file system itself, or to wait until the disk takes
//! one request more, and does so in this thread. So this is for who would open the file here, too;
//! those whom a disk may not hold up have its [threads](super::threads).
//!
//! Invariants:
//! - File and buffer belong to a read until the kernel is done with it, whoever still waits for it:
//!   it is a task of its own. If its ring ends before, its buffer is [never freed](buffer).
//! - No more than [`AT_DISK_MAX`] reads are at a disk, of all rings together, and nobody waits for one
//!   of these places: a thread that is held up by another disk does not give them back.
//! - The watch of the disk sees each read, also one that nobody waits for any more.

mod buffer;

use super::watch::{DiskWatch, SeenCall};
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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Most reads that are at one disk: fewer than its queue takes requests, and than a ring does.
const AT_DISK_MAX: usize = 32;
/// How often a thread says that a read has not ended.
const LOOK: Duration = Duration::from_millis(100);

/// Reads by rings that are at one disk.
#[derive(Default)]
pub(crate) struct RingReads(Arc<AtomicUsize>);

/// The place of a read among them.
pub(crate) struct ReadPlace(Arc<AtomicUsize>);

impl Drop for ReadPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn has_ring() -> bool {
    Runtime::try_with_current(|runtime| runtime.driver_type().is_iouring()).unwrap_or(false)
}

impl RingReads {
    /// Returns a place for a read by the ring of this thread; `None` if it has no ring, or there are
    /// enough reads at the disk.
    pub(crate) fn place(&self) -> Option<ReadPlace> {
        let next = |at_disk: usize| (at_disk < AT_DISK_MAX).then_some(at_disk + 1);
        let take = || self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok();
        has_ring().then(take)??;
        Some(ReadPlace(self.0.clone()))
    }
}

impl ReadPlace {
    /// Fills a buffer with what a file has from `offset` on. Returns how many bytes that are, and the
    /// buffer; `None` if the ring has ended.
    pub(crate) async fn read<B>(
        self,
        watch: &Arc<DiskWatch>,
        file: impl AsFd + 'static,
        offset: u64,
        buffer: B,
    ) -> Option<(io::Result<usize>, B)>
    where
        B: DerefMut<Target = [u8]> + 'static,
    {
        let (says, done) = oneshot::channel();
        let call = watch.begin_seen();
        let read = async move {
            let read = read(call, file, offset, buffer).await;
            drop(self);
            // Who asked may have gone.
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

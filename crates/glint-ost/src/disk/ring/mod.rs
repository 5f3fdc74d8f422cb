//! Reads of a disk by the ring (io_uring) of the thread that asks: none is handed over, and as many
//! are at the disk as are asked for.
//!
//! The kernel gives such a read to the disk while it is submitted, and copies the bytes when they
//! are there and this thread looks at its ring. No thread waits for it where the file system can do
//! that (ext4, XFS, btrfs). Elsewhere one of the kernel does, of which each ring has a bounded number:
//! four for each core, unless IORING_REGISTER_IOWQ_MAX_WORKERS of io_uring_register(2) says another
//! one.
//!
//! A submission may have to read a block of the file system itself, and waits for that in this thread.
//! So this is for who would open the file here, too; those whom a disk may not hold up have its
//! [threads](super::threads), and so have threads without a ring.
//!
//! Invariants:
//! - File and buffer belong to a read until the kernel is done with it, whoever still waits for it:
//!   it is a task of its own. If its ring ends before, its buffer is [never freed](buffer).
//! - No more than [`DEPTH_MAX`] reads are at a disk, of all rings together. Others wait for their turn
//!   in the order in which they came, and the disk is not blamed for that.
//! - The watch of the disk sees each read, also one that nobody waits for any more.

mod buffer;

use super::watch::{DiskWatch, SeenCall};
use buffer::ReadBuffer;
use compio_buf::{BufResult, IntoInner};
use compio_driver::op::ReadAt;
use compio_runtime::Runtime;
use compio_runtime::time::timeout;
use futures_channel::oneshot;
use glint_wait::Turns;
use std::io;
use std::ops::DerefMut;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Most reads that are at one disk: as many as there may be threads that wait for it. A ring has room
/// for many times that.
const DEPTH_MAX: usize = 64;
/// How often a thread says that a read has not ended.
const LOOK: Duration = Duration::from_millis(100);

/// Reads by rings that are at one disk.
#[derive(Clone, Default)]
pub(crate) struct RingReads(Arc<Depth>);

#[derive(Default)]
struct Depth {
    at_disk: AtomicUsize,
    turns: Turns,
}

/// The place of a read among those at the disk.
struct Turn(Arc<Depth>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.at_disk.fetch_sub(1, Ordering::AcqRel);
        self.0.turns.call(&());
    }
}

/// Returns true if this thread has an io_uring.
pub(crate) fn has_ring() -> bool {
    Runtime::try_with_current(|runtime| runtime.driver_type().is_iouring()).unwrap_or(false)
}

impl RingReads {
    async fn turn(&self) -> Turn {
        let depth = &self.0;
        let is_free = |at_disk: usize| (at_disk < DEPTH_MAX).then_some(at_disk + 1);
        let take = || {
            let taken = depth.at_disk.fetch_update(Ordering::AcqRel, Ordering::Acquire, is_free);
            taken.ok().map(|_| Turn(depth.clone()))
        };
        depth.turns.take((), take).await
    }

    /// Fills a buffer with what a file has from `offset` on. Returns how many bytes that are, and the
    /// buffer; `None` if the ring has ended. This thread [has a ring](has_ring).
    pub(crate) async fn read<B>(
        &self,
        watch: &Arc<DiskWatch>,
        file: impl AsFd + 'static,
        offset: u64,
        buffer: B,
    ) -> Option<(io::Result<usize>, B)>
    where
        B: DerefMut<Target = [u8]> + 'static,
    {
        let turn = self.turn().await;
        let (says, done) = oneshot::channel();
        let call = watch.begin_seen();
        let read = async move {
            let read = read(call, file, offset, buffer).await;
            drop(turn);
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

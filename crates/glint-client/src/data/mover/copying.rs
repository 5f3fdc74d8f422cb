//! Copying of ranges of a file to its new objects.
//!
//! Invariant: what lies in a range is the same in the new objects as it was in the old ones at some time
//! after the copying began, and so are zeros: of holes, and of what lies behind the end of the file.
//! What the new objects have behind all that was written to them are zeros.

use super::progress::CopyProgress;
use crate::client::Client;
use futures_util::stream::{FuturesUnordered, StreamExt};
use glint_net::Transport;
use glint_proto::{Bulk, Errno, FsResult, Ino, Layout, OstRequest};
use std::cell::Cell;

/// How much is copied with one read, and how many there are at once.
const PIECE_BYTES: u64 = 1 << 20;
const PIECES_MAX: usize = 8;
const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// A file whose data is copied to new objects.
pub(super) struct Copying<'a> {
    pub(super) ino: Ino,
    pub(super) to: Layout,
    /// Where the last byte ends that may have been written to the new objects.
    pub(super) written: &'a Cell<u64>,
    /// Whether the new objects may be written.
    pub(super) may_write: &'a dyn Fn() -> bool,
    /// Looked at between pieces: why it ends.
    pub(super) check: &'a dyn Fn() -> FsResult<()>,
    /// Hears of each answer.
    pub(super) progress: &'a CopyProgress,
    /// Nobody changes the file meanwhile.
    pub(super) is_still: bool,
}

impl<T: Transport> Client<T> {
    /// Copies ranges of a file of `size` bytes, from the objects of `from`. When it returns, none of its
    /// requests is under way.
    pub(super) async fn copy_ranges(
        &self,
        copying: &Copying<'_>,
        from: Layout,
        size: u64,
        ranges: &[(u64, u64)],
    ) -> FsResult<()> {
        let mut pieces = FuturesUnordered::new();
        let mut result = Ok(());
        'ranges: for (start, end) in ranges.iter().copied() {
            let below = end.min(size);
            let (mut at, mut data_end) = (start, start);
            while at < below {
                result = (copying.check)();
                if result.is_err() {
                    break 'ranges;
                }
                if at >= data_end {
                    let found = self.find_data(copying.ino, from, at, below, size);
                    let found = copying.progress.step(found).await;
                    let cleared = match found {
                        Ok((data, _)) => self.clear(copying, at, data).await,
                        Err(errno) => Err(errno),
                    };
                    match cleared.and(found) {
                        Ok(found) => (at, data_end) = found,
                        Err(errno) => {
                            result = Err(errno);
                            break 'ranges;
                        }
                    }
                    continue;
                }
                let len = PIECE_BYTES.min(data_end - at);
                copying.written.set(copying.written.get().max(at + len));
                pieces.push(self.copy_piece(copying, from, at, len));
                at += len;
                if pieces.len() >= PIECES_MAX
                    && let Some(Err(errno)) = pieces.next().await
                {
                    result = Err(errno);
                    break 'ranges;
                }
            }
            result = self.clear(copying, start.max(size), end).await;
            if result.is_err() {
                break;
            }
        }
        while let Some(copied) = pieces.next().await {
            result = result.and(copied);
        }
        result
    }

    /// Where data begins and ends, within a part of the file; its end twice if there is none.
    async fn find_data(
        &self,
        ino: Ino,
        from: Layout,
        start: u64,
        end: u64,
        size: u64,
    ) -> FsResult<(u64, u64)> {
        let data = match self.seek_objects(ino, from, start, size, false).await {
            Ok(data) if data < end => data,
            Ok(_) | Err(Errno::ENXIO) => return Ok((end, end)),
            Err(errno) => return Err(errno),
        };
        let hole = self.seek_objects(ino, from, data, size, true).await?;
        Ok((data, hole.min(end)))
    }

    async fn copy_piece(
        &self,
        copying: &Copying<'_>,
        from: Layout,
        offset: u64,
        len: u64,
    ) -> FsResult<()> {
        let mut data = vec![0; len as usize];
        let (ino, progress) = (copying.ino, copying.progress);
        let got = progress.step(self.read_objects(ino, from, offset, &mut data)).await?;
        if got as u64 != len && copying.is_still {
            // Nobody makes it shorter meanwhile.
            return Err(Errno::EIO);
        }
        // If somebody has made it shorter, that is a change of the rest.
        let write = self.write_objects(ino, copying.to, offset, &data, copying.may_write);
        progress.step(write).await
    }

    /// Makes zeros of a range of the new objects, as far as they may have been written.
    async fn clear(&self, copying: &Copying<'_>, start: u64, end: u64) -> FsResult<()> {
        let end = end.min(copying.written.get());
        if start >= end {
            return Ok(());
        }
        let to = copying.to;
        for stripe in 0..to.stripe_count.max(1) {
            let offset = to.object_size(stripe, start);
            let len = to.object_size(stripe, end) - offset;
            if len == 0 {
                continue;
            }
            let object = to.object(copying.ino, stripe);
            let request = OstRequest::Fallocate { object, mode: PUNCH_HOLE, offset, len };
            let ost = self.placement.ost_of(to, stripe);
            let ask = self.ask_ost(ost, request, Bulk::None, copying.may_write);
            copying.progress.step(ask).await?;
        }
        Ok(())
    }
}

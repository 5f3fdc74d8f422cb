//! Copies a large file before it is locked, so that little is left to be copied under the lock.
//!
//! Invariants:
//! - The objects are watched before anything is read of them. So whatever the new objects may lack is in
//!   [`CopyAhead::pending`], or will be told by the watches as a change. A watch that does not know
//!   leaves everything pending.
//! - Data that a client has written and not sent is a change later: at the latest when it returns its
//!   lock.
//! - A range is pending until it is copied; what ends in between ends the move.
//! - What was copied is on stable storage when a round ends, so that the sync under the lock is a
//!   short one: calls of this client wait for that, and it is given up after a lease.

use super::copying::Copying;
use super::progress::CopyProgress;
use super::ranges::FileRanges;
use crate::client::Client;
use futures_util::future::try_join_all;
use glint_net::Transport;
use glint_proto::{Attr, Bulk, Errno, FsResult, Ino, Layout, OstReply, OstRequest, clock};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Smaller files are copied under the lock alone, if nothing else was set.
const FILE_BYTES_MIN: u64 = 16 << 20;
/// So much is left for the lock: it is copied in a fraction of a second.
const LEFT_BYTES: u64 = 8 << 20;
const ROUNDS_MAX: usize = 12;
/// So much is copied before it is brought to stable storage, and before it is looked whether the
/// watches have to be asked; after this time they are, so that they do not end.
const PART_BYTES: u64 = 64 << 20;
const ASK: Duration = Duration::from_secs(60);

/// The state of a copy that is made while the file is used.
pub(super) struct CopyAhead {
    /// Where the data lies.
    pub(super) from: Layout,
    /// Numbers of the watches of its objects, by stripe.
    watches: Vec<u64>,
    round: u32,
    asked: Instant,
    /// What the new objects may lack, beside what was changed since the watches were asked.
    pub(super) pending: FileRanges,
}

impl<T: Transport> Client<T> {
    /// Copies a file to the objects that are planned for it while it is used, until little is left, and
    /// as long as the plan is good; `None` if it is small, or cannot be watched: then nothing is copied.
    pub(super) async fn copy_ahead(
        &self,
        planned: &Attr,
        written: &Cell<u64>,
        is_planned: &dyn Fn() -> bool,
        progress: &CopyProgress,
    ) -> FsResult<Option<CopyAhead>> {
        let (ino, to) = (planned.ino, planned.layout);
        let bytes_min = self.data.ahead_bytes_min.get().copied().unwrap_or(FILE_BYTES_MIN);
        if !planned.size_on_ost && planned.size < bytes_min {
            return Ok(None);
        }
        let from = self.asked_attributes(ino).await?.layout;
        let size = self.glimpse(ino, from).await?.map_or(0, |objects| objects.size);
        if size < bytes_min {
            return Ok(None);
        }
        // A server has too many watches, or is away: all is copied under the lock.
        let Ok(watches) = self.watch_objects(ino, from).await else { return Ok(None) };
        let pending = FileRanges::all();
        let mut ahead = CopyAhead { from, watches, round: 0, asked: clock::now(), pending };
        let mut before = u64::MAX;
        for _ in 0..ROUNDS_MAX {
            let round = self.copy_round((ino, to), written, is_planned, &mut ahead, progress);
            let left = round.await?;
            // A file that is changed as fast as it is copied is left to the lock, too.
            if left <= LEFT_BYTES || left > before / 4 * 3 {
                break;
            }
            before = left;
        }
        Ok(Some(ahead))
    }

    /// Copies what is pending, and asks what was changed meanwhile. Returns how many bytes that is.
    pub(super) async fn copy_round(
        &self,
        (ino, to): (Ino, Layout),
        written: &Cell<u64>,
        is_planned: &dyn Fn() -> bool,
        ahead: &mut CopyAhead,
        progress: &CopyProgress,
    ) -> FsResult<u64> {
        let check = || if is_planned() { Ok(()) } else { Err(Errno::EIO) };
        let copying = Copying {
            ino,
            to,
            written,
            may_write: is_planned,
            check: &check,
            progress,
            is_still: false,
        };
        let from = ahead.from;
        // Asked for after what is pending was told: a change of it that is later is told later.
        let size = self.glimpse(ino, from).await?.map_or(0, |objects| objects.size);
        let pending = std::mem::take(&mut ahead.pending);
        let mut unsynced = 0;
        for part in pending.parts(size.max(written.get()), PART_BYTES) {
            self.copy_ranges(&copying, from, size, &[part]).await?;
            unsynced += part.1 - part.0;
            if unsynced >= PART_BYTES {
                progress.step(self.sync_objects(ino, to)).await?;
                unsynced = 0;
            }
            if clock::since(ahead.asked) >= ASK {
                progress.step(self.ask_changed(ino, ahead)).await?;
            }
        }
        if unsynced > 0 {
            progress.step(self.sync_objects(ino, to)).await?;
        }
        progress.step(self.ask_changed(ino, ahead)).await?;
        Ok(ahead.pending.bytes_before(size))
    }

    /// Adds to what is pending what was changed since this was asked last.
    pub(super) async fn ask_changed(&self, ino: Ino, ahead: &mut CopyAhead) -> FsResult<()> {
        let (from, round) = (ahead.from, ahead.round + 1);
        let ask = |(stripe, watch): (usize, &u64)| {
            self.changed_extents(ino, (from, stripe as u16), *watch, round)
        };
        let changed = try_join_all(ahead.watches.iter().enumerate().map(ask)).await;
        match changed {
            Ok(changed) => {
                let mut ranges = FileRanges::default();
                for (stripe, extents) in changed.into_iter().enumerate() {
                    let add = |extent| ranges.add(from, stripe as u16, extent);
                    extents.into_iter().for_each(add);
                }
                ahead.pending.extend(ranges);
                ahead.round = round;
            }
            // A server was started again, or another one is the head of a chain.
            Err(Errno::ENODATA) => {
                ahead.watches = self.watch_objects(ino, from).await?;
                ahead.round = 0;
                ahead.pending = FileRanges::all();
            }
            Err(errno) => return Err(errno),
        }
        ahead.asked = clock::now();
        Ok(())
    }

    /// Has the objects of a file watched. Returns the numbers of the watches.
    async fn watch_objects(&self, ino: Ino, layout: Layout) -> FsResult<Vec<u64>> {
        let watch = |_, object| OstRequest::Watch { object };
        let replies = self.each_object(ino, layout, watch, &|| true).await?;
        let number = |reply| match reply {
            OstReply::Watched { watch } => Ok(watch),
            _ => Err(Errno::EPROTO),
        };
        replies.into_iter().map(number).collect()
    }

    /// Extents of an object that were changed in a round of its watch.
    async fn changed_extents(
        &self,
        ino: Ino,
        (layout, stripe): (Layout, u16),
        watch: u64,
        round: u32,
    ) -> FsResult<Vec<(u64, u64)>> {
        let (object, ost) = (layout.object(ino, stripe), self.placement.ost_of(layout, stripe));
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let request = OstRequest::Changed { object, watch, round, after };
            let reply = self.ask_ost(ost, request, Bulk::None, &|| true).await?;
            let OstReply::Changed { extents } = reply else { return Err(Errno::EPROTO) };
            for (start, end) in extents {
                if start >= end {
                    return Ok(all);
                }
                if start < after {
                    return Err(Errno::EPROTO);
                }
                all.push((start, end));
                after = end;
            }
        }
    }
}

//! Changes of one OST that were answered for, and how far they are on stable storage.
//!
//! Invariant: one flush is under way for all who ask for one. Those who ask meanwhile wait for it, and
//! share the next one.

use futures_util::lock;
use glint_proto::FsResult;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers of changes of one OST, counted apart from those of others.
#[derive(Default)]
pub(crate) struct ChangesOfOst {
    /// The last one, and the last one of an object without copies.
    pub(crate) last: AtomicU64,
    pub(crate) last_alone: AtomicU64,
    /// Up to this one they are on stable storage.
    pub(crate) synced: AtomicU64,
    /// Held while a flush is under way and somebody waits for it.
    flushing: lock::Mutex<()>,
}

impl ChangesOfOst {
    /// Whether all are on stable storage.
    pub(crate) fn are_synced(&self) -> bool {
        self.last.load(Ordering::Acquire) <= self.synced.load(Ordering::Acquire)
    }

    /// Has `flush` bring to stable storage all that was answered for so far, unless the flush of somebody
    /// else does.
    pub(crate) async fn commit(&self, flush: impl Future<Output = FsResult<()>>) -> FsResult<()> {
        let mine = self.last.load(Ordering::Acquire);
        let is_synced = || mine <= self.synced.load(Ordering::Acquire);
        if is_synced() {
            return Ok(());
        }
        let _flushing = self.flushing.lock().await;
        if is_synced() {
            return Ok(());
        }
        let last = self.last.load(Ordering::Acquire);
        flush.await?;
        self.synced.fetch_max(last, Ordering::AcqRel);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once, yield_now};
    use futures_util::future::{join, join_all};
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn those_who_ask_while_a_flush_is_under_way_share_the_next_one() {
        let (changes, flushes) = (ChangesOfOst::default(), AtomicUsize::new(0));
        let flush = || async {
            flushes.fetch_add(1, Ordering::Relaxed);
            yield_now().await;
            Ok(())
        };
        changes.last.store(1, Ordering::Release);
        let mut first = pin!(changes.commit(flush()));
        assert!(block_on(poll_once(first.as_mut())).is_none());
        changes.last.store(2, Ordering::Release);
        let others = join_all((0..3).map(|_| changes.commit(flush())));
        assert_eq!(block_on(join(first, others)), (Ok(()), vec![Ok(()); 3]));
        assert!(changes.are_synced());
        assert_eq!(flushes.load(Ordering::Relaxed), 2);
        block_on(changes.commit(flush())).unwrap();
        assert_eq!(flushes.load(Ordering::Relaxed), 2, "there is nothing to flush");
    }

    #[test]
    fn a_flush_that_nobody_waits_for_any_more_keeps_nobody() {
        let changes = ChangesOfOst::default();
        changes.last.store(1, Ordering::Release);
        {
            let mut still = pin!(changes.commit(std::future::pending()));
            assert!(block_on(poll_once(still.as_mut())).is_none());
        }
        block_on(changes.commit(async { Ok(()) })).unwrap();
        assert!(changes.are_synced());
    }
}

//! Changes that were answered and are durable: what the server says of that, and waiting for it.
//!
//! A server leaves out of what it calls stable the changes of a chain that may have lost some of
//! them, or has nobody; and its answer to a commit does not wait for that chain, because others have
//! nothing there. So who has something there asks again, until the chain has moved or has somebody.

use super::ClientSession;
use crate::host;
use crate::transport::frame_writer::KeptFrame;
use glint_proto::retry::Failing;
use glint_proto::{Committed, Errno, FsResult, clock};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pause before a server is asked again whose answer did not say that all is stable.
const AGAIN: Duration = Duration::from_millis(200);

/// Changes of data in the log of a server at some moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogMark {
    boot_verifier: u64,
    /// The last of them.
    last: u64,
}

impl ClientSession {
    /// The server has said, in the run with this boot verifier, what is durable.
    pub(crate) fn on_committed(
        &self,
        boot_verifier: u64,
        committed: Committed,
        spare: &mut impl FnMut(KeptFrame),
    ) {
        let is_news = |which: usize, now: u64| now > self.committed[which].load(Ordering::Acquire);
        if boot_verifier == self.boot_verifier.load(Ordering::Acquire)
            && (is_news(0, committed.mds) || is_news(1, committed.ost))
        {
            self.forget_durable(Some((boot_verifier, committed)), spare);
        }
    }

    /// Takes out of the replay log what is known to be durable, with what a run of the server has
    /// just said of that.
    pub(crate) fn forget_durable(
        &self,
        news: Option<(u64, Committed)>,
        spare: &mut impl FnMut(KeptFrame),
    ) {
        // The server says so of its own copy. What the chain may have lost is to be sent to it.
        let moving = self.chain_rows.get().map(|rows| rows.moved.moving()).unwrap_or_default();
        moving.into_iter().for_each(|target| self.move_chain(target));
        self.change_log(|log| {
            // Another thread may have begun to count anew, which it does with the log locked.
            let run = self.boot_verifier.load(Ordering::Acquire);
            if let Some((_, news)) = news.filter(|(of, _)| *of == run) {
                self.committed[0].fetch_max(news.mds, Ordering::AcqRel);
                self.committed[1].fetch_max(news.ost, Ordering::AcqRel);
            }
            let [mds, ost] = [0, 1].map(|which| self.committed[which].load(Ordering::Acquire));
            log.committed(Committed { mds, ost }, spare);
            if let Some(rows) = self.chain_rows.get() {
                rows.abandoned.are_durable(self.logged(run, ost));
            }
        });
    }

    /// Marks the changes of data that were answered so far.
    pub(crate) fn mark_log(&self) -> LogMark {
        let log = self.replay_log.lock();
        LogMark { boot_verifier: self.boot_verifier.load(Ordering::Acquire), last: log.mark() }
    }

    /// Whether none of them is left; `None` if the server has started again since, so that what is
    /// left has other numbers.
    pub(crate) fn are_stable(&self, mark: LogMark) -> Option<bool> {
        let log = self.replay_log.lock();
        let is_same_run = mark.boot_verifier == self.boot_verifier.load(Ordering::Acquire);
        is_same_run.then(|| log.first().is_none_or(|first| first > mark.last))
    }

    /// Has a server commit (`ask`) until all changes of data that it has answered so far are on
    /// stable storage, or have moved elsewhere. What fails is tried again as data is; EIO if the
    /// client is evicted meanwhile.
    pub(crate) async fn until_stable(&self, ask: impl AsyncFn() -> FsResult<()>) -> FsResult<()> {
        let evictions = self.evictions.load(Ordering::Acquire);
        let (mut mark, mut failing) = (self.mark_log(), None);
        loop {
            let asked = ask().await;
            if self.evictions.load(Ordering::Acquire) != evictions {
                return Err(Errno::EIO);
            }
            if let Err(errno) = asked {
                let now = clock::now();
                let again = Failing::again(failing, errno, now).ok_or(errno)?;
                failing = Some(again);
                host::sleep(again.rests_until.saturating_duration_since(now)).await;
                continue;
            }
            failing = None;
            match self.are_stable(mark) {
                Some(true) => return Ok(()),
                Some(false) => host::sleep(AGAIN).await,
                None => mark = self.mark_log(),
            }
        }
    }
}

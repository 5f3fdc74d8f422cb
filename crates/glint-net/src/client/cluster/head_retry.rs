//! How a client goes on with the head of a chain that has not done what it was asked for.

use crate::client::cluster::{AGAIN_MAX, AGAIN_MIN, Cluster};
use crate::client::transport::Transport;
use crate::host;
use glint_proto::chain::Destination;
use glint_proto::limits::REPLAY_FAILS_MS_MAX;
use glint_proto::retry::Failing;
use glint_proto::{Errno, FsResult, OstRequest, clock};
use glint_wait::Backoff;
use std::time::{Duration, Instant};

/// What has not gone well with heads of one chain.
pub(super) struct HeadRetry {
    pauses: Backoff,
    failing: Option<Failing>,
    /// Until when that may go on: from a failure on that comes after what went well, or after a wait
    /// for members of the chain.
    patience: Option<Instant>,
}

impl HeadRetry {
    pub(super) fn new() -> HeadRetry {
        HeadRetry { pauses: Backoff::new(AGAIN_MIN, AGAIN_MAX), failing: None, patience: None }
    }
}

impl<M: Transport> Cluster<M> {
    /// Waits for what a head is `asked` for, and after a failure for as long as the next try is to
    /// wait. Returns `None` if it is to be asked again, or another head; an error if it has failed for
    /// too long.
    pub(super) async fn answer_of_head<T>(
        &self,
        target: u16,
        request: &OstRequest,
        to: Destination,
        retry: &mut HeadRetry,
        asked: impl Future<Output = FsResult<T>>,
    ) -> Option<FsResult<T>> {
        let elsewhere = self.until_elsewhere(target, request, to);
        let answered = futures_lite::future::or(async { Some(asked.await) }, async {
            elsewhere.await;
            None
        });
        match answered.await {
            Some(Ok(answer)) => {
                (retry.failing, retry.patience) = (None, None);
                Some(Ok(answer))
            }
            None => {
                retry.patience = None;
                None
            }
            Some(Err(Errno::EREMCHG)) => {
                retry.patience = None;
                // A failure to ask is one to be told later.
                let _ = self.ask_rows(retry.pauses.pause(false)).await;
                None
            }
            Some(Err(errno)) => {
                let now = clock::now();
                let patience = *retry
                    .patience
                    .get_or_insert_with(|| now + Duration::from_millis(REPLAY_FAILS_MS_MAX));
                let failing = Failing::again(retry.failing, errno, now);
                retry.failing = failing.filter(|_| now < patience);
                let Some(failing) = retry.failing else { return Some(Err(errno)) };
                host::sleep(failing.rests_until.saturating_duration_since(now)).await;
                None
            }
        }
    }
}

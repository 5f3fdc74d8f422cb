//! Has heads of chains bring to stable storage what was acknowledged before they took over.

use crate::client::cluster::{AGAIN_MAX, AGAIN_MIN, Cluster};
use crate::client::recovery::abandoned::ObjectToSync;
use crate::client::transport::{Durability, Transport};
use crate::host;
use glint_proto::limits::REPLAY_FAILS_MS_MAX;
use glint_proto::retry::Failing;
use glint_proto::{Bulk, Errno, FsResult, OstRequest, clock};
use glint_wait::Backoff;
use std::time::Duration;

impl<M: Transport> Cluster<M> {
    /// Has the server of a head bring everything that it has ordered to stable storage, in all
    /// copies, and what others had ordered when it took over. Syncs that it answers by one row
    /// before and after this stand for all that was acknowledged in the chain before.
    pub(super) async fn settle_server_of(&self, ost: u16) -> FsResult<()> {
        match ost < self.welcome.own_osts {
            true => self.mds.commit().await,
            false => self.oss_of(ost).await?.commit().await,
        }
    }

    /// Has the head of a chain bring changes of older rows to stable storage that this client keeps
    /// no more. Returns false if nobody is the head now.
    pub(super) async fn settle_abandoned(&self, target: u16) -> bool {
        let mut retry = Backoff::new(AGAIN_MIN, AGAIN_MAX);
        // As for changes that are sent again.
        let (mut patience, mut failing) = (None, None);
        while let Some(row) = self.rows.get(target)
            && let Some(ObjectToSync { object, capability }) = self.rows.abandoned.to_settle(&row)
        {
            let request = OstRequest::Sync { object };
            let chosen = self.rows.destination(target, &request, |ost| self.is_near(ost));
            let Some((to, by)) = chosen.and_then(|to| Some((to, to.chain?))) else {
                return false;
            };
            let settled = async {
                self.ask_ost(to, request, capability, Bulk::None, &|| true).await?;
                self.settle_server_of(to.ost).await?;
                self.ask_ost(to, request, capability, Bulk::None, &|| true).await
            };
            let elsewhere = self.until_elsewhere(target, &request, to);
            let settled = futures_lite::future::or(async { Some(settled.await) }, async {
                elsewhere.await;
                None
            });
            match settled.await {
                Some(Ok(_)) => {
                    self.rows.abandoned.on_settled(by);
                    (patience, failing) = (None, None);
                }
                None => patience = None,
                Some(Err(Errno::EREMCHG)) => {
                    patience = None;
                    // A failure to ask is one to be told later.
                    let _ = self.ask_rows(retry.pause(false)).await;
                }
                Some(Err(errno)) => {
                    let now = clock::now();
                    let patience = *patience
                        .get_or_insert_with(|| now + Duration::from_millis(REPLAY_FAILS_MS_MAX));
                    failing = Failing::again(failing, errno, now).filter(|_| now < patience);
                    match failing {
                        Some(failing) => {
                            host::sleep(failing.rests_until.saturating_duration_since(now)).await;
                        }
                        None => self.rows.on_unsettled(by, errno),
                    }
                }
            }
        }
        true
    }
}

//! Requests to a chain: which member is asked, until one has answered.

use crate::client::cluster::{AGAIN_MAX, AGAIN_MIN, Cluster, LOOK_AGAIN};
use crate::client::transport::Transport;
use crate::host;
use glint_proto::chain::Destination;
use glint_proto::{Bulk, Capability, Errno, FsResult, OstReply, OstRequest};
use glint_wait::Backoff;
use std::time::Duration;

impl<M: Transport> Cluster<M> {
    /// Asks the member of a chain that the request is for, whichever it is until it is answered.
    pub(super) async fn ask_chain(
        &self,
        target: u16,
        request: OstRequest,
        capability: Option<Capability>,
        mut bulk: Bulk<'_>,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<OstReply> {
        let mut retry = Backoff::new(AGAIN_MIN, AGAIN_MAX);
        loop {
            self.send_moved(target).await;
            let chosen = self.rows.destination(target, &request, |ost| self.is_near(ost));
            let Some(to) = chosen.filter(|_| !self.rows.moved.is_moving(target)) else {
                if !is_held() {
                    return Err(Errno::EIO);
                }
                self.ask_rows(retry.pause(false)).await?;
                if self.rows.is_lost(target) {
                    return Err(Errno::ENXIO);
                }
                continue;
            };
            let asked = self.ask_ost(to, request, capability, bulk.lend(), is_held);
            let answer = futures_lite::future::or(async { Some(asked.await) }, async {
                self.until_elsewhere(target, &request, to).await;
                None
            });
            match answer.await {
                Some(Err(Errno::EREMCHG)) => {
                    let now = self.rows.get(target).map(|row| row.version);
                    let is_news = now > to.chain.map(|chain| chain.version);
                    if !is_news {
                        // The server has not heard of the row yet, or the MDS of the loss.
                        self.ask_rows(retry.pause(false)).await?;
                    }
                }
                Some(answer) => return answer,
                None => {}
            }
        }
    }

    /// Waits until a request to a chain would go elsewhere, or nowhere.
    pub(super) async fn until_elsewhere(&self, target: u16, request: &OstRequest, to: Destination) {
        self.until_rows(|| {
            let now = self.rows.destination(target, request, |ost| self.is_near(ost));
            now.is_some_and(|now| now.ost != to.ost) || self.rows.is_lost(target)
        })
        .await;
    }

    /// Waits until the rows of chains say something.
    pub(super) async fn until_rows(&self, say: impl Fn() -> bool) {
        loop {
            host::sleep(LOOK_AGAIN).await;
            // The request sees what fails here.
            let _ = self.ask_rows(Duration::ZERO).await;
            if say() {
                return;
            }
        }
    }
}

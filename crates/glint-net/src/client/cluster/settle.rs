//! Has heads of chains bring to stable storage what was acknowledged before they took over.

use crate::client::cluster::Cluster;
use crate::client::cluster::head_retry::HeadRetry;
use crate::client::recovery::abandoned::ObjectToSync;
use crate::client::transport::{Durability, Transport};
use glint_proto::{Bulk, FsResult, OstRequest};

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
        let mut retry = HeadRetry::new();
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
            match self.answer_of_head(target, &request, to, &mut retry, settled).await {
                None => {}
                Some(Ok(_)) => self.rows.abandoned.on_settled(by),
                Some(Err(errno)) => self.rows.on_unsettled(by, errno),
            }
        }
        true
    }
}

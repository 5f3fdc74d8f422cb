//! The in-process transport: calls the handler on the caller's core. No copy, no
//! queue, no thread.

use crate::{Service, Transport};
use glint_proto::message::Welcome;
use glint_proto::{
    Arrival, Bulk, Cred, FsResult, MdsReply, MdsRequest, OstReply, OstRequest, Timestamp,
};
use std::sync::Arc;

/// Calls a service of this process.
pub struct InProcess<S> {
    service: Arc<S>,
}

impl<S> InProcess<S> {
    /// A transport to `service`.
    pub fn new(service: Arc<S>) -> InProcess<S> {
        InProcess { service }
    }
}

impl<S: Service> Transport for InProcess<S> {
    async fn mds(&self, cred: &Cred, request: &MdsRequest<'_>) -> FsResult<MdsReply> {
        let arrival = Arrival { now: Timestamp::now(), ..Arrival::default() };
        self.service.mds(&arrival, cred, request).await.reply
    }

    async fn mds_soon(&self, cred: &Cred, request: &MdsRequest<'_>) -> FsResult<()> {
        self.mds(cred, request).await.map(drop)
    }

    async fn ost(&self, ost: u16, request: OstRequest, bulk: Bulk<'_>) -> FsResult<OstReply> {
        self.service.ost(ost, request, bulk).await.reply
    }

    fn welcome(&self) -> Welcome {
        self.service.welcome()
    }

    async fn status(&self) -> FsResult<String> {
        Ok(self.service.status())
    }

    async fn stats(&self) -> FsResult<String> {
        Ok(crate::stats::as_json("server"))
    }

    async fn reset_stats(&self) -> FsResult<()> {
        glint_telemetry::reset();
        Ok(())
    }
}

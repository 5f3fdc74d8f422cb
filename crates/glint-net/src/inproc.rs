//! The in-process transport: calls the handler on the caller's core. No copy, no
//! queue, no thread.

use crate::{Service, Transport};
use glint_proto::message::Welcome;
use glint_proto::{Bulk, Cred, FsResult, MdsReply, MdsRequest, OstReply, OstRequest};
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
        self.service.mds(cred, None, request).await
    }

    async fn ost(&self, ost: u16, request: OstRequest, bulk: Bulk<'_>) -> FsResult<OstReply> {
        self.service.ost(ost, request, bulk).await
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

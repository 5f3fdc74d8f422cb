//! The in-process transport: calls the handler on the caller's core. No copy, no
//! queue, no thread.

use crate::Service;
use crate::client::chain_rows::ChainRows;
use crate::client::cluster::ClientIdentity;
use crate::client::remote::random_client;
use crate::client::transport::{
    Durability, Granting, LockClient, LockTraffic, MdsRequests, MdsSession, OstRequests,
    PeerRequests, ServerStatistics, Transport,
};
use glint_proto::chain::{Chain, Destination, Forward, PeerReply, PeerRequest};
use glint_proto::lock::Return;
use glint_proto::message::Welcome;
use glint_proto::oss::OssInfo;
use glint_proto::{
    Arrival, Bulk, Capability, Cred, Errno, FsResult, LocalObject, MdsRequest, MetadataService,
    ObjectId, OstReply, OstRequest, Session, Timestamp,
};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Calls a service of this process.
pub struct InProcess<S> {
    service: Arc<S>,
    lock_client: OnceLock<Weak<dyn LockClient>>,
    session: Arc<Session>,
    identity: ClientIdentity,
    chain_rows: OnceLock<Arc<ChainRows>>,
}

impl<S: Service> InProcess<S> {
    /// A transport to `service`.
    pub fn new(service: Arc<S>) -> InProcess<S> {
        // There is only one in a run.
        let session = service.in_process();
        // At other servers, which come over a network, this client has an id as others do.
        let identity = ClientIdentity {
            client: random_client(),
            session: Arc::new(AtomicU64::new(session.number())),
            secret: session.owner().map_or(0, |owner| owner.secret),
            in_process: true,
        };
        let (lock_client, chain_rows) = Default::default();
        InProcess { service, lock_client, session, identity, chain_rows }
    }
}

impl<S: Service> MdsRequests for InProcess<S> {
    async fn request(&self, cred: &Cred, request: &MdsRequest<'_>) -> Granting {
        let arrival = Arrival { now: Timestamp::now(), ..Arrival::default() };
        let answer = self.service.metadata().handle(&arrival, cred, request).await;
        (answer.reply, answer.grants)
    }

    async fn post(&self, cred: &Cred, request: &MdsRequest<'_>) -> FsResult<()> {
        self.request(cred, request).await.0.map(drop)
    }
}

impl<S: Service> OstRequests for InProcess<S> {
    async fn ost(
        &self,
        to: Destination,
        request: OstRequest,
        _: Option<Capability>,
        bulk: Bulk<'_>,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<OstReply> {
        if !is_held() {
            return Err(Errno::EIO);
        }
        let done = self.service.execute_data(&self.session, to, request, bulk.borrowed()).await;
        if done.reply == Err(Errno::EREMCHG)
            && let Some(rows) = self.chain_rows.get()
            && let Some(row) = to.chain.and_then(|chain| self.service.chain(chain.target))
        {
            rows.learn(row);
        }
        done.reply
    }

    async fn hand_out(&self, ost: u16, object: ObjectId) -> FsResult<Option<Arc<dyn LocalObject>>> {
        self.service.hand_out(ost, object).await
    }

    fn share_rows(&self, rows: &Arc<ChainRows>) {
        let _ = self.chain_rows.set(rows.clone());
    }
}

impl<S: Service> PeerRequests for InProcess<S> {
    async fn forward(
        &self,
        to: Destination,
        forward: Forward,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> FsResult<OstReply> {
        let (session, bulk) = (&self.session, bulk.borrowed());
        self.service.execute_forward(session, to, forward, request, bulk).await.reply
    }

    async fn peer(&self, _ost: u16, request: PeerRequest) -> FsResult<PeerReply> {
        self.service.execute_peer(request).await
    }
}

impl<S: Service> MdsSession for InProcess<S> {
    fn welcome(&self) -> Welcome {
        self.service.welcome()
    }

    fn identity(&self) -> ClientIdentity {
        self.identity.clone()
    }

    fn silence(&self) -> Duration {
        Duration::ZERO
    }

    async fn osses(&self) -> FsResult<Vec<OssInfo>> {
        Ok(self.service.welcome().osses)
    }

    async fn chains(&self) -> FsResult<Vec<Chain>> {
        Ok(self.service.chains())
    }
}

impl<S: Service> LockTraffic for InProcess<S> {
    fn set_lock_client(&self, lock_client: Weak<dyn LockClient>) {
        let _ = self.lock_client.set(lock_client);
    }

    async fn listen(&self) {
        let listening = self.service.listen(&self.session);
        while let Some(recalls) = self.service.recalls(&self.session, listening).await {
            let Some(lock_client) = self.lock_client.get().and_then(Weak::upgrade) else { return };
            lock_client.on_recall(recalls);
        }
    }

    async fn return_locks(&self, returns: Vec<Return>) -> FsResult<()> {
        self.service.return_locks(&self.session, &returns);
        Ok(())
    }
}

impl<S: Service> ServerStatistics for InProcess<S> {
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

impl<S: Service> Durability for InProcess<S> {
    async fn commit(&self) -> FsResult<()> {
        self.service.commit().await
    }
}

impl<S: Service> Transport for InProcess<S> {
    type Mds = InProcess<S>;

    fn mds(&self) -> &InProcess<S> {
        self
    }

    fn is_away(&self) -> bool {
        false
    }
}

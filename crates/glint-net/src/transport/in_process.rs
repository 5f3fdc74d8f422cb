//! The in-process transport: calls the handler on the caller's core. No copy, no
//! queue, no thread.

use crate::client::chain_rows::ChainRows;
use crate::client::cluster::ClientIdentity;
use crate::client::recovery::resent::ResentChange;
use crate::client::remote::random_client;
use crate::client::transport::{
    Durability, Granting, LockClient, LockTraffic, MdsRequests, MdsSession, OstRequests,
    PeerRequests, ServerStatistics, Transport,
};
use crate::{Service, host};
use glint_proto::chain::{Chain, Destination, Forward, PeerReply, PeerRequest};
use glint_proto::lock::Return;
use glint_proto::message::Welcome;
use glint_proto::oss::OssInfo;
use glint_proto::{
    Answer, Arrival, Bulk, Capability, Cred, Errno, FsResult, LocalObject, MdsRequest,
    MetadataService, ObjectId, OstReply, OstRequest, Session, Timestamp,
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

impl<S: Service> InProcess<S> {
    /// Executes a change of a chain that is sent again. Were it dropped with its caller, so would be
    /// what it has other members do: they might do that after what is newer.
    async fn execute_to_its_end(
        &self,
        resent: ResentChange,
        to: Destination,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        let (service, session) = (self.service.clone(), self.session.clone());
        let data = match bulk {
            Bulk::Shared(data) => data.clone(),
            bulk => Arc::new(bulk.data().to_vec()),
        };
        host::to_its_end(async move {
            let bulk = if request.is_write() { Bulk::Shared(&data) } else { Bulk::None };
            let answer = service.execute_data(&session, to, request, bulk).await;
            drop(resent);
            answer
        })
        .await
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
        let rows = self.chain_rows.get();
        let done = match rows.and_then(|rows| ResentChange::of_own(rows, to, &request)) {
            Some(resent) => self.execute_to_its_end(resent, to, request, bulk).await,
            None => self.service.execute_data(&self.session, to, request, bulk.borrowed()).await,
        };
        if done.reply == Err(Errno::EREMCHG)
            && let Some(rows) = rows
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::Key;
    use crate::client::recovery::abandoned::ObjectToSync;
    use crate::{AdminService, CommitService, LockService, ObjectService, SessionService};
    use glint_proto::chain::{ChainId, ChainVersion};
    use glint_proto::message::{Hello, Survived};
    use glint_proto::{ClientId, Committed, Ino, NoNamespace, Owner};
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A server of objects whose changes take a moment.
    #[derive(Default)]
    struct SlowServer {
        begun: AtomicUsize,
        made: AtomicUsize,
    }

    impl ObjectService for SlowServer {
        async fn execute_data(
            &self,
            _: &Session,
            _: Destination,
            _: OstRequest,
            bulk: Bulk<'_>,
        ) -> Answer<OstReply> {
            self.begun.fetch_add(1, Ordering::AcqRel);
            host::sleep(Duration::from_millis(20)).await;
            self.made.fetch_add(bulk.data().len(), Ordering::AcqRel);
            Answer::unchanged(Ok(OstReply::Done))
        }

        async fn execute_forward(
            &self,
            _: &Session,
            _: Destination,
            _: Forward,
            _: OstRequest,
            _: Bulk<'_>,
        ) -> Answer<OstReply> {
            Answer::unchanged(Err(Errno::EOPNOTSUPP))
        }

        async fn execute_peer(&self, _: PeerRequest) -> FsResult<PeerReply> {
            Err(Errno::EOPNOTSUPP)
        }

        fn chains(&self) -> Vec<Chain> {
            Vec::new()
        }

        fn chain(&self, _: u16) -> Option<Chain> {
            None
        }

        fn capability_key(&self) -> Option<&Key> {
            None
        }
    }

    impl CommitService for SlowServer {
        async fn commit(&self) -> FsResult<()> {
            Ok(())
        }

        fn last_committed(&self) -> Committed {
            Committed::default()
        }

        fn has_failed(&self) -> bool {
            false
        }

        fn survival(&self, _: u64) -> Option<Survived> {
            None
        }
    }

    impl SessionService for SlowServer {
        fn welcome(&self) -> Welcome {
            crate::client::session::tests::welcome()
        }

        async fn connect(
            &self,
            _: ClientId,
            _: &Hello,
            _: Owner,
        ) -> FsResult<(bool, Arc<Session>)> {
            Err(Errno::EOPNOTSUPP)
        }

        fn knows(&self, _: ClientId) -> bool {
            false
        }

        fn in_process(&self) -> Arc<Session> {
            Session::new(ClientId::IN_PROCESS, 1, None)
        }

        async fn goodbye(&self, _: &Session) {}

        fn disconnect(&self, _: &Session) {}
    }

    impl LockService for SlowServer {}

    impl AdminService for SlowServer {
        fn status(&self) -> String {
            String::new()
        }

        fn scrub(&self, _: bool) {}
    }

    impl Service for SlowServer {
        type Metadata = NoNamespace;

        fn metadata(&self) -> &NoNamespace {
            &NoNamespace
        }
    }

    #[test]
    fn a_change_that_is_sent_again_is_made_though_its_caller_is_dropped() {
        let (server, rows) = (Arc::<SlowServer>::default(), Arc::<ChainRows>::default());
        let transport = InProcess::new(server.clone());
        transport.share_rows(&rows);
        let object = ObjectId { ino: Ino(7), stripe: 0 };
        let by = ChainVersion { target: ChainId { copies: 2, index: 0 }.target(), version: 1 };
        let to = Destination { ost: 0, chain: Some(by) };
        let write = OstRequest::Write { object, offset: 0, mtime: None, kept: false };
        let (begun, made) =
            (|| server.begun.load(Ordering::Acquire), || server.made.load(Ordering::Acquire));
        crate::runtime(None).unwrap().block_on(async {
            let of = ObjectToSync { object, capability: None };
            let resent = ResentChange::new(&rows, (0, by), of);
            {
                let data = b"data".to_vec();
                let mut call = pin!(transport.ost(to, write, None, Bulk::Out(&data), &|| true));
                while begun() == 0 {
                    assert!(futures_util::poll!(call.as_mut()).is_pending());
                    host::sleep(Duration::from_millis(1)).await;
                }
            }
            drop(resent);
            assert!(rows.is_resent(|ino| ino == object.ino), "the server still makes it");
            rows.until_not_resent(|ino| ino == object.ino).await;
            assert_eq!(made(), 4);
            // Who is answered hears of it.
            let _resent = ResentChange::new(&rows, (0, by), of);
            let answer = transport.ost(to, write, None, Bulk::Out(b"data"), &|| true).await;
            assert_eq!((answer, made()), (Ok(OstReply::Done), 8));
        });
    }
}

//! Requests on the objects of its own OSTs, and what of everything is on stable storage.

use super::MdsServer;
use crate::pace;
use glint_kv::Kv;
use glint_net::capability::Key;
use glint_net::{CommitService, ObjectService};
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, Destination, Forward, PeerReply, PeerRequest};
use glint_proto::message::Survived;
use glint_proto::{
    Answer, Bulk, Committed, FsResult, LocalObject, ObjectId, OstReply, OstRequest, Session,
};
use std::sync::Arc;

impl<K: Kv, D: Disk> ObjectService for MdsServer<K, D> {
    async fn execute_data(
        &self,
        session: &Session,
        to: Destination,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        let ost = to.ost;
        pace(&self.osts, ost, &request, &bulk).await;
        let client = session.client();
        let _running = match session.enter() {
            Ok(running) => running,
            Err(errno) => return Answer::unchanged(Err(errno)),
        };
        if self.settings.shared && request.is_write() {
            self.mds.wrote(client);
        }
        let _user = self.replication.serves_user();
        // Over when the change is made, and before it is answered.
        let _change = self.osts.begin_change(&request, &bulk);
        let answer = match to.chain {
            None => self.osts.handle(client, ost, request, bulk).await,
            Some(_) => {
                let executed = self.replication.execute(self.here(), client, to, request, bulk);
                // Apart from the state of requests that are for one OST alone: it has much more.
                Box::pin(executed).await
            }
        };
        tracing::trace!(%client, ost, ?request, ?answer, "data");
        answer
    }

    async fn execute_forward(
        &self,
        session: &Session,
        to: Destination,
        forward: Forward,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        let _running = match session.enter() {
            Ok(running) => running,
            Err(errno) => return Answer::unchanged(Err(errno)),
        };
        let (here, client) = (self.here(), session.client());
        self.replication.execute_forward(here, client, to, forward, request, bulk).await
    }

    async fn hand_out(&self, ost: u16, object: ObjectId) -> FsResult<Option<Arc<dyn LocalObject>>> {
        // Others would have to be told when the kernel is to give it back.
        if self.settings.shared { Ok(None) } else { self.osts.hand_out(ost, object).await }
    }

    async fn execute_peer(&self, request: PeerRequest) -> FsResult<PeerReply> {
        self.replication.answer(self.here(), request).await
    }

    fn chains(&self) -> Vec<Chain> {
        self.replication.chains()
    }

    fn chain(&self, target: u16) -> Option<Chain> {
        self.replication.chain(target)
    }

    fn capability_key(&self) -> Option<&Key> {
        Some(&self.key)
    }
}

impl<K: Kv, D: Disk> CommitService for MdsServer<K, D> {
    async fn commit(&self) -> FsResult<()> {
        self.replication.settle(self.here()).await?;
        self.mds.sync().await
    }

    fn last_committed(&self) -> Committed {
        Committed {
            mds: self.mds.committed(),
            ost: self.replication.committed(self.osts.committed()),
        }
    }

    fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    fn survival(&self, boot_verifier: u64) -> Option<Survived> {
        self.mds.survived(boot_verifier)
    }
}

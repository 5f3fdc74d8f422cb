//! Requests on the objects of an OSS, and what of them is on stable storage.
//!
//! Invariant: nothing begins before the MDS was heard of in this run, while it is not relied on,
//! or while something that stood still is not over.

use super::Oss;
use crate::pace;
use glint_net::capability::Key;
use glint_net::{CommitService, ObjectService};
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, Destination, Forward, PeerReply, PeerRequest};
use glint_proto::message::Survived;
use glint_proto::{Answer, Bulk, Committed, Errno, FsResult, OstReply, OstRequest, Session};

impl<D: Disk> ObjectService for Oss<D> {
    async fn execute_data(
        &self,
        session: &Session,
        to: Destination,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        let (here, ost) = (self.here().await, to.ost);
        let Some(index) = here.index(ost) else { return Answer::unchanged(Err(Errno::ENXIO)) };
        pace(&self.osts, index, &request, &bulk).await;
        let _running = match self.sessions.begin(session, index).await {
            Ok(running) => running,
            Err(errno) => return Answer::unchanged(Err(errno)),
        };
        let client = session.client();
        let _user = self.replication.serves_user();
        // Over when the change is made, and before it is answered.
        let _change = self.osts.begin_change(&request, &bulk);
        let answer = match to.chain {
            None => self.osts.handle(client, index, request, bulk).await,
            Some(_) => self.replication.execute(here, client, to, request, bulk).await,
        };
        tracing::trace!(%client, ost, ?request, ?answer, "data at an OSS");
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
        let here = self.here().await;
        let Some(index) = here.index(to.ost) else { return Answer::unchanged(Err(Errno::ENXIO)) };
        let _running = match self.sessions.begin(session, index).await {
            Ok(running) => running,
            Err(errno) => return Answer::unchanged(Err(errno)),
        };
        let client = session.client();
        self.replication.execute_forward(here, client, to, forward, request, bulk).await
    }

    async fn execute_peer(&self, request: PeerRequest) -> FsResult<PeerReply> {
        self.replication.answer(self.here().await, request).await
    }

    fn chains(&self) -> Vec<Chain> {
        self.replication.chains()
    }

    fn chain(&self, target: u16) -> Option<Chain> {
        self.replication.chain(target)
    }

    fn capability_key(&self) -> Option<&Key> {
        self.key.get()
    }
}

impl<D: Disk> CommitService for Oss<D> {
    async fn commit(&self) -> FsResult<()> {
        if self.joined.get().is_none() {
            return self.osts.commit().await;
        }
        self.replication.settle(self.here().await).await
    }

    fn last_committed(&self) -> Committed {
        Committed { mds: 0, ost: self.replication.committed(self.osts.committed()) }
    }

    fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    fn survival(&self, boot_verifier: u64) -> Option<Survived> {
        self.boot_history.survived(boot_verifier)
    }
}

//! Requests on the objects of an OSS, and what of them is on stable storage.
//!
//! Invariant: nothing begins before the MDS was heard of in this run, while it is not relied on,
//! or while something that stood still is not over.

use super::Oss;
use crate::pace;
use glint_net::capability::Key;
use glint_net::{CommitService, ObjectService};
use glint_ost::disk::Disk;
use glint_proto::message::Survived;
use glint_proto::{Answer, Bulk, Committed, Errno, FsResult, OstReply, OstRequest, Session};

impl<D: Disk> ObjectService for Oss<D> {
    async fn execute_data(
        &self,
        session: &Session,
        ost: u16,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        // The OSS knows which OSTs are here once it has heard of the MDS in this run.
        let (_, first) = *self.until_joined.until(|| self.joined.get()).await;
        let Some(index) = ost.checked_sub(first) else {
            return Answer::unchanged(Err(Errno::ENXIO));
        };
        if index >= self.osts.count() {
            return Answer::unchanged(Err(Errno::ENXIO));
        }
        pace(&self.osts, index, &request, &bulk).await;
        let _running = match self.sessions.begin(session, index).await {
            Ok(running) => running,
            Err(errno) => return Answer::unchanged(Err(errno)),
        };
        let client = session.client();
        let answer = self.osts.handle(client, index, request, bulk).await;
        tracing::trace!(%client, ost, ?request, ?answer, "data at an OSS");
        answer
    }

    fn capability_key(&self) -> Option<&Key> {
        self.key.get()
    }
}

impl<D: Disk> CommitService for Oss<D> {
    async fn commit(&self) -> FsResult<()> {
        self.osts.commit().await
    }

    fn last_committed(&self) -> Committed {
        Committed { mds: 0, ost: self.osts.committed() }
    }

    fn survival(&self, boot_verifier: u64) -> Option<Survived> {
        self.boot_history.survived(boot_verifier)
    }
}

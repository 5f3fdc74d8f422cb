//! Requests on the objects of its own OSTs, and what of everything is on stable storage.

use super::MdsServer;
use crate::pace;
use glint_kv::Kv;
use glint_net::capability::Key;
use glint_net::{CommitService, ObjectService};
use glint_ost::disk::Disk;
use glint_proto::message::Survived;
use glint_proto::{Answer, Bulk, Committed, FsResult, OstReply, OstRequest, Session};

impl<K: Kv, D: Disk> ObjectService for MdsServer<K, D> {
    async fn execute_data(
        &self,
        session: &Session,
        ost: u16,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        pace(&self.osts, ost, &request, &bulk).await;
        let client = session.client();
        let _running = match session.enter() {
            Ok(running) => running,
            Err(errno) => return Answer::unchanged(Err(errno)),
        };
        if self.settings.shared && request.is_write() {
            self.mds.wrote(client);
        }
        let answer = self.osts.handle(client, ost, request, bulk).await;
        tracing::trace!(%client, ost, ?request, ?answer, "data");
        answer
    }

    fn capability_key(&self) -> Option<&Key> {
        Some(&self.key)
    }
}

impl<K: Kv, D: Disk> CommitService for MdsServer<K, D> {
    async fn commit(&self) -> FsResult<()> {
        self.osts.commit().await?;
        self.mds.sync().await
    }

    fn last_committed(&self) -> Committed {
        Committed { mds: self.mds.committed(), ost: self.osts.committed() }
    }

    fn survival(&self, boot_verifier: u64) -> Option<Survived> {
        self.mds.survived(boot_verifier)
    }
}

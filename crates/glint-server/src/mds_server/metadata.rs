//! Requests on names and attributes: all of them are the MDS's.

use super::MdsServer;
use glint_kv::Kv;
use glint_net::MetadataService;
use glint_ost::disk::Disk;
use glint_proto::{Answer, Arrival, Cred, FsResult, Ino, MdsReply, MdsRequest};

impl<K: Kv, D: Disk> MetadataService for MdsServer<K, D> {
    async fn execute_metadata(
        &self,
        arrival: &Arrival<'_>,
        cred: &Cred,
        request: &MdsRequest<'_>,
    ) -> Answer<MdsReply> {
        let answer = self.mds.handle(arrival, cred, request).await;
        let (id, is_replay) = (arrival.id, arrival.replay.is_some());
        tracing::trace!(?id, is_replay, ?request, ?answer, "metadata");
        answer
    }

    async fn resolve(&self, path: &str) -> FsResult<Ino> {
        self.mds.resolve(path).await
    }

    async fn is_within(&self, top: Ino, ino: Ino) -> FsResult<bool> {
        self.mds.is_within(top, ino).await
    }
}

//! The other servers, reached as a client reaches them: with a session at the MDS, and each change
//! executed once over any number of connections.

use super::{Asked, Peers};
use glint_net::{Cluster, MdsSession, PeerRequests, Transport};
use glint_proto::chain::{Chain, ChainVersion, Destination, Forward, MemberEvent};
use glint_proto::chain::{PeerReply, PeerRequest};
use glint_proto::oss::ObjectPage;
use glint_proto::{Bulk, Errno, Ino, Layout, ObjectId, OstReply, OstRequest};
use std::sync::Weak;

/// Server that can ask the MDS.
pub(crate) trait AsksMds: Send + Sync {
    /// Asks the MDS for a page of the objects of a chain that files have or are given.
    fn objects_of(&self, target: u16, after: ObjectId) -> Asked<'_, ObjectPage>;

    /// Asks the MDS for the layout of a file; `None` if there is no such file.
    fn layout_of(&self, ino: Ino) -> Asked<'_, Option<Layout>>;

    /// Tells the MDS what happened to a member. Returns the row as it is then, when nobody acts by
    /// an older one.
    fn tell_of_member(&self, chain: ChainVersion, ost: u16, event: MemberEvent)
    -> Asked<'_, Chain>;
}

/// The servers of a cluster.
pub(crate) struct ClusterPeers<M, S> {
    pub(crate) cluster: Cluster<M>,
    pub(crate) server: Weak<S>,
}

impl<M: Transport + PeerRequests, S: AsksMds> Peers for ClusterPeers<M, S> {
    fn forward<'a>(
        &'a self,
        to: Destination,
        forward: Forward,
        request: OstRequest,
        bulk: Bulk<'a>,
    ) -> Asked<'a, OstReply> {
        Box::pin(self.cluster.forward(to, forward, request, bulk))
    }

    fn ask(&self, ost: u16, request: PeerRequest) -> Asked<'_, PeerReply> {
        Box::pin(self.cluster.peer(ost, request))
    }

    fn keep(&self) -> Asked<'_, ()> {
        Box::pin(async { self.cluster.mds().chains().await.map(drop) })
    }

    fn objects(&self, target: u16, after: ObjectId) -> Asked<'_, ObjectPage> {
        Box::pin(async move {
            let server = self.server.upgrade().ok_or(Errno::EIO)?;
            server.objects_of(target, after).await
        })
    }

    fn layout(&self, ino: Ino) -> Asked<'_, Option<Layout>> {
        Box::pin(async move {
            let server = self.server.upgrade().ok_or(Errno::EIO)?;
            server.layout_of(ino).await
        })
    }

    fn tell(&self, chain: ChainVersion, ost: u16, event: MemberEvent) -> Asked<'_, Chain> {
        Box::pin(async move {
            let server = self.server.upgrade().ok_or(Errno::EIO)?;
            server.tell_of_member(chain, ost, event).await
        })
    }
}

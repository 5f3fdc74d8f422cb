//! Data: what the OSTs of a server execute.

use crate::capability::Key;
use glint_proto::chain::{Chain, Destination, Forward, PeerReply, PeerRequest};
use glint_proto::{Answer, Bulk, FsResult, LocalObject, ObjectId, OstReply, OstRequest, Session};
use std::future::{Future, ready};
use std::sync::Arc;

/// Executes requests on objects.
///
/// Promises: nothing is executed for a session that is over, nor finished for it once the locks of
/// that session may be others'.
pub trait ObjectService {
    /// Executes a data request.
    fn execute_data(
        &self,
        session: &Session,
        to: Destination,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> impl Future<Output = Answer<OstReply>>;

    /// Executes a change that the head of a chain, another server, has ordered.
    fn execute_forward(
        &self,
        session: &Session,
        to: Destination,
        forward: Forward,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> impl Future<Output = Answer<OstReply>>;

    /// Hands an object without copies to the kernel of this host, for a client in this process;
    /// `None` if it is better read by requests, or others may change the file.
    fn hand_out(
        &self,
        _ost: u16,
        _object: ObjectId,
    ) -> impl Future<Output = FsResult<Option<Arc<dyn LocalObject>>>> {
        ready(Ok(None))
    }

    /// Answers another member of a chain.
    fn execute_peer(&self, request: PeerRequest) -> impl Future<Output = FsResult<PeerReply>>;

    /// The table of chains, as far as it is known here.
    fn chains(&self) -> Vec<Chain>;

    /// Row of a chain, if it is known here.
    fn chain(&self, target: u16) -> Option<Chain>;

    /// Key that capabilities of this file system are signed with; `None` while it is not known.
    fn capability_key(&self) -> Option<&Key>;
}

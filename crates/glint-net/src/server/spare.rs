//! The worker that is heard while a disk keeps all others.
//!
//! A disk that stands still (frozen, suspended, throttled) may hold up every thread that executes
//! requests: a page of the journal or of an object that cannot be written cannot be waited for in
//! any other way. So a server has one worker more than cores to use. It is given the connections
//! that come while all others stand still, those of clients who got no answer.
//!
//! Invariant: while others stand still, nothing is executed here that may wait for a disk.

use crate::server::access::rights::Peer;
use crate::{AdminService, SessionService, host};
use glint_proto::ClientId;
use glint_proto::message::Request;
use std::time::Duration;

/// How often it is looked at whether others still stand still.
const LOOK: Duration = Duration::from_millis(20);

/// Whether all other workers stand still, for the spare one.
pub(crate) struct Spare(pub(crate) Box<dyn Fn() -> bool + Send>);

/// Whether a request of a client is executed without the engine and without objects. What a client
/// says of itself does not decide that.
fn needs_no_disk(
    service: &(impl SessionService + AdminService),
    peer: &Peer,
    client: ClientId,
    request: &Request<'_>,
) -> bool {
    match request {
        Request::Ping { commit, .. } => !commit,
        Request::Return(_) | Request::Listen => true,
        // The path of a subtree is looked up in the tables.
        Request::Hello(_) => peer.rights.subtree.is_none() && service.knows(client),
        Request::Oss(request) => service.knows_oss(peer.name.as_deref(), request),
        _ => false,
    }
}

impl Spare {
    /// Whether the others stand still.
    pub(crate) fn is_alone(&self) -> bool {
        self.0()
    }

    /// Waits until a request may be executed here.
    pub(crate) async fn permits(
        &self,
        service: &(impl SessionService + AdminService),
        peer: &Peer,
        client: ClientId,
        request: &Request<'_>,
    ) {
        while !needs_no_disk(service, peer, client, request) && self.0() {
            host::sleep(LOOK).await;
        }
    }
}

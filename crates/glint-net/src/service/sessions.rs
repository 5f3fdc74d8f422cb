//! Sessions of clients: how they begin, what keeps them, and how they end.

use glint_proto::message::{Hello, Welcome};
use glint_proto::{ClientId, FsResult, Owner, Session};
use std::future::Future;
use std::sync::Arc;

/// Keeps the sessions of clients.
///
/// Promises: a client has one session at a time, which belongs to the owner that began it; one
/// that is over does not come back. Where leases and recovery are the matter of another server,
/// signs of life are nothing.
pub trait SessionService {
    /// Welcome that every client gets first.
    fn welcome(&self) -> Welcome;

    /// Connects a client, for the first time or again. Returns whether it was not known, and
    /// its session. EACCES if that belongs to another owner; EAGAIN while its last one is
    /// being ended; ESTALE from an OSS that may not let it in.
    fn connect(
        &self,
        client: ClientId,
        hello: &Hello,
        owner: Owner,
    ) -> impl Future<Output = FsResult<(bool, Arc<Session>)>>;

    /// Whether a client has a session, so that its hello stores nothing.
    fn knows(&self, client: ClientId) -> bool;

    /// The session of the client that shares this process.
    fn in_process(&self) -> Arc<Session>;

    /// Renews the lease of a client, which says that it lives.
    fn renew_lease(&self, _session: &Session) {}

    /// Ends the recovery of a client of the last run, which has said all that it had to.
    fn end_recovery(&self, _session: &Session) {}

    /// Ends the session of a client that goes.
    fn goodbye(&self, session: &Session) -> impl Future<Output = ()>;

    /// Counts a connection of a client less.
    fn disconnect(&self, session: &Session);
}

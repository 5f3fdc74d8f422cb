//! Transports, connections, the service loop and its request scheduler.
//!
//! Promises: a frame that is damaged, too long or of another version closes its
//! connection with a reason and never panics; a client reconnects by itself, and
//! sends what got no answer again under the same identity, so that it is executed
//! once; replies made in one pass leave in one write.
//!
//! Does not know: what requests mean. Servers are a [`Service`]; clients see a
//! [`Transport`].

mod client;
mod connection;
mod error;
mod inproc;
pub mod keep_awake;
mod server;
pub mod stats;
mod stream;

pub use client::{Remote, RemoteOptions};
pub use error::NetError;
pub use inproc::InProcess;
pub use server::{Server, ServerHandle};
pub use stream::{Address, Listener, UNIX_PREFIX};

use glint_proto::message::{Hello, Welcome};
use glint_proto::{
    Bulk, ClientId, Cred, FsResult, MdsReply, MdsRequest, OstReply, OstRequest, RequestId,
};
use std::future::Future;

/// What a server process answers.
pub trait Service: Send + Sync + 'static {
    /// Executes a metadata request. `id` is given for clients on a network.
    fn mds(
        &self,
        cred: &Cred,
        id: Option<RequestId>,
        request: &MdsRequest<'_>,
    ) -> impl Future<Output = FsResult<MdsReply>>;

    /// Executes a data request.
    fn ost(
        &self,
        ost: u16,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> impl Future<Output = FsResult<OstReply>>;

    /// What every client must know first.
    fn welcome(&self) -> Welcome;

    /// A client connects, for the first time or again.
    fn connect(&self, client: ClientId, hello: &Hello) -> impl Future<Output = FsResult<()>>;

    /// A connection of a client is gone.
    fn disconnect(&self, client: ClientId);

    /// Every transaction up to this one is on stable storage.
    fn committed(&self) -> u64;

    /// State dump as JSON.
    fn status(&self) -> String;
}

/// How a client reaches the servers.
pub trait Transport: Send + Sync + 'static {
    /// Sends a metadata request and waits for its answer.
    fn mds(
        &self,
        cred: &Cred,
        request: &MdsRequest<'_>,
    ) -> impl Future<Output = FsResult<MdsReply>>;

    /// Sends a data request and waits for its answer.
    fn ost(
        &self,
        ost: u16,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> impl Future<Output = FsResult<OstReply>>;

    /// What the servers said of themselves.
    fn welcome(&self) -> Welcome;

    /// State dump of the servers as JSON.
    fn status(&self) -> impl Future<Output = FsResult<String>>;

    /// Statistics of this process and of the servers as JSON.
    fn stats(&self) -> impl Future<Output = FsResult<String>>;

    /// Starts all statistics again.
    fn reset_stats(&self) -> impl Future<Output = FsResult<()>>;
}

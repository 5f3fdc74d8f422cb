//! Transports, connections, the service loop and its request scheduler.
//!
//! Promises: a frame that is damaged, too long or of another version closes its
//! connection with a reason and never panics; a client reconnects by itself, and
//! sends what got no answer, and what a server lost, again under the same identity, so
//! that it is executed once; replies made in one pass leave in one write; urgent requests
//! go first, clients take turns, and none can fill a server's memory or time; with an
//! identity nobody else understands, changes or says what goes over a network.
//!
//! Does not know: how a request is executed, or what is stored. Servers are a [`Service`];
//! clients see a [`Transport`]. Of what requests mean it knows which open and close a file
//! (to reopen it), change something (to replay it), sync an object (what is durable is not
//! replayed), set a size or a time (they wait for closes), wait for locks (they need no slot),
//! and which inodes and rights they need (to check a certificate).
//!
//! # Connections
//!
//! A client has a session with each server (`client/session.rs`), shared by its threads. Each
//! thread has a connection of its own (`client/connection.rs`), so that an answer arrives
//! on the core that waits for it. Two more connections carry no requests of programs: recalls
//! come on one (`client/recalls.rs`), where no answer stands in their way, and the lease
//! is kept on the other, by a thread that waits for no disk. Each of them says hello first, and is
//! made again when it breaks, after a pause that doubles. All of them end with the [`Remote`].
//!
//! # Slots
//!
//! A request has a slot of its connection (`client/slots.rs`) and an xid, which rises in
//! that slot as long as the client lives. The MDS stores the last answer of a slot with the change
//! itself, a server of OSTs keeps it in memory (`server/reply_cache.rs`). So a request that is
//! sent again is answered, and not executed again. A request that may wait for another
//! client's lock has no slot: slots never wait for each other. When a connection breaks,
//! what had no answer is sent on the next one, oldest first, under the same slots and xids.
//!
//! # Replay
//!
//! Servers answer before a change is on stable storage, with the number of its transaction.
//! Until an answer says that this number is committed, the request stays in the replay log
//! (`client/recovery/replay_log.rs`). When it is full, calls that change something wait.
//!
//! # Recovery
//!
//! A new boot verifier in the answer to hello means that the server has started again, a new
//! session that it has evicted this client. In both cases one thread says everything again before
//! any other request is sent: what is open, what is locked, what was lost, and that this was
//! all (`client/recovery/mod.rs` has the steps). After an eviction nothing is replayed, and
//! requests under way fail with EIO: whether they were executed nobody knows any more.

mod client;
mod cpu;
mod error;
pub mod host;
mod oss_link;
mod server;
mod service;
pub mod stats;
mod status;
mod transport;

pub use client::cluster::{ClientIdentity, Cluster};
pub use client::remote::{Remote, RemoteOptions, random_secret};
pub use cpu::runtime::runtime;
pub use cpu::{keep_awake, polling};
pub use error::NetError;
pub use oss_link::OssLink;
pub use server::access::{capability, rights};
pub use server::listener::{Server, ServerHandle, ServerOptions, SimulatedServer};
pub use service::{
    AdminService, CommitService, LockService, MetadataService, ObjectService, Service,
    SessionService,
};
pub use status::status_for_everybody;
pub use transport::in_process::InProcess;
pub use transport::stream::{Address, ListeningSocket, UNIX_PREFIX};
pub use transport::tls;

use glint_proto::lock::{Grant, Recall, Return};
use glint_proto::message::Welcome;
use glint_proto::oss::OssInfo;
use glint_proto::{
    Bulk, Capability, Cred, FsResult, Ino, MdsReply, MdsRequest, ObjectId, OstReply, OstRequest,
};
use std::future::Future;
use std::pin::Pin;
use std::sync::Weak;
use std::time::Duration;

/// An answer, and the locks that come with it.
pub type Granting = (FsResult<MdsReply>, Vec<Grant>);

/// The part of a client that keeps its locks.
pub trait LockClient: Send + Sync + 'static {
    /// Servers recall locks, or ask how large a file is. Returns at once.
    fn on_recall(&self, recalls: Vec<Recall>);

    /// All locks are lost: the server has started again, or (`evicted`) it has given this
    /// client up, and what was not written is lost. What is cached must be gone when this ends.
    /// Returns what to reclaim.
    fn on_server_restart(
        &self,
        evicted: bool,
    ) -> Pin<Box<dyn Future<Output = Vec<MdsRequest<'static>>> + '_>>;

    /// The answer to one of these has come.
    fn on_reclaimed(&self, request: &MdsRequest<'static>, reply: FsResult<MdsReply>);
}

/// How a client reaches the servers.
pub trait Transport: Send + Sync + 'static {
    /// Sends a metadata request and waits for its answer.
    fn mds(&self, cred: &Cred, request: &MdsRequest<'_>) -> impl Future<Output = Granting>;

    /// Sends a metadata request whose answer nobody waits for. It goes with the next one, or
    /// a little later.
    fn mds_soon(&self, cred: &Cred, request: &MdsRequest<'_>)
    -> impl Future<Output = FsResult<()>>;

    /// Sends a data request, with what allows it if that is needed, and waits for its answer.
    fn ost(
        &self,
        ost: u16,
        request: OstRequest,
        capability: Option<Capability>,
        bulk: Bulk<'_>,
    ) -> impl Future<Output = FsResult<OstReply>>;

    /// Objects of a file, with their OSTs, which this client would change again if their server
    /// lost its power.
    fn unstable(&self, _ino: Ino) -> Vec<(u16, ObjectId)> {
        Vec::new()
    }

    /// Whether something was answered that would have to be sent again if a server lost its power.
    fn has_uncommitted(&self) -> bool {
        false
    }

    /// Does not change objects of a file again, because others may change them from now on.
    fn abandon(&self, _ino: Ino) {}

    /// Why data of a file, which was answered, lost with its server and sent again, could not be
    /// written then. Says it once.
    fn take_failure(&self, _ino: Ino) -> Option<glint_proto::Errno> {
        None
    }

    /// What the servers said of themselves.
    fn welcome(&self) -> Welcome;

    /// Names who keeps locks. Before that none are given.
    fn set_lock_client(&self, lock_client: Weak<dyn LockClient>);

    /// Brings recalls to the lock client until the client ends. Run it on a thread that does nothing
    /// that a recall could wait for.
    fn listen(&self) -> impl Future<Output = ()>;

    /// How long nothing was heard of the servers.
    fn silence(&self) -> Duration;

    /// Whether some server cannot be reached just now, so that requests wait for it.
    fn is_away(&self) -> bool;

    /// Gives locks up, and answers questions.
    fn return_locks(&self, returns: Vec<Return>) -> impl Future<Output = FsResult<()>>;

    /// Who this client is at every server.
    fn identity(&self) -> ClientIdentity;

    /// Servers of OSTs beside the one of the MDS.
    fn osses(&self) -> impl Future<Output = FsResult<Vec<OssInfo>>>;

    /// Everything that was answered so far to stable storage.
    fn commit(&self) -> impl Future<Output = FsResult<()>>;

    /// State dump of the servers as JSON.
    fn status(&self) -> impl Future<Output = FsResult<String>>;

    /// Statistics of this process and of the servers as JSON.
    fn stats(&self) -> impl Future<Output = FsResult<String>>;

    /// Starts all statistics again.
    fn reset_stats(&self) -> impl Future<Output = FsResult<()>>;
}

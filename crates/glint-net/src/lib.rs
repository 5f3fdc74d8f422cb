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
//! thread has a connection of its own (`client/connection/mod.rs`; its states in
//! `client/connection/state.rs`), so that an answer arrives
//! on the core that waits for it. Two more connections carry no requests of programs: recalls
//! come on one (`client/recalls.rs`), where no answer stands in their way, and the lease
//! is kept on the other, by a thread that waits for no disk. Each of them says hello first, and is
//! made again when it breaks, after a pause that doubles. All of them end with the [`Remote`].
//!
//! # Slots
//!
//! A request has a slot of its connection (`client/connection/slots.rs`) and an xid, which rises in
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
//! all (`client/connection/state.rs` has the steps). After an eviction nothing is replayed, and
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

pub use client::chain_rows::ChainRows;
pub use client::cluster::{ClientIdentity, Cluster};
pub use client::remote::checking::NamespaceReader;
pub use client::remote::{Remote, RemoteOptions, random_secret};
pub use client::transport::{
    Durability, Granting, LockClient, LockTraffic, MdsRequests, MdsSession, MdsTransport,
    OstRequests, PeerRequests, ServerStatistics, Transport,
};
pub use cpu::runtime::runtime;
pub use cpu::tuning::note_work;
pub use cpu::{keep_awake, polling};
pub use error::NetError;
pub use oss_link::OssLink;
pub use server::access::{capability, rights};
pub use server::listener::{Server, ServerHandle, ServerOptions, SimulatedServer};
pub use service::{
    AdminService, CommitService, LockService, ObjectService, Service, SessionService,
};
pub use status::status_for_everybody;
pub use transport::in_process::InProcess;
pub use transport::stream::{Address, ListeningSocket, UNIX_PREFIX};
pub use transport::tls;

//! Services of a server process, as interfaces: each names one thing that is asked of it.
//!
//! Promises: what an OSS has no part in (names, locks, other servers) is refused, or is nothing,
//! by the default of the interface; a server writes down only what it does. Functions of the
//! network's server take the narrowest interface that they need.

mod administration;
mod commits;
mod locks;
mod objects;
mod sessions;

pub use administration::AdminService;
pub use commits::CommitService;
pub use locks::LockService;
pub use objects::ObjectService;
pub use sessions::SessionService;

use glint_proto::MetadataService;

/// A server: all that clients, other servers and administrators ask of a process.
pub trait Service:
    ObjectService + CommitService + SessionService + LockService + AdminService + Send + Sync + 'static
{
    /// The namespace, which is asked directly.
    type Metadata: MetadataService;

    /// Names and attributes; [`glint_proto::NoNamespace`] of an OSS.
    fn metadata(&self) -> &Self::Metadata;
}

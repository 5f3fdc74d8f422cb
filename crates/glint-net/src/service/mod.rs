//! What a server process answers, as interfaces: each names one thing that is asked of it.
//!
//! Promises: what an OSS has no part in (names, locks, other servers) is refused, or is nothing,
//! by the default of the interface; a server writes down only what it does. Functions of the
//! network's server take the narrowest interface that they need.

mod administration;
mod commits;
mod locks;
mod metadata;
mod objects;
mod sessions;

pub use administration::AdminService;
pub use commits::CommitService;
pub use locks::LockService;
pub use metadata::MetadataService;
pub use objects::ObjectService;
pub use sessions::SessionService;

/// A server: all that clients, other servers and administrators ask of a process.
pub trait Service:
    MetadataService
    + ObjectService
    + CommitService
    + SessionService
    + LockService
    + AdminService
    + Send
    + Sync
    + 'static
{
}

impl<S> Service for S where
    S: MetadataService
        + ObjectService
        + CommitService
        + SessionService
        + LockService
        + AdminService
        + Send
        + Sync
        + 'static
{
}

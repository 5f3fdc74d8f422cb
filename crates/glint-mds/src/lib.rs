//! The metadata server: inodes, entries, sessions, exactly-once replies.
//!
//! Promises: an operation is one atomic batch; in the batch of an operation that
//! changes anything is also its reply record, so a request that is sent again is
//! answered and not executed again; inode numbers are never reused.
//!
//! Does not know: sockets, FUSE, or where objects are. It asks [`Targets`]
//! to remove the objects of deleted files, and to take nothing more from a client that it evicts.
//!
//! Start at `service`; each operation is one file of `ops`.

mod advisory;
mod alloc;
mod batch;
mod callbacks;
mod check;
mod claims;
mod context;
mod data_claims;
mod directories;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod keys;
mod locks;
mod names;
mod opens;
mod ops;
mod own;
mod permission;
mod reaper;
mod record;
mod recovery;
mod runs;
mod service;
mod session;
mod sharing;
mod subtree;
mod tables;

pub use check::{CheckReport, Extent, Finding, believe_objects, check, objects_to_destroy};
pub use error::MdsError;
pub use reaper::Targets;
pub use record::{InodeRecord, RecordError};
pub use service::{Config, Mds};
pub use session::SessionInfo;

//! The metadata server: inodes, entries, sessions, exactly-once replies.
//!
//! Promises: an operation is one atomic batch; in the batch of an operation that
//! changes anything is also its reply record, so a request that is sent again is
//! answered and not executed again; inode numbers are never reused.
//!
//! Does not know: sockets, FUSE, or where objects are. It asks [`Targets`]
//! to remove the objects of deleted files, and to take nothing more from a client that it evicts.
//!
//! Start at `handle`; each operation is one file of `ops`.

mod background;
mod chains;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod handle;
mod locking;
mod ops;
mod permission;
mod service;
mod session;
mod store;

pub use background::check::{
    CheckReport, Extent, Finding, believe_objects, check, clients_to_return, objects_to_destroy,
};
pub use background::check_online::{NamespaceCheck, NamespaceDoubt};
pub use background::destroyed::KeptNumbers;
pub use background::reaper::Targets;
pub use chains::drain::{DrainError, HeldPart};
pub use chains::emptied::{EmptiedError, Replacement};
pub use chains::losses::{GiveUpError, LosesData, Losses};
pub use chains::membership::{ChainLoss, Loss, Seen};
pub use chains::named_files::NamedFile;
pub use chains::placement::Placed;
pub use chains::table::{Away, ChainTable};
pub use error::MdsError;
pub use service::{Config, Mds};
pub use session::sessions::SessionInfo;
pub use store::record::{InodeRecord, RecordError};

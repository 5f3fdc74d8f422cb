//! Object storage target: the data of files, as objects in a directory tree.
//!
//! Promises: a write that returned is in the operating system's buffers and
//! survives the death of this process; a sync that returned is on stable storage;
//! an object exists from its first write on; data at rest has checksums, and a read
//! that does not match them is an error and never data; a full disk refuses a write
//! and never loses an earlier one.
//!
//! Does not know: sockets, names of files, or who is allowed what.

mod changes;
pub mod disk;
mod ending;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod handed_out;
mod object_watches;
mod ost_set;
mod search;
mod service;
mod settle_gate;
mod space;
mod store;
mod warming;

pub use disk::threads::First;
pub use disk::{CallKind, Disk, DiskFile, DiskWatch, LocalDisk};
pub use error::OstError;
pub use object_watches::WatchedChange;
pub use ost_set::{OstSet, SEAL_IDLE};
pub use service::listing::list_order;
pub use service::{Apart, GoOn, Kept, Ost, Way};
pub use space::bandwidth::Bandwidth;
pub use space::grants::SpaceGrants;
pub use store::object_store::{ObjectStore, StoredObject};
pub use store::passing::{ObjectCache, PassedBytes};
pub use store::scrub::{Damage, ScrubReport, ScrubStep};
pub use warming::{WarmedObjects, Warming};

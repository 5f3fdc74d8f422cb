//! The vocabulary of Glint: identifiers, attributes, layouts, errors, limits,
//! and the catalogue of all messages with their encoding. Also what both sides compute alike: the
//! rules of POSIX (`posix`), sessions and their end (`session`), time in which others could be
//! heard (`watch`), pauses between attempts (`retry`), and the clock that a simulation drives.
//!
//! Promises: every type that crosses a wire or reaches a disk is defined here
//! once, decoding never panics and never allocates what a length field asks for
//! before it was checked against what is really there.
//!
//! Does not know: sockets, storage, FUSE, or who sends what to whom.

pub mod attr;
pub mod clock;
pub mod cred;
pub mod errno;
#[doc(hidden)]
pub mod fuzz;
pub mod ids;
pub mod layout;
pub mod limits;
mod metadata_service;
pub mod posix;
pub mod retry;
mod session;
pub mod watch;
mod wire;

pub use attr::{Attr, FileType, SetAttr, SetTime, Timestamp};
pub use capability::{Access, Capability};
pub use cred::Cred;
pub use errno::{Errno, FsResult};
pub use extents::Extents;
pub use ids::{ClientId, Ino, ObjectId, RequestId};
pub use layout::local_object::LocalObject;
pub use layout::{Avoided, Layout, Placement, chain};
pub use lock::{PosixLock, PosixLockHow, PosixLockMode};
pub use message::{
    Answer, Arrival, Bulk, Committed, DirEntry, DirPage, MdsReply, MdsRequest, ObjectAttr,
    OpenFlags, OstReply, OstRequest, RenameFlags, SpaceInfo, XattrFlags,
};
pub use metadata_service::{MetadataService, NoNamespace};
pub use op::Op;
pub use reclaim::Reclaim;
pub use session::{Owner, RequestGuard, Session};
pub use wire::{by_hand, capability, deferred, extents, frame, lock, message, op, oss, reclaim};

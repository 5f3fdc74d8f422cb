//! Rules of POSIX that the MDS and a client that changes metadata by itself must follow alike.
//!
//! Pure functions of attributes and credentials: who may do what, what a new inode is, what a
//! setattr changes, what may be removed or replaced.
//!
//! Does not know: where attributes come from, locks, errors of storage.

pub mod acl;
mod create;
mod permission;
mod remove;
mod setattr;

pub use create::{New, NewInode, check_new, entries_changed, new_inode};
pub use permission::{EXEC, READ, WRITE, permit, permit_owner, permit_sticky};
pub use remove::{may_replace, may_rmdir, may_unlink};
pub use setattr::{Effects, Needs, apply_setattr, kill_set_id, permit_setattr};

/// Name of the extended attribute with file capabilities (capabilities(7)).
pub const XATTR_CAPABILITY: &[u8] = b"security.capability";

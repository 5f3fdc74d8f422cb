//! Rules of POSIX that the MDS and a client that changes metadata by itself must follow alike.
//!
//! Pure functions of attributes and credentials: who may do what, what a new inode is, what a
//! setattr changes, what may be removed or replaced, what a change of entries does, and where names are
//! in a listing.
//!
//! Does not know: where attributes come from, locks, errors of storage.

pub mod acl;
mod cookie;
mod create;
mod entries;
mod filter;
mod permission;
mod setattr;

pub use cookie::{COOKIE_DOT, COOKIE_DOT_DOT, cookie};
pub use create::{New, NewInode, check_new, new_inode};
pub use entries::{
    Renaming, entry_added, entry_removed, linked, may_add_entry, may_change_entries, may_link,
    may_rename, may_replace, may_rmdir, may_unlink, renamed,
};
pub use filter::ScanFilter;
pub use permission::{EXEC, READ, WRITE, permit, permit_owner};
pub use setattr::{Effects, Needs, apply_setattr, kill_set_id, permit_setattr};

/// Name of the extended attribute with file capabilities (capabilities(7)).
pub const XATTR_CAPABILITY: &[u8] = b"security.capability";

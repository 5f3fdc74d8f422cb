//! One file per operation. Each reads top-down: resolve, permit, lock, change,
//! one batch.

pub(crate) mod attributes;
mod create;
mod link;
mod lookup;
mod open;
mod readdir;
mod rename;
mod unlink;
mod xattr;

use crate::record::InodeRecord;
use glint_proto::Timestamp;

/// What every change of a directory's entries does to the directory.
fn touch_directory(directory: &mut InodeRecord, now: Timestamp) {
    directory.attr.mtime = now;
    directory.attr.ctime = now;
}

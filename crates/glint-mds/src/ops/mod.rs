//! One file per operation. Each reads top-down: lock, resolve, permit, claim, change, one batch.

pub(crate) mod attributes;
mod create;
mod link;
mod lookup;
mod move_layout;
mod open;
mod readdir;
mod rename;
mod scan;
mod unlink;
mod xattr;

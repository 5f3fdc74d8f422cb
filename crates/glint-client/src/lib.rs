//! The file system client: namespace calls, data over stripes, open files. Also
//! the native library of Glint.
//!
//! Promises: a call that returned is visible to every later call of this client,
//! and to other clients within the cache time the servers allow; data of a write
//! that returned is at its OST.
//!
//! Does not know: FUSE. A mount and a benchmark use the same [`Vfs`].

mod client;
mod data;
#[doc(hidden)]
pub mod fuzz;
mod groups;
mod handles;
mod vfs;
mod virtual_xattr;

pub use client::Client;
pub use vfs::{Caller, FsStat, Handle, Make, Open, Vfs};

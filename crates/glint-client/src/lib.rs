//! The file system client: namespace calls, data over stripes, open files. Also
//! the native library of Glint.
//!
//! Promises: what a call returned is what every later call of any client sees, as far as the
//! servers give locks; data that was written is at its OST within a second, at a close or an
//! fsync, and before anybody else reads it. Start at `calls`.
//!
//! Does not know: FUSE. A mount and a benchmark use the same [`Vfs`].

mod advisory;
mod cache;
mod calls;
mod client;
mod data;
mod data_locks;
mod dirty;
mod file_calls;
#[doc(hidden)]
pub mod fuzz;
mod groups;
mod handles;
mod keeper;
mod kernel;
mod node;
mod vfs;
mod virtual_xattr;
mod write_back;

pub use client::Client;
pub use keeper::Running;
pub use kernel::Kernel;
pub use vfs::{Caching, Caller, Found, FsStat, Handle, Listing, Make, Open, Valid, Vfs, WriteHow};

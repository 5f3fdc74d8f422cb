//! The file system client: namespace calls, data over stripes, open files. Also
//! the native library of Glint.
//!
//! Promises: what a call returned is what every later call of any client sees, as far as the
//! servers give locks; data that was written is at its OST within a second, at a close or an
//! fsync, and before anybody else reads it; what was changed under a delegation is at
//! the MDS within a second, at an fsync, and before another client sees it, and so is the data of a
//! file made there, close or not. Start at `calls`.
//!
//! Does not know: FUSE. A mount and a benchmark use the same [`Vfs`].

mod cache;
mod calls;
mod client;
mod data;
#[doc(hidden)]
pub mod fuzz;
mod kernel;
mod listing;
mod locks;
mod memory;
mod meta_log;
mod parameters;
mod vfs;

pub use calls::scan::{ScannedEntry, ScannedPage};
pub use client::Client;
pub use glint_memory::share_heaps;
pub use kernel::Kernel;
pub use locks::threads::RunningClient;
pub use vfs::{
    Caching, Caller, Found, FsStat, Handle, Listing, Make, Open, Valid, Vfs, WriteHow, Writer,
};

//! How much memory is left to this process, of the machine and of the control groups that limit it, and
//! how much caches may hold meanwhile.
//!
//! Buffers that are used again are here, too ([`BufferPool`]): connections and disks need the same ones,
//! and whatever keeps memory that nobody uses has a limit in this crate.
//!
//! Promises: nothing here waits for memory, or keeps a file open. Where the kernel does not say
//! something, it counts as unlimited.
//!
//! Does not know: whose memory it is, and what is done about it.

mod allocator;
mod allowance;
mod buffers;
mod groups;
mod limits;
mod supply;

pub use allocator::{give_back_free_pages, share_heaps};
pub use allowance::{Allowance, CacheLook, steps_that_fit};
pub use buffers::{BufferPool, PooledBuffer};
pub use groups::{Hierarchy, controller};
pub use limits::{MemoryLeft, MemoryLimits};
pub use supply::{Supply, SupplyLook, SupplyWatch};

//! How requests of the kernel come and replies go: by io_uring or through /dev/fuse.

pub(crate) mod backing;
pub(crate) mod devfuse;
pub(crate) mod notify;
pub(crate) mod ring_entry;
pub(crate) mod uring;
pub(crate) mod waiting;

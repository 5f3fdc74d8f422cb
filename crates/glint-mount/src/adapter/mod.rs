//! A request of the kernel as a call of the file system, the same for both transports.

pub(crate) mod abandon;
pub(crate) mod data_calls;
pub(crate) mod dispatch;
pub(crate) mod pages;
pub(crate) mod passed_opens;
pub(crate) mod passthrough;
pub(crate) mod posix_locks;

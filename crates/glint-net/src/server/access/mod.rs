//! Access: what a certificate allows a client, checked before a request is executed.

pub mod capability;
pub mod rights;
pub(crate) mod subtree;

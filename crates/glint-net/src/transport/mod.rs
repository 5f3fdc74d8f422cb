//! Roads between a client and a server: bytes that travel, and frames in them.

pub(crate) mod frame_writer;
pub(crate) mod framing;
pub(crate) mod in_process;
pub(crate) mod stream;
pub mod tls;
pub(crate) mod unix_socket;

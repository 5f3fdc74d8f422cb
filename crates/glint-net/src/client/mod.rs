//! Sessions of a client with its servers: from a request that waits to its answer, over any
//! number of connections and runs of a server.

pub(crate) mod chain_rows;
pub(crate) mod cluster;
pub(crate) mod connection;
pub(crate) mod lease;
pub(crate) mod link;
pub(crate) mod moved;
pub(crate) mod opens;
pub(crate) mod outage;
pub(crate) mod recalls;
pub(crate) mod recovery;
pub(crate) mod remote;
pub(crate) mod session;
pub(crate) mod transport;

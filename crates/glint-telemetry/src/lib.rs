//! Latency histograms per layer and operation, and counters.
//!
//! Promises: recording takes no lock, allocates at most once per thread, layer
//! and operation, and never fails. Values are nanoseconds; quantiles are exact to
//! one part in eight.
//!
//! Does not know: what the operations are. They are numbers here; whoever shows
//! them brings the names.

mod histogram;
mod recorder;

pub use histogram::Histogram;
pub use recorder::{Counter, Row, count, counters, record, reset, snapshot};

use std::time::Instant;

/// Number of operations that can be told apart.
pub const OPS_MAX: usize = 64;

/// Where time is spent, from the system call down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Layer {
    /// A kernel request, from its arrival to its answer.
    Mount,
    /// A call of the client core that went to a server.
    Client,
    /// A network request, from sending to its reply.
    Net,
    /// A request in a server.
    Handler,
    /// Waiting for a lock inside the MDS.
    LockWait,
    /// Reading the metadata engine.
    KvRead,
    /// Committing to the journal.
    Journal,
    /// Forcing the journal to stable storage.
    JournalSync,
    /// Reading, writing and syncing objects.
    ObjectIo,
}

impl Layer {
    /// All layers, top first.
    pub const ALL: [Layer; 9] = [
        Layer::Mount,
        Layer::Client,
        Layer::Net,
        Layer::Handler,
        Layer::LockWait,
        Layer::KvRead,
        Layer::Journal,
        Layer::JournalSync,
        Layer::ObjectIo,
    ];

    /// Lower-case name, as statistics show it.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Mount => "mount",
            Layer::Client => "client",
            Layer::Net => "net",
            Layer::Handler => "handler",
            Layer::LockWait => "lock_wait",
            Layer::KvRead => "kv_read",
            Layer::Journal => "journal",
            Layer::JournalSync => "journal_sync",
            Layer::ObjectIo => "object_io",
        }
    }
}

/// Times a piece of work; recorded when it goes out of scope.
#[must_use]
pub struct Span {
    layer: Layer,
    op: u8,
    start: Instant,
}

impl Span {
    /// Starts the clock.
    pub fn start(layer: Layer, op: u8) -> Span {
        Span { layer, op, start: Instant::now() }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        record(self.layer, self.op, self.start.elapsed().as_nanos() as u64);
    }
}

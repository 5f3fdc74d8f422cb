//! Latency histograms per layer and operation, counters, which keys are read most, and names of events
//! in logs.
//!
//! Promises: recording takes no lock, allocates at most once per thread, layer
//! and operation, and never fails; a read of some dozens takes the lock of its [`Heat`]. Values are
//! nanoseconds; quantiles are exact to one part in eight.
//!
//! Does not know: what the operations are. They are numbers here; whoever shows
//! them brings the names.

pub mod event;
pub mod heat;
mod histogram;
mod recorder;
mod span;

pub use heat::{Heat, HotRange};
pub use histogram::Histogram;
pub use recorder::{Counter, Row, count, counted_here, counters, record, reset, snapshot, totals};
pub use span::{Span, enable, traced};

/// Number of operations that can be told apart.
pub const OPS_MAX: usize = 64;
/// The operation of work that belongs to none.
pub const OP_NONE: u8 = OPS_MAX as u8 - 1;

/// Layer in which time is spent, from the system call down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Layer {
    /// A kernel request, from its arrival to its answer.
    Mount,
    /// A call of the client core that went to a server.
    Client,
    /// A network request, from sending to its reply.
    Net,
    /// A request in a server, from its reception to its turn.
    NetQueue,
    /// A request in a server.
    Handler,
    /// Having all members of a chain make a change, at its head.
    Forward,
    /// Noting which objects are changed, and bringing that to stable storage.
    Index,
    /// Writing what was noted to its log, by the thread that makes a change.
    IndexWrite,
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
    /// Copying an object to a member that was away.
    Heal,
}

impl Layer {
    /// All layers, top first.
    pub const ALL: [Layer; 14] = [
        Layer::Mount,
        Layer::Client,
        Layer::Net,
        Layer::NetQueue,
        Layer::Handler,
        Layer::Forward,
        Layer::Index,
        Layer::IndexWrite,
        Layer::LockWait,
        Layer::KvRead,
        Layer::Journal,
        Layer::JournalSync,
        Layer::ObjectIo,
        Layer::Heal,
    ];

    /// Lower-case name, as statistics show it.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Mount => "mount",
            Layer::Client => "client",
            Layer::Net => "net_send",
            Layer::NetQueue => "net_queue",
            Layer::Handler => "handler",
            Layer::Forward => "forward",
            Layer::Index => "index",
            Layer::IndexWrite => "index_write",
            Layer::LockWait => "lock_wait",
            Layer::KvRead => "kv_read",
            Layer::Journal => "journal",
            Layer::JournalSync => "journal_sync",
            Layer::ObjectIo => "object_io",
            Layer::Heal => "heal",
        }
    }
}

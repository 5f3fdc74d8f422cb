//! Tasks that wait for something, and how they are woken: the one place for it.
//!
//! - [`WaitList`]: tasks of any threads, each with its condition. Who changes a condition wakes
//!   all, those of a key, or the one that has waited longest.
//! - [`Monitor`]: a state under a lock, and a list of those who wait for a change of it.
//! - [`Signal`]: the one task that waits, on the thread of the one who wakes it.
//! - [`Backoff`]: pauses between attempts.
//!
//! **Promises.** A wait ends when its condition is true and it was woken after that became so,
//! whatever the order of the two threads. A waiter that is dropped leaves nothing behind, and its
//! turn goes to the next one. Tasks are woken in the order in which they began to wait, so a
//! simulation stays the same for its seed. Nobody is woken under the lock of a list. Where nobody
//! waits, a wake is a fence and a load.
//!
//! **Does not know** what is waited for, time, and executors.
//!
//! Written by hand elsewhere stay futures that are no waits but pass a poll on, and on the way of
//! each request the reply in its slot (`glint-net/src/client/connection.rs`: the waker lies with
//! the slot in a `RefCell`, so that neither a lock nor an entry is paid for a request), the
//! polling of a ring (`cpu/polling.rs`), and the commit into the journal
//! (`glint-kv/src/local.rs`: who finds it full registers under the lock that makes room).

mod backoff;
mod list;
mod monitor;
mod signal;
mod sync;

pub use backoff::Backoff;
pub use list::WaitList;
pub use monitor::Monitor;
pub use signal::{Signal, yield_now};

#[cfg(test)]
mod tests;

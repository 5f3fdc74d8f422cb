//! Tasks that wait for something, and how they are woken: the one place for it.
//!
//! - [`WaitList`]: tasks of any threads, each with its condition. Who changes a condition wakes
//!   all, or those of a key.
//! - [`Turns`]: tasks of any threads that take from something that there is little of, in the order
//!   in which they came.
//! - [`Monitor`]: a state under a lock, and a list of those who wait for a change of it.
//! - [`Signal`]: the one task that waits, on the thread of the one who wakes it.
//! - [`Sharded`]: a state in parts, by key.
//! - [`Backoff`]: pauses between attempts.
//!
//! **Promises.** A wait ends when its condition is true and it was woken after that became so,
//! whatever the order of the two threads. A waiter that is dropped leaves nothing behind, and its
//! turn goes to the next one. Nobody takes out of turn. Tasks are woken in the order in which they began to wait, so a
//! simulation stays the same for its seed. Nobody is woken under the lock of a list. Where nobody
//! waits, a wake is a fence and a load.
//!
//! **Does not know** what is waited for, time, and executors.
//!
//! Written by hand elsewhere are two waits on the way of each request, whose wakers lie with the
//! request in a `RefCell`, so that neither a lock nor an entry in a list is paid for it: for the
//! reply in a slot (`glint-net/src/client/connection/mod.rs`), and for the end of a request of the
//! kernel or of its caller (`glint-mount/src/transport/waiting.rs`). Others are no waits: the
//! polling of a ring (`glint-net/src/cpu/polling.rs`), spans (`glint-telemetry/src/span.rs`), and
//! the clock of the simulation.

mod backoff;
mod list;
mod monitor;
mod sharded;
mod signal;
mod sync;
mod turns;

pub use backoff::Backoff;
pub use list::WaitList;
pub use monitor::Monitor;
pub use sharded::Sharded;
pub use signal::Signal;
pub use turns::Turns;

#[cfg(test)]
mod tests;

//! The lock manager: what servers grant, and what clients hold.
//!
//! Promises: never two holders whose locks conflict; who waits is served in the order of
//! asking, and is told; a client that is gone holds nothing. What has to be said to clients
//! is returned, not sent.
//!
//! Does not know: sockets, tasks, time, or what is locked for what purpose. Every type here
//! is a state machine: calls in, recalls and grants out.
//!
//! - [`bits`]: locks on what is known of an inode, given with answers and never waited for.
//! - [`extents`]: locks on ranges of a file's data.
//! - [`posix`]: the locks that programs take, flock(2) and fcntl(2).
//! - [`held`]: the client's side of the first two; [`flight`]: its requests under way.

pub mod bits;
pub mod extents;
pub mod flight;
pub mod held;
pub mod posix;

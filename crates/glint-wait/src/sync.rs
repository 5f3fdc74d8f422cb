//! Locks and atomics that a list is made of. The test that explores interleavings of threads puts
//! that of its model in this place.

pub(crate) use parking_lot::Mutex;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

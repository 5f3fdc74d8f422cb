//! Whether others wait for what a thread has under way.
//!
//! A task that is parked goes on when its thread does. What it holds meanwhile, a lock or its turn,
//! it holds for as long as something else keeps that thread. So a thread on which others rely waits
//! for nothing in place that may not end.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

/// Something that this thread has under way and that others may wait for, until this is dropped: on
/// the same thread.
#[derive(Debug)]
pub struct ReliedOn(PhantomData<*const ()>);

impl ReliedOn {
    /// It begins.
    pub fn begin() -> ReliedOn {
        COUNT.set(COUNT.get() + 1);
        ReliedOn(PhantomData)
    }

    /// Whether this thread has anything of the kind.
    pub fn is_now() -> bool {
        COUNT.get() > 0
    }
}

impl Drop for ReliedOn {
    fn drop(&mut self) {
        COUNT.set(COUNT.get() - 1);
    }
}

//! Waiting within one thread.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// The one task that waits, on the thread of those who wake it: no lock, nothing atomic.
#[derive(Default)]
pub struct Signal {
    waker: Cell<Option<Waker>>,
}

impl std::fmt::Debug for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signal").finish_non_exhaustive()
    }
}

impl Signal {
    /// Has the task look again, if one waits.
    pub fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Waits until `ready` gives something. A second task that waits takes the place of the first.
    pub async fn until<R>(&self, mut ready: impl FnMut() -> Option<R>) -> R {
        poll_fn(|context| {
            if let Some(result) = ready() {
                return Poll::Ready(result);
            }
            let waker = match self.waker.take() {
                Some(known) if known.will_wake(context.waker()) => known,
                _ => context.waker().clone(),
            };
            self.waker.set(Some(waker));
            Poll::Pending
        })
        .await
    }
}

//! Requests of a client that are under way, whose answers may bring locks.

use crate::cache::Cache;
use glint_lock::flight::Flight;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Requests on their way, and who waits until some of them are answered.
#[derive(Default)]
pub(crate) struct UnderWay {
    flight: Flight,
    wakers: Vec<Waker>,
}

/// A request on its way; what its answer grants is known when this is dropped.
pub(crate) struct Under<'a>(&'a Cache, u64);

impl Drop for Under<'_> {
    fn drop(&mut self) {
        let wakers = {
            let mut under_way = self.0.flight.lock();
            under_way.flight.end(self.1);
            std::mem::take(&mut under_way.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Cache {
    /// A request is about to be sent.
    pub(crate) fn under_way(&self) -> Under<'_> {
        Under(self, self.flight.lock().flight.begin())
    }

    /// Names this moment, for [`Cache::past`].
    pub(crate) fn fence(&self) -> u64 {
        self.flight.lock().flight.fence()
    }

    /// Until all requests sent before a fence are answered.
    pub(crate) async fn past(&self, fence: u64) {
        poll_fn(|context| {
            let mut under_way = self.flight.lock();
            if under_way.flight.is_past(fence) {
                return Poll::Ready(());
            }
            under_way.wakers.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Whether all requests sent before a fence are answered.
    pub(crate) fn is_past(&self, fence: u64) -> bool {
        self.flight.lock().flight.is_past(fence)
    }
}

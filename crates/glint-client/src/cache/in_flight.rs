//! Requests of a client that are under way, whose answers may bring locks.

use crate::cache::Cache;
use glint_lock::flight::Flight;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Requests on their way, and who waits until some of them are answered.
#[derive(Default)]
pub(crate) struct RequestsInFlight {
    flight: Flight,
    wakers: Vec<Waker>,
}

/// A request on its way; what its answer grants is known when this is dropped.
pub(crate) struct InFlightGuard<'a>(&'a Cache, u64);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        let wakers = {
            let mut requests = self.0.flight.lock();
            requests.flight.end(self.1);
            std::mem::take(&mut requests.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Cache {
    /// A request is about to be sent.
    pub(crate) fn begin_request(&self) -> InFlightGuard<'_> {
        InFlightGuard(self, self.flight.lock().flight.begin())
    }

    /// Names this moment, for [`Cache::past`].
    pub(crate) fn fence(&self) -> u64 {
        self.flight.lock().flight.fence()
    }

    /// Until all requests sent before a fence are answered.
    pub(crate) async fn past(&self, fence: u64) {
        poll_fn(|context| {
            let mut requests = self.flight.lock();
            if requests.flight.is_past(fence) {
                return Poll::Ready(());
            }
            requests.wakers.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Whether all requests sent before a fence are answered.
    pub(crate) fn is_past(&self, fence: u64) -> bool {
        self.flight.lock().flight.is_past(fence)
    }
}

//! Requests of a client that are under way, whose answers may bring locks.

use crate::cache::Cache;
use glint_lock::flight::Flight;
use glint_wait::Monitor;

/// Requests on their way, and who waits until some of them are answered.
pub(crate) type RequestsInFlight = Monitor<Flight>;

/// A request on its way; what its answer grants is known when this is dropped.
pub(crate) struct InFlightGuard<'a>(&'a Cache, u64);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.flight.change(|flight| flight.end(self.1));
    }
}

impl Cache {
    /// A request is about to be sent.
    pub(crate) fn begin_request(&self) -> InFlightGuard<'_> {
        InFlightGuard(self, self.flight.lock().begin())
    }

    /// Names this moment, for [`Cache::past`].
    pub(crate) fn sent_mark(&self) -> u64 {
        self.flight.lock().sent_mark()
    }

    /// Until all requests sent before a mark are answered.
    pub(crate) async fn past(&self, sent_mark: u64) {
        self.flight.until(|flight| flight.is_past(sent_mark).then_some(())).await;
    }

    /// Whether all requests sent before a mark are answered.
    pub(crate) fn is_past(&self, sent_mark: u64) -> bool {
        self.flight.lock().is_past(sent_mark)
    }
}

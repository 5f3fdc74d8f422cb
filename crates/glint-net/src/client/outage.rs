//! Connections that were lost: how long until each is tried again, and how many threads have lost
//! theirs. A client is told that its server is away, and its log once when that is reached again.

use crate::client::session::ClientSession;
use glint_proto::clock;
use glint_proto::limits::{RECONNECT_MS_MAX, RECONNECT_MS_MIN};
use glint_telemetry::event;
use glint_wait::Backoff;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Pauses before a connection is tried again.
pub(crate) fn backoff() -> Backoff {
    let [min, max] = [RECONNECT_MS_MIN, RECONNECT_MS_MAX].map(Duration::from_millis);
    Backoff::new(min, max)
}

/// Lost connections to one server.
#[derive(Default)]
pub(crate) struct Outage {
    connections: AtomicUsize,
    /// When the first of them was lost, until one is there again.
    since: Mutex<Option<Instant>>,
}

impl Outage {
    /// Whether there are any.
    pub(crate) fn is_now(&self) -> bool {
        self.connections.load(Ordering::Acquire) > 0
    }
}

/// A connection that was lost and is not there again.
pub(crate) struct Broken(Arc<ClientSession>);

impl Broken {
    pub(crate) fn new(session: &Arc<ClientSession>) -> Broken {
        if session.outage.connections.fetch_add(1, Ordering::AcqRel) == 0 {
            *session.outage.since.lock() = Some(clock::now());
        }
        Broken(session.clone())
    }

    /// The connection is there again. The first one says so for all.
    pub(crate) fn mend(self) {
        if let Some(since) = self.0.outage.since.lock().take() {
            let (server, away) = (&self.0.options.address, clock::since(since).as_secs_f32());
            tracing::info!(
                event = event::SERVER_REACHED, %server,
                "reached again after {away:.1} s"
            );
        }
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        self.0.outage.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

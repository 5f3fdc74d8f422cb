//! Rates of a server per second, from totals that only grow.

use glint_proto::clock;
use glint_telemetry::{Counter, Layer};
use std::time::Instant;

/// Totals at one moment.
#[derive(Clone, Copy)]
pub struct Totals {
    at: Instant,
    /// Operations so far: of kernel requests if this process has a mount, else of
    /// requests.
    pub operations: u64,
    nanos: u64,
    read: u64,
    written: u64,
}

/// Rates between two moments.
#[derive(Clone, Copy, Default)]
pub struct Rates {
    /// Operations per second.
    pub operations: f64,
    /// Average latency of these operations in microseconds.
    pub us_avg: f64,
    /// Bytes read by users per second.
    pub read: f64,
    /// Bytes written by users per second.
    pub written: f64,
}

impl Totals {
    /// Totals now.
    pub fn now() -> Totals {
        let of_layer = glint_telemetry::totals;
        let (operations, nanos) = of_layer(Layer::Mount).max(of_layer(Layer::Handler));
        let counters = glint_telemetry::counters();
        Totals {
            at: clock::now(),
            operations,
            nanos,
            read: counters[Counter::BytesRead as usize].1,
            written: counters[Counter::BytesWritten as usize].1,
        }
    }

    /// Time since these totals were taken.
    pub fn age(&self) -> std::time::Duration {
        clock::since(self.at)
    }

    /// Rates since an earlier moment.
    pub fn since(&self, before: &Totals) -> Rates {
        let seconds = (self.at - before.at).as_secs_f64().max(1e-9);
        let per_s = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let operations = self.operations.saturating_sub(before.operations);
        let nanos = self.nanos.saturating_sub(before.nanos);
        Rates {
            operations: per_s(self.operations, before.operations),
            us_avg: if operations == 0 { 0.0 } else { nanos as f64 / operations as f64 / 1000.0 },
            read: per_s(self.read, before.read),
            written: per_s(self.written, before.written),
        }
    }
}

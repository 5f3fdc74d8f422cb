//! A limit on the data that an OST moves in a second: a token bucket, kept as the time at which
//! the next byte may pass (the generic cell rate algorithm).

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Bytes that may pass at once after a pause: one large request.
const BURST_BYTES: u64 = glint_proto::limits::BULK_BYTES_MAX as u64;

/// The limit.
pub struct Bandwidth {
    bytes_per_s: u64,
    next: Mutex<Option<Instant>>,
}

impl Bandwidth {
    /// Limits to `bytes_per_s` bytes in a second, at least one.
    pub fn new(bytes_per_s: u64) -> Bandwidth {
        Bandwidth { bytes_per_s: bytes_per_s.max(1), next: Mutex::new(None) }
    }

    fn time(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64)
    }

    /// Bytes that pass in so much time.
    pub(crate) fn within(&self, time: Duration) -> u64 {
        (self.bytes_per_s as f64 * time.as_secs_f64()) as u64
    }

    /// Takes the turn for a transfer. Returns how long it has to wait.
    pub fn take(&self, bytes: u64, now: Instant) -> Duration {
        let mut next = self.next.lock();
        let burst = self.time(BURST_BYTES);
        let earliest = now.checked_sub(burst).unwrap_or(now);
        let ends = next.map_or(earliest, |next| next.max(earliest)) + self.time(bytes);
        *next = Some(ends);
        ends.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_moves_what_it_may_and_a_pause_saves_one_request() {
        let limit = Bandwidth::new(8 << 20);
        let start = Instant::now();
        assert_eq!(limit.take(BURST_BYTES, start), Duration::ZERO);
        assert_eq!(limit.take(8 << 20, start), Duration::from_secs(1));
        assert_eq!(limit.take(4 << 20, start), Duration::from_millis(1500));
        let later = start + Duration::from_secs(100);
        assert_eq!(limit.take(BURST_BYTES, later), Duration::ZERO);
        assert_eq!(limit.take(BURST_BYTES, later), Duration::from_millis(500));
    }
}

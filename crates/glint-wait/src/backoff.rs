//! Pauses between attempts.

use std::time::Duration;

/// Pauses between attempts: each is twice as long as the one before, up to a limit.
#[derive(Clone, Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// Pauses from `min` to `max`.
    pub fn new(min: Duration, max: Duration) -> Backoff {
        Backoff { min, max, next: min }
    }

    /// The pause after an attempt has ended. After one that succeeded the pauses begin anew.
    pub fn pause(&mut self, succeeded: bool) -> Duration {
        if succeeded {
            self.reset();
        }
        self.pause_of(Duration::ZERO)
    }

    /// The pause after an attempt that failed; no shorter than this, where the limit allows it.
    pub fn pause_of(&mut self, at_least: Duration) -> Duration {
        let pause = self.next.max(at_least).min(self.max);
        self.next = (2 * pause).min(self.max);
        pause
    }

    /// Begins anew.
    pub fn reset(&mut self) {
        self.next = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_begin_anew_after_a_success() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(10), ms(100));
        let pauses: Vec<_> = (0..6).map(|_| backoff.pause(false).as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 100, 100]);
        assert_eq!((backoff.pause(true), backoff.pause_of(ms(50))), (ms(10), ms(50)));
        assert_eq!((backoff.pause(false), backoff.pause_of(ms(500))), (ms(100), ms(100)));
    }
}

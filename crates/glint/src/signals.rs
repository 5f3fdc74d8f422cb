//! Ctrl-C and SIGTERM ask for a clean end. A second one soon after the first says the same: a
//! terminal, timeout(1) and service managers send several. One more insists.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long after the first signal a second one is the same request.
const GRACE: Duration = Duration::from_secs(5);

/// Whether a clean end was asked for.
#[derive(Clone)]
pub struct Stop {
    asked: Arc<AtomicBool>,
}

/// Meaning of the signals so far.
#[derive(Default)]
struct Asked {
    first: Option<Instant>,
    count: u32,
}

impl Asked {
    /// One more. Returns whether it insists.
    fn again(&mut self, now: Instant) -> bool {
        self.count += 1;
        let first = *self.first.get_or_insert(now);
        self.count > 2 || (self.count == 2 && now - first > GRACE)
    }
}

impl Stop {
    /// Listens from now on.
    pub fn listen() -> io::Result<Stop> {
        let stop = Stop { asked: Arc::default() };
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let asked = stop.asked.clone();
        let wait = move || {
            let mut so_far = Asked::default();
            for signal in &mut signals {
                asked.store(true, Ordering::Release);
                if so_far.again(Instant::now()) {
                    let _ = writeln!(
                        io::stderr(),
                        "glint: asked to end again: ending at once; \
                         `glint umount` cleans up a mount that is left"
                    );
                    std::process::exit(128 + signal);
                }
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(wait)?;
        Ok(stop)
    }

    /// Whether a signal came.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_that_insists_ends_it_at_once() {
        let start = Instant::now();
        let mut soon = Asked::default();
        assert!(!soon.again(start));
        assert!(!soon.again(start + Duration::from_millis(50)));
        assert!(soon.again(start + Duration::from_millis(60)));
        let mut late = Asked::default();
        assert!(!late.again(start));
        assert!(late.again(start + GRACE + Duration::from_secs(1)));
    }
}

//! Ctrl-C and SIGTERM ask for a clean end. A second one soon after the first says the same: a
//! terminal, timeout(1) and service managers send several. One more insists.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
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

    /// Asks for it, as a signal does.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Release);
    }

    /// Whether a signal came.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}

/// Returns those of some signals that this process was not started to ignore, as `&` in a script starts
/// others. `status` is that of the process in /proc.
fn not_ignored(status: &str, signals: [i32; 2]) -> Vec<i32> {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let ignored = ignored.unwrap_or_default();
    let is_heard = |signal: &i32| ignored & (1_u64 << (*signal - 1)) == 0;
    signals.into_iter().filter(is_heard).collect()
}

/// How long a command that only shows something has for a clean end.
const SOON: Duration = Duration::from_millis(500);

/// Whether such a command is to end.
static IS_END_ASKED: AtomicBool = AtomicBool::new(false);

/// Whether a command that listens by [`StopSoon`] was asked to end.
pub(crate) fn is_end_asked() -> bool {
    IS_END_ASKED.load(Ordering::Acquire)
}

/// The end of a command that only shows something: soon after the first signal, also while it waits
/// for a server or for who reads its output.
pub(crate) struct StopSoon {
    /// The signal that came, or 0.
    signal: Arc<AtomicI32>,
}

impl StopSoon {
    /// Listens from now on. Signals that were ignored stay ignored.
    pub(crate) fn listen() -> io::Result<StopSoon> {
        let signal = Arc::new(AtomicI32::new(0));
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut signals = Signals::new(not_ignored(&status, [SIGINT, SIGTERM]))?;
        let came = signal.clone();
        let wait = move || {
            if let Some(signal) = signals.forever().next() {
                IS_END_ASKED.store(true, Ordering::Release);
                came.store(signal, Ordering::Release);
                std::thread::sleep(SOON);
                end_by(signal);
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(wait)?;
        Ok(StopSoon { signal })
    }

    /// Whether a signal came.
    pub(crate) fn is_asked(&self) -> bool {
        self.signal.load(Ordering::Acquire) != 0
    }

    /// Ends the process by the signal that came, if one did.
    pub(crate) fn end_if_asked(&self) {
        match self.signal.load(Ordering::Acquire) {
            0 => {}
            signal => end_by(signal),
        }
    }
}

/// As if the signal had not been listened for.
fn end_by(signal: i32) {
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    std::process::exit(128 + signal);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_ignored_from_the_start_is_not_listened_for() {
        for (status, expected) in [
            ("Name:\tglint\nSigIgn:\t0000000000001000\n", &[SIGINT, SIGTERM][..]),
            ("SigBlk:\t0000000000000002\nSigIgn:\t0000000000001002\n", &[SIGTERM]),
            ("SigIgn:\t0000000000004002\n", &[]),
            ("", &[SIGINT, SIGTERM]),
        ] {
            assert_eq!(not_ignored(status, [SIGINT, SIGTERM]), expected, "{status}");
        }
    }

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

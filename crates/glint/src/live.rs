//! What a server shows while it runs: one status line on a terminal, otherwise a
//! log line a minute.

use crate::rates::Totals;
use std::io::{IsTerminal, Write};
use std::time::Duration;

const REDRAW: Duration = Duration::from_secs(1);
const LOG: Duration = Duration::from_secs(60);

/// The display.
pub struct Live {
    terminal: bool,
    last: Totals,
}

/// Bytes with a unit that leaves three digits.
pub fn human_bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit < units.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

impl Live {
    /// Starts counting.
    pub fn new() -> Live {
        Live { terminal: std::io::stderr().is_terminal(), last: Totals::now() }
    }

    /// Shows what happened since the last time and how things are, if it is time to.
    pub fn tick(&mut self, state: impl FnOnce() -> String) {
        if self.last.age() < if self.terminal { REDRAW } else { LOG } {
            return;
        }
        let now = Totals::now();
        let rates = now.since(&self.last);
        let line = format!(
            "{:.0} op/s  {:.1} us  read {}/s  write {}/s  {}",
            rates.operations,
            rates.us_avg,
            human_bytes(rates.read as u64),
            human_bytes(rates.written as u64),
            state(),
        );
        if self.terminal {
            eprint!("\r\x1b[2K{line}");
            let _ = std::io::stderr().flush();
        } else if now.operations != self.last.operations {
            tracing::info!("{line}");
        }
        self.last = now;
    }

    /// Leaves the terminal clean.
    pub fn end(&self) {
        if self.terminal {
            eprint!("\r\x1b[2K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::human_bytes;

    #[test]
    fn three_digits() {
        assert_eq!(human_bytes(999), "999 B");
        assert_eq!(human_bytes(1 << 20), "1.0 MiB");
        assert_eq!(human_bytes(1_020_000_000), "972.7 MiB");
    }
}

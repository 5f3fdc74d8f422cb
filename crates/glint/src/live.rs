//! What a server shows while it runs: one status line on a terminal, otherwise a
//! log line a minute.

use crate::json;
use crate::servers::Servers;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const REDRAW: Duration = Duration::from_secs(1);
const LOG: Duration = Duration::from_secs(60);

/// The display.
pub struct Live {
    terminal: bool,
    last: Instant,
    operations: u64,
    bytes: (u64, u64),
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
        Live {
            terminal: std::io::stderr().is_terminal(),
            last: Instant::now(),
            operations: json::operations(),
            bytes: json::bytes(),
        }
    }

    /// Shows what happened since the last time, if it is time to.
    pub fn tick(&mut self, servers: &Servers) {
        let elapsed = self.last.elapsed();
        if elapsed < if self.terminal { REDRAW } else { LOG } {
            return;
        }
        let (operations, bytes) = (json::operations(), json::bytes());
        let per_s = |now: u64, before: u64| (now - before) as f64 / elapsed.as_secs_f64();
        let rate = per_s(operations, self.operations);
        let line = format!(
            "{rate:.0} op/s  read {}/s  write {}/s  free {}  inodes {}  clients {}",
            human_bytes(per_s(bytes.0, self.bytes.0) as u64),
            human_bytes(per_s(bytes.1, self.bytes.1) as u64),
            human_bytes(servers.space().available),
            servers.mds().inode_count(),
            servers.mds().sessions().len(),
        );
        if self.terminal {
            eprint!("\r\x1b[2K{line}");
            let _ = std::io::stderr().flush();
        } else if operations != self.operations {
            tracing::info!("{line}");
        }
        self.last = Instant::now();
        (self.operations, self.bytes) = (operations, bytes);
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

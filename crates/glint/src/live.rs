//! Display of a server while it runs: a status line on a terminal, as wide as that is, otherwise a
//! log line a minute.

use glint_server::{Totals, human_bytes};
use std::io::{IsTerminal, Write};
use std::time::Duration;

const REDRAW: Duration = Duration::from_secs(1);
const LOG: Duration = Duration::from_secs(60);

/// The display.
pub(crate) struct Live {
    terminal: bool,
    last: Totals,
    /// Columns of the line that is shown.
    shown: usize,
}

/// Writes to the terminal; one that was closed is nobody's concern any more.
pub(crate) fn show(text: &str) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

/// How many columns the terminal has just now; it may have been resized since the last line.
fn columns() -> usize {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ fills in the structure that it is given.
    let known = unsafe { libc::ioctl(libc::STDERR_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    if known == 0 && size.ws_col > 0 { size.ws_col.into() } else { 80 }
}

/// Bytes that replace a line of `shown` columns by `line`: the old one may take several rows since
/// the terminal has become narrower, the new one takes one.
fn replacement(shown: usize, line: &str, columns: usize) -> (String, usize) {
    let columns = columns.max(2);
    let rows = shown.saturating_sub(1) / columns;
    let up = if rows > 0 { format!("\x1b[{rows}A") } else { String::new() };
    // In the last column some terminals go to the next row.
    let part: String = line.chars().take(columns - 1).collect();
    let shown = part.chars().count();
    (format!("\r{up}\x1b[J{part}"), shown)
}

impl Live {
    /// Starts counting.
    pub(crate) fn new() -> Live {
        Live { terminal: std::io::stderr().is_terminal(), last: Totals::now(), shown: 0 }
    }

    /// Shows what happened since the last time and how things are, if it is time to.
    pub(crate) fn tick(&mut self, state: impl FnOnce() -> String) {
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
            let (text, shown) = replacement(self.shown, &line, columns());
            show(&text);
            self.shown = shown;
        } else if now.operations != self.last.operations {
            tracing::info!(target: crate::logging::EVERY, "{line}");
        }
        self.last = now;
    }

    /// Leaves the terminal clean.
    pub(crate) fn end(&self) {
        if self.terminal {
            show(&replacement(self.shown, "", columns()).0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::replacement;

    #[test]
    fn the_line_is_as_wide_as_the_terminal() {
        let line = "1000 op/s  read 1.0 MiB/s".repeat(4);
        let (text, shown) = replacement(0, &line, 50);
        assert_eq!((text.len(), shown), ("\r\x1b[J".len() + 49, 49));
        // 110 columns before, 50 now: three rows, the last of which the cursor is in.
        assert!(replacement(109, &line, 50).0.starts_with("\r\x1b[2A\x1b[J"));
        assert_eq!(replacement(49, "", 50), ("\r\x1b[J".to_owned(), 0));
    }
}

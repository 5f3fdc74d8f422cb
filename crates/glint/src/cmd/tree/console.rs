//! Standard output and standard error of a walk: lines, errors, and how far it is.

use std::cell::{Cell, RefCell};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Bytes that are kept until they are written.
const OUTPUT_BYTES: usize = 64 << 10;
/// How long a walk takes at least of which progress is shown.
const QUIET: Duration = Duration::from_secs(1);
/// How often progress is shown.
const INTERVAL: Duration = Duration::from_millis(200);

/// Standard output and standard error of a command.
pub(in crate::cmd) struct Console {
    command: &'static str,
    /// Exit code if output cannot be written.
    unwritten: u8,
    output: RefCell<Vec<u8>>,
    /// Exit code that errors have led to.
    status: Cell<u8>,
    begun: Instant,
    /// When progress was shown; `None` if it is not there to be seen.
    shown: Cell<Option<Instant>>,
    is_terminal: bool,
    /// What was written last is no whole line.
    is_within_line: Cell<bool>,
}

impl Console {
    pub(in crate::cmd) fn new(command: &'static str, unwritten: u8) -> Console {
        let (begun, is_terminal) = (Instant::now(), std::io::stderr().is_terminal());
        let (output, status, shown) = (RefCell::default(), Cell::default(), Cell::default());
        let is_within_line = Cell::new(false);
        Console { command, unwritten, output, status, begun, shown, is_terminal, is_within_line }
    }

    /// Tells of an error that leads to this exit code, or a higher one.
    pub(in crate::cmd) fn say(&self, status: u8, why: &str) {
        self.note(status);
        self.clear();
        let _ = writeln!(std::io::stderr(), "glint {}: {why}", self.command);
    }

    /// Notes what leads to this exit code, or a higher one.
    pub(in crate::cmd) fn note(&self, status: u8) {
        self.status.set(self.status.get().max(status));
    }

    pub(in crate::cmd) fn status(&self) -> u8 {
        self.status.get()
    }

    pub(in crate::cmd) fn put(&self, bytes: &[u8]) {
        self.output.borrow_mut().extend_from_slice(bytes);
        if self.output.borrow().len() >= OUTPUT_BYTES {
            self.flush();
        }
    }

    pub(in crate::cmd) fn flush(&self) {
        self.clear();
        let output = std::mem::take(&mut *self.output.borrow_mut());
        if let Some(last) = output.last() {
            self.is_within_line.set(*last != b'\n');
        }
        crate::output::write_bytes(&output);
    }

    /// Ends the process if something that was printed is lost.
    pub(in crate::cmd) fn end_if_lost(&self) {
        crate::output::end_if_lost(self.unwritten);
    }

    /// Shows how many files the walk came to so far.
    pub(in crate::cmd) fn progress(&self, files: u64) {
        let taken = self.begun.elapsed();
        let is_soon = self.shown.get().is_some_and(|shown| shown.elapsed() < INTERVAL);
        if !self.is_terminal || taken < QUIET || is_soon {
            return;
        }
        // Lines that are done come first: both may be on the same terminal. One that is not would be
        // taken away with what is shown after it.
        let is_within_line = match self.output.borrow().last() {
            Some(last) => *last != b'\n',
            None => self.is_within_line.get(),
        };
        self.flush();
        if is_within_line && std::io::stdout().is_terminal() {
            return;
        }
        let rate = files as f64 / taken.as_secs_f64();
        let _ = write!(std::io::stderr(), "\r\x1b[K{files} files, {rate:.0} a second");
        self.shown.set(Some(Instant::now()));
    }

    /// Takes progress away from the terminal.
    fn clear(&self) {
        if self.shown.take().is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

//! Output of commands. Its reader may have enough (`glint stats | head`): then this process ends as
//! any other does, by SIGPIPE, without a word.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Prints a line on standard output.
#[macro_export]
macro_rules! say {
    ($($line:tt)*) => { $crate::output::write(format_args!($($line)*), "\n") };
}

/// Prints a part of a line on standard output.
#[macro_export]
macro_rules! say_part {
    ($($part:tt)*) => { $crate::output::write(format_args!($($part)*), "") };
}

/// See [`say!`].
pub fn write(text: Arguments<'_>, end: &str) {
    let mut out = std::io::stdout().lock();
    let mut written = out.write_fmt(text).and_then(|()| out.write_all(end.as_bytes()));
    if end.is_empty() && written.is_ok() {
        written = out.flush();
    }
    if let Err(error) = written {
        ended(&error);
    }
}

/// Prints bytes on standard output.
pub(crate) fn write_bytes(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(bytes).and_then(|()| out.flush()) {
        ended(&error);
    }
}

/// Standard output does not take any more.
fn ended(error: &std::io::Error) -> ! {
    if error.kind() == ErrorKind::BrokenPipe {
        // The runtime ignores SIGPIPE from the start.
        let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE);
    }
    let _ = writeln!(std::io::stderr(), "glint: standard output: {error}");
    std::process::exit(1);
}

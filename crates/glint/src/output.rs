//! Output of commands. Its reader may have enough (`glint stats | head`): then this process ends as
//! any other does, by SIGPIPE, without a word.

use std::fmt::Arguments;
use std::io::{Error, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of most commands if their output could not be written.
const FAILED: u8 = 1;

/// Whether standard output was closed when this process began. The runtime puts /dev/null in its place
/// before `main`, after which nobody sees that what is printed is lost.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Has [`look`] run before the runtime begins.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: this asks about a number, whether a file is open there or not, and changes nothing. It
    // needs nothing that the runtime has not set up yet.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFL) };
    // The runtime takes what it may not write for written, too.
    let is_open = flags >= 0 && flags & libc::O_ACCMODE != libc::O_RDONLY;
    WAS_CLOSED.store(!is_open, Ordering::Relaxed);
}

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
        ended(&error, FAILED);
    }
}

/// Prints bytes on standard output, which is all that a command is for: it ends with this exit code if
/// they cannot be written, also where standard output was closed from the start. (Others may print a
/// word about what they did to nobody.)
pub(crate) fn write_bytes(bytes: &[u8], failed: u8) {
    if bytes.is_empty() {
        return;
    }
    if WAS_CLOSED.load(Ordering::Relaxed) {
        ended(&Error::from_raw_os_error(libc::EBADF), failed);
    }
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(bytes).and_then(|()| out.flush()) {
        ended(&error, failed);
    }
}

/// Standard output does not take any more.
fn ended(error: &Error, failed: u8) -> ! {
    if error.kind() == ErrorKind::BrokenPipe {
        // The runtime ignores SIGPIPE from the start.
        let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE);
    }
    let _ = writeln!(std::io::stderr(), "glint: standard output: {error}");
    std::process::exit(failed.into());
}

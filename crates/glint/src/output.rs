//! Output of commands. Its reader may have enough (`glint stats | head`): then this process ends as
//! any other does, by SIGPIPE, without a word.

use std::fmt::Arguments;
use std::io::{Error, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Exit code of most commands if their output could not be written.
const FAILED: u8 = 1;

/// Whether standard output was closed when this process began. The runtime puts /dev/null in its place
/// before `main`, after which nobody sees that what is printed is lost.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Why something that was printed is lost, or 0.
static LOST: AtomicI32 = AtomicI32::new(0);

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

/// So many of something, whose plural ends with an s.
pub(crate) fn counted(count: u64, of: &str) -> String {
    match count {
        1 => format!("1 {of}"),
        _ => format!("{count} {of}s"),
    }
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

/// Prints bytes on standard output, which is all that a command is for. If they cannot be written, also
/// where standard output was closed from the start, nothing more is: the command sees that it
/// [`is_lost`], leaves its servers, and says [`end_if_lost`]. (Others may print a word about what they
/// did to nobody.)
pub(crate) fn write_bytes(bytes: &[u8]) {
    if bytes.is_empty() || is_lost() {
        return;
    }
    let written = match WAS_CLOSED.load(Ordering::Relaxed) {
        true => Err(Error::from_raw_os_error(libc::EBADF)),
        false => {
            let mut out = std::io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        }
    };
    if let Err(error) = written {
        LOST.store(error.raw_os_error().unwrap_or(libc::EIO), Ordering::Relaxed);
    }
}

/// Whether something that was printed is lost.
pub(crate) fn is_lost() -> bool {
    LOST.load(Ordering::Relaxed) != 0
}

/// Ends the process with this exit code, or by SIGPIPE, if something that was printed is lost.
pub(crate) fn end_if_lost(failed: u8) {
    match LOST.load(Ordering::Relaxed) {
        0 => {}
        error => ended(&Error::from_raw_os_error(error), failed),
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

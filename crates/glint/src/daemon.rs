//! A command that goes on in the background: the same again, and word when it is ready.

use crate::logging::file as log_file;
use glint_server::data_dir::DataDir;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// Set for the process in the background, to the path of its log. That process says "ready" on
/// standard output, or why it cannot be.
const ENVIRONMENT: &str = "GLINT_DAEMON";
const READY: &str = "ready\n";
/// Begins a line that says what it waits for before it is ready.
const WAITING: &str = "waiting ";

static REPORTED: AtomicBool = AtomicBool::new(false);

/// The log of this process, if it is the one in the background.
pub(crate) fn log() -> Option<PathBuf> {
    std::env::var_os(ENVIRONMENT).map(PathBuf::from)
}

/// Whether this is the process in the background.
pub(crate) fn is_background() -> bool {
    log().is_some()
}

/// Starts this command in the background with its log in `log`, and waits until it is ready or
/// has failed. Returns its number.
fn start(log: &Path) -> Result<Result<u32, ExitCode>, Box<dyn std::error::Error>> {
    let file = log_file::open(log)?;
    let mut command = Command::new(std::env::current_exe()?);
    if let Some(name) = std::env::args_os().next() {
        // mount(8)'s helper is told by its name how it was called.
        command.arg0(name);
    }
    command
        .args(std::env::args_os().skip(1))
        .env(ENVIRONMENT, log)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(file);
    // SAFETY: between fork and exec only setsid is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into));
    }
    let mut child = command.spawn()?;
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        let mut out = BufReader::new(out);
        let mut line = String::new();
        while out.read_line(&mut line)? > 0 {
            if line.starts_with(WAITING) {
                let (process, shown) = (child.id(), log.display());
                let what = line.trim_end();
                let _ = writeln!(
                    std::io::stderr(),
                    "glint: {what}; process {process} goes on waiting, its log is {shown}"
                );
            } else {
                said.push_str(&line);
            }
            line.clear();
        }
    }
    if said == READY {
        return Ok(Ok(child.id()));
    }
    let status = child.wait()?;
    let shown = log.display();
    let said = match said.trim_end() {
        "" => format!("it ended without a word ({status}); its log is {shown}"),
        said => said.to_owned(),
    };
    let _ = writeln!(std::io::stderr(), "glint: {said}");
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(Err(ExitCode::from(code.max(1))))
}

/// A mount goes on in the background. As any mount(8), it says nothing of it.
pub(crate) fn start_mount(mount_point: &Path) -> crate::CommandResult {
    let started = start(&log_file::of_mount(mount_point)?)?;
    Ok(started.map_or_else(|code| code, |_| ExitCode::SUCCESS))
}

/// A server goes on in the background, with its log in its data directory, which is free for it
/// from now on.
pub(crate) fn start_server(data: DataDir) -> crate::CommandResult {
    let log = std::path::absolute(data.path().join("glint.log"))?;
    drop(data);
    Ok(match start(&log)? {
        Ok(process) => {
            let log = log.display();
            crate::say!("glint runs in the background, process {process}, log {log}");
            ExitCode::SUCCESS
        }
        Err(code) => code,
    })
}

/// In the background: tells the waiting process that everything is up.
pub(crate) fn say_ready() {
    // Nothing relative is looked up any more, and the directory of whoever started it may go.
    if is_background()
        && let Err(error) = std::env::set_current_dir("/")
    {
        tracing::warn!(
            %error,
            "could not leave the directory in which it was started; its file system cannot be \
            unmounted"
        );
    }
    report(READY);
}

/// In the background: tells the waiting process why it still waits. In the foreground the log is
/// seen anyway.
pub(crate) fn say_waiting(what: &str) {
    if is_background() && !REPORTED.load(Ordering::Acquire) {
        let line = what.replace('\n', " ");
        let line = line.strip_prefix(WAITING).unwrap_or(&line);
        // The parent may have been killed meanwhile.
        let _ = std::io::stdout().write_all(format!("{WAITING}{line}\n").as_bytes());
        let _ = std::io::stdout().flush();
    }
}

/// In the background: tells the waiting process why nothing will be.
pub(crate) fn say_failed(error: &dyn std::fmt::Display) {
    report(&format!("{error}\n"));
}

fn report(what: &str) {
    if !is_background() || REPORTED.swap(true, Ordering::AcqRel) {
        return;
    }
    // The parent may have been killed meanwhile.
    let _ = std::io::stdout().write_all(what.as_bytes());
    let _ = std::io::stdout().flush();
    // The waiting process reads to the end, so standard output is closed; and descriptor 1
    // must not be taken by a file that something prints into.
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        // SAFETY: both descriptors are open, and nobody in this process owns descriptor 1.
        unsafe { libc::dup2(null.as_raw_fd(), 1) };
    }
}

/// `file` is standard error from now on.
pub(crate) fn become_stderr(file: &File) -> std::io::Result<()> {
    // SAFETY: both descriptors are open, and nobody in this process owns descriptor 2.
    match unsafe { libc::dup2(file.as_raw_fd(), 2) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

//! `--daemon`: the same command again in the background, and word when it is ready.

use crate::data_dir::DataDir;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// Set for the process in the background; it says "ready" on standard output.
const ENVIRONMENT: &str = "GLINT_DAEMON";

/// Whether this is the process in the background.
pub fn is_background() -> bool {
    std::env::var_os(ENVIRONMENT).is_some()
}

/// Starts this command in the background with its log in `log`, and waits until it
/// is ready or has failed.
pub fn start(log: &Path) -> crate::CommandResult {
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .map_err(|e| format!("log file {}: {e}", log.display()))?;
    let before = file.metadata().map(|m| m.len()).unwrap_or(0);
    let mut command = Command::new(std::env::current_exe()?);
    if let Some(name) = std::env::args_os().next() {
        // mount(8)'s helper is told by its name how it was called.
        command.arg0(name);
    }
    command
        .args(std::env::args_os().skip(1))
        .env(ENVIRONMENT, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(file);
    // SAFETY: between fork and exec only setsid is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into));
    }
    let mut child = command.spawn()?;
    let mut said = String::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut said)?;
    }
    if said.starts_with("ready") {
        println!("glint runs in the background, process {}, log {}", child.id(), log.display());
        return Ok(ExitCode::SUCCESS);
    }
    let text = std::fs::read(log).unwrap_or_default();
    let new = String::from_utf8_lossy(text.get(before as usize..).unwrap_or_default()).into_owned();
    let last = new.lines().last().unwrap_or("it ended without a word").to_owned();
    Err(last.trim_start_matches("glint: ").into())
}

/// The same for a server, with its log in its data directory, which is free for it from now on.
pub fn start_server(data: DataDir) -> crate::CommandResult {
    let log = data.path().join("glint.log");
    drop(data);
    start(&log)
}

/// In the background: tells the waiting process that everything is up.
pub fn say_ready() {
    if is_background() {
        println!("ready");
        // The waiting process reads to the end, so standard output is closed.
        // SAFETY: nothing in this process uses descriptor 1 after this.
        unsafe { libc::close(1) };
        // Descriptor 1 must not be taken by a file that something prints into.
        if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
            std::mem::forget(null);
        }
    }
}

//! One test in a process of its own, with a temporary directory, a scratch directory and a log of
//! its own.

use crate::{leftovers, report};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time of a test: more than its own patience with anything that it waits for.
pub(crate) const LIMIT: Duration = Duration::from_secs(900);

/// How long the runner waits for the end of a test that it has killed.
const KILLED: Duration = Duration::from_secs(10);

/// What became of a test.
pub(crate) struct Outcome {
    pub(crate) name: String,
    /// Which of its runs this was, from 1.
    pub(crate) run: u32,
    /// Why it failed.
    pub(crate) failure: Option<String>,
    pub(crate) took: Duration,
    /// What it and its processes printed.
    pub(crate) log: PathBuf,
}

/// Names of all tests, or of those that only `make long` runs.
pub(crate) fn list(binary: &Path, only_long: bool) -> Result<Vec<String>, String> {
    let mut command = Command::new(binary);
    command.args(["--list", "--format", "terse"]);
    if only_long {
        command.arg("--ignored");
    }
    let output = command.output().map_err(|error| format!("{}: {error}", binary.display()))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{} --list: {}\n{why}", binary.display(), output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// Runs a test to its end; `run` tells this time from others.
pub(crate) fn run(binary: &Path, name: &str, run: u32, at_length: bool) -> Outcome {
    let begun = Instant::now();
    let log = logs().join(format!("{}.{run}.log", name.replace("::", ".")));
    let failure = match try_to_run(binary, name, &log, at_length) {
        Ok(failure) => failure,
        Err(error) => Some(format!("it could not be run: {error}")),
    };
    Outcome { name: name.to_owned(), run, failure, took: begun.elapsed(), log }
}

/// True after SIGINT, SIGTERM or SIGQUIT: tests that run are ended then, and
/// what they have left is cleaned up.
pub(crate) fn interrupted() -> bool {
    SIGNALS.load(Ordering::Relaxed)
}

static SIGNALS: AtomicBool = AtomicBool::new(false);

/// Notes signals that ask for the end.
pub(crate) fn listen_to_signals() -> std::io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new(signal_hook::consts::TERM_SIGNALS)?;
    std::thread::spawn(move || {
        for _ in &mut signals {
            SIGNALS.store(true, Ordering::Relaxed);
        }
    });
    Ok(())
}

/// Has the logs of this build for itself, until the file is dropped.
pub(crate) fn lock_logs() -> Result<File, String> {
    let path = logs().join("lock");
    let locked = fs::create_dir_all(logs())
        .and_then(|()| File::create(&path))
        .and_then(|file| file.try_lock().map(|()| file).map_err(std::io::Error::from));
    locked.map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => {
            format!("{}: end-to-end tests of this build run already", path.display())
        }
        _ => format!("{}: {error}", path.display()),
    })
}

/// Directory of the logs: beside the binaries.
fn logs() -> PathBuf {
    let here = std::env::current_exe().unwrap_or_default();
    here.with_file_name("e2e-logs")
}

fn try_to_run(
    binary: &Path,
    name: &str,
    log: &Path,
    at_length: bool,
) -> std::io::Result<Option<String>> {
    fs::create_dir_all(logs())?;
    // Short: sockets are bound below it, whose paths have 108 bytes.
    // Without symbolic links, as mounts are listed.
    let top = std::env::temp_dir().canonicalize()?;
    let temporary = tempfile::Builder::new().prefix("e").rand_bytes(5).tempdir_in(top)?;
    let scratches = logs().with_file_name("e2e-scratch");
    fs::create_dir_all(&scratches)?;
    let scratch = tempfile::Builder::new().prefix("").tempdir_in(scratches)?;
    open_to_all(temporary.path())?;
    open_to_all(scratch.path())?;
    let output = File::create(log)?;
    let mut command = Command::new(binary);
    if at_length {
        command.env("E2E_LONG", "1");
    }
    let mut child = command
        .args(["--exact", name, "--include-ignored", "--nocapture", "--test-threads=1"])
        .env("TMPDIR", temporary.path())
        .env("E2E_SCRATCH", scratch.path())
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0)
        .spawn()?;
    let mut failure = wait(&mut child)?.or_else(|| did_not_run(log));
    let left = leftovers::remove(temporary.path(), scratch.path(), child.id());
    if failure.is_none() && !left.is_empty() {
        failure = Some(format!("it left behind: {}", left.join(", ")));
    }
    Ok(failure)
}

/// Lets other users come to what tests open to them below a directory.
fn open_to_all(directory: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
}

/// A failure, if a test process that ended well has not run its test.
fn did_not_run(log: &Path) -> Option<String> {
    (!report::tail(log).contains("test result: ok. 1 passed"))
        .then(|| "it ended without a result".to_owned())
}

/// Waits for the end of a test. One that does not end is killed, with all of its process group.
fn wait(child: &mut Child) -> std::io::Result<Option<String>> {
    let begun = Instant::now();
    while begun.elapsed() <= LIMIT && !interrupted() {
        if let Some(status) = child.try_wait()? {
            return Ok((!status.success()).then(|| status.to_string()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32) {
        // Fails where none of them is left.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    // One that waits for a disk that stands still cannot be killed.
    let killed = Instant::now();
    while child.try_wait()?.is_none() && killed.elapsed() < KILLED {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(Some(format!("it was ended after {} s", begun.elapsed().as_secs())))
}

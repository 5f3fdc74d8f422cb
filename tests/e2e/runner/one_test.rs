//! One test in a process of its own, with a temporary directory, a scratch directory and a log of
//! its own.

use crate::plan::Plan;
use crate::{leftovers, logs};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time of a test: more than its own patience with anything that it waits for. One that
/// usually takes longer has three times what it takes.
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
    /// What it printed.
    pub(crate) log: PathBuf,
    /// Directory of what its processes logged, if it failed and they did.
    pub(crate) kept: Option<PathBuf>,
}

impl Outcome {
    /// Names all that is left of it to read.
    pub(crate) fn logs(&self) -> String {
        let kept =
            self.kept.as_ref().map(|kept| format!(", logs of its processes: {}", kept.display()));
        format!("{}{}", self.log.display(), kept.unwrap_or_default())
    }
}

/// What runs tests of a binary.
pub(crate) struct Tests {
    pub(crate) binary: PathBuf,
    /// Whether they do more, as in `make long`.
    pub(crate) at_length: bool,
    /// Directory of their logs.
    pub(crate) logs: PathBuf,
    /// Longest time of each that does not usually take longer.
    pub(crate) limit: Duration,
    /// How long they usually take.
    pub(crate) plan: Plan,
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

/// True after SIGINT, SIGTERM, SIGQUIT or SIGHUP, or when nobody reads any more what the runner
/// says: tests that run are ended then, and what they have left is cleaned up.
pub(crate) fn interrupted() -> bool {
    SIGNALS.load(Ordering::Relaxed)
}

static SIGNALS: AtomicBool = AtomicBool::new(false);

/// Asks for the end.
pub(crate) fn interrupt() {
    SIGNALS.store(true, Ordering::Relaxed);
}

/// Notes signals that ask for the end.
pub(crate) fn listen_to_signals() -> std::io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new(signal_hook::consts::TERM_SIGNALS)?;
    let status = fs::read_to_string("/proc/self/status")?;
    if !ignores_hangup(&status) {
        signals.add_signal(signal_hook::consts::SIGHUP)?;
    }
    std::thread::spawn(move || {
        for _ in &mut signals {
            interrupt();
        }
    });
    Ok(())
}

/// True if `/proc/self/status` is of a process that nohup(1) has started.
fn ignores_hangup(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 != 0)
}

impl Tests {
    /// Runs a test to its end; `run` tells this time from others.
    pub(crate) fn run(&self, name: &str, run: u32) -> Outcome {
        let begun = Instant::now();
        let log = self.logs.join(format!("{}.{run}.log", name.replace("::", ".")));
        let (failure, kept) = match self.try_to_run(name, &log) {
            Ok(result) => result,
            Err(error) => (Some(format!("it could not be run: {error}")), None),
        };
        Outcome { name: name.to_owned(), run, failure, took: begun.elapsed(), log, kept }
    }

    fn limit_of(&self, name: &str) -> Duration {
        let usual = Duration::from_secs(self.plan.usual_seconds(name));
        if usual > self.limit { 3 * usual } else { self.limit }
    }

    /// Returns why the test failed, and where the logs of its processes are then.
    fn try_to_run(
        &self,
        name: &str,
        log: &Path,
    ) -> std::io::Result<(Option<String>, Option<PathBuf>)> {
        fs::create_dir_all(&self.logs)?;
        let kept = log.with_extension("");
        // Of an earlier run, if there are any.
        let _ = fs::remove_dir_all(&kept);
        // Short: sockets are bound below it, whose paths have 108 bytes.
        // Without symbolic links, as mounts are listed.
        let top = std::env::temp_dir().canonicalize()?;
        let temporary = tempfile::Builder::new().prefix("e").rand_bytes(5).tempdir_in(top)?;
        let scratches = logs::scratches(&self.logs);
        fs::create_dir_all(&scratches)?;
        let scratch = tempfile::Builder::new().prefix("").tempdir_in(scratches)?;
        open_to_all(temporary.path())?;
        open_to_all(scratch.path())?;
        let output = File::create(log)?;
        let mut command = Command::new(&self.binary);
        if self.at_length {
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
        let ended = wait(&mut child, self.limit_of(name));
        let left = leftovers::remove(temporary.path(), scratch.path(), child.id());
        let found = logs::below(&[scratch.path(), temporary.path()]);
        let mut failure = ended?
            .or_else(|| did_not_run(log))
            .or_else(|| (!left.is_empty()).then(|| format!("it left behind: {}", left.join(", "))))
            .or_else(|| found.first_panic());
        let mut logs = None;
        if let Some(why) = &mut failure {
            match found.keep(kept) {
                Ok(kept) => logs = kept,
                Err(error) => why.push_str(&format!("; its logs cannot be kept: {error}")),
            }
        }
        Ok((failure, logs))
    }
}

/// Lets other users come to what tests open to them below a directory.
fn open_to_all(directory: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
}

/// A failure, if a test process that ended well has not run its test.
fn did_not_run(log: &Path) -> Option<String> {
    (!logs::tail(log).contains("test result: ok. 1 passed"))
        .then(|| "it ended without a result".to_owned())
}

/// Waits for the end of a test. One that does not end is killed, with all of its process group.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<String>> {
    let begun = Instant::now();
    while begun.elapsed() <= limit && !interrupted() {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests of a binary that is a script: `$2` is the name of the test.
    const SCRIPT: &str = r#"#!/bin/sh
mkdir "$E2E_SCRATCH/world"
log="$E2E_SCRATCH/world/serve.log"
echo "serves" > "$log"
case "$2" in
hangs) exec sleep 100 ;;
fails) exit 1 ;;
product::panics) echo "thread 'worker' (7) panicked at src/a.rs:1:2:" >> "$log" ;;
esac
echo "test result: ok. 1 passed; 0 failed"
"#;

    #[test]
    fn logs_of_processes_outlive_a_test_that_hangs_or_fails_or_has_seen_a_panic() {
        let top = tempfile::tempdir().unwrap();
        let binary = top.path().join("tests");
        // Another process writes it: a file that is open to be written cannot be executed.
        let write = r#"printf %s "$1" > "$0" && chmod 755 "$0""#;
        let mut shell = Command::new("sh");
        support::run(shell.args(["-c", write]).arg(&binary).arg(SCRIPT));
        let limit = Duration::from_secs(2);
        let logs = top.path().join("e2e-logs");
        let plan = Plan::parse("takes::hours 4000\n").unwrap();
        let tests = Tests { binary, at_length: false, logs: logs.clone(), limit, plan };
        assert_eq!(tests.limit_of("takes::hours"), Duration::from_secs(12_000));
        let passed = tests.run("passes", 1);
        assert!(passed.failure.is_none() && passed.kept.is_none(), "{:?}", passed.failure);
        for (name, why) in [
            ("hangs", "it was ended after 2 s"),
            ("fails", "exit status: 1"),
            (
                "product::panics",
                "world-serve.log has a panic: thread 'worker' (7) panicked at src/a.rs",
            ),
        ] {
            let outcome = tests.run(name, 3);
            let failure = outcome.failure.as_deref().unwrap();
            assert!(failure.contains(why), "{name}: {failure}");
            let kept = outcome.kept.clone().unwrap();
            assert_eq!(kept, logs.join(format!("{}.3", name.replace("::", "."))));
            assert!(outcome.logs().contains(kept.to_str().unwrap()));
            let log = fs::read_to_string(kept.join("world-serve.log")).unwrap();
            assert!(log.starts_with("serves"), "{log}");
        }
        let scratches = fs::read_dir(logs::scratches(&logs)).unwrap();
        assert_eq!(scratches.count(), 0);
    }

    #[test]
    fn a_hangup_is_ignored_where_nohup_says_so() {
        assert!(ignores_hangup("Name:\tx\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hangup("Name:\tx\nSigIgn:\t0000000000001000\n"));
        assert!(!ignores_hangup(""));
    }
}

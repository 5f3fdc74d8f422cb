//! Standard programs, run as users run them, and ended when somebody asks for an end.

use crate::smallfile::Asked;
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How often an end is asked for while a program runs.
const LOOK: Duration = Duration::from_millis(50);

/// How long fio reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FioEnd {
    /// A second: for data that is cached, whose reads are too fast to be counted.
    Second,
    /// So many bytes, by each job.
    Bytes(u64),
}

/// Whether a program is there.
pub(super) fn is_installed(program: &str) -> bool {
    let mut command = Command::new(program);
    let status = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Runs a script in a directory, with some variables. Returns the seconds it took.
pub(super) fn script(
    script: &str,
    directory: &Path,
    variables: &[(&str, &Path)],
    asked: Asked<'_>,
) -> Result<f64, String> {
    let mut command = Command::new("sh");
    command.args(["-ec", script]).current_dir(directory);
    command.envs(variables.iter().copied());
    // Nobody's settings for git.
    command.envs([("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1")]);
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(name);
    }
    let (output, seconds) = run(&mut command, asked)?;
    // The first program of a pipe may have failed.
    match output.status.success() && output.stderr.is_empty() {
        true => Ok(seconds),
        false => Err(format!("`{script}` in {}: {}", directory.display(), reason(&output))),
    }
}

/// Runs fio's random reads of 4 KiB of a file. Returns reads in a second, and how many there were.
pub(super) fn fio(
    jobs: u64,
    directory: &Path,
    file: &str,
    end: FioEnd,
    asked: Asked<'_>,
) -> Result<(f64, f64), String> {
    let mut command = Command::new("fio");
    command.args(["--name=work", "--rw=randread", "--bs=4k", "--ioengine=psync", "--thread"]);
    // What is cached on the local side is cached on the server, too.
    command.args(["--readonly", "--invalidate=0", "--group_reporting", "--output-format=json"]);
    command.arg(format!("--numjobs={jobs}")).arg(format!("--filename={file}"));
    match end {
        FioEnd::Second => command.args(["--time_based", "--runtime=1"]),
        FioEnd::Bytes(bytes) => command.arg(format!("--io_size={bytes}")),
    };
    command.current_dir(directory);
    let (output, _) = run(&mut command, asked)?;
    let text = String::from_utf8_lossy(&output.stdout);
    // Notes may come first.
    let json = text.find('{').map_or("", |start| &text[start..]);
    let figures = serde_json::from_str::<Value>(json).ok().filter(|_| output.status.success());
    let read = figures.map(|figures| figures["jobs"][0]["read"].clone()).unwrap_or_default();
    match (read["iops"].as_f64(), read["total_ios"].as_f64()) {
        (Some(per_s), Some(count)) if count > 0.0 => Ok((per_s, count)),
        _ => Err(format!("fio in {}: {}", directory.display(), reason(&output))),
    }
}

fn reason(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or_default();
    match output.status.success() {
        true => said.to_owned(),
        false => format!("{}: {said}", output.status),
    }
}

/// Runs a program in a group of its own, so that all that it has started can be ended.
fn run(command: &mut Command, asked: Asked<'_>) -> Result<(Output, f64), String> {
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |e: std::io::Error| format!("{name}: {e}");
    let start = Instant::now();
    let child = command.spawn().map_err(failed)?;
    let group = rustix::process::Pid::from_raw(child.id() as i32);
    let (ended, end) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while end.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if let Some(group) = group.filter(|_| asked()) {
                    let signal = rustix::process::Signal::KILL;
                    let _ = rustix::process::kill_process_group(group, signal);
                }
            }
        });
        let output = child.wait_with_output();
        let seconds = start.elapsed().as_secs_f64();
        drop(ended);
        match asked() {
            true => Err("interrupted".into()),
            false => Ok((output.map_err(failed)?, seconds)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_timed_and_its_failure_is_told() {
        let here = tempfile::tempdir().unwrap();
        let run = |text| script(text, here.path(), &[("WORD", Path::new("x"))], &|| false);
        assert!(run("test $WORD = x; sleep 0.1").unwrap() >= 0.1);
        for text in ["false", "cat nothing | cat", "echo > f; diff f /dev/null"] {
            let why = run(text).unwrap_err();
            assert!(why.starts_with(&format!("`{text}` in ")), "{why}");
        }
        assert!(run("cat nothing | cat").unwrap_err().contains("nothing: No such file"));
    }

    #[test]
    fn all_of_a_script_ends_when_that_is_asked_for() {
        let here = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let ended = script("sleep 60 | sleep 60", here.path(), &[], &|| true);
        assert_eq!(ended, Err("interrupted".into()));
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}

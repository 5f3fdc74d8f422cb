//! fio and fsx, which compare what they read with what they wrote, again and again.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use super::crew::{CALL_MAX, Course, Worker};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use support::load::fsx;
use support::text;

/// Longest run of one of them, in seconds; without faults it takes a few.
const SECONDS_MAX: &str = "150";
const OPERATIONS: &str = "200";

/// Longest file of fsx.
const FSX_BYTES: u64 = 300_000;

/// A program that is ended if it takes too long.
fn limited(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--foreground", "-k", "5", SECONDS_MAX, program]);
    command
}

fn must_succeed(course: &Course, command: &mut Command) {
    let before = course.now();
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}: {command:?}: {} (begun at {before})\n{}{}",
        course.now(),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// fio, in a directory as both mounts have it, in turns.
pub(super) struct Fio {
    pub(super) dirs: [PathBuf; 2],
    /// Where it leaves the state of its verification.
    pub(super) scratch: PathBuf,
    pub(super) runs: usize,
}

impl Worker for Fio {
    fn step(&mut self, course: &Course) {
        self.runs += 1;
        let job = ["--rw=randwrite", "--bsrange=512-64k", "--bs_unaligned=1", "--thinktime=5000"];
        let verify = ["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--end_fsync=1"];
        let mut fio = limited("fio");
        fio.current_dir(&self.scratch).args(["--name=verify", "--ioengine=psync", "--size=2m"]);
        fio.args(job).args(verify).args(["--group_reporting", "--unlink=1"]);
        fio.arg(format!("--directory={}", text(&self.dirs[self.runs % 2])));
        must_succeed(course, &mut fio);
    }

    fn pause(&self) -> Duration {
        Duration::from_millis(500)
    }
}

/// fsx, with another seed in each run.
pub(super) struct Fsx {
    dirs: [PathBuf; 2],
    scratch: PathBuf,
    config: PathBuf,
    runs: u64,
    seed: u64,
}

impl Fsx {
    pub(super) fn new(dirs: [PathBuf; 2], scratch: &Path, seed: u64) -> Fsx {
        let config = fsx::config(scratch, FSX_BYTES);
        Fsx { dirs, scratch: scratch.to_owned(), config, runs: 0, seed: seed % 1_000_000 }
    }
}

impl Worker for Fsx {
    fn step(&mut self, course: &Course) {
        self.runs += 1;
        let mount = (self.runs % 2) as usize;
        let name = format!("fsx{}", self.runs);
        let mut fsx = limited("fsx");
        fsx.args(["-q", "-N", OPERATIONS, "-S", &(self.seed + self.runs).to_string(), "-P"]);
        fsx.arg(&self.scratch).arg("-f").arg(&self.config).arg(self.dirs[mount].join(&name));
        must_succeed(course, &mut fsx);
        let path = self.dirs[1 - mount].join(&name);
        course.call("remove", &path, CALL_MAX, || fs::remove_file(&path));
    }

    fn pause(&self) -> Duration {
        Duration::from_millis(1000)
    }
}

//! A round on a directory of any file system, through system calls. Each worker is
//! a process of its own, as the users of a mount are.

use super::{BenchTarget, Operation, Round};
use crate::sample::Sample;
use glint::{CommandResult, say};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// The part of one worker; started by the benchmark itself.
#[derive(clap::Args)]
pub(crate) struct WorkerArgs {
    directory: PathBuf,
    #[arg(value_enum)]
    op: Operation,
    from: u64,
    count: u64,
}

/// A directory in which rounds run; removed afterwards unless it is to be kept.
pub(crate) struct Directory {
    path: PathBuf,
    keep: bool,
}

fn file(path: &Path, index: u64) -> PathBuf {
    path.join(format!("f{index}"))
}

impl Directory {
    /// Makes an empty directory in `parent`.
    pub(crate) fn new(parent: &Path, keep: bool) -> Result<Directory, String> {
        let path = parent.join(format!("glint-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Directory { path, keep })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if !self.keep {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

impl BenchTarget for Directory {
    fn run(&mut self, round: Round) -> Result<Sample, Box<dyn std::error::Error>> {
        if round.op.needs_files() {
            for index in round.from..round.from + round.count {
                mknod(&file(&self.path, index))?;
            }
        }
        let mut workers = Vec::new();
        for index in 0..round.procs {
            let (from, count) = round.share(index);
            let child = Command::new(std::env::current_exe()?)
                .arg("worker")
                .arg(&self.path)
                .args([round.op.name(), &from.to_string(), &count.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            workers.push(Worker::new(child)?);
        }
        let start = Instant::now();
        for worker in &mut workers {
            worker.go()?;
        }
        let mut texts = Vec::new();
        for worker in &mut workers {
            texts.push(worker.line()?);
        }
        let seconds = start.elapsed().as_secs_f64();
        let mut sample = Sample::default();
        for text in texts {
            let part = Sample::from_text(&text).ok_or("a worker failed; its error is above")?;
            sample.merge(&part);
        }
        for worker in &mut workers {
            worker.child.wait()?;
        }
        sample.set_seconds(seconds);
        Ok(sample)
    }
}

struct Worker {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Worker {
    fn new(mut child: Child) -> Result<Worker, Box<dyn std::error::Error>> {
        let out = child.stdout.take().ok_or("no pipe from the worker")?;
        let mut worker = Worker { child, out: BufReader::new(out) };
        worker.line()?;
        Ok(worker)
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        Ok(line)
    }

    fn go(&mut self) -> std::io::Result<()> {
        match &mut self.child.stdin {
            Some(input) => input.write_all(b"go\n"),
            None => Ok(()),
        }
    }
}

fn mknod(path: &Path) -> rustix::io::Result<()> {
    rustix::fs::mknodat(CWD, path, FileType::RegularFile, Mode::from(0o644), 0)
}

/// Runs a worker: says that it is ready, waits for the start, prints its sample.
pub(crate) fn work(args: WorkerArgs) -> CommandResult {
    // The names are made before the clock runs.
    let range = args.from..args.from + args.count;
    let files: Vec<PathBuf> = range.map(|index| file(&args.directory, index)).collect();
    say!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let mut sample = Sample::default();
    for path in &files {
        let start = Instant::now();
        one(args.op, path).map_err(|e| format!("{}: {e}", path.display()))?;
        sample.record(start.elapsed().as_nanos() as u64);
    }
    say!("{}", sample.to_text());
    Ok(std::process::ExitCode::SUCCESS)
}

fn one(op: Operation, path: &Path) -> rustix::io::Result<()> {
    match op {
        Operation::Open => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::from(0o644)).map(drop)
        }
        Operation::Mknod => mknod(path),
        Operation::Mkdir => rustix::fs::mkdir(path, Mode::from(0o755)),
        Operation::Unlink => rustix::fs::unlink(path),
        Operation::Stat => rustix::fs::stat(path).map(drop),
        Operation::Read => rustix::fs::open(path, OFlags::RDONLY, Mode::empty()).map(drop),
        Operation::Rename => {
            let mut new = path.as_os_str().to_owned();
            new.push("r");
            rustix::fs::rename(path, new)
        }
    }
}

//! One operation on all files of a directory, by several threads at once.
//!
//! Before its clock runs, all that an operation needs is made, and all that the one before it left
//! to write is written. All threads begin together; each ends after its last file. smallfile counts
//! when the first of them has ended: that is noted, too.

use super::operation::{Contents, SmallfileOp, Subject};
use super::tree::{FileTree, Half};
use crate::sample::Sample;
use crate::unwritten::Unwritten;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, OnceLock};
use std::time::Instant;

/// How many records differ before they repeat.
const RECORDS: usize = 65_521;
/// Drops what is cached, if root writes to it.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Whether an early end is asked for.
pub(crate) type Asked<'a> = &'a (dyn Fn() -> bool + Sync);

/// The work, apart from where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Workload {
    /// Threads.
    pub threads: u64,
    /// Files of each.
    pub files: u64,
    /// Bytes of each file.
    pub bytes: usize,
    /// Sync what was written before it is closed.
    pub fsync: bool,
    /// Drop the caches of the machine before each operation.
    pub cold: bool,
}

/// A directory with the trees, removed in the end.
pub(crate) struct Volume {
    tree: FileTree,
    workload: Workload,
    unwritten: Unwritten,
    contents: Contents,
    /// Bytes of each file, after some appends.
    size: u64,
    /// Records are pieces of it.
    noise: Vec<u8>,
}

/// Why a thread has ended early.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Unfinished {
    /// Somebody asked for it.
    Interrupted,
    /// With the call that failed.
    Failed(String),
}

/// The result of one operation.
pub(crate) struct Outcome {
    /// Latencies and the time of all.
    pub sample: Sample,
    /// Files (directories of [`SmallfileOp::Tree`]) that are done.
    pub finished: u64,
    /// How many there should be.
    pub wanted: u64,
    /// How many were done when the first thread had ended, and after which time.
    pub first: Option<(u64, f64)>,
    /// Why there are not more.
    pub unfinished: Option<Unfinished>,
}

impl std::fmt::Display for Unfinished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unfinished::Interrupted => f.write_str("interrupted"),
            Unfinished::Failed(reason) => f.write_str(reason),
        }
    }
}

impl Volume {
    /// Makes a directory of its own in `parent`.
    pub(crate) fn new(parent: &Path, workload: Workload) -> Result<Volume, String> {
        let top = parent.join(format!("glint-smallfile-{}", std::process::id()));
        std::fs::create_dir(&top).map_err(|e| format!("{}: {e}", top.display()))?;
        let mut word = 0x9E37_79B9_7F4A_7C15u64;
        let mut next = || {
            // Nothing along the way can make it shorter: no byte foretells another one.
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (word >> 56) as u8
        };
        let noise = (0..workload.bytes + RECORDS).map(|_| next()).collect();
        let tree = FileTree::new(top, workload.files);
        let (unwritten, contents) = (Unwritten::Anywhere, Contents::Nothing);
        Ok(Volume { tree, workload, unwritten, contents, size: 0, noise })
    }

    /// The same, where only this is written before an operation.
    pub(crate) fn after(mut self, unwritten: &Unwritten) -> Volume {
        self.unwritten = unwritten.clone();
        self
    }

    /// The same trees at `top`, where they are already, with zeros as data of all files.
    pub(crate) fn of_zeros(&self, top: PathBuf) -> Volume {
        let Volume { workload, contents, size, .. } = *self;
        let tree = FileTree::new(top, workload.files);
        let noise = vec![0; self.noise.len()];
        Volume { tree, workload, unwritten: self.unwritten.clone(), contents, size, noise }
    }

    /// Where it is.
    pub(crate) fn top(&self) -> &Path {
        self.tree.top()
    }

    /// Runs an operation; what it needs comes first. An outcome that is not complete is the last
    /// one: nobody knows what is there then.
    pub(crate) fn run(&mut self, op: SmallfileOp, asked: Asked<'_>) -> Result<Outcome, String> {
        for step in self.steps_to(op.needs(self.contents)) {
            let outcome = self.at_once(step, asked)?;
            if outcome.unfinished.is_some() {
                let (sample, wanted) = (Sample::default(), self.wanted(op));
                return Ok(Outcome { sample, finished: 0, wanted, first: None, ..outcome });
            }
        }
        self.unwritten.write()?;
        if self.workload.cold {
            std::fs::write(DROP_CACHES, "3").map_err(|e| format!("{DROP_CACHES}: {e}"))?;
        }
        self.at_once(op, asked)
    }

    fn steps_to(&self, needed: Contents) -> Vec<SmallfileOp> {
        if needed == self.contents {
            return Vec::new();
        }
        let is_new = self.contents == Contents::Nothing;
        let cleanup = (!is_new).then_some(SmallfileOp::Cleanup);
        cleanup.into_iter().chain(needed.made_by().iter().copied()).collect()
    }

    fn wanted(&self, op: SmallfileOp) -> u64 {
        self.workload.threads
            * match op {
                SmallfileOp::Tree => self.tree.directories(0).len() as u64,
                _ => self.workload.files,
            }
    }

    /// Runs an operation in all threads.
    fn at_once(&mut self, op: SmallfileOp, asked: Asked<'_>) -> Result<Outcome, String> {
        if op == SmallfileOp::Tree {
            for thread in 0..self.workload.threads {
                for half in [Half::Source, Half::Destination] {
                    let path = self.tree.of_thread(half, thread);
                    std::fs::create_dir_all(&path)
                        .map_err(|e| format!("{}: {e}", path.display()))?;
                }
            }
        }
        let turn = Turn {
            volume: self,
            op,
            asked,
            gate: Barrier::new(self.workload.threads as usize + 1),
            start: OnceLock::new(),
            finished: AtomicU64::new(0),
            first: OnceLock::new(),
        };
        let mut sample = Sample::default();
        let mut unfinished = None;
        let seconds = std::thread::scope(|scope| {
            let start = |thread| {
                let turn = &turn;
                scope.spawn(move || turn.work(thread))
            };
            let threads: Vec<_> = (0..self.workload.threads).map(start).collect();
            turn.gate.wait();
            let start = *turn.start.get_or_init(Instant::now);
            for thread in threads {
                let panicked = || (Sample::default(), Err("a thread panicked".to_owned().into()));
                let (part, result) = thread.join().unwrap_or_else(|_| panicked());
                sample.merge(&part);
                unfinished = unfinished.take().or(result.err());
            }
            start.elapsed().as_secs_f64()
        });
        sample.set_seconds(seconds);
        let (finished, first) = (turn.finished.into_inner(), turn.first.into_inner());
        let wanted = self.wanted(op);
        if unfinished.is_none() {
            self.contents = op.leaves();
            self.size = match op {
                SmallfileOp::Create => self.workload.bytes as u64,
                SmallfileOp::Append => self.size + self.workload.bytes as u64,
                _ => self.size,
            };
        }
        Ok(Outcome { sample, finished, wanted, first, unfinished })
    }

    /// The content of a file.
    fn record(&self, thread: u64, number: u64) -> &[u8] {
        let from = ((number * self.workload.threads + thread) % RECORDS as u64) as usize;
        &self.noise[from..from + self.workload.bytes]
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        match std::fs::remove_dir_all(self.tree.top()) {
            // Gone with the mount that it was on.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                eprintln!("glint: {} was not removed: {error}", self.tree.top().display());
            }
            Ok(()) => {}
        }
    }
}

impl From<String> for Unfinished {
    fn from(reason: String) -> Unfinished {
        Unfinished::Failed(reason)
    }
}

/// One operation, by all threads.
struct Turn<'a> {
    volume: &'a Volume,
    op: SmallfileOp,
    asked: Asked<'a>,
    gate: Barrier,
    start: OnceLock<Instant>,
    finished: AtomicU64,
    first: OnceLock<(u64, f64)>,
}

impl Turn<'_> {
    /// The part of a thread.
    fn work(&self, thread: u64) -> (Sample, Result<(), Unfinished>) {
        let tree = &self.volume.tree;
        // Names are made before the clock runs.
        let directories = tree.directories(thread);
        let name = |half, number| tree.file(half, thread, number);
        let numbers = 1..=self.volume.workload.files;
        let names = numbers.map(|n| (n, name(Half::Source, n), name(Half::Destination, n)));
        let names: Vec<_> = match self.op {
            SmallfileOp::Tree => Vec::new(),
            _ => names.collect(),
        };
        let mut sample = Sample::default();
        let mut buffer = vec![0; self.volume.workload.bytes];
        self.gate.wait();
        let start = *self.start.get_or_init(Instant::now);
        let mut work = || -> Result<(), Unfinished> {
            if self.op == SmallfileOp::Tree {
                for path in &directories {
                    self.one(&mut sample, path, || std::fs::create_dir(path))?;
                }
            }
            let mut listed = None;
            for (number, source, destination) in &names {
                let record = self.volume.record(thread, *number);
                let Volume { size, workload: Workload { fsync, .. }, .. } = *self.volume;
                let subject = Subject { source, destination, record, size, fsync };
                self.one(&mut sample, source, || {
                    let directory = source.parent();
                    if self.op == SmallfileOp::LsL && directory != listed {
                        listed = directory;
                        list(directory)?;
                    }
                    subject.run(self.op, &mut buffer)
                })?;
            }
            if self.op == SmallfileOp::Cleanup {
                for path in directories.iter().rev() {
                    let failed = |e| format!("{}: {e}", path.display());
                    std::fs::remove_dir(path).map_err(failed)?;
                }
            }
            Ok(())
        };
        let result = work();
        let finished = self.finished.load(Ordering::Relaxed);
        self.first.get_or_init(|| (finished, start.elapsed().as_secs_f64()));
        (sample, result)
    }

    /// One file.
    fn one(
        &self,
        sample: &mut Sample,
        path: &Path,
        work: impl FnOnce() -> std::io::Result<()>,
    ) -> Result<(), Unfinished> {
        if (self.asked)() {
            return Err(Unfinished::Interrupted);
        }
        let start = Instant::now();
        work().map_err(|e| format!("{}: {e}", path.display()))?;
        sample.record(start.elapsed().as_nanos() as u64);
        self.finished.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn list(directory: Option<&Path>) -> std::io::Result<()> {
    for entry in directory.map(std::fs::read_dir).transpose()?.into_iter().flatten() {
        entry?;
    }
    Ok(())
}

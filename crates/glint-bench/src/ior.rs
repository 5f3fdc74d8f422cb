//! `glint bench ior`: several writers of one shared file, as IOR does it: each its own part
//! (segmented) or by turns (strided), in transfers of any size; then read back and compared,
//! with the caches dropped.

use crate::experiments::lustre_ssf;
use glint::size::parse as bytes;
use glint::{CommandResult, say};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::Instant;

/// Write one file by several writers, read it back and compare.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run the whole published experiment instead, with servers and mounts of its own.
    #[arg(long, value_enum)]
    experiment: Option<Experiment>,
    /// Directories to write in; several mounts of one file system for several clients.
    #[arg(long, value_name = "DIR", required_unless_present = "experiment")]
    target: Vec<PathBuf>,
    /// Writers; they are dealt out over the targets.
    #[arg(long, default_value_t = 8)]
    writers: usize,
    /// Bytes that one call writes.
    #[arg(long, default_value_t = 1 << 20)]
    transfer: usize,
    /// Bytes in all, with K, M or G.
    #[arg(long, value_parser = bytes, default_value = "1000000000")]
    total: u64,
    /// By turns instead of each its own part.
    #[arg(long)]
    strided: bool,
    /// Each does its calls in a random order, the same in each run.
    #[arg(long)]
    random: bool,
    /// With --experiment: where servers and mounts are; decides which disk is measured.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    data: PathBuf,
    /// With --experiment: what each OST may move in a second.
    #[arg(long, value_parser = bytes, default_value = "50000000")]
    limit: u64,
    /// With --experiment: write a report with plots into this directory.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Experiment {
    /// Lustre: writers of one shared file send half-empty requests.
    LustreSsf,
}

/// Access pattern: who writes what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pattern {
    /// Writers.
    pub writers: usize,
    /// Bytes of a call; a multiple of eight.
    pub transfer: usize,
    /// In all; what does not fill the same number of calls of each writer is left out.
    pub total: u64,
    /// By turns.
    pub strided: bool,
    /// The calls of each in a random order.
    pub random: bool,
}

/// Bytes per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Throughput {
    /// Writing, up to the end of the last fsync.
    pub write: f64,
    /// Reading and comparing.
    pub read: f64,
    /// How much it was.
    pub bytes: u64,
}

impl Pattern {
    fn calls(&self) -> u64 {
        self.total / (self.transfer * self.writers) as u64
    }

    /// The calls of a writer, in the order in which it does them.
    fn order(&self, writer: usize) -> Vec<u64> {
        let mut calls: Vec<u64> = (0..self.calls()).collect();
        if self.random {
            shuffle(&mut calls, writer as u64);
        }
        calls
    }

    /// Offset of a writer's call, in bytes.
    fn offset(&self, writer: usize, call: u64) -> u64 {
        let number = match self.strided {
            true => call * self.writers as u64 + writer as u64,
            false => writer as u64 * self.calls() + call,
        };
        number * self.transfer as u64
    }

    /// Bytes that are written.
    pub(crate) fn bytes(&self) -> u64 {
        self.calls() * (self.transfer * self.writers) as u64
    }
}

/// Puts `values` into another order, the same for each `seed`.
pub(crate) fn shuffle<T>(values: &mut [T], seed: u64) {
    let mut word = seed ^ 0x9E37_79B9_7F4A_7C15;
    for end in (1..values.len()).rev() {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        values.swap(end, ((word >> 33) as usize) % (end + 1));
    }
}

/// Fills `buffer` with the content of `offset`: each word says where it is.
fn fill(buffer: &mut [u8], offset: u64) {
    for (index, word) in buffer.chunks_exact_mut(8).enumerate() {
        let at = offset + index as u64 * 8;
        word.copy_from_slice(&at.to_le_bytes());
    }
}

/// Runs `work` for each writer at once. Returns the time from the first to the last.
fn at_once(
    writers: usize,
    work: impl Fn(usize) -> Result<(), String> + Sync,
) -> Result<f64, String> {
    let barrier = Barrier::new(writers + 1);
    std::thread::scope(|scope| {
        let start = |writer| {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                barrier.wait();
                work(writer)
            })
        };
        let threads: Vec<_> = (0..writers).map(start).collect();
        barrier.wait();
        let started = Instant::now();
        for thread in threads {
            thread.join().map_err(|_| "a writer panicked".to_owned())??;
        }
        Ok(started.elapsed().as_secs_f64())
    })
}

fn failed(path: &Path, error: std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Writes `name` in the targets. Returns the seconds up to the end of the last fsync.
pub(crate) fn write_pattern(
    targets: &[PathBuf],
    name: &str,
    pattern: Pattern,
) -> Result<f64, String> {
    let path = |writer: usize| targets[writer % targets.len()].join(name);
    File::create(path(0)).map_err(|e| failed(&path(0), e))?;
    let written = Barrier::new(pattern.writers);
    let write = |writer: usize| {
        let path = path(writer);
        let work = || {
            let file = OpenOptions::new().write(true).open(&path)?;
            let mut buffer = vec![0; pattern.transfer];
            for call in pattern.order(writer) {
                let offset = pattern.offset(writer, call);
                fill(&mut buffer, offset);
                file.write_all_at(&buffer, offset)?;
            }
            Ok(file)
        };
        let file = work();
        // fsync(2) is of the whole file: it waits until all have written, or failed.
        written.wait();
        file.and_then(|file| file.sync_all()).map_err(|e| failed(&path, e))
    };
    at_once(pattern.writers, write)
}

/// Reads `name` in the targets, and compares it with what was written if that is asked for. Returns
/// the seconds.
pub(crate) fn read_pattern(
    targets: &[PathBuf],
    name: &str,
    pattern: Pattern,
    is_compared: bool,
) -> Result<f64, String> {
    let path = |writer: usize| targets[writer % targets.len()].join(name);
    let read = |writer: usize| {
        // Each reads the file that another one wrote.
        let path = path(writer + 1);
        let file = File::open(&path).map_err(|e| failed(&path, e))?;
        let (mut found, mut expected) = (vec![0; pattern.transfer], vec![0; pattern.transfer]);
        for call in pattern.order(writer) {
            let offset = pattern.offset(writer, call);
            file.read_exact_at(&mut found, offset).map_err(|e| failed(&path, e))?;
            if !is_compared {
                continue;
            }
            fill(&mut expected, offset);
            if found != expected {
                return Err(format!("{}: wrong data at {offset}", path.display()));
            }
        }
        Ok(())
    };
    at_once(pattern.writers, read)
}

/// Writes `name` in the targets, reads it back, compares and removes it.
pub(crate) fn run_pattern(
    targets: &[PathBuf],
    name: &str,
    pattern: Pattern,
) -> Result<Throughput, String> {
    let write_s = write_pattern(targets, name, pattern)?;
    // Needs root; without it what is read may come from the client's cache.
    let _ = std::fs::write("/proc/sys/vm/drop_caches", "1");
    let read_s = read_pattern(targets, name, pattern, true)?;
    let path = targets[0].join(name);
    std::fs::remove_file(&path).map_err(|e| failed(&path, e))?;
    let bytes = pattern.bytes();
    Ok(Throughput { write: bytes as f64 / write_s, read: bytes as f64 / read_s, bytes })
}

/// A line of JSON.
pub(crate) fn as_json(pattern: &Pattern, rates: &Throughput) -> Value {
    json!({
        "bench": "ior", "writers": pattern.writers, "transfer": pattern.transfer,
        "strided": pattern.strided, "random": pattern.random, "bytes": rates.bytes,
        "write_mb_per_s": (rates.write / 1e6).round(),
        "read_mb_per_s": (rates.read / 1e6).round(),
    })
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    if args.experiment == Some(Experiment::LustreSsf) {
        return lustre_ssf::run(&args.data, args.limit, args.report.as_deref(), args.json);
    }
    let pattern = Pattern {
        writers: args.writers.max(1),
        transfer: args.transfer,
        total: args.total,
        strided: args.strided,
        random: args.random,
    };
    if pattern.transfer == 0 || !pattern.transfer.is_multiple_of(8) || pattern.calls() == 0 {
        let reason = "--transfer must be a multiple of 8, and --total enough for each writer";
        return Err(reason.into());
    }
    let name = format!("glint-ior-{}", std::process::id());
    let rates = run_pattern(&args.target, &name, pattern)?;
    if args.json {
        say!("{}", as_json(&pattern, &rates));
    } else {
        let kind = if pattern.strided { "strided" } else { "segmented" };
        let order = if pattern.random { ", in a random order" } else { "" };
        say!(
            "{} writers, {kind}{order}, {} bytes a call: write {:.0} MB/s, read and compared {:.0} MB/s",
            pattern.writers,
            pattern.transfer,
            rates.write / 1e6,
            rates.read / 1e6
        );
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_written_once_and_wrong_data_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        for (strided, random) in [(false, false), (true, false), (false, true), (true, true)] {
            let pattern = Pattern { writers: 3, transfer: 4096, total: 100_000, strided, random };
            assert_eq!(pattern.order(1).is_sorted(), !random);
            let mut offsets: Vec<u64> = (0..3)
                .flat_map(|writer| {
                    pattern.order(writer).into_iter().map(move |call| (writer, call))
                })
                .map(|(writer, call)| pattern.offset(writer, call))
                .collect();
            offsets.sort_unstable();
            let expected: Vec<u64> = (0..pattern.bytes() / 4096).map(|n| n * 4096).collect();
            assert_eq!(offsets, expected);
            let targets = [dir.path().to_owned(), dir.path().to_owned()];
            assert_eq!(run_pattern(&targets, "f", pattern).unwrap().bytes, pattern.bytes());
        }
    }
}

//! The load beside a scan: large files that are read and written from end to end, at a pace.

use super::amounts::ScanAmounts;
use super::material::STREAMED;
use super::programs::{busy_seconds, moved_bytes};
use crate::experiments::memory::MemoryGroup;
use crate::pace::Pace;
use crate::smallfile::Asked;
use glint::CommandResult;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Bytes of a call.
const BLOCK_BYTES: usize = 1 << 20;
/// How long the load runs until its share of the processors is taken, and how long that takes.
const SETTLE: Duration = Duration::from_secs(1);
const MEASURE: Duration = Duration::from_secs(4);
/// Share of the processors that the load gets: of one core.
pub(super) const CORES: f64 = 0.5;
/// How often its pace is brought nearer to that share: a process that waits less often for the next
/// request takes less time for each.
const STEPS: usize = 5;
/// What it may be beside that share, as a part of it.
const NEAR: f64 = 0.1;
/// How many times as long as its pace says the load may take to fill the memory, and how long it
/// may take beside.
const FILL_TIMES: f64 = 4.0;
const FILL_SLACK: Duration = Duration::from_secs(60);
/// The least pace of a load that goes as fast as it can, in bytes a second.
const FAST: u64 = 16 << 20;
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Read and write large files over and over, at a pace; a part of `glint bench scan`.
#[derive(clap::Args)]
pub(crate) struct StreamArgs {
    directory: PathBuf,
    /// Files that are read, and as many that are written.
    #[arg(long)]
    files: u64,
    /// Bytes of each.
    #[arg(long)]
    bytes: u64,
    /// Bytes a second; 0: as fast as it goes.
    #[arg(long)]
    rate: u64,
}

/// Ends this process when the benchmark that has started it is gone.
fn end_with_parent() {
    let parent = rustix::process::getppid();
    std::thread::spawn(move || {
        while rustix::process::getppid() == parent {
            std::thread::sleep(LOOK);
        }
        std::process::exit(1)
    });
}

/// Runs the load until somebody ends this process, its parent is gone, or a call fails.
pub(crate) fn stream(args: StreamArgs) -> CommandResult {
    end_with_parent();
    let args = &args;
    let each = |work: fn(&Path, u64, &mut Pace) -> std::io::Result<()>, prefix: &str| {
        // Half of it is read and half of it written.
        let mut pace = Pace::new(args.rate as f64 / 2.0);
        let failed = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
        loop {
            for number in 0..args.files {
                let path = args.directory.join(format!("{prefix}-{number}"));
                work(&path, args.bytes, &mut pace).map_err(|e| failed(&path, e))?;
            }
        }
    };
    let why: String = std::thread::scope(|scope| {
        // The first one that fails ends the process.
        let end = |result: Result<(), String>| {
            eprintln!("streaming: {}", result.err().unwrap_or_default());
            std::process::exit(1)
        };
        scope.spawn(move || end(each(write, "write")));
        each(read, "read").err().unwrap_or_default()
    });
    eprintln!("streaming: {why}");
    Ok(ExitCode::FAILURE)
}

fn read(path: &Path, _bytes: u64, pace: &mut Pace) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; BLOCK_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(()),
            bytes => pace.wait(bytes as f64),
        }
    }
}

/// Writes a file anew in its place, as a program that saves its state does, and syncs it.
fn write(path: &Path, bytes: u64, pace: &mut Pace) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    let mut buffer = vec![7; BLOCK_BYTES];
    for offset in (0..bytes).step_by(BLOCK_BYTES) {
        buffer[..8].copy_from_slice(&offset.to_le_bytes());
        file.write_all(&buffer)?;
        pace.wait(BLOCK_BYTES as f64);
    }
    file.sync_data()
}

/// The load, as long as this is there.
pub(super) struct Streamer {
    child: Child,
    /// Its pace, in bytes a second.
    pace: u64,
    /// Bytes and time when they were counted last.
    counted: (u64, Instant),
}

impl Streamer {
    /// Starts it in `base`, at this pace.
    pub(super) fn start(
        base: &Path,
        amounts: &ScanAmounts,
        rate: u64,
        group: Option<&MemoryGroup>,
    ) -> Result<Streamer, String> {
        let own = std::env::current_exe().map_err(|e| e.to_string())?;
        let (files, bytes) = amounts.streamed_files();
        let mut command = Command::new(own);
        command.arg("scan-stream").arg(base.join(STREAMED));
        command.args(["--files", &files.to_string(), "--bytes", &bytes.to_string()]);
        command.args(["--rate", &rate.to_string()]);
        if let Some(group) = group {
            command = group.wrap(&command);
        }
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().map_err(|e| format!("the streams: {e}"))?;
        Ok(Streamer { child, pace: rate, counted: (0, Instant::now()) })
    }

    /// An error if it has ended by itself.
    pub(super) fn check(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            _ => Err("the streams have ended; why is said above".into()),
        }
    }

    /// Bytes a second since this was asked last.
    pub(super) fn rate(&mut self) -> f64 {
        let (bytes, now) = (moved_bytes(self.child.id()), Instant::now());
        let (before, then) = std::mem::replace(&mut self.counted, (bytes, now));
        bytes.saturating_sub(before) as f64 / (now - then).as_secs_f64()
    }

    /// Waits until it has moved so many bytes; an error if it does not keep its pace at all.
    pub(super) fn fill(&mut self, bytes: u64, asked: Asked<'_>) -> Result<(), String> {
        let (begun, limit) = (Instant::now(), fill_max(self.pace, bytes));
        loop {
            let moved = moved_bytes(self.child.id());
            if moved >= bytes {
                break;
            }
            if begun.elapsed() > limit {
                return Err(format!(
                    "streams moved {} MiB of {} MiB in {} s, and have not filled the memory: say a \
                     lower --stream-rate, so that a scan may wait longer, or fewer --stream-bytes",
                    moved >> 20,
                    bytes >> 20,
                    limit.as_secs()
                ));
            }
            self.check()?;
            pause(LOOK, asked)?;
        }
        self.rate();
        Ok(())
    }
}

/// How long the load may take to move so many bytes at this pace.
fn fill_max(pace: u64, bytes: u64) -> Duration {
    let pace = if pace == 0 { FAST } else { pace };
    let due = bytes as f64 / pace as f64;
    FILL_SLACK + Duration::try_from_secs_f64(due * FILL_TIMES).unwrap_or(Duration::MAX / 2)
}

impl Drop for Streamer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pause(time: Duration, asked: Asked<'_>) -> Result<(), String> {
    let begun = Instant::now();
    while begun.elapsed() < time {
        if asked() {
            return Err("interrupted".into());
        }
        std::thread::sleep(LOOK.min(time));
    }
    Ok(())
}

/// A pace, and the cores that it takes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Paced {
    /// Bytes a second.
    pub rate: u64,
    /// Cores that were busy at it.
    pub cores: f64,
}

/// Finds the pace at which streams, on a machine that does nothing else, take [`CORES`].
pub(super) fn calibrate(
    base: &Path,
    amounts: &ScanAmounts,
    group: Option<&MemoryGroup>,
    asked: Asked<'_>,
) -> Result<Paced, String> {
    let mut rate = 0;
    let mut nearest: Option<Paced> = None;
    for _ in 0..STEPS {
        let mut streamer = Streamer::start(base, amounts, rate, group)?;
        pause(SETTLE, asked)?;
        streamer.rate();
        let before = (busy_seconds(), Instant::now());
        pause(MEASURE, asked)?;
        streamer.check()?;
        let cores = (busy_seconds() - before.0) / before.1.elapsed().as_secs_f64();
        let seen = Paced { rate: streamer.rate() as u64, cores };
        if nearest.is_none_or(|nearest| seen.beside() < nearest.beside()) {
            nearest = Some(seen);
        }
        if seen.beside() <= NEAR {
            break;
        }
        rate = next_rate(seen);
    }
    nearest.ok_or_else(|| "no pace of the streams was measured".into())
}

impl Paced {
    /// How far the cores that it takes are from those that it should, as a part of them.
    fn beside(self) -> f64 {
        (self.cores / CORES - 1.0).abs()
    }
}

/// The pace to try after one was seen.
fn next_rate(seen: Paced) -> u64 {
    let share = CORES / seen.cores.max(0.01);
    // A disk that is the limit makes it no faster.
    ((seen.rate as f64 * share.min(2.0)) as u64).max(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_pace_is_nearer_to_its_share_of_the_cores() {
        let seen = Paced { rate: 400 << 20, cores: 0.8 };
        assert_eq!(next_rate(seen), 250 << 20);
        assert!(seen.beside() > NEAR && Paced { cores: 0.46, ..seen }.beside() < NEAR);
        assert_eq!(next_rate(Paced { rate: 400 << 20, cores: 0.1 }), 800 << 20);
    }

    #[test]
    fn filling_has_the_time_that_its_pace_says() {
        assert_eq!(fill_max(10 << 20, 100 << 20), Duration::from_secs(60 + 40));
        assert_eq!(fill_max(0, 32 << 20), Duration::from_secs(60 + 8));
        assert!(fill_max(1, u64::MAX) > Duration::from_secs(1 << 40));
    }

    #[test]
    fn streams_that_do_not_fill_the_memory_are_an_error() {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let mut streamer = Streamer { child, pace: 1, counted: (0, Instant::now()) };
        assert_eq!(streamer.fill(u64::MAX, &|| true), Err("interrupted".into()));
        streamer.child.kill().unwrap();
        streamer.child.wait().unwrap();
        assert!(streamer.fill(u64::MAX, &|| false).unwrap_err().contains("have ended"));
    }

    #[test]
    fn the_pace_comes_nearer_to_its_share() {
        assert_eq!(next_rate(Paced { rate: 400 << 20, cores: 1.0 }), 200 << 20);
        assert_eq!(next_rate(Paced { rate: 100 << 20, cores: 0.1 }), 200 << 20);
        assert_eq!(next_rate(Paced { rate: 0, cores: 0.0 }), 1 << 20);
    }

    #[test]
    fn streams_read_and_write_whole_files() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("f");
        let mut pace = Pace::new(0.0);
        write(&path, 3 << 20, &mut pace).unwrap();
        read(&path, 0, &mut pace).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 << 20);
    }
}

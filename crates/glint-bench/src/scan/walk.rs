//! A scan whose calls are timed one by one: what one stat(2) takes at most.

use crate::sample::Sample;
use glint::{CommandResult, say};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use serde_json::{Value, json};
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Stat all below a directory, each call timed; a part of `glint bench scan`.
#[derive(clap::Args)]
pub(crate) struct WalkArgs {
    directory: PathBuf,
    /// After so many seconds it ends, however far it is.
    #[arg(long, value_name = "SECONDS")]
    patience: f64,
}

/// What a walk has found.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Walked {
    /// All but directories.
    pub files: u64,
    /// It ended before it had seen all, because it took too long.
    pub is_cut: bool,
    /// Milliseconds of the longest stat(2).
    pub stat_ms_max: f64,
    /// The same of 99 of 100.
    pub stat_ms_p99: f64,
    /// Milliseconds of the longest call that reads a directory.
    pub list_ms_max: f64,
}

impl Walked {
    /// Out of the line that the walk has printed.
    pub(super) fn parse(line: &str) -> Option<Walked> {
        let value: Value = serde_json::from_str(line).ok()?;
        let of = |key: &str| value[key].as_f64();
        Some(Walked {
            files: value["files"].as_u64()?,
            is_cut: value["is_cut"].as_bool()?,
            stat_ms_max: of("stat_ms_max")?,
            stat_ms_p99: of("stat_ms_p99")?,
            list_ms_max: of("list_ms_max")?,
        })
    }
}

/// Runs the walk, and prints what it found.
pub(crate) fn walk(args: WalkArgs) -> CommandResult {
    let start = Instant::now();
    let patience = Duration::from_secs_f64(args.patience);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let (mut stats, mut list_max, mut files) = (Sample::default(), 0, 0u64);
    let (mut stat_max, mut is_cut) = (0, false);
    let mut found = vec![args.directory];
    'all: while let Some(path) = found.pop() {
        let failed = |e: rustix::io::Errno| format!("{}: {e}", path.display());
        let directory = rustix::fs::open(&path, flags, Mode::empty()).map_err(failed)?;
        let mut listing = Dir::read_from(&directory).map_err(failed)?;
        loop {
            let (next, nanos) = timed(|| listing.read());
            list_max = list_max.max(nanos);
            let Some(entry) = next else { break };
            let name: CString = entry.map_err(failed)?.file_name().to_owned();
            if name.as_bytes() == b"." || name.as_bytes() == b".." {
                continue;
            }
            let (is_directory, nanos) = timed(|| stat(&directory, &name));
            stats.record(nanos);
            stat_max = stat_max.max(nanos);
            match is_directory.map_err(failed)? {
                true => found.push(path.join(name.to_string_lossy().as_ref())),
                false => files += 1,
            }
            if start.elapsed() > patience {
                is_cut = true;
                break 'all;
            }
        }
    }
    let ms = |nanos: u64| nanos as f64 / 1e6;
    let p99 = stats.micros(0.99) / 1e3;
    say!(
        "{}",
        json!({ "files": files, "is_cut": is_cut, "stat_ms_max": ms(stat_max), "stat_ms_p99": p99,
                "list_ms_max": ms(list_max) })
    );
    Ok(ExitCode::SUCCESS)
}

fn timed<T>(call: impl FnOnce() -> T) -> (T, u64) {
    let start = Instant::now();
    let value = call();
    (value, start.elapsed().as_nanos() as u64)
}

/// Whether it is a directory.
fn stat(directory: &OwnedFd, name: &CString) -> rustix::io::Result<bool> {
    let stat = rustix::fs::statat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_is_read_from_its_line() {
        let line =
            r#"{"files":3,"is_cut":true,"stat_ms_max":1.5,"stat_ms_p99":0.25,"list_ms_max":2.0}"#;
        let walked = Walked {
            files: 3,
            is_cut: true,
            stat_ms_max: 1.5,
            stat_ms_p99: 0.25,
            list_ms_max: 2.0,
        };
        assert_eq!(Walked::parse(line), Some(walked));
        assert_eq!(Walked::parse("killed"), None);
    }
}

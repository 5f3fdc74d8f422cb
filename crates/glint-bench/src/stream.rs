//! `glint bench stream`: one large file, written and read from beginning to end.
//!
//! Before each read the file is dropped from the client's page cache, so that it comes
//! from the server; with --cold the server's cache is dropped as well. Rounds on the
//! target alternate with rounds on the directory to compare with.

use crate::sample::{median, ratio};
use glint::{CommandResult, say};
use rustix::fs::{Advice, Mode, OFlags};
use serde_json::json;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Write and read one large file, and compare.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A directory, of a mount, say.
    #[arg(long, value_name = "DIR")]
    target: PathBuf,
    /// Do the same in this directory, in turns, and print the ratio.
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
    /// Size of the file, in MiB.
    #[arg(long, default_value_t = 2048)]
    mib: u64,
    /// Bytes of one read or write.
    #[arg(long, default_value_t = 1 << 20)]
    block: usize,
    /// Times each is done; the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Drop all caches of the machine before reading (needs root).
    #[arg(long)]
    cold: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Pause between rounds.
const REST: Duration = Duration::from_secs(1);

/// MiB/s of one round: writing, writing up to and with fsync, reading.
type Rates = [f64; 3];
const OPERATIONS: [&str; 3] = ["write", "write+fsync", "read"];

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds.max(1) {
        ours.push(round(&args.target, &args)?);
        if let Some(against) = &args.against {
            theirs.push(round(against, &args)?);
        }
    }
    for (index, op) in OPERATIONS.iter().enumerate() {
        let mib_s = of(&ours, index);
        let mut line = json!({
            "bench": "stream", "op": op, "target": args.target.display().to_string(),
            "mib": args.mib, "block": args.block, "cold": args.cold, "mib_per_s": mib_s.round(),
        });
        let against_mib_s = (!theirs.is_empty()).then(|| of(&theirs, index));
        if let Some(against) = against_mib_s {
            line["against"] = json!(args.against.as_ref().map(|p| p.display().to_string()));
            line["against_mib_per_s"] = json!(against.round());
            line["ratio"] = json!(ratio(mib_s, against));
        }
        if args.json {
            say!("{line}");
        } else {
            let compared = against_mib_s.map_or(String::new(), |against| {
                format!("; against {against:.0} MiB/s, ratio {:.2}", mib_s / against)
            });
            say!("{op}: {mib_s:.0} MiB/s{compared}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The median of one operation.
fn of(rounds: &[Rates], index: usize) -> f64 {
    median(rounds.iter().map(|rates| rates[index]).collect())
}

fn round(directory: &Path, args: &Args) -> Result<Rates, String> {
    let path = directory.join(format!("glint-stream-{}", std::process::id()));
    let result = measure(&path, args).map_err(|e| format!("{}: {e}", path.display()));
    let _ = std::fs::remove_file(&path);
    // Write-back that this round left must not slow the next one down.
    rustix::fs::sync();
    std::thread::sleep(REST);
    result
}

fn measure(path: &Path, args: &Args) -> std::io::Result<Rates> {
    let bytes = args.mib << 20;
    let rate = |start: Instant| args.mib as f64 / start.elapsed().as_secs_f64();
    let mut buffer: Vec<u8> = (0..args.block).map(|i| (i * 131) as u8).collect();
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from(0o644))?;
    let start = Instant::now();
    let mut done = 0;
    while done < bytes {
        // The number makes each block unlike the others.
        buffer[..8].copy_from_slice(&done.to_le_bytes());
        done += rustix::io::write(&file, &buffer)? as u64;
    }
    let write = rate(start);
    rustix::fs::fsync(&file)?;
    let write_fsync = rate(start);
    drop(file);

    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    forget_cached(&file, args.cold)?;
    let start = Instant::now();
    let mut done = 0;
    while done < bytes {
        match rustix::io::read(&file, &mut buffer)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => done += n as u64,
        }
    }
    Ok([write, write_fsync, rate(start)])
}

/// Drops what the kernel has cached of a file of a mount; with `cold` all that the machine has.
pub(crate) fn forget_cached(file: &impl AsFd, cold: bool) -> std::io::Result<()> {
    let is_local = rustix::fs::fstatfs(file)?.f_type != FUSE_SUPER_MAGIC;
    if cold {
        rustix::fs::sync();
        return std::fs::write("/proc/sys/vm/drop_caches", "3");
    }
    // A local file's cache is the server's.
    if !is_local {
        rustix::fs::fadvise(file, 0, None::<NonZeroU64>, Advice::DontNeed)?;
    }
    Ok(())
}

/// From statfs(2).
const FUSE_SUPER_MAGIC: rustix::fs::FsWord = 0x6573_5546;

//! `glint bench start`: from the command to a usable mount, and the memory it takes.

use crate::sample::median;
use glint::{CommandResult, program, say};
use serde_json::json;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// Start and stop `glint up` on a data directory, and measure time and memory.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The data directory; created if absent.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Mount point.
    #[arg(long, value_name = "DIR")]
    mount: PathBuf,
    /// Times it is done; the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let glint = program::path("glint");
    let mut millis = Vec::new();
    let mut resident = Vec::new();
    let mut inodes = 0;
    for _ in 0..args.rounds.max(1) {
        let start = Instant::now();
        let status = Command::new(&glint)
            .arg("up")
            .arg("--data")
            .arg(&args.data)
            .arg("--mount")
            .arg(&args.mount)
            .arg("--daemon")
            .stdout(Stdio::null())
            .status()
            .map_err(|error| program::not_started("glint", &error))?;
        if !status.success() {
            return Err("glint up failed; its message is above".into());
        }
        // Usable: a file can be made.
        let probe = args.mount.join(format!("glint-start-{}", std::process::id()));
        std::fs::write(&probe, b"")?;
        millis.push(start.elapsed().as_secs_f64() * 1000.0);
        std::fs::remove_file(&probe)?;
        let pid = std::fs::read_to_string(args.data.join("lock"))?;
        resident.push(resident_kib(pid.trim())?);
        let vfs = rustix::fs::statvfs(&args.mount)?;
        inodes = vfs.f_files - vfs.f_ffree;
        Command::new(&glint).arg("umount").arg(&args.mount).status()?;
    }
    let (ms, kib) = (median(millis), median(resident));
    if args.json {
        say!(
            "{}",
            json!({"bench": "start", "target": args.data.display().to_string(), "inodes": inodes,
                   "ms": (ms * 10.0).round() / 10.0, "resident_kib": kib as u64})
        );
    } else {
        say!("{inodes} inodes: usable after {ms:.0} ms, {} MiB resident", kib as u64 / 1024);
    }
    Ok(ExitCode::SUCCESS)
}

fn resident_kib(pid: &str) -> Result<f64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1)).ok_or("no VmRSS")?;
    Ok(number.parse()?)
}

//! `glint bench untar`: unpacking an archive of many files with tar(1), as users do.

use crate::sample::{median, ratio};
use glint::{CommandResult, say};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Unpack a tar archive, and compare.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The archive, uncompressed.
    #[arg(long, value_name = "FILE")]
    archive: PathBuf,
    /// A directory, of a mount, say.
    #[arg(long, value_name = "DIR")]
    target: PathBuf,
    /// Do the same in this directory, in turns, and print the ratio.
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
    /// Times each is done; the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let list = Command::new("tar").arg("tf").arg(&args.archive).output()?;
    if !list.status.success() {
        let reason = String::from_utf8_lossy(&list.stderr).into_owned();
        return Err(format!("{}: {reason}", args.archive.display()).into());
    }
    let names = list.stdout.split(|byte| *byte == b'\n');
    let files = names.filter(|name| name.last().is_some_and(|last| *last != b'/')).count();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds.max(1) {
        ours.push(round(&args.archive, &args.target)?);
        if let Some(against) = &args.against {
            theirs.push(round(&args.archive, against)?);
        }
    }
    let per_s = files as f64 / median(ours);
    let mut line = json!({
        "bench": "untar", "target": args.target.display().to_string(), "count": files,
        "per_s": per_s.round(),
    });
    let mut text = format!("{files} files: {per_s:.0}/s");
    if let Some(against) = &args.against {
        let against_per_s = files as f64 / median(theirs);
        let ratio = ratio(per_s, against_per_s);
        line["against"] = json!(against.display().to_string());
        line["against_per_s"] = json!(against_per_s.round());
        line["ratio"] = json!(ratio);
        text += &format!("; {}: {against_per_s:.0}/s; ratio {ratio:.2}", against.display());
    }
    say!("{}", if args.json { line.to_string() } else { text });
    Ok(ExitCode::SUCCESS)
}

/// Seconds for one time.
fn round(archive: &Path, parent: &Path) -> Result<f64, Box<dyn std::error::Error>> {
    let directory = parent.join(format!("glint-untar-{}", std::process::id()));
    std::fs::create_dir(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    // The archive is in memory for both.
    std::io::copy(&mut std::fs::File::open(archive)?, &mut std::io::sink())?;
    let start = Instant::now();
    let status = Command::new("tar").arg("xf").arg(archive).arg("-C").arg(&directory).status();
    let seconds = start.elapsed().as_secs_f64();
    std::fs::remove_dir_all(&directory)?;
    if !status?.success() {
        return Err("tar failed; its message is above".into());
    }
    Ok(seconds)
}

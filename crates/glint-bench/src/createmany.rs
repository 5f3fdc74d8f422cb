//! `glint bench createmany`: many files in one directory, the experiment of
//! Lustre's createmany.
//!
//! The work is cut into rounds, and rounds on the target alternate with rounds on
//! the directory to compare with, so that both see the same machine.

use crate::experiments::lustre_2009;
use crate::rounds::{BenchTarget, Operation, Round, native, posix};
use crate::sample::{Sample, ratio};
use glint::{CommandResult, say};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Rounds into which the work is cut.
const ROUNDS: u64 = 5;

/// Create, stat, rename or remove many files in one directory, and compare.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A directory (of a mount, say), `native` for the client library and the
    /// servers in this process, or HOST:PORT for the client library over TCP.
    #[arg(long, value_name = "DIR|native|HOST:PORT", default_value = "native")]
    target: String,
    /// Number of files.
    #[arg(long, default_value_t = 150_000)]
    count: u64,
    /// Processes (threads for `native`, clients for HOST:PORT) that share the work.
    #[arg(long, default_value_t = 1)]
    procs: u64,
    /// Operations that each worker has under way at once (`native` and HOST:PORT).
    #[arg(long, default_value_t = 1)]
    outstanding: u64,
    /// Operation to measure.
    #[arg(long, value_enum, default_value_t = Operation::Open)]
    op: Operation,
    /// Do the same in this directory, in turns, and print the ratio.
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
    /// With `native`: where the file system of the benchmark is made, and removed
    /// afterwards [default: beside --against, or the temporary directory].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Do not keep statistics in this process: shows what they cost (`native`).
    #[arg(long)]
    no_stats: bool,
    /// Leave the files there (directories only).
    #[arg(long)]
    keep: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// A whole experiment: 150 000 files in one directory, open, mknod and mkdir, one process,
    /// five runs; native, mounted and over TCP, against the local file system and tmpfs.
    /// Takes minutes; only --count, --data and --report are used beside it. Needs root.
    #[arg(long, value_enum)]
    experiment: Option<Experiment>,
    /// Write a report of the experiment, with plots, into this directory.
    #[arg(long, value_name = "DIR", requires = "experiment")]
    report: Option<PathBuf>,
}

/// Experiments of this benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Experiment {
    /// Lustre's createmany on a metadata server's own node.
    #[value(name = "lustre-2009")]
    Lustre2009,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    if let Some(Experiment::Lustre2009) = args.experiment {
        let parent = args.data.clone().unwrap_or_else(std::env::temp_dir);
        return lustre_2009::run(args.count, &parent, args.report.as_deref(), args.json);
    }
    glint_telemetry::enable(!args.no_stats);
    let count = args.count.max(ROUNDS);
    let procs = args.procs.max(1);
    let outstanding = args.outstanding.max(1);
    let mut target = open_target(&args)?;
    let mut against = match &args.against {
        Some(dir) => Some(posix::Directory::new(dir, args.keep)?),
        None => None,
    };
    let (mut ours, mut theirs) = (Sample::default(), Sample::default());
    for index in 0..ROUNDS {
        let from = count * index / ROUNDS;
        let round = Round {
            op: args.op,
            from,
            count: count * (index + 1) / ROUNDS - from,
            procs,
            outstanding,
        };
        ours.add(&target.run(round)?);
        if let Some(against) = &mut against {
            theirs.add(&against.run(round)?);
        }
    }
    let mut line = json!({
        "bench": "createmany",
        "op": args.op.name(),
        "target": args.target,
        "procs": procs,
        "outstanding": outstanding,
        "count": count,
        "per_s": ours.per_s().round(),
        "us_p50": ours.micros(0.50),
        "us_p99": ours.micros(0.99),
    });
    if let (Some(against), Value::Object(map)) = (&args.against, &mut line) {
        map.insert("against".into(), json!(against.display().to_string()));
        map.insert("against_per_s".into(), json!(theirs.per_s().round()));
        map.insert("ratio".into(), json!(ratio(ours.per_s(), theirs.per_s())));
    }
    if args.json {
        say!("{line}");
    } else {
        say!(
            "{} x {} by {procs} on {}: {:.0}/s, p50 {} us, p99 {} us",
            count,
            args.op.name(),
            args.target,
            ours.per_s(),
            ours.micros(0.50),
            ours.micros(0.99)
        );
        if let Some(dir) = &args.against {
            let ratio = ratio(ours.per_s(), theirs.per_s());
            say!("{}: {:.0}/s; ratio {ratio:.2}", dir.display(), theirs.per_s());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn open_target(args: &Args) -> Result<Box<dyn BenchTarget>, Box<dyn std::error::Error>> {
    if args.target == "native" {
        let beside = args.data.clone().or_else(|| args.against.clone());
        let parent = beside.unwrap_or_else(std::env::temp_dir);
        return Ok(Box::new(native::InProcessTarget::new(&parent)?));
    }
    if Path::new(&args.target).is_dir() {
        return Ok(Box::new(posix::Directory::new(Path::new(&args.target), args.keep)?));
    }
    let is_socket = args.target.starts_with(glint_net::UNIX_PREFIX);
    if !is_socket && (args.target.contains('/') || !args.target.contains(':')) {
        return Err(format!(
            "--target {}: no such directory; a server is HOST:PORT, the library `native`",
            args.target
        )
        .into());
    }
    Ok(Box::new(native::RemoteTarget::new(&args.target, args.procs.max(1))?))
}

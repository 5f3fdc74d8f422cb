//! `glint bench smallfile`: many small files in many directories by several threads, the workload
//! of Ben England's smallfile, which file systems for clusters are compared with.

mod figures;
mod operation;
#[cfg(test)]
mod tests;
mod tree;
mod volume;

pub(crate) use figures::Figures;
pub(crate) use operation::SmallfileOp;
pub(crate) use volume::{Asked, Volume, Workload};

use crate::experiments::gluster_2022;
use crate::sample::ratio;
use crate::unwritten::Unwritten;
use glint::signals::Stop;
use glint::{CommandResult, say};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Create, list, read, rename and remove many small files by several threads, and compare.
///
/// Each thread has a tree of directories of its own, with 100 files and 10 directories in each. An
/// operation is done to all files, then the next one, in the order in which they are named; what
/// one of them needs and is not there is made before its clock runs: `--op stat` alone creates the
/// files first. Rounds on the targets and on the directory to compare with take turns; the median
/// of the rounds counts. If files are not all done (100 %), it says why and fails.
///
///   glint bench smallfile --target /mnt/glint --against /var/tmp --op create --op cleanup
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// A directory of any file system, with a name for it if wanted; several take turns.
    #[arg(long, value_name = "[NAME=]DIR", value_parser = BenchedDir::parse,
          required_unless_present = "experiment")]
    target: Vec<BenchedDir>,
    /// Do the same in this directory, in turns, and print the ratio.
    #[arg(long, value_name = "[NAME=]DIR", value_parser = BenchedDir::parse)]
    against: Option<BenchedDir>,
    /// Threads at once.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: u64,
    /// Files of each thread.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    files: u64,
    /// Size of each file, written and read in one call.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(0..=1 << 20))]
    size_kib: u64,
    /// Operations, done in the order in which they are named [default: each of them].
    #[arg(long, value_enum)]
    op: Vec<SmallfileOp>,
    /// Times all of it is done.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Sync each file that was written before it is closed.
    #[arg(long)]
    fsync: bool,
    /// Drop all caches of the machine before each operation, as the published runs do (needs root).
    #[arg(long)]
    cold: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// A whole experiment: create and clean up four times on the same volume, to see whether it
    /// becomes slower, then do each operation. On the targets, `--target 1-copy=/mnt/a --target
    /// 3-copies=/mnt/b` say, against a directory of the file system that their OSTs are on. Without
    /// targets it makes file systems of its own in --data, with one copy and with three, and says
    /// first how much space that needs. Always --cold. Needs root.
    #[arg(long, value_enum)]
    experiment: Option<Experiment>,
    /// With --experiment and no --target: where server and mount are; decides which disk is
    /// measured.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    data: PathBuf,
    /// With --experiment and no --target: servers of each file system that is made, 1 or 3: where
    /// there are three each has one of three copies.
    #[arg(long, value_name = "N", default_value = "1", value_parser = one_or_three)]
    servers: u64,
    /// With --experiment: write a report with plots into this directory.
    #[arg(long, value_name = "DIR", requires = "experiment")]
    report: Option<PathBuf>,
}

/// Experiments of this benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Experiment {
    /// GlusterFS on a replicated volume that is used again and again.
    #[value(name = "gluster-2022")]
    Gluster2022,
}

/// A directory that is measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BenchedDir {
    /// Name in the results.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
}

impl BenchedDir {
    fn parse(text: &str) -> Result<BenchedDir, String> {
        let named = text.split_once('=').filter(|(name, _)| !name.contains('/'));
        // A directory may have such a name itself.
        let (name, path) = named.filter(|_| !Path::new(text).is_dir()).unwrap_or((text, text));
        match Path::new(path).is_dir() {
            true => Ok(BenchedDir { name: name.into(), path: path.into() }),
            false => Err("no such directory".into()),
        }
    }
}

/// One server, or one for each copy.
fn one_or_three(text: &str) -> Result<u64, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        _ => Err("it is 1 or 3: one server for all copies, or one for each".into()),
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let stop = Stop::listen()?;
    let asked: Asked<'_> = &|| stop.is_asked();
    let mut workload = Workload {
        threads: args.threads,
        files: args.files,
        bytes: (args.size_kib as usize) << 10,
        fsync: args.fsync,
        cold: args.cold,
    };
    if args.experiment == Some(Experiment::Gluster2022) {
        workload.cold = true;
        let setting = gluster_2022::Setting {
            targets: args.target,
            against: args.against,
            data: args.data,
            servers: args.servers,
            workload,
            rounds: args.rounds,
        };
        return gluster_2022::run(setting, args.report.as_deref(), args.json, asked);
    }
    let ops = if args.op.is_empty() { SmallfileOp::ALL.to_vec() } else { args.op };
    let targets = args.target.len();
    let directories: Vec<BenchedDir> = args.target.into_iter().chain(args.against).collect();
    let all = rounds(&directories, (workload, &Unwritten::Anywhere), &ops, args.rounds, asked)?;
    for (target, figures) in directories.iter().zip(&all).take(targets) {
        for (index, op) in ops.iter().enumerate() {
            let against = directories.get(targets).map(|dir| (dir, &all[targets][index]));
            show(*op, &workload, (target, &figures[index]), against, args.json);
        }
    }
    finish(&directories, &ops, &all)
}

/// Figures of each directory, of each operation.
pub(crate) fn rounds(
    directories: &[BenchedDir],
    (workload, unwritten): (Workload, &Unwritten),
    ops: &[SmallfileOp],
    rounds: u64,
    asked: Asked<'_>,
) -> Result<Vec<Vec<Figures>>, String> {
    let none = || ops.iter().map(|_| Figures::default()).collect();
    let mut all: Vec<Vec<Figures>> = directories.iter().map(|_| none()).collect();
    for _ in 0..rounds {
        for (directory, figures) in directories.iter().zip(&mut all) {
            let mut volume = Volume::new(&directory.path, workload)?.after(unwritten);
            for (op, figures) in ops.iter().zip(figures) {
                figures.add(volume.run(*op, asked)?);
                if figures.check(*op, &directory.name).is_err() {
                    return Ok(all);
                }
            }
        }
    }
    Ok(all)
}

/// The end of the command: whether all files were done.
pub(crate) fn finish(
    directories: &[BenchedDir],
    ops: &[SmallfileOp],
    all: &[Vec<Figures>],
) -> CommandResult {
    for (directory, figures) in directories.iter().zip(all) {
        for (op, figures) in ops.iter().zip(figures) {
            figures.check(*op, &directory.name)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what was measured, if anything was.
fn show(
    op: SmallfileOp,
    workload: &Workload,
    (target, own): (&BenchedDir, &Figures),
    against: Option<(&BenchedDir, &Figures)>,
    as_json: bool,
) {
    if own.is_empty() {
        return;
    }
    let mut line = own.line(op, workload);
    line["target"] = json!(target.name);
    let mib = own.mib_per_s(op, workload).map_or(String::new(), |mib| format!(", {mib:.0} MiB/s"));
    let mut text = format!(
        "{} on {}: {:.0} files/s{mib}, p50 {} us, p99 {} us, {:.2} % of the files",
        op.name(),
        target.name,
        own.per_s(),
        own.micros(0.5),
        own.micros(0.99),
        own.percent(),
    );
    if let Some((against, theirs)) = against.filter(|(_, theirs)| !theirs.is_empty()) {
        let ratio = ratio(own.per_s(), theirs.per_s());
        line["against"] = json!(against.name);
        line["against_per_s"] = json!(theirs.per_s().round());
        line["ratio"] = json!(ratio);
        text += &format!("; {}: {:.0} files/s; ratio {ratio:.2}", against.name, theirs.per_s());
    }
    say!("{}", if as_json { line.to_string() } else { text });
}

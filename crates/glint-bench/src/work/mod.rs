//! `glint bench work`: what users do all day with trees that somebody else made, after a fresh
//! mount, beside the local file system.

mod commands;
mod describe;
mod material;
mod measure;
mod rows;
mod switches;
mod turns;

use crate::experiments::space;
use crate::experiments::stage::Stage;
use crate::smallfile::Asked;
use clap::builder::PossibleValuesParser;
use describe::Described;
use glint::signals::Stop;
use glint::size::parse as bytes;
use glint::{CommandResult, say, say_part};
use material::{Amounts, Material, Place, WorkPlaces};
use measure::WorkMounts;
use rows::WorkRow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Read trees that somebody else made, as users do, after a fresh mount; and compare.
///
/// Makes two equal trees of small files, a git repository, the trees of smallfile and a large file
/// through one mount of a server of its own, and the same on the file system that the server has
/// its data on. Then each row is done on both in turns, each time after a fresh mount over TCP on
/// this machine: find, stat, cat, diff, tar, git and fio as they are installed, and the loads of
/// `glint bench smallfile` and `ior`. Caches of the server and of the local file system are warm.
/// Medians of the rounds count. Printed beside each rate are the ratio to local, the requests that
/// the server received for each file (4 MiB, read), what is aimed at, and the context switches of
/// programs, mount and server for each file: voluntary ones, where a thread waits, and involuntary
/// ones, where its core is taken from it. Needs root.
///
/// In the rows of turns two mounts change and read one tree, each what the other one has cached:
/// much that was fetched ahead is in vain there. No ratio is aimed at, but they should not be
/// slower than with `-o prefetch=off`. With --up and --target, of one mount, they are left out.
///
/// With --up and `-o passthrough=on` the kernel reads the large file, of IOR and fio, from its
/// object; the other files are too small for that. The rows of IOR count the first open, too, which
/// compares all of a file of up to 512M with its checksums. The row ior-opened and fio's do not:
/// they show how fast the file is read from then on. With --up no requests are counted: there is no
/// network.
///
/// With --null each row is done on a null mount, too, mounted afresh as the others are: another
/// process answers through the same code from memory, with the same names and sizes and zeros as
/// data. The ratio to it tells what Glint costs from what any such mount costs. Files that Glint
/// gives to the kernel before it asks may make it larger than 1. On the null mount IOR compares
/// nothing and smallfile compares with zeros; git-status and the turns need the data and are left
/// out there.
///
///   glint bench work                           # all rows
///   glint bench work cat diff -o prefetch=on -o prefetch=off
///   glint bench work --null find cat smallfile-1 ior
///   glint bench work turns turns-files -o prefetch=on -o prefetch=off
///   glint bench work --up ior ior-opened randread-1 -o passthrough=off -o passthrough=on
///   glint bench work --report docs/reports --data /mnt/disk
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Rows to measure [default: all].
    #[arg(value_name = "ROW", value_parser = PossibleValuesParser::new(rows::names()))]
    rows: Vec<String>,
    /// Times each row is done, after one that does not count.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Where server, mount and local files are; decides which file system is measured.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp", conflicts_with = "target")]
    data: PathBuf,
    /// Options of the mount, as `glint mount -o` has them; several of these take turns.
    #[arg(short, long, value_name = "OPTIONS", conflicts_with = "target")]
    options: Vec<String>,
    /// Server and mount in one process, as `glint up` is, instead of TCP.
    #[arg(long, conflicts_with = "target")]
    up: bool,
    /// Compare with a null mount, too: one that answers from memory.
    #[arg(long)]
    null: bool,
    /// A directory of any file system, instead of an own server.
    #[arg(long, value_name = "DIR", requires = "against")]
    target: Option<PathBuf>,
    /// With --target: the directory that it is compared with.
    #[arg(long, value_name = "DIR", requires = "target")]
    against: Option<PathBuf>,
    /// With --target: a shell command that mounts it ($TARGET) afresh, before each row. Without it,
    /// what the target has cached stays cached.
    #[arg(long, value_name = "COMMAND", requires = "target")]
    remount: Option<String>,
    /// Files of each tree; each thread of smallfile has a fifth of them.
    #[arg(long, default_value_t = FILES, value_parser = clap::value_parser!(u64).range(1..))]
    files: u64,
    /// Bytes of the large file, with K, M or G.
    #[arg(long, default_value = "512M", value_parser = large)]
    large: u64,
    /// Write a report with plots into this directory.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Files of each tree.
const FILES: u64 = 2_000;
/// Bytes of the large file.
const LARGE_BYTES: u64 = 512 << 20;
/// What a server has on its disk before it has any file: journals.
const SERVER_BYTES: u64 = 256 << 20;

/// Bytes of which each reader has some calls.
fn large(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        bytes if bytes >= 16 << 20 => Ok(bytes),
        _ => Err("it must be 16M at least: eight read it at once".into()),
    }
}

/// Leaves out rows whose programs are not there, or that need more mounts than these.
fn possible(rows: Vec<&'static WorkRow>, mounts: usize) -> Result<Vec<&'static WorkRow>, String> {
    let is_possible = |row: &&WorkRow| {
        let why = match row.job.program() {
            _ if row.job.mounts() > mounts => "it has two mounts, of a server over TCP".to_owned(),
            Some(program) if !commands::is_installed(program) => {
                format!("{program} is not installed")
            }
            _ => return true,
        };
        eprintln!("{}: left out: {why}", row.name);
        false
    };
    let rows: Vec<_> = rows.into_iter().filter(is_possible).collect();
    match rows.is_empty() {
        true => Err("no row is left".into()),
        false => Ok(rows),
    }
}

/// The command that does the same again.
fn again(args: &Args) -> String {
    let mut words = vec!["glint bench work".to_owned()];
    words.extend(args.rows.iter().cloned());
    words.extend(args.up.then(|| "--up".to_owned()));
    words.extend(args.null.then(|| "--null".to_owned()));
    words.push(format!("--rounds {}", args.rounds));
    if args.files != FILES {
        words.push(format!("--files {}", args.files));
    }
    if args.large != LARGE_BYTES {
        words.push(format!("--large {}", args.large));
    }
    words.extend(args.options.iter().map(|options| format!("-o {options}")));
    words.join(" ")
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let stop = Stop::listen()?;
    let asked: Asked<'_> = &|| stop.is_asked();
    let mounts = if args.up || args.target.is_some() { 1 } else { 2 };
    let rows = possible(rows::chosen(&args.rows), mounts)?;
    let amounts = Amounts { files: args.files, small: args.files.div_ceil(5), large: args.large };
    let material = Material::of(&rows, amounts);
    let began = Instant::now();
    let again = again(&args);
    // The lists, beside what is measured, go with the stage.
    let at = args.against.as_deref().unwrap_or(&args.data);
    let (bytes, advice) =
        (material.bytes(), "say another directory, fewer --files or less --large");
    let own = bytes.saturating_mul(2).saturating_add(SERVER_BYTES);
    let both = if args.target.is_some() { bytes } else { own };
    space::check(at, both, advice)?;
    let mut stage = Stage::apart(at)?;
    let lists = material.lists(&stage.path("lists")?)?;
    let local = Place::local(stage.path("local")?);
    let null = args.null.then(|| stage.path(measure::NULL_MOUNT)).transpose()?;
    let null = null.map(|at| Place::mounted(at, false));
    let (mounted, mut mounts) = match args.target {
        Some(target) => {
            space::check(&target, bytes, advice)?;
            let base = target.join(format!("glint-work-{}", std::process::id()));
            let mounts = WorkMounts::Other { stage: &mut stage, remount: args.remount };
            (Place::mounted(base, true), mounts)
        }
        None => {
            let served = match args.up {
                true => None,
                false => Some(stage.serve("server", "", &[])?),
            };
            let options = if args.options.is_empty() { vec![String::new()] } else { args.options };
            let [mount, beside] = measure::MOUNTS;
            let mut place = Place::mounted(stage.path(mount)?.join("work"), false);
            place.beside = stage.path(beside)?.join("work");
            (place, WorkMounts::Own { stage: &mut stage, served, options })
        }
    };
    let mut places = WorkPlaces { mounted, null, local };
    measure::prepare(&material, &mut mounts, &mut places, asked)?;
    let figures = measure::rounds(&rows, args.rounds, &mut mounts, &mut places, &lists, asked)?;
    eprintln!("all of it took {:.0} s", began.elapsed().as_secs_f64());
    let described =
        Described { rows: &rows, figures: &figures, rounds: args.rounds, is_up: args.up };
    match args.json {
        true => described.json().iter().for_each(|line| say!("{line}")),
        false => say_part!("{}", described.text()),
    }
    if let Some(report) = &args.report {
        described.report(&again).finish(Some(report))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, String> {
        let words = std::iter::once("work").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.args).map_err(|e| e.to_string())
    }

    #[test]
    fn wrong_use_is_told_in_its_first_line() {
        for (line, part) in [
            ("grep", "invalid value 'grep' for '[ROW]...'"),
            ("--rounds 0", "0 is not in 1.."),
            ("--files 0", "0 is not in 1.."),
            ("--large 1M", "it must be 16M at least"),
            ("--large much", "`much` is not a size"),
            ("--target /mnt", "--against <DIR>"),
            ("--against /mnt", "--target <DIR>"),
            ("--remount true", "--target <DIR>"),
            ("--target /a --against /b -o ro", "cannot be used with"),
            ("--target /a --against /b --data /c", "cannot be used with"),
            ("--target /a --against /b --up", "cannot be used with"),
        ] {
            let why = parse(line).err().unwrap_or_default();
            let first: Vec<_> = why.lines().take(3).collect();
            assert!(first.join(" ").contains(part), "{line}: {why}");
        }
    }

    #[test]
    fn the_large_file_is_as_large_as_help_says() {
        assert_eq!(parse("").ok().map(|args| args.large), Some(LARGE_BYTES));
    }

    #[test]
    fn the_command_of_a_report_does_the_same_again() {
        for (line, again) in [
            ("", "glint bench work --rounds 5"),
            ("cat --null", "glint bench work cat --null --rounds 5"),
            (
                "diff cat --up -o ro -o prefetch=off --rounds 2 --files 50 --large 16M",
                "glint bench work diff cat --up --rounds 2 --files 50 --large 16777216 -o ro \
                 -o prefetch=off",
            ),
        ] {
            let args = parse(line).ok().unwrap();
            assert_eq!(super::again(&args), again);
            let again = again.trim_start_matches("glint bench work");
            assert_eq!(parse(again).ok().map(|args| args.rows), Some(args.rows));
        }
    }
}

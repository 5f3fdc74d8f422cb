//! `glint bench copies`: what files with copies cost, and what the loss of a server does to them.

mod dies;
mod figures;
mod heal;
mod memory;
mod place;
mod rebuild;
mod stops;
mod streams;
mod users;

use crate::experiments::space;
use crate::smallfile::Asked;
use figures::CopiesFigure;
use glint::signals::Stop;
use glint::size::parse as bytes;
use glint::{CommandResult, say, say_part};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Measure files with copies: streams, heal, rebuild, and the death of a server.
///
/// Each row starts three servers of its own with one OST each, on this machine, and a mount over
/// TCP; everything has three copies. All of it is on the file system of --data: each copy is
/// written there.
///
///   streams  three large files at once, 1 MiB a call, written with fsync and then read: three
///            copies against one on the same servers, in turns; medians of the rounds
///   heal     a server is killed, --changed files among many are changed, and it is started: the
///            time from there until `glint heal info` has nothing to say, for each number of
///            --files; the times are compared, and `glint heal info` is timed
///   rebuild  a server is stopped, its OST emptied, replaced (`glint ost replace`) and filled from
///            the other copies, while users make half of the calls that they make alone: bytes a
///            second against a plain copy of the same objects on the same disk, calls of users
///            against their pace
///   dies     servers are killed (SIGKILL), one after the other, while eight threads write with
///            fsync and read: the longest call on files whose head it was, and on those of which it
///            had another copy; and the errors
///   freezes  the same with servers that stand still (SIGSTOP), and go on in the end
///   stops    servers are stopped as an administrator does, one after the other, and started again,
///            while a program writes random blocks of 4 KiB with fsync to a file of --database
///            bytes: its longest call when a server is stopped, and when one comes back
///
/// Before streams and rebuild are measured the free memory that they need is used once: the host of
/// a virtual machine may have taken it back, and copies need more of it than what they are compared
/// with.
///
/// Printed beside each figure is what is aimed at. Needs root, and the space that it says at its
/// start. Ctrl-C ends it and leaves nothing. After a crash (kill -9) end its servers and mounts,
/// whose command lines name DIR/glint-stage-N, and remove DIR/glint-stage-N.
///
///   glint bench copies                                  # all rows, some minutes
///   glint bench copies --row heal --files 10000,1000000 --data /mnt/disk
///   glint bench copies --row streams --row dies --json
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Row to measure; several may be named [default: all].
    #[arg(long, value_name = "NAME", value_enum)]
    row: Vec<CopiesRow>,
    /// Where servers and mounts are; decides which disk is measured.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    data: PathBuf,
    /// Bytes of each of the three large files of streams and rebuild, with K, M or G.
    #[arg(long, default_value = "1G", value_parser = large)]
    size: u64,
    /// Files among which some are changed, for heal; several numbers are compared.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [10_000_u64, 100_000],
          value_parser = clap::value_parser!(u64).range(1..))]
    files: Vec<u64>,
    /// Files that are changed while a server is away, for heal.
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(1..))]
    changed: u64,
    /// Times that streams and heals are measured; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Seconds for which users of the rebuild are measured alone, and again at half of that.
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    users_seconds: u64,
    /// Bytes of the file of stops, with K, M or G.
    #[arg(long, default_value = "3G", value_parser = large)]
    database: u64,
    /// Seconds after which a death is over, whether calls have gone on or not.
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    dies_seconds: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum CopiesRow {
    /// Large files, with three copies and with one.
    Streams,
    /// A member that was away.
    Heal,
    /// A member whose disk was replaced.
    Rebuild,
    /// A member that is killed under load.
    Dies,
    /// A member that stands still under load.
    Freezes,
    /// A member that is stopped under load.
    Stops,
}

/// What was asked for.
struct CopiesSetting<'a> {
    data: &'a Path,
    size: u64,
    files: &'a [u64],
    changed: u64,
    rounds: u64,
    users: Duration,
    dies: Duration,
    database: u64,
    asked: Asked<'a>,
}

impl CopiesSetting<'_> {
    fn asked(&self) -> bool {
        (self.asked)()
    }
}

/// The large files of streams and rebuild.
const LARGE_FILES: u64 = 3;
/// What each server has on its disk before it has any file: journals.
const SERVER_BYTES: u64 = 256 << 20;

/// Bytes of which there are some calls.
fn large(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        bytes if bytes >= 1 << 20 => Ok(bytes),
        _ => Err("it must be 1M at least: a call".into()),
    }
}

impl CopiesRow {
    const ALL: [CopiesRow; 6] = [
        CopiesRow::Streams,
        CopiesRow::Heal,
        CopiesRow::Rebuild,
        CopiesRow::Dies,
        CopiesRow::Freezes,
        CopiesRow::Stops,
    ];

    /// Bytes that it has on the disk at most, beside what servers have by themselves.
    fn needed(self, args: &Args) -> u64 {
        // Three copies, and one of streams or a plain one.
        let large = args.size.saturating_mul(LARGE_FILES * (place::SERVERS + 1));
        match self {
            CopiesRow::Streams => large,
            CopiesRow::Heal => heal::needed(args.files.iter().copied().max().unwrap_or(0)),
            CopiesRow::Rebuild => {
                let users = users::USERS * users::USER_BYTES * (place::SERVERS + 1);
                large.saturating_add(users)
            }
            CopiesRow::Dies | CopiesRow::Freezes => dies::needed(),
            CopiesRow::Stops => stops::needed(args.database),
        }
    }

    fn measure(self, setting: &CopiesSetting<'_>) -> Result<Vec<CopiesFigure>, String> {
        match self {
            CopiesRow::Streams => streams::measure(setting),
            CopiesRow::Heal => heal::measure(setting),
            CopiesRow::Rebuild => rebuild::measure(setting),
            CopiesRow::Dies => dies::measure(setting, &dies::KILLED),
            CopiesRow::Freezes => dies::measure(setting, &dies::HALTED),
            CopiesRow::Stops => stops::measure(setting),
        }
    }
}

/// The rows that are named, in their own order; all if none is.
fn chosen(named: &[CopiesRow]) -> Vec<CopiesRow> {
    let is_chosen = |row: &CopiesRow| named.is_empty() || named.contains(row);
    CopiesRow::ALL.into_iter().filter(is_chosen).collect()
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let stop = Stop::listen()?;
    let asked: Asked<'_> = &|| stop.is_asked();
    let rows = chosen(&args.row);
    if args.files.iter().any(|files| *files < args.changed) {
        return Err("--changed is of --files: say fewer of it, or more of these".into());
    }
    let needed = rows.iter().map(|row| row.needed(&args)).max().unwrap_or(0);
    let advice = "say --data DIR on another disk, less --size or --database, or fewer --files";
    let needed = needed.saturating_add(SERVER_BYTES * place::SERVERS);
    space::check(&args.data, needed, advice)?;
    let setting = CopiesSetting {
        data: &args.data,
        size: args.size,
        files: &args.files,
        changed: args.changed,
        rounds: args.rounds,
        users: Duration::from_secs(args.users_seconds),
        dies: Duration::from_secs(args.dies_seconds),
        database: args.database,
        asked,
    };
    let begun = Instant::now();
    let mut all = Vec::new();
    for row in rows {
        let figures = row.measure(&setting)?;
        if args.json {
            figures.iter().for_each(|figure| say!("{}", figure.json()));
        }
        all.extend(figures);
    }
    eprintln!("all of it took {:.0} s", begun.elapsed().as_secs_f64());
    if !args.json {
        say_part!("{}", figures::text(&all));
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
        let words = std::iter::once("copies").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.args).map_err(|e| e.to_string())
    }

    #[test]
    fn wrong_use_is_told() {
        for (line, part) in [
            ("--row all", "invalid value 'all' for '--row <NAME>'"),
            ("--rounds 0", "0 is not in 1.."),
            ("--files 10,0", "0 is not in 1.."),
            ("--size 1K", "it must be 1M at least"),
            ("streams", "unexpected argument 'streams'"),
        ] {
            let why = parse(line).err().unwrap_or_default();
            assert!(why.contains(part), "{line}: {why}");
        }
    }

    #[test]
    fn rows_keep_their_order_and_need_space_by_what_they_make() {
        assert_eq!(chosen(&[]), CopiesRow::ALL);
        let named = [CopiesRow::Dies, CopiesRow::Heal, CopiesRow::Dies];
        assert_eq!(chosen(&named), [CopiesRow::Heal, CopiesRow::Dies]);
        let args = parse("--files 10,50 --size 2G").ok().unwrap();
        assert_eq!(args.files, [10, 50]);
        assert_eq!(CopiesRow::Streams.needed(&args), 24 << 30);
        assert_eq!(CopiesRow::Stops.needed(&args), 9 << 30);
        assert_eq!(CopiesRow::Heal.needed(&args), 50 * 3 * (12 << 10));
    }
}

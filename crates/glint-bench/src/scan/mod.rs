//! `glint bench scan`: how fast all files of a tree are looked at, while streams want the memory
//! that their metadata has.

mod amounts;
mod describe;
mod figures;
mod material;
mod measure;
mod places;
mod programs;
mod rows;
mod streaming;
mod walk;

pub(crate) use describe::ScanResults;
pub(crate) use places::drop_caches;
pub(crate) use streaming::{StreamArgs, stream};
pub(crate) use walk::{WalkArgs, walk};

use crate::experiments::{lustre_2011, space};
use crate::smallfile::Asked;
use amounts::{ScanAmounts, memory_for};
use figures::AllFigures;
use glint::signals::Stop;
use glint::size::parse as bytes;
use glint::{CommandResult, say, say_part};
use measure::Measuring;
use places::Places;
use rows::{ScanPhase, ScanSide, VARIANTS};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Scan a tree of many files, with the memory of servers limited and streams beside it; and compare.
///
/// Makes a tree (50 files a directory, one of 20 large) through a mount of a server of its own, and
/// the same on the local file system that the server has its data on: xfs on a loop device, around
/// the page cache of the disk below. Then it scans both in turns: `ls -lR`, `find -size` and a stat
/// of each file on a fresh mount, `glint find -size` and `glint du`; locally `ls -lR`, `find -size`,
/// stat and `du`. The lines of each are counted: a scan with another number of them fails. Servers, and local
/// scans, are in a control group whose memory is enough for metadata, and by far not for metadata
/// and what is streamed; a mount and its scan are in another one.
///
/// --streams adds scans beside streams: another mount reads and writes large files, as fast as half a core
/// is busy with it, the kernel's work and the disk's included (found by trying, before the first time).
/// --restarts adds scans after a restart of the server and with all caches of the machine dropped. The
/// experiment lustre-2011 does both, and once more with data and metadata of the server
/// in one cache. Printed are files in a second, ratios to warm and to the local file system, the
/// longest stat, and the memory of processes. Needs root, xfsprogs, and the space and time that it
/// says at its start. Ctrl-C ends it and leaves nothing. After a crash (kill -9) end its servers and
/// mounts, whose command lines name DIR/glint-stage-N, then `umount DIR/glint-stage-N/disk`,
/// `losetup -d` the device of DIR/glint-stage-N/disk.img, remove DIR/glint-stage-N, and the control
/// groups glint-bench-N-*.
///
///   glint bench scan --files 100000                       # warm scans, some minutes
///   glint bench scan --files 100000 --streams --restarts --json
///   glint bench scan --experiment lustre-2011 --report docs/reports --data /mnt/disk
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Files of the tree; a fiftieth of it are directories.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    files: u64,
    /// Times each scan is done; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Where the disk is made; decides which disk is measured.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    data: PathBuf,
    /// Use the file system of --data itself, and no xfs on a loop device there.
    #[arg(long)]
    plain: bool,
    /// Memory of the server, and of local scans, with what the kernel caches for them, as 1G, or off
    /// for no limit [default: 256M and 1536 bytes for each file].
    #[arg(long, value_name = "SIZE|off", value_parser = MemoryLimit::parse)]
    memory: Option<MemoryLimit>,
    /// The same of a mount that is scanned, together with what scans it.
    #[arg(long, value_name = "SIZE|off", value_parser = MemoryLimit::parse, default_value = "512M")]
    client_memory: MemoryLimit,
    /// Scan also beside streams.
    #[arg(long)]
    streams: bool,
    /// Scan also after a restart of the server.
    #[arg(long)]
    restarts: bool,
    /// Bytes a second that streams read and write together, instead of what half a core does.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    stream_rate: Option<u64>,
    /// Bytes that are streamed before the same are streamed again [default: four times --memory, or
    /// 1G].
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    stream_bytes: Option<u64>,
    /// Seconds after which a scan is ended. Its rate is then that of what it had printed, as
    /// `>= N (cut)`, without ratios: programs keep some of their output, so it has seen more. The
    /// stat of each file says what it had seen.
    #[arg(long, value_name = "SECONDS", default_value_t = 300,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    patience: u64,
    /// A whole experiment, with all of this.
    #[arg(long, value_enum)]
    experiment: Option<Experiment>,
    /// With --experiment: write a report with plots into this directory.
    #[arg(long, value_name = "DIR", requires = "experiment")]
    report: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Experiments of this benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Experiment {
    /// Lustre in production, whose scans took days when streams pushed inodes out of memory.
    #[value(name = "lustre-2011")]
    Lustre2011,
}

/// A limit of memory, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MemoryLimit {
    Off,
    Bytes(u64),
}

/// The least limit: a server that has just started needs some of it.
const MEMORY_MIN: u64 = 64 << 20;
/// Bytes that are streamed where memory is not limited.
const STREAMED_BYTES: u64 = 1 << 30;

impl MemoryLimit {
    fn parse(text: &str) -> Result<MemoryLimit, String> {
        match text {
            "off" => Ok(MemoryLimit::Off),
            text => match bytes(text).map_err(|why| format!("{why}, or off"))? {
                bytes if bytes >= MEMORY_MIN => Ok(MemoryLimit::Bytes(bytes)),
                _ => Err("it must be 64M at least, or off".into()),
            },
        }
    }

    fn bytes(self) -> Option<u64> {
        match self {
            MemoryLimit::Off => None,
            MemoryLimit::Bytes(bytes) => Some(bytes),
        }
    }
}

/// What was asked for.
struct ScanSetting {
    data: PathBuf,
    is_plain: bool,
    amounts: ScanAmounts,
    memory: Option<u64>,
    client_memory: Option<u64>,
    stream_rate: Option<u64>,
    patience: Duration,
    rounds: u64,
    phases: Vec<ScanPhase>,
    sides: Vec<ScanSide>,
}

impl ScanSetting {
    fn of(args: &Args) -> ScanSetting {
        let memory = args.memory.unwrap_or_else(|| MemoryLimit::Bytes(memory_for(args.files)));
        let memory = memory.bytes();
        let by_memory = memory.map_or(STREAMED_BYTES, |bytes| bytes.saturating_mul(4));
        let streamed = args.stream_bytes.unwrap_or(by_memory);
        let is_all = args.experiment.is_some();
        let is_wanted = |phase: &ScanPhase| {
            is_all
                || (args.streams || !phase.is_streamed())
                    && (args.restarts || !phase.is_restarted())
        };
        let variants = if is_all { VARIANTS.len() } else { 1 };
        let mut sides: Vec<_> = (0..variants).map(ScanSide::Glint).collect();
        sides.push(ScanSide::Local);
        sides.extend(memory.map(|_| ScanSide::Unlimited));
        ScanSetting {
            data: args.data.clone(),
            is_plain: args.plain,
            amounts: ScanAmounts { files: args.files, streamed },
            memory,
            client_memory: args.client_memory.bytes().filter(|_| memory.is_some()),
            stream_rate: args.stream_rate,
            patience: Duration::from_secs(args.patience),
            rounds: args.rounds,
            phases: ScanPhase::ALL.into_iter().filter(is_wanted).collect(),
            sides,
        }
    }

    /// Seconds that it takes, about, on two cores.
    fn seconds(&self) -> f64 {
        let files = self.amounts.files as f64;
        let streamed = self.amounts.streamed as f64;
        // Making the files twice, and writing what is streamed.
        let making = files / MADE_PER_S + streamed / WRITTEN_PER_S;
        let rate = self.stream_rate.map_or(STREAMED_PER_S, |rate| rate.max(1) as f64);
        let fill = streamed / 2.0 / rate;
        let scans = |side: &ScanSide| {
            let (scans, is_free) = (side.scans().len() as f64, *side == ScanSide::Unlimited);
            let of = |phase: &ScanPhase| {
                let fills = match (phase.is_streamed(), phase.is_restarted()) {
                    (true, true) => scans,
                    (true, false) => 1.0,
                    _ => 0.0,
                };
                scans * (files / SCANNED_PER_S + SCAN_S) + fills * fill
            };
            self.phases.iter().take(if is_free { 1 } else { usize::MAX }).map(of).sum::<f64>()
        };
        making + self.rounds as f64 * self.sides.iter().map(scans).sum::<f64>()
    }
}

/// Files that are made in a second, on both sides; bytes that a disk writes, and that are streamed;
/// files that are scanned.
const MADE_PER_S: f64 = 4_000.0;
const WRITTEN_PER_S: f64 = 100e6;
const STREAMED_PER_S: f64 = 100e6;
const SCANNED_PER_S: f64 = 50_000.0;
/// Seconds that each scan takes beside.
const SCAN_S: f64 = 1.5;

/// The command that does the same again.
fn again(args: &Args) -> String {
    let mut words = vec!["glint bench scan".to_owned()];
    words.extend(args.experiment.map(|_| "--experiment lustre-2011".to_owned()));
    words.push(format!("--files {} --rounds {}", args.files, args.rounds));
    let limit = |limit: MemoryLimit| limit.bytes().map_or("off".into(), |bytes| bytes.to_string());
    words.extend(args.memory.map(|memory| format!("--memory {}", limit(memory))));
    words.push(format!("--client-memory {}", limit(args.client_memory)));
    words.extend(args.plain.then(|| "--plain".to_owned()));
    words.extend(args.streams.then(|| "--streams".to_owned()));
    words.extend(args.restarts.then(|| "--restarts".to_owned()));
    words.extend(args.stream_rate.map(|rate| format!("--stream-rate {rate}")));
    words.extend(args.stream_bytes.map(|bytes| format!("--stream-bytes {bytes}")));
    words.push(format!("--patience {}", args.patience));
    words.join(" ")
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let stop = Stop::listen()?;
    let asked: Asked<'_> = &|| stop.is_asked();
    let (setting, begun) = (ScanSetting::of(&args), Instant::now());
    let advice = "say --data DIR on another disk, fewer --files or less --memory";
    space::check(&setting.data, setting.amounts.disk_bytes(), advice)?;
    eprintln!("takes about {:.0} minutes", (setting.seconds() / 60.0).ceil());
    let mut places = Places::new(&setting)?;
    places.make(&setting.amounts, asked)?;
    let all = AllFigures {
        amounts: setting.amounts,
        memory: setting.memory,
        client_memory: setting.client_memory,
        rounds: setting.rounds,
        is_direct: places.is_direct,
        paced: None,
        warm_start: Duration::ZERO,
        short_warm_starts: 0,
        sides: setting.sides.clone(),
        options: VARIANTS.iter().map(|variant| places.options(variant).join(" ")).collect(),
        phases: setting.phases.clone(),
        cells: BTreeMap::new(),
        resident: BTreeMap::new(),
        passed_above: BTreeMap::new(),
    };
    let mut measuring = Measuring { setting: &setting, places, all, asked };
    measuring.run()?;
    let results = ScanResults { all: measuring.all, again: again(&args) };
    drop(measuring.places);
    eprintln!("all of it took {:.0} s", begun.elapsed().as_secs_f64());
    match args.json {
        true => results.json().iter().for_each(|line| say!("{line}")),
        false => say_part!("{}", results.text()),
    }
    if let Some(report) = &args.report {
        lustre_2011::report(&results).finish(Some(report))?;
    }
    match results.failure() {
        Some(why) => Err(why.into()),
        None => Ok(ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests;

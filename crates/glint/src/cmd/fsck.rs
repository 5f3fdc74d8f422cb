//! `glint fsck`: offline check of a data directory.

use crate::CommandResult;
use crate::data_dir::DataDir;
use crate::servers::{Settings, engine_options};
use glint_kv::local::LocalKv;
use glint_ost::ObjectStore;
use glint_proto::Ino;
use serde_json::json;
use std::collections::HashMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Check a file system that is not being served: entries, inodes, link counts,
/// objects, orphans.
///
/// Exits with 0 if it is sound (or was repaired), 1 if something is wrong, as
/// fsck(8).
#[derive(clap::Args)]
pub struct Args {
    /// The data directory.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Put right what can be put right. Unreachable inodes get a name in lost+found.
    #[arg(long)]
    repair: bool,
    /// Leave the data alone: do not compare it with its checksums.
    #[arg(long)]
    skip_data: bool,
    /// Print JSON: a line per finding, then a summary.
    #[arg(long)]
    json: bool,
}

/// Nothing can be checked: with --json that is a finding like any other.
fn report_unreadable(error: &glint_kv::KvError, as_json: bool) {
    if as_json {
        println!("{}", json!({"finding": error.to_string(), "repaired": false}));
        println!("{}", json!({"findings": 1, "unrepaired": 1}));
    }
}

struct Finding {
    what: String,
    repaired: bool,
}

/// Runs the command.
pub fn run(args: Args) -> CommandResult {
    let data = DataDir::open(&args.data)?;
    let kv = LocalKv::open(&data.mds(), engine_options(&data, Settings::default().commit_interval))
        .inspect_err(|e| report_unreadable(e, args.json))?;
    let report = futures_lite::future::block_on(glint_mds::check(&kv, args.repair))?;
    let mut findings: Vec<Finding> = report
        .findings
        .iter()
        .map(|finding| Finding { what: finding.what.clone(), repaired: finding.repaired })
        .collect();
    let waiting = futures_lite::future::block_on(glint_mds::objects_to_destroy(&kv))?;
    let mut objects = 0u64;
    let mut bytes = 0u64;
    let mut checked = 0u64;
    let mut sizes: HashMap<Ino, u64> = HashMap::new();
    let mut progress = Progress::new();
    for index in 0..data.osts() {
        let store = ObjectStore::open(&data.ost(index), Default::default())?;
        let mut lost = Vec::new();
        let mut kept = Vec::new();
        let mut strays = Vec::new();
        store.walk(
            |found| {
                objects += 1;
                bytes += found.size;
                let ino = found.object.ino;
                if let Some(Some(extent)) = report.files.get(&ino) {
                    let reaches = extent.layout.file_size(found.object.stripe, found.size);
                    let size = sizes.entry(ino).or_default();
                    *size = reaches.max(*size);
                }
                if !report.files.contains_key(&ino) && !waiting.contains(&ino) {
                    lost.push(found.object);
                } else if !args.skip_data {
                    kept.push(found.object);
                }
            },
            |path| strays.push(path),
        )?;
        for object in lost {
            let what = format!("object {object} on OST {index} belongs to no file");
            let repaired = args.repair && store.remove(object).is_ok();
            findings.push(Finding { what, repaired });
        }
        for (done, object) in kept.iter().enumerate() {
            progress.show(index, done, kept.len());
            match store.check(*object) {
                Ok(true) => checked += 1,
                Ok(false) => {}
                Err(error) => {
                    let what = format!("object {object} on OST {index}: {error}");
                    findings.push(Finding { what, repaired: false });
                }
            }
        }
        progress.end();
        for path in strays {
            let what = format!("{} is not an object", path.display());
            findings.push(Finding { what, repaired: false });
        }
    }
    let mut doubted = Vec::new();
    for (ino, extent) in &report.files {
        let Some(extent) = extent else { continue };
        let have = sizes.get(ino).copied().unwrap_or(0);
        if have != extent.size {
            let size = extent.size;
            let what = format!("file {ino} has {size} bytes, its objects {have}; they count");
            findings.push(Finding { what, repaired: args.repair });
            doubted.push(*ino);
        }
    }
    if args.repair && !doubted.is_empty() {
        futures_lite::future::block_on(glint_mds::believe_objects(&kv, &doubted))?;
    }
    let wrong = findings.iter().filter(|finding| !finding.repaired).count();
    if args.json {
        for finding in &findings {
            println!("{}", json!({"finding": finding.what, "repaired": finding.repaired}));
        }
        let summary = json!({
            "inodes": report.inodes, "entries": report.entries, "orphans": report.orphans,
            "objects": objects, "checked": checked, "bytes": bytes, "findings": findings.len(), "unrepaired": wrong,
        });
        println!("{summary}");
    } else {
        for finding in &findings {
            println!("{}{}", finding.what, if finding.repaired { " (repaired)" } else { "" });
        }
        println!(
            "{} inodes, {} entries, {} orphans, {objects} objects ({checked} with checksums): {}",
            report.inodes,
            report.entries,
            report.orphans,
            match (findings.len(), wrong) {
                (0, _) => "sound".to_owned(),
                (n, 0) => format!("{n} findings, all repaired"),
                (n, _) if args.repair => format!("{n} findings, {wrong} not repaired"),
                (n, _) => format!("{n} findings; --repair puts them right"),
            }
        );
    }
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How far the comparison of data is, on a terminal.
struct Progress {
    terminal: bool,
    last: Instant,
}

impl Progress {
    fn new() -> Progress {
        Progress { terminal: std::io::stderr().is_terminal(), last: Instant::now() }
    }

    fn show(&mut self, ost: u16, done: usize, of: usize) {
        if self.terminal && self.last.elapsed() > Duration::from_millis(200) {
            eprint!("\r\x1b[2KOST {ost}: {done} of {of} objects");
            self.last = Instant::now();
        }
    }

    fn end(&self) {
        if self.terminal {
            eprint!("\r\x1b[2K");
        }
    }
}

//! `glint fsck`: offline check of a data directory.

use crate::CommandResult;
use futures_lite::future::block_on;
use glint_kv::local::LocalKv;
use glint_mds::CheckReport;
use glint_ost::{ObjectStore, StoredObject};
use glint_proto::Ino;
use glint_server::data_dir::{DataDir, Role};
use glint_server::{Records, Settings, engine_options};
use serde_json::json;
use std::collections::HashMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Check a file system that is not being served: entries, inodes, link counts,
/// objects, orphans.
///
/// Of a directory of `glint oss` the data is compared with its checksums; which file an
/// object belongs to is known where the MDS is. Sizes of files with objects on other servers
/// are not compared.
///
/// Exits with 0 if it is sound (or was repaired), 1 if something is wrong, as
/// fsck(8).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The data directory.
    #[arg(value_name = "DIR", required_unless_present = "data", conflicts_with = "data")]
    directory: Option<PathBuf>,
    /// Data directory.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
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
        crate::say!("{}", json!({"finding": error.to_string(), "repaired": false}));
        crate::say!("{}", json!({"findings": 1, "unrepaired": 1}));
    }
}

struct Finding {
    what: String,
    repaired: bool,
}

/// Findings in the object stores.
#[derive(Default)]
struct Check {
    findings: Vec<Finding>,
    objects: u64,
    bytes: u64,
    checked: u64,
}

/// Objects that are open at once: one after the other is read.
const OPEN_FILES: usize = 16;

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let said = args.data.as_ref().or(args.directory.as_ref());
    let data = DataDir::open(said.ok_or("no data directory was named")?)?;
    let mut check = Check::default();
    let (mut summary, mut text) = (serde_json::Map::new(), String::new());
    match data.role() {
        // Only the MDS knows which files the objects of an OSS belong to.
        Role::Oss => check.stores(&data, &args, |_| true)?,
        Role::Mds => {
            let options = engine_options(&data, Settings::default().commit_interval)?;
            let kv = LocalKv::open(&data.mds(), options)
                .inspect_err(|e| report_unreadable(e, args.json))?;
            let (report, elsewhere) = check.file_system(&data, &args, &kv)?;
            let (inodes, entries, orphans) = (report.inodes, report.entries, report.orphans);
            for (key, count) in [
                ("inodes", inodes),
                ("entries", entries),
                ("orphans", orphans),
                ("elsewhere", elsewhere),
            ] {
                summary.insert(key.into(), json!(count));
            }
            text = format!("{inodes} inodes, {entries} entries, {orphans} orphans, ");
            if elsewhere > 0 {
                text += &format!("{elsewhere} files with objects on other servers, ");
            }
        }
    }
    let Check { findings, objects, bytes, checked } = check;
    let wrong = findings.iter().filter(|finding| !finding.repaired).count();
    if args.json {
        for finding in &findings {
            crate::say!("{}", json!({"finding": finding.what, "repaired": finding.repaired}));
        }
        for (key, count) in [
            ("objects", objects),
            ("checked", checked),
            ("bytes", bytes),
            ("findings", findings.len() as u64),
            ("unrepaired", wrong as u64),
        ] {
            summary.insert(key.into(), json!(count));
        }
        crate::say!("{}", serde_json::Value::Object(summary));
    } else {
        for finding in &findings {
            crate::say!("{}{}", finding.what, if finding.repaired { " (repaired)" } else { "" });
        }
        crate::say!(
            "{text}{objects} objects ({checked} with checksums): {}",
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

impl Check {
    fn find(&mut self, what: String, repaired: bool) {
        self.findings.push(Finding { what, repaired });
    }

    /// Checks a namespace and its objects. Returns how many files have objects elsewhere, too.
    fn file_system(
        &mut self,
        data: &DataDir,
        args: &Args,
        kv: &LocalKv,
    ) -> Result<(CheckReport, u64), Box<dyn std::error::Error>> {
        let report = block_on(glint_mds::check(kv, args.repair))?;
        for finding in &report.findings {
            self.find(finding.what.clone(), finding.repaired);
        }
        let waiting = block_on(glint_mds::objects_to_destroy(kv))?;
        let mut sizes: HashMap<Ino, u64> = HashMap::new();
        self.stores(data, args, |found| {
            let ino = found.object.ino;
            if let Some(Some(extent)) = report.files.get(&ino) {
                let reaches = extent.layout.file_size(found.object.stripe, found.size);
                let size = sizes.entry(ino).or_default();
                *size = reaches.max(*size);
            }
            report.files.contains_key(&ino) || waiting.contains(&ino)
        })?;
        let mut doubted = Vec::new();
        let mut elsewhere = 0;
        for (ino, extent) in &report.files {
            let Some(extent) = extent else { continue };
            if extent.layout.reaches_beyond(data.osts()) {
                elsewhere += 1;
                continue;
            }
            let have = sizes.get(ino).copied().unwrap_or(0);
            if have != extent.size {
                let size = extent.size;
                let what = format!("file {ino} has {size} bytes, its objects {have}; they count");
                self.find(what, args.repair);
                doubted.push(*ino);
            }
        }
        if args.repair && !doubted.is_empty() {
            block_on(glint_mds::believe_objects(kv, &doubted))?;
        }
        Ok((report, elsewhere))
    }

    /// Checks all objects of a data directory: whether each `belongs` to a file, and its data.
    fn stores(
        &mut self,
        data: &DataDir,
        args: &Args,
        mut belongs: impl FnMut(&StoredObject) -> bool,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let mut progress = Progress::new();
        for index in 0..data.osts() {
            let store = ObjectStore::open(&data.ost(index), OPEN_FILES, Default::default())?;
            let mut lost = Vec::new();
            let mut kept = Vec::new();
            let mut strays = Vec::new();
            store.walk(
                |found| {
                    self.objects += 1;
                    self.bytes += found.size;
                    if !belongs(&found) {
                        lost.push(found.object);
                    } else if !args.skip_data {
                        kept.push(found.object);
                    }
                },
                |path| strays.push(path),
            )?;
            for object in lost {
                let what = format!("object {object} on OST {index} belongs to no file");
                self.find(what, args.repair && store.remove(object).is_ok());
            }
            for (done, object) in kept.iter().enumerate() {
                progress.show(index, done, kept.len());
                match store.check(*object) {
                    Ok(true) => self.checked += 1,
                    Ok(false) => {}
                    Err(error) => {
                        self.find(format!("object {object} on OST {index}: {error}"), false);
                    }
                }
            }
            progress.end();
            for path in strays {
                self.find(format!("{} is not an object", path.display()), false);
            }
        }
        Ok(())
    }
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
            crate::live::show(&format!("\r\x1b[2KOST {ost}: {done} of {of} objects"));
            self.last = Instant::now();
        }
    }

    fn end(&self) {
        if self.terminal {
            crate::live::show("\r\x1b[2K");
        }
    }
}

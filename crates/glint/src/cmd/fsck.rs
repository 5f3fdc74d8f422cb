//! `glint fsck`: offline check of a data directory.

use crate::CommandResult;
use futures_lite::future::block_on;
use glint_kv::local::LocalKv;
use glint_mds::Extent;
use glint_ost::{ObjectStore, StoredObject};
use glint_proto::Ino;
use glint_server::data_dir::{DataDir, Role};
use glint_server::{Records, Settings, engine_options};
use serde_json::json;
use std::collections::HashMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Exit code when something was wrong and is right now. These are the codes of fsck(8): this one
/// and the next add up.
const CORRECTED: u8 = 1;
/// Exit code when something is wrong.
const UNCORRECTED: u8 = 4;
/// Exit code when the check did not come to its end.
pub(crate) const FAILED: u8 = 8;
/// Exit code when the command was called wrongly.
pub(crate) const USAGE: u8 = 16;

/// Check a file system that is not being served: entries, inodes, link counts,
/// objects, orphans.
///
/// Of a directory of `glint oss` the data is compared with its checksums; which file an
/// object belongs to is known where the MDS is. Sizes of files with objects on other servers
/// are not compared.
///
/// Exits as fsck(8): 0 if nothing is wrong, 1 if something was and --repair put it right, 4 if
/// something is wrong and was left, 5 for both, 8 if the check could not come to its end (a
/// directory that is served, or is none of Glint; a disk that gives nothing; metadata too damaged
/// to be opened), 16 if it was called wrongly.
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
    /// Print JSON: a line per finding, then a summary, which says in `error` why the check did not
    /// come to its end.
    #[arg(long)]
    json: bool,
}

/// End of a finding: repaired, or left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Repaired,
    /// Left; `--repair` puts it right.
    Repairable,
    /// Left, by `--repair`, too.
    Left,
}

struct Finding {
    what: String,
    outcome: Outcome,
}

/// Findings in the object stores and in the namespace.
#[derive(Default)]
struct Check {
    findings: Vec<Finding>,
    namespace: Option<Namespace>,
    objects: u64,
    bytes: u64,
    checked: u64,
}

/// Counts of a namespace.
struct Namespace {
    inodes: u64,
    entries: u64,
    orphans: u64,
    /// Files with objects on other servers, too.
    elsewhere: usize,
}

/// Objects that are open at once: one after the other is read.
const OPEN_FILES: usize = 16;

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let said = args.data.as_ref().or(args.directory.as_ref());
    let said = said.ok_or("no data directory was named")?;
    let mut check = Check::default();
    let ended = check.directory(said, &args).map_err(|error| error.to_string());
    // Findings from before the check failed are said, too: some may be put right.
    check.say(&args, ended.as_ref().err());
    ended?;
    Ok(ExitCode::from(check.exit_code()))
}

impl Check {
    fn find(&mut self, what: String, outcome: Outcome) {
        self.findings.push(Finding { what, outcome });
    }

    /// How many findings had this outcome.
    fn count(&self, outcome: Outcome) -> usize {
        self.findings.iter().filter(|finding| finding.outcome == outcome).count()
    }

    /// Exit code of a check that came to its end.
    fn exit_code(&self) -> u8 {
        let repaired = self.count(Outcome::Repaired);
        let corrected = if repaired > 0 { CORRECTED } else { 0 };
        let is_left = repaired < self.findings.len();
        corrected + if is_left { UNCORRECTED } else { 0 }
    }

    /// Prints what was found, and of a check that failed, why.
    fn say(&self, args: &Args, error: Option<&String>) {
        let Check { findings, namespace, objects, bytes, checked } = self;
        let (all, repaired) = (findings.len(), self.count(Outcome::Repaired));
        if args.json {
            for Finding { what, outcome } in findings {
                let (repaired, repairable) =
                    (*outcome == Outcome::Repaired, *outcome != Outcome::Left);
                let line = json!({"finding": what, "repaired": repaired, "repairable": repairable});
                crate::say!("{line}");
            }
            let mut summary = json!({"objects": objects, "checked": checked, "bytes": bytes,
                "findings": all, "unrepaired": all - repaired});
            if let Some(Namespace { inodes, entries, orphans, elsewhere }) = namespace {
                summary["inodes"] = json!(inodes);
                summary["entries"] = json!(entries);
                summary["orphans"] = json!(orphans);
                summary["elsewhere"] = json!(elsewhere);
            }
            if let Some(error) = error {
                summary["error"] = json!(error);
            }
            crate::say!("{summary}");
            return;
        }
        for Finding { what, outcome } in findings {
            let is_repaired = *outcome == Outcome::Repaired;
            crate::say!("{what}{}", if is_repaired { " (repaired)" } else { "" });
        }
        if error.is_some() {
            return;
        }
        let mut text = String::new();
        if let Some(Namespace { inodes, entries, orphans, elsewhere }) = namespace {
            text = format!("{inodes} inodes, {entries} entries, {orphans} orphans, ");
            if *elsewhere > 0 {
                text += &format!("{elsewhere} files with objects on other servers, ");
            }
        }
        let result = match (all, all - repaired, self.count(Outcome::Repairable)) {
            (0, ..) => "sound".to_owned(),
            (n, 0, _) => format!("{n} findings, all repaired"),
            (n, left, 0) => format!("{n} findings, {left} that --repair cannot put right"),
            (n, _, m) if n == m => format!("{n} findings; --repair puts them right"),
            (n, _, m) => format!("{n} findings; --repair puts {m} of them right"),
        };
        crate::say!("{text}{objects} objects ({checked} with checksums): {result}");
    }

    /// Checks a data directory.
    fn directory(&mut self, path: &Path, args: &Args) -> Result<(), Box<dyn std::error::Error>> {
        let data = DataDir::open(path)?;
        match data.role() {
            // Only the MDS knows which files the objects of an OSS belong to.
            Role::Oss => self.stores(&data, args, |_| true),
            Role::Mds => {
                let options = engine_options(&data, Settings::default().commit_interval)?;
                let kv = LocalKv::open(&data.mds(), options)?;
                self.file_system(&data, args, &kv)
            }
        }
    }

    /// Checks a namespace and its objects.
    fn file_system(
        &mut self,
        data: &DataDir,
        args: &Args,
        kv: &LocalKv,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let right = if args.repair { Outcome::Repaired } else { Outcome::Repairable };
        let report = block_on(glint_mds::check(kv, args.repair))?;
        for finding in &report.findings {
            let repaired = finding.repaired;
            let outcome = if repaired { Outcome::Repaired } else { Outcome::Repairable };
            self.find(finding.what.clone(), outcome);
        }
        let is_elsewhere = |extent: &&Extent| extent.layout.reaches_beyond(data.osts());
        self.namespace = Some(Namespace {
            inodes: report.inodes,
            entries: report.entries,
            orphans: report.orphans,
            elsewhere: report.files.values().flatten().filter(is_elsewhere).count(),
        });
        let waiting = block_on(glint_mds::objects_to_destroy(kv))?;
        let mut sizes: HashMap<Ino, u64> = HashMap::new();
        self.stores(data, args, |found| {
            let ino = found.object.ino;
            let known = match report.files.get(&ino) {
                Some(Some(extent)) => match extent.layout.stripe_of(found.object) {
                    Some(stripe) => {
                        let reaches = extent.layout.file_size(stripe, found.size);
                        let size = sizes.entry(ino).or_default();
                        *size = reaches.max(*size);
                        true
                    }
                    // The file's data has moved from there, or was to move.
                    None => false,
                },
                Some(None) => true,
                None => false,
            };
            known || waiting.contains(&ino)
        })?;
        let (mut doubted, mut wrong) = (Vec::new(), Vec::new());
        for (ino, extent) in &report.files {
            let Some(extent) = extent.as_ref().filter(|extent| !is_elsewhere(extent)) else {
                continue;
            };
            let have = sizes.get(ino).copied().unwrap_or(0);
            if have != extent.size {
                let size = extent.size;
                wrong.push(format!("file {ino} has {size} bytes, its objects {have}; they count"));
                doubted.push(*ino);
            }
        }
        let repaired = match args.repair && !doubted.is_empty() {
            true => block_on(glint_mds::believe_objects(kv, &doubted)),
            false => Ok(()),
        };
        let outcome = if repaired.is_ok() { right } else { Outcome::Repairable };
        wrong.into_iter().for_each(|what| self.find(what, outcome));
        Ok(repaired?)
    }

    /// Checks all objects of a data directory: whether each `belongs` to a file, and its data.
    fn stores(
        &mut self,
        data: &DataDir,
        args: &Args,
        mut belongs: impl FnMut(&StoredObject) -> bool,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let mut progress = Progress::new();
        data.find_osts()?;
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
                match args.repair.then(|| store.remove(object)) {
                    None => self.find(what, Outcome::Repairable),
                    Some(Ok(())) => self.find(what, Outcome::Repaired),
                    Some(Err(e)) => self.find(format!("{what}; removing it: {e}"), Outcome::Left),
                }
            }
            for (done, object) in kept.iter().enumerate() {
                progress.show(index, done, kept.len());
                match store.check(*object) {
                    Ok(sums) => self.checked += u64::from(sums.is_some()),
                    Err(error) => {
                        let what = format!(
                            "object {object} on OST {index}: {error}; restore its file from a backup"
                        );
                        self.find(what, Outcome::Left);
                    }
                }
            }
            progress.end();
            for path in strays {
                self.find(format!("{} is not an object", path.display()), Outcome::Left);
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

#[cfg(test)]
mod tests {
    use super::*;
    use Outcome::{Left, Repairable, Repaired};

    #[test]
    fn exit_codes_are_those_of_fsck_8() {
        for (outcomes, code) in [
            (&[][..], 0),
            (&[Repaired, Repaired], 1),
            (&[Repairable], 4),
            (&[Left], 4),
            (&[Repaired, Left, Repaired], 5),
        ] {
            let mut check = Check::default();
            outcomes.iter().for_each(|outcome| check.find(String::new(), *outcome));
            assert_eq!(check.exit_code(), code, "{outcomes:?}");
        }
    }
}

//! `glint fsck`: check of a data directory that is not served, or of the namespace of a server.

mod copies;
mod online;
mod servers;

use crate::CommandResult;
use copies::{Copies, size_of_file};
use futures_lite::future::block_on;
use glint_kv::local::LocalKv;
use glint_mds::Extent;
use glint_ost::StoredObject;
use glint_proto::Ino;
use glint_server::data_dir::{DataDir, Role};
use glint_server::{Settings, engine_options};
use serde_json::{Value, json};
use servers::{Servers, Store};
use std::collections::{HashMap, HashSet};
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
/// objects, orphans, data against its checksums, copies against each other.
///
/// Say the directories of its other servers with --oss, as far as they are on this host or mounted
/// here: files with data there are checked, too, and copies there compared with those here. Of a
/// directory of `glint oss` alone the data is compared with its checksums; which file an
/// object belongs to is known where the MDS is.
///
/// What a copy lacks because its OST was away is no damage, if the index of its chain says so: it
/// is counted as `healing outstanding`, and is copied when the servers run. These are objects whose
/// copies differ (with --skip-data, in size); `glint heal info` counts all objects that the index
/// names, also those whose copies are equal. A copy that is damaged, or missing, while another one
/// is right, --repair notes in that index, so that it is copied, too. What only members have that lag
/// behind, and lack nothing of it, --repair copies at once.
///
/// A client may have made files of which it has not told the server yet, when that ended. So while
/// clients may come back, objects that belong to no file are counted and kept; when none is
/// expected any more, after a start and a clean end, --repair removes them.
///
/// With --online the server runs, and others go on to use it. Entries, inodes and link counts are
/// checked, and whether the OSTs of files exist. What seems wrong is looked at a second time, as it
/// may have been changed meanwhile, and all is checked once more if something is found. Then each
/// OST is asked for its objects: an OST that lacks its copy of a file which another one has, copies
/// that are not equally large or have different contents, objects that have lost their end, and
/// objects that belong to no file, are told if it is so for some seconds. Copies are compared where
/// all members of a chain serve, and contents by the checksums of objects that were left alone for
/// some seconds: no data is read. Objects without file count as wrong when no client is there that
/// may tell of one. Of a file without copies nobody can tell a lost object from a hole, unless the
/// file ends in it. --skip-data leaves the objects alone.
/// This is for those who may do everything there, takes about 150 bytes of memory here for each
/// inode, and for objects a page of each OST and the name of an object of each file, and puts
/// nothing right. Orphans, extended attributes and sizes of files are looked at only when the server
/// is stopped; `glint scrub` compares data with its checksums while it runs.
///
/// On a mount the process behind it asks, by what that may do: so a server of `glint up` without
/// --listen is checked. Ctrl-C ends the check, also while a server does not answer.
///
/// Exits as fsck(8): 0 if nothing is wrong, 1 if something was and --repair put it right, 4 if
/// something is wrong and was left, 5 for both, 8 if the check could not come to its end (a
/// directory that is served, or is none of Glint; a disk that gives nothing; metadata too damaged
/// to be opened), 16 if it was called wrongly.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The data directory.
    #[arg(value_name = "DIR", required_unless_present_any = ["data", "online"],
        conflicts_with = "data")]
    directory: Option<PathBuf>,
    /// Data directory.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Data directory of `glint oss`, of a server of this file system that is stopped, too; may be
    /// said several times.
    #[arg(long = "oss", value_name = "DIR")]
    osses: Vec<PathBuf>,
    /// Check a file system that is served, by its server with the MDS: HOST or HOST:PORT, on this
    /// host its socket or its data directory, or, as the user who mounted it, a mount.
    #[arg(long, value_name = "DIR|HOST:PORT|MOUNT",
        conflicts_with_all = ["directory", "data", "osses", "repair"])]
    online: Option<String>,
    /// Put right what can be put right. Unreachable inodes get a name in lost+found; wrong copies
    /// are written anew from right ones, when the servers run.
    #[arg(long)]
    repair: bool,
    /// Leave the data alone: do not compare it with its checksums, nor copies by more than their
    /// sizes; with --online, look at no objects.
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
    /// The same, and `--repair` would take the rest of the file for all of it.
    EndLost,
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
    /// Objects that may be of files which clients have not told the MDS of.
    untold: u64,
    /// What [`Copies::summary`] says.
    copies: Option<Value>,
}

/// Counts of a namespace.
struct Namespace {
    inodes: u64,
    entries: u64,
    orphans: u64,
    /// Files with objects on servers whose directories were not named.
    elsewhere: usize,
}

/// Owner of an object.
enum Belongs {
    /// It is of no file.
    Nowhere,
    /// It is of no file that the MDS knows, but a client that comes back may tell of one.
    Untold,
    Alone,
    /// It is one of several copies, which are looked at together.
    Copy,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    if let Some(server) = &args.online {
        return online::run(server, args.json, args.skip_data);
    }
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

    /// Prints a line per finding.
    fn say_findings(&self, json: bool) {
        for Finding { what, outcome } in &self.findings {
            let repaired = *outcome == Outcome::Repaired;
            let repairable = repaired || *outcome == Outcome::Repairable;
            if json {
                let line = json!({"finding": what, "repaired": repaired, "repairable": repairable});
                crate::say!("{line}");
            } else {
                crate::say!("{what}{}", if repaired { " (repaired)" } else { "" });
            }
        }
    }

    /// Prints what was found, and of a check that failed, why.
    fn say(&self, args: &Args, error: Option<&String>) {
        let Check { findings, namespace, objects, bytes, checked, untold, copies } = self;
        let (all, repaired) = (findings.len(), self.count(Outcome::Repaired));
        self.say_findings(args.json);
        if args.json {
            let mut summary = json!({"objects": objects, "checked": checked, "bytes": bytes,
                "findings": all, "unrepaired": all - repaired});
            if let Some(Namespace { inodes, entries, orphans, elsewhere }) = namespace {
                summary["inodes"] = json!(inodes);
                summary["entries"] = json!(entries);
                summary["orphans"] = json!(orphans);
                summary["elsewhere"] = json!(elsewhere);
                summary["untold"] = json!(untold);
            }
            if let Some(copies) = copies {
                summary["copies"] = copies.clone();
            }
            if let Some(error) = error {
                summary["error"] = json!(error);
            }
            crate::say!("{summary}");
            return;
        }
        if error.is_some() {
            return;
        }
        copies.iter().flat_map(copies::lines).for_each(|line| crate::say!("{line}"));
        let mut text = String::new();
        if let Some(Namespace { inodes, entries, orphans, elsewhere }) = namespace {
            text = format!("{inodes} inodes, {entries} entries, {orphans} orphans, ");
            if *elsewhere > 0 {
                text += &format!("{elsewhere} files with objects on other servers, ");
            }
            if *untold > 0 {
                text += &format!("{untold} objects of which clients may tell that come back, ");
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

    /// Checks a data directory, and those of other servers that were named.
    fn directory(&mut self, path: &Path, args: &Args) -> Result<(), Box<dyn std::error::Error>> {
        let data = DataDir::open(path)?;
        match data.role() {
            // Only the MDS knows which files the objects of an OSS belong to.
            Role::Oss => {
                let servers = Servers::open(data, &args.osses)?;
                self.stores(&servers, args, &mut Progress::new(), |_, _| Belongs::Alone)
            }
            Role::Mds => {
                let options = engine_options(&data, &Settings::default())?;
                let kv = LocalKv::open(&data.mds(), options)?;
                self.file_system(&Servers::open(data, &args.osses)?, args, &kv)
            }
        }
    }

    /// Checks a namespace and its objects.
    fn file_system(
        &mut self,
        servers: &Servers,
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
        let mut copies = Copies::read(kv, servers, args.skip_data)?;
        if copies.is_err() {
            let what = "the table of chains is damaged; copies are not compared";
            self.find(what.to_owned(), Outcome::Left);
        }
        let own = servers.own();
        let is_elsewhere = |extent: &Extent| {
            let mut stripes = 0..extent.layout.stripe_count.max(1);
            stripes.any(|stripe| {
                let target = extent.layout.ost_of(stripe, own);
                !match &copies {
                    Ok(copies) => copies.is_here(target),
                    Err(_) => servers.store(target).is_some(),
                }
            })
        };
        let extents = report.files.iter().filter_map(|(ino, extent)| Some((*ino, (*extent)?)));
        let (elsewhere, here): (Vec<_>, Vec<_>) =
            extents.partition(|(_, extent)| is_elsewhere(extent));
        self.namespace = Some(Namespace {
            inodes: report.inodes,
            entries: report.entries,
            orphans: report.orphans,
            elsewhere: elsewhere.len(),
        });
        let waiting = block_on(glint_mds::objects_to_destroy(kv))?;
        let may_be_told = block_on(glint_mds::clients_to_return(kv))? > 0;
        let mut sizes: HashMap<Ino, u64> = HashMap::new();
        let mut progress = Progress::new();
        self.stores(servers, args, &mut progress, |ost, found| {
            let StoredObject { object, size } = *found;
            let belongs = match report.files.get(&object.ino) {
                Some(Some(extent)) => match extent.layout.stripe_of(object) {
                    Some(stripe) => {
                        let target = extent.layout.ost_of(stripe, own);
                        if let Ok(copies) = &mut copies
                            && copies.add(target, object, (ost, size))
                        {
                            return Belongs::Copy;
                        }
                        // What is left of it on another OST says nothing.
                        if target == ost {
                            let reaches = extent.layout.file_size(stripe, size);
                            let size = sizes.entry(object.ino).or_default();
                            *size = reaches.max(*size);
                        }
                        Belongs::Alone
                    }
                    // The file's data has moved from there, or was to move.
                    None if extent.size.is_some() => Belongs::Nowhere,
                    None => Belongs::Alone,
                },
                Some(None) => Belongs::Alone,
                None if may_be_told => Belongs::Untold,
                None => Belongs::Nowhere,
            };
            match waiting.contains(&object.ino) {
                true => Belongs::Alone,
                false => belongs,
            }
        })?;
        let mut unsure = HashSet::new();
        if let Ok(copies) = &mut copies {
            copies.compare(self, &mut progress);
            self.copies = Some(copies.summary());
            copies.put_right(self, kv, args.repair)?;
            for (object, size) in &copies.sizes {
                let extent = report.files.get(&object.ino).and_then(Option::as_ref);
                let reaches = extent.map_or(0, |extent| size_of_file(extent, *object, *size));
                let size = sizes.entry(object.ino).or_default();
                *size = reaches.max(*size);
            }
            unsure = std::mem::take(&mut copies.unsure);
        }
        let (mut doubted, mut wrong) = (Vec::new(), Vec::new());
        for (ino, extent) in here {
            let Some(size) = extent.size.filter(|_| !unsure.contains(&ino)) else { continue };
            let have = sizes.get(&ino).copied().unwrap_or(0);
            if have != size {
                wrong.push(format!("file {ino} has {size} bytes, its objects {have}; they count"));
                doubted.push(ino);
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

    /// Checks all objects: what each `belongs` to, given its OST, and the data of those that are no
    /// copies.
    fn stores(
        &mut self,
        servers: &Servers,
        args: &Args,
        progress: &mut Progress,
        mut belongs: impl FnMut(u16, &StoredObject) -> Belongs,
    ) -> Result<(), Box<dyn std::error::Error>> {
        for Store { ost, objects: store, .. } in servers.stores() {
            let mut lost = Vec::new();
            let mut kept = Vec::new();
            let mut strays = Vec::new();
            store.walk(
                |found| {
                    self.objects += 1;
                    self.bytes += found.size;
                    let belongs = belongs(*ost, &found);
                    match belongs {
                        Belongs::Nowhere => lost.push(found.object),
                        Belongs::Untold => self.untold += 1,
                        Belongs::Alone | Belongs::Copy => {}
                    }
                    if !args.skip_data && matches!(belongs, Belongs::Alone | Belongs::Untold) {
                        kept.push(found.object);
                    }
                },
                |path| strays.push(path),
            )?;
            for object in lost {
                let what = format!("object {object} on OST {ost} belongs to no file");
                match args.repair.then(|| store.remove(object)) {
                    None => self.find(what, Outcome::Repairable),
                    Some(Ok(())) => self.find(what, Outcome::Repaired),
                    Some(Err(e)) => self.find(format!("{what}; removing it: {e}"), Outcome::Left),
                }
            }
            for (done, object) in kept.iter().enumerate() {
                progress.show(&format!("OST {ost}"), done, kept.len());
                match store.check(*object) {
                    Ok(sums) => self.checked += u64::from(sums.is_some()),
                    Err(error) => {
                        let what = format!(
                            "object {object} on OST {ost}: {error}; restore its file from a backup"
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

/// How far a check is, on a terminal.
struct Progress {
    terminal: bool,
    last: Instant,
}

impl Progress {
    fn new() -> Progress {
        Progress { terminal: std::io::stderr().is_terminal(), last: Instant::now() }
    }

    fn show(&mut self, of_what: &str, done: usize, of: usize) {
        self.tell(|| format!("{of_what}: {done} of {of} objects"));
    }

    fn tell(&mut self, text: impl FnOnce() -> String) {
        if self.terminal && self.last.elapsed() > Duration::from_millis(200) {
            crate::live::show(&format!("\r\x1b[2K{}", text()));
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

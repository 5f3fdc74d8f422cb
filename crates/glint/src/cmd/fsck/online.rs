//! `glint fsck --online`: check of a namespace, and of the objects of its files, while it is
//! served.

mod doubts;
mod objects;

use super::{Check, Finding, Outcome, Progress};
use crate::signals::StopSoon;
use crate::target::{Target, not_reached};
use crate::{CommandResult, control};
use glint_mds::{NamespaceCheck, NamespaceDoubt};
use glint_net::{Address, NamespaceReader};
use glint_proto::Ino;
use glint_proto::limits::CHECKED_RECORDS_MAX;
use glint_proto::message::{NamespacePage, NamespaceQuery};
use serde_json::json;
use std::cell::RefCell;
use std::collections::HashSet;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time between the inodes and the entries: changes of one pass of the server have one ctime, and a
/// pass must not be seen in part.
const PAUSE: Duration = Duration::from_secs(1);
/// How often it is looked meanwhile whether somebody ends the command.
const LOOK: Duration = Duration::from_millis(20);
/// Records after which a second look is asked for. A name or an inode needs a few, a cycle more.
const LOOKS: usize = CHECKED_RECORDS_MAX / 2;

/// A namespace, and how far its check is.
struct OnlineCheck {
    source: NamespaceSource,
    reader: RefCell<NamespaceReader>,
    stop: StopSoon,
    progress: Progress,
    found: Check,
    inodes: usize,
    entries: usize,
    /// Files that are open, or wait for their removal, and have no name.
    orphans: usize,
    objects: usize,
    /// Objects of which nobody can say whose they are.
    untold: usize,
    /// Objects with copies whose contents could not be compared, as one has no checksums.
    unsealed: usize,
}

/// Where parts of the namespace, or lists of objects, come from.
enum NamespaceSource {
    /// A server with an MDS, or one of OSTs.
    Server(Address),
    /// The process behind a mount, which asks its server.
    Mount(PathBuf),
}

impl NamespaceSource {
    fn of(target: &Target) -> Result<NamespaceSource, String> {
        match target {
            Target::Mount(path) => Ok(NamespaceSource::Mount(path.clone())),
            Target::Server(address) | Target::Oss(address) => {
                let exact = crate::identity::exact(address);
                let exact = exact.map_err(|why| format!("server {address}: {why}"))?;
                Ok(NamespaceSource::Server(exact))
            }
        }
    }

    /// Asks for one part.
    fn page(
        &self,
        reader: &RefCell<NamespaceReader>,
        query: NamespaceQuery,
    ) -> Result<NamespacePage, String> {
        match self {
            NamespaceSource::Server(address) => {
                let page = reader.borrow_mut().page(address, query);
                page.map_err(|error| not_reached(address, &error))
            }
            NamespaceSource::Mount(path) => {
                let page = control::namespace_page(path, &query);
                page.unwrap_or_else(|| Err(not_answered(path)))
            }
        }
    }
}

/// Why nobody answers for a mount, and what to do.
fn not_answered(mount: &Path) -> String {
    format!(
        "nobody answers for the mount at {}: run this as the user who mounted it, or say the \
         server with the MDS: HOST or HOST:PORT, or on this host its socket or its data directory",
        mount.display()
    )
}

/// Runs the command on the server or the mount that `said` names, and looks at objects unless these
/// are left alone.
pub(super) fn run(said: &str, json: bool, skips_data: bool) -> CommandResult {
    let target = Target::find(Some(said))?;
    let mut check = OnlineCheck {
        source: NamespaceSource::of(&target)?,
        reader: RefCell::default(),
        stop: StopSoon::listen()?,
        progress: Progress::new(),
        found: Check::default(),
        inodes: 0,
        entries: 0,
        orphans: 0,
        objects: 0,
        untold: 0,
        unsealed: 0,
    };
    let ended = check.namespace().and_then(|()| match skips_data {
        true => Ok(()),
        false => check.compare_objects(&target),
    });
    let ended = ended.map_err(|error| error.to_string());
    check.progress.end();
    check.say((json, skips_data), ended.as_ref().err());
    ended?;
    Ok(ExitCode::from(check.found.exit_code()))
}

impl OnlineCheck {
    /// Checks the namespace, and once more if something was found: a client's clock may give two
    /// changes of an inode one time, so that the second one is not seen. Not twice in a row.
    fn namespace(&mut self) -> Result<(), Box<dyn Error>> {
        let first = self.pass()?;
        if first.is_empty() {
            return Ok(());
        }
        let again: HashSet<String> = self.pass()?.into_iter().map(|one| one.what).collect();
        let both = first.into_iter().filter(|one| again.contains(&one.what));
        self.found.findings.extend(both);
        Ok(())
    }

    /// Reads all inodes and all entries, and looks again at what seems wrong.
    fn pass(&mut self) -> Result<Vec<Finding>, Box<dyn Error>> {
        (self.inodes, self.entries, self.orphans) = (0, 0, 0);
        let mut check = NamespaceCheck::default();
        let mut found = Vec::new();
        self.ask(NamespaceQuery::Inodes(Ino(0)), |this, page| {
            this.inodes += page.inodes.len();
            for fact in page.inodes {
                this.orphans += usize::from(fact.links == 0);
                check.inode(fact);
            }
            found.extend(page.damaged.into_iter().map(damage));
            page.next
        })?;
        self.pause(PAUSE)?;
        self.ask(NamespaceQuery::Entries(Vec::new()), |this, page| {
            this.entries += page.entries.len();
            for fact in page.entries {
                check.entry(fact);
            }
            found.extend(page.damaged.into_iter().map(damage));
            page.next
        })?;
        let doubts = check.end();
        let Some((first, mut until)) = second_look(&doubts, 0) else { return Ok(found) };
        let mut from = 0;
        self.ask(first, |_, page| {
            let inodes = page.inodes.into_iter().map(|fact| (fact.ino, fact)).collect();
            let entries = page.entries.into_iter().collect();
            for doubt in &doubts[from..until] {
                if doubt.is_confirmed(&inodes, &entries) {
                    found.push(Finding { what: doubt.to_string(), outcome: outcome(doubt) });
                }
            }
            let (next, its_end) = second_look(&doubts, until)?;
            (from, until) = (until, its_end);
            Some(next)
        })?;
        Ok(found)
    }

    /// Asks for one part of the namespace after another, until `next` names none or somebody ends
    /// the command.
    fn ask(
        &mut self,
        first: NamespaceQuery,
        mut next: impl FnMut(&mut OnlineCheck, NamespacePage) -> Option<NamespaceQuery>,
    ) -> Result<(), Box<dyn Error>> {
        let mut query = Some(first);
        while let Some(asked) = query {
            let page = self.source.page(&self.reader, asked)?;
            self.unless_ended()?;
            query = next(self, page);
            let (inodes, entries) = (self.inodes, self.entries);
            self.progress.tell(|| format!("{inodes} inodes, {entries} entries"));
        }
        Ok(())
    }

    /// Waits before what is looked at next, unless somebody ends the command.
    fn pause(&self, time: Duration) -> Result<(), Box<dyn Error>> {
        let begun = Instant::now();
        while begun.elapsed() < time && !self.stop.is_asked() {
            std::thread::sleep(LOOK);
        }
        self.unless_ended()
    }

    /// Fails if somebody ends the command.
    fn unless_ended(&self) -> Result<(), Box<dyn Error>> {
        match self.stop.is_asked() {
            true => Err("ended before all was checked".into()),
            false => Ok(()),
        }
    }

    /// Prints what was found, and of a check that failed, why.
    fn say(&self, (json, skips_data): (bool, bool), error: Option<&String>) {
        self.found.say_findings(json);
        let OnlineCheck { inodes, entries, orphans, objects, untold, unsealed, .. } = self;
        let all = self.found.findings.len();
        if json {
            let mut summary = json!({"inodes": inodes, "entries": entries, "orphans": orphans,
                "findings": all, "unrepaired": all});
            if !skips_data {
                summary["objects"] = json!(objects);
                summary["untold"] = json!(untold);
                summary["unsealed"] = json!(unsealed);
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
        let result = self.found.result_online();
        let mut text = format!("{inodes} inodes, {entries} entries, {orphans} orphans");
        if !skips_data {
            text += &format!(", {objects} objects");
        }
        if *untold > 0 {
            text += &format!(" ({untold} being removed, or of files that clients may tell of)");
        }
        if *unsealed > 0 {
            text += &format!(", copies of {unsealed} without checksums yet compared in size alone");
        }
        crate::say!("{text}: {result}");
    }
}

impl Check {
    /// Says what the findings are, and how they are put right without a loss.
    fn result_online(&self) -> String {
        let (all, repairable) = (self.findings.len(), self.count(Outcome::Repairable));
        let mut result = match (all, repairable) {
            (0, _) => "sound".to_owned(),
            (n, 0) => format!("{n} findings, {n} that --repair cannot put right"),
            (n, m) => format!(
                "{n} findings; `glint fsck --repair` puts {m} of them right when all servers are \
                 stopped (copies with the directories of all: `--repair DIR --oss DIR…`)"
            ),
        };
        let cut = self.count(Outcome::EndLost);
        if cut > 0 {
            result += &format!(
                "; {cut} files have lost their end: restore those files first, --repair would cut \
                 them"
            );
        }
        result
    }
}

/// A record that cannot be read, which the offline check removes.
fn damage(what: String) -> Finding {
    Finding { what, outcome: Outcome::Repairable }
}

/// Whether the offline check puts it right.
fn outcome(doubt: &NamespaceDoubt) -> Outcome {
    match doubt {
        NamespaceDoubt::Cycle(_) | NamespaceDoubt::NoTarget(..) => Outcome::Left,
        _ => Outcome::Repairable,
    }
}

/// The second look at some of these, from one on; and which is the first that it does not see.
/// `None` if all were looked at.
fn second_look(doubts: &[NamespaceDoubt], from: usize) -> Option<(NamespaceQuery, usize)> {
    let (mut inodes, mut entries, mut until) = (Vec::new(), Vec::new(), from);
    for doubt in doubts.iter().skip(from) {
        if inodes.len() + entries.len() >= LOOKS {
            break;
        }
        let (its_inodes, its_entries) = doubt.looks();
        inodes.extend(its_inodes);
        entries.extend(its_entries);
        until += 1;
    }
    (until > from).then_some((NamespaceQuery::Again { inodes, entries }, until))
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::message::InodeFact;
    use glint_proto::{FileType, Timestamp};

    #[test]
    fn repair_is_not_advised_before_files_are_restored_that_it_would_cut() {
        use Outcome::{EndLost, Left, Repairable};
        let result = |outcomes: &[Outcome]| {
            let finding = |outcome: &Outcome| Finding { what: String::new(), outcome: *outcome };
            let findings = outcomes.iter().map(finding).collect();
            Check { findings, ..Check::default() }.result_online()
        };
        assert_eq!(result(&[]), "sound");
        assert!(!result(&[Left, Repairable]).contains("restore"));
        for cut in [&[EndLost][..], &[EndLost, Repairable]] {
            let said = result(cut);
            assert!(said.contains("; 1 files have lost their end: restore those"), "{said}");
        }
    }

    #[test]
    fn all_doubts_are_looked_at_and_no_look_is_too_large() {
        let fact = |ino: u64| InodeFact {
            ino: Ino(ino),
            kind: FileType::Directory,
            links: 2,
            parent: Ino::ROOT,
            ctime: Timestamp { secs: 1, nanos: 0 },
            missing_target: None,
        };
        let cycle = NamespaceDoubt::Cycle((0..1000).map(fact).collect());
        let mut doubts: Vec<NamespaceDoubt> =
            (2..3000).map(|ino| NamespaceDoubt::NoName(fact(ino))).collect();
        doubts.extend((0..20).map(|_| cycle.clone()));
        let mut from = 0;
        while let Some((query, until)) = second_look(&doubts, from) {
            let NamespaceQuery::Again { inodes, entries } = query else { panic!("no look") };
            assert!((1..=CHECKED_RECORDS_MAX).contains(&inodes.len()) && entries.is_empty());
            from = until;
        }
        assert_eq!(from, doubts.len());
    }
}

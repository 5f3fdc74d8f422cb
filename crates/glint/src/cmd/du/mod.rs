//! `glint du`: du(1) on the servers themselves, many directories at once.

mod listing;
mod options;
mod report;
mod sum;
mod threshold;
mod walk;

pub(crate) use options::Args;

use super::tree::{NoPlace, Place, Tree, until_stopped};
use crate::CommandResult;
use glint_proto::{Attr, Errno};
use report::DuReport;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use sum::Sum;
use walk::{DuCall, Refused, SeenInodes, SumSink, walk};

/// A file system, and its inodes that count once.
struct FileSystem {
    tree: Tree,
    seen: SeenInodes,
}

/// A starting point that was found.
struct Start {
    address: String,
    path: Vec<u8>,
    attr: Attr,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let (call, style) = args.understood()?;
    let report = DuReport::new(style);
    let walk = sum_up(&call, args.starts(), &report, args.has_total());
    let stop = until_stopped(walk)?;
    // Lines that are done are right, if not all are there.
    report.console.flush();
    stop.end_if_asked();
    report.console.end_if_lost();
    Ok(ExitCode::from(report.console.status()))
}

async fn sum_up(call: &DuCall, starts: &[OsString], report: &DuReport, has_total: bool) {
    // Of those that are not reached there is none: the other starting points are looked at.
    let mut systems: HashMap<String, Option<FileSystem>> = HashMap::new();
    let mut found = Vec::new();
    // All are looked up first: one may lead to another.
    for said in starts {
        found.extend(find(said, &mut systems, report).await);
    }
    let mut total = Sum::default();
    for Start { address, path, attr } in found {
        let Some(Some(FileSystem { tree, seen })) = systems.get_mut(&address) else { continue };
        walk(call, (&*tree, report), (&path, &attr), seen, &mut total).await;
    }
    if has_total {
        report.total(&total);
    }
}

async fn find(
    said: &OsStr,
    systems: &mut HashMap<String, Option<FileSystem>>,
    report: &DuReport,
) -> Option<Start> {
    let path = trimmed(said.as_bytes()).to_vec();
    if path.is_empty() {
        report.fail(Refused::Access, b"", Errno::ENOENT);
        return None;
    }
    let tell_missing = |why| match why {
        NoPlace::Refused(error) => report.fail(Refused::Access, &path, error),
        NoPlace::Told(why) => report.say(&why),
    };
    let place = Place::find(said).map_err(tell_missing).ok()?;
    let system = systems.entry(place.address.clone()).or_insert_with(|| {
        let tree = Tree::connect(&place.address, "du").map_err(|why| report.say(&why)).ok()?;
        Some(FileSystem { tree, seen: SeenInodes::default() })
    });
    let FileSystem { tree, seen } = system.as_mut()?;
    let (attr, _) = tree.resolve(&place).await.map_err(tell_missing).ok()?;
    seen.starts.insert(attr.ino);
    Some(Start { address: place.address, path, attr })
}

/// A starting point as du(1) prints it: with one slash at its end, where more were said.
fn trimmed(path: &[u8]) -> &[u8] {
    let mut path = path;
    while path.len() > 2 && path.ends_with(b"//") {
        path = &path[..path.len() - 1];
    }
    path
}

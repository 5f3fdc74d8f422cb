//! `glint ls`: ls(1) on the servers themselves, many directories at once.

mod entry;
mod line;
mod options;
mod quote;
mod time;
mod walk;

pub(crate) use options::Args;

use super::tree::{NoPlace, Place, Tree, until_stopped};
use crate::CommandResult;
use entry::{LsCall, LsDirectory, LsEntry, Shown};
use futures_util::StreamExt;
use glint_client::ScannedEntry;
use glint_proto::{Attr, Errno, FileType, Ino, Layout, Timestamp};
use line::LinePrinter;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use walk::{LsOutput, SERIOUS};

/// Exit code if the words of a call cannot be understood.
pub(crate) const USAGE: u8 = SERIOUS;

/// Paths of the command line that are looked up at once.
const LOOKUPS_AT_ONCE: usize = 16;

/// A path of the command line, and the server that has it.
struct Said<'a> {
    said: &'a OsStr,
    place: Place,
}

/// A path of the command line that was found.
struct Found<'a> {
    said: &'a OsStr,
    address: String,
    attr: Attr,
    entry: LsEntry,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let call = args.call();
    let mut output = LsOutput::new(LinePrinter::new(args.style()?));
    let here = [OsString::from(".")];
    let paths = if args.paths.is_empty() { &here[..] } else { &args.paths };
    let stop = until_stopped(list(&call, paths, &mut output))?;
    // Lines that are done are right, if not all are there.
    output.console.flush();
    stop.end_if_asked();
    output.console.end_if_lost();
    Ok(ExitCode::from(output.console.status()))
}

async fn list(call: &LsCall, paths: &[OsString], output: &mut LsOutput) {
    // Of those that are not reached there is none: the other paths are looked at.
    let mut trees: HashMap<String, Option<Tree>> = HashMap::new();
    let mut said = Vec::new();
    for path in paths {
        if path.is_empty() {
            output.fail(SERIOUS, "cannot access", b"", Errno::ENOENT);
            continue;
        }
        let place = match Place::find(path) {
            Ok(place) => place,
            Err(why) => {
                tell_missing(path, why, output);
                continue;
            }
        };
        trees.entry(place.address.clone()).or_insert_with(|| {
            let tree = Tree::connect(&place.address, "ls");
            tree.map_err(|why| output.console.say(SERIOUS, &why)).ok()
        });
        said.push(Said { said: path, place });
    }
    let lookups = said.into_iter().filter_map(|Said { said, place }| {
        let tree = trees.get(&place.address)?.as_ref()?;
        Some(async move { (said, find(call, tree, said, place).await) })
    });
    let mut looked_up = futures_util::stream::iter(lookups).buffered(LOOKUPS_AT_ONCE);
    let mut found = Vec::new();
    while let Some((said, result)) = looked_up.next().await {
        match result {
            Ok(one) => found.push(one),
            Err(why) => tell_missing(said, why, output),
        }
    }
    drop(looked_up);
    call.sort(&mut found, |found| &found.entry);
    let lists = |entry: &LsEntry| entry.is_dir() && !call.directories_as_files;
    let has_files = found.iter().any(|found| !lists(&found.entry));
    let has_directories = found.iter().any(|found| lists(&found.entry));
    if has_files {
        for one in &found {
            output.complain(b".", std::slice::from_ref(&one.entry));
        }
        let mut out = Vec::new();
        let all = found.iter().map(|found| &found.entry);
        output.lines.entries(None, all, |entry| !lists(entry), &mut out);
        if has_directories && !output.lines.style.json {
            out.push(b'\n');
        }
        output.console.put(&out);
    }
    output.has_headers = call.recursive || has_files || paths.len() > 1;
    let mut directories = found.into_iter().filter(|found| lists(&found.entry)).peekable();
    while let Some(first) = directories.next() {
        let Some(Some(tree)) = trees.get(&first.address) else { continue };
        let mut same = vec![first];
        while let Some(next) = directories.next_if(|next| next.address == same[0].address) {
            same.push(next);
        }
        let mut shown = Shown { call, source: tree, outside: HashMap::new() };
        let mut starts = Vec::with_capacity(same.len());
        for Found { said, attr, .. } in same {
            shown.outside.extend(outside(said, &attr, tree).map(|outside| (attr.ino, outside)));
            starts.push(LsDirectory::new(said.as_bytes(), None, &attr, true));
        }
        walk::walk(&shown, starts, output).await;
    }
}

/// Tells of a path of the command line that was not found.
fn tell_missing(said: &OsStr, why: NoPlace, output: &LsOutput) {
    match why {
        NoPlace::Refused(error) => output.fail(SERIOUS, "cannot access", said.as_bytes(), error),
        NoPlace::Told(why) => output.console.say(SERIOUS, &why),
    }
}

/// Looks a path of the command line up.
async fn find<'a>(
    call: &LsCall,
    tree: &Tree,
    said: &'a OsStr,
    place: Place,
) -> Result<Found<'a>, NoPlace> {
    let (mut attr, mut parent) = tree.resolve(&place).await?;
    let is_link = FileType::from_mode(attr.mode) == Some(FileType::Symlink);
    if is_link && call.follows_links {
        // It stands for a directory if it leads to one, and else for itself.
        let mut slashed = said.to_owned();
        slashed.push("/");
        let through = Place::find(&slashed).ok().filter(|through| through.address == place.address);
        if let Some(through) = through {
            match tree.resolve(&through).await {
                Ok(led) => (attr, parent) = led,
                Err(why @ NoPlace::Refused(Errno::EACCES)) => return Err(why),
                Err(_) => {}
            }
        }
    }
    let (name, ino, kind) = (said.as_bytes().to_vec(), attr.ino, FileType::from_mode(attr.mode));
    let mut entry = LsEntry::new(call, ScannedEntry { name, ino, kind, attr: Ok(attr.clone()) });
    entry.complete(call, tree, parent.unwrap_or(Ino(0))).await;
    Ok(Found { said, address: place.address, attr, entry })
}

/// Attributes of the directory above a path, if that is the root of the file system: a mount shows
/// there what it is mounted in.
fn outside(said: &OsStr, attr: &Attr, tree: &Tree) -> Option<Attr> {
    let is_in_mount = || Place::find(said).is_ok_and(|place| place.is_in_mount());
    if attr.ino != tree.root() || !is_in_mount() {
        return None;
    }
    let above = std::path::Path::new(said).join("..");
    std::fs::metadata(above).ok().as_ref().map(attr_of)
}

fn attr_of(metadata: &Metadata) -> Attr {
    let time =
        |secs, nanos: i64| Timestamp { secs, nanos: u32::try_from(nanos).unwrap_or_default() };
    Attr {
        ino: Ino(metadata.ino()),
        mode: metadata.mode(),
        nlink: metadata.nlink() as u32,
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: metadata.rdev() as u32,
        size: metadata.size(),
        blocks: metadata.blocks(),
        atime: time(metadata.atime(), metadata.atime_nsec()),
        mtime: time(metadata.mtime(), metadata.mtime_nsec()),
        ctime: time(metadata.ctime(), metadata.ctime_nsec()),
        size_on_ost: false,
        has_no_xattrs: true,
        layout: Layout::default(),
    }
}

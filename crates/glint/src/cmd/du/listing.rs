//! Entries of directories as the walk of du(1) keeps them.

use super::sum::Sum;
use super::walk::DuCall;
use crate::cmd::tree::c_library::Pattern;
use crate::cmd::tree::{FoundPage, Keep, KeptEntry, TreeDirectory, push_name};
use glint_client::ScannedEntry;
use glint_proto::{FsResult, Ino};
use std::collections::HashSet;
use std::rc::Rc;

pub(super) type DuDirectory = TreeDirectory<DuEntry>;

/// An entry of a directory.
pub(super) struct DuEntry {
    pub(super) name: Vec<u8>,
    pub(super) ino: Ino,
    pub(super) links: u32,
    /// What it takes by itself, or why that is not known.
    pub(super) sum: FsResult<Sum>,
    /// Of a directory.
    pub(super) node: Option<Rc<DuDirectory>>,
}

impl KeptEntry for DuEntry {
    const WHOLE: bool = false;

    fn below(&mut self) -> &mut Option<Rc<DuDirectory>> {
        &mut self.node
    }
}

/// Entries that are counted.
pub(super) struct Counted<'a> {
    pub(super) call: &'a DuCall,
    /// Starting points that were walked over before.
    pub(super) passed: HashSet<Ino>,
}

impl Keep for Counted<'_> {
    type Entry = DuEntry;

    async fn keep(&self, directory: &Rc<DuDirectory>, page: FoundPage) -> Vec<DuEntry> {
        let mut path = if self.call.excludes.is_empty() { Vec::new() } else { directory.path() };
        let len = path.len();
        let mut all = Vec::with_capacity(page.entries.len());
        for ScannedEntry { name, ino, attr, .. } in page.entries {
            if !self.call.excludes.is_empty() {
                path.truncate(len);
                push_name(&mut path, &name);
                if is_excluded(&self.call.excludes, &path) {
                    continue;
                }
            }
            all.push(match attr {
                // Counted with the starting point that it is.
                Ok(attr) if attr.is_dir() && self.passed.contains(&ino) => continue,
                Ok(attr) => {
                    let node = attr.is_dir();
                    let node = node.then(|| DuDirectory::new(&name, Some(directory), &attr, false));
                    let sum = Ok(Sum::of(&attr, self.call.time));
                    DuEntry { name, ino, links: attr.nlink, sum, node }
                }
                Err(error) => DuEntry { name, ino, links: 1, sum: Err(error), node: None },
            });
        }
        all
    }
}

/// Whether a path, or a part of it after a slash, matches one of the patterns.
pub(super) fn is_excluded(patterns: &[Pattern], path: &[u8]) -> bool {
    let tails = path.windows(2).enumerate();
    let tails = tails.filter(|(_, pair)| pair[0] == b'/' && pair[1] != b'/').map(|(at, _)| at + 1);
    let starts: Vec<usize> = if patterns.is_empty() { Vec::new() } else { tails.collect() };
    patterns.iter().any(|pattern| {
        pattern.matches(path) || starts.iter().any(|start| pattern.matches(&path[*start..]))
    })
}

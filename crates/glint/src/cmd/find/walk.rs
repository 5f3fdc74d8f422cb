//! The walk over a tree: many directories are listed with one request, and some requests are under
//! way at once. A directory comes before what is in it, or after all of it.
//!
//! Memory is bounded by the directories that were found and not listed yet, and by those that they
//! are in: those found last are listed first, so that they are those along some paths, and not all
//! of a level. Each has its own name and shares the rest of its path with its siblings; whole paths
//! are there only for the directories that are being listed.

mod delete;
mod directory;
mod facts;
mod filter;

use super::action::{self, Action, Gathered};
use super::entry::{Entry, Facts, Missing, join};
use super::expression::FindCall;
use super::test::Applied;
use crate::cmd::tree::{Names, Searched, Source};
use directory::Directory;
use facts::Learnt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use glint_client::{ScannedEntry, ScannedPage};
use glint_proto::posix::ScanFilter;
use glint_proto::{Attr, Errno, FileType, FsResult, Ino};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

/// Requests that are under way at once.
const REQUESTS_AT_ONCE: usize = 4;
/// Directories that a request lists.
const DIRECTORIES_PER_REQUEST: usize = 64;

/// Where the walk leaves what it found.
pub(super) trait Sink {
    /// Takes what is printed, which may be written later.
    fn print(&self, bytes: &[u8]);
    /// Writes what was printed.
    fn flush(&self);
    /// Whether nothing more is to be done: an end was asked for, or something that was printed is lost.
    fn is_over(&self) -> bool {
        false
    }
    /// The walk has come to so many files more.
    fn came_to(&self, files: usize);
    /// Tells why a path could not be looked at.
    fn fail(&self, path: &[u8], error: Errno);
    /// Tells why a command could not be run, or a file not be deleted.
    fn tell(&self, why: &str);
    /// Notes that not all went well.
    fn note_failure(&self);
}

/// A directory to list, and the cookie to go on after.
type ToList = (Rc<Directory>, u64);

/// Directories that were asked for, and pages of the first of them.
type Listed = (Vec<ToList>, Vec<FsResult<ScannedPage>>);

/// A walk.
pub(super) struct Walk<'a, S, O> {
    call: &'a FindCall,
    source: &'a S,
    sink: &'a O,
    /// Directories to list, each after a cookie.
    found: RefCell<Vec<ToList>>,
    searched: Searched,
    names: Names,
    /// Paths for commands that take many, by the numbers of their actions.
    gathered: RefCell<BTreeMap<usize, Gathered>>,
    /// Files with other names of which -delete has removed one.
    removed_links: RefCell<HashSet<Ino>>,
    quit: Cell<bool>,
    /// What the expression does nothing with, and need not be listed.
    filter: Option<ScanFilter>,
}

impl<'a, S: Source, O: Sink> Walk<'a, S, O> {
    pub(super) fn new(call: &'a FindCall, source: &'a S, sink: &'a O) -> Walk<'a, S, O> {
        let (found, searched, names) = (RefCell::default(), Searched::default(), Names::default());
        let (gathered, removed_links) = (RefCell::default(), RefCell::default());
        let (quit, filter) = (Cell::new(false), filter::of(&call.expression));
        Walk { call, source, sink, found, searched, names, gathered, removed_links, quit, filter }
    }

    /// Walks over all that is at and below a starting point, which has its name in `parent`. Returns
    /// whether to go on with others.
    pub(super) async fn run(&self, path: &[u8], attr: Attr, parent: Option<Ino>) -> bool {
        let (path, start, ino) = (path.to_vec(), path.len(), attr.ino);
        let facts = Facts::default();
        let start = Entry { path, start, depth: 0, ino, parent, kind: None, attr: Ok(attr), facts };
        self.come_to(start, None).await;
        let mut requests = FuturesUnordered::new();
        loop {
            while requests.len() < REQUESTS_AT_ONCE && !self.quit.get() {
                let directories = self.to_list();
                if directories.is_empty() {
                    break;
                }
                requests.push(self.list(directories));
            }
            let Some((directories, pages)) = requests.next().await else { break };
            self.look_at_pages(directories, pages).await;
            if self.quit.get() {
                break;
            }
        }
        drop(requests);
        self.sink.flush();
        if self.sink.is_over() {
            return false;
        }
        let left = std::mem::take(&mut *self.gathered.borrow_mut());
        for (action, paths) in left {
            self.run_with_many(action, paths).await;
        }
        !self.quit.get()
    }

    /// Looks at a file, and notes a directory to be listed.
    async fn come_to(&self, entry: Entry, parent: Option<&Rc<Directory>>) {
        let is_directory = entry.kind() == Ok(Some(FileType::Directory));
        let descends = is_directory && entry.depth < self.call.depth_max;
        if self.call.contents_first && descends {
            return self.note(entry, parent);
        }
        let (pruned, entry) = self.look_at(entry).await;
        if descends && !pruned {
            self.note(entry, parent);
        }
    }

    fn note(&self, entry: Entry, parent: Option<&Rc<Directory>>) {
        let directory = Directory::new(entry, parent, self.call.contents_first);
        self.found.borrow_mut().extend(directory.map(|directory| (Rc::new(directory), 0)));
    }

    /// Applies the expression to a file; returns whether it pruned it.
    async fn look_at(&self, mut entry: Entry) -> (bool, Entry) {
        if entry.depth < self.call.depth_min || self.quit.get() {
            return (false, entry);
        }
        let outcome = loop {
            let mut outcome = Applied::default();
            let Err(missing) = self.call.expression.apply(&entry, &self.names, &mut outcome) else {
                break outcome;
            };
            // Nothing is done with a file of which it is not known whether the expression holds, nor with
            // what is in a directory that it may be meant to pass over.
            if let Missing::Name(error) = missing {
                let what = b"cannot look up the name of the owner or group of '";
                self.sink.fail(&[what, &entry.path[..], b"'"].concat(), error);
                return (self.call.expression.may_prune(), entry);
            }
            if let Missing::Action(action) = missing {
                self.print(&mut entry, &outcome);
                self.sink.flush();
                if self.sink.is_over() {
                    self.quit.set(true);
                    return (false, entry);
                }
                let ended_well = self.take(&entry, action).await;
                entry.facts.taken.push((action, ended_well));
                continue;
            }
            if entry.facts.refused {
                return (self.call.expression.may_prune(), entry);
            }
            self.ask_or_tell(&mut entry, missing).await;
        };
        if let (true, Err(error), Some(_)) = (outcome.refused, &entry.attr, entry.kind) {
            self.sink.fail(&entry.path, *error);
        }
        self.print(&mut entry, &outcome);
        if outcome.quit {
            self.quit.set(true);
        }
        (outcome.pruned, entry)
    }

    /// Leaves what is printed for a file and was not yet.
    fn print(&self, entry: &mut Entry, outcome: &Applied) {
        let before = std::mem::replace(&mut entry.facts.printed, outcome.printed.len());
        // Names of users may have changed meanwhile, and be shorter.
        let new = outcome.printed.get(before..).unwrap_or_default();
        self.sink.print(new);
    }

    /// Takes an action; returns whether it ended well.
    async fn take(&self, entry: &Entry, action: usize) -> bool {
        match &self.call.actions[action] {
            Action::Delete => self.take_delete(entry, action).await,
            Action::Run(words) => {
                let run = action::run(words, &entry.path).await;
                run.map_err(|why| self.sink.tell(&why)).unwrap_or(false)
            }
            Action::RunWithMany(_) => {
                let full = {
                    let mut all = self.gathered.borrow_mut();
                    let gathered = all.entry(action).or_default();
                    gathered.push(&entry.path);
                    gathered.is_full().then(|| std::mem::take(gathered))
                };
                if let Some(paths) = full {
                    self.run_with_many(action, paths).await;
                }
                true
            }
        }
    }

    async fn run_with_many(&self, action: usize, paths: Gathered) {
        let Action::RunWithMany(words) = &self.call.actions[action] else { return };
        let run = action::run_with_many(words, paths).await;
        // Unlike a command for one file, of which the expression knows how it ended.
        if !run.map_err(|why| self.sink.tell(&why)).unwrap_or(false) {
            self.sink.note_failure();
        }
    }

    /// Takes some of the directories that were found, those found last first.
    fn to_list(&self) -> Vec<ToList> {
        let mut found = self.found.borrow_mut();
        let share = found.len().div_ceil(REQUESTS_AT_ONCE).min(DIRECTORIES_PER_REQUEST);
        let from = found.len() - share;
        let mut directories = found.split_off(from);
        directories.reverse();
        directories
    }

    /// Asks for the contents of directories.
    async fn list(&self, directories: Vec<ToList>) -> Listed {
        let asked: Vec<(Ino, u64)> =
            directories.iter().map(|(directory, cookie)| (directory.ino, *cookie)).collect();
        let pages = match self.source.scan_for(&asked, self.filter.as_ref()).await {
            Ok(pages) => pages,
            Err(error) => asked.iter().map(|_| Err(error)).collect(),
        };
        (directories, pages)
    }

    /// Looks at what is in directories, and notes those that are not listed to their end.
    async fn look_at_pages(&self, directories: Vec<ToList>, pages: Vec<FsResult<ScannedPage>>) {
        let (mut directories, mut pages) = (directories.into_iter(), pages.into_iter());
        let answered: Vec<_> = directories.by_ref().zip(pages.by_ref()).collect();
        // They are listed after what is found now.
        self.found.borrow_mut().extend(directories.rev());
        let listings: Vec<(&Rc<Directory>, &[ScannedEntry])> = answered
            .iter()
            .filter_map(|((directory, _), page)| {
                Some((directory, &page.as_ref().ok()?.entries[..]))
            })
            .collect();
        let mut learnt = self.learn(&listings).await.into_iter();
        for ((directory, _), page) in answered {
            let (path, start) = directory.path();
            let next = match page {
                Ok(ScannedPage { entries, next }) => {
                    self.found.borrow_mut().extend(next.map(|next| (directory.clone(), next)));
                    let learnt = learnt.next().unwrap_or_default();
                    let files = entries.len();
                    self.look_at_names(&directory, (entries, learnt), &path, start).await;
                    self.sink.came_to(files);
                    next
                }
                Err(error) => {
                    self.sink.fail(&path, error);
                    None
                }
            };
            if self.quit.get() {
                return;
            }
            if self.call.contents_first && next.is_none() {
                self.finish(directory).await;
            }
        }
    }

    /// Finds out whether a directory, which has this name, may be searched.
    async fn may_search(&self, directory: &Directory, name: &[u8]) -> bool {
        self.searched.may_search(self.source, directory.ino, directory.class, name).await
    }

    async fn look_at_names(
        &self,
        directory: &Rc<Directory>,
        (entries, mut learnt): (Vec<ScannedEntry>, Learnt),
        path: &[u8],
        start: usize,
    ) {
        let mut may_search = learnt.may_search;
        for (at, named) in entries.into_iter().enumerate() {
            if self.quit.get() {
                return;
            }
            let may_search = match may_search {
                Some(may_search) => may_search,
                None => *may_search.insert(self.may_search(directory, &named.name).await),
            };
            let path = join(path, &named.name);
            let mut entry = self.entry(directory, named, may_search, path, start);
            entry.facts = learnt.take(at);
            self.come_to(entry, Some(directory)).await;
        }
    }

    /// Makes an entry of a name in a directory.
    fn entry(
        &self,
        directory: &Directory,
        named: ScannedEntry,
        may_search: bool,
        path: Vec<u8>,
        start: usize,
    ) -> Entry {
        let ScannedEntry { ino, mut kind, attr, .. } = named;
        let attr = if may_search { attr } else { Err(Errno::EACCES) };
        if let (Err(error), Some(FileType::Directory) | None) = (&attr, kind) {
            // find(1) looks at every directory, and does not take it for one if that fails. Of an entry
            // without a type this has been told.
            self.sink.fail(&path, *error);
            kind = None;
        }
        let (depth, parent) = (directory.depth + 1, Some(directory.ino));
        Entry { path, start, depth, ino, parent, kind, attr, facts: Facts::default() }
    }

    /// Notes that a directory was listed, and looks at those of which all is done by that.
    async fn finish(&self, directory: Rc<Directory>) {
        let mut next = Some(directory);
        while let Some(directory) = next {
            if !directory.is_done() {
                return;
            }
            if let Some(entry) = directory.entry() {
                self.look_at(entry).await;
            }
            next = directory.parent();
        }
    }
}

#[cfg(test)]
mod tests;

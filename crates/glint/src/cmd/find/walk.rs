//! The walk over a tree: many directories are listed at once, each with the attributes of what is
//! in it. A directory comes before what is in it, or after all of it.
//!
//! Memory is bounded by the directories that were found and not listed yet, and by those that they
//! are in: those found last are listed first, so that they are those along some paths, and not all
//! of a level. Each has its own name and shares the rest of its path with its siblings; whole paths
//! are there only for the directories that are being listed.

mod directory;

use super::entry::{Entry, Facts, Missing, join};
use super::expression::FindCall;
use super::test::Applied;
use directory::{Class, Directory};
use futures_util::stream::{FuturesUnordered, StreamExt};
use glint_proto::{Attr, Errno, FileType, FsResult, Ino};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// Directories that are listed at once.
const LISTED_AT_ONCE: usize = 32;
/// Bytes that are kept until they are written.
const OUTPUT_BYTES: usize = 64 << 10;

/// A name in a directory.
pub(super) struct Named {
    pub(super) name: Vec<u8>,
    pub(super) ino: Ino,
    pub(super) kind: Option<FileType>,
    /// `None` if it has to be asked for: another client may be changing it, or it went away.
    pub(super) attr: Option<Attr>,
}

/// Where the walk takes what it shows.
pub(super) trait Source {
    /// A directory that is being listed.
    type Listing;
    async fn open(&self, directory: Ino) -> FsResult<Self::Listing>;
    /// The next names, without `.` and `..`; none if there are no more. Whoever may read a directory
    /// is told the attributes, too: the walk finds out whether they may be shown.
    async fn next(&self, listing: &mut Self::Listing) -> FsResult<Option<Vec<Named>>>;
    async fn close(&self, listing: Self::Listing);
    /// EACCES if the directory must not be searched.
    async fn lookup(&self, directory: Ino, name: &[u8]) -> FsResult<Attr>;
    async fn target(&self, link: Ino) -> FsResult<Vec<u8>>;
}

/// Where the walk leaves what it found.
pub(super) trait Sink {
    fn print(&self, bytes: &[u8]);
    /// Tells why a path could not be looked at.
    fn fail(&self, path: &[u8], error: Errno);
}

/// A walk.
pub(super) struct Walk<'a, S, O> {
    call: &'a FindCall,
    source: &'a S,
    sink: &'a O,
    /// Directories to list.
    found: RefCell<Vec<Rc<Directory>>>,
    /// Whether directories without ACLs may be searched.
    searched: RefCell<HashMap<Class, bool>>,
    output: RefCell<Vec<u8>>,
    quit: Cell<bool>,
}

impl<'a, S: Source, O: Sink> Walk<'a, S, O> {
    pub(super) fn new(call: &'a FindCall, source: &'a S, sink: &'a O) -> Walk<'a, S, O> {
        let (found, searched, output) =
            (RefCell::default(), RefCell::default(), RefCell::default());
        Walk { call, source, sink, found, searched, output, quit: Cell::new(false) }
    }

    /// Walks over all that is at and below a starting point. Returns whether to go on with others.
    pub(super) async fn run(&self, path: &[u8], attr: Attr) -> bool {
        let (path, start, ino) = (path.to_vec(), path.len(), attr.ino);
        let facts = Facts::default();
        let start = Entry { path, start, depth: 0, ino, kind: None, attr: Ok(attr), facts };
        self.come_to(start, None).await;
        let mut listings = FuturesUnordered::new();
        while !self.quit.get() {
            while listings.len() < LISTED_AT_ONCE {
                let Some(directory) = self.found.borrow_mut().pop() else { break };
                listings.push(self.list(directory));
            }
            if listings.next().await.is_none() {
                break;
            }
        }
        drop(listings);
        self.flush();
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
        self.found.borrow_mut().extend(directory.map(Rc::new));
    }

    /// Applies the expression to a file; returns whether it pruned it.
    async fn look_at(&self, mut entry: Entry) -> (bool, Entry) {
        if entry.depth < self.call.depth_min || self.quit.get() {
            return (false, entry);
        }
        let outcome = loop {
            let mut outcome = Applied::default();
            let Err(missing) = self.call.expression.apply(&entry, &mut outcome) else {
                break outcome;
            };
            if let Err(error) = self.ask(&mut entry, missing).await {
                self.sink.fail(&entry.path, error);
            }
            // Another listing may have ended the walk meanwhile.
            if self.quit.get() {
                return (false, entry);
            }
        };
        if let (true, Err(error)) = (outcome.refused, &entry.attr) {
            self.sink.fail(&entry.path, *error);
        }
        self.output.borrow_mut().extend_from_slice(&outcome.printed);
        if self.output.borrow().len() >= OUTPUT_BYTES {
            self.flush();
        }
        if outcome.quit {
            self.quit.set(true);
        }
        (outcome.pruned, entry)
    }

    /// Asks for a fact. It is known afterwards, if only as a guess where that failed.
    async fn ask(&self, entry: &mut Entry, missing: Missing) -> FsResult<()> {
        match missing {
            Missing::IsEmpty => {
                entry.facts.is_empty = Some(false);
                entry.facts.is_empty = Some(self.is_empty(entry.ino).await?);
            }
            Missing::Target => {
                entry.facts.target = Some(Vec::new());
                entry.facts.target = Some(self.source.target(entry.ino).await?);
            }
            // An expression does without them.
            Missing::Attributes => {}
        }
        Ok(())
    }

    async fn is_empty(&self, directory: Ino) -> FsResult<bool> {
        let mut listing = self.source.open(directory).await?;
        let empty = loop {
            match self.source.next(&mut listing).await {
                Ok(None) => break Ok(true),
                Ok(Some(names)) if names.is_empty() => {}
                Ok(Some(_)) => break Ok(false),
                Err(error) => break Err(error),
            }
        };
        self.source.close(listing).await;
        empty
    }

    async fn list(&self, directory: Rc<Directory>) {
        let (path, start) = directory.path();
        if let Err(error) = self.list_names(&directory, &path, start).await {
            self.sink.fail(&path, error);
        }
        drop(path);
        if self.call.contents_first {
            self.finish(directory).await;
        }
    }

    async fn list_names(
        &self,
        directory: &Rc<Directory>,
        path: &[u8],
        start: usize,
    ) -> FsResult<()> {
        let mut listing = self.source.open(directory.ino).await?;
        let mut may_search = None;
        let result = loop {
            let names = match self.source.next(&mut listing).await {
                Ok(Some(names)) => names,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            for named in names {
                if self.quit.get() {
                    break;
                }
                let may_search = match may_search {
                    Some(may_search) => may_search,
                    None => *may_search.insert(self.may_search(directory, &named.name).await),
                };
                let path = join(path, &named.name);
                let entry = self.entry(directory, named, may_search, path, start).await;
                self.come_to(entry, Some(directory)).await;
            }
            if self.quit.get() {
                break Ok(());
            }
        };
        self.source.close(listing).await;
        result
    }

    /// Finds out whether a directory, which has this name, may be searched. The server decides it:
    /// it knows ACLs, and as whom it sees the caller. It is asked once for all that have the same
    /// owner and mode.
    async fn may_search(&self, directory: &Directory, name: &[u8]) -> bool {
        let known = directory.class.and_then(|class| self.searched.borrow().get(&class).copied());
        if let Some(may) = known {
            return may;
        }
        let found = self.source.lookup(directory.ino, name).await.map(|_| ());
        let may = found != Err(Errno::EACCES);
        // If the server was away, nothing was found out.
        if let (Some(class), Ok(()) | Err(Errno::EACCES)) = (directory.class, found) {
            self.searched.borrow_mut().insert(class, may);
        }
        may
    }

    /// Makes an entry of a name in a directory.
    async fn entry(
        &self,
        directory: &Directory,
        named: Named,
        may_search: bool,
        path: Vec<u8>,
        start: usize,
    ) -> Entry {
        let Named { name, ino, mut kind, attr } = named;
        let attr = match attr {
            _ if !may_search => Err(Errno::EACCES),
            Some(attr) => Ok(attr),
            None => self.source.lookup(directory.ino, &name).await,
        };
        if let (Err(error), Some(FileType::Directory)) = (&attr, kind) {
            // find(1) looks at every directory, and does not take it for one if that fails.
            self.sink.fail(&path, *error);
            kind = None;
        }
        let depth = directory.depth + 1;
        Entry { path, start, depth, ino, kind, attr, facts: Facts::default() }
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

    fn flush(&self) {
        let output = std::mem::take(&mut *self.output.borrow_mut());
        self.sink.print(&output);
    }
}

#[cfg(test)]
mod tests;

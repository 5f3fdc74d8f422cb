//! The walk over a tree: many directories are listed at once, each with the attributes of what is
//! in it. A directory comes before what is in it, or after all of it.
//!
//! Memory is bounded by the directories that were found and not listed yet: those found last are
//! listed first, so that they are those along some paths, and not all of a level.

use super::entry::{Entry, Facts, Missing, join};
use super::expression::FindCall;
use super::test::Applied;
use futures_util::stream::{FuturesUnordered, StreamExt};
use glint_proto::{Attr, Errno, FsResult, Ino};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Directories that are listed at once.
const LISTED_AT_ONCE: usize = 32;
/// Bytes that are kept until they are written.
const OUTPUT_BYTES: usize = 64 << 10;

/// A name in a directory.
pub(super) struct Named {
    pub(super) name: Vec<u8>,
    /// `None` if it has to be asked for: another client may be changing it, or it went away.
    pub(super) attr: Option<Attr>,
}

/// Where the walk takes what it shows.
pub(super) trait Source {
    /// A directory that is being listed.
    type Listing;
    async fn open(&self, directory: Ino) -> FsResult<Self::Listing>;
    /// The next names, without `.` and `..`; none if there are no more.
    async fn next(&self, listing: &mut Self::Listing) -> FsResult<Option<Vec<Named>>>;
    async fn close(&self, listing: Self::Listing);
    async fn lookup(&self, directory: Ino, name: &[u8]) -> FsResult<Attr>;
    async fn target(&self, link: Ino) -> FsResult<Vec<u8>>;
}

/// Where the walk leaves what it found.
pub(super) trait Sink {
    fn print(&self, bytes: &[u8]);
    /// Tells why a path could not be looked at.
    fn fail(&self, path: &[u8], error: Errno);
}

/// A directory whose contents are not done.
struct Directory {
    entry: Entry,
    parent: Option<Rc<Directory>>,
    /// Its listing, and the directories in it that are not done.
    pending: Cell<usize>,
}

/// A walk.
pub(super) struct Walk<'a, S, O> {
    call: &'a FindCall,
    source: &'a S,
    sink: &'a O,
    /// Directories to list.
    found: RefCell<Vec<Rc<Directory>>>,
    output: RefCell<Vec<u8>>,
    quit: Cell<bool>,
}

impl<'a, S: Source, O: Sink> Walk<'a, S, O> {
    pub(super) fn new(call: &'a FindCall, source: &'a S, sink: &'a O) -> Walk<'a, S, O> {
        let (found, output) = (RefCell::default(), RefCell::default());
        Walk { call, source, sink, found, output, quit: Cell::new(false) }
    }

    /// Walks over all that is at and below a starting point. Returns whether to go on with others.
    pub(super) async fn run(&self, path: &[u8], attr: Attr) -> bool {
        let (path, start) = (path.to_vec(), path.len());
        let start = Entry { path, start, depth: 0, attr, facts: Facts::default() };
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
        let descends = entry.is_directory() && entry.depth < self.call.depth_max;
        if self.call.contents_first && descends {
            return self.note(entry, parent);
        }
        let (pruned, entry) = self.look_at(entry).await;
        if descends && !pruned {
            self.note(entry, parent);
        }
    }

    fn note(&self, entry: Entry, parent: Option<&Rc<Directory>>) {
        if let Some(parent) = parent {
            parent.pending.set(parent.pending.get() + 1);
        }
        let directory = Directory { entry, parent: parent.cloned(), pending: Cell::new(1) };
        self.found.borrow_mut().push(Rc::new(directory));
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
                entry.facts.is_empty = Some(self.is_empty(entry.attr.ino).await?);
            }
            Missing::Target => {
                entry.facts.target = Some(Vec::new());
                entry.facts.target = Some(self.source.target(entry.attr.ino).await?);
            }
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
        if let Err(error) = self.list_names(&directory).await {
            self.sink.fail(&directory.entry.path, error);
        }
        self.finish(directory).await;
    }

    async fn list_names(&self, directory: &Rc<Directory>) -> FsResult<()> {
        let mut listing = self.source.open(directory.entry.attr.ino).await?;
        let result = loop {
            let names = match self.source.next(&mut listing).await {
                Ok(Some(names)) => names,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            for Named { name, attr } in names {
                if self.quit.get() {
                    break;
                }
                let path = join(&directory.entry.path, &name);
                let found = match attr {
                    Some(attr) => Ok(attr),
                    None => self.source.lookup(directory.entry.attr.ino, &name).await,
                };
                let attr = match found {
                    Ok(attr) => attr,
                    Err(error) => {
                        self.sink.fail(&path, error);
                        continue;
                    }
                };
                let Entry { start, depth, .. } = directory.entry;
                let entry = Entry { path, start, depth: depth + 1, attr, facts: Facts::default() };
                self.come_to(entry, Some(directory)).await;
            }
            if self.quit.get() {
                break Ok(());
            }
        };
        self.source.close(listing).await;
        result
    }

    /// Notes that a directory was listed, and looks at those of which all is done by that.
    async fn finish(&self, directory: Rc<Directory>) {
        let mut next = Some(directory);
        while let Some(directory) = next {
            directory.pending.set(directory.pending.get() - 1);
            if directory.pending.get() > 0 {
                return;
            }
            if self.call.contents_first {
                self.look_at(directory.entry.clone()).await;
            }
            let parent = directory.parent.clone();
            next = parent;
        }
    }

    fn flush(&self) {
        let output = std::mem::take(&mut *self.output.borrow_mut());
        self.sink.print(&output);
    }
}

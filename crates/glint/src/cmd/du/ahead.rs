//! Listings ahead of the walk: many directories with one request, and some requests under way at
//! once, while the walk itself goes through the tree in the order of du(1).
//!
//! Memory is bounded: listings stop coming while `ENTRIES_AHEAD` entries wait for the walk, but for
//! the one that it needs next. Directories that are found and not listed are those along some paths,
//! as those found last are listed first.

use super::sum::Sum;
use super::walk::DuCall;
use crate::cmd::tree::c_library::Pattern;
use crate::cmd::tree::{Class, Searched, Source};
use glint_client::{ScannedEntry, ScannedPage};
use glint_proto::{Attr, Errno, FsResult, Ino};
use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::rc::{Rc, Weak};

/// Requests that are under way at once, and one for the directory that is needed next.
pub(super) const REQUESTS_AT_ONCE: usize = 4;
/// Directories that a request lists.
const DIRECTORIES_PER_REQUEST: usize = 64;
/// Entries that wait for the walk.
const ENTRIES_AHEAD: usize = 100_000;

/// A directory that is listed for the walk.
pub(super) struct DuDirectory {
    /// Its name, or a starting point as it was said.
    name: Box<[u8]>,
    parent: Weak<DuDirectory>,
    ino: Ino,
    class: Option<Class>,
    listing: RefCell<Listing>,
}

/// Listing of a directory, as far as it has come.
struct Listing {
    pages: VecDeque<FsResult<Vec<DuEntry>>>,
    /// Cookie to go on after; `None` if all pages are there.
    next: Option<u64>,
    is_asked: bool,
}

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

/// NextPage page of a directory.
pub(super) enum NextPage {
    Page(FsResult<Vec<DuEntry>>),
    /// It has not come yet.
    Awaited,
    /// The directory is listed to its end.
    End,
}

/// Directories that were asked for, and pages of the first of them.
pub(super) type ListedAhead = (Vec<Rc<DuDirectory>>, Vec<FsResult<(Vec<DuEntry>, Option<u64>)>>);

impl DuDirectory {
    pub(super) fn new(
        name: &[u8],
        parent: Option<&Rc<DuDirectory>>,
        attr: &Attr,
    ) -> Rc<DuDirectory> {
        let listing = Listing { pages: VecDeque::new(), next: Some(0), is_asked: false };
        Rc::new(DuDirectory {
            name: name.into(),
            parent: parent.map(Rc::downgrade).unwrap_or_default(),
            ino: attr.ino,
            class: Class::of(attr),
            listing: RefCell::new(listing),
        })
    }

    /// Takes the next page.
    pub(super) fn take(&self) -> NextPage {
        let mut listing = self.listing.borrow_mut();
        match (listing.pages.pop_front(), listing.next) {
            (Some(page), _) => NextPage::Page(page),
            (None, Some(_)) => NextPage::Awaited,
            (None, None) => NextPage::End,
        }
    }

    pub(super) fn is_asked(&self) -> bool {
        self.listing.borrow().is_asked
    }

    /// Its path, of names that the walk has not passed yet: all directories above it are there.
    fn path(&self) -> Vec<u8> {
        let mut names = vec![self.name.clone()];
        let mut next = self.parent.upgrade();
        while let Some(node) = next {
            names.push(node.name.clone());
            next = node.parent.upgrade();
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            push_name(&mut path, name);
        }
        path
    }
}

impl Drop for DuDirectory {
    /// Drops the directories that are listed below it one by one: each within the last would need a
    /// stack as deep as the tree.
    fn drop(&mut self) {
        let below = |directory: &mut DuDirectory| {
            let pages = std::mem::take(&mut directory.listing.get_mut().pages);
            pages.into_iter().flatten().flatten().filter_map(|entry| entry.node)
        };
        let mut left: Vec<Rc<DuDirectory>> = below(self).collect();
        while let Some(directory) = left.pop() {
            if let Some(mut directory) = Rc::into_inner(directory) {
                left.extend(below(&mut directory));
            }
        }
    }
}

/// Puts a name at the end of a path.
pub(super) fn push_name(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
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

/// The listings of a walk.
pub(super) struct Ahead<'a, S> {
    source: &'a S,
    call: &'a DuCall,
    /// Starting points that were walked over before.
    passed: HashSet<Ino>,
    searched: Searched,
    /// Directories to list, the one that is needed first at the end.
    wanted: RefCell<Vec<Rc<DuDirectory>>>,
    /// Entries that wait for the walk.
    waiting: Cell<usize>,
}

impl<'a, S: Source> Ahead<'a, S> {
    pub(super) fn new(source: &'a S, call: &'a DuCall, passed: HashSet<Ino>) -> Ahead<'a, S> {
        let (searched, wanted) = (Searched::default(), RefCell::default());
        Ahead { source, call, passed, searched, wanted, waiting: Cell::new(0) }
    }

    /// Notes that the walk takes a page.
    pub(super) fn passes(&self, entries: usize) {
        self.waiting.set(self.waiting.get().saturating_sub(entries));
    }

    /// Takes the directory that is needed next, and those that come soon after it.
    pub(super) fn needed(&self, node: &Rc<DuDirectory>) -> Vec<Rc<DuDirectory>> {
        let mut wanted = self.wanted.borrow_mut();
        match wanted.iter().rposition(|other| Rc::ptr_eq(other, node)) {
            Some(at) => take(&mut wanted, at + 1, DIRECTORIES_PER_REQUEST),
            None => {
                node.listing.borrow_mut().is_asked = true;
                vec![node.clone()]
            }
        }
    }

    /// Takes directories that will be needed; none if enough entries wait for the walk.
    pub(super) fn wanted(&self) -> Vec<Rc<DuDirectory>> {
        let mut wanted = self.wanted.borrow_mut();
        let end = if self.waiting.get() < ENTRIES_AHEAD { wanted.len() } else { 0 };
        let share = end.div_ceil(REQUESTS_AT_ONCE).min(DIRECTORIES_PER_REQUEST);
        take(&mut wanted, end, share)
    }

    /// Asks for the contents of directories.
    pub(super) async fn list(&self, nodes: Vec<Rc<DuDirectory>>) -> ListedAhead {
        let cookie = |node: &Rc<DuDirectory>| node.listing.borrow().next.unwrap_or_default();
        let asked: Vec<(Ino, u64)> = nodes.iter().map(|node| (node.ino, cookie(node))).collect();
        let answered = match self.source.scan(&asked).await {
            Ok(pages) => pages,
            Err(error) => asked.iter().map(|_| Err(error)).collect(),
        };
        let mut pages = Vec::with_capacity(answered.len());
        for (node, page) in nodes.iter().zip(answered) {
            pages.push(match page {
                Ok(ScannedPage { entries, next }) => Ok((self.found(node, entries).await, next)),
                Err(error) => Err(error),
            });
        }
        (nodes, pages)
    }

    /// Notes what was listed, and the directories that are to be listed for it.
    pub(super) fn arrived(&self, (nodes, pages): ListedAhead) {
        let mut wanted = self.wanted.borrow_mut();
        for node in &nodes {
            node.listing.borrow_mut().is_asked = false;
        }
        // They are needed after what was found now.
        wanted.extend(nodes[pages.len().min(nodes.len())..].iter().rev().cloned());
        for (node, page) in nodes.iter().zip(pages).rev() {
            let mut listing = node.listing.borrow_mut();
            let page = page.map(|(found, next)| {
                listing.next = next;
                wanted.extend(next.map(|_| node.clone()));
                wanted.extend(found.iter().rev().filter_map(|found| found.node.clone()));
                self.waiting.set(self.waiting.get() + found.len());
                found
            });
            if page.is_err() {
                listing.next = None;
            }
            listing.pages.push_back(page);
        }
    }

    async fn found(&self, directory: &Rc<DuDirectory>, entries: Vec<ScannedEntry>) -> Vec<DuEntry> {
        let Some(first) = entries.first() else { return Vec::new() };
        let DuDirectory { ino, class, .. } = **directory;
        let may_search = self.searched.may_search(self.source, ino, class, &first.name).await;
        let mut path = if self.call.excludes.is_empty() { Vec::new() } else { directory.path() };
        let len = path.len();
        let mut all = Vec::with_capacity(entries.len());
        for ScannedEntry { name, ino, attr, .. } in entries {
            if !self.call.excludes.is_empty() {
                path.truncate(len);
                push_name(&mut path, &name);
                if is_excluded(&self.call.excludes, &path) {
                    continue;
                }
            }
            all.push(match if may_search { attr } else { Err(Errno::EACCES) } {
                // Counted with the starting point that it is.
                Ok(attr) if attr.is_dir() && self.passed.contains(&ino) => continue,
                Ok(attr) => {
                    let node =
                        attr.is_dir().then(|| DuDirectory::new(&name, Some(directory), &attr));
                    DuEntry {
                        name,
                        ino,
                        links: attr.nlink,
                        sum: Ok(Sum::of(&attr, self.call.time)),
                        node,
                    }
                }
                Err(error) => DuEntry { name, ino, links: 1, sum: Err(error), node: None },
            });
        }
        all
    }
}

/// Takes directories up to an end, the last one first.
fn take(wanted: &mut Vec<Rc<DuDirectory>>, end: usize, count: usize) -> Vec<Rc<DuDirectory>> {
    let nodes: Vec<Rc<DuDirectory>> = wanted.drain(end - count.min(end)..end).rev().collect();
    for node in &nodes {
        node.listing.borrow_mut().is_asked = true;
    }
    nodes
}

//! Listings ahead of a walk: many directories with one request, and some requests under way at once,
//! while the walk itself goes through the tree in the order of du(1) or ls(1).
//!
//! Memory is bounded: listings stop coming while `ENTRIES_AHEAD` entries wait for the walk, but for
//! the one that it needs next. Directories that are found and not listed are those along some paths,
//! as those needed first are listed first.

use super::{Class, Searched, Source};
use futures_util::stream::{FuturesUnordered, StreamExt};
use glint_client::{ScannedEntry, ScannedPage};
use glint_proto::{Attr, Errno, FsResult, Ino};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

/// Requests that are under way at once, and one for the directory that is needed next.
const REQUESTS_AT_ONCE: usize = 4;
/// Directories that a request lists.
const DIRECTORIES_PER_REQUEST: usize = 64;
/// A name that an empty directory does not have: asking for it tells whether it may be searched.
const ABSENT: &[u8] = b"...";
/// Entries that wait for the walk.
const ENTRIES_AHEAD: usize = 100_000;

/// An entry of a listing, as a walk keeps it.
pub(in crate::cmd) trait KeptEntry: Sized {
    /// The walk takes listings as a whole, in an order of its own, and not page by page.
    const WHOLE: bool;

    /// The directory that is to be listed, if this is one.
    fn below(&mut self) -> &mut Option<Rc<TreeDirectory<Self>>>;
}

/// Decides how entries are kept.
pub(in crate::cmd) trait Keep {
    type Entry: KeptEntry;

    /// Returns the entries of a page that the walk is to see. Their attributes are refused where the
    /// directory may not be searched.
    async fn keep(
        &self,
        directory: &Rc<TreeDirectory<Self::Entry>>,
        page: FoundPage,
    ) -> Vec<Self::Entry>;

    /// Whether the walk has to know of a directory without entries, too, if it may be searched.
    fn searches_empty(&self) -> bool {
        false
    }

    /// Puts a whole listing into the order of the walk.
    fn arrange(&self, _listing: &mut [Self::Entry]) {}
}

/// A page of a directory that was listed.
pub(in crate::cmd) struct FoundPage {
    pub(in crate::cmd) entries: Vec<ScannedEntry>,
    /// Nothing of the directory came before it.
    pub(in crate::cmd) is_first: bool,
    pub(in crate::cmd) may_search: bool,
}

/// A directory that is listed for a walk.
pub(in crate::cmd) struct TreeDirectory<E: KeptEntry> {
    /// Its name, or a starting point as it was said.
    pub(in crate::cmd) name: Box<[u8]>,
    parent: Weak<TreeDirectory<E>>,
    pub(in crate::cmd) ino: Ino,
    class: Option<Class>,
    /// Its attributes, if the walk shows them in its listing.
    pub(in crate::cmd) attr: Option<Box<Attr>>,
    listing: RefCell<Listing<E>>,
}

/// Listing of a directory, as far as it has come.
struct Listing<E> {
    pages: VecDeque<FsResult<Vec<E>>>,
    /// Cookie to go on after; `None` if all pages are there.
    next: Option<u64>,
    is_asked: bool,
}

/// Next page of a directory, or all of it.
pub(in crate::cmd) enum NextPage<E> {
    Page(FsResult<Vec<E>>),
    /// It has not come yet.
    Awaited,
    /// The directory is listed to its end.
    End,
}

/// Directories that were asked for, and pages of the first of them.
type ListedAhead<E> = (Vec<Rc<TreeDirectory<E>>>, Vec<FsResult<(Vec<E>, Option<u64>)>>);

impl<E: KeptEntry> TreeDirectory<E> {
    pub(in crate::cmd) fn new(
        name: &[u8],
        parent: Option<&Rc<TreeDirectory<E>>>,
        attr: &Attr,
        keeps_attr: bool,
    ) -> Rc<TreeDirectory<E>> {
        let listing = Listing { pages: VecDeque::new(), next: Some(0), is_asked: false };
        Rc::new(TreeDirectory {
            name: name.into(),
            parent: parent.map(Rc::downgrade).unwrap_or_default(),
            ino: attr.ino,
            class: Class::of(attr),
            attr: keeps_attr.then(|| Box::new(attr.clone())),
            listing: RefCell::new(listing),
        })
    }

    /// A directory that must not be listed, as is known before it is asked for.
    pub(in crate::cmd) fn refused(name: &[u8], ino: Ino, error: Errno) -> Rc<TreeDirectory<E>> {
        let pages = VecDeque::from([Err(error)]);
        let listing = RefCell::new(Listing { pages, next: None, is_asked: false });
        let (parent, class, attr) = (Weak::new(), None, None);
        Rc::new(TreeDirectory { name: name.into(), parent, ino, class, attr, listing })
    }

    /// Takes the next page.
    pub(in crate::cmd) fn take(&self) -> NextPage<E> {
        let mut listing = self.listing.borrow_mut();
        if E::WHOLE && listing.next.is_some() {
            return NextPage::Awaited;
        }
        match (listing.pages.pop_front(), listing.next) {
            (Some(page), _) => NextPage::Page(page),
            (None, Some(_)) => NextPage::Awaited,
            (None, None) => NextPage::End,
        }
    }

    /// The directory above it, unless this is a starting point: the walk has not left it.
    pub(in crate::cmd) fn parent(&self) -> Option<Rc<TreeDirectory<E>>> {
        self.parent.upgrade()
    }

    /// Its path, of names that the walk has not passed yet: all directories above it are there.
    pub(in crate::cmd) fn path(&self) -> Vec<u8> {
        let mut names = vec![self.name.clone()];
        let mut next = self.parent();
        while let Some(directory) = next {
            names.push(directory.name.clone());
            next = directory.parent();
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            push_name(&mut path, name);
        }
        path
    }
}

impl<E: KeptEntry> Drop for TreeDirectory<E> {
    /// Drops the directories that are listed below it one by one: each within the last would need a
    /// stack as deep as the tree.
    fn drop(&mut self) {
        let below = |directory: &mut TreeDirectory<E>| {
            let pages = std::mem::take(&mut directory.listing.get_mut().pages);
            pages.into_iter().flatten().flatten().filter_map(|mut entry| entry.below().take())
        };
        let mut left: Vec<Rc<TreeDirectory<E>>> = below(self).collect();
        while let Some(directory) = left.pop() {
            if let Some(mut directory) = Rc::into_inner(directory) {
                left.extend(below(&mut directory));
            }
        }
    }
}

/// Puts a name at the end of a path.
pub(in crate::cmd) fn push_name(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// The listings of a walk.
pub(in crate::cmd) struct Ahead<'a, S, K: Keep> {
    source: &'a S,
    keep: &'a K,
    searched: Searched,
    /// Directories to list, the one that is needed first at the end.
    wanted: RefCell<Vec<Rc<TreeDirectory<K::Entry>>>>,
    /// Entries that wait for the walk.
    waiting: Cell<usize>,
}

impl<'a, S: Source, K: Keep> Ahead<'a, S, K> {
    /// Listings of a walk over starting points, in the order in which it comes to them.
    pub(in crate::cmd) fn new(
        source: &'a S,
        keep: &'a K,
        starts: &[Rc<TreeDirectory<K::Entry>>],
    ) -> Ahead<'a, S, K> {
        let wanted = RefCell::new(starts.iter().rev().cloned().collect());
        Ahead { source, keep, searched: Searched::default(), wanted, waiting: Cell::new(0) }
    }

    /// Notes that the walk takes a page.
    pub(in crate::cmd) fn passes(&self, entries: usize) {
        self.waiting.set(self.waiting.get().saturating_sub(entries));
    }

    /// Lists what a walk needs. `advance` goes as far as directories are listed, and returns the one
    /// whose listing is needed next; `None` if all is done.
    pub(in crate::cmd) async fn serve(
        &self,
        mut advance: impl FnMut() -> Option<Rc<TreeDirectory<K::Entry>>>,
    ) {
        let mut requests = FuturesUnordered::new();
        while let Some(directory) = advance() {
            if !directory.listing.borrow().is_asked {
                requests.push(self.list(self.needed(&directory)));
            }
            while requests.len() < REQUESTS_AT_ONCE {
                let directories = self.wanted();
                if directories.is_empty() {
                    break;
                }
                requests.push(self.list(directories));
            }
            if let Some(listed) = requests.next().await {
                self.arrived(listed);
            }
        }
    }

    /// Takes the directory that is needed next, and those that come soon after it.
    fn needed(&self, directory: &Rc<TreeDirectory<K::Entry>>) -> Vec<Rc<TreeDirectory<K::Entry>>> {
        let mut wanted = self.wanted.borrow_mut();
        match wanted.iter().rposition(|other| Rc::ptr_eq(other, directory)) {
            Some(at) => take(&mut wanted, at + 1, DIRECTORIES_PER_REQUEST),
            None => {
                directory.listing.borrow_mut().is_asked = true;
                vec![directory.clone()]
            }
        }
    }

    /// Takes directories that will be needed; none if enough entries wait for the walk.
    fn wanted(&self) -> Vec<Rc<TreeDirectory<K::Entry>>> {
        let mut wanted = self.wanted.borrow_mut();
        let end = if self.waiting.get() < ENTRIES_AHEAD { wanted.len() } else { 0 };
        let share = end.div_ceil(REQUESTS_AT_ONCE).min(DIRECTORIES_PER_REQUEST);
        take(&mut wanted, end, share)
    }

    /// Asks for the contents of directories.
    async fn list(&self, directories: Vec<Rc<TreeDirectory<K::Entry>>>) -> ListedAhead<K::Entry> {
        let cookie = |directory: &Rc<TreeDirectory<K::Entry>>| {
            directory.listing.borrow().next.unwrap_or_default()
        };
        let asked: Vec<(Ino, u64)> =
            directories.iter().map(|directory| (directory.ino, cookie(directory))).collect();
        let answered = match self.source.scan(&asked).await {
            Ok(pages) => pages,
            Err(error) => asked.iter().map(|_| Err(error)).collect(),
        };
        let mut pages = Vec::with_capacity(answered.len());
        for ((directory, page), (_, cookie)) in directories.iter().zip(answered).zip(&asked) {
            pages.push(match page {
                Ok(ScannedPage { entries, next }) => {
                    Ok((self.kept(directory, entries, *cookie == 0).await, next))
                }
                Err(error) => Err(error),
            });
        }
        (directories, pages)
    }

    async fn kept(
        &self,
        directory: &Rc<TreeDirectory<K::Entry>>,
        mut entries: Vec<ScannedEntry>,
        is_first: bool,
    ) -> Vec<K::Entry> {
        let (ino, class) = (directory.ino, directory.class);
        let name = match entries.first() {
            Some(first) => &first.name[..],
            // No name is there. (`..` is refused at the top of what a certificate allows.)
            None if is_first && self.keep.searches_empty() => ABSENT,
            None => return Vec::new(),
        };
        let may_search = self.searched.may_search(self.source, ino, class, name).await;
        if !may_search {
            entries.iter_mut().for_each(|entry| entry.attr = Err(Errno::EACCES));
        }
        self.keep.keep(directory, FoundPage { entries, is_first, may_search }).await
    }

    /// Notes what was listed, and the directories that are to be listed for it.
    fn arrived(&self, (directories, pages): ListedAhead<K::Entry>) {
        let mut wanted = self.wanted.borrow_mut();
        for directory in &directories {
            directory.listing.borrow_mut().is_asked = false;
        }
        // They are needed after what was found now.
        wanted.extend(directories[pages.len().min(directories.len())..].iter().rev().cloned());
        for (directory, page) in directories.iter().zip(pages).rev() {
            let mut listing = directory.listing.borrow_mut();
            let listing = &mut *listing;
            let mut page = page.map(|(found, next)| {
                listing.next = next;
                self.waiting.set(self.waiting.get() + found.len());
                found
            });
            if page.is_err() {
                listing.next = None;
            }
            wanted.extend(listing.next.map(|_| directory.clone()));
            if K::Entry::WHOLE {
                if let (Some(Ok(whole)), Ok(page)) = (listing.pages.back_mut(), &mut page) {
                    whole.append(page);
                } else {
                    listing.pages.push_back(page);
                }
                if let (None, Some(Ok(whole))) = (listing.next, listing.pages.front_mut()) {
                    self.keep.arrange(whole);
                    want(&mut wanted, whole);
                }
                continue;
            }
            if let Ok(page) = &mut page {
                want(&mut wanted, page);
            }
            listing.pages.push_back(page);
        }
    }
}

/// Notes that directories of a listing are to be listed, but for those that are known to be refused.
fn want<E: KeptEntry>(wanted: &mut Vec<Rc<TreeDirectory<E>>>, listing: &mut [E]) {
    let below = listing.iter_mut().rev().filter_map(|entry| entry.below().clone());
    wanted.extend(below.filter(|directory| directory.listing.borrow().next.is_some()));
}

/// Takes directories up to an end, the last one first.
fn take<E: KeptEntry>(
    wanted: &mut Vec<Rc<TreeDirectory<E>>>,
    end: usize,
    count: usize,
) -> Vec<Rc<TreeDirectory<E>>> {
    let directories: Vec<_> = wanted.drain(end - count.min(end)..end).rev().collect();
    for directory in &directories {
        directory.listing.borrow_mut().is_asked = true;
    }
    directories
}

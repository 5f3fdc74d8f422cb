//! Directories that a program is about to list are listed ahead, while it looks at the ones before.
//! Which they are, `walk.rs` says, from the pages that programs are told of.
//!
//! A listing that came ahead is learned like any page: names, attributes and locks are in the
//! cache, under the ordinary limits. What is kept of it besides are the order of the entries and
//! their cookies, for the one call that begins to list the directory. A call that comes while it is
//! on its way waits for it instead of asking again, and so does a lookup in it; no other call waits.
//!
//! A page with all of a directory that came because names were looked up is kept in the same way:
//! `git status` looks the names up that it knows, and lists their directories after that. Directories
//! in which names are looked up one after the other are listed ahead as well (`for_lookups.rs`).
//!
//! The pages after the first ones of a large directory come ahead by `pages_ahead.rs`. A directory that
//! is known whole is listed from memory (`from_memory.rs`).
//!
//! Invariants:
//! - A listing is used only if the cache says at that moment, under locks, that the directory has
//!   these names, that they lead to these inodes, and that there is no other one; of a larger
//!   directory, of which the first page comes, that none was made since. Attributes are those that
//!   the cache has by then.
//! - There is at most one of a directory, and there are no more than limits allow; none while
//!   memory is short, or nobody uses the client.

mod for_lookups;
pub(crate) mod from_memory;
mod kept;
mod known;
mod lookup_order;
pub(crate) mod pages_ahead;
mod walk;

use crate::cache::in_flight::Asked;
use crate::calls::open_files::OpenFile;
use crate::client::Client;
use crate::listing::kept::{KeptListing, ListedPart};
use crate::listing::known::is_dots;
use crate::listing::lookup_order::LookupOrder;
use crate::listing::pages_ahead::DirectoriesWithPages;
use crate::listing::walk::{TreeWalks, WINDOW_MAX, WalkStep};
use crate::vfs::{Caller, Listing};
use glint_net::{Transport, host};
use glint_proto::limits::{DIR_PAGE_BYTES_MAX, SLOTS_FOR_DATA, SLOTS_PER_CONNECTION};
use glint_proto::{DirEntry, FileType, Ino, MdsReply, MdsRequest};
use glint_telemetry::Counter;
use glint_wait::Monitor;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Entries of listings that nobody has used yet: 4 MiB.
const ENTRIES_MAX: usize = 64 << 10;
/// Entries that may be ahead of a walk.
const AHEAD_MAX: usize = 8 << 10;
/// Which part of the inodes that may be known they may be: they have to stay known until then.
const INODES_PART: usize = 8;
/// Listings that nobody has used yet: those of subdirectories that are walked through first have to
/// wait, and so do those of a tree whose names are looked up first.
const LISTINGS_MAX: usize = 4096;
/// While so many are on their way, no more are asked for: others ask the MDS, too.
const ON_THEIR_WAY_MAX: usize = WINDOW_MAX;
const _: () = assert!(
    ON_THEIR_WAY_MAX + WINDOW_MAX <= (SLOTS_PER_CONNECTION - SLOTS_FOR_DATA) as usize,
    "one walk more may ask for its window"
);
/// A listing is taken for no shorter than this.
const TYPICAL_MIN: usize = 16;

/// A page of a directory that a program is told of.
#[derive(Clone, Copy)]
pub(crate) struct ListedPage {
    /// It is the first one.
    pub(crate) is_begin: bool,
    /// It is the last one.
    pub(crate) is_end: bool,
    /// It had come ahead.
    pub(crate) was_ahead: bool,
}

/// How far programs were told of a directory through one handle.
#[derive(Default)]
pub(crate) struct ListedTo(AtomicU64);

impl ListedTo {
    /// The entries of a page that no page before has told of. A page may begin with some that the
    /// one before had: those for which the kernel had no room.
    pub(crate) fn take_new<'a>(&self, is_begin: bool, page: &'a [DirEntry]) -> &'a [DirEntry] {
        let before = if is_begin { 0 } else { self.0.load(Ordering::Relaxed) };
        let last = page.last().map_or(0, |entry| entry.cookie);
        self.0.store(before.max(last), Ordering::Relaxed);
        // They come in the order of cookies.
        &page[page.partition_point(|entry| entry.cookie <= before)..]
    }
}

/// Directories that were listed ahead.
#[derive(Default)]
pub(crate) struct DirectoriesAhead {
    is_on: AtomicBool,
    /// Who lists a directory waits here for the listing that is on its way.
    listings: Monitor<ListingsAhead, Ino>,
    /// Directories in which names are looked up, and whether some were asked for because of that in
    /// which nobody goes on yet.
    lookups: Mutex<LookupOrder>,
    has_for_lookups: AtomicBool,
    /// Open directories of which the next page comes ahead.
    pub(crate) with_pages: DirectoriesWithPages,
}

#[derive(Default)]
struct ListingsAhead {
    walks: TreeWalks,
    listings: HashMap<Ino, ListingAhead>,
    /// Those that have come, the oldest first, and how many entries they have.
    order: VecDeque<Ino>,
    entries: usize,
    /// Entries of a listing, on the average of the last ones.
    typical: usize,
    /// None is to be asked for.
    is_short: bool,
}

/// A listing that was asked for.
enum ListingAhead {
    OnItsWay,
    /// It has come.
    Here(KeptListing),
}

impl ListingsAhead {
    /// Forgets what has come of a directory, and returns it.
    fn take(&mut self, directory: Ino) -> Option<KeptListing> {
        let kept = self.remove(directory)?;
        self.order.retain(|other| *other != directory);
        Some(kept)
    }

    /// Takes what has come of a directory; the caller has its place in the order.
    fn remove(&mut self, directory: Ino) -> Option<KeptListing> {
        match self.listings.remove(&directory)? {
            ListingAhead::Here(kept) => {
                self.entries -= kept.len();
                Some(kept)
            }
            ListingAhead::OnItsWay => {
                self.listings.insert(directory, ListingAhead::OnItsWay);
                None
            }
        }
    }

    /// Forgets those that came first, until there are no more than so many entries.
    fn limit(&mut self, entries_max: usize) {
        while self.entries > entries_max || self.order.len() > LISTINGS_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            self.remove(oldest);
        }
    }

    /// One has come that was on its way.
    fn come(&mut self, directory: Ino, kept: KeptListing) {
        self.typical = (3 * self.typical + kept.len()) / 4;
        self.listings.remove(&directory);
        self.keep(directory, kept);
    }

    /// Keeps one that has come. None of this directory is here.
    fn keep(&mut self, directory: Ino, kept: KeptListing) {
        if self.is_short {
            return;
        }
        self.entries += kept.len();
        self.order.push_back(directory);
        self.listings.insert(directory, ListingAhead::Here(kept));
        self.limit(ENTRIES_MAX);
    }

    /// How many may be ahead of a walk, where a client may know so many inodes.
    fn window_max(&self, inodes_max: usize) -> usize {
        let on_their_way = self.listings.len() - self.order.len();
        if self.is_short || on_their_way >= ON_THEIR_WAY_MAX {
            return 0;
        }
        let entries = (inodes_max / INODES_PART).min(AHEAD_MAX);
        entries / self.typical.max(TYPICAL_MIN)
    }
}

impl DirectoriesAhead {
    /// From now on directories are listed ahead.
    pub(crate) fn turn_on(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// From now on there is memory for listings, or there is not.
    pub(crate) fn set_short(&self, is_short: bool) {
        let mut listings = self.listings.lock();
        listings.is_short = is_short;
        if is_short {
            listings.walks.forget();
            listings.limit(0);
            drop(listings);
            let mut lookups = self.lookups.lock();
            *lookups = LookupOrder::default();
            self.has_for_lookups.store(false, Ordering::Relaxed);
        }
    }

    /// The listing of a directory that was asked for ahead, if there is one. While it is on its
    /// way, waits for it.
    async fn take(&self, directory: Ino) -> Option<KeptListing> {
        let look = |all: &mut ListingsAhead| match all.listings.get(&directory) {
            Some(ListingAhead::OnItsWay) => None,
            _ => Some(all.take(directory)),
        };
        self.listings.until_with(directory, look).await
    }

    /// Keeps all entries of a directory, which came because names were looked up, unless a listing is
    /// on its way.
    fn keep(&self, directory: Ino, entries: &[DirEntry]) {
        let kept = KeptListing::new(entries, ListedPart::All, false);
        let mut listings = self.listings.lock();
        // Others may have changed the directory since that came.
        listings.take(directory);
        if !listings.listings.contains_key(&directory) {
            listings.keep(directory, kept);
        }
    }

    /// A listing is about to be asked for, because of a walk or else of lookups, unless that was done
    /// before.
    fn begin(self: &Arc<Self>, directory: Ino, is_of_walk: bool) -> Option<ListingOnItsWay> {
        let listings = &mut self.listings.lock().listings;
        if listings.contains_key(&directory) {
            return None;
        }
        listings.insert(directory, ListingAhead::OnItsWay);
        Some(ListingOnItsWay { ahead: self.clone(), directory, is_of_walk })
    }
}

/// A listing that is on its way. When this is dropped, nobody waits for it any more.
struct ListingOnItsWay {
    ahead: Arc<DirectoriesAhead>,
    directory: Ino,
    is_of_walk: bool,
}

impl ListingOnItsWay {
    /// It has come.
    fn come(self, entries: &[DirEntry], part: ListedPart) {
        let kept = KeptListing::new(entries, part, self.is_of_walk);
        self.ahead.listings.lock().come(self.directory, kept);
    }
}

impl Drop for ListingOnItsWay {
    fn drop(&mut self) {
        {
            let listings = &mut self.ahead.listings.lock().listings;
            if let Some(ListingAhead::OnItsWay) = listings.get(&self.directory) {
                listings.remove(&self.directory);
            }
        }
        self.ahead.listings.wake_where(|waits_for| *waits_for == self.directory);
    }
}

impl<T: Transport> Client<T> {
    /// A program is told of these entries of a directory through a handle: notes what of them is
    /// new to it for all parts that ask ahead of it.
    pub(crate) fn note_told(
        &self,
        caller: &Caller,
        file: &OpenFile,
        page: ListedPage,
        entries: &[DirEntry],
    ) {
        if let Some(last) = entries.last().filter(|_| page.is_end) {
            file.note_last_entry(last.cookie);
        }
        let new = file.listed_to.take_new(page.is_begin, entries);
        self.note_listing(file.ino, page.is_begin, new);
        self.list_next(caller, file.ino, page, new);
    }

    /// A program is told of these entries of a directory: asks for the listings that it is likely
    /// to want next.
    fn list_next(&self, caller: &Caller, directory: Ino, page: ListedPage, entries: &[DirEntry]) {
        if !self.directories_ahead.is_on() || !caller.may_all() {
            return;
        }
        let Some(client) = self.me.get().and_then(Weak::upgrade) else { return };
        let is_directory = |entry: &&DirEntry| {
            entry.dirent_type == FileType::Directory.dirent_type() && !is_dots(entry)
        };
        let named = |entry: &DirEntry| (entry.ino, Box::<[u8]>::from(entry.name.as_slice()));
        let found = entries.iter().filter(is_directory).map(named).collect();
        let ListedPage { is_begin, was_ahead, .. } = page;
        let next = {
            let mut listings = self.directories_ahead.listings.lock();
            let window_max = listings.window_max(self.inodes_max());
            let step = WalkStep { directory, is_begin, was_ahead, window_max };
            let ListingsAhead { walks, listings, .. } = &mut *listings;
            // What is here because names were looked up is not asked for, and so not in vain.
            let is_here =
                |directory: Ino| matches!(listings.get(&directory), Some(ListingAhead::Here(_)));
            let may_ask = |directory| !is_here(directory) && self.is_to_list(directory);
            walks.go(step, found, may_ask)
        };
        for directory in next {
            if let Some(on_its_way) = self.directories_ahead.begin(directory, true) {
                host::spawn(client.clone().list_ahead(caller.clone(), on_its_way));
            }
        }
    }

    /// Whether a directory may be listed ahead, and not from memory by who wants it.
    fn is_to_list(&self, directory: Ino) -> bool {
        self.cache.is_to_list(directory) && !self.is_in_memory(directory)
    }

    async fn list_ahead(self: Arc<Self>, caller: Caller, of: ListingOnItsWay) {
        let (ino, bytes_max) = (of.directory, DIR_PAGE_BYTES_MAX as u32);
        glint_telemetry::count(Counter::DirectoriesListedAhead, 1);
        let request = MdsRequest::Readdir { ino, cookie: 0, bytes_max, plus: true };
        let mut asked = Asked::now();
        // What is refused, so is who lists it.
        let Ok(MdsReply::Dir(page)) = self.ask_to_learn(&caller, &request, &mut asked).await else {
            return;
        };
        self.cache.learn_page(ino, 0, &page, &asked);
        if page.end && !of.is_of_walk {
            self.note_all_entries(ino, &page.entries);
        }
        let part = match page.end {
            true => Some(ListedPart::All),
            false => self.cache.is_as_said(ino, &asked).map(ListedPart::Page),
        };
        if let Some(part) = part
            && self.cache.has_all(ino, &page.entries, part)
        {
            of.come(&page.entries, part);
        }
    }

    /// Lists a directory that was listed ahead, from its beginning and with attributes; `None` if
    /// it was not, or others could change it since.
    pub(crate) async fn take_listed(
        &self,
        caller: &Caller,
        file: &OpenFile,
        bytes_max: u32,
    ) -> Option<Listing> {
        if !self.directories_ahead.is_on() || !caller.may_all() {
            return None;
        }
        let directory = file.ino;
        let kept = self.directories_ahead.take(directory).await?;
        let (part, was_ahead) = (kept.part, kept.is_of_walk);
        let mut entries = kept.to_tell();
        // It was learned under locks, which others may have by now.
        if self.is_suspended() || !self.cache.has_all(directory, &entries, part) {
            return None;
        }
        glint_telemetry::count(Counter::DirectoriesListedAheadUsed, u64::from(was_ahead));
        let len = kept.page_len(bytes_max);
        let is_end = part == ListedPart::All && len == entries.len();
        let page = ListedPage { is_begin: true, is_end, was_ahead };
        // The others are asked for, as without this.
        entries.truncate(len);
        file.pages_ahead.go(0, &entries);
        self.note_told(caller, file, page, &entries);
        let valid = entries.iter_mut().map(|entry| self.cache.add_attributes(directory, entry));
        let valid = valid.collect();
        Some(Listing { entries, valid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(many: u64) -> Vec<DirEntry> {
        let entry = |number: u64| DirEntry {
            ino: Ino(number + 1),
            cookie: number + 1,
            dirent_type: FileType::Regular.dirent_type(),
            name: number.to_string().into_bytes(),
            attr: None,
        };
        (0..many).map(entry).collect()
    }

    #[test]
    fn entries_for_which_the_kernel_had_no_room_are_noted_once() {
        let (all, listed_to) = (entries(50), ListedTo::default());
        let new = |is_begin: bool, page: &[DirEntry]| {
            listed_to.take_new(is_begin, page).iter().map(|entry| entry.cookie).collect::<Vec<_>>()
        };
        assert_eq!(new(true, &all[..30]).len(), 30);
        assert_eq!(new(false, &all[25..40]), (31..=40).collect::<Vec<_>>());
        assert_eq!(new(false, &all[10..20]).len(), 0, "a program has gone back");
        assert_eq!(new(false, &all[38..]), (41..=50).collect::<Vec<_>>());
        assert_eq!((new(false, &[]).len(), new(true, &all).len()), (0, 50));
    }

    #[test]
    fn listings_that_nobody_uses_are_limited_and_go_when_memory_is_short() {
        let ahead = Arc::<DirectoriesAhead>::default();
        let come = |directory: u64, many: u64| {
            let listing = ahead.begin(Ino(directory), true).unwrap();
            assert!(ahead.begin(Ino(directory), true).is_none(), "it is on its way");
            listing.come(&entries(many), ListedPart::All);
        };
        let kept = || {
            let listings = ahead.listings.lock();
            assert_eq!(listings.listings.len(), listings.order.len());
            (listings.order.len(), listings.entries)
        };
        (1..=2 * LISTINGS_MAX as u64).for_each(|directory| come(directory, 10));
        assert_eq!(kept(), (LISTINGS_MAX, 10 * LISTINGS_MAX));
        let window = |inodes_max| ahead.listings.lock().window_max(inodes_max);
        let new = 1_000_000;
        come(new, AHEAD_MAX as u64);
        assert_eq!((window(usize::MAX), window(1000)), (3, 0), "large ones have come");
        let ask = |directory| ahead.begin(Ino(directory), true).unwrap();
        let asked: Vec<_> = (new + 1..).map(ask).take(ON_THEIR_WAY_MAX).collect();
        assert_eq!(window(usize::MAX), 0, "enough are on their way");
        ahead.keep(Ino(new + 1), &entries(9));
        drop(asked);
        assert_eq!(window(usize::MAX), 3);
        come(new + 1, ENTRIES_MAX as u64);
        assert_eq!(kept(), (1, ENTRIES_MAX), "one that is on its way is waited for");
        for many in [9, 10] {
            ahead.keep(Ino(new + 2), &entries(many));
            assert_eq!(kept(), (1, many as usize), "the last one");
        }
        drop(ahead.begin(Ino(new + 3), false));
        assert_eq!(kept(), (1, 10), "it is not on its way any more");
        ahead.set_short(true);
        assert_eq!((kept(), window(usize::MAX)), ((0, 0), 0));
        come(new, 1);
        ahead.keep(Ino(new), &entries(1));
        assert_eq!(kept(), (0, 0));
        ahead.set_short(false);
        come(new, 1);
        assert_eq!(kept(), (1, 1));
    }
}

//! The page of a directory that follows the one that a program is told of: it is asked for
//! meanwhile, for each open directory by itself.
//!
//! The kernel has room for fewer entries than a page has, and goes on in the middle of it. So the
//! entries that it was told of last are kept as well, without attributes: some 60 KB in all.
//!
//! Invariants:
//! - Entries are told only if the cache says at that moment, under locks, that the directory has
//!   them and that no name was made or lost in it since the oldest of them came.
//! - Of an open directory one page is on its way at most, and only for who has asked for two pages
//!   in order. After one that was of no use there is none until the directory is listed again.
//! - Entries are kept of so many open directories: they go where that was begun first.

use crate::cache::attrs::Tick;
use crate::cache::in_flight::Asked;
use crate::calls::open_files::OpenFile;
use crate::client::Client;
use crate::listing::ListedPage;
use crate::listing::kept::{KeptEntry, ListedPart, page_len};
use crate::vfs::{Caller, Listing};
use glint_net::{Transport, host};
use glint_proto::limits::DIR_PAGE_BYTES_MAX;
use glint_proto::{DirEntry, DirPage, MdsReply, MdsRequest};
use glint_wait::Monitor;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Open directories of which entries are kept: 4 MiB.
pub(crate) const DIRECTORIES_MAX: usize = 64;

/// What comes ahead of a program that reads an open directory, which waits here for it.
#[derive(Default)]
pub(crate) struct PagesAhead(Monitor<PagesInOrder>);

/// Pages of a directory in the order in which a program asks for them. No I/O.
#[derive(Default)]
struct PagesInOrder {
    /// The program has asked for what follows this cookie last, and was told of it up to another
    /// one.
    asked: u64,
    told: u64,
    kept: Option<Box<KeptPages>>,
    is_on_its_way: bool,
    /// What came was of no use: the directory is changed while it is read.
    was_in_vain: bool,
}

/// Entries that follow what a program has asked for last, as far as they have come.
struct KeptPages {
    entries: Vec<KeptEntry>,
    is_end: bool,
    /// When the oldest of them came.
    since: Tick,
}

/// Entries that a program may be told of, if they are still so.
struct PageToTell {
    entries: Vec<DirEntry>,
    is_end: bool,
    since: Tick,
}

impl PagesInOrder {
    /// Whether who asks for what follows this cookie reads on in order.
    fn is_next(&self, cookie: u64) -> bool {
        self.asked < cookie && cookie <= self.told
    }

    /// A program is told of what follows a cookie, up to `last`. Returns whether more may be asked
    /// for ahead: it reads in order.
    fn go(&mut self, cookie: u64, last: u64) -> bool {
        let is_next = self.is_next(cookie);
        if !is_next {
            self.kept = None;
        }
        self.was_in_vain &= cookie != 0;
        (self.asked, self.told) = (cookie, last);
        is_next && !self.was_in_vain
    }

    /// Keeps what a program is told of.
    fn keep(&mut self, entries: &[DirEntry], since: Tick) {
        let entries = entries.iter().map(KeptEntry::of).collect();
        self.kept = Some(Box::new(KeptPages { entries, is_end: false, since }));
    }

    /// What follows a cookie, as much as there is room for; `None` if nothing of it is here.
    fn tell(&mut self, cookie: u64, bytes_max: u32) -> Option<PageToTell> {
        if !self.is_next(cookie) {
            return None;
        }
        let KeptPages { entries, is_end, since } = self.kept.as_deref_mut()?;
        let before = entries.partition_point(|entry| entry.cookie <= cookie);
        entries.drain(..before);
        let len = page_len(entries, bytes_max);
        let is_end = *is_end && len == entries.len();
        let entries = entries[..len].iter().map(KeptEntry::to_tell).collect();
        (len > 0).then_some(PageToTell { entries, is_end, since: *since })
    }

    /// The next page is about to be asked for, if what is here fits into one. Returns the cookie
    /// that it follows.
    fn begin(&mut self, bytes_max: u32) -> Option<u64> {
        let kept = self.kept.as_deref().filter(|kept| !kept.is_end)?;
        let last = kept.entries.last()?.cookie;
        let told = kept.entries.partition_point(|entry| entry.cookie <= self.told);
        let rest = &kept.entries[told..];
        if self.is_on_its_way || page_len(rest, bytes_max) < rest.len() {
            return None;
        }
        self.is_on_its_way = true;
        Some(last)
    }

    /// The page has come that follows a cookie.
    fn come(&mut self, cookie: u64, page: &DirPage) {
        let Some(kept) = self.kept.as_deref_mut() else { return };
        // The program may have begun anew.
        if kept.entries.last().is_some_and(|last| last.cookie == cookie) {
            kept.entries.extend(page.entries.iter().map(KeptEntry::of));
            kept.is_end = page.end;
        }
    }
}

impl PagesAhead {
    /// A program is told of these entries, which follow a cookie. Returns whether more may be asked
    /// for ahead.
    pub(super) fn go(&self, cookie: u64, entries: &[DirEntry]) -> bool {
        let last = entries.last().map_or(cookie, |last| last.cookie);
        self.0.lock().go(cookie, last)
    }

    /// Forgets what has come.
    pub(crate) fn forget(&self) {
        self.0.lock().kept = None;
    }

    /// What has come was of no use.
    fn note_in_vain(&self) {
        let mut pages = self.0.lock();
        (pages.kept, pages.was_in_vain) = (None, true);
    }

    /// What follows a cookie, if it was asked for ahead. While it is on its way, waits for it.
    async fn next(&self, cookie: u64, bytes_max: u32) -> Option<PageToTell> {
        let look = |pages: &mut PagesInOrder| {
            let comes = pages.is_on_its_way && pages.kept.is_some() && pages.is_next(cookie);
            (!comes).then(|| pages.tell(cookie, bytes_max))
        };
        self.0.until(look).await
    }
}

/// Open directories of which entries are kept; the one that was begun first comes first.
#[derive(Default)]
pub(crate) struct DirectoriesWithPages(Mutex<VecDeque<Weak<PagesAhead>>>);

impl DirectoriesWithPages {
    /// Entries of one are kept from now on.
    fn note(&self, pages: &Arc<PagesAhead>) {
        let oldest = {
            let mut all = self.0.lock();
            let is_other = |known: &Weak<PagesAhead>| {
                known.strong_count() > 0 && known.as_ptr() != Arc::as_ptr(pages)
            };
            all.retain(is_other);
            all.push_back(Arc::downgrade(pages));
            if all.len() > DIRECTORIES_MAX { all.pop_front() } else { None }
        };
        if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade()) {
            oldest.forget();
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        let all: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        all.iter().filter(|pages| pages.0.lock().kept.is_some()).count()
    }
}

/// A page that is on its way. When this is dropped, nobody waits for it any more.
struct PageOnItsWay {
    file: Arc<OpenFile>,
    /// It follows this one.
    cookie: u64,
}

impl Drop for PageOnItsWay {
    fn drop(&mut self) {
        self.file.pages_ahead.0.change(|pages| pages.is_on_its_way = false);
    }
}

impl<T: Transport> Client<T> {
    /// Whether pages of directories may come ahead for who asks.
    fn has_pages_ahead(&self, caller: &Caller) -> bool {
        let ahead = &self.directories_ahead;
        ahead.is_on() && caller.may_all() && !ahead.listings.lock().is_short
    }

    /// Goes on with a directory by what came ahead, with attributes; `None` if nothing did, or
    /// others could change it since.
    pub(crate) async fn take_next_page(
        &self,
        caller: &Caller,
        file: &Arc<OpenFile>,
        cookie: u64,
        bytes_max: u32,
    ) -> Option<Listing> {
        if !self.has_pages_ahead(caller) {
            return None;
        }
        let (directory, ahead) = (file.ino, &file.pages_ahead);
        let PageToTell { mut entries, is_end, since } = ahead.next(cookie, bytes_max).await?;
        let part = ListedPart::Page(since);
        // It was learned under locks, which others may have by now.
        if self.is_suspended() || !self.cache.has_all(directory, &entries, part) {
            ahead.note_in_vain();
            return None;
        }
        ahead.go(cookie, &entries);
        let page = ListedPage { is_begin: false, is_end, was_ahead: true };
        self.note_told(caller, file, page, &entries);
        self.ask_for_page(caller, file, bytes_max);
        let valid = entries.iter_mut().map(|entry| self.cache.add_attributes(directory, entry));
        let valid = valid.collect();
        Some(Listing { entries, valid })
    }

    /// A program is told of what follows a cookie, as the answer to what was asked says it: asks
    /// for the next page meanwhile, if it reads in order and nobody changes the directory.
    pub(crate) fn go_on_ahead(
        &self,
        caller: &Caller,
        file: &Arc<OpenFile>,
        (cookie, bytes_max): (u64, u32),
        page: ListedPage,
        entries: &[DirEntry],
        asked: &Asked,
    ) {
        if !self.has_pages_ahead(caller) {
            return;
        }
        let may_go_on = file.pages_ahead.go(cookie, entries) && !page.is_end;
        let since = if may_go_on { self.cache.is_as_said(file.ino, asked) } else { None };
        if let Some(since) = since
            && self.cache.has_all(file.ino, entries, ListedPart::Page(since))
        {
            file.pages_ahead.0.lock().keep(entries, since);
            self.directories_ahead.with_pages.note(&file.pages_ahead);
            self.ask_for_page(caller, file, bytes_max);
        }
    }

    /// Asks for the next page of a directory, if that is due.
    fn ask_for_page(&self, caller: &Caller, file: &Arc<OpenFile>, bytes_max: u32) {
        let Some(client) = self.me.get().and_then(Weak::upgrade) else { return };
        let begun = file.pages_ahead.0.lock().begin(bytes_max);
        if let Some(cookie) = begun {
            let on_its_way = PageOnItsWay { file: file.clone(), cookie };
            host::spawn(client.page_ahead(caller.clone(), on_its_way));
        }
    }

    async fn page_ahead(self: Arc<Self>, caller: Caller, of: PageOnItsWay) {
        let (ino, cookie, bytes_max) = (of.file.ino, of.cookie, DIR_PAGE_BYTES_MAX as u32);
        let request = MdsRequest::Readdir { ino, cookie, bytes_max, plus: true };
        let mut asked = Asked::now();
        // What is refused, so is who asks for it.
        let Ok(MdsReply::Dir(page)) = self.ask_to_learn(&caller, &request, &mut asked).await else {
            return;
        };
        self.cache.learn_page(ino, cookie, &page, &asked);
        if self.cache.is_as_said(ino, &asked).is_some() {
            of.file.pages_ahead.0.lock().come(cookie, &page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::Ino;

    /// A page with one entry for each of these cookies.
    fn page(cookies: std::ops::Range<u64>, end: bool) -> DirPage {
        let entry = |cookie: u64| DirEntry {
            ino: Ino(cookie),
            cookie,
            dirent_type: 0,
            name: cookie.to_string().into_bytes(),
            attr: None,
        };
        DirPage { entries: cookies.map(entry).collect(), end }
    }

    /// A program that has read two pages: the next one is on its way.
    fn begun() -> PagesInOrder {
        let mut pages = PagesInOrder::default();
        assert!(!pages.go(0, 20), "one page is no order");
        assert!(pages.go(15, 40), "for the others there was no room");
        pages.keep(&page(16..41, false).entries, Tick::ask());
        assert_eq!((pages.begin(0), pages.begin(0)), (Some(40), None), "one at a time");
        pages
    }

    fn cookies(told: &PageToTell) -> (u64, u64) {
        (told.entries[0].cookie, told.entries[told.entries.len() - 1].cookie)
    }

    #[test]
    fn who_reads_in_order_is_told_of_each_entry_once() {
        let mut pages = begun();
        pages.come(40, &page(41..90, false));
        pages.is_on_its_way = false;
        let told = pages.tell(35, 0).unwrap();
        assert_eq!((cookies(&told), told.is_end), ((36, 66), false));
        assert!(pages.go(35, 66));
        assert_eq!(pages.begin(0), Some(89), "the rest fits into a page");
        pages.come(89, &page(90..100, true));
        pages.is_on_its_way = false;
        assert!(pages.go(60, 91) && pages.begin(0).is_none(), "all are here");
        let told = pages.tell(85, 0).unwrap();
        assert_eq!((cookies(&told), told.is_end), ((86, 99), true));
        pages.go(85, 99);
        assert!(pages.tell(99, 0).is_none(), "who asks again wants to know what is new");
    }

    #[test]
    fn who_goes_elsewhere_is_told_of_nothing_that_came() {
        for elsewhere in [0, 15, 41] {
            let mut pages = begun();
            assert!(pages.tell(elsewhere, 0).is_none());
            assert!(!pages.go(elsewhere, elsewhere + 20));
            pages.come(40, &page(41..90, false));
            pages.is_on_its_way = false;
            assert!(pages.tell(elsewhere + 1, 0).is_none() && pages.begin(0).is_none());
        }
    }

    #[test]
    fn entries_are_kept_of_so_many_open_directories() {
        let all = DirectoriesWithPages::default();
        let open = || Arc::new(PagesAhead(Monitor::new(begun())));
        let opened: Vec<_> = (0..2 * DIRECTORIES_MAX).map(|_| open()).collect();
        for (at, pages) in opened.iter().enumerate() {
            all.note(pages);
            // It is begun anew.
            all.note(&opened[at - at % DIRECTORIES_MAX]);
            assert_eq!(all.count(), DIRECTORIES_MAX.min(at + 1));
        }
        let is_kept = |at: usize| opened[at].0.lock().kept.is_some();
        assert!(!is_kept(1) && is_kept(DIRECTORIES_MAX) && is_kept(2 * DIRECTORIES_MAX - 1));
        drop(opened);
        assert_eq!(all.count(), 0, "they are closed");
        let last = open();
        all.note(&last);
        assert_eq!((all.count(), all.0.lock().len()), (1, 1));
        last.forget();
        assert_eq!(all.count(), 0);
    }

    #[test]
    fn nothing_comes_ahead_in_a_directory_that_changes() {
        let ahead = PagesAhead(Monitor::new(begun()));
        ahead.note_in_vain();
        let mut pages = ahead.0.lock();
        assert!(!pages.go(35, 60) && !pages.go(60, 90) && !pages.go(0, 20));
        assert!(pages.go(20, 40), "it is listed again");
    }
}

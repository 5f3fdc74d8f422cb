//! Pages of directories, learned for names that are going to be looked up.
//!
//! Invariants:
//! - A directory is complete only if one page had all of its names, each of them is known under its
//!   lock, and nobody could make another one since it was asked for.
//! - A page that nobody waits for any more is asked for again as if it had not been.
//! - All pages have come since names were listed only if they came from the first to the last.

use crate::cache::Cache;
use crate::cache::in_flight::Asked;
use crate::cache::inode::CachedInode;
use glint_proto::limits::DIR_PAGE_BYTES_MAX;
use glint_proto::{DirPage, Ino};
use glint_telemetry::Counter;
use std::sync::atomic::{AtomicU32, Ordering};

/// Doublings of the names that are looked up one by one before another page is asked for.
const PAGES_DOUBLING: u32 = 10;
/// The same where names were listed: a page takes as long as some names.
const LISTED_DOUBLING: u32 = 3;
/// Lookups that a page has answered when it was worth more than it took.
const ANSWERED_MANY: u32 = 16;
/// Cookies that names can have: they are hashes, and positive as an `off_t`.
const COOKIES: u64 = 1 << 63;
/// Lookups that take no less time than a page, each of which has to be asked.
const PAGE_LOOKUPS: u64 = 5;
/// Pages of the largest directory that comes whole because many names were looked up: as many names as
/// a client keeps of what came early.
const PAGES_MAX: u64 = 256;
/// Which part of the inodes that may be known its names may be: others are used meanwhile.
const INODES_PART: u64 = 3;
/// Guesses that may still be made, at most.
const GUESSES_MAX: u32 = 8;
/// Guesses that each page earns that was of use.
const GUESSES_EARNED: u32 = 2;

/// Size of a page that is asked for because of lookups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageSize {
    /// A directory with no more than some ten names is complete then.
    Small,
    /// As large as a page can be.
    Large,
}

impl PageSize {
    /// Most bytes of the page.
    pub(crate) fn bytes(self) -> u32 {
        match self {
            PageSize::Small => 8 << 10,
            PageSize::Large => DIR_PAGE_BYTES_MAX as u32,
        }
    }
}

/// A page that is asked for instead of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageWish {
    /// It begins after this cookie.
    pub(crate) cookie: u64,
    pub(crate) size: PageSize,
    /// No other name was looked up in the directory before.
    pub(crate) is_guess: bool,
}

/// Pages of a directory that were asked for because names were looked up one by one: after two of
/// them the first, or at once where that is guessed; and each time after twice as many another one,
/// in turns. So what is asked for in vain is a small part, however large the directory is.
///
/// There is reason to ask sooner. A page that has answered many lookups is worth the next one: they
/// come in the order of the directory. And who has listed names without attributes is likely to look
/// all of them up, in an order of its own (find(1) by their numbers): until all pages have come, one
/// is asked for with each few names, which takes no longer than to ask for these.
///
/// Who looks names up in another order, as of a list that is sorted by name, finds few of them on the
/// first pages of a large directory. How large it is follows from the last page, because cookies are
/// spread evenly. Once names of it were asked for that took as long as all of its pages take, these are
/// asked for, one with each third name: it takes twice as long as it had to at worst, if nothing is
/// looked up after that. Not where the first ones would be forgotten before the last ones come.
#[derive(Default)]
pub(crate) struct Pages {
    count: u32,
    /// Names that were looked up since, and were not known.
    names: u32,
    /// Names that were, and were known.
    answered: u32,
    /// Names that were asked for one by one and are there, since all pages had come.
    missed: u64,
    /// Cookies that the last page spans, if one has come that was not the last of the directory, and
    /// its names.
    span: u64,
    page_names: u64,
    listed: Listed,
    /// Cookie of the last entry of the last page, or 0 after the last one.
    cookie: u64,
    /// The page after this one was asked for last; while that is the next one, it is under way, or was
    /// refused.
    wished: Option<u64>,
}

/// Whether names were listed without attributes, and not all pages have come since.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Listed {
    #[default]
    No,
    /// They come from the middle of the directory; those before follow after the last one.
    FromTheMiddle,
    /// They come from the first one.
    FromTheFirst,
}

impl Pages {
    /// Names that are looked up one by one before a page is asked for, where so many inodes may be
    /// known.
    fn patience(&self, inodes_max: usize) -> u32 {
        let doubled = match (self.answered >= ANSWERED_MANY, self.listed) {
            _ if self.wished == Some(self.cookie) => PAGES_DOUBLING,
            (true, _) => 1,
            _ if self.is_swept(inodes_max) => 1,
            (false, Listed::No) => PAGES_DOUBLING,
            (false, _) => LISTED_DOUBLING,
        };
        1 << self.count.min(doubled)
    }

    /// Whether as many names were asked for as take the time of all pages, and all of them may be
    /// known together.
    fn is_swept(&self, inodes_max: usize) -> bool {
        let names_max = inodes_max as u64 / INODES_PART;
        let may_come = |pages: &u64| *pages <= PAGES_MAX && *pages * self.page_names <= names_max;
        let pages = COOKIES.checked_div(self.span).filter(may_come);
        pages.is_some_and(|pages| self.missed >= PAGE_LOOKUPS * pages)
    }

    /// A name is looked up that is not known, where so many inodes may be. Returns the page of names
    /// that is worth asking for instead. At the first lookup that is a `guess`.
    pub(crate) fn wish(
        &mut self,
        inodes_max: usize,
        guess: impl FnOnce() -> Option<PageSize>,
    ) -> Option<PageWish> {
        self.names += 1;
        let guessed = if (self.count, self.names) == (0, 1) { guess() } else { None };
        if guessed.is_none() && self.names <= self.patience(inodes_max) {
            return None;
        }
        let is_small = self.count == 0 && self.listed == Listed::No;
        let size = if is_small { PageSize::Small } else { PageSize::Large };
        (self.names, self.answered) = (0, 0);
        self.count += 1;
        self.wished = Some(self.cookie);
        let is_guess = guessed.is_some();
        Some(PageWish { cookie: self.cookie, size: guessed.unwrap_or(size), is_guess })
    }

    /// Another lookup has found an inode without asking.
    pub(crate) fn note_answered(&mut self) {
        self.answered = self.answered.saturating_add(1);
    }

    /// A name was asked for alone, and is there.
    pub(crate) fn note_missed(&mut self) {
        self.missed += 1;
    }

    /// Names are listed for a program, without their attributes.
    pub(crate) fn note_listed(&mut self) {
        if self.listed == Listed::No {
            let is_first = self.cookie == 0;
            self.listed = if is_first { Listed::FromTheFirst } else { Listed::FromTheMiddle };
        }
    }

    /// A page of so many names has come that was asked for after one cookie and ends with another one;
    /// `None` if it was the last.
    fn note_page(&mut self, after: u64, last: Option<u64>, names: usize) {
        // Others may have asked for the same page.
        if after != self.cookie {
            return;
        }
        (self.cookie, self.wished) = (last.unwrap_or(0), None);
        if let Some(last) = last {
            (self.span, self.page_names) = (last.saturating_sub(after), names as u64);
        } else {
            self.missed = 0;
            self.listed = match self.listed {
                Listed::FromTheMiddle => Listed::FromTheFirst,
                Listed::FromTheFirst | Listed::No => Listed::No,
            };
        }
    }

    /// A page was refused: who looks names up may not list them.
    fn note_refused(&mut self) {
        self.listed = Listed::No;
    }

    /// Nobody waits any more for the page after this cookie.
    fn give_up(&mut self, cookie: u64) {
        self.wished = self.wished.filter(|wished| *wished != cookie);
    }
}

/// A page that is under way. Without an answer, as when nobody waits for it any more, it is given up.
pub(crate) struct PageUnderWay<'a> {
    directory: &'a CachedInode,
    cookie: Option<u64>,
}

impl<'a> PageUnderWay<'a> {
    pub(crate) fn new(directory: &'a CachedInode, wish: PageWish) -> PageUnderWay<'a> {
        PageUnderWay { directory, cookie: Some(wish.cookie) }
    }

    /// It has come.
    pub(crate) fn come(mut self) {
        self.cookie = None;
    }

    /// It was refused: who looks names up may not list them. It is not asked for again soon.
    pub(crate) fn refused(mut self) {
        self.cookie = None;
        self.directory.lock().dentries.pages().note_refused();
    }
}

impl Drop for PageUnderWay<'_> {
    fn drop(&mut self) {
        if let Some(cookie) = self.cookie {
            self.directory.lock().dentries.pages().give_up(cookie);
        }
    }
}

/// Most often that what earns a guess is doubled.
const MISSES_MAX: u32 = 6;

/// Guesses that a page is worth asking for at the first lookup in a directory, since pages of other
/// directories were of use: no more than [`GUESSES_EARNED`] for each of these. After guesses that
/// were wrong, twice as many pages of use as before earn the next one, until one is right.
#[derive(Default)]
pub(crate) struct PageGuesses {
    left: AtomicU32,
    /// Those of them that may be of large pages.
    large: AtomicU32,
    /// Guesses that were wrong since the last one that was right.
    misses: AtomicU32,
    /// Pages of use that have earned nothing yet.
    of_use: AtomicU32,
}

impl PageGuesses {
    /// Takes a guess, if one is left.
    pub(crate) fn take(&self) -> Option<PageSize> {
        if !spend(&self.left) {
            return None;
        }
        glint_telemetry::count(Counter::PagesGuessed, 1);
        Some(if spend(&self.large) { PageSize::Large } else { PageSize::Small })
    }

    /// Adds guesses: a page was of use, or would have been at the first lookup.
    pub(crate) fn earn(&self, size: PageSize) {
        let needed = 1 << self.misses.load(Ordering::Relaxed).min(MISSES_MAX);
        if self.of_use.fetch_add(1, Ordering::Relaxed) + 1 < needed {
            return;
        }
        self.of_use.store(0, Ordering::Relaxed);
        let more = |guesses: u32| Some((guesses + GUESSES_EARNED).min(GUESSES_MAX));
        let add = |to: &AtomicU32| _ = to.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        add(&self.left);
        if size == PageSize::Large {
            add(&self.large);
        }
    }

    /// Adds guesses: one was right, as another lookup shows.
    pub(crate) fn was_right(&self, size: PageSize) {
        glint_telemetry::count(Counter::PagesGuessedUsed, 1);
        self.misses.store(0, Ordering::Relaxed);
        self.earn(size);
    }

    /// Ends guessing until another page is of use: one was wrong, and cost a request.
    pub(crate) fn end(&self) {
        for count in [&self.left, &self.large, &self.of_use] {
            count.store(0, Ordering::Relaxed);
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
    }
}

/// Takes one from these, if there is one.
fn spend(from: &AtomicU32) -> bool {
    let fewer = |guesses: u32| guesses.checked_sub(1);
    from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok()
}

impl Cache {
    /// Learns the entries after `cookie` of a directory, as the servers said them in answer to what
    /// was asked then. The kernel is not told of them, so nobody but `idle.rs` forgets them.
    pub(crate) fn learn_page(&self, parent: Ino, cookie: u64, page: &DirPage, asked: &Asked) {
        let mut is_all = cookie == 0 && page.end;
        for entry in &page.entries {
            if matches!(entry.name.as_slice(), b"." | b"..") {
                continue;
            }
            let Some(attr) = &entry.attr else {
                // Another client has it for itself.
                is_all = false;
                continue;
            };
            let inode = self.inode(attr.ino);
            let named = (parent, entry.name.as_slice());
            let (state, held) = self.learn_entry(&inode, named, attr, asked, !attr.size_on_ost);
            drop(state);
            is_all &= held;
            self.note_idle(&inode);
        }
        let directory = self.inode(parent);
        let mut state = directory.lock();
        let next = page.entries.last().filter(|_| !page.end);
        state.dentries.pages().note_page(cookie, next.map(|last| last.cookie), page.entries.len());
        if is_all && state.is_protected(parent, asked) && state.dentries.has_learned_all(asked.at) {
            state.dentries.set_complete(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of a page, and inodes that may be known, as is usual.
    const NAMES: usize = 440;
    const INODES: usize = glint_proto::limits::KNOWN_INODES_MAX;

    #[test]
    fn pages_are_asked_for_more_and_more_seldom() {
        let mut pages = Pages::default();
        let mut asked = Vec::new();
        for name in 1..40 {
            if let Some(PageWish { cookie, size, is_guess: false }) = pages.wish(INODES, || None) {
                let count = asked.len() as u64;
                asked.push((name, cookie, size));
                pages.note_page(cookie, (count < 2).then_some(count + 7), NAMES);
            }
        }
        use PageSize::{Large, Small};
        let of_size =
            [(2, 0, Small), (5, 7, Large), (10, 8, Large), (19, 0, Large), (36, 0, Large)];
        assert_eq!(asked, of_size);
        let many = (0..100_000).filter(|_| pages.wish(INODES, || None).is_some()).count();
        assert!((90..110).contains(&many), "{many}");
    }

    /// The next page that is asked for: after how many names, and after which cookie.
    fn wish(pages: &mut Pages) -> (u32, u64) {
        (1..5000).find_map(|n| Some((n, pages.wish(INODES, || None)?.cookie))).unwrap()
    }

    /// Has the next page come. Returns after how many names.
    fn next(pages: &mut Pages) -> u32 {
        let (misses, cookie) = wish(pages);
        pages.note_page(cookie, Some(cookie + 7), NAMES);
        misses
    }

    #[test]
    fn pages_that_are_worth_it_are_asked_for_sooner() {
        let mut pages = Pages::default();
        let asked: Vec<u32> = (0..6).map(|_| next(&mut pages)).collect();
        assert_eq!(asked, [2, 3, 5, 9, 17, 33]);
        (0..ANSWERED_MANY).for_each(|_| pages.note_answered());
        assert_eq!([next(&mut pages), next(&mut pages)], [3, 129], "the next one was not");
        pages.note_listed();
        assert_eq!([next(&mut pages), next(&mut pages)], [9, 9]);
        // Others look names up while it is under way, and it comes twice.
        let (misses, cookie) = wish(&mut pages);
        assert_eq!((misses, wish(&mut pages)), (9, (1025, cookie)));
        pages.note_page(cookie, Some(99), NAMES);
        pages.note_page(cookie, None, NAMES);
        assert_eq!(wish(&mut pages), (9, 99));
        pages.note_page(99, Some(100), NAMES);
        pages.note_refused();
        assert_eq!(next(&mut pages), 1025);
        pages.note_listed();
        let (_, cookie) = wish(&mut pages);
        pages.note_page(cookie, None, NAMES);
        assert_eq!(wish(&mut pages), (9, 0), "those before it have not come since");
        pages.note_page(0, None, NAMES);
        assert_eq!(next(&mut pages), 1025, "all have come");
        // A directory of one page: it is not under way for ever.
        let mut small = Pages::default();
        for _ in 0..9 {
            small.note_listed();
            let (misses, cookie) = wish(&mut small);
            assert!(misses <= 9, "{misses}");
            small.note_page(cookie, None, NAMES);
        }
    }

    /// Looks names up, of a directory of so many pages, which all have to be asked for. Returns how many
    /// were when all pages have come, `names_max` at most, and how many pages have.
    fn names_until_all_have_come(count: u64, names_max: u64) -> (u64, u64) {
        let (mut pages, mut come) = (Pages::default(), 0);
        for names in 1..=names_max {
            let Some(PageWish { cookie, .. }) = pages.wish(INODES, || None) else {
                pages.note_missed();
                continue;
            };
            come += 1;
            let next = cookie + COOKIES / count;
            pages.note_page(cookie, (come < count).then_some(next), NAMES);
            if come == count {
                assert_eq!(wish(&mut pages).1, 0);
                assert!(!pages.is_swept(INODES), "all over again");
                return (names, come);
            }
        }
        (names_max, come)
    }

    #[test]
    fn a_directory_comes_whole_once_as_many_names_were_asked_for_as_it_takes() {
        for (count, names_max) in [(4, 30), (20, 180), (100, 850), (210, 1800)] {
            let (names, come) = names_until_all_have_come(count, 100_000);
            assert!(names <= names_max && come == count, "{count} pages: {names} names");
        }
        // Few names cost what they do in a small one.
        let (_, pages_of_few) = names_until_all_have_come(210, 1000);
        assert!(pages_of_few <= 10, "{pages_of_few}");
        let (_, pages_of_huge) = names_until_all_have_come(2 * PAGES_MAX, 20_000);
        assert!(pages_of_huge <= 30, "{pages_of_huge}");
    }

    /// They would be forgotten, and brought again and again.
    #[test]
    fn a_directory_does_not_come_whole_where_its_names_cannot_all_be_known() {
        let mut pages = Pages::default();
        let count = 210;
        pages.note_page(0, Some(COOKIES / count), NAMES);
        (0..PAGE_LOOKUPS * count).for_each(|_| pages.note_missed());
        let names = NAMES * count as usize;
        assert!(pages.is_swept(INODES) && pages.is_swept(3 * names));
        assert!(!pages.is_swept(3 * names - 3) && !pages.is_swept(4096));
    }

    #[test]
    fn a_page_that_nobody_waits_for_is_asked_for_again() {
        let directory = CachedInode::new(Ino(7));
        let wish = || {
            let mut state = directory.lock();
            let pages = state.dentries.pages();
            pages.note_listed();
            (1..5000).find_map(|n| Some((n, pages.wish(INODES, || None)?))).unwrap()
        };
        for _ in 0..4 {
            drop(PageUnderWay::new(&directory, wish().1));
        }
        let (misses, asked) = wish();
        assert_eq!(misses, 9);
        PageUnderWay::new(&directory, asked).refused();
        assert_eq!(wish().0, 33);
    }

    #[test]
    fn only_the_first_lookup_is_a_guess() {
        let mut pages = Pages::default();
        let mut asked = Vec::new();
        for name in 1..10 {
            if let Some(wish) = pages.wish(INODES, || Some(PageSize::Small)) {
                asked.push((name, wish.size, wish.is_guess));
            }
        }
        let large = |name| (name, PageSize::Large, false);
        assert_eq!(asked, [(1, PageSize::Small, true), large(4), large(9)]);
    }

    /// Directories of which a page is of use, and others in which it lacks the name, in turns.
    #[test]
    fn guesses_that_are_wrong_again_and_again_become_rare() {
        let guesses = PageGuesses::default();
        let mut wrong = 0;
        for _ in 0..1000 {
            guesses.earn(PageSize::Large);
            if guesses.take().is_some() {
                guesses.end();
                assert_eq!(guesses.take(), None);
                wrong += 1;
            }
        }
        assert!((10..25).contains(&wrong), "{wrong}");
        guesses.was_right(PageSize::Small);
        assert_eq!(guesses.take(), Some(PageSize::Small), "no large one was of use since then");
        guesses.earn(PageSize::Small);
        assert!(guesses.take().is_some(), "one page is enough again");
    }
}

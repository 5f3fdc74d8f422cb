//! Pages of directories, learned for names that are going to be looked up.
//!
//! Invariant: a directory is complete only if one page had all of its names, each of them is known
//! under its lock, and nobody could make another one since it was asked for.

use crate::cache::Cache;
use crate::cache::attrs::Tick;
use glint_proto::limits::DIR_PAGE_BYTES_MAX;
use glint_proto::lock::Bits;
use glint_proto::{DirPage, Ino};
use glint_telemetry::Counter;
use std::sync::atomic::{AtomicU32, Ordering};

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
    pub(crate) fn learn_page(&self, parent: Ino, cookie: u64, page: &DirPage, asked: Tick) {
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
        state.dentries.note_page(cookie, next.map(|last| last.cookie));
        if is_all && state.has(Bits::NEGATIVE) && state.dentries.has_learned_all(asked) {
            state.dentries.set_complete(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

//! Names of a directory that a client has cached.
//!
//! Invariants:
//! - A negative dentry is used only while it is protected: under `Bits::NEGATIVE`, or in a
//!   delegation. The caller has to say whether it is. A return of the bit forgets those that it
//!   protected.
//! - What was asked before names were lost, or changed by this client, says nothing of them any
//!   more: answers overtake each other, also with a recall and the next grant in between. An answer
//!   that is not believed is no such change, or one would follow the other where lookups overlap.
//! - Names are complete only while each name that the directory has is among them.
//! - The count of free names is not below their number, so limits on counts are limits on memory.

use crate::cache::attrs::Tick;
use crate::cache::inode::names::CachedName;
use crate::cache::inode::rare::{Rare, blank};
use crate::cache::pages::{PageSize, PageWish};
use glint_proto::Ino;
use std::collections::HashMap;
use std::num::NonZeroU64;

/// Doublings of the names that are looked up one by one before another page is asked for.
const PAGES_DOUBLING: u32 = 10;
/// The same where names were listed: a page takes as long as some names.
const LISTED_DOUBLING: u32 = 3;
/// Lookups that a page has answered when it was worth more than it took.
const ANSWERED_MANY: u32 = 16;

/// Known names of one directory.
#[derive(Default)]
pub(crate) struct Dentries {
    /// When names were lost or changed last.
    disturbed: Tick,
    known: Rare<KnownNames>,
}

/// The number of the inode of a name; `None` if the name is free. No inode has 0, for which the
/// kernel takes a name that is free.
type Child = Option<NonZeroU64>;

/// What is known of a directory once something is.
#[derive(Default)]
struct KnownNames {
    names: HashMap<CachedName, Child>,
    /// How many names were learned to be free since those were last forgotten all at once.
    negative: usize,
    complete: bool,
    /// When an answer was in doubt last: a page that was asked for before may not have all names.
    doubted: Tick,
    /// A page of this size was asked for at the first lookup, and has answered no other one yet.
    guessed: Option<PageSize>,
    pages: Pages,
}

blank!(KnownNames);

fn ino_of(child: NonZeroU64) -> Ino {
    Ino(child.get())
}

/// Pages of the directory that were asked for because names were looked up one by one: after two of
/// them the first, or at once where that is guessed; and each time after twice as many another one,
/// in turns. So what is asked for in vain is a small part, however large the directory is.
///
/// There is reason to ask sooner. A page that has answered many lookups is worth the next one: they
/// come in the order of the directory. And who has listed names without attributes is likely to look
/// all of them up, in an order of its own (find(1) by their numbers): until all pages have come, one
/// is asked for with each few names, which takes no longer than to ask for these.
#[derive(Default)]
struct Pages {
    count: u32,
    /// Names that were looked up since, and were not known.
    names: u32,
    /// Names that were, and were known.
    answered: u32,
    /// Names were listed without attributes since all pages have come.
    are_listed: bool,
    /// Cookie of the last entry of the last page, or 0 after the last one.
    cookie: u64,
    /// The page after this one was asked for last; while that is the next one, it is under way, or was
    /// refused.
    wished: Option<u64>,
}

impl Pages {
    /// Names that are looked up one by one before a page is asked for.
    fn patience(&self) -> u32 {
        let doubled = match (self.answered >= ANSWERED_MANY, self.are_listed) {
            _ if self.wished == Some(self.cookie) => PAGES_DOUBLING,
            (true, _) => 1,
            (false, true) => LISTED_DOUBLING,
            (false, false) => PAGES_DOUBLING,
        };
        1 << self.count.min(doubled)
    }
}

impl Dentries {
    /// Whether an answer to what was asked then is no older than what is known.
    pub(crate) fn may_learn(&self, asked: Tick) -> bool {
        self.disturbed.is_before(asked)
    }

    /// Whether all names are known that an answer to what was asked then has said.
    pub(crate) fn has_learned_all(&self, asked: Tick) -> bool {
        self.may_learn(asked) && self.known.doubted.is_before(asked)
    }

    /// The inode that a name leads to, if that is known.
    pub(crate) fn get(&self, name: &[u8]) -> Option<Ino> {
        self.known.names.get(name).copied().flatten().map(ino_of)
    }

    /// Whether it is known that there is no such name.
    pub(crate) fn is_free(&self, name: &[u8], protected: bool) -> bool {
        match self.known.names.get(name) {
            Some(child) => child.is_none() && protected,
            None => self.known.complete && protected,
        }
    }

    /// Whether a name is among those that are known to be free.
    pub(crate) fn has_negative(&self, name: &[u8]) -> bool {
        self.known.names.get(name).is_some_and(Option::is_none)
    }

    /// Whether a name that is not known here does not exist.
    pub(crate) fn is_complete(&self) -> bool {
        self.known.complete
    }

    /// Whether all names are known from now on.
    pub(crate) fn set_complete(&mut self, complete: bool) {
        if complete {
            self.known.make().complete = true;
        } else {
            self.incomplete();
        }
    }

    /// Whether no name is known to lead to an inode.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.names.values().all(Option::is_none)
    }

    /// Names that lead to inodes, and these.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], Ino)> {
        let names = self.known.names.iter();
        names.filter_map(|(name, child)| child.map(|child| (&**name, ino_of(child))))
    }

    /// The inodes of names.
    pub(crate) fn inodes(&self) -> Vec<Ino> {
        self.known.names.values().flatten().copied().map(ino_of).collect()
    }

    /// A name leads to this inode.
    pub(crate) fn insert(&mut self, name: &[u8], ino: Ino) {
        match NonZeroU64::new(ino.0) {
            Some(child) => _ = self.known.make().names.insert(name.into(), Some(child)),
            None => self.doubt(name),
        }
    }

    /// A name leads to this inode from now on, as this client has changed it.
    pub(crate) fn replace(&mut self, name: &[u8], ino: Ino) {
        self.disturbed = Tick::now();
        self.insert(name, ino);
    }

    /// A name is free. Whether it is the first that is.
    pub(crate) fn insert_negative(&mut self, name: &[u8]) -> bool {
        let known = self.known.make();
        known.names.insert(name.into(), None);
        known.negative += 1;
        known.negative == 1
    }

    /// Counts names that are free: no fewer than there are.
    pub(crate) fn negative(&self) -> usize {
        self.known.negative
    }

    /// A name is not known any more, or gone. Returns its inode.
    pub(crate) fn remove(&mut self, name: &[u8]) -> Option<Ino> {
        self.disturbed = Tick::now();
        self.known.made()?.names.remove(name).flatten().map(ino_of)
    }

    /// A name may lead anywhere, after a change: it is not the only one that is not known.
    pub(crate) fn doubt(&mut self, name: &[u8]) {
        self.disturbed = Tick::now();
        self.doubt_known(name);
    }

    /// An answer says of a name what was not known of it, and is not believed. Nothing was changed
    /// because of that, so other answers are as good as before.
    pub(crate) fn doubt_known(&mut self, name: &[u8]) {
        if let Some(known) = self.known.made() {
            known.names.remove(name);
            (known.complete, known.doubted) = (false, Tick::now());
        }
    }

    /// Forgets names that lead to inodes which `is_doubtful`.
    pub(crate) fn doubt_inodes(&mut self, is_doubtful: impl Fn(Ino) -> bool) {
        self.disturbed = Tick::now();
        if let Some(known) = self.known.made() {
            known.complete = false;
            known.names.retain(|_, child| child.is_none_or(|child| !is_doubtful(ino_of(child))));
        }
    }

    /// A name is looked up that is not known. Returns the page of names that is worth asking for
    /// instead. At the first lookup that is a `guess`.
    pub(crate) fn page_to_ask_for(
        &mut self,
        guess: impl FnOnce() -> Option<PageSize>,
    ) -> Option<PageWish> {
        let pages = &mut self.known.make().pages;
        pages.names += 1;
        let guessed = if (pages.count, pages.names) == (0, 1) { guess() } else { None };
        if guessed.is_none() && pages.names <= pages.patience() {
            return None;
        }
        let is_small = pages.count == 0 && !pages.are_listed;
        let size = if is_small { PageSize::Small } else { PageSize::Large };
        (pages.names, pages.answered) = (0, 0);
        pages.count += 1;
        pages.wished = Some(pages.cookie);
        let is_guess = guessed.is_some();
        Some(PageWish { cookie: pages.cookie, size: guessed.unwrap_or(size), is_guess })
    }

    /// A page that was guessed has answered the lookup that it was asked for.
    pub(crate) fn note_guess(&mut self, size: PageSize) {
        self.known.make().guessed = Some(size);
    }

    /// Another lookup is answered without asking. Returns the size of a guessed page if it is the
    /// first one that is.
    pub(crate) fn take_guess(&mut self) -> Option<PageSize> {
        self.known.made()?.guessed.take()
    }

    /// Another lookup has found an inode without asking.
    pub(crate) fn note_answered(&mut self) {
        if let Some(known) = self.known.made() {
            known.pages.answered = known.pages.answered.saturating_add(1);
        }
    }

    /// Names are listed for a program, without their attributes.
    pub(crate) fn note_listed(&mut self) {
        self.known.make().pages.are_listed = true;
    }

    /// A page of names has come that was asked for after one cookie and ends with another one; `None`
    /// if it was the last.
    pub(crate) fn note_page(&mut self, after: u64, last: Option<u64>) {
        let pages = &mut self.known.make().pages;
        // Others may have asked for the same page.
        if after == pages.cookie {
            (pages.cookie, pages.wished) = (last.unwrap_or(0), None);
            pages.are_listed &= last.is_some();
        }
    }

    /// A page was refused: who looks names up may not list them.
    pub(crate) fn note_refused(&mut self) {
        self.known.make().pages.are_listed = false;
    }

    /// Nothing protects free names any more.
    pub(crate) fn revoke_negative(&mut self) {
        self.disturbed = Tick::now();
        self.incomplete();
        self.forget_free();
    }

    /// A lock on free names has come with an answer: what was known without one may be old, the
    /// answer is not.
    pub(crate) fn forget_unprotected(&mut self) {
        self.incomplete();
        self.forget_free();
    }

    /// Forgets which names are free, one by one, to save memory. Returns how many it had counted.
    pub(crate) fn forget_negative(&mut self) -> usize {
        self.forget_free();
        self.known.made().map_or(0, |known| std::mem::take(&mut known.negative))
    }

    /// Forgets all names.
    pub(crate) fn clear(&mut self) {
        self.disturbed = Tick::now();
        if let Some(known) = self.known.made() {
            known.complete = false;
            known.names = HashMap::new();
        }
    }

    fn incomplete(&mut self) {
        if let Some(known) = self.known.made() {
            known.complete = false;
        }
    }

    fn forget_free(&mut self) {
        if let Some(known) = self.known.made() {
            known.names.retain(|_, child| child.is_some());
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.known.names.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];

    #[test]
    fn pages_are_asked_for_more_and_more_seldom() {
        let mut dentries = Dentries::default();
        let mut asked = Vec::new();
        for name in 1..40 {
            if let Some(PageWish { cookie, size, is_guess: false }) =
                dentries.page_to_ask_for(|| None)
            {
                let pages = asked.len() as u64;
                asked.push((name, cookie, size));
                dentries.note_page(cookie, (pages < 2).then_some(pages + 7));
            }
        }
        use PageSize::{Large, Small};
        let of_size =
            [(2, 0, Small), (5, 7, Large), (10, 8, Large), (19, 0, Large), (36, 0, Large)];
        assert_eq!(asked, of_size);
        let many = (0..100_000).filter(|_| dentries.page_to_ask_for(|| None).is_some()).count();
        assert!((90..110).contains(&many), "{many}");
    }

    #[test]
    fn pages_that_are_worth_it_are_asked_for_sooner() {
        let mut dentries = Dentries::default();
        let wish = |dentries: &mut Dentries| {
            (1..5000).find_map(|n| Some((n, dentries.page_to_ask_for(|| None)?.cookie))).unwrap()
        };
        let next = |dentries: &mut Dentries| {
            let (misses, cookie) = wish(dentries);
            dentries.note_page(cookie, Some(cookie + 7));
            misses
        };
        let asked: Vec<u32> = (0..6).map(|_| next(&mut dentries)).collect();
        assert_eq!(asked, [2, 3, 5, 9, 17, 33]);
        (0..ANSWERED_MANY).for_each(|_| dentries.note_answered());
        assert_eq!([next(&mut dentries), next(&mut dentries)], [3, 129], "the next one was not");
        dentries.note_listed();
        assert_eq!([next(&mut dentries), next(&mut dentries)], [9, 9]);
        // Others look names up while it is under way, and it comes twice.
        let (misses, cookie) = wish(&mut dentries);
        assert_eq!((misses, wish(&mut dentries)), (9, (1025, cookie)));
        dentries.note_page(cookie, Some(99));
        dentries.note_page(cookie, None);
        assert_eq!(wish(&mut dentries), (9, 99));
        dentries.note_page(99, Some(100));
        dentries.note_refused();
        assert_eq!(next(&mut dentries), 1025);
        dentries.note_listed();
        let (_, cookie) = wish(&mut dentries);
        dentries.note_page(cookie, None);
        assert_eq!(next(&mut dentries), 1025, "all have come");
        // A directory of one page: it is not under way for ever.
        let mut small = Dentries::default();
        for _ in 0..9 {
            small.note_listed();
            let (misses, cookie) = wish(&mut small);
            assert!(misses <= 9, "{misses}");
            small.note_page(cookie, None);
        }
    }

    #[test]
    fn only_the_first_lookup_is_a_guess() {
        let mut dentries = Dentries::default();
        let mut asked = Vec::new();
        for name in 1..10 {
            if let Some(wish) = dentries.page_to_ask_for(|| Some(PageSize::Small)) {
                asked.push((name, wish.size, wish.is_guess));
            }
        }
        let large = |name| (name, PageSize::Large, false);
        assert_eq!(asked, [(1, PageSize::Small, true), large(4), large(9)]);
    }

    #[test]
    fn a_name_in_doubt_is_not_among_all_names() {
        let (mut dentries, asked) = (Dentries::default(), Tick::ask());
        dentries.insert(b"a", Ino(1));
        assert!(dentries.has_learned_all(asked));
        dentries.doubt_known(b"a");
        assert!(dentries.may_learn(asked) && !dentries.has_learned_all(asked));
        assert!(dentries.has_learned_all(Tick::ask()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Others change the directory when nothing is protected; this client hears of it only by
        /// looking. What is known and protected is never wrong.
        #[test]
        fn what_is_known_under_a_lock_is_so(
            steps in proptest::collection::vec((0u8..10, 0usize..4, 1u64..9), 0..200),
        ) {
            let mut dentries = Dentries::default();
            let mut directory: BTreeMap<&[u8], Ino> = BTreeMap::new();
            let mut protected = true;
            dentries.set_complete(true);
            for (step, at, ino) in steps {
                let (name, ino) = (NAMES[at], Ino(ino));
                match step {
                    // The client makes, removes, moves, looks.
                    0 => {
                        directory.insert(name, ino);
                        dentries.insert(name, ino);
                    }
                    1 => {
                        directory.remove(name);
                        dentries.remove(name);
                        if protected {
                            dentries.insert_negative(name);
                        }
                    }
                    2 => {
                        directory.insert(name, ino);
                        dentries.doubt(name);
                    }
                    3 if protected && !directory.contains_key(name) => {
                        dentries.insert_negative(name);
                    }
                    4 => {
                        let counted = dentries.forget_negative();
                        prop_assert!(!NAMES.iter().any(|name| dentries.has_negative(name)));
                        prop_assert!(counted < 200 && dentries.negative() == 0);
                    }
                    5 => dentries.doubt_inodes(|of| of == ino),
                    // Others do, after the lock is returned.
                    6 => {
                        protected = false;
                        dentries.revoke_negative();
                    }
                    7 if !protected => {
                        match directory.remove(name) {
                            // The name was under a lock of its inode, which is returned.
                            Some(_) => _ = dentries.remove(name),
                            None => _ = directory.insert(name, ino),
                        }
                    }
                    8 => protected = true,
                    9 => dentries.doubt_known(name),
                    _ => {}
                }
                let free = NAMES.iter().filter(|name| dentries.has_negative(name)).count();
                prop_assert!(free <= dentries.negative());
                prop_assert_eq!(dentries.is_empty(), dentries.inodes().is_empty());
                for name in NAMES {
                    let there = directory.get(name).copied();
                    prop_assert!(!dentries.is_free(name, false));
                    prop_assert!(there.is_none() || !dentries.is_free(name, protected));
                    if let Some(known) = dentries.get(name) {
                        prop_assert_eq!(Some(known), there);
                    }
                    if dentries.is_complete() && protected && there.is_some() {
                        prop_assert_eq!(dentries.get(name), there);
                    }
                }
            }
        }
    }
}

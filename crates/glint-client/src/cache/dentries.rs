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
//! - Names that are gone take no room: a directory may stay for long after all of them, as when the kernel
//!   is not asked for it again soon.

mod name_table;

pub(crate) use name_table::NameWalk;

use crate::cache::attrs::Tick;
use crate::cache::dentries::name_table::{NameTable, is_sparse};
use crate::cache::inode::names::CachedName;
use crate::cache::inode::rare::{Rare, blank};
use crate::cache::pages::{PageSize, Pages};
use glint_proto::Ino;
use std::collections::HashSet;
use std::num::NonZeroU64;

/// Known names of one directory.
#[derive(Default)]
pub(crate) struct Dentries {
    /// When names were lost or changed last.
    disturbed: Tick,
    known: Rare<KnownNames>,
}

/// What is known of a directory once something is.
#[derive(Default)]
struct KnownNames {
    /// Inodes of names; none has the number 0.
    names: NameTable,
    /// Names that are free, apart from those: they all go whenever others could make some.
    free: HashSet<CachedName>,
    /// How many names were learned to be free since those were last forgotten all at once.
    negative: usize,
    complete: bool,
    /// When an answer was in doubt last: a page that was asked for before may not have all names.
    doubted: Tick,
    /// When others could change names last, if that is known.
    unprotected: Tick,
    /// When this client made a name last.
    made: Tick,
    /// A page of this size was asked for at the first lookup, and has answered no other one yet.
    guessed: Option<PageSize>,
    pages: Pages,
}

blank!(KnownNames);

impl KnownNames {
    /// Others can change names, or could until now.
    fn lose_protection(&mut self) {
        (self.complete, self.unprotected) = (false, Tick::now());
    }

    /// Forgets a name, also that it is free. Returns its inode.
    fn take(&mut self, name: &[u8]) -> Option<NonZeroU64> {
        self.free.remove(name);
        if is_sparse(self.free.len(), self.free.capacity()) {
            self.free.shrink_to(2 * self.free.len());
        }
        self.names.remove(name)
    }
}

fn ino_of(child: NonZeroU64) -> Ino {
    Ino(child.get())
}

impl Dentries {
    /// Whether an answer to what was asked then is no older than what is known.
    pub(crate) fn may_learn(&self, asked: Tick) -> bool {
        self.disturbed.is_before(asked)
    }

    /// Whether nobody else could make names since this was asked, if nobody can now.
    pub(crate) fn is_protected_since(&self, asked: Tick) -> bool {
        let last = self.known.unprotected;
        last != Tick::default() && last.is_before(asked)
    }

    /// Whether all names are known that an answer to what was asked then has said.
    pub(crate) fn has_learned_all(&self, asked: Tick) -> bool {
        self.may_learn(asked) && self.known.doubted.is_before(asked)
    }

    /// Whether an answer to what was asked then lacks none of the names among those that it said,
    /// if nobody else could make any.
    pub(crate) fn is_as_said(&self, asked: Tick) -> bool {
        self.has_learned_all(asked) && self.known.made.is_before(asked)
    }

    /// The inode that a name leads to, if that is known.
    pub(crate) fn get(&self, name: &[u8]) -> Option<Ino> {
        self.known.names.get(name).map(ino_of)
    }

    /// Whether it is known that there is no such name.
    pub(crate) fn is_free(&self, name: &[u8], protected: bool) -> bool {
        protected
            && self.known.names.get(name).is_none()
            && (self.known.complete || self.has_negative(name))
    }

    /// Whether a name is among those that are known to be free.
    pub(crate) fn has_negative(&self, name: &[u8]) -> bool {
        !self.known.free.is_empty() && self.known.free.contains(name)
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
        self.known.names.is_empty()
    }

    /// How many names are known to lead to inodes.
    pub(crate) fn children(&self) -> usize {
        self.known.names.len()
    }

    /// Names that lead to inodes, and these.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], Ino)> {
        self.known.names.iter().map(|(name, child)| (name, ino_of(child)))
    }

    /// Takes the next step of a walk over all names that lead to inodes. Returns some of them, and
    /// these; `None` at the end. Names that come to be known meanwhile may be among them.
    pub(crate) fn walk(&self, walk: &mut NameWalk) -> Option<Vec<(CachedName, Ino)>> {
        let some = self.known.names.walk(walk)?;
        Some(some.map(|(name, child)| (name.clone(), ino_of(child))).collect())
    }

    /// A name leads to this inode.
    pub(crate) fn insert(&mut self, name: &[u8], ino: Ino) {
        match NonZeroU64::new(ino.0) {
            Some(child) => {
                let known = self.known.make();
                known.free.remove(name);
                known.names.insert(name, child);
            }
            None => self.doubt(name),
        }
    }

    /// A name leads to this inode from now on, as this client has changed it.
    pub(crate) fn replace(&mut self, name: &[u8], ino: Ino) {
        self.disturbed = Tick::now();
        self.insert(name, ino);
    }

    /// This client has made a name: what was asked before may lack it.
    pub(crate) fn note_made(&mut self) {
        self.known.make().made = Tick::now();
    }

    /// A name is free. Whether it is the first that is.
    pub(crate) fn insert_negative(&mut self, name: &[u8]) -> bool {
        let known = self.known.make();
        known.names.remove(name);
        known.free.insert(name.into());
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
        let known = self.known.made()?;
        known.take(name).map(ino_of)
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
            known.take(name);
            (known.complete, known.doubted) = (false, Tick::now());
        }
    }

    /// Pages of names that are asked for.
    pub(crate) fn pages(&mut self) -> &mut Pages {
        &mut self.known.make().pages
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
            known.pages.note_answered();
        }
    }

    /// Nothing protects free names any more.
    pub(crate) fn revoke_negative(&mut self) {
        self.disturbed = Tick::now();
        if let Some(known) = self.known.made() {
            known.lose_protection();
        }
        self.forget_free();
    }

    /// A lock on free names has come with an answer: what was known without one may be old, the
    /// answer is not.
    pub(crate) fn forget_unprotected(&mut self) {
        self.known.make().lose_protection();
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
            known.lose_protection();
            (known.names, known.free) = Default::default();
        }
    }

    fn incomplete(&mut self) {
        if let Some(known) = self.known.made() {
            known.complete = false;
        }
    }

    fn forget_free(&mut self) {
        if let Some(known) = self.known.made() {
            known.free = HashSet::new();
        }
    }

    /// How many names are known, also to be free.
    pub(crate) fn len(&self) -> usize {
        self.known.names.len() + self.known.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];

    #[test]
    fn names_that_are_gone_take_no_room() {
        let name = |n: usize| n.to_le_bytes();
        let filled = || {
            let mut dentries = Dentries::default();
            (0..1000).for_each(|n| dentries.insert(&name(n), Ino(7)));
            dentries
        };
        let room = |dentries: &Dentries| dentries.known.names.room();
        for forget in [
            |dentries: &mut Dentries, name: &[u8]| _ = dentries.remove(name),
            |dentries: &mut Dentries, name: &[u8]| dentries.doubt_known(name),
        ] {
            let mut dentries = filled();
            assert!(room(&dentries) >= 1000);
            (10..1000).for_each(|n| forget(&mut dentries, &name(n)));
            assert!(room(&dentries) <= 100, "{}", room(&dentries));
            assert!((0..10).all(|n| dentries.get(&name(n)) == Some(Ino(7))));
            (0..10).for_each(|n| forget(&mut dentries, &name(n)));
            assert_eq!(room(&dentries), 0);
        }
        // Free names, too.
        let mut dentries = filled();
        (0..1000).for_each(|n| dentries.doubt(&name(n)));
        (0..1000).for_each(|n| _ = dentries.insert_negative(&name(n)));
        (10..1000).for_each(|n| dentries.doubt_known(&name(n)));
        assert!(dentries.known.free.capacity() <= 100);
        assert!(dentries.len() == 10 && dentries.has_negative(&name(3)));
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

    #[test]
    fn a_name_that_was_made_may_be_missing_from_what_was_asked_before() {
        let (mut dentries, asked) = (Dentries::default(), Tick::ask());
        dentries.insert(b"a", Ino(1));
        assert!(dentries.is_as_said(asked));
        dentries.insert(b"b", Ino(2));
        dentries.note_made();
        assert!(dentries.has_learned_all(asked) && !dentries.is_as_said(asked));
        assert!(dentries.is_as_said(Tick::ask()));
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
                    5 => dentries.doubt(name),
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
                prop_assert_eq!(dentries.is_empty(), dentries.iter().next().is_none());
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

//! Names that this client takes from inodes or gives to others, and negative dentries: names that are
//! known to be free, some, and not without limit.
//!
//! Invariants:
//! - A name that the kernel may use without asking is among the names of its inode, or the kernel is
//!   told to forget it: also one that the kernel has moved itself, with a rename.
//! - A name that was replaced is at no time known to be free, nor is one while it is made here.
//!
//! A directory counts those that it learned since it last forgot all of them, which are no fewer
//! than it has; the limits are on these counts.

use crate::cache::Cache;
use crate::cache::attrs::Tick;
use crate::cache::in_flight::Asked;
use crate::cache::inode::{CachedInode, InodeState};
use crate::vfs::Found;
use glint_net::host;
use glint_proto::limits::NEGATIVE_DENTRIES_PER_DIRECTORY_MAX;
use glint_proto::lock::Bits;
use glint_proto::{Attr, Ino, MdsReply};
use std::collections::HashSet;
use std::sync::atomic::Ordering;

/// Directories that may be listed for names that are free, though they have none any more, beside twice
/// as many as there are such names.
const UNLISTED_MAX: usize = 1024;

/// The inode that a name was taken from, as the servers say.
pub(crate) fn removed(reply: &MdsReply) -> Option<Ino> {
    match reply {
        MdsReply::Removed { ino } => Some(*ino),
        _ => None,
    }
}

impl Cache {
    /// Whether it is known that there is no such name.
    pub(crate) fn is_free(&self, parent: Ino, name: &[u8]) -> bool {
        self.find(parent).is_some_and(|directory| directory.lock().is_free(name))
    }

    /// Whether nobody else could make names in a directory since this was asked.
    pub(crate) fn is_protected_since(&self, parent: Ino, asked: Tick) -> bool {
        self.find(parent).is_some_and(|directory| {
            let state = directory.lock();
            state.rare.delegation.is_delegated()
                || state.has(Bits::NEGATIVE) && state.dentries.is_protected_since(asked)
        })
    }

    /// Learns that this client has taken a name from an inode, perhaps one that it knew by another
    /// name.
    pub(crate) fn learn_removed(&self, reply: &MdsReply) {
        let Some(ino) = removed(reply) else { return };
        if let Some(inode) = self.find(ino) {
            let mut state = inode.lock();
            state.lose_attributes();
        }
    }

    /// Learns that this client has made a name, of a new inode or another one of `attr`; that is what
    /// the servers said. If `learns`, it is learned as well.
    pub(crate) fn learn_made(
        &self,
        parent: Ino,
        name: &[u8],
        attr: &Attr,
        asked: &Asked,
        learns: bool,
    ) -> Found {
        let found = self.learn_name(parent, name, attr, asked, learns);
        if let Some(directory) = self.find(parent) {
            let mut state = directory.lock();
            state.dentries.note_made();
            if state.child(name) != Some(attr.ino) {
                // What was asked before may say that there is no such name.
                state.dentries.doubt(name);
            }
        }
        found
    }

    /// Forgets a name that this client removed or moved, as it asked for then: of the inode `gone`, if
    /// that is known. It is free now, unless somebody else could make it anew before the answer came.
    pub(crate) fn forget_name(&self, parent: Ino, name: &[u8], gone: Option<Ino>, asked: Tick) {
        let child = self.find(parent).and_then(|directory| {
            let mut state = directory.lock();
            let child = state.dentries.remove(name);
            let is_delegated = state.rare.delegation.is_delegated();
            if child.is_some() && !is_delegated {
                let is_same = gone.is_none_or(|gone| child == Some(gone));
                match state.has(Bits::NEGATIVE) {
                    true if is_same && state.dentries.is_protected_since(asked) => {
                        self.insert_negative(&directory, &mut state, name);
                    }
                    // It may lead to another inode by now.
                    true => state.dentries.doubt(name),
                    false => {}
                }
            }
            child
        });
        self.limit_negative();
        // The directory may know less than the inode does.
        for ino in [child, gone.filter(|gone| child != Some(*gone))].into_iter().flatten() {
            self.take_name(ino, parent, name);
        }
    }

    /// A name leads where it led, or elsewhere, or is gone.
    pub(crate) fn doubt_name(&self, parent: Ino, name: &[u8]) {
        let Some(directory) = self.find(parent) else { return };
        let child = {
            let mut state = directory.lock();
            let child = state.child(name);
            state.dentries.doubt(name);
            child
        };
        if let Some(ino) = child {
            self.take_name(ino, parent, name);
        }
    }

    /// A name does not lead to an inode any more, unless its directory has learned since that it
    /// does.
    pub(super) fn take_name(&self, ino: Ino, parent: Ino, name: &[u8]) {
        let Some(inode) = self.find(ino) else { return };
        inode.lock().remove_name(parent, name);
        let Some(directory) = self.find(parent) else { return };
        if directory.lock().child(name) != Some(ino) {
            return;
        }
        let mut state = inode.lock();
        match state.has(Bits::ENTRY) || state.rare.delegation.parent() == Some(parent) {
            true => _ = state.add_name(parent, name),
            false => {
                drop(state);
                directory.lock().dentries.doubt(name);
                self.forget_in_kernel(parent, name);
            }
        }
    }

    /// A name that this client has moved leads to another inode now, `moved`; to one that is not
    /// known here, perhaps. Before, it led to `gone`, if that is known. The rename was asked for then.
    ///
    /// The kernel has moved what it knew in the same way, and relies on the new name for as long as it
    /// did on the old one. So it has to forget that where nobody would be told that it leads elsewhere:
    /// where the lock on the names of the inode was lost since the rename was asked for, though it may
    /// have come back, or where nothing is known of it.
    pub(crate) fn learn_renamed(
        &self,
        (parent, name): (Ino, &[u8]),
        moved: Option<Ino>,
        gone: Option<Ino>,
        asked: &Asked,
    ) {
        let (inode, now) = (moved.and_then(|ino| self.find(ino)), Tick::ask());
        let (mut held, mut is_lost) = (false, false);
        if let Some(inode) = &inode {
            let mut state = inode.lock();
            // The inode is not where it was made any more.
            if let Some(rare) = state.rare.made() {
                rare.delegation.leave();
            }
            held = state.believes_names(inode.ino, asked);
            is_lost = state.lost_names_since(asked.at);
            if held {
                // Before the directory: a recall has it forget the name, or not learn it.
                state.add_name(parent, name);
            }
        }
        let replaced = self.find(parent).and_then(|directory| {
            let mut state = directory.lock();
            let replaced = state.child(name);
            match moved {
                Some(ino) if held && state.dentries.may_learn(now) => {
                    state.dentries.replace(name, ino);
                }
                // There is a name that is not among those that are known.
                _ => state.dentries.doubt(name),
            }
            replaced
        });
        let gone = gone.filter(|gone| replaced != Some(*gone));
        for ino in [replaced, gone].into_iter().flatten().filter(|ino| moved != Some(*ino)) {
            self.take_name(ino, parent, name);
        }
        // At once, if that is possible: the recall may be answered by now.
        let is_told = is_lost && self.kernel().is_some_and(|kernel| kernel.forget_all_names());
        if !held && !is_told {
            self.forget_in_kernel(parent, name);
        }
    }

    /// Has the kernel forget a name, once no request is under way in its directory: the caller may
    /// be one.
    pub(crate) fn forget_in_kernel(&self, parent: Ino, name: &[u8]) {
        if let Some(kernel) = self.kernel().cloned() {
            let name = name.to_vec();
            host::unblock(move || kernel.forget_name(parent, &name)).detach();
        }
    }

    /// A name is free, as a server has said in answer to what was asked then.
    pub(crate) fn learn_negative(&self, parent: Ino, name: &[u8], asked: &Asked) {
        let directory = self.inode(parent);
        let mut state = directory.lock();
        let is_news = state.dentries.may_learn(asked.at) && state.dentries.get(name).is_none();
        if state.is_protected(parent, asked) && is_news {
            self.insert_negative(&directory, &mut state, name);
        }
        drop(state);
        self.limit_negative();
    }

    pub(crate) fn insert_negative(
        &self,
        directory: &CachedInode,
        state: &mut InodeState,
        name: &[u8],
    ) {
        if state.dentries.has_negative(name) {
            return;
        }
        if state.dentries.negative() >= NEGATIVE_DENTRIES_PER_DIRECTORY_MAX {
            self.negative.fetch_sub(state.dentries.forget_negative(), Ordering::Relaxed);
        }
        if state.dentries.insert_negative(name) {
            self.with_negative.lock().push_back(directory.ino);
        }
        self.negative.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets names that are free, in the directories that have had such for longest.
    pub(crate) fn limit_negative(&self) {
        let listed = self.with_negative.lock().len();
        if listed > 2 * self.negative.load(Ordering::Relaxed) + UNLISTED_MAX {
            self.unlist_negative(listed);
        }
        while self.negative.load(Ordering::Relaxed) > self.negative_max.load(Ordering::Relaxed) {
            let Some(first) = self.with_negative.lock().pop_front() else { return };
            if let Some(directory) = self.find(first) {
                let forgotten = directory.lock().dentries.forget_negative();
                self.negative.fetch_sub(forgotten, Ordering::Relaxed);
            }
        }
    }

    /// Looks at the first so many directories that are listed for names that are free: those that were
    /// forgotten, or listed again since, are listed no more.
    fn unlist_negative(&self, listed: usize) {
        let mut seen = HashSet::new();
        for _ in 0..listed {
            let Some(first) = self.with_negative.lock().pop_front() else { return };
            let has_some = |directory: &CachedInode| directory.lock().dentries.negative() > 0;
            if seen.insert(first) && self.find(first).is_some_and(|directory| has_some(&directory))
            {
                self.with_negative.lock().push_back(first);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::TestKernel;
    use crate::vfs::Caller;
    use glint_proto::limits::NEGATIVE_DENTRIES_MAX;
    use glint_proto::lock::Grant;
    use glint_proto::{Errno, Timestamp};
    use std::sync::Arc;

    const DIRECTORY: Ino = Ino::ROOT;
    const FILE: Ino = Ino(7);
    const OTHER: Ino = Ino(8);

    fn attr(ino: Ino) -> Attr {
        Attr::new(ino, 0o100_644, Timestamp::default())
    }

    fn grant(cache: &Cache, ino: Ino, number: u64) {
        let grants = [Grant::Bits { ino, bits: Bits::ENTRY, number }];
        cache.learn_grants(&grants, cache.generation());
    }

    /// The answer to a removal comes after others have made the name again, and this client has heard
    /// of it.
    #[test]
    fn a_name_that_was_made_anew_is_not_taken_for_free() {
        let may_make = |number| Grant::Bits { ino: DIRECTORY, bits: Bits::NEGATIVE, number };
        for again in [FILE, OTHER] {
            let (cache, _) = cache_of(&[(b"a", FILE), (b"b", OTHER)], TestKernel::default());
            cache.learn_grants(&[may_make(1)], cache.generation());
            cache.learn_name(DIRECTORY, b"a", &attr(FILE), &Asked::under(&[FILE]), true);
            let asked = Tick::ask();
            cache.inode(DIRECTORY).lock().on_recall(Bits::NEGATIVE, 1, 0);
            cache.learn_grants(&[may_make(2)], cache.generation());
            cache.learn_name(DIRECTORY, b"a", &attr(again), &Asked::under(&[again]), true);
            assert_eq!(cache.child(DIRECTORY, b"a"), Some(again));
            cache.forget_name(DIRECTORY, b"a", Some(FILE), asked);
            assert!(!cache.is_free(DIRECTORY, b"a"), "{again}");
            // With nobody in between it is free.
            cache.learn_name(DIRECTORY, b"a", &attr(again), &Asked::under(&[again]), true);
            cache.forget_name(DIRECTORY, b"a", Some(again), Tick::ask());
            assert!(cache.is_free(DIRECTORY, b"a"), "{again}");
        }
    }

    /// The servers have it, and perhaps others have seen it, before the answer is here.
    #[test]
    fn a_name_that_is_just_made_is_not_taken_for_free() {
        let (cache, _) = cache_of(&[], TestKernel::default());
        let may_make = Grant::Bits { ino: DIRECTORY, bits: Bits::NEGATIVE, number: 1 };
        cache.learn_grants(&[may_make], cache.generation());
        cache.inode(DIRECTORY).lock().dentries.set_complete(true);
        let is_free = |name: &[u8]| {
            let known = cache.lookup(&Caller::ROOT, DIRECTORY, name);
            let says_so = matches!(known, Some(Err(Errno::ENOENT)));
            assert_eq!(says_so, cache.is_free(DIRECTORY, name));
            says_so
        };
        assert!(is_free(b"a") && is_free(b"b"));
        let update = cache.begin_update(&[DIRECTORY]);
        assert!(!is_free(b"a"));
        grant(&cache, FILE, 1);
        cache.learn_made(DIRECTORY, b"a", &attr(FILE), &Asked::under(&[FILE]), true);
        assert_eq!(cache.child(DIRECTORY, b"a"), Some(FILE), "before the update ends");
        drop(update);
        assert!(!is_free(b"a") && is_free(b"b"));
    }

    #[test]
    fn directories_that_are_forgotten_leave_nothing_behind() {
        let (cache, returns) = (Cache::new(Arc::default()), Default::default());
        for round in 0..10 {
            for ino in (100..1100).map(Ino) {
                let grants = [Grant::Bits { ino, bits: Bits::NEGATIVE, number: round + 1 }];
                cache.learn_grants(&grants, cache.generation());
                cache.learn_negative(ino, b"free", &Asked::under(&[ino]));
            }
            assert_eq!(cache.negative.load(Ordering::Relaxed), 1000);
            cache.shrink(0, usize::MAX, &returns, |_| false);
            assert_eq!(cache.negative.load(Ordering::Relaxed), 0);
        }
        let listed = cache.with_negative.lock().len();
        assert!(listed <= 2 * 1000 + UNLISTED_MAX, "{listed}");
    }

    /// A cache that knows the inodes by these names, and the kernel that was told of them.
    fn cache_of(names: &[(&[u8], Ino)], kernel: TestKernel) -> (Cache, Arc<TestKernel>) {
        let (cache, kernel) = (Cache::new(Arc::default()), Arc::new(kernel));
        cache.set_kernel(kernel.clone(), Ino::ROOT);
        for (name, ino) in names {
            grant(&cache, *ino, 1);
            cache.learn_name(DIRECTORY, name, &attr(*ino), &Asked::under(&[*ino]), true);
            assert_eq!(cache.child(DIRECTORY, name), Some(*ino));
        }
        (cache, kernel)
    }

    fn names(cache: &Cache, ino: Ino) -> Vec<Vec<u8>> {
        let names = cache.inode(ino).lock().on_recall(Bits::ENTRY, 1, 0);
        names.iter().map(|(_, name)| name.to_vec()).collect()
    }

    #[test]
    fn a_kernel_forgets_a_name_whose_lock_was_lost_while_it_was_moved() {
        for (has_epochs, comes_back) in [(false, false), (true, false), (false, true), (true, true)]
        {
            let kernel = TestKernel::new(has_epochs);
            let (cache, kernel) = cache_of(&[(b"a", FILE)], kernel);
            let asked = Asked::under(&[FILE]);
            // The rename is made, and another client changes the new name, before the answer is here.
            assert_eq!(names(&cache, FILE), [b"a"]);
            cache.inode(DIRECTORY).lock().dentries.doubt(b"a");
            if comes_back {
                grant(&cache, FILE, 2);
            }
            cache.learn_renamed((DIRECTORY, b"b"), Some(FILE), None, &asked);
            assert_eq!(cache.child(DIRECTORY, b"b"), None);
            match has_epochs {
                true => assert_eq!(kernel.all_names_forgotten(), 1),
                false => kernel.wait_for_name(DIRECTORY, b"b"),
            }
        }
    }

    #[test]
    fn a_kernel_forgets_a_name_that_was_moved_and_is_not_known_here() {
        let (cache, kernel) = cache_of(&[], TestKernel::default());
        cache.learn_renamed((DIRECTORY, b"b"), None, None, &Asked::now());
        kernel.wait_for_name(DIRECTORY, b"b");
        assert_eq!(kernel.all_names_forgotten(), 0);
    }

    #[test]
    fn a_name_that_was_moved_is_forgotten_with_its_lock() {
        let (cache, kernel) = cache_of(&[(b"a", FILE), (b"b", OTHER)], TestKernel::default());
        let asked = Asked::under(&[FILE]);
        cache.learn_renamed((DIRECTORY, b"b"), Some(FILE), Some(OTHER), &asked);
        cache.forget_name(DIRECTORY, b"a", Some(FILE), Tick::ask());
        assert_eq!(cache.child(DIRECTORY, b"b"), Some(FILE));
        assert_eq!((names(&cache, FILE), names(&cache, OTHER)), (vec![b"b".to_vec()], vec![]));
        assert_eq!(kernel.names_forgotten(), []);
    }

    #[test]
    fn names_that_come_and_go_in_a_busy_directory_do_not_pile_up() {
        let (cache, _) = cache_of(&[(b"a", FILE)], TestKernel::default());
        for count in 0..100u32 {
            let name = count.to_le_bytes();
            let asked = Asked::under(&[FILE]);
            // Another name goes, and what was asked before is not learned.
            cache.forget_name(DIRECTORY, b"other", None, Tick::ask());
            cache.learn_name(DIRECTORY, &name, &attr(FILE), &asked, true);
            // It goes to another name, as far as is known here.
            cache.forget_name(DIRECTORY, &name, None, Tick::ask());
        }
        for count in 0..100u32 {
            // The kernel has it, and the directory is in doubt.
            let name = count.to_le_bytes();
            cache.learn_name(DIRECTORY, &name, &attr(FILE), &Asked::under(&[FILE]), true);
            cache.inode(DIRECTORY).lock().dentries.doubt(&name);
            cache.forget_name(DIRECTORY, &name, Some(FILE), Tick::ask());
        }
        assert_eq!(names(&cache, FILE), [b"a"]);
    }

    #[test]
    fn names_that_are_free_are_remembered_up_to_a_limit() {
        let cache = Cache::new(Arc::default());
        let free = |parent: Ino| {
            let inode = cache.inode(parent);
            let state = inode.lock();
            state.dentries.len()
        };
        for directory in (0..80).map(Ino) {
            cache.learn_grants(
                &[Grant::Bits { ino: directory, bits: Bits::NEGATIVE, number: 1 }],
                cache.generation(),
            );
            for name in 0..NEGATIVE_DENTRIES_PER_DIRECTORY_MAX + 9 {
                cache.learn_negative(directory, &name.to_le_bytes(), &Asked::under(&[directory]));
                cache.learn_negative(directory, &name.to_le_bytes(), &Asked::under(&[directory]));
                assert!(cache.is_free(directory, &name.to_le_bytes()));
            }
            assert_eq!(free(directory), 9);
            for name in 0..NEGATIVE_DENTRIES_PER_DIRECTORY_MAX - 9 {
                cache.learn_negative(directory, &name.to_le_bytes(), &Asked::under(&[directory]));
            }
        }
        let all: usize = (0..80).map(Ino).map(free).sum();
        assert!(all <= NEGATIVE_DENTRIES_MAX && all > NEGATIVE_DENTRIES_MAX / 2, "{all}");
        assert_eq!(free(Ino(0)), 0);
    }
}

//! Negative dentries, names that are known to be free: some, and not without limit.
//!
//! A directory counts those that it learned since it last forgot all of them, which are no fewer
//! than it has; the limits are on these counts.

use crate::cache::Cache;
use crate::cache::attrs::Tick;
use crate::cache::inode::{CachedInode, InodeState};
use glint_proto::Ino;
use glint_proto::limits::{NEGATIVE_DENTRIES_MAX, NEGATIVE_DENTRIES_PER_DIRECTORY_MAX};
use glint_proto::lock::Bits;
use std::sync::atomic::Ordering;

impl Cache {
    /// Whether it is known that there is no such name.
    pub(crate) fn is_free(&self, parent: Ino, name: &[u8]) -> bool {
        self.find(parent).is_some_and(|directory| directory.lock().is_free(name))
    }

    /// Forgets a name that this client removed, moved, or gave to another inode.
    pub(crate) fn forget_name(&self, parent: Ino, name: &[u8]) {
        let Some(directory) = self.find(parent) else { return };
        let child = {
            let mut state = directory.lock();
            let child = state.dentries.remove(name);
            if (state.has(Bits::NEGATIVE) && child.is_some())
                && !state.rare.delegation.is_delegated()
            {
                self.insert_negative(&directory, &mut state, name);
            }
            child
        };
        self.limit_negative();
        let Some(inode) = child.and_then(|child| self.find(child)) else { return };
        inode.lock().remove_name(parent, name);
        // It may be a name of the same inode again by now.
        if directory.lock().dentries.get(name) == Some(inode.ino) {
            let mut state = inode.lock();
            match state.has(Bits::ENTRY) {
                true => state.add_name(parent, name),
                false => {
                    drop(state);
                    directory.lock().dentries.doubt(name);
                }
            }
        }
    }

    /// A name leads where it led, or elsewhere, or is gone.
    pub(crate) fn doubt_name(&self, parent: Ino, name: &[u8]) {
        self.forget_name(parent, name);
        if let Some(directory) = self.find(parent) {
            let mut state = directory.lock();
            state.dentries.doubt(name);
        }
    }

    /// A name is free, as a server has said in answer to what was asked then.
    pub(crate) fn learn_negative(&self, parent: Ino, name: &[u8], asked: Tick) {
        let directory = self.inode(parent);
        let mut state = directory.lock();
        let is_news = state.dentries.may_learn(asked) && state.dentries.get(name).is_none();
        if state.has(Bits::NEGATIVE) && is_news {
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
        while self.negative.load(Ordering::Relaxed) > NEGATIVE_DENTRIES_MAX {
            let Some(first) = self.with_negative.lock().pop_front() else { return };
            if let Some(directory) = self.find(first) {
                let forgotten = directory.lock().dentries.forget_negative();
                self.negative.fetch_sub(forgotten, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::lock::Grant;
    use std::sync::Arc;

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
                cache.learn_negative(directory, &name.to_le_bytes(), Tick::ask());
                cache.learn_negative(directory, &name.to_le_bytes(), Tick::ask());
                assert!(cache.is_free(directory, &name.to_le_bytes()));
            }
            assert_eq!(free(directory), 9);
            for name in 0..NEGATIVE_DENTRIES_PER_DIRECTORY_MAX - 9 {
                cache.learn_negative(directory, &name.to_le_bytes(), Tick::ask());
            }
        }
        let all: usize = (0..80).map(Ino).map(free).sum();
        assert!(all <= NEGATIVE_DENTRIES_MAX && all > NEGATIVE_DENTRIES_MAX / 2, "{all}");
        assert_eq!(free(Ino(0)), 0);
    }
}

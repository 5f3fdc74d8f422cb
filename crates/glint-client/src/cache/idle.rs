//! Inodes that nobody needs: which of them are forgotten, and when.
//!
//! Invariants:
//! - An inode that loses its last pin is listed here, once, and stays listed until it is forgotten
//!   or pinned again: whatever else is in the way passes, and nobody would say so then. Without a
//!   kernel, whose references are pins, each inode is listed from the beginning; with one, `prune.rs`
//!   lists those that were never pinned.
//! - An inode is forgotten only when no answer can come that is older than what was heard of its
//!   locks: nobody would see that such an answer brings nothing.

use crate::cache::Cache;
use crate::cache::inode::{CachedInode, InodeEntry};
use crate::locks::return_queue::ReturnQueue;
use glint_proto::Ino;
use glint_telemetry::Counter;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Cache {
    /// Nobody needs an inode just now, perhaps.
    pub(crate) fn note_idle(&self, inode: &CachedInode) {
        if !inode.is_listed.swap(true, Ordering::AcqRel) {
            self.idle.lock().push_back(inode.ino);
        }
    }

    /// Returns how many of the inodes that nobody uses are to be looked at, with such a limit of all.
    /// However many are in use, a quarter of the limit is left of the others: find(1) lists 100 000 names
    /// before it looks at the first, and what came for these is not to be forgotten before.
    pub(crate) fn idle_excess(&self, limit: usize) -> usize {
        let listed = self.idle.lock().len();
        if self.len() > limit { listed.saturating_sub(limit / 4) } else { 0 }
    }

    /// Looks at so many inodes that nobody uses, and forgets them, but for those of which something
    /// is kept to be told to servers again; fewer if that is enough. Their locks are put among
    /// `returns`. Returns true while there are too many.
    pub(crate) fn shrink(
        &self,
        limit: usize,
        looks: usize,
        returns: &ReturnQueue,
        is_unstable: impl Fn(Ino) -> bool,
    ) -> bool {
        for _ in 0..looks {
            if self.len() <= limit {
                return false;
            }
            let Some(ino) = self.idle.lock().pop_front() else { return false };
            self.forget_idle(ino, returns, &is_unstable);
        }
        self.len() > limit
    }

    /// Forgets an inode that was listed, if nobody uses it; lists it again if it is in use for
    /// another reason than a pin.
    fn forget_idle(&self, ino: Ino, returns: &ReturnQueue, is_unstable: impl Fn(Ino) -> bool) {
        let mut shard = self.shard(ino).write();
        let Some(InodeEntry(inode)) = shard.get(&ino) else { return };
        // Before the pins: whoever takes the last one off later lists it again.
        inode.is_listed.store(false, Ordering::Release);
        if !inode.lock().pins.is_empty() {
            return;
        }
        // Nobody else has it, and while this shard is locked nobody gets it.
        let unused = Arc::strong_count(inode) == 1
            && inode.is_idle(|number| self.log.is_pending(number))
            && self.is_past(inode.lock().sent_mark())
            && !is_unstable(ino);
        if !unused {
            self.note_idle(inode);
            return;
        }
        let Some(InodeEntry(inode)) = shard.take(&ino) else { return };
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.forgotten.fetch_add(1, Ordering::Relaxed);
        drop(shard);
        glint_telemetry::count(Counter::InodesEvicted, 1);
        let mut state = inode.lock();
        self.negative.fetch_sub(state.dentries.forget_negative(), Ordering::Relaxed);
        let (unused, names) = state.on_forget(ino);
        let is_in_kernel = self.is_in_kernel(&inode, &state);
        drop(state);
        if is_in_kernel && let Some(kernel) = self.kernel() {
            // The root: of any other one the kernel has forgotten its lookups. It keeps what it knows of
            // the root for as long as nobody says that others may change it.
            kernel.forget_attributes(ino);
        }
        returns.put(unused);
        for (parent, name) in names {
            if let Some(directory) = self.find(parent) {
                let mut state = directory.lock();
                if state.rare.delegation.is_delegated() {
                    // This client knows all of its names, until it gives the delegation back.
                    self.kept_names.fetch_add(1, Ordering::Relaxed);
                } else {
                    // The name is not the only unknown one, from now on.
                    state.dentries.doubt(&name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::in_flight::InFlightGuard;
    use crate::kernel::testing::TestKernel;
    use glint_proto::lock::{Bits, Grant, Return};
    use proptest::prelude::*;

    const FILE: Ino = Ino(7);
    const DIRECTORY: Ino = Ino(8);

    fn grant(cache: &Cache, ino: Ino) {
        cache
            .learn_grants(&[Grant::Bits { ino, bits: Bits::ENTRY, number: 1 }], cache.generation());
    }

    /// The kernel never says that it forgets the root: it is told when its attributes may change.
    #[test]
    fn the_kernel_forgets_the_attributes_of_a_root_that_goes() {
        let (cache, returns) = (Cache::new(Arc::default()), ReturnQueue::default());
        let kernel = Arc::<TestKernel>::default();
        cache.set_kernel(kernel.clone(), DIRECTORY);
        for ino in [FILE, DIRECTORY] {
            grant(&cache, ino);
            cache.note_idle(&cache.inode(ino));
        }
        cache.shrink(0, 9, &returns, |_| false);
        assert_eq!((cache.len(), returns.take().len()), (0, 2));
        assert_eq!(kernel.attributes_forgotten(), [DIRECTORY]);
    }

    #[test]
    fn a_directory_goes_after_what_is_known_in_it() {
        let (cache, returns) = (Cache::new(Arc::default()), ReturnQueue::default());
        [DIRECTORY, FILE].into_iter().for_each(|ino| grant(&cache, ino));
        cache.inode(DIRECTORY).lock().dentries.insert(b"f", FILE);
        cache.inode(FILE).lock().add_name(DIRECTORY, b"f");
        [DIRECTORY, FILE].into_iter().for_each(|ino| cache.note_idle(&cache.inode(ino)));
        cache.shrink(0, 9, &returns, |_| false);
        cache.shrink(0, 9, &returns, |_| false);
        assert_eq!(cache.len(), 0);
    }

    #[test]
    fn what_was_only_looked_up_goes_if_no_kernel_forgets_it() {
        let (cache, returns) = (Cache::new(Arc::default()), ReturnQueue::default());
        grant(&cache, FILE);
        cache.shrink(0, 9, &returns, |_| false);
        assert_eq!(cache.len(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Whatever keeps an inode from being forgotten, and however often that is tried
        /// meanwhile: at the end it is.
        #[test]
        fn what_was_in_use_is_forgotten_later(steps in proptest::collection::vec(0u8..8, 0..50)) {
            let (cache, returns) = (Cache::new(Arc::default()), ReturnQueue::default());
            grant(&cache, FILE);
            let (mut pinned, mut update, mut user) = (0, None, None);
            let (mut in_flight, mut unstable): (Option<InFlightGuard<'_>>, _) = (None, false);
            cache.note_idle(&cache.inode(FILE));
            for step in steps {
                let Some(inode) = cache.find(FILE) else { break };
                match step {
                    0 => { inode.lock().pins.open(false); pinned += 1 }
                    1 if pinned > 0 => {
                        inode.lock().pins.close(false);
                        pinned -= 1;
                        cache.note_idle(&inode);
                    }
                    2 => update = match update { None => Some(cache.begin_update(&[FILE])), _ => None },
                    3 => user = match user { None => Some(inode.clone()), _ => None },
                    4 => unstable = !unstable,
                    5 => {
                        in_flight = match in_flight { None => Some(cache.begin_request()), _ => None };
                        inode.lock().on_recall(Bits::NONE, 0, cache.sent_mark());
                    }
                    _ => {
                        drop(inode);
                        cache.shrink(0, 9, &returns, |_| unstable);
                        let used = pinned > 0 || update.is_some() || user.is_some() || unstable;
                        prop_assert!(cache.len() == 1 || !used);
                    }
                }
                prop_assert!(cache.idle.lock().len() <= 1);
            }
            drop((update, user, in_flight));
            if let Some(inode) = cache.find(FILE).filter(|_| pinned > 0) {
                (0..pinned).for_each(|_| inode.lock().pins.close(false));
                cache.note_idle(&inode);
            }
            cache.shrink(0, 9, &returns, |_| false);
            prop_assert_eq!(cache.len(), 0);
            let returned = Return::Bits { ino: FILE, bits: Bits::ENTRY | Bits::SHARED, number: 1 };
            prop_assert_eq!(returns.take(), [returned]);
        }
    }
}

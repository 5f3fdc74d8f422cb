//! Files whose objects were removed, until that is on stable storage and nothing brings them back.
//!
//! Invariants:
//! - A file is forgotten when the last change that removed its objects is done by all servers, and
//!   none of them has said that something is left. An earlier change, of which something was left,
//!   says nothing about the one that was made for that, however late it ends.
//! - Members of a chain that have not removed an object yet may give it to others that have. So a
//!   file with copies is forgotten only if its objects were removed while nobody copied anything;
//!   else they are removed once more.
//! - Whoever has objects removed by keys that it has read may do so late. Until that is over no key
//!   of objects that data moves to or from is forgotten: their numbers are given to no others.
//! - No more is kept than there are files, however often they are tried.

use glint_proto::{Ino, Layout, clock};
use glint_wait::Backoff;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

/// First and longest pause before what could not be removed is tried again.
pub(super) const RETRY_MIN: Duration = Duration::from_secs(1);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(300);
/// Share of the thread's time that walks over what could not be removed take at most.
const RETRY_SHARE: u32 = 5;
/// How long a request to remove objects may still be executed after nobody waits for it any more.
const LATE: Duration = Duration::from_secs(30);

/// Files whose objects are removed, in the order of these changes.
#[derive(Default)]
pub(crate) struct Destroyed {
    /// By their orphan keys.
    files: HashMap<OrphanKey, Removal>,
    /// The same files, each with the change that removed its objects last.
    changes: BTreeSet<(u64, OrphanKey)>,
    /// Objects that data has moved from, until nobody may look at them any more.
    pub(crate) kept: HashMap<OrphanKey, Instant>,
    /// Until when that is so of all that the last run has left: nobody knows when data moved.
    pub(crate) left_kept: Option<Instant>,
    /// How many [`KeptNumbers`] there are, and until when those that are over still count.
    numbers_kept: usize,
    numbers_kept_until: Option<Instant>,
    pub(crate) retry: Retry,
}

/// Numbers of objects that data moves to or from are not given again, until this is dropped.
pub struct KeptNumbers<'a> {
    destroyed: &'a Mutex<Destroyed>,
    is_late: bool,
}

impl<'a> KeptNumbers<'a> {
    pub(crate) fn new(destroyed: &'a Mutex<Destroyed>) -> KeptNumbers<'a> {
        destroyed.lock().numbers_kept += 1;
        KeptNumbers { destroyed, is_late: false }
    }

    /// A request was not answered: it may be executed some time after this is dropped.
    pub fn expect_late(&mut self) {
        self.is_late = true;
    }
}

impl Drop for KeptNumbers<'_> {
    fn drop(&mut self) {
        let mut destroyed = self.destroyed.lock();
        destroyed.numbers_kept -= 1;
        if self.is_late {
            destroyed.numbers_kept_until = Some(clock::now() + LATE);
        }
    }
}

/// How the objects of a file were removed last.
struct Removal {
    change: u64,
    /// When that began, of a file with copies.
    begun: Option<Instant>,
}

/// Key of what is to be removed.
pub(super) type OrphanKey = Vec<u8>;

/// When to look again at files that could not be removed.
pub(crate) struct Retry {
    due: Option<Instant>,
    pub(super) pauses: Backoff,
    /// How long the last walk over all orphans took.
    pub(super) walk: Duration,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry { due: None, pauses: Backoff::new(RETRY_MIN, RETRY_MAX), walk: Duration::ZERO }
    }
}

impl Retry {
    /// Something is left.
    pub(crate) fn later(&mut self, now: Instant) {
        if self.due.is_none() {
            self.due = Some(now + self.pauses.pause_of(self.walk * (RETRY_SHARE - 1)));
        }
    }

    /// Something can be done then, and not before.
    pub(crate) fn at(&mut self, then: Instant) {
        self.due = Some(self.due.map_or(then, |due| due.min(then)));
    }

    /// Whether it is time. Asked once.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }
}

impl Destroyed {
    /// Notes that a change has removed the objects of these files, since `begun`.
    pub(super) fn add(&mut self, change: u64, files: &[(OrphanKey, Layout)], begun: Instant) {
        for (key, layout) in files {
            let begun = (layout.replicas > 1).then_some(begun);
            if let Some(before) = self.files.insert(key.clone(), Removal { change, begun }) {
                self.changes.remove(&(before.change, key.clone()));
            }
            self.changes.insert((change, key.clone()));
        }
    }

    /// Whether the objects of a file were removed, and nobody has said yet that something is left.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.files.contains_key(key)
    }

    /// Whether objects may not be removed yet; if so, they are looked at again in time.
    pub(super) fn keeps(&mut self, key: &[u8], now: Instant) -> bool {
        let until = self.kept.get(key).copied().max(self.left_kept.filter(|_| is_moved(key)));
        match until {
            Some(until) if until > now => {
                self.retry.at(until);
                true
            }
            _ => {
                self.kept.remove(key);
                false
            }
        }
    }

    /// Files whose removal is durable, but for those of which something is left, or may have come
    /// back: nobody copies objects from `quiet` on. Those are removed once more then.
    pub(super) fn take(
        &mut self,
        durable: u64,
        left: &[Ino],
        quiet: Option<Instant>,
    ) -> Vec<OrphanKey> {
        if !left.is_empty() {
            let left: HashSet<&Ino> = left.iter().collect();
            let is_left = |key: &[u8]| Ino::from_key(key).is_some_and(|ino| left.contains(&ino));
            for (key, removal) in self.files.extract_if(|key, _| is_left(key)) {
                self.changes.remove(&(removal.change, key));
            }
        }
        let are_kept = self.are_numbers_kept(clock::now());
        let (mut done, mut kept) = (Vec::new(), Vec::new());
        while self.changes.first().is_some_and(|(change, _)| *change <= durable) {
            let Some((change, key)) = self.changes.pop_first() else { break };
            if are_kept && is_moved(&key) {
                kept.push((change, key));
                continue;
            }
            match self.files.remove(&key) {
                Some(Removal { begun: Some(begun), .. })
                    if quiet.is_none_or(|quiet| begun < quiet) =>
                {
                    match quiet {
                        Some(quiet) => self.retry.at(quiet),
                        None => self.retry.later(clock::now()),
                    }
                }
                Some(_) => done.push(key),
                None => {}
            }
        }
        self.changes.extend(kept);
        if !done.is_empty() {
            self.retry.pauses.reset();
        }
        done
    }

    fn are_numbers_kept(&self, now: Instant) -> bool {
        self.numbers_kept > 0 || self.numbers_kept_until.is_some_and(|until| until > now)
    }
}

/// Whether a key is of objects that data moves to or from: those of a file that was removed have
/// the key of its inode.
fn is_moved(key: &[u8]) -> bool {
    key.len() > Ino::ROOT.key().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::keys;

    #[test]
    fn files_with_copies_are_removed_again_if_somebody_may_have_copied_them() {
        let copies = |replicas| Layout { replicas, ..Layout::default() };
        let key = |ino| Ino(ino).key().to_vec();
        let files = [(key(1), copies(0)), (key(2), copies(3))];
        let now = clock::now();
        let after_removal = |quiet| {
            let mut destroyed = Destroyed::default();
            destroyed.add(7, &files, now);
            assert!(destroyed.take(6, &[], quiet).is_empty(), "that is not durable");
            (destroyed.take(7, &[], quiet), destroyed.retry.due)
        };
        let soon = now + Duration::from_secs(25);
        let (done, retry) = after_removal(None);
        assert_eq!((done, retry.is_some()), (vec![key(1)], true), "tried from time to time");
        assert_eq!(after_removal(Some(soon)), (vec![key(1)], Some(soon)), "no sooner, no later");
        assert_eq!(after_removal(Some(now)), (vec![key(1), key(2)], None));
    }

    #[test]
    fn what_data_has_moved_from_is_kept_for_a_lease_after_a_restart_too() {
        let (now, lease) = (clock::now(), Duration::from_secs(1));
        let mut destroyed = Destroyed { left_kept: Some(now + lease), ..Destroyed::default() };
        let moved = keys::orphan_objects(Ino(1), Layout::default());
        assert!(destroyed.keeps(&moved, now), "who asked the last run may look there");
        assert!(!destroyed.retry.take_due(now) && destroyed.retry.take_due(now + lease));
        assert!(!destroyed.keeps(&moved, now + lease));
        assert!(!destroyed.keeps(&Ino(1).key(), now), "nobody looks for a file that was removed");
    }

    #[test]
    fn numbers_of_objects_are_kept_while_somebody_may_remove_them_by_a_key_that_it_has_read() {
        let moved = keys::orphan_objects(Ino(1), Layout::default()).to_vec();
        let file = Ino(2).key().to_vec();
        let destroyed = Mutex::new(Destroyed::default());
        let files = [moved.clone(), file.clone()].map(|key| (key, Layout::default()));
        destroyed.lock().add(3, &files, clock::now());
        let take = || destroyed.lock().take(3, &[], None);
        let (mut late, other) = (KeptNumbers::new(&destroyed), KeptNumbers::new(&destroyed));
        assert_eq!(take(), [file], "no inode gets its number again");
        late.expect_late();
        drop(late);
        drop(other);
        assert_eq!(
            (take(), destroyed.lock().has(&moved)),
            (vec![], true),
            "it may be executed yet"
        );
        destroyed.lock().numbers_kept_until = Some(clock::now());
        assert_eq!(take(), [moved]);
    }

    /// One server says at once that an object is left, while another has not heard of its order
    /// yet. What that does in the end is the first order, not the one that the first server has still
    /// to do.
    #[test]
    fn an_earlier_change_says_nothing_of_the_one_that_was_made_for_what_it_left() {
        let (key, now) = (Ino(1).key().to_vec(), clock::now());
        let file = [(key.clone(), Layout::default())];
        let mut destroyed = Destroyed::default();
        destroyed.add(1, &file, now);
        assert!(destroyed.take(0, &[Ino(1)], None).is_empty() && !destroyed.has(&key));
        destroyed.add(2, &file, now);
        assert!(destroyed.take(1, &[], None).is_empty(), "the second is not done");
        assert!(destroyed.take(2, &[Ino(1)], None).is_empty(), "it has left something again");
        destroyed.add(3, &file, now);
        assert_eq!(destroyed.take(3, &[], None), [key]);
    }

    #[test]
    fn files_that_are_tried_again_and_again_take_no_more_room() {
        let files: Vec<(OrphanKey, Layout)> =
            (0..9).map(|ino| (Ino(ino).key().to_vec(), Layout::default())).collect();
        let left: Vec<Ino> = (0..9).map(Ino).collect();
        let mut destroyed = Destroyed::default();
        for change in 1..100 {
            destroyed.add(change, &files, clock::now());
            assert_eq!((destroyed.changes.len(), destroyed.files.len()), (9, 9));
            assert!(destroyed.take(0, &left, None).is_empty());
        }
        assert!(destroyed.changes.is_empty() && destroyed.files.is_empty());
    }

    /// As many as wait for servers that are away: the time for each does not grow with them.
    #[test]
    fn many_files_of_which_something_is_left_are_looked_at_once_each() {
        let many = 400_000;
        let files: Vec<(OrphanKey, Layout)> =
            (0..many).map(|ino| (Ino(ino).key().to_vec(), Layout::default())).collect();
        let left: Vec<Ino> = (0..many).filter(|ino| ino % 2 == 0).rev().map(Ino).collect();
        let mut destroyed = Destroyed::default();
        destroyed.add(1, &files, clock::now());
        let begun = Instant::now();
        let done = destroyed.take(1, &left, None);
        assert_eq!(done.len(), many as usize / 2);
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }

    #[test]
    fn pauses_grow_while_nothing_changes() {
        let now = Instant::now();
        let mut retry = Retry { walk: Duration::from_secs(2), ..Retry::default() };
        let mut pauses = Vec::new();
        for _ in 0..8 {
            retry.later(now);
            retry.later(now);
            let pause = retry.due.unwrap() - now;
            pauses.push(pause.as_secs());
            assert!(!retry.take_due(now) && retry.take_due(now + pause));
        }
        assert_eq!(pauses, [8, 16, 32, 64, 128, 256, 300, 300], "a fifth of the time at first");
    }
}

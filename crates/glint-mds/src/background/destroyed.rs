//! Files whose objects were removed, until that is on stable storage and nothing brings them back.
//!
//! Invariant: members of a chain that have not removed an object yet may give it to others that
//! have. So a file with copies is forgotten only if its objects were removed while nobody copied
//! anything; else they are removed once more.

use glint_proto::{Ino, Layout, clock};
use glint_wait::Backoff;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// First and longest pause before what could not be removed is tried again.
pub(super) const RETRY_MIN: Duration = Duration::from_secs(1);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(300);
/// Share of the thread's time that walks over what could not be removed take at most.
const RETRY_SHARE: u32 = 5;

/// Files whose objects are removed, in the order of these changes.
#[derive(Default)]
pub(crate) struct Destroyed {
    /// By their orphan keys, with the time at which those with copies were removed.
    pub(super) files: HashMap<OrphanKey, Option<Instant>>,
    changes: VecDeque<(u64, Vec<OrphanKey>)>,
    /// Objects that data has moved from, until nobody may look at them any more.
    pub(crate) kept: HashMap<OrphanKey, Instant>,
    pub(crate) retry: Retry,
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
    pub(super) fn add(&mut self, change: u64, files: &[(OrphanKey, Layout)], begun: Instant) {
        let removed = |(key, layout): &(OrphanKey, Layout)| {
            (key.clone(), (layout.replicas > 1).then_some(begun))
        };
        self.files.extend(files.iter().map(removed));
        self.changes.push_back((change, files.iter().map(|(key, _)| key.clone()).collect()));
    }

    /// Whether objects may not be removed yet; if so, they are looked at again in time.
    pub(super) fn keeps(&mut self, key: &[u8], now: Instant) -> bool {
        match self.kept.get(key) {
            Some(until) if *until > now => {
                self.retry.at(*until);
                true
            }
            Some(_) => {
                self.kept.remove(key);
                false
            }
            None => false,
        }
    }

    /// Files whose removal is durable, but for those of which something is left, or may have come
    /// back: nobody has copied objects since `quiet`.
    pub(super) fn take(
        &mut self,
        durable: u64,
        left: &[Ino],
        quiet: Option<Instant>,
    ) -> Vec<OrphanKey> {
        if !left.is_empty() {
            let left: HashSet<&Ino> = left.iter().collect();
            let is_left = |key: &[u8]| Ino::from_key(key).is_some_and(|ino| left.contains(&ino));
            self.files.retain(|key, _| !is_left(key));
        }
        let mut done = Vec::new();
        while self.changes.front().is_some_and(|(change, _)| *change <= durable) {
            let (_, files) = self.changes.pop_front().unwrap_or_default();
            for key in files {
                match self.files.remove(&key) {
                    Some(Some(removed)) if quiet.is_none_or(|quiet| removed < quiet) => {
                        self.retry.later(clock::now());
                    }
                    Some(_) => done.push(key),
                    None => {}
                }
            }
        }
        if !done.is_empty() {
            self.retry.pauses.reset();
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (destroyed.take(7, &[], quiet), destroyed.retry.due.is_some())
        };
        let second = Duration::from_secs(1);
        assert_eq!(after_removal(None), (vec![key(1)], true));
        assert_eq!(after_removal(Some(now + second)), (vec![key(1)], true));
        assert_eq!(after_removal(Some(now)), (vec![key(1), key(2)], false));
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

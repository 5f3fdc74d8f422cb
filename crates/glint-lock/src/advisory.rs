//! The locks that programs take: flock(2), and fcntl(2) with its ranges.
//!
//! Both kinds live side by side and do not see each other, as on Linux. An fcntl lock belongs
//! to a process, one of flock to an open file; either is named by a number that the client's
//! kernel chose.
//!
//! Invariants:
//! - An exclusive lock overlaps no other owner's lock of its kind.
//! - A request that waits is granted as soon as nothing is in its way, in the order of asking.
//! - No cycle of owners waits for one another (fcntl's EDEADLK).

use glint_proto::lock::Range;
use glint_proto::{ClientId, Ino};
use std::collections::{BTreeMap, HashSet, VecDeque};

/// Which of the two kinds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// flock(2).
    Flock,
    /// fcntl(2).
    Posix,
}

/// Whose lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    /// On which client.
    pub client: ClientId,
    /// As its kernel says.
    pub number: u64,
}

/// A lock, held or asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Whose.
    pub owner: Owner,
    /// Process, for F_GETLK.
    pub pid: u32,
    /// What it covers.
    pub range: Range,
    /// Excludes others.
    pub write: bool,
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is held now.
    Granted,
    /// Somebody else's is in the way (EAGAIN).
    Busy,
    /// Waiting would never end (EDEADLK).
    Deadlock,
    /// The ticket is among the granted ones later.
    Waits(u64),
}

#[derive(Default)]
struct File {
    held: Vec<Lock>,
    waiting: VecDeque<(u64, Lock)>,
}

fn conflicts(a: &Lock, b: &Lock) -> bool {
    a.owner != b.owner && (a.write || b.write) && a.range.overlaps(b.range)
}

impl File {
    /// Takes what `owner` has in `range` away; the rest of its locks stays.
    fn cut(&mut self, owner: Owner, range: Range) {
        let mut rest = Vec::new();
        self.held.retain(|lock| {
            if lock.owner != owner || !lock.range.overlaps(range) {
                return true;
            }
            for (start, end) in [(lock.range.start, range.start), (range.end, lock.range.end)] {
                if start < end {
                    rest.push(Lock { range: Range { start, end }, ..*lock });
                }
            }
            false
        });
        self.held.append(&mut rest);
    }

    /// Puts a lock in place of what its owner had there, and joins it with its neighbours.
    fn put(&mut self, mut lock: Lock) {
        self.cut(lock.owner, lock.range);
        self.held.retain(|other| {
            let joins = other.owner == lock.owner
                && other.write == lock.write
                && (other.range.end == lock.range.start || other.range.start == lock.range.end);
            if joins {
                lock.range.start = lock.range.start.min(other.range.start);
                lock.range.end = lock.range.end.max(other.range.end);
            }
            !joins
        });
        self.held.push(lock);
    }

    fn in_the_way<'a>(&'a self, asks: &'a Lock) -> impl Iterator<Item = &'a Lock> {
        self.held.iter().filter(move |lock| conflicts(asks, lock))
    }

    fn is_free(&self, asks: &Lock) -> bool {
        self.in_the_way(asks).next().is_none()
    }
}

/// The table.
#[derive(Default)]
pub struct AdvisoryTable {
    files: BTreeMap<(Ino, Kind), File>,
    next: u64,
}

impl AdvisoryTable {
    /// Takes a lock, or asks for it.
    pub fn lock(
        &mut self,
        ino: Ino,
        kind: Kind,
        lock: Lock,
        wait: bool,
        granted: &mut Vec<u64>,
    ) -> Outcome {
        let file = self.files.entry((ino, kind)).or_default();
        if file.is_free(&lock) {
            file.put(lock);
            // A lock that became a shared one may let others in.
            self.advance(ino, kind, granted);
            return Outcome::Granted;
        }
        if !wait {
            self.tidy(ino, kind);
            return Outcome::Busy;
        }
        if kind == Kind::Posix && self.would_deadlock(ino, &lock) {
            return Outcome::Deadlock;
        }
        self.next += 1;
        let ticket = self.next;
        self.files.entry((ino, kind)).or_default().waiting.push_back((ticket, lock));
        Outcome::Waits(ticket)
    }

    /// Gives up what an owner has in a range.
    pub fn unlock(
        &mut self,
        ino: Ino,
        kind: Kind,
        owner: Owner,
        range: Range,
        granted: &mut Vec<u64>,
    ) {
        if let Some(file) = self.files.get_mut(&(ino, kind)) {
            file.cut(owner, range);
            self.advance(ino, kind, granted);
        }
    }

    /// What would be in the way of a lock (F_GETLK).
    pub fn test(&self, ino: Ino, kind: Kind, asks: &Lock) -> Option<Lock> {
        self.files.get(&(ino, kind))?.in_the_way(asks).min_by_key(|lock| lock.range.start).copied()
    }

    /// Nobody waits for this any more.
    pub fn forget(&mut self, ino: Ino, kind: Kind, ticket: u64, granted: &mut Vec<u64>) {
        if let Some(file) = self.files.get_mut(&(ino, kind)) {
            file.waiting.retain(|(waiting, _)| *waiting != ticket);
            self.advance(ino, kind, granted);
        }
    }

    /// A client is gone, and all its locks.
    pub fn evict(&mut self, client: ClientId, granted: &mut Vec<u64>) {
        let files: Vec<(Ino, Kind)> = self.files.keys().copied().collect();
        for (ino, kind) in files {
            if let Some(file) = self.files.get_mut(&(ino, kind)) {
                file.held.retain(|lock| lock.owner.client != client);
                file.waiting.retain(|(_, lock)| lock.owner.client != client);
            }
            self.advance(ino, kind, granted);
        }
    }

    /// All of them.
    pub fn held(&self) -> impl Iterator<Item = (Ino, Kind, &Lock)> {
        let files = self.files.iter();
        files.flat_map(|((ino, kind), file)| file.held.iter().map(|lock| (*ino, *kind, lock)))
    }

    /// How many are held.
    pub fn len(&self) -> usize {
        self.files.values().map(|file| file.held.len()).sum()
    }

    /// Whether nobody holds or waits for any.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn advance(&mut self, ino: Ino, kind: Kind, granted: &mut Vec<u64>) {
        let Some(file) = self.files.get_mut(&(ino, kind)) else { return };
        let mut at = 0;
        while let Some((ticket, lock)) = file.waiting.get(at).copied() {
            let overtakes =
                file.waiting.iter().take(at).any(|(_, earlier)| conflicts(earlier, &lock));
            if overtakes || !file.is_free(&lock) {
                at += 1;
                continue;
            }
            file.waiting.remove(at);
            file.put(lock);
            granted.push(ticket);
        }
        self.tidy(ino, kind);
    }

    fn tidy(&mut self, ino: Ino, kind: Kind) {
        if self.files.get(&(ino, kind)).is_some_and(|f| f.held.is_empty() && f.waiting.is_empty()) {
            self.files.remove(&(ino, kind));
        }
    }

    /// Whether somebody whom `asks` would wait for waits, perhaps by way of others, for the
    /// owner of `asks`.
    fn would_deadlock(&self, ino: Ino, asks: &Lock) -> bool {
        let holders = |ino, lock: &Lock| -> Vec<Owner> {
            let file = self.files.get(&(ino, Kind::Posix));
            let held = file.map(|file| file.in_the_way(lock).map(|held| held.owner).collect());
            held.unwrap_or_default()
        };
        let mut seen = HashSet::new();
        let mut next = holders(ino, asks);
        while let Some(owner) = next.pop() {
            if owner == asks.owner {
                return true;
            }
            if !seen.insert(owner) {
                continue;
            }
            for ((ino, kind), file) in &self.files {
                for (_, lock) in file.waiting.iter().filter(|(_, lock)| lock.owner == owner) {
                    if *kind == Kind::Posix {
                        next.extend(holders(*ino, lock));
                    }
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INO: Ino = Ino(9);

    fn lock(number: u64, start: u64, end: u64, write: bool) -> Lock {
        let owner = Owner { client: ClientId(1 + number % 2), number };
        Lock { owner, pid: number as u32, range: Range { start, end }, write }
    }

    #[test]
    fn ranges_are_cut_and_joined_as_fcntl_does() {
        let mut table = AdvisoryTable::default();
        let granted = &mut Vec::new();
        let mut set = |lock| table.lock(INO, Kind::Posix, lock, false, granted);
        assert_eq!(set(lock(1, 0, 100, true)), Outcome::Granted);
        assert_eq!(set(lock(1, 40, 60, false)), Outcome::Granted);
        assert_eq!(set(lock(2, 45, 50, false)), Outcome::Granted, "both read there");
        assert_eq!(set(lock(2, 39, 50, false)), Outcome::Busy);
        assert_eq!(table.len(), 4);
        table.unlock(INO, Kind::Posix, lock(2, 0, 0, false).owner, Range::ALL, granted);
        assert_eq!(
            table.lock(INO, Kind::Posix, lock(1, 40, 60, true), false, granted),
            Outcome::Granted
        );
        assert_eq!(table.len(), 1, "neighbours are one again");
        let found = table.test(INO, Kind::Posix, &lock(2, 10, 20, false)).unwrap();
        assert_eq!((found.pid, found.range), (1, Range { start: 0, end: 100 }));
        assert!(table.test(INO, Kind::Flock, &lock(2, 10, 20, true)).is_none());
        table.evict(ClientId(2), granted);
        assert!(table.is_empty());
    }

    #[test]
    fn a_cycle_is_refused_and_a_chain_is_not() {
        let mut table = AdvisoryTable::default();
        let granted = &mut Vec::new();
        for owner in 1..4 {
            let own = lock(owner, owner * 10, owner * 10 + 1, true);
            assert_eq!(table.lock(INO, Kind::Posix, own, true, granted), Outcome::Granted);
        }
        let waits = table.lock(INO, Kind::Posix, lock(1, 20, 21, true), true, granted);
        assert!(matches!(waits, Outcome::Waits(_)));
        let waits = table.lock(INO, Kind::Posix, lock(2, 30, 31, true), true, granted);
        assert!(matches!(waits, Outcome::Waits(_)));
        let cycle = table.lock(INO, Kind::Posix, lock(3, 10, 11, false), true, granted);
        assert_eq!(cycle, Outcome::Deadlock);
        table.unlock(INO, Kind::Posix, lock(3, 0, 0, true).owner, Range::ALL, granted);
        assert_eq!(granted.len(), 1);
        table.unlock(INO, Kind::Posix, lock(2, 0, 0, true).owner, Range::ALL, granted);
        assert_eq!(granted.len(), 2);
    }

    proptest! {
        #[test]
        fn owners_exclude_each_other_and_all_are_served(
            steps in proptest::collection::vec((0u8..4, 0u64..4, 0u64..8, 1u64..5, any::<bool>()), 0..100)
        ) {
            let mut table = AdvisoryTable::default();
            let mut waiting = HashSet::new();
            let mut granted = Vec::new();
            for (step, owner, start, len, write) in steps {
                let asks = lock(owner, start, start + len, write);
                match step {
                    0 | 1 => if let Outcome::Waits(ticket) =
                        table.lock(INO, Kind::Posix, asks, true, &mut granted) {
                        waiting.insert(ticket);
                    },
                    2 => table.unlock(INO, Kind::Posix, asks.owner, asks.range, &mut granted),
                    _ => { table.lock(INO, Kind::Posix, asks, false, &mut granted); }
                }
                for ticket in granted.drain(..) {
                    prop_assert!(waiting.remove(&ticket));
                }
                let Some(file) = table.files.get(&(INO, Kind::Posix)) else { continue };
                for (i, a) in file.held.iter().enumerate() {
                    for b in &file.held[..i] {
                        prop_assert!(!conflicts(a, b));
                        prop_assert!(a.owner != b.owner || !a.range.overlaps(b.range));
                    }
                }
            }
            // Who holds gives up what it has, again and again.
            for round in 0..4 * (waiting.len() as u64 + 1) {
                let owner = lock(round % 4, 0, 0, true).owner;
                table.unlock(INO, Kind::Posix, owner, Range::ALL, &mut granted);
                for ticket in granted.drain(..) { waiting.remove(&ticket); }
            }
            prop_assert!(waiting.is_empty(), "{waiting:?} still wait");
        }
    }
}

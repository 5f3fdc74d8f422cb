//! The locks that programs take: flock(2), and fcntl(2) with its ranges.
//!
//! Both kinds live side by side and do not see each other, as on Linux. An fcntl lock belongs
//! to a process, one of flock to an open file; either is named by a number that the client's
//! kernel chose.
//!
//! Invariants:
//! - An exclusive lock overlaps no other owner's lock of its kind.
//! - A request that waits is granted as soon as nothing is in its way, in the order of asking:
//!   none overtakes an earlier one that it conflicts with, unless that would wait for ever.
//! - What a lock costs depends on who has locks of the same file, not on how many there are.

use glint_proto::lock::Range;
use glint_proto::{ClientId, Ino};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Kind of a POSIX lock: the two do not exclude each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// flock(2).
    Flock,
    /// fcntl(2).
    Posix,
}

/// Owner of a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockOwner {
    /// Client that the owner is on.
    pub client: ClientId,
    /// Number of the owner in the kernel of its client.
    pub number: u64,
}

/// A lock, held or asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Owner.
    pub owner: LockOwner,
    /// Process, for F_GETLK.
    pub pid: u32,
    /// Bytes that the lock covers.
    pub range: Range,
    /// Excludes others.
    pub write: bool,
}

/// Outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockOutcome {
    /// The lock is held now.
    Granted,
    /// Somebody else's is in the way (EAGAIN).
    Busy,
    /// The client has too many (ENOLCK).
    TooMany,
    /// The ticket is among the granted ones later.
    Waits(u64),
}

/// A range that an owner holds.
#[derive(Clone, Copy)]
struct HeldRange {
    end: u64,
    pid: u32,
    write: bool,
}

/// Locks of an owner on a file: ranges that do not overlap, by their starts.
#[derive(Default)]
struct Ranges {
    by_start: BTreeMap<u64, HeldRange>,
    /// How many are exclusive.
    writes: usize,
}

impl Ranges {
    fn insert(&mut self, start: u64, held: HeldRange) {
        self.writes += usize::from(held.write);
        self.by_start.insert(start, held);
    }

    fn remove(&mut self, start: u64) {
        if let Some(held) = self.by_start.remove(&start) {
            self.writes -= usize::from(held.write);
        }
    }

    /// Held ranges that overlap this one, the last first.
    fn overlapping(&self, range: Range) -> impl Iterator<Item = (u64, HeldRange)> {
        let before = self.by_start.range(..range.end).rev();
        let ends_in_it = move |(_, held): &(&u64, &HeldRange)| held.end > range.start;
        before.take_while(ends_in_it).map(|(start, held)| (*start, *held))
    }

    /// The first that conflicts with another owner's lock.
    fn in_the_way(&self, range: Range, write: bool) -> Option<(u64, HeldRange)> {
        if !write && self.writes == 0 {
            return None;
        }
        self.overlapping(range).filter(|(_, held)| write || held.write).last()
    }

    fn is_in_the_way(&self, range: Range, write: bool) -> bool {
        (write || self.writes > 0) && self.overlapping(range).any(|(_, held)| write || held.write)
    }

    /// Takes a range away; the rest stays.
    fn cut(&mut self, range: Range) {
        let cut: Vec<(u64, HeldRange)> = self.overlapping(range).collect();
        for (start, held) in cut {
            self.remove(start);
            if start < range.start {
                self.insert(start, HeldRange { end: range.start, ..held });
            }
            if held.end > range.end {
                self.insert(range.end, held);
            }
        }
    }

    /// The first and the last byte of what is held in a range.
    fn extent(&self, range: Range) -> Option<Range> {
        let end = self.overlapping(range).next()?.1.end.min(range.end);
        let start = self.overlapping(range).last()?.0.max(range.start);
        Some(Range { start, end })
    }

    /// Puts a lock in place of what was there, and joins it with its neighbours.
    fn put(&mut self, mut range: Range, pid: u32, write: bool) {
        self.cut(range);
        let before = self.by_start.range(..range.start).next_back();
        if let Some((start, held)) = before.map(|(start, held)| (*start, *held))
            && held.end == range.start
            && held.write == write
        {
            self.remove(start);
            range.start = start;
        }
        if let Some(held) = self.by_start.get(&range.end).copied()
            && held.write == write
        {
            self.remove(range.end);
            range.end = held.end;
        }
        self.insert(range.start, HeldRange { end: range.end, pid, write });
    }
}

#[derive(Default)]
struct FilePosixLocks {
    held: BTreeMap<LockOwner, Ranges>,
    /// By their tickets, which rise.
    waiting: BTreeMap<u64, Lock>,
    of_owners: BTreeSet<(LockOwner, u64)>,
}

fn conflicts(a: &Lock, b: &Lock) -> bool {
    a.owner != b.owner && (a.write || b.write) && a.range.overlaps(b.range)
}

impl FilePosixLocks {
    fn others(&self, owner: LockOwner) -> impl Iterator<Item = (&LockOwner, &Ranges)> {
        self.held.iter().filter(move |(other, _)| **other != owner)
    }

    /// Whether nobody holds what conflicts with a lock.
    fn is_free(&self, asks: &Lock) -> bool {
        !self.others(asks.owner).any(|(_, held)| held.is_in_the_way(asks.range, asks.write))
    }

    /// Whether one that waits, with a ticket below `before`, conflicts with a lock. Its owner's own
    /// locks may be what that one waits for.
    fn is_behind(&self, asks: &Lock, before: u64) -> bool {
        let own = self.held.get(&asks.owner);
        let waits_for_it =
            |earlier: &Lock| own.is_some_and(|own| own.is_in_the_way(earlier.range, earlier.write));
        let mut earlier = self.waiting.range(..before);
        earlier.any(|(_, earlier)| conflicts(earlier, asks) && !waits_for_it(earlier))
    }

    fn add_waiting(&mut self, ticket: u64, lock: Lock) {
        self.of_owners.insert((lock.owner, ticket));
        self.waiting.insert(ticket, lock);
    }

    fn remove_waiting(&mut self, ticket: u64) -> Option<Lock> {
        let lock = self.waiting.remove(&ticket)?;
        self.of_owners.remove(&(lock.owner, ticket));
        Some(lock)
    }

    /// The next one that waits, of these owners if some are named.
    fn next_waiting(&self, after: u64, owners: Option<&[LockOwner]>) -> Option<(u64, Lock)> {
        let ticket = match owners {
            None => *self.waiting.range(after + 1..).next()?.0,
            Some(owners) => {
                let of = |owner: &LockOwner| {
                    let next =
                        self.of_owners.range((*owner, after + 1)..=(*owner, u64::MAX)).next();
                    next.map(|(_, ticket)| *ticket)
                };
                owners.iter().filter_map(of).min()?
            }
        };
        Some((ticket, *self.waiting.get(&ticket)?))
    }

    /// Owner that has all of a range for itself. Nobody else is granted anything in it.
    fn holds_alone(&self, range: Range) -> Option<LockOwner> {
        let all = |held: &Ranges| {
            held.writes > 0
                && held.overlapping(range).next().is_some_and(|(start, held)| {
                    held.write && start <= range.start && held.end >= range.end
                })
        };
        self.held.iter().find(|(_, held)| all(held)).map(|(owner, _)| *owner)
    }

    /// Owners that may be granted something that conflicts with a request that waits.
    fn may_overtake(&self, waits: &Lock) -> Vec<LockOwner> {
        let it_waits_for = |held: &Ranges| held.is_in_the_way(waits.range, waits.write);
        let others = self.others(waits.owner).filter(|(_, held)| it_waits_for(held));
        others.map(|(owner, _)| *owner).chain([waits.owner]).collect()
    }

    fn ranges_of(&self, owner: LockOwner) -> usize {
        self.held.get(&owner).map_or(0, |held| held.by_start.len())
    }
}

/// The table.
pub struct PosixLockTable {
    files: BTreeMap<(Ino, Kind), FilePosixLocks>,
    /// Ranges of each client, and its requests that wait; and how many it may have.
    counts: HashMap<ClientId, usize>,
    limit: usize,
    next: u64,
}

impl Default for PosixLockTable {
    fn default() -> PosixLockTable {
        PosixLockTable::with_limit(usize::MAX)
    }
}

impl PosixLockTable {
    /// A table where a client has at most so many ranges and requests that wait.
    pub fn with_limit(limit: usize) -> PosixLockTable {
        PosixLockTable { files: BTreeMap::new(), counts: HashMap::new(), limit, next: 0 }
    }

    /// Takes a lock, or asks for it.
    pub fn lock(
        &mut self,
        ino: Ino,
        kind: Kind,
        lock: Lock,
        wait: bool,
        granted: &mut Vec<u64>,
    ) -> LockOutcome {
        let count = self.counts.get(&lock.owner.client).copied().unwrap_or(0);
        if count >= self.limit {
            return LockOutcome::TooMany;
        }
        let file = self.files.entry((ino, kind)).or_default();
        // A caller that does not want to wait asks only whether it is held (fcntl(2)).
        if file.is_free(&lock) && !(wait && file.is_behind(&lock, u64::MAX)) {
            self.put(ino, kind, lock);
            // A lock that became a shared one may let others in.
            self.advance(ino, kind, lock.range, granted);
            return LockOutcome::Granted;
        }
        if !wait {
            self.tidy(ino, kind);
            return LockOutcome::Busy;
        }
        self.next += 1;
        let ticket = self.next;
        file.add_waiting(ticket, lock);
        self.count(lock.owner.client, 1);
        LockOutcome::Waits(ticket)
    }

    /// Grants again a lock that was held before a restart, whoever asked since.
    pub fn reclaim(&mut self, ino: Ino, kind: Kind, lock: Lock) -> LockOutcome {
        let count = self.counts.get(&lock.owner.client).copied().unwrap_or(0);
        match self.files.entry((ino, kind)).or_default().is_free(&lock) {
            _ if count >= self.limit => LockOutcome::TooMany,
            true => {
                self.put(ino, kind, lock);
                LockOutcome::Granted
            }
            false => LockOutcome::Busy,
        }
    }

    /// Unlocks what an owner has in a range.
    pub fn unlock(
        &mut self,
        ino: Ino,
        kind: Kind,
        owner: LockOwner,
        range: Range,
        granted: &mut Vec<u64>,
    ) {
        let Some(file) = self.files.get_mut(&(ino, kind)) else { return };
        let before = file.ranges_of(owner);
        let Some(held) = file.held.get_mut(&owner) else { return };
        // A close ends all locks of the owner on the file: mostly none.
        let Some(changed) = held.extent(range) else { return };
        held.cut(range);
        if held.by_start.is_empty() {
            file.held.remove(&owner);
        }
        let after = file.ranges_of(owner);
        self.count(owner.client, after as isize - before as isize);
        self.advance(ino, kind, changed, granted);
    }

    /// A lock that would be in the way of `asks` (F_GETLK).
    pub fn test(&self, ino: Ino, kind: Kind, asks: &Lock) -> Option<Lock> {
        let others = self.files.get(&(ino, kind))?.others(asks.owner);
        let first = |(owner, held): (&LockOwner, &Ranges)| {
            let (start, held) = held.in_the_way(asks.range, asks.write)?;
            let range = Range { start, end: held.end };
            Some(Lock { owner: *owner, pid: held.pid, range, write: held.write })
        };
        others.filter_map(first).min_by_key(|lock| lock.range.start)
    }

    /// Nobody waits for this any more.
    pub fn forget(&mut self, ino: Ino, kind: Kind, ticket: u64, granted: &mut Vec<u64>) {
        let Some(file) = self.files.get_mut(&(ino, kind)) else { return };
        if let Some(lock) = file.remove_waiting(ticket) {
            self.count(lock.owner.client, -1);
            self.advance(ino, kind, lock.range, granted);
        }
    }

    /// For whom a request waits: up to `limit` owners. None if it does not wait.
    pub fn waits_for(&self, ino: Ino, kind: Kind, ticket: u64, limit: usize) -> Vec<LockOwner> {
        let Some(file) = self.files.get(&(ino, kind)) else { return Vec::new() };
        let Some(asks) = file.waiting.get(&ticket).copied() else { return Vec::new() };
        let holders = file.others(asks.owner);
        let holders = holders.filter(|(_, held)| held.is_in_the_way(asks.range, asks.write));
        let earlier = file.waiting.range(..ticket).map(|(_, earlier)| earlier);
        let earlier = earlier.filter(|earlier| conflicts(earlier, &asks));
        let owners = holders.map(|(owner, _)| *owner).chain(earlier.map(|earlier| earlier.owner));
        owners.take(limit).collect()
    }

    /// A request need not wait for earlier ones any more, because they wait for it. Returns
    /// whether it is granted.
    pub fn overtake(&mut self, ino: Ino, kind: Kind, ticket: u64) -> bool {
        let Some(file) = self.files.get_mut(&(ino, kind)) else { return false };
        let Some(lock) = file.waiting.get(&ticket).copied() else { return false };
        if !file.is_free(&lock) {
            return false;
        }
        file.remove_waiting(ticket);
        self.count(lock.owner.client, -1);
        self.put(ino, kind, lock);
        true
    }

    /// A client is gone, and all its locks.
    pub fn evict(&mut self, client: ClientId, granted: &mut Vec<u64>) {
        let of_client = |file: &FilePosixLocks| {
            file.held.keys().any(|owner| owner.client == client)
                || file.waiting.values().any(|lock| lock.owner.client == client)
        };
        let files = self.files.iter().filter(|(_, file)| of_client(file));
        let files: Vec<(Ino, Kind)> = files.map(|(key, _)| *key).collect();
        for (ino, kind) in files {
            if let Some(file) = self.files.get_mut(&(ino, kind)) {
                file.held.retain(|owner, _| owner.client != client);
                file.waiting.retain(|_, lock| lock.owner.client != client);
                file.of_owners.retain(|(owner, _)| owner.client != client);
            }
            self.advance(ino, kind, Range::ALL, granted);
        }
        self.counts.remove(&client);
    }

    /// All of them.
    pub fn held(&self) -> impl Iterator<Item = (Ino, Kind, Lock)> {
        self.files.iter().flat_map(|((ino, kind), file)| {
            file.held.iter().flat_map(|(owner, ranges)| {
                ranges.by_start.iter().map(|(start, held)| {
                    let range = Range { start: *start, end: held.end };
                    let lock = Lock { owner: *owner, pid: held.pid, range, write: held.write };
                    (*ino, *kind, lock)
                })
            })
        })
    }

    /// How many are held.
    pub fn len(&self) -> usize {
        let held = self.files.values().flat_map(|file| file.held.values());
        held.map(|ranges| ranges.by_start.len()).sum()
    }

    /// Whether nobody holds or waits for any.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn count(&mut self, client: ClientId, more: isize) {
        let count = self.counts.entry(client).or_default();
        *count = count.saturating_add_signed(more);
        if *count == 0 {
            self.counts.remove(&client);
        }
    }

    /// Returns whether some of it was exclusive and is not any more.
    fn put(&mut self, ino: Ino, kind: Kind, lock: Lock) -> bool {
        let file = self.files.entry((ino, kind)).or_default();
        let held = file.held.entry(lock.owner).or_default();
        let before = held.by_start.len();
        let lets_in = !lock.write && held.is_in_the_way(lock.range, false);
        held.put(lock.range, lock.pid, lock.write);
        let after = held.by_start.len();
        self.count(lock.owner.client, after as isize - before as isize);
        lets_in
    }

    /// Grants what can be granted now that something has changed in a range.
    ///
    /// Where somebody has all of it, or waits for all of it, to write, few others can be granted
    /// anything there, and only they are looked at: many that wait cost each other little.
    fn advance(&mut self, ino: Ino, kind: Kind, changed: Range, granted: &mut Vec<u64>) {
        let mut changes = vec![changed];
        while let Some(changed) = changes.pop() {
            let alone = self.files.get(&(ino, kind)).and_then(|file| file.holds_alone(changed));
            let mut owners = alone.map(|owner| vec![owner]);
            let mut after = 0;
            while let Some(file) = self.files.get_mut(&(ino, kind))
                && let Some((ticket, lock)) = file.next_waiting(after, owners.as_deref())
            {
                after = ticket;
                if !lock.range.overlaps(changed) {
                    continue;
                }
                if file.is_free(&lock) && !file.is_behind(&lock, ticket) {
                    file.remove_waiting(ticket);
                    self.count(lock.owner.client, -1);
                    if self.put(ino, kind, lock) {
                        changes.push(lock.range);
                    }
                    granted.push(ticket);
                    continue;
                }
                let waits_for_all =
                    lock.range.start <= changed.start && lock.range.end >= changed.end;
                if owners.is_none() && lock.write && waits_for_all {
                    owners = Some(file.may_overtake(&lock));
                }
            }
        }
        self.tidy(ino, kind);
    }

    fn tidy(&mut self, ino: Ino, kind: Kind) {
        if self.files.get(&(ino, kind)).is_some_and(|f| f.held.is_empty() && f.waiting.is_empty()) {
            self.files.remove(&(ino, kind));
        }
    }
}

#[cfg(test)]
mod tests;

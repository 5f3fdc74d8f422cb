//! The server's table of locks on data: ranges of a file, shared to read or exclusive to
//! write, in file offsets (the tokens of GPFS).
//!
//! A client that is alone with a file is given all of it; once another one appears, each gets
//! what it asks for.
//!
//! Invariants:
//! - Two locks of different clients overlap only if both are shared.
//! - Requests are granted in the order of asking: none overtakes an earlier one that it
//!   conflicts with, so nobody starves.
//! - Every holder that is in the way of a request has been asked, once.
//! - Locks of a client on a file that it was not asked for lie apart from each other: a new one
//!   takes those that it touches into it. And there are at most
//!   [`DATA_LOCKS_PER_FILE_MAX`]: then the client is asked for the oldest.

use crate::bits::Message;
use glint_proto::limits::{DATA_LOCKS_OWED_MAX, DATA_LOCKS_PER_FILE_MAX};
use glint_proto::lock::{DataLock, Range, Recall};
use glint_proto::{ClientId, Ino};
use std::collections::{HashMap, VecDeque};

struct HeldLock {
    client: ClientId,
    lock: DataLock,
    asked: bool,
}

struct Waiting {
    ticket: u64,
    client: ClientId,
    range: Range,
    write: bool,
}

#[derive(Default)]
struct FileLocks {
    held: Vec<HeldLock>,
    waiting: VecDeque<Waiting>,
}

fn conflicts(a: (ClientId, Range, bool), b: (ClientId, Range, bool)) -> bool {
    a.0 != b.0 && (a.2 || b.2) && a.1.overlaps(b.1)
}

impl FileLocks {
    /// Whether a lock conflicts with what is held or, of the first `before`, waited for.
    fn is_in_the_way(&self, asks: (ClientId, Range, bool), before: usize) -> bool {
        self.held.iter().any(|h| conflicts(asks, (h.client, h.lock.range, h.lock.write)))
            || self
                .waiting
                .iter()
                .take(before)
                .any(|w| conflicts(asks, (w.client, w.range, w.write)))
    }

    fn has_others(&self, client: ClientId) -> bool {
        self.held.iter().any(|held| held.client != client)
            || self.waiting.iter().any(|waiting| waiting.client != client)
    }

    /// Locks of a client: those that it may keep, and all.
    fn counts(&self, client: ClientId) -> (usize, usize) {
        let own = || self.held.iter().filter(|held| held.client == client);
        (own().filter(|held| !held.asked).count(), own().count())
    }

    fn give(
        &mut self,
        ino: Ino,
        client: ClientId,
        asked: DataLock,
        out: &mut Vec<Message>,
    ) -> DataLock {
        let DataLock { number, range, write } = asked;
        // Alone, or only readers among readers: all of the file.
        let all = (client, Range::ALL, write);
        let whole = match write {
            true => !self.has_others(client),
            false => !self.is_in_the_way(all, usize::MAX),
        };
        let range = if whole { Range::ALL } else { range };
        let lock = self.take_in(client, DataLock { number, range, write });
        self.held.push(HeldLock { client, lock, asked: false });
        if self.held.len() > DATA_LOCKS_PER_FILE_MAX
            && self.counts(client).0 > DATA_LOCKS_PER_FILE_MAX
        {
            // Locks stand in the order of their grants. Many are recalled at once, because each
            // costs the client a look at all that it has written.
            let own = self.held.iter_mut().filter(|held| held.client == client && !held.asked);
            for held in own.take(DATA_LOCKS_PER_FILE_MAX / 4) {
                held.asked = true;
                out.push((client, Recall::Data { ino, number: held.lock.number }));
            }
        }
        lock
    }

    /// Makes a new lock of a client one with older ones.
    fn take_in(&mut self, client: ClientId, mut lock: DataLock) -> DataLock {
        loop {
            let before = lock;
            self.held.retain(|held| {
                if held.client != client || held.asked {
                    return true;
                }
                let joined = lock.joined(held.lock);
                lock = joined.unwrap_or(lock);
                joined.is_none()
            });
            if lock == before {
                return lock;
            }
        }
    }

    fn ask_holders(&mut self, ino: Ino, asks: (ClientId, Range, bool), out: &mut Vec<Message>) {
        for held in &mut self.held {
            let lock = held.lock;
            if !held.asked && conflicts(asks, (held.client, lock.range, lock.write)) {
                held.asked = true;
                out.push((held.client, Recall::Data { ino, number: lock.number }));
            }
        }
    }
}

/// A request that was granted after it waited.
pub type Granted = (u64, DataLock);

/// The table.
#[derive(Default)]
pub struct ExtentTable {
    files: HashMap<Ino, FileLocks>,
    next: u64,
}

impl ExtentTable {
    /// Numbers are above this one from now on.
    pub fn number_from(&mut self, number: u64) {
        self.next = self.next.max(number);
    }

    /// Gives a lock, if the client has none like it and it can be given at once and to all of
    /// the file.
    pub fn try_all(&mut self, client: ClientId, ino: Ino, write: bool) -> Option<DataLock> {
        let file = self.files.entry(ino).or_default();
        let all = DataLock { number: self.next + 1, range: Range::ALL, write };
        let has = |held: &HeldLock| held.client == client && !held.asked && held.lock.covers(all);
        if file.held.iter().any(has)
            || file.is_in_the_way((client, Range::ALL, write), usize::MAX)
            || (write && file.has_others(client))
        {
            return None;
        }
        self.next += 1;
        // The new lock takes all others in, so nobody has to be asked.
        Some(file.give(ino, client, all, &mut Vec::new()))
    }

    /// Whether a client owes so many locks of a file that it gets no more.
    pub fn owes_too_much(&self, client: ClientId, ino: Ino) -> bool {
        self.files.get(&ino).is_some_and(|file| {
            file.held.len() >= DATA_LOCKS_OWED_MAX && file.counts(client).1 >= DATA_LOCKS_OWED_MAX
        })
    }

    /// Asks for a lock. If it cannot be given at once, who is in the way is asked, and the
    /// ticket says later who waited.
    pub fn ask(
        &mut self,
        client: ClientId,
        ino: Ino,
        range: Range,
        write: bool,
        out: &mut Vec<Message>,
    ) -> Result<DataLock, u64> {
        self.next += 1;
        let file = self.files.entry(ino).or_default();
        let asks = (client, range, write);
        if !file.is_in_the_way(asks, usize::MAX) {
            let asked = DataLock { number: self.next, range, write };
            return Ok(file.give(ino, client, asked, out));
        }
        let ticket = self.next;
        file.waiting.push_back(Waiting { ticket, client, range, write });
        file.ask_holders(ino, asks, out);
        Err(ticket)
    }

    /// A lock is returned.
    pub fn return_locks(
        &mut self,
        client: ClientId,
        ino: Ino,
        number: u64,
        granted: &mut Vec<Granted>,
        out: &mut Vec<Message>,
    ) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.held.retain(|held| held.client != client || held.lock.number != number);
            self.advance(ino, granted, out);
        }
    }

    /// Nobody waits for this any more.
    pub fn forget(
        &mut self,
        ino: Ino,
        ticket: u64,
        granted: &mut Vec<Granted>,
        out: &mut Vec<Message>,
    ) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.waiting.retain(|waiting| waiting.ticket != ticket);
            self.advance(ino, granted, out);
        }
    }

    /// A client is gone.
    pub fn evict(&mut self, client: ClientId, granted: &mut Vec<Granted>, out: &mut Vec<Message>) {
        let mut touched = Vec::new();
        for (ino, file) in &mut self.files {
            let before = file.held.len() + file.waiting.len();
            file.held.retain(|held| held.client != client);
            file.waiting.retain(|waiting| waiting.client != client);
            if file.held.len() + file.waiting.len() < before {
                touched.push(*ino);
            }
        }
        touched.sort_unstable();
        for ino in touched {
            self.advance(ino, granted, out);
        }
    }

    /// A client says after a restart of the server what it held.
    pub fn reclaim(
        &mut self,
        client: ClientId,
        ino: Ino,
        range: Range,
        write: bool,
    ) -> Option<DataLock> {
        let file = self.files.entry(ino).or_default();
        if file.is_in_the_way((client, range, write), usize::MAX) {
            return None;
        }
        if file.counts(client).1 >= DATA_LOCKS_OWED_MAX {
            return None;
        }
        self.next += 1;
        let lock = DataLock { number: self.next, range, write };
        file.held.push(HeldLock { client, lock, asked: false });
        Some(lock)
    }

    /// Clients other than `client` that hold locks to write.
    pub fn writers(&self, ino: Ino, client: ClientId) -> Vec<ClientId> {
        let held = self.files.get(&ino).map_or(&[][..], |file| &file.held);
        let mut writers: Vec<ClientId> =
            held.iter().filter(|h| h.lock.write && h.client != client).map(|h| h.client).collect();
        writers.sort_unstable();
        writers.dedup();
        writers
    }

    /// Whether clients other than `client` hold locks to write, or wait for some.
    pub fn has_other_write_locks(&self, ino: Ino, client: ClientId) -> bool {
        self.files.get(&ino).is_some_and(|file| {
            file.held.iter().any(|held| held.lock.write && held.client != client)
                || file.waiting.iter().any(|waiting| waiting.write && waiting.client != client)
        })
    }

    /// Whether a client holds a lock that gives this.
    pub fn gives(&self, client: ClientId, ino: Ino, lock: DataLock) -> bool {
        let file = self.files.get(&ino);
        file.is_some_and(|f| f.held.iter().any(|h| h.client == client && h.lock.covers(lock)))
    }

    /// Locks held, of all files.
    pub fn len(&self) -> usize {
        self.files.values().map(|file| file.held.len()).sum()
    }

    /// Whether nothing is held or waited for.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Grants what can be granted now, in order.
    fn advance(&mut self, ino: Ino, granted: &mut Vec<Granted>, out: &mut Vec<Message>) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let mut at = 0;
        while let Some(waiting) = file.waiting.get(at) {
            let asks = (waiting.client, waiting.range, waiting.write);
            if file.is_in_the_way(asks, at) {
                // A holder may have come since it asked: one that did not conflict with
                // what waited then.
                file.ask_holders(ino, asks, out);
                at += 1;
                continue;
            }
            let Some(waiting) = file.waiting.remove(at) else { break };
            self.next += 1;
            let (range, write) = (waiting.range, waiting.write);
            let asked = DataLock { number: self.next, range, write };
            let lock = file.give(ino, waiting.client, asked, out);
            granted.push((waiting.ticket, lock));
        }
        if file.held.is_empty() && file.waiting.is_empty() {
            self.files.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const INO: Ino = Ino(9);

    #[test]
    fn a_lock_grows_while_alone_and_is_what_was_asked_after_that() {
        let mut table = ExtentTable::default();
        let (mut granted, mut out) = (Vec::new(), Vec::new());
        let first = table.ask(A, INO, Range::of(0, 10), true, &mut out).unwrap();
        assert_eq!(first.range, Range::ALL);
        assert!(table.has_other_write_locks(INO, B) && !table.has_other_write_locks(INO, A));
        let ticket = table.ask(B, INO, Range::of(100, 10), true, &mut out).unwrap_err();
        assert!(table.has_other_write_locks(INO, A), "it waits");
        assert_eq!(out, [(A, Recall::Data { ino: INO, number: first.number })]);
        let behind = table.ask(A, INO, Range::of(200, 10), true, &mut out).unwrap();
        assert_eq!(behind.range, Range::of(200, 10), "its own are not in its way");
        let joined = table.ask(A, INO, Range::of(210, 10), true, &mut out).unwrap();
        assert_eq!(joined.range, Range::of(200, 20), "neighbours are one");
        assert_eq!(table.len(), 2);
        table.return_locks(A, INO, first.number, &mut granted, &mut out);
        assert_eq!(granted.len(), 1);
        assert_eq!((granted[0].0, granted[0].1.range), (ticket, Range::of(100, 10)));
        assert_eq!(table.writers(INO, A), [B]);
        assert!(table.ask(A, INO, Range::of(0, 10), false, &mut out).is_ok());
        assert!(table.ask(B, INO, Range::of(0, 10), false, &mut out).is_ok(), "both read");
        assert!(table.try_all(B, INO, false).is_none());
        table.evict(A, &mut granted, &mut out);
        table.evict(B, &mut granted, &mut out);
        assert!(table.is_empty());
    }

    #[test]
    fn the_same_again_and_again_is_one_lock_and_ranges_that_lie_apart_are_bounded() {
        let mut table = ExtentTable::default();
        let (mut granted, mut out) = (Vec::new(), Vec::new());
        for _ in 0..250_000 {
            table.try_all(A, INO, true);
        }
        assert_eq!(table.len(), 1);
        table.evict(A, &mut granted, &mut out);
        // With another one there each has what it asks for.
        table.reclaim(B, INO, Range::of(0, 1), true).unwrap();
        for n in 2..10_000 {
            table.ask(A, INO, Range::of(10 * n, 1), true, &mut out).unwrap();
            for (client, recall) in std::mem::take(&mut out) {
                let Recall::Data { number, .. } = recall else { panic!("{recall:?}") };
                table.return_locks(client, INO, number, &mut granted, &mut out);
            }
            assert!(table.len() <= DATA_LOCKS_PER_FILE_MAX + 2);
        }
    }

    proptest! {
        /// Clients ask, answer their recalls and vanish in any order: no two holders
        /// conflict, and in the end everybody who still waits is served.
        #[test]
        fn no_conflict_and_nobody_is_forgotten(
            steps in proptest::collection::vec((0u8..4, 1u64..4, 0u64..8, 1u64..5, any::<bool>()), 0..120)
        ) {
            let mut table = ExtentTable::default();
            let mut waiting: Vec<(u64, ClientId)> = Vec::new();
            let mut asked: Vec<(ClientId, u64)> = Vec::new();
            let (mut granted, mut out) = (Vec::new(), Vec::new());
            let mut settle = |table: &mut ExtentTable, step: (u8, u64, u64, u64, bool),
                              waiting: &mut Vec<(u64, ClientId)>,
                              asked: &mut Vec<(ClientId, u64)>| {
                let (kind, client, start, len, write) = step;
                let client = ClientId(client);
                match kind {
                    0 | 1 => match table.ask(client, INO, Range::of(start, len), write, &mut out) {
                        Ok(_) => {}
                        Err(ticket) => waiting.push((ticket, client)),
                    },
                    2 => if let Some((client, number)) = asked.pop() {
                        table.return_locks(client, INO, number, &mut granted, &mut out);
                    },
                    _ => {
                        waiting.retain(|(_, c)| *c != client);
                        asked.retain(|(c, _)| *c != client);
                        table.evict(client, &mut granted, &mut out);
                    }
                }
                for (ticket, _) in granted.drain(..) {
                    let at = waiting.iter().position(|(t, _)| *t == ticket).expect("it waited");
                    waiting.swap_remove(at);
                }
                for (client, recall) in out.drain(..) {
                    let Recall::Data { number, .. } = recall else { panic!("{recall:?}") };
                    assert!(!asked.contains(&(client, number)), "asked twice");
                    asked.push((client, number));
                }
                let held = table.files.get(&INO).map_or(&[][..], |file| &file.held);
                for (i, a) in held.iter().enumerate() {
                    for b in &held[..i] {
                        let (x, y) = (a.lock, b.lock);
                        assert!(!conflicts((a.client, x.range, x.write), (b.client, y.range, y.write)));
                        let kept = a.client == b.client && !a.asked && !b.asked;
                        assert!(!kept || x.joined(y).is_none(), "{x:?} and {y:?} are two");
                    }
                }
            };
            for step in steps {
                settle(&mut table, step, &mut waiting, &mut asked);
            }
            while !waiting.is_empty() {
                prop_assert!(!asked.is_empty(), "somebody waits and nobody was asked");
                settle(&mut table, (2, 1, 0, 1, false), &mut waiting, &mut asked);
            }
        }
    }
}

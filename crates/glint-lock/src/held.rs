//! What a client holds: the counterpart of [`crate::bits`] and [`crate::extents`].
//!
//! Answers and call-backs come on different connections, so a lock may be asked back before
//! the client has heard that it has it.
//!
//! Invariants:
//! - Bits that were asked back are never used on the word of a grant that is older.
//! - A lock on data that is asked back is given up when nobody uses it, and nobody begins to
//!   use it after that, but for requests that the kernel cannot do without: see [`Use`].
//! - A lock that is asked back and not known is given up when every answer that might have
//!   brought it is there, and together with all older ones: it may have taken their place.
//! - A lock that was given under a number below one that is gone, or going, is not relied on:
//!   that one may have taken its place.

use glint_proto::lock::{Bits, DataLock, Range};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Bits of one inode.
#[derive(Clone, Copy, Default, Debug)]
pub struct HeldBits {
    bits: Bits,
    /// For each bit, the number of its last call-back.
    asked: [u64; Bits::COUNT],
}

impl HeldBits {
    /// What may be used.
    pub fn bits(&self) -> Bits {
        self.bits
    }

    /// Whether all of these may be used.
    pub fn has(&self, bits: Bits) -> bool {
        self.bits.contains(bits)
    }

    /// A grant has come. Returns what of it may be used.
    pub fn grant(&mut self, bits: Bits, number: u64) -> Bits {
        let mut usable = Bits::NONE;
        for (at, asked) in self.asked.iter().enumerate() {
            if *asked < number {
                usable |= Bits(1 << at) & bits;
            }
        }
        self.bits |= usable;
        usable
    }

    /// Bits are asked back. Returns those that were held.
    pub fn take_back(&mut self, bits: Bits, number: u64) -> Bits {
        for (at, asked) in self.asked.iter_mut().enumerate() {
            if bits.contains(Bits(1 << at)) {
                *asked = number.max(*asked);
            }
        }
        let lost = self.bits & bits;
        self.bits = self.bits & !bits;
        lost
    }

    /// Gives bits up without having been asked.
    pub fn drop_all(&mut self) -> Bits {
        std::mem::take(&mut self.bits)
    }
}

/// What a lock on data is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// For a call that can wait for another lock.
    Call,
    /// For pages of the kernel, which it keeps locked meanwhile: forgetting them waits for
    /// this, so this must not wait for a lock.
    Pages,
}

#[derive(Clone, Debug)]
struct Data {
    /// Names it here. The servers' number is another after they have started again.
    id: u64,
    /// Ids of locks that it has taken the place of while they were used.
    others: SmallVec<[u64; 1]>,
    lock: DataLock,
    users: u32,
    asked: bool,
    /// Its pages have been forgotten; nobody may use it any more.
    closed: bool,
    /// The servers have forgotten it, and have not yet given it again.
    lost: bool,
}

/// Locks on the data of one inode.
#[derive(Default, Debug)]
pub struct HeldData {
    locks: SmallVec<[Data; 1]>,
    next: u64,
    /// Asked back before they came.
    early: SmallVec<[u64; 1]>,
    /// The highest number that was given up, or is to be.
    gone: u64,
}

impl Data {
    /// Whether the servers may give it and others under one number.
    fn may_join(&self) -> bool {
        !self.asked && !self.lost
    }
}

impl HeldData {
    /// Begins to use a lock that covers a range. Returns its id.
    pub fn begin(&mut self, range: Range, write: bool, purpose: Use) -> Option<u64> {
        let usable = |data: &Data| match purpose {
            Use::Call => !data.asked && !data.lost,
            Use::Pages => !data.closed && !data.lost,
        };
        let covers = |data: &&mut Data| {
            usable(data) && data.lock.range.contains(range) && (data.lock.write || !write)
        };
        let data = self.locks.iter_mut().find(covers)?;
        data.users += 1;
        Some(data.id)
    }

    /// Ends a use. Returns whether the lock is to be given up now.
    pub fn end(&mut self, id: u64) -> bool {
        let Some(data) = self.find(id) else { return false };
        data.users -= 1;
        if data.users == 0 {
            data.others.clear();
        }
        data.users == 0 && data.asked
    }

    /// A lock on all of a file that this client has just made, and that will come when the
    /// servers hear of it: nobody else can have one.
    pub fn expect(&mut self, write: bool) {
        self.add(DataLock { number: 0, range: Range::ALL, write }, false);
    }

    /// A lock has come, with its first use if somebody asked for it. Returns its id, or none if
    /// it is not to be relied on.
    pub fn add(&mut self, lock: DataLock, used: bool) -> Option<u64> {
        let given_up = |data: &&mut Data| {
            let expected = data.lock.number == 0 && data.asked && !data.lost;
            expected && data.lock.write == lock.write
        };
        if !used
            && lock.range == Range::ALL
            && let Some(data) = self.locks.iter_mut().find(given_up)
        {
            data.lock = lock;
            self.gone = self.gone.max(lock.number);
            let id = data.id;
            self.is_not_coming(lock.number);
            return Some(id);
        }
        let newer = |data: &&mut Data| {
            data.may_join() && data.lock.number > lock.number && data.lock.covers(lock)
        };
        if lock.number != 0
            && let Some(data) = self.locks.iter_mut().find(newer)
        {
            data.users += u32::from(used);
            return Some(data.id);
        }
        if lock.number != 0 && lock.number < self.gone {
            return None;
        }
        let asked = self.is_not_coming(lock.number);
        self.next += 1;
        let mut new = Data {
            id: self.next,
            others: SmallVec::new(),
            lock,
            users: u32::from(used),
            asked,
            closed: false,
            lost: false,
        };
        if asked {
            self.gone = self.gone.max(lock.number);
        }
        // What it covers is one with it at the servers, too.
        let joins = |data: &Data| lock.number != 0 && data.may_join() && lock.covers(data.lock);
        let mut heir = None;
        self.locks.retain(|data| {
            if !joins(data) {
                return true;
            }
            if *heir.get_or_insert(data.id) != data.id && data.users > 0 {
                new.others.push(data.id);
            }
            new.others.extend(data.others.drain(..));
            new.users += data.users;
            false
        });
        // Who gives up all locks that there were names it so.
        new.id = heir.unwrap_or(new.id);
        let id = new.id;
        self.locks.push(new);
        Some(id)
    }

    /// The lock that the servers call so.
    pub fn id_of(&self, number: u64) -> Option<u64> {
        let named = |data: &&Data| data.lock.number == number && !data.lost;
        self.locks.iter().find(named).map(|data| data.id)
    }

    /// The servers ask for a lock. Returns its id if it is there; it may be on its way.
    pub fn take_back(&mut self, number: u64) -> Option<u64> {
        let id = self.id_of(number);
        match id {
            Some(id) => self.release(id),
            None => self.early.push(number),
        }
        id
    }

    /// A lock is to be given up when nobody uses it.
    pub fn release(&mut self, id: u64) {
        if let Some(data) = self.locks.iter_mut().find(|data| data.id == id) {
            data.asked = true;
            self.gone = self.gone.max(data.lock.number);
        }
    }

    /// One of the locks that were given before this number, and are not to be given up yet.
    pub fn older(&self, number: u64) -> Option<u64> {
        let older = |data: &&Data| data.lock.number < number && data.may_join();
        self.locks.iter().find(older).map(|data| data.id)
    }

    /// Whether any lock is there that was given before this number.
    pub fn has_older(&self, number: u64) -> bool {
        self.locks.iter().any(|data| data.lock.number < number && !data.lost)
    }

    /// It has not come, and will not any more. Returns whether that is so.
    pub fn is_not_coming(&mut self, number: u64) -> bool {
        let at = self.early.iter().position(|early| *early == number);
        if let Some(at) = at {
            self.early.swap_remove(at);
        }
        at.is_some()
    }

    /// Whether it is there, or will be given again.
    pub fn has(&self, id: u64) -> bool {
        self.locks.iter().any(|data| data.id == id)
    }

    /// What it covers, if it is to be given up and nobody uses it, nor an older one that it may
    /// have taken the place of at the servers.
    pub fn idle(&self, id: u64) -> Option<Range> {
        let data = self.locks.iter().find(|data| data.id == id && !data.lost)?;
        let older = |other: &Data| {
            let older = other.lock.number < data.lock.number && !other.lost;
            older && data.lock.covers(other.lock)
        };
        let idle = data.users == 0 && data.asked && !self.locks.iter().any(older);
        idle.then_some(data.lock.range)
    }

    /// Nobody may begin to use it any more, if nobody does now.
    pub fn close(&mut self, id: u64) -> bool {
        match self.find(id) {
            Some(data) if data.users == 0 => {
                data.closed = true;
                true
            }
            _ => false,
        }
    }

    /// It is given up. Returns the servers' number, if they still know it.
    pub fn remove(&mut self, id: u64) -> Option<u64> {
        let at = self.locks.iter().position(|data| data.id == id)?;
        let data = self.locks.swap_remove(at);
        (!data.lost && data.lock.number != 0).then_some(data.lock.number)
    }

    /// Locks that nobody asked for, to be given up by the client itself.
    pub fn unasked(&self) -> Vec<u64> {
        let unasked = self.locks.iter().filter(|data| !data.asked && !data.lost);
        unasked.map(|data| data.id).collect()
    }

    /// The servers have forgotten all of them. Returns what they were.
    pub fn lose(&mut self) -> Vec<DataLock> {
        self.early.clear();
        self.gone = 0;
        let lose = |data: &mut Data| {
            // What is to be given up still is, once it was given again.
            (data.lost, data.closed) = (true, false);
            data.lock
        };
        self.locks.iter_mut().map(lose).collect()
    }

    /// One of those was given again, with whoever uses it.
    pub fn found(&mut self, lock: DataLock) {
        let same = |data: &&mut Data| {
            data.lost && data.lock.range == lock.range && data.lock.write == lock.write
        };
        match self.locks.iter_mut().find(same) {
            Some(data) => (data.lost, data.lock) = (false, lock),
            None => _ = self.add(lock, false),
        }
    }

    /// Those that were not given again are gone.
    pub fn forget_lost(&mut self) {
        self.locks.retain(|data| !data.lost);
    }

    /// Whether nobody uses any of them, and all could be given up at once.
    pub fn is_unused(&self) -> bool {
        let unused =
            |data: &Data| data.users == 0 && !data.asked && !data.lost && data.lock.number != 0;
        self.early.is_empty() && self.locks.iter().all(unused)
    }

    /// Gives all of them up. Returns the servers' numbers.
    pub fn give_up_unused(&mut self) -> Vec<u64> {
        self.locks.drain(..).map(|data| data.lock.number).collect()
    }

    /// Whether there is nothing to remember.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty() && self.early.is_empty()
    }

    /// Whether a lock to write covers this range, asked back or not.
    pub fn covers_write(&self, range: Range) -> bool {
        let covers = |data: &Data| data.lock.write && data.lock.range.contains(range);
        self.locks.iter().any(|data| covers(data) && !data.lost)
    }

    fn find(&mut self, id: u64) -> Option<&mut Data> {
        self.locks.iter_mut().find(|data| data.id == id || data.others.contains(&id))
    }
}

/// Requests under way, to know when all that were sent before a moment are answered.
#[derive(Default, Debug)]
pub struct Flight {
    generation: u64,
    counts: BTreeMap<u64, u32>,
}

impl Flight {
    /// A request is sent. Returns what ends it.
    pub fn begin(&mut self) -> u64 {
        *self.counts.entry(self.generation).or_default() += 1;
        self.generation
    }

    /// It is answered, and what the answer says is known.
    pub fn end(&mut self, generation: u64) {
        if let Some(count) = self.counts.get_mut(&generation) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&generation);
            }
        }
    }

    /// Names this moment.
    pub fn fence(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// Whether all requests sent before a fence are answered.
    pub fn is_past(&self, fence: u64) -> bool {
        self.counts.first_key_value().is_none_or(|(oldest, _)| *oldest >= fence)
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_grant_brings_nothing_back() {
        let mut held = HeldBits::default();
        assert!(held.grant(Bits::ATTR | Bits::ENTRY, 5).contains(Bits::ATTR));
        assert_eq!(held.take_back(Bits::ATTR, 8), Bits::ATTR);
        assert_eq!(held.grant(Bits::ATTR | Bits::DIR, 7), Bits::DIR);
        assert!(!held.has(Bits::ATTR));
        assert_eq!(held.grant(Bits::ATTR, 9), Bits::ATTR);
        assert_eq!(held.take_back(Bits::OPEN, 10), Bits::NONE);
    }

    #[test]
    fn pages_may_use_a_lock_until_they_are_forgotten() {
        let mut held = HeldData::default();
        let lock = DataLock { number: 3, range: Range::ALL, write: false };
        let id = held.add(lock, true).unwrap();
        assert!(held.begin(Range::of(0, 9), true, Use::Call).is_none(), "it is to read");
        assert_eq!(held.take_back(3), Some(id));
        assert!(held.begin(Range::of(0, 9), false, Use::Call).is_none());
        assert_eq!(held.begin(Range::of(0, 9), false, Use::Pages), Some(id));
        assert!(!held.end(id) && held.idle(id).is_none());
        assert!(!held.close(id), "somebody uses it");
        assert!(held.end(id) && held.idle(id).is_some());
        assert!(held.close(id));
        assert!(held.begin(Range::of(0, 9), false, Use::Pages).is_none());
        assert_eq!(held.remove(id), Some(3));
        assert!(held.take_back(4).is_none(), "it is on its way");
        let late = held.add(DataLock { number: 4, ..lock }, false).unwrap();
        assert!(held.idle(late).is_some() && !held.is_not_coming(4) && !held.is_empty());
    }

    #[test]
    fn a_restart_of_the_servers_does_not_lose_who_uses_a_lock() {
        let mut held = HeldData::default();
        let lock = DataLock { number: 7, range: Range::ALL, write: true };
        let used = held.add(lock, true).unwrap();
        assert_eq!(held.lose(), [lock]);
        assert!(held.begin(Range::ALL, true, Use::Call).is_none());
        // The servers count from the beginning.
        held.found(DataLock { number: 1, ..lock });
        assert_eq!(held.take_back(1), Some(used));
        assert!(held.idle(used).is_none(), "it is still used");
        assert!(held.end(used) && held.idle(used).is_some());
        held.lose();
        assert_eq!(held.remove(used), None, "there is nobody to tell");
        assert!(!held.end(used));
        held.add(lock, false);
        held.lose();
        held.forget_lost();
        assert!(held.is_empty());
    }

    #[test]
    fn locks_that_touch_are_one_for_all_who_use_them() {
        let mut held = HeldData::default();
        let part =
            |number, start, end| DataLock { number, range: Range { start, end }, write: true };
        let (a, b) =
            (held.add(part(1, 0, 4), true).unwrap(), held.add(part(2, 8, 12), true).unwrap());
        // The servers join all three.
        let all = held.add(part(3, 0, 12), true).unwrap();
        assert_eq!((all, held.locks.len(), held.locks[0].users), (a, 1, 3));
        assert_eq!(held.take_back(3), Some(a));
        assert!(!held.end(b) && !held.end(a) && held.idle(a).is_none());
        assert!(held.end(all) && held.close(a));
        assert_eq!(held.remove(a), Some(3));
        assert_eq!(held.add(part(2, 8, 12), false), None, "an answer that comes late");
        assert!(held.is_empty());
    }

    #[test]
    fn a_fence_is_past_when_all_before_it_are_answered() {
        let mut flight = Flight::default();
        let (a, b) = (flight.begin(), flight.begin());
        let fence = flight.fence();
        let later = flight.begin();
        assert!(!flight.is_past(fence));
        flight.end(b);
        assert!(!flight.is_past(fence));
        flight.end(a);
        assert!(flight.is_past(fence));
        assert!(!flight.is_past(later + 1));
    }
}

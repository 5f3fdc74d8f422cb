//! Locks that a client holds: the counterpart of [`crate::bits`] and [`crate::extents`].
//!
//! Answers and recalls come on different connections, so a lock may be recalled before
//! the client has heard that it has it.
//!
//! Invariants:
//! - Bits that were recalled are never used on the word of a grant that is older.
//! - A lock on data that is recalled is returned when nobody uses it and the kernel has
//!   forgotten its pages. Nobody begins to use it after that, but those whom forgetting waits
//!   for, and only while it does: see [`HeldData::drain`]; and those whom one waits for that puts
//!   pages into the kernel ([`Use::Store`]).
//! - A lock that is recalled and not known is returned when every answer that might have
//!   brought it is there, or after a while that a client chooses, and together with all older
//!   ones: it may have taken their place. If it comes after that, it is not relied on.
//! - A lock that was given under a number that is gone or going, or below one, is not relied on:
//!   that one may have taken its place.
//! - So a client forgets numbers that it has heard only when every request is answered that was
//!   sent before it heard the last of them: see [`crate::flight`]. Later ones bring higher numbers.
//! - When a client forgets an inode, the servers forget that it had bits of it, also those that it
//!   was not told of.

mod bits;

pub use bits::HeldBits;
use glint_proto::lock::{DataLock, Range};
use smallvec::SmallVec;

/// Purpose of a use of a data lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// For a call that can wait for another lock.
    Call,
    /// To fill pages of the kernel, this range of them, which it keeps locked meanwhile:
    /// forgetting them waits for this.
    Fill(Range),
    /// For what keeps pages from being written back until it is done, or writes them back.
    Bring,
    /// To put pages into the kernel that it did not ask for: this may wait for pages that others
    /// fill, so these go on while it lasts. Ends with [`HeldData::stored`].
    Store,
}

/// Next step to return a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drain {
    /// Have the kernel forget pages, and say so with [`HeldData::forgot`].
    Forget(Range),
    /// Nobody begins to use it any more, and no page is left.
    Closed,
    /// Somebody else returned the lock, or the servers forgot it.
    Gone,
}

/// Ranges of pages that are told apart while they are forgotten; more become one.
const FILLED_MAX: usize = 32;

#[derive(Clone, Debug)]
struct Data {
    /// Names it here. The servers' number is another after they have started again.
    id: u64,
    /// Ids of locks that it has taken the place of while they were used.
    others: SmallVec<[u64; 1]>,
    lock: DataLock,
    users: u32,
    /// Those of them that may change the data.
    changes: u32,
    asked: bool,
    /// The call that asked for the lock has not used it yet.
    fresh: bool,
    /// The kernel may have pages that were filled under it.
    pages: bool,
    /// Pages that the kernel is made to forget just now, and those that were filled since it
    /// has begun to forget.
    forgetting: Option<Range>,
    filled: SmallVec<[Range; 2]>,
    /// Uses that put pages into the kernel.
    stores: u32,
    /// The lock's pages have been forgotten; nobody may use it any more.
    closed: bool,
    /// The servers have forgotten it, and have not yet given it again.
    lost: bool,
}

/// Locks on the data of one inode.
#[derive(Default, Debug)]
pub struct HeldData {
    locks: SmallVec<[Data; 1]>,
    next: u64,
    /// Recalled before they came.
    early: SmallVec<[u64; 1]>,
    /// The highest number that was returned, or is to be.
    gone: u64,
}

impl Data {
    fn has_pages(&self) -> bool {
        let filled = self.pages || !self.filled.is_empty();
        filled || self.forgetting.is_some() || self.stores > 0
    }

    fn may_be_used(&self, purpose: Use, enough: bool) -> bool {
        if self.lost || self.closed {
            return false;
        }
        let forgets = self.forgetting;
        if purpose == Use::Store {
            return enough && !self.asked;
        }
        enough && (!self.asked || (self.fresh && purpose != Use::Call))
            || match purpose {
                Use::Call | Use::Store => false,
                // Forgetting waits for it, or who stores pages. It is forgotten again.
                Use::Fill(range) => {
                    self.stores > 0 || forgets.is_some_and(|forgets| forgets.overlaps(range))
                }
                Use::Bring => enough && forgets.is_some(),
            }
    }

    /// Pages are filled under it.
    fn fills(&mut self, purpose: Use) {
        let range = match purpose {
            Use::Fill(range) => range,
            Use::Store => self.lock.range,
            Use::Call | Use::Bring => return,
        };
        if !self.asked || self.forgetting.is_none() {
            // All are forgotten when the lock is returned.
            self.pages = true;
        } else if self.filled.len() < FILLED_MAX {
            self.filled.push(range);
        } else if let Some(last) = self.filled.last_mut() {
            *last = Range { start: last.start.min(range.start), end: last.end.max(range.end) };
        }
    }

    /// Whether the servers may give it and others under one number.
    fn may_join(&self) -> bool {
        !self.asked && !self.lost
    }
}

impl HeldData {
    /// Begins to use a lock that covers a range. Returns its id.
    pub fn begin(&mut self, range: Range, write: bool, purpose: Use) -> Option<u64> {
        if purpose == Use::Store && self.locks.iter().any(|data| data.changes > 0) {
            return None;
        }
        let covers = |data: &&mut Data| {
            let enough = data.lock.write || !write;
            data.may_be_used(purpose, enough) && data.lock.range.contains(range)
        };
        let data = self.locks.iter_mut().find(covers)?;
        data.users += 1;
        data.stores += u32::from(purpose == Use::Store);
        data.fills(purpose);
        Some(data.id)
    }

    /// Whether a lock is to be returned, or is gone.
    pub fn is_recalled(&self, id: u64) -> bool {
        let has = |data: &&Data| data.id == id || data.others.contains(&id);
        self.locks.iter().find(has).is_none_or(|data| data.asked || data.lost)
    }

    /// Whether pages are on their way out of a lock: who fills or brings pages waits for that,
    /// and asks for no other lock meanwhile.
    pub fn is_draining(&self) -> bool {
        self.locks.iter().any(|data| data.asked && !data.closed && !data.lost && data.has_pages())
    }

    /// Goes on to use a lock for pages that was given for them, whatever happened to it since.
    pub fn fill(&mut self, id: u64, range: Range) {
        if let Some(data) = self.find(id) {
            data.fills(Use::Fill(range));
        }
    }

    /// A use may change the data from now on: nobody begins to put pages into the kernel meanwhile.
    pub fn begin_change(&mut self, id: u64) {
        let Some(data) = self.find(id) else { return };
        data.changes += 1;
    }

    /// It does not any more.
    pub fn end_change(&mut self, id: u64) {
        let Some(data) = self.find(id) else { return };
        data.changes -= 1;
    }

    /// Whether pages are being put into the kernel: who changes the data waits for that.
    pub fn is_storing(&self) -> bool {
        self.locks.iter().any(|data| data.stores > 0)
    }

    /// Ends a use that has put pages into the kernel. They are forgotten with the lock, also if it
    /// has forgotten all pages meanwhile.
    pub fn stored(&mut self, id: u64) {
        if let Some(data) = self.find(id) {
            data.stores -= 1;
            data.fills(Use::Store);
            self.end(id);
        }
    }

    /// Locks to read with pages, which must not become dirty.
    pub fn with_clean_pages(&self) -> Option<u64> {
        let clean = |data: &&Data| !data.lock.write && !data.lost && data.has_pages();
        self.locks.iter().find(clean).map(|data| data.id)
    }

    /// Next step to return a lock that was recalled; none while others have to go on first.
    ///
    /// Pages are forgotten at once, whoever uses the lock: first all, then what was filled
    /// meanwhile. While that is done, pages that it waits for are filled. Between that nobody
    /// fills any, so there are fewer each time.
    pub fn drain(&mut self, id: u64) -> Option<Drain> {
        let Some(at) = self.locks.iter().position(|data| data.id == id) else {
            return Some(Drain::Gone);
        };
        let data = &mut self.locks[at];
        if data.lost || data.closed || !data.asked || data.forgetting.is_some() {
            return None;
        }
        if std::mem::take(&mut data.pages) {
            data.filled.clear();
            data.forgetting = Some(data.lock.range);
        } else {
            data.forgetting = data.filled.pop();
        }
        if let Some(range) = data.forgetting {
            return Some(Drain::Forget(range));
        }
        self.idle(id)?;
        self.locks[at].closed = true;
        Some(Drain::Closed)
    }

    /// The kernel has forgotten the pages.
    pub fn forgot(&mut self, id: u64) {
        if let Some(data) = self.locks.iter_mut().find(|data| data.id == id) {
            data.forgetting = None;
        }
    }

    /// Ends a use. Returns whether the lock is to be returned now.
    pub fn end(&mut self, id: u64) -> bool {
        let Some(data) = self.find(id) else { return false };
        data.users -= 1;
        data.fresh = false;
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

    /// The answer is there that would have brought an expected lock. Returns the id of one that has
    /// not come, which is to be returned now.
    pub fn return_expected(&mut self) -> Option<u64> {
        let expected = |data: &&Data| data.lock.number == 0 && !data.lost;
        let id = self.locks.iter().find(expected)?.id;
        self.begin_return(id);
        Some(id)
    }

    /// A lock has come, with its first use if somebody asked for it. Returns its id, or none if
    /// it is not to be relied on.
    pub fn add(&mut self, lock: DataLock, used: bool) -> Option<u64> {
        let returning = |data: &&mut Data| {
            let expected = data.lock.number == 0 && data.asked && !data.lost;
            expected && data.lock.write == lock.write
        };
        if !used
            && lock.range == Range::ALL
            && let Some(data) = self.locks.iter_mut().find(returning)
        {
            data.lock = lock;
            self.gone = self.gone.max(lock.number);
            let id = data.id;
            self.stop_awaiting(lock.number);
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
        let asked = self.stop_awaiting(lock.number);
        if lock.number != 0 && lock.number <= self.gone {
            return None;
        }
        self.next += 1;
        let mut new = Data {
            id: self.next,
            others: SmallVec::new(),
            lock,
            users: u32::from(used),
            changes: 0,
            asked,
            fresh: used,
            pages: false,
            forgetting: None,
            filled: SmallVec::new(),
            stores: 0,
            closed: false,
            lost: false,
        };
        if asked {
            self.gone = self.gone.max(lock.number);
        }
        // Locks that the new one covers are one with it at the servers, too.
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
            new.changes += data.changes;
            new.pages |= data.pages;
            new.stores += data.stores;
            false
        });
        // A call that returns all locks there were knows the lock by its heir's id.
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

    /// The servers recall a lock. Returns its id if it is there; if not, it may be on its way.
    pub fn recall(&mut self, number: u64) -> Option<u64> {
        let id = self.id_of(number);
        match id {
            Some(id) => self.begin_return(id),
            None if number > self.gone && !self.is_awaited(number) => self.early.push(number),
            None => {}
        }
        id
    }

    /// Whether a lock was recalled that may be on its way, and would be relied on.
    pub fn is_awaited(&self, number: u64) -> bool {
        self.early.contains(&number)
    }

    /// A lock is to be returned when nobody uses it.
    pub fn begin_return(&mut self, id: u64) {
        if let Some(data) = self.locks.iter_mut().find(|data| data.id == id) {
            data.asked = true;
            self.gone = self.gone.max(data.lock.number);
        }
    }

    /// One of the locks that were given before this number, and are not to be returned yet.
    pub fn older(&self, number: u64) -> Option<u64> {
        let older = |data: &&Data| data.lock.number < number && data.may_join();
        self.locks.iter().find(older).map(|data| data.id)
    }

    /// Whether any lock is there that was given before this number.
    pub fn has_older(&self, number: u64) -> bool {
        self.locks.iter().any(|data| data.lock.number < number && !data.lost)
    }

    /// A lock that was recalled has not come, and is not relied on if it does. Returns whether
    /// that is so.
    pub fn refuse(&mut self, number: u64) -> bool {
        let refused = self.stop_awaiting(number);
        if refused {
            self.gone = self.gone.max(number);
        }
        refused
    }

    /// Nobody waits any more for a lock that was recalled. Returns whether somebody did.
    fn stop_awaiting(&mut self, number: u64) -> bool {
        let at = self.early.iter().position(|early| *early == number);
        if let Some(at) = at {
            self.early.swap_remove(at);
        }
        at.is_some()
    }

    /// Whether a lock that was begun to be used is still one: it is none any more when it was lost
    /// with the session.
    pub fn knows(&mut self, id: u64) -> bool {
        self.find(id).is_some()
    }

    /// Range of the lock, if it is to be returned and nobody uses it, nor an older one that it may
    /// have taken the place of at the servers.
    fn idle(&self, id: u64) -> Option<Range> {
        let data = self.locks.iter().find(|data| data.id == id && !data.lost)?;
        let older = |other: &Data| {
            let older = other.lock.number < data.lock.number && !other.lost;
            older && data.lock.covers(other.lock)
        };
        let idle = data.users == 0 && data.asked && !self.locks.iter().any(older);
        idle.then_some(data.lock.range)
    }

    /// Removes a lock that is returned. Returns the servers' number, if they still know it.
    pub fn remove(&mut self, id: u64) -> Option<u64> {
        let at = self.locks.iter().position(|data| data.id == id)?;
        let data = self.locks.swap_remove(at);
        (!data.lost && data.lock.number != 0).then_some(data.lock.number)
    }

    /// Locks that nobody recalled, to be returned by the client itself.
    pub fn unasked(&self) -> Vec<u64> {
        let unasked = self.locks.iter().filter(|data| !data.asked && !data.lost);
        unasked.map(|data| data.id).collect()
    }

    /// The servers have forgotten all of them. Returns what they were.
    pub fn lose(&mut self) -> Vec<DataLock> {
        self.early.clear();
        self.gone = 0;
        let lose = |data: &mut Data| {
            // A lock that is to be returned still is, once the servers have given it again.
            (data.lost, data.closed) = (true, false);
            data.lock
        };
        self.locks.iter_mut().map(lose).collect()
    }

    /// One of the lost locks was given again; its users keep it.
    pub fn found(&mut self, lock: DataLock) {
        let same = |data: &&mut Data| {
            data.lost && data.lock.range == lock.range && data.lock.write == lock.write
        };
        match self.locks.iter_mut().find(same) {
            Some(data) => (data.lost, data.lock) = (false, lock),
            None => _ = self.add(lock, false),
        }
    }

    /// Removes locks that were lost and not given again.
    pub fn forget_lost(&mut self) {
        self.locks.retain(|data| !data.lost);
    }

    /// Whether nobody uses any of them, and all could be returned at once.
    pub fn is_unused(&self) -> bool {
        let unused =
            |data: &Data| data.users == 0 && !data.asked && !data.lost && data.lock.number != 0;
        self.early.is_empty() && self.locks.iter().all(unused)
    }

    /// Removes all of them, to be returned. Returns the servers' numbers.
    pub fn return_unused(&mut self) -> Vec<u64> {
        self.locks.drain(..).map(|data| data.lock.number).collect()
    }

    /// Whether there is nothing to remember.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty() && self.early.is_empty()
    }

    /// Whether a lock to write covers this range, recalled or not.
    pub fn covers_write(&self, range: Range) -> bool {
        let covers = |data: &Data| data.lock.write && data.lock.range.contains(range);
        self.locks.iter().any(|data| covers(data) && !data.lost)
    }

    fn find(&mut self, id: u64) -> Option<&mut Data> {
        self.locks.iter_mut().find(|data| data.id == id || data.others.contains(&id))
    }
}

#[cfg(test)]
mod bits_model;

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests;

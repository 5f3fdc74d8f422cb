//! Locks of clients on inodes and their data: who may keep what, and the waiting for it.
//!
//! The tables are those of `glint-lock`; here are their tasks: operations that wait until
//! others have returned what they change, requests for locks that wait for their turn.
//!
//! Invariants:
//! - An operation changes something only after every other client has returned its lock on
//!   it, and nobody is given one until the change is made. It finds out under the locks of
//!   [`crate::locking::namespace_locks`], waits without them, and begins again.
//! - A grant is entered before what it protects is read.
//! - While a client holds [`Bits::UNWRITTEN`] of a file, no other client has a lock to write any of
//!   its data. So the bit is given to nobody beside whom another client has such a lock, or waits for
//!   one; and a lock to write is asked for only when no other client holds the bit, which is seen
//!   under one lock of the shard. Whoever waits was asked for like that, and the bit was given to
//!   nobody else since: so waiting requests are granted without another look. A reclaim is looked at,
//!   too: the recovery in which it came may have ended before it is executed.
//!
//! From the last one follows: while a client holds UNWRITTEN, no other client changes the data, nor
//! sends any of it again that an OST has lost with its power. For a lock to write is returned when
//! everything written under it is on stable storage or given up, and that of an evicted client is free
//! when no OST takes anything of it any more. Clients rely on that (`read_ahead/beside_lock.rs`).

use crate::error::{Conflict, Stop};
use crate::locking::recalls::RecallQueues;
use crate::service::{Context, Mds};
use glint_kv::Kv;
use glint_lock::bits::{BitTable, Message};
use glint_lock::extents::{ExtentTable, Granted};
use glint_proto::lock::{Bits, DataLock, Grant, Range, Recall, Return};
use glint_proto::watch::Watch;
use glint_proto::{Attr, ClientId, Ino};
use glint_wait::{Monitor, Sharded};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SHARDS: usize = 64;
/// Id of no client: its claims conflict with the locks of every client.
const NOBODY: ClientId = ClientId(u64::MAX);

#[derive(Default)]
pub(crate) struct ClientLockShard {
    bits: BitTable,
    pub(crate) extents: ExtentTable,
    /// Requests for data that wait, and what they got.
    tickets: HashMap<u64, (ClientId, Option<DataLock>)>,
}

/// Event that a request waits for.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Awaited {
    /// Bits of an inode to be free.
    Bits(Ino),
    /// Data, by ticket.
    Data(u64),
}

impl ClientLockShard {
    /// Gives a client those of `bits` that it may have; see [`BitTable::grant`].
    fn grant(&mut self, client: ClientId, ino: Ino, bits: Bits) -> (Bits, u64) {
        let is_written =
            bits.contains(Bits::UNWRITTEN) && self.extents.has_other_write_locks(ino, client);
        let refused = if is_written { Bits::UNWRITTEN } else { Bits::NONE };
        self.bits.grant(client, ino, bits & !refused)
    }

    /// Whether a client may ask for a lock on data: one to write it may not while others rely on it
    /// that nobody else writes.
    pub(crate) fn may_ask(&self, client: ClientId, ino: Ino, write: bool) -> bool {
        !write || self.bits.is_free(client, ino, Bits::UNWRITTEN)
    }

    /// Gives tickets what they waited for.
    fn hand_out(&mut self, granted: &[Granted]) {
        for (ticket, lock) in granted {
            if let Some((_, got)) = self.tickets.get_mut(ticket) {
                *got = Some(*lock);
            }
        }
    }
}

/// Wakes tickets that were given something.
fn wake_granted(shard: &Monitor<ClientLockShard, Awaited>, granted: &[Granted]) {
    if !granted.is_empty() {
        let is_granted = |number: u64| granted.iter().any(|(ticket, _)| *ticket == number);
        shard.wake_where(|waits_for| matches!(*waits_for, Awaited::Data(n) if is_granted(n)));
    }
}

/// All locks of clients.
pub(crate) struct ClientLocks {
    used: bool,
    /// Some client has held a delegation.
    pub(crate) has_delegations: AtomicBool,
    shards: Sharded<Monitor<ClientLockShard, Awaited>>,
    pub(crate) recalls: RecallQueues,
}

/// Bits that an operation waits for; nobody else is given them meanwhile.
pub(crate) struct Wanted<'a> {
    client_locks: &'a ClientLocks,
    ino: Ino,
    bits: Bits,
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.client_locks.shard(self.ino).lock().bits.unwant(self.ino, self.bits);
    }
}

/// A request for data that waits.
struct DataTicket<'a> {
    client_locks: &'a ClientLocks,
    ino: Ino,
    number: u64,
    taken: bool,
}

impl Drop for DataTicket<'_> {
    fn drop(&mut self) {
        let (mut granted, mut out) = (Vec::new(), Vec::new());
        let monitor = self.client_locks.shard(self.ino);
        let mut shard = monitor.lock();
        let got = shard.tickets.remove(&self.number).and_then(|(_, got)| got);
        if self.taken || got.is_some() {
            // A granted lock stays so, as if its answer had been lost: it may have taken the place
            // of locks that the client uses. Others that want it have it recalled.
            return;
        }
        shard.extents.forget(self.ino, self.number, &mut granted, &mut out);
        shard.hand_out(&granted);
        drop(shard);
        wake_granted(monitor, &granted);
        self.client_locks.post(out);
    }
}

impl ClientLocks {
    /// A table that gives locks, or none at all.
    pub(crate) fn new(used: bool, watch: Arc<Watch>) -> ClientLocks {
        ClientLocks {
            used,
            has_delegations: AtomicBool::new(false),
            shards: Sharded::new(SHARDS),
            recalls: RecallQueues::new(watch),
        }
    }

    /// Numbers of locks and recalls are above this one from now on.
    pub(crate) fn number_from(&self, number: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.bits.number_from(number);
            shard.extents.number_from(number);
        }
        self.recalls.number_from(number);
    }

    pub(crate) fn shard(&self, ino: Ino) -> &Monitor<ClientLockShard, Awaited> {
        self.shards.of(ino.0)
    }

    /// Whether clients are given locks.
    pub(crate) fn is_used(&self) -> bool {
        self.used
    }

    /// Whether no other client holds the delegation of a directory.
    pub(crate) fn is_visible(&self, client: ClientId, ino: Ino) -> bool {
        !self.has_delegations.load(Ordering::Acquire)
            || self.shard(ino).lock().bits.is_free(client, ino, Bits::DELEGATION)
    }

    /// Whether a client holds any bits of an inode.
    pub(crate) fn holds_any(&self, client: ClientId, ino: Ino) -> bool {
        !self.shard(ino).lock().bits.held(client, ino).is_empty()
    }

    /// Waits until nobody holds the delegation of a directory.
    pub(crate) async fn make_visible(&self, ino: Ino) {
        if self.used && !self.is_visible(NOBODY, ino) {
            self.clear(NOBODY, ino, Bits::DELEGATION).await;
        }
    }

    fn begin_change(&self, client: ClientId, ino: Ino, bits: Bits) -> bool {
        self.shard(ino).lock().bits.begin_change(client, ino, bits)
    }

    pub(crate) fn end_change(&self, ino: Ino, bits: Bits) {
        self.shard(ino).lock().bits.end_change(ino, bits);
    }

    pub(crate) fn grant(&self, client: ClientId, ino: Ino, bits: Bits) -> Option<Grant> {
        let (bits, number) = self.shard(ino).lock().grant(client, ino, bits);
        (!bits.is_empty()).then_some(Grant::Bits { ino, bits, number })
    }

    fn return_bits(&self, client: ClientId, ino: Ino, bits: Bits, number: u64) {
        let shard = self.shard(ino);
        shard.lock().bits.return_locks(client, ino, bits, number);
        shard.wake_where(|waits_for| *waits_for == Awaited::Bits(ino));
    }

    fn return_data(&self, client: ClientId, ino: Ino, number: u64, out: &mut Vec<Message>) {
        let mut granted = Vec::new();
        let monitor = self.shard(ino);
        let mut shard = monitor.lock();
        shard.extents.return_locks(client, ino, number, &mut granted, out);
        shard.hand_out(&granted);
        drop(shard);
        wake_granted(monitor, &granted);
    }

    /// Asks clients for what they hold. Who is gone was perhaps granted it when it was being
    /// forgotten, and holds nothing any more.
    fn post(&self, mut messages: Vec<Message>) {
        while !messages.is_empty() {
            let mut more = Vec::new();
            for (client, recall) in self.recalls.post(messages) {
                match recall {
                    Recall::Bits { ino, bits, .. } => {
                        self.return_bits(client, ino, bits, u64::MAX);
                    }
                    Recall::Data { ino, number } => {
                        self.return_data(client, ino, number, &mut more);
                    }
                    Recall::Glimpse { .. } => {}
                }
            }
            messages = more;
        }
    }

    /// Waits until nobody but `client` holds any of `bits`.
    pub(crate) async fn clear(&self, client: ClientId, ino: Ino, bits: Bits) -> Wanted<'_> {
        let mut out = Vec::new();
        self.shard(ino).lock().bits.want(client, ino, bits, &mut out);
        self.post(out);
        let wanted = Wanted { client_locks: self, ino, bits };
        let is_free =
            |shard: &mut ClientLockShard| shard.bits.is_free(client, ino, bits).then_some(());
        self.shard(ino).until_with(Awaited::Bits(ino), is_free).await;
        wanted
    }

    /// Recalls `bits` from everybody but `client`, and waits for nobody.
    pub(crate) fn recall(&self, client: ClientId, ino: Ino, bits: Bits) {
        let mut out = Vec::new();
        let mut shard = self.shard(ino).lock();
        shard.bits.want(client, ino, bits, &mut out);
        shard.bits.unwant(ino, bits);
        drop(shard);
        self.post(out);
    }

    /// A lock on data, when its turn comes. One to write is a conflict while others hold UNWRITTEN:
    /// then nothing was asked for.
    pub(crate) async fn data(
        &self,
        context: &Context<'_>,
        ino: Ino,
        range: Range,
        write: bool,
    ) -> Result<DataLock, Stop> {
        let client = context.client;
        let mut out = Vec::new();
        let asked = {
            let mut shard = self.shard(ino).lock();
            if !shard.may_ask(client, ino, write) {
                let bits = Bits::UNWRITTEN;
                return Err(Stop::Conflict(Conflict { holder: client, ino, bits }));
            }
            let asked = shard.extents.ask(client, ino, range, write, &mut out);
            if let Err(number) = asked {
                shard.tickets.insert(number, (client, None));
            }
            asked
        };
        self.post(out);
        context.end();
        let number = match asked {
            Ok(lock) => return Ok(lock),
            Err(number) => number,
        };
        let mut ticket = DataTicket { client_locks: self, ino, number, taken: false };
        let look = |shard: &mut ClientLockShard| match shard.tickets.get(&number) {
            Some((_, Some(lock))) => Some(Some(*lock)),
            Some((_, None)) => None,
            // The ticket is gone: its client was evicted.
            None => Some(None),
        };
        let lock = self.shard(ino).until_with(Awaited::Data(number), look).await;
        ticket.taken = true;
        Ok(lock.unwrap_or(DataLock { number: 0, range: Range { start: 0, end: 0 }, write }))
    }

    /// Takes locks that a client returns, recalled or not.
    pub(crate) fn return_locks(&self, client: ClientId, returns: &[Return]) {
        let mut out = Vec::new();
        for returned in returns {
            match *returned {
                Return::Bits { ino, bits, number } => self.return_bits(client, ino, bits, number),
                Return::Data { ino, number } => self.return_data(client, ino, number, &mut out),
                Return::Glimpse { .. } => {}
            }
            self.recalls.answered(client, returned);
        }
        self.post(out);
    }

    /// A client is gone, with all its locks.
    pub(crate) fn evict(&self, client: ClientId) {
        self.recalls.remove(client);
        let mut out = Vec::new();
        for monitor in &self.shards {
            monitor.change(|shard| {
                shard.bits.evict(client);
                let mut granted = Vec::new();
                shard.extents.evict(client, &mut granted, &mut out);
                shard.hand_out(&granted);
                shard.tickets.retain(|_, (owner, _)| *owner != client);
            });
        }
        self.post(out);
    }

    /// Inodes and data that are locked, for `glint status`.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let mut counts = (0, 0);
        for shard in &self.shards {
            let shard = shard.lock();
            counts = (counts.0 + shard.bits.len(), counts.1 + shard.extents.len());
        }
        counts
    }
}

impl<K: Kv> Mds<K> {
    /// The operation changes what `bits` protect. If another client holds them, the
    /// operation ends here, without having done anything, and begins again when they are free.
    pub(crate) fn claim(&self, context: &Context<'_>, ino: Ino, bits: Bits) -> Result<(), Stop> {
        self.claim_from(context, context.client, ino, bits)
    }

    /// Claims `bits` like [`Mds::claim`], and the client that asks may not keep them either.
    pub(crate) fn claim_from_all(
        &self,
        context: &Context<'_>,
        ino: Ino,
        bits: Bits,
    ) -> Result<(), Stop> {
        self.claim_from(context, NOBODY, ino, bits)
    }

    fn claim_from(
        &self,
        context: &Context<'_>,
        holder: ClientId,
        ino: Ino,
        bits: Bits,
    ) -> Result<(), Stop> {
        context.begin()?;
        if !self.client_locks.is_used() {
            return Ok(());
        }
        // The holder of a delegation knows better what times and entries the directory has.
        let contents = !(bits & (Bits::ATTR | Bits::NEGATIVE)).is_empty();
        let bits = if contents { bits | Bits::DELEGATION } else { bits };
        if self.client_locks.begin_change(holder, ino, bits) {
            context.changing.borrow_mut().push((ino, bits));
            return Ok(());
        }
        Err(Stop::Conflict(Conflict { holder, ino, bits }))
    }

    /// Gives the client bits with the answer, if it listens to recalls.
    pub(crate) fn grant(&self, context: &Context<'_>, ino: Ino, bits: Bits) {
        if self.is_locking(context) {
            let granted = self.client_locks.grant(context.client, ino, bits);
            context.grants.borrow_mut().extend(granted);
        }
    }

    /// Gives the client the data of a file with the answer, if nobody else has any of it.
    pub(crate) fn grant_data(&self, context: &Context<'_>, attr: &Attr, write: bool) {
        if self.is_locking(context) {
            let ino = attr.ino;
            self.grant_layout(context, attr);
            let mut shard = self.client_locks.shard(ino).lock();
            let may_ask = shard.may_ask(context.client, ino, write);
            let lock = may_ask.then(|| shard.extents.try_all(context.client, ino, write)).flatten();
            drop(shard);
            context.grants.borrow_mut().extend(lock.map(|lock| Grant::Data { ino, lock }));
        }
    }

    /// Says with the answer what an operation makes of a directory whose entries it changes, for a
    /// client that keeps its lock on the attributes over its own changes. Of those that come in a
    /// batch it knows that already.
    pub(crate) fn tell_changed(&self, context: &Context<'_>, directory: &Attr) {
        if context.progress.is_none() && self.is_locking(context) {
            let (ino, nlink, time) = (directory.ino, directory.nlink, directory.ctime);
            context.grants.borrow_mut().push(Grant::Changed { ino, nlink, time });
        }
    }

    /// Withholds from the answer the bits that were granted so far, because the attributes in it
    /// were not read under them. The server still counts them as held: the client may have been
    /// given the same ones before. It is told the number alone, so that it returns them with the
    /// inode. A data lock stays in the answer: it is for what is read under it, whenever that is.
    pub(crate) fn withhold_bits(&self, context: &Context<'_>) {
        for grant in context.grants.borrow_mut().iter_mut() {
            if let Grant::Bits { bits, .. } = grant {
                *bits = Bits::NONE;
            }
        }
    }

    /// Withholds from the answer the attributes of a file, if only its objects know them and another client
    /// may change these: who sets a size or a time has done so here first, and does it there under a lock
    /// to write.
    pub(crate) fn withhold_uncertain(&self, context: &Context<'_>, attr: &Attr) {
        let is_uncertain = || {
            let table = &self.client_locks.shard(attr.ino).lock().extents;
            !table.writers(attr.ino, context.client).is_empty()
        };
        if !attr.is_file() || !attr.size_on_ost || !self.is_locking(context) || !is_uncertain() {
            return;
        }
        for grant in context.grants.borrow_mut().iter_mut() {
            if let Grant::Bits { ino, bits, .. } = grant
                && *ino == attr.ino
            {
                *bits = *bits & !(Bits::ATTR | Bits::OPEN);
            }
        }
    }

    /// Whether the client gets locks. Who replays a request does not hear of any: what it held is
    /// reclaimed, and others may still have to reclaim what they held.
    pub(crate) fn is_locking(&self, context: &Context<'_>) -> bool {
        if let Some(known) = context.locking.get() {
            return known;
        }
        let locking = self.client_locks.is_used()
            && !context.is_replay()
            && self.client_locks.recalls.has(context.client);
        context.locking.set(Some(locking));
        locking
    }

    /// Takes locks that a client returns, recalled or not.
    pub fn return_locks(&self, client: ClientId, returns: &[Return]) {
        self.client_locks.return_locks(client, returns);
    }

    /// Bits that a recall and those before it ask a client for, and that it has not returned. For a
    /// simulation.
    pub fn owed_bits(&self, client: ClientId, ino: Ino, number: u64) -> Bits {
        self.client_locks.shard(ino).lock().bits.owed(client, ino, number)
    }

    /// A client writes data, perhaps because it was asked to.
    pub fn wrote(&self, client: ClientId) {
        self.client_locks.recalls.wrote(client);
        self.recovery.note_at_work(client);
    }

    /// The next recalls for a client; `None` when it is gone or listens elsewhere.
    pub async fn recalls(
        &self,
        client: ClientId,
        listening: u64,
    ) -> Option<Vec<glint_proto::lock::Recall>> {
        self.client_locks.recalls.next(client, listening).await
    }

    /// A client begins to listen to recalls. Returns what names its listening.
    pub fn listen(&self, client: ClientId) -> u64 {
        self.client_locks.recalls.listen(client)
    }

    /// Inodes and data that clients hold locks on, for `glint status`.
    pub fn lock_counts(&self) -> (usize, usize) {
        self.client_locks.counts()
    }
}

#[cfg(test)]
mod tests;

//! The locks of programs, flock(2) and fcntl(2), for all clients.
//!
//! In memory only: after a restart clients say again what their programs hold, before anybody
//! is given a new one.

use crate::service::{Context, Mds};
use glint_kv::Kv;
use glint_lock::posix::{Kind, Lock, LockOutcome, LockOwner, PosixLockTable};
use glint_proto::limits::{DEADLOCK_OWNERS_MAX, POSIX_LOCKS_MAX};
use glint_proto::{
    ClientId, Errno, FsResult, Ino, MdsReply, Op, PosixLock, PosixLockHow, PosixLockMode,
};
use glint_telemetry::{Layer, Span};
use glint_wait::{Monitor, Sharded};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};

const SHARDS: usize = 16;

struct LockShard {
    table: PosixLockTable,
    waiting: HashMap<u64, WaitingRequest>,
    /// By what clients call them.
    tickets: HashMap<(ClientId, u64), u64>,
}

/// A request that waits.
struct WaitingRequest {
    client: ClientId,
    /// As the client names it.
    ticket: u64,
    kind: Kind,
    /// The request has got its lock, or nobody wants it any more.
    ended: Option<FsResult<()>>,
}

impl Default for LockShard {
    fn default() -> LockShard {
        let table = PosixLockTable::with_limit(POSIX_LOCKS_MAX);
        LockShard { table, waiting: HashMap::new(), tickets: HashMap::new() }
    }
}

/// A request that waits, in the table of its file.
type Place = (Ino, Kind, u64);

/// The POSIX locks of all clients.
pub(crate) struct ClientPosixLocks {
    /// Lock tables; requests wait here, by number.
    shards: Sharded<Monitor<LockShard, u64>>,
    /// Requests that owners wait for.
    owners: Mutex<HashMap<LockOwner, Vec<Place>>>,
}

impl Default for ClientPosixLocks {
    fn default() -> ClientPosixLocks {
        ClientPosixLocks { shards: Sharded::new(SHARDS), owners: Mutex::default() }
    }
}

/// A request that waits; undone when nobody does any more.
struct ProgramTicket<'a> {
    all: &'a ClientPosixLocks,
    ino: Ino,
    kind: Kind,
    number: u64,
    taken: bool,
    lock: Lock,
}

impl Drop for ProgramTicket<'_> {
    fn drop(&mut self) {
        let (owner, place) = (self.lock.owner, (self.ino, self.kind, self.number));
        let mut owners = self.all.owners.lock();
        if let Some(places) = owners.get_mut(&owner) {
            places.retain(|known| *known != place);
            if places.is_empty() {
                owners.remove(&owner);
            }
        }
        drop(owners);
        let shard = self.all.shard(self.ino);
        let mut state = shard.lock();
        let ended = state.remove(self.number).and_then(|waiting| waiting.ended);
        if self.taken {
            return;
        }
        let mut granted = Vec::new();
        match ended.is_some_and(|ended| ended.is_ok()) {
            true => {
                state.table.unlock(self.ino, self.kind, owner, self.lock.range, &mut granted);
            }
            false => state.table.forget(self.ino, self.kind, self.number, &mut granted),
        }
        state.hand_out(&granted);
        drop(state);
        wake(shard, &granted);
    }
}

/// Wakes requests that have ended.
fn wake(shard: &Monitor<LockShard, u64>, ended: &[u64]) {
    if !ended.is_empty() {
        shard.wake_where(|number| ended.contains(number));
    }
}

impl LockShard {
    fn hand_out(&mut self, granted: &[u64]) {
        for number in granted {
            if let Some(waiting) = self.waiting.get_mut(number) {
                waiting.ended = Some(Ok(()));
            }
        }
    }

    fn add(&mut self, number: u64, waiting: WaitingRequest) {
        self.tickets.insert((waiting.client, waiting.ticket), number);
        self.waiting.insert(number, waiting);
    }

    fn remove(&mut self, number: u64) -> Option<WaitingRequest> {
        let waiting = self.waiting.remove(&number)?;
        let name = (waiting.client, waiting.ticket);
        // One that came again has it now.
        if self.tickets.get(&name) == Some(&number) {
            self.tickets.remove(&name);
        }
        Some(waiting)
    }

    /// A request comes again whose first copy was granted what it waits for, and has not heard of
    /// it: this one has it then, and the first copy must not give it back.
    fn leave_to_successor(&mut self, client: ClientId, ticket: u64) {
        if let Some(number) = self.tickets.get(&(client, ticket)).copied()
            && self.waiting.get(&number).is_some_and(|waiting| waiting.ended == Some(Ok(())))
        {
            self.remove(number);
        }
    }

    /// A client does not wait any more for the request that it calls `ticket`. Returns which
    /// requests have ended.
    fn cancel(&mut self, ino: Ino, client: ClientId, ticket: u64) -> Vec<u64> {
        let Some(number) = self.tickets.get(&(client, ticket)).copied() else { return Vec::new() };
        let found = self.waiting.get_mut(&number);
        let Some(waiting) = found.filter(|waiting| waiting.ended.is_none()) else {
            return Vec::new();
        };
        waiting.ended = Some(Err(Errno::EINTR));
        let (kind, mut ended) = (waiting.kind, Vec::new());
        self.table.forget(ino, kind, number, &mut ended);
        self.hand_out(&ended);
        ended.push(number);
        ended
    }
}

impl ClientPosixLocks {
    fn shard(&self, ino: Ino) -> &Monitor<LockShard, u64> {
        self.shards.of(ino.0)
    }

    /// A client is gone, and its locks.
    pub(crate) fn evict(&self, client: ClientId) {
        for shard in &self.shards {
            shard.change(|state| {
                let mut granted = Vec::new();
                state.table.evict(client, &mut granted);
                state.hand_out(&granted);
                state.waiting.retain(|_, waiting| waiting.client != client);
                state.tickets.retain(|(of, _), _| *of != client);
            });
        }
    }

    /// How many are held.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().table.len()).sum()
    }

    /// Whether an owner that begins to wait would wait for itself. Who waits only because it
    /// came later, and is waited for, waits no more. Owners are looked at up to a limit, one
    /// file at a time: of two that close a cycle at once, both are known when one looks.
    fn would_wait_for_ever(&self, owner: LockOwner, place: Place) -> bool {
        self.owners.lock().entry(owner).or_default().push(place);
        let (mut seen, mut next) = (HashSet::new(), vec![place]);
        let mut places = Vec::new();
        let mut cycle = false;
        while let Some((ino, kind, number)) = next.pop() {
            places.push((ino, kind, number));
            let limit = DEADLOCK_OWNERS_MAX.saturating_sub(seen.len());
            let blockers = self.shard(ino).lock().table.waits_for(ino, kind, number, limit);
            for blocker in blockers {
                cycle |= blocker == owner;
                if seen.insert(blocker) && seen.len() < DEADLOCK_OWNERS_MAX {
                    let owners = self.owners.lock();
                    next.extend(owners.get(&blocker).into_iter().flatten().take(limit));
                }
            }
        }
        if !cycle {
            return false;
        }
        let mut overtaken = false;
        for (ino, kind, number) in places {
            let shard = self.shard(ino);
            let mut state = shard.lock();
            if state.table.overtake(ino, kind, number) {
                overtaken = true;
                state.hand_out(&[number]);
                drop(state);
                wake(shard, &[number]);
            }
        }
        !overtaken
    }
}

impl<K: Kv> Mds<K> {
    pub(crate) async fn posix_lock(
        &self,
        context: &Context<'_>,
        asks: PosixLock,
    ) -> FsResult<MdsReply> {
        let PosixLock { ino, owner, pid, range, mode, flock, how, ticket } = asks;
        let kind = if flock { Kind::Flock } else { Kind::Posix };
        let owner = LockOwner { client: context.client, number: owner };
        let lock = Lock { owner, pid, range, write: mode == PosixLockMode::Write };
        if range.start >= range.end {
            return Err(Errno::EINVAL);
        }
        context.begin()?;
        let mut granted = Vec::new();
        let outcome = {
            let shard = self.posix_locks.shard(ino);
            let mut state = shard.lock();
            let mut ended = Vec::new();
            if matches!(how, PosixLockHow::Wait | PosixLockHow::Cancel) {
                // One that comes again has lost the connection on which it could be answered.
                ended = state.cancel(ino, context.client, ticket);
                if how == PosixLockHow::Wait {
                    state.leave_to_successor(context.client, ticket);
                }
            }
            let outcome = match (how, mode) {
                (PosixLockHow::Cancel, _) => LockOutcome::Granted,
                (PosixLockHow::Test, _) => {
                    let found = state.table.test(ino, kind, &lock);
                    return Ok(MdsReply::Blocked(found.map(|lock| PosixLock {
                        pid: lock.pid,
                        range: lock.range,
                        mode: if lock.write { PosixLockMode::Write } else { PosixLockMode::Read },
                        ..asks
                    })));
                }
                (_, PosixLockMode::Unlock) => {
                    state.table.unlock(ino, kind, owner, range, &mut granted);
                    LockOutcome::Granted
                }
                (PosixLockHow::Reclaim, _) => state.table.reclaim(ino, kind, lock),
                _ => {
                    if flock {
                        // flock(2): a conversion gives the old lock up first.
                        state.table.unlock(ino, kind, owner, range, &mut granted);
                    }
                    state.table.lock(ino, kind, lock, how == PosixLockHow::Wait, &mut granted)
                }
            };
            if let LockOutcome::Waits(number) = outcome {
                state.add(
                    number,
                    WaitingRequest { client: context.client, ticket, kind, ended: None },
                );
            }
            state.hand_out(&granted);
            ended.append(&mut granted);
            drop(state);
            wake(shard, &ended);
            outcome
        };
        match outcome {
            LockOutcome::Granted => Ok(MdsReply::Done),
            LockOutcome::Busy => Err(Errno::EAGAIN),
            LockOutcome::TooMany => Err(Errno::ENOLCK),
            LockOutcome::Waits(number) => {
                context.end();
                let all = &self.posix_locks;
                let ticket = ProgramTicket { all, ino, kind, number, taken: false, lock };
                // flock(2) knows no EDEADLK.
                if all.would_wait_for_ever(owner, (ino, kind, number)) && !flock {
                    return Err(Errno::EDEADLK);
                }
                self.wait_for_program(ticket).await
            }
        }
    }

    async fn wait_for_program(&self, mut ticket: ProgramTicket<'_>) -> FsResult<MdsReply> {
        let _span = Span::start(Layer::LockWait, Op::Flock as u8);
        let number = ticket.number;
        let look = |state: &mut LockShard| match state.waiting.get(&number) {
            Some(waiting) => waiting.ended,
            // The ticket is gone: its client was evicted.
            None => Some(Err(Errno::ESTALE)),
        };
        let ended = self.posix_locks.shard(ticket.ino).until_with(number, look).await;
        ticket.taken = true;
        ended.map(|()| MdsReply::Done)
    }

    /// How many locks of programs are held, for `glint status`.
    pub fn posix_lock_count(&self) -> usize {
        self.posix_locks.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::lock::Range;

    /// Owners ask for whole files, in files of other shards, too.
    struct Table(ClientPosixLocks);

    impl Table {
        fn ask(&self, owner: u64, ino: u64, write: bool) -> Option<ProgramTicket<'_>> {
            let owner = LockOwner { client: ClientId(1), number: owner };
            let lock = Lock { owner, pid: 0, range: Range::ALL, write };
            let (ino, kind) = (Ino(ino), Kind::Posix);
            let mut state = self.0.shard(ino).lock();
            match state.table.lock(ino, kind, lock, true, &mut Vec::new()) {
                LockOutcome::Waits(number) => {
                    let waiting =
                        WaitingRequest { client: owner.client, ticket: 0, kind, ended: None };
                    state.add(number, waiting);
                    Some(ProgramTicket { all: &self.0, ino, kind, number, taken: false, lock })
                }
                outcome => {
                    assert_eq!(outcome, LockOutcome::Granted);
                    None
                }
            }
        }

        fn waits_for_ever(&self, ticket: &ProgramTicket<'_>) -> bool {
            let place = (ticket.ino, ticket.kind, ticket.number);
            self.0.would_wait_for_ever(ticket.lock.owner, place)
        }
    }

    #[test]
    fn a_cycle_is_refused_and_a_chain_is_not() {
        let table = Table(ClientPosixLocks::default());
        for owner in 1..4 {
            assert!(table.ask(owner, owner, true).is_none());
        }
        let first = table.ask(1, 2, true).unwrap();
        assert!(!table.waits_for_ever(&first));
        let second = table.ask(2, 3, true).unwrap();
        assert!(!table.waits_for_ever(&second));
        let cycle = table.ask(3, 1, false).unwrap();
        assert!(table.waits_for_ever(&cycle));
        drop(cycle);
        drop(first);
        let third = table.ask(3, 1, false).unwrap();
        assert!(!table.waits_for_ever(&third), "the first does not wait any more");
    }

    #[test]
    fn who_only_came_later_is_let_in_when_it_is_waited_for() {
        let table = Table(ClientPosixLocks::default());
        assert!(table.ask(1, 1, true).is_none());
        assert!(table.ask(2, 2, false).is_none());
        let writer = table.ask(3, 2, true).unwrap();
        assert!(!table.waits_for_ever(&writer));
        let reader = table.ask(1, 2, false).unwrap();
        assert!(!table.waits_for_ever(&reader), "behind the writer");
        let last = table.ask(2, 1, true).unwrap();
        assert!(!table.waits_for_ever(&last), "the reader is let in");
        let state = table.0.shard(Ino(2)).lock();
        assert!(state.waiting.get(&reader.number).is_some_and(|waiting| waiting.ended.is_some()));
    }

    #[test]
    fn a_chain_is_followed_so_far() {
        let table = Table(ClientPosixLocks::default());
        assert!(table.ask(0, 0, true).is_none());
        let tickets: Vec<ProgramTicket<'_>> = (1..10_000)
            .map(|owner| {
                assert!(table.ask(owner, owner, true).is_none());
                let ticket = table.ask(owner, owner - 1, true).unwrap();
                assert!(!table.waits_for_ever(&ticket));
                ticket
            })
            .collect();
        drop(tickets);
        assert!(table.0.owners.lock().is_empty());
    }
}

//! The locks of programs, flock(2) and fcntl(2), for all clients.
//!
//! In memory only: after a restart clients say again what their programs hold, before anybody
//! is given a new one.

use crate::claims::wake;
use crate::service::{Context, Mds};
use glint_kv::Kv;
use glint_lock::advisory::{AdvisoryTable, Kind, Lock, Outcome, Owner};
use glint_proto::{
    AdvisoryHow, AdvisoryLock, AdvisoryMode, ClientId, Errno, FsResult, Ino, MdsReply, Op,
};
use glint_telemetry::{Layer, Span};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};

#[derive(Default)]
struct State {
    table: AdvisoryTable,
    waiting: HashMap<u64, Waiting>,
}

/// A request that waits.
struct Waiting {
    client: ClientId,
    /// As the client names it.
    ticket: u64,
    kind: Kind,
    waker: Waker,
    /// It has got it, or nobody wants it any more.
    ended: Option<FsResult<()>>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Advisory(Mutex<State>);

/// A request that waits; taken back when nobody does any more.
struct Ticket<'a> {
    all: &'a Advisory,
    ino: Ino,
    kind: Kind,
    number: u64,
    taken: bool,
    lock: Lock,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = self.all.0.lock();
        let ended = state.waiting.remove(&self.number).and_then(|waiting| waiting.ended);
        if self.taken {
            return;
        }
        let mut granted = Vec::new();
        match ended.is_some_and(|ended| ended.is_ok()) {
            true => {
                let (owner, range) = (self.lock.owner, self.lock.range);
                state.table.unlock(self.ino, self.kind, owner, range, &mut granted);
            }
            false => state.table.forget(self.ino, self.kind, self.number, &mut granted),
        }
        let wakers = state.hand_out(granted);
        drop(state);
        wake(wakers);
    }
}

impl State {
    fn hand_out(&mut self, granted: Vec<u64>) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for number in granted {
            if let Some(waiting) = self.waiting.get_mut(&number) {
                waiting.ended = Some(Ok(()));
                wakers.push(waiting.waker.clone());
            }
        }
        wakers
    }

    /// A client does not wait any more for the request that it calls `ticket`.
    fn cancel(&mut self, ino: Ino, client: ClientId, ticket: u64) -> Vec<Waker> {
        let ours = |waiting: &Waiting| waiting.client == client && waiting.ticket == ticket;
        let found = self.waiting.iter_mut().find(|(_, waiting)| ours(waiting));
        let Some((number, waiting)) = found.filter(|(_, waiting)| waiting.ended.is_none()) else {
            return Vec::new();
        };
        waiting.ended = Some(Err(Errno::EINTR));
        let (number, kind, waker) = (*number, waiting.kind, waiting.waker.clone());
        let mut granted = Vec::new();
        self.table.forget(ino, kind, number, &mut granted);
        let mut wakers = self.hand_out(granted);
        wakers.push(waker);
        wakers
    }
}

impl Advisory {
    /// A client is gone, and its locks.
    pub(crate) fn evict(&self, client: ClientId) {
        let mut state = self.0.lock();
        let mut granted = Vec::new();
        state.table.evict(client, &mut granted);
        let mut wakers = state.hand_out(granted);
        state.waiting.retain(|_, waiting| {
            if waiting.client == client {
                wakers.push(waiting.waker.clone());
            }
            waiting.client != client
        });
        drop(state);
        wake(wakers);
    }

    /// How many are held.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().table.len()
    }
}

impl<K: Kv> Mds<K> {
    pub(crate) async fn lock_for_program(
        &self,
        context: &Context<'_>,
        asks: AdvisoryLock,
    ) -> FsResult<MdsReply> {
        let AdvisoryLock { ino, owner, pid, range, mode, flock, how, ticket } = asks;
        let kind = if flock { Kind::Flock } else { Kind::Posix };
        let owner = Owner { client: context.client, number: owner };
        let lock = Lock { owner, pid, range, write: mode == AdvisoryMode::Write };
        if range.start >= range.end {
            return Err(Errno::EINVAL);
        }
        context.begin()?;
        let mut granted = Vec::new();
        let mut wake_later = Vec::new();
        let outcome = {
            let mut state = self.advisory.0.lock();
            if matches!(how, AdvisoryHow::Wait | AdvisoryHow::Cancel) {
                // One that comes again has lost the connection on which it could be answered.
                let wakers = state.cancel(ino, context.client, ticket);
                wake_later.extend(wakers);
            }
            let outcome = match (how, mode) {
                (AdvisoryHow::Cancel, _) => Outcome::Granted,
                (AdvisoryHow::Test, _) => {
                    let found = state.table.test(ino, kind, &lock);
                    return Ok(MdsReply::Blocked(found.map(|lock| AdvisoryLock {
                        pid: lock.pid,
                        range: lock.range,
                        mode: if lock.write { AdvisoryMode::Write } else { AdvisoryMode::Read },
                        ..asks
                    })));
                }
                (_, AdvisoryMode::Unlock) => {
                    state.table.unlock(ino, kind, owner, range, &mut granted);
                    Outcome::Granted
                }
                _ => {
                    if flock {
                        // flock(2): a conversion gives the old lock up first.
                        state.table.unlock(ino, kind, owner, range, &mut granted);
                    }
                    state.table.lock(ino, kind, lock, how == AdvisoryHow::Wait, &mut granted)
                }
            };
            if let Outcome::Waits(number) = outcome {
                let (client, waker) = (context.client, Waker::noop().clone());
                state.waiting.insert(number, Waiting { client, ticket, kind, waker, ended: None });
            }
            wake_later.extend(state.hand_out(granted));
            drop(state);
            wake(wake_later);
            outcome
        };
        match outcome {
            Outcome::Granted => Ok(MdsReply::Done),
            Outcome::Busy => Err(Errno::EAGAIN),
            Outcome::Deadlock => Err(Errno::EDEADLK),
            Outcome::Waits(number) => {
                context.end();
                self.wait_for_program(Ticket {
                    all: &self.advisory,
                    ino,
                    kind,
                    number,
                    taken: false,
                    lock,
                })
                .await
            }
        }
    }

    async fn wait_for_program(&self, mut ticket: Ticket<'_>) -> FsResult<MdsReply> {
        let _span = Span::start(Layer::LockWait, Op::Flock as u8);
        let number = ticket.number;
        let ended = poll_fn(|context| {
            let mut state = self.advisory.0.lock();
            match state.waiting.get_mut(&number) {
                Some(Waiting { ended: Some(ended), .. }) => Poll::Ready(*ended),
                Some(Waiting { waker, .. }) => {
                    waker.clone_from(context.waker());
                    Poll::Pending
                }
                // Its client was evicted.
                None => Poll::Ready(Err(Errno::ESTALE)),
            }
        })
        .await;
        ticket.taken = true;
        ended.map(|()| MdsReply::Done)
    }

    /// How many locks of programs are held, for `glint status`.
    pub fn advisory_count(&self) -> usize {
        self.advisory.count()
    }
}

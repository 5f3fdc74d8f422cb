//! Acknowledged changes of chains whose head may not have them any more: to be sent to whichever is
//! the head now.
//!
//! Invariants:
//! - Changes of a chain are sent in the order in which they were made. What a server has logged was
//!   sent before everything of its chain that waits here, so it comes back in front of that.
//! - A change waits here until a head has answered it, or may not be made any more: its client was
//!   evicted, or its lock is returned.
//! - A chain with a change that waits is moving, so somebody sends it.
//! - What waits was made in the session that lasts (`session/eviction.rs`).

use crate::client::recovery::frames::{bulk_of, parse};
use crate::client::recovery::replay_log::{Object, UncommittedWrite};
use crate::transport::frame_writer::KeptFrame;
use glint_proto::chain::ChainVersion;
use glint_proto::message::Request;
use glint_proto::{Bulk, Capability, Errno, Ino, ObjectId, OstRequest};
use glint_telemetry::event;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Changes that wait, of all servers of a client.
#[derive(Default)]
pub(crate) struct MovedChanges {
    state: Mutex<MovingChains>,
    /// How many chains are moving.
    moving_count: AtomicUsize,
    failures: Mutex<Failures>,
    has_failed: AtomicBool,
}

/// Files of which a change could not be made again, until they ask.
#[derive(Default)]
struct Failures {
    failed: BTreeMap<Ino, Errno>,
    /// Those of which the log says it, each with the chain.
    said: BTreeSet<(Ino, u16)>,
}

/// Chains that are moving, with what waits.
#[derive(Default)]
struct MovingChains {
    by_chain: BTreeMap<u16, VecDeque<WaitingChange>>,
    /// Chains that are moving, each with how often it began to.
    moving: BTreeMap<u16, u64>,
    /// Number of the last change that came here.
    last: u64,
    /// The MDS has evicted this client, and OSSes are not told the next session yet: what servers
    /// have logged is of the last one.
    is_over: bool,
}

/// A change that waits.
#[derive(Clone)]
pub(crate) struct WaitingChange {
    /// Among all that ever came here.
    pub(crate) number: u64,
    pub(crate) change: UncommittedWrite,
}

impl MovedChanges {
    /// A server had these changes of one chain, in their order. They are dropped if their session is
    /// over: if OSSes are told another one (`is_of_today`), or are to be told the next one.
    pub(crate) fn put_back(
        &self,
        target: u16,
        changes: Vec<UncommittedWrite>,
        is_of_today: impl FnOnce() -> bool,
    ) {
        if changes.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        // In this order: a session is told before it begins.
        if state.is_over || !is_of_today() {
            return;
        }
        let MovingChains { by_chain, moving, last, .. } = &mut *state;
        let waiting = by_chain.entry(target).or_default();
        for change in changes.into_iter().rev() {
            *last += 1;
            waiting.push_front(WaitingChange { number: *last, change });
        }
        moving.entry(target).or_insert(1);
        self.moving_count.store(moving.len(), Ordering::Release);
    }

    /// Something that a chain was sent is to be sent to it again, before all else.
    pub(crate) fn moves(&self, target: u16) {
        let mut state = self.state.lock();
        *state.moving.entry(target).or_default() += 1;
        self.moving_count.store(state.moving.len(), Ordering::Release);
    }

    /// Chains to which something is to be sent again.
    pub(crate) fn moving(&self) -> Vec<u16> {
        match self.moving_count.load(Ordering::Acquire) {
            0 => Vec::new(),
            _ => self.state.lock().moving.keys().copied().collect(),
        }
    }

    /// Whether there is something of a chain.
    pub(crate) fn is_moving(&self, target: u16) -> bool {
        self.moving_count.load(Ordering::Acquire) > 0
            && self.state.lock().moving.contains_key(&target)
    }

    /// How often a chain has got another head while there was something to send; `None` if there is
    /// nothing.
    pub(crate) fn moves_of(&self, target: u16) -> Option<u64> {
        self.state.lock().moving.get(&target).copied()
    }

    /// Notes that all of it was sent, unless it has moved again since then, or something came back
    /// here after the last look.
    pub(crate) fn on_sent(&self, target: u16, moves: u64) {
        let mut state = self.state.lock();
        if state.moving.get(&target) == Some(&moves) && !state.by_chain.contains_key(&target) {
            state.moving.remove(&target);
        }
        self.moving_count.store(state.moving.len(), Ordering::Release);
    }

    /// Number of the last change that came here.
    pub(crate) fn last(&self) -> u64 {
        self.state.lock().last
    }

    /// The same, if nothing waits: as long as it stays so, all changes are in logs of servers.
    pub(crate) fn last_if_empty(&self) -> Option<u64> {
        let state = self.state.lock();
        state.by_chain.is_empty().then_some(state.last)
    }

    /// The first one of a chain.
    pub(crate) fn first(&self, target: u16) -> Option<WaitingChange> {
        self.state.lock().by_chain.get(&target)?.front().cloned()
    }

    /// Whether a change of a chain was not forgotten meanwhile.
    pub(crate) fn is_there(&self, target: u16, number: u64) -> bool {
        let state = self.state.lock();
        state.by_chain.get(&target).is_some_and(|all| all.iter().any(|one| one.number == number))
    }

    /// Forgets a change of a chain. Others of its object may have come in front of it.
    pub(crate) fn remove(&self, target: u16, number: u64) {
        let by_chain = &mut self.state.lock().by_chain;
        if let Some(waiting) = by_chain.get_mut(&target)
            && let Some(at) = waiting.iter().position(|one| one.number == number)
        {
            waiting.remove(at);
        }
        by_chain.retain(|_, waiting| !waiting.is_empty());
    }

    /// Forgets an acknowledged change that could not be made again: its file hears of it.
    pub(crate) fn give_up(&self, target: u16, number: u64, object: ObjectId, errno: Errno) {
        self.fail(object.ino, errno);
        if self.is_to_say(object.ino, target) {
            tracing::error!(
                event = event::REPLAY_FAILED, %errno, target, %object,
                "acknowledged data could not be written again"
            );
        }
        self.remove(target, number);
    }

    /// Whether the log is to say that a file has lost something in a chain: once until the file has
    /// heard of it. A chain that is lost may have thousands of its changes.
    pub(crate) fn is_to_say(&self, ino: Ino, target: u16) -> bool {
        self.failures.lock().said.insert((ino, target))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().by_chain.is_empty()
    }

    /// Objects of a file that are to be changed again.
    pub(crate) fn objects_of(&self, ino: Ino) -> Vec<Object> {
        let state = self.state.lock();
        let objects = state.by_chain.values().flatten().map(|one| one.change.object);
        let mut objects: Vec<Object> = objects.filter(|(_, object)| object.ino == ino).collect();
        objects.sort_unstable();
        objects.dedup();
        objects
    }

    /// Takes changes of a file away, because others may change it from now on.
    pub(crate) fn abandon(&self, ino: Ino) -> Vec<UncommittedWrite> {
        let (mut state, mut abandoned) = (self.state.lock(), Vec::new());
        for waiting in state.by_chain.values_mut() {
            let all = std::mem::take(waiting).into_iter();
            let (of_it, left): (VecDeque<_>, VecDeque<_>) =
                all.partition(|one: &WaitingChange| one.change.object.1.ino == ino);
            *waiting = left;
            abandoned.extend(of_it.into_iter().map(|one| one.change));
        }
        state.by_chain.retain(|_, waiting| !waiting.is_empty());
        abandoned
    }

    /// Forgets everything: the MDS has evicted this client.
    pub(crate) fn end_session(&self) {
        let mut state = self.state.lock();
        state.by_chain.clear();
        state.is_over = true;
    }

    /// OSSes are told a session, which is not over yet if it `lasts`.
    pub(crate) fn begin_session(&self, lasts: impl FnOnce() -> bool) {
        let mut state = self.state.lock();
        if lasts() {
            state.is_over = false;
        }
    }

    /// Acknowledged data of a file is lost.
    pub(crate) fn fail(&self, ino: Ino, errno: Errno) {
        self.failures.lock().failed.insert(ino, errno);
        self.has_failed.store(true, Ordering::Release);
    }

    /// Why data of a file is lost, once.
    pub(crate) fn take_failure(&self, ino: Ino) -> Option<Errno> {
        match self.has_failed.load(Ordering::Acquire) {
            true => {
                let Failures { failed, said } = &mut *self.failures.lock();
                said.retain(|(of, _)| *of != ino);
                failed.remove(&ino)
            }
            false => None,
        }
    }
}

/// Acknowledged change of an object of a chain, which its head may not have.
pub(crate) struct MovedChange {
    pub(crate) request: OstRequest,
    pub(crate) capability: Option<Capability>,
    /// Row that it was acknowledged by.
    pub(crate) chain: Option<ChainVersion>,
    frame: KeptFrame,
}

impl MovedChange {
    pub(crate) fn of(change: UncommittedWrite) -> Option<MovedChange> {
        let frame = change.frame;
        let Some((_, Request::Ost { to, request, capability, .. })) = parse(&frame.head) else {
            return None;
        };
        Some(MovedChange { request, capability, chain: to.chain, frame })
    }

    /// Data of the change.
    pub(crate) fn bulk(&self) -> Bulk<'_> {
        match &self.frame.bulk {
            Some(bulk) => Bulk::Shared(bulk),
            None => Bulk::Out(bulk_of(&self.frame.head)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(ino: u64, byte: u8) -> UncommittedWrite {
        let object = (0x8000, ObjectId { ino: Ino(ino), stripe: 0 });
        UncommittedWrite { frame: vec![byte].into(), object, retry: None }
    }

    fn all(moved: &MovedChanges) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(first) = moved.first(0x8000) {
            bytes.push(first.change.frame.head[0]);
            moved.remove(0x8000, first.number);
        }
        bytes
    }

    #[test]
    fn what_was_sent_and_lost_again_comes_before_what_was_not_sent_yet() {
        let moved = MovedChanges::default();
        moved.put_back(0x8000, vec![change(7, 1), change(8, 2), change(7, 3)], || true);
        let sent: Vec<UncommittedWrite> = (0..2)
            .map(|_| {
                let first = moved.first(0x8000).unwrap();
                moved.remove(0x8000, first.number);
                first.change
            })
            .collect();
        moved.put_back(0x8000, sent, || true);
        assert_eq!(all(&moved), [1, 2, 3]);
        assert!(moved.is_empty());
    }

    /// An answer brings news, which put what was sent before in front of what it is the answer to.
    #[test]
    fn what_was_answered_is_forgotten_and_no_other_change_of_its_object() {
        let moved = MovedChanges::default();
        moved.put_back(0x8000, vec![change(7, 2), change(7, 3)], || true);
        let (sent, last) = (moved.first(0x8000).unwrap(), moved.last());
        moved.put_back(0x8000, vec![change(7, 1)], || true);
        assert!(moved.last() > last && moved.is_there(0x8000, sent.number));
        moved.remove(0x8000, sent.number);
        assert!(!moved.is_there(0x8000, sent.number));
        assert_eq!(all(&moved), [1, 3]);
    }

    /// Threads take changes out of logs while another one sends what was there.
    #[test]
    fn what_comes_back_after_the_last_look_is_sent_before_anything_else() {
        let moved = MovedChanges::default();
        moved.moves(0x8000);
        let moves = moved.moves_of(0x8000).unwrap();
        let sent = moved.last_if_empty();
        assert!(moved.first(0x8000).is_none(), "all was sent");
        moved.put_back(0x8000, vec![change(7, 1)], || true);
        moved.on_sent(0x8000, moves);
        assert!(moved.is_moving(0x8000));
        assert_eq!(all(&moved), [1]);
        assert!(moved.last_if_empty() > sent, "it was not in a log all the time");
        moved.on_sent(0x8000, moves);
        assert!(!moved.is_moving(0x8000) && moved.moving().is_empty());
        // Nor does one wait for the next time that the chain moves.
        moved.put_back(0x8000, vec![change(7, 2)], || true);
        assert_eq!(moved.moving(), [0x8000]);
    }

    #[test]
    fn a_file_that_loses_many_changes_hears_of_it_once_and_again_after_it_has_asked() {
        let moved = MovedChanges::default();
        moved.put_back(0x8000, vec![change(7, 1), change(7, 2), change(8, 3)], || true);
        let said = |of| moved.failures.lock().said.iter().filter(|(ino, _)| *ino == of).count();
        for _ in 0..2 {
            let first = moved.first(0x8000).unwrap();
            moved.give_up(0x8000, first.number, first.change.object.1, Errno::ENXIO);
            assert!(!moved.is_there(0x8000, first.number));
            assert_eq!(said(Ino(7)), 1);
        }
        let object = ObjectId { ino: Ino(7), stripe: 1 };
        moved.give_up(0x8001, 99, object, Errno::ENXIO);
        assert_eq!((said(Ino(7)), said(Ino(8))), (2, 0), "each chain is named");
        assert_eq!(moved.take_failure(Ino(7)), Some(Errno::ENXIO));
        assert_eq!((moved.take_failure(Ino(7)), said(Ino(7))), (None, 0));
        assert_eq!(all(&moved), [3]);
    }

    #[test]
    fn what_others_may_change_is_taken_away() {
        let moved = MovedChanges::default();
        moved.put_back(0x8000, vec![change(7, 1), change(8, 2)], || true);
        assert_eq!(moved.objects_of(Ino(7)).len(), 1);
        let abandoned = [7, 7, 9].map(|ino| moved.abandon(Ino(ino)).len());
        assert_eq!(abandoned, [1, 0, 0]);
        assert!(moved.objects_of(Ino(7)).is_empty());
        assert_eq!(all(&moved), [2]);
    }
}

//! Acknowledged changes of chains whose head may not have them any more: to be sent to whichever is
//! the head now.
//!
//! Invariants:
//! - Changes of a chain are sent in the order in which they were made. What a server has logged was
//!   sent before everything of its chain that waits here, so it comes back in front of that.
//! - A change waits here until a head has answered it, or may not be made any more: its client was
//!   evicted, or its lock is returned.

use crate::client::recovery::frames::{bulk_of, parse};
use crate::client::recovery::replay_log::{Object, UncommittedWrite};
use crate::transport::frame_writer::KeptFrame;
use glint_proto::chain::ChainVersion;
use glint_proto::message::Request;
use glint_proto::{Bulk, Capability, Errno, Ino, OstRequest};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Changes that wait, of all servers of a client.
#[derive(Default)]
pub(crate) struct MovedChanges {
    by_chain: Mutex<BTreeMap<u16, VecDeque<WaitingChange>>>,
    /// Number of the last change that came here.
    last: AtomicU64,
    /// Files of which a change could not be made again, until they ask.
    failed: Mutex<BTreeMap<Ino, Errno>>,
    has_failed: AtomicBool,
}

/// A change that waits.
#[derive(Clone)]
pub(crate) struct WaitingChange {
    /// Among all that ever came here.
    pub(crate) number: u64,
    pub(crate) change: UncommittedWrite,
}

impl MovedChanges {
    /// A server had these changes of one chain, in their order.
    pub(crate) fn put_back(&self, target: u16, changes: Vec<UncommittedWrite>) {
        if changes.is_empty() {
            return;
        }
        let mut by_chain = self.by_chain.lock();
        let waiting = by_chain.entry(target).or_default();
        for change in changes.into_iter().rev() {
            let number = self.last.fetch_add(1, Ordering::AcqRel) + 1;
            waiting.push_front(WaitingChange { number, change });
        }
    }

    /// Number of the last change that came here.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// The first one of a chain.
    pub(crate) fn first(&self, target: u16) -> Option<WaitingChange> {
        self.by_chain.lock().get(&target)?.front().cloned()
    }

    /// Whether a change of a chain was not forgotten meanwhile.
    pub(crate) fn is_there(&self, target: u16, number: u64) -> bool {
        let by_chain = self.by_chain.lock();
        by_chain.get(&target).is_some_and(|all| all.iter().any(|one| one.number == number))
    }

    /// Forgets a change of a chain. Others of its object may have come in front of it.
    pub(crate) fn remove(&self, target: u16, number: u64) {
        let mut by_chain = self.by_chain.lock();
        if let Some(waiting) = by_chain.get_mut(&target)
            && let Some(at) = waiting.iter().position(|one| one.number == number)
        {
            waiting.remove(at);
        }
        by_chain.retain(|_, waiting| !waiting.is_empty());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_chain.lock().is_empty()
    }

    /// Objects of a file that are to be changed again.
    pub(crate) fn objects_of(&self, ino: Ino) -> Vec<Object> {
        let by_chain = self.by_chain.lock();
        let objects = by_chain.values().flatten().map(|one| one.change.object);
        let mut objects: Vec<Object> = objects.filter(|(_, object)| object.ino == ino).collect();
        objects.sort_unstable();
        objects.dedup();
        objects
    }

    /// Forgets changes of a file, because others may change it from now on: the file hears of it.
    pub(crate) fn abandon(&self, ino: Ino) {
        let mut by_chain = self.by_chain.lock();
        let count = |by_chain: &BTreeMap<u16, VecDeque<WaitingChange>>| {
            by_chain.values().map(VecDeque::len).sum::<usize>()
        };
        let before = count(&by_chain);
        for waiting in by_chain.values_mut() {
            waiting.retain(|one| one.change.object.1.ino != ino);
        }
        let is_one = count(&by_chain) < before;
        by_chain.retain(|_, waiting| !waiting.is_empty());
        drop(by_chain);
        if is_one {
            self.fail(ino, Errno::EIO);
        }
    }

    /// Forgets everything: the MDS has evicted this client.
    pub(crate) fn clear(&self) {
        self.by_chain.lock().clear();
    }

    /// A change of a file could not be made again.
    pub(crate) fn fail(&self, ino: Ino, errno: Errno) {
        self.failed.lock().insert(ino, errno);
        self.has_failed.store(true, Ordering::Release);
    }

    /// Why data of a file is lost, once.
    pub(crate) fn take_failure(&self, ino: Ino) -> Option<Errno> {
        match self.has_failed.load(Ordering::Acquire) {
            true => self.failed.lock().remove(&ino),
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
    use glint_proto::ObjectId;

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
        moved.put_back(0x8000, vec![change(7, 1), change(8, 2), change(7, 3)]);
        let sent: Vec<UncommittedWrite> = (0..2)
            .map(|_| {
                let first = moved.first(0x8000).unwrap();
                moved.remove(0x8000, first.number);
                first.change
            })
            .collect();
        moved.put_back(0x8000, sent);
        assert_eq!(all(&moved), [1, 2, 3]);
        assert!(moved.is_empty());
    }

    /// An answer brings news, which put what was sent before in front of what it is the answer to.
    #[test]
    fn what_was_answered_is_forgotten_and_no_other_change_of_its_object() {
        let moved = MovedChanges::default();
        moved.put_back(0x8000, vec![change(7, 2), change(7, 3)]);
        let (sent, last) = (moved.first(0x8000).unwrap(), moved.last());
        moved.put_back(0x8000, vec![change(7, 1)]);
        assert!(moved.last() > last && moved.is_there(0x8000, sent.number));
        moved.remove(0x8000, sent.number);
        assert!(!moved.is_there(0x8000, sent.number));
        assert_eq!(all(&moved), [1, 3]);
    }

    #[test]
    fn what_others_may_change_is_forgotten_and_the_file_hears_of_it() {
        let moved = MovedChanges::default();
        moved.put_back(0x8000, vec![change(7, 1), change(8, 2)]);
        assert_eq!(moved.objects_of(Ino(7)).len(), 1);
        moved.abandon(Ino(7));
        moved.abandon(Ino(9));
        assert!(moved.objects_of(Ino(7)).is_empty());
        assert_eq!(
            [7, 7, 9].map(|ino| moved.take_failure(Ino(ino))),
            [Some(Errno::EIO), None, None]
        );
        assert_eq!(all(&moved), [2]);
    }
}

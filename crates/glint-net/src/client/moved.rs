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
use std::sync::atomic::{AtomicBool, Ordering};

/// Changes that wait, of all servers of a client.
#[derive(Default)]
pub(crate) struct MovedChanges {
    by_chain: Mutex<BTreeMap<u16, VecDeque<UncommittedWrite>>>,
    /// Files of which a change could not be made again, until they ask.
    failed: Mutex<BTreeMap<Ino, Errno>>,
    has_failed: AtomicBool,
}

impl MovedChanges {
    /// A server had these changes of one chain, in their order.
    pub(crate) fn put_back(&self, target: u16, changes: Vec<UncommittedWrite>) {
        if changes.is_empty() {
            return;
        }
        let mut by_chain = self.by_chain.lock();
        let waiting = by_chain.entry(target).or_default();
        changes.into_iter().rev().for_each(|change| waiting.push_front(change));
    }

    /// The first one of a chain.
    pub(crate) fn first(&self, target: u16) -> Option<UncommittedWrite> {
        self.by_chain.lock().get(&target)?.front().cloned()
    }

    /// Forgets the first one of a chain, which was sent, unless it was forgotten meanwhile.
    pub(crate) fn pop(&self, object: Object) {
        let mut by_chain = self.by_chain.lock();
        if let Some(waiting) = by_chain.get_mut(&object.0) {
            waiting.pop_front_if(|change| change.object == object);
        }
        by_chain.retain(|_, waiting| !waiting.is_empty());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_chain.lock().is_empty()
    }

    /// Objects of a file that are to be changed again.
    pub(crate) fn objects_of(&self, ino: Ino) -> Vec<Object> {
        let by_chain = self.by_chain.lock();
        let objects = by_chain.values().flatten().map(|change| change.object);
        let mut objects: Vec<Object> = objects.filter(|(_, object)| object.ino == ino).collect();
        objects.sort_unstable();
        objects.dedup();
        objects
    }

    /// Forgets changes of a file, because others may change it from now on: the file hears of it.
    pub(crate) fn abandon(&self, ino: Ino) {
        let mut by_chain = self.by_chain.lock();
        let count = |by_chain: &BTreeMap<u16, VecDeque<UncommittedWrite>>| {
            by_chain.values().map(VecDeque::len).sum::<usize>()
        };
        let before = count(&by_chain);
        for waiting in by_chain.values_mut() {
            waiting.retain(|change| change.object.1.ino != ino);
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
            bytes.push(first.frame.head[0]);
            moved.pop(first.object);
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
                moved.pop(first.object);
                first
            })
            .collect();
        moved.put_back(0x8000, sent);
        assert_eq!(all(&moved), [1, 2, 3]);
        assert!(moved.is_empty());
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

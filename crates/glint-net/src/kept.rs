//! What a client keeps until it is on stable storage: requests that were answered, in the
//! order of their transactions, to be sent again if a server loses them.
//!
//! Invariants:
//! - A request leaves here only when a server has said that its transaction is durable.
//! - Requests are given back in the order in which they were executed.
//! - Requests to an MDS and changes of data have room of their own: a disk with objects that
//!   stands still holds up nobody who has nothing for it.

use glint_proto::limits::{KEPT_BYTES_MAX, KEPT_REQUESTS_MAX};
use glint_proto::message::Survived;
use glint_proto::{Capability, Committed, MdsReply, clock};
use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;
use std::time::{Duration, Instant};

/// A request to an MDS, as it was sent, and its answer.
#[derive(Clone)]
pub(crate) struct KeptRequest {
    pub(crate) frame: Vec<u8>,
    pub(crate) reply: MdsReply,
    /// That what it made was made in this session, if that needs to be proven.
    pub(crate) proof: Option<Capability>,
}

/// What has to be sent again after a restart.
#[derive(Default)]
pub(crate) struct Lost {
    pub(crate) mds: VecDeque<KeptRequest>,
    pub(crate) ost: VecDeque<Vec<u8>>,
}

/// What has to be made durable, by the metadata engine or by OSTs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Mds,
    Ost,
}

/// The requests of one client.
#[derive(Default)]
pub(crate) struct Kept {
    mds: BTreeMap<u64, KeptRequest>,
    ost: BTreeMap<u64, Vec<u8>>,
    /// Sent again in vain: their server was lost once more. Their old numbers say nothing.
    again: Lost,
    /// Of each kind.
    bytes: [usize; 2],
    waiters: Vec<Waker>,
    /// Since when somebody waits for room, and none has come free.
    waits: Option<Instant>,
}

impl Kept {
    pub(crate) fn len(&self) -> usize {
        self.mds.len() + self.ost.len()
    }

    fn reaches(&self, kind: Kind, part: usize) -> bool {
        let len = match kind {
            Kind::Mds => self.mds.len(),
            Kind::Ost => self.ost.len(),
        };
        len >= KEPT_REQUESTS_MAX / part || self.bytes[kind as usize] >= KEPT_BYTES_MAX / part
    }

    /// Half of the room is taken: servers should make it durable now.
    pub(crate) fn is_filling(&self) -> bool {
        self.reaches(Kind::Mds, 2) || self.reaches(Kind::Ost, 2)
    }

    pub(crate) fn is_full(&self, kind: Kind) -> bool {
        self.reaches(kind, 1)
    }

    /// Woken when something leaves.
    pub(crate) fn wait(&mut self, waker: Waker) {
        self.waits.get_or_insert_with(clock::now);
        self.waiters.push(waker);
    }

    /// How long somebody has waited for room.
    pub(crate) fn waits(&self) -> Option<Duration> {
        self.waits.map(clock::since)
    }

    fn wake(&mut self) {
        self.waits = None;
        self.waiters.drain(..).for_each(Waker::wake);
    }

    pub(crate) fn add_mds(&mut self, transaction: u64, request: KeptRequest) {
        self.bytes[Kind::Mds as usize] += request.frame.len();
        self.mds.insert(transaction, request);
    }

    pub(crate) fn add_ost(&mut self, transaction: u64, frame: Vec<u8>) {
        self.bytes[Kind::Ost as usize] += frame.len();
        self.ost.insert(transaction, frame);
    }

    /// Servers have made transactions durable. Gives back buffers for others.
    pub(crate) fn committed(&mut self, committed: Committed, spare: &mut impl FnMut(Vec<u8>)) {
        let before = self.bytes;
        while let Some(entry) = self.mds.first_entry().filter(|e| *e.key() <= committed.mds) {
            let frame = entry.remove().frame;
            self.bytes[Kind::Mds as usize] -= frame.len();
            spare(frame);
        }
        while let Some(entry) = self.ost.first_entry().filter(|e| *e.key() <= committed.ost) {
            let frame = entry.remove();
            self.bytes[Kind::Ost as usize] -= frame.len();
            spare(frame);
        }
        if self.bytes != before {
            self.wake();
        }
    }

    /// A server has started again. What did not survive has to be sent again.
    pub(crate) fn after_restart(&mut self, survived: Survived) -> Lost {
        let again = std::mem::take(&mut self.again);
        let mds = std::mem::take(&mut self.mds).split_off(&survived.mds.saturating_add(1));
        let ost = std::mem::take(&mut self.ost).split_off(&survived.ost.saturating_add(1));
        self.bytes = [0; 2];
        self.wake();
        Lost {
            mds: mds.into_values().chain(again.mds).collect(),
            ost: ost.into_values().chain(again.ost).collect(),
        }
    }

    /// What is still to be sent again.
    pub(crate) fn left(&mut self) -> Lost {
        std::mem::take(&mut self.again)
    }

    /// The rest of what had to be sent again could not be, because the server was lost again.
    pub(crate) fn not_replayed(&mut self, rest: Lost) {
        self.again = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(n: u8) -> KeptRequest {
        KeptRequest { frame: vec![n; 10], reply: MdsReply::Done, proof: None }
    }

    #[test]
    fn what_is_durable_leaves_and_the_rest_comes_back_in_order() {
        let mut kept = Kept::default();
        for n in [5u8, 3, 9, 7] {
            kept.add_mds(n.into(), request(n));
            kept.add_ost(n.into(), vec![n; 100]);
        }
        let mut spares = 0;
        kept.committed(Committed { mds: 4, ost: 5 }, &mut |_| spares += 1);
        assert_eq!((spares, kept.len(), kept.bytes), (3, 5, [30, 200]));
        let lost = kept.after_restart(Survived { mds: 5, ost: 0 });
        assert_eq!(lost.mds.iter().map(|r| r.frame[0]).collect::<Vec<_>>(), [7, 9]);
        assert_eq!(lost.ost.iter().map(|f| f[0]).collect::<Vec<_>>(), [7, 9]);
        assert_eq!((kept.len(), kept.bytes), (0, [0, 0]));
    }

    #[test]
    fn what_was_not_replayed_comes_after_what_was() {
        let mut kept = Kept::default();
        (1..=4).for_each(|n| kept.add_mds(n.into(), request(n)));
        let mut lost = kept.after_restart(Survived { mds: 0, ost: u64::MAX });
        // Two are sent again, and get new numbers; then the server is lost.
        for number in [1, 2] {
            kept.add_mds(number, lost.mds.pop_front().unwrap());
        }
        kept.not_replayed(lost);
        // The second start knows the first one of them.
        let lost = kept.after_restart(Survived { mds: 1, ost: u64::MAX });
        assert_eq!(lost.mds.iter().map(|r| r.frame[0]).collect::<Vec<_>>(), [2, 3, 4]);
    }

    #[test]
    fn it_is_full_by_bytes() {
        let mut kept = Kept::default();
        kept.add_ost(1, vec![0; KEPT_BYTES_MAX / 2]);
        assert!(kept.is_filling() && !kept.is_full(Kind::Ost));
        kept.add_ost(2, vec![0; KEPT_BYTES_MAX / 2]);
        assert!(kept.is_full(Kind::Ost) && !kept.is_full(Kind::Mds), "each has its own room");
        kept.wait(Waker::noop().clone());
        assert!(kept.waits().is_some());
        assert!(kept.after_restart(Survived { mds: 0, ost: u64::MAX }).ost.is_empty());
        assert!(!kept.is_filling());
    }
}

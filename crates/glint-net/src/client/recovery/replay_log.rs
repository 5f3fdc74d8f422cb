//! The replay log of a client: requests that were answered and are not committed, in the
//! order of their transactions, to be sent again if a server loses them.
//!
//! Invariants:
//! - A request leaves here only when a server has said that its transaction is durable, or that
//!   its object is: by the answer to a sync of that object which was sent after the change was
//!   answered. What is durable must leave, too: others may have changed the same data since, and
//!   it would be written over theirs.
//! - Requests are given back in the order in which they were executed.
//! - A change that is being replayed leaves here only with its answer: until then its server may make
//!   it at any time.
//! - Requests to an MDS and changes of data have room of their own: a disk with objects that
//!   stands still holds up nobody who has nothing for it.

use crate::client::recovery::abandoned::GivenUpWrite;
use crate::client::recovery::replay_budget::ReplayBudget;
use crate::transport::frame_writer::KeptFrame;
use glint_proto::chain::ChainId;
use glint_proto::limits::REPLAY_LOG_REQUESTS_MAX;
use glint_proto::message::Survived;
use glint_proto::{Capability, Committed, Errno, Ino, MdsReply, ObjectId, clock};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A request to an MDS that is not committed, as it was sent, and its answer.
#[derive(Clone)]
pub(crate) struct UncommittedRequest {
    pub(crate) frame: KeptFrame,
    pub(crate) reply: MdsReply,
    /// Says that the request made its inode in this session, if servers ask for that.
    pub(crate) capability: Option<Capability>,
    /// The slot and xid under which it was sent last in this run of the server, if that failed
    /// under its own.
    pub(crate) retry: Option<(u16, u64)>,
}

/// A change of data that is not committed, as it was sent, and the object that it changed.
#[derive(Clone)]
pub(crate) struct UncommittedWrite {
    pub(crate) frame: KeptFrame,
    pub(crate) object: Object,
    /// See [`UncommittedRequest::retry`].
    pub(crate) retry: Option<(u16, u64)>,
}

/// An object, on which OST.
pub(crate) type Object = (u16, ObjectId);

/// Requests to send again after a restart.
#[derive(Default)]
pub(crate) struct ToReplay {
    pub(crate) mds: VecDeque<UncommittedRequest>,
    pub(crate) ost: VecDeque<UncommittedWrite>,
}

/// Part of a server that makes a change durable: the metadata engine, or an OST.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Mds,
    Ost,
}

/// The uncommitted requests of one client at one server.
pub(crate) struct ReplayLog {
    budget: Arc<ReplayBudget>,
    mds: BTreeMap<u64, UncommittedRequest>,
    ost: BTreeMap<u64, UncommittedWrite>,
    /// Changes of data by object: each with its OST and its transaction.
    of_objects: BTreeSet<(ObjectId, u16, u64)>,
    /// Requests to be replayed. Each leaves when it is answered; its transaction number is no
    /// longer valid.
    to_replay: ToReplay,
    /// The first change of data of these was sent, and has no answer.
    is_first_sent: bool,
    /// Files of which acknowledged data could not be written again, and why, until they are asked
    /// for.
    failed: BTreeMap<Ino, Errno>,
    /// Of each kind.
    bytes: [usize; 2],
    /// Since when somebody waits for room, and none has come free.
    waits: Option<Instant>,
    /// Room has come free for somebody who waits.
    is_freed: bool,
}

impl Drop for ReplayLog {
    fn drop(&mut self) {
        self.uncount_all();
    }
}

impl ReplayLog {
    /// An empty log, with its part of this budget.
    pub(crate) fn new(budget: Arc<ReplayBudget>) -> ReplayLog {
        ReplayLog {
            budget,
            mds: BTreeMap::new(),
            ost: BTreeMap::new(),
            of_objects: BTreeSet::new(),
            to_replay: ToReplay::default(),
            is_first_sent: false,
            failed: BTreeMap::new(),
            bytes: [0; 2],
            waits: None,
            is_freed: false,
        }
    }

    /// The budget of this session and of others.
    pub(crate) fn budget(&self) -> &ReplayBudget {
        &self.budget
    }

    fn count(&mut self, kind: Kind, bytes: usize) {
        self.bytes[kind as usize] += bytes;
        self.budget.add(kind, bytes);
    }

    fn uncount(&mut self, kind: Kind, bytes: usize) {
        self.bytes[kind as usize] -= bytes;
        self.budget.remove(kind, bytes);
    }

    fn uncount_all(&mut self) {
        self.uncount(Kind::Mds, self.bytes[Kind::Mds as usize]);
        self.uncount(Kind::Ost, self.bytes[Kind::Ost as usize]);
    }

    pub(crate) fn len(&self) -> usize {
        self.mds.len() + self.ost.len()
    }

    /// Whether everything is durable, and nothing waits to be sent again.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0 && self.to_replay.mds.is_empty() && self.to_replay.ost.is_empty()
    }

    fn reaches(&self, kind: Kind, part: usize) -> bool {
        let len = match kind {
            Kind::Mds => self.mds.len(),
            Kind::Ost => self.ost.len(),
        };
        let bytes = self.bytes[kind as usize];
        len >= REPLAY_LOG_REQUESTS_MAX / part || self.budget.reaches(kind, bytes, part)
    }

    /// Half of the room is taken: servers should make it durable now.
    pub(crate) fn is_filling(&self) -> bool {
        self.reaches(Kind::Mds, 2) || self.reaches(Kind::Ost, 2)
    }

    pub(crate) fn is_full(&self, kind: Kind) -> bool {
        self.reaches(kind, 1)
    }

    /// Somebody waits for room, and is to be woken when [`ReplayLog::take_freed`] says so.
    pub(crate) fn wait(&mut self) {
        self.waits.get_or_insert_with(clock::now);
    }

    /// Whether room has come free for those who wait. To be asked after each change, and to be
    /// acted on when the log is not locked any more.
    pub(crate) fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.is_freed)
    }

    /// How long somebody has waited for room.
    pub(crate) fn waits(&self) -> Option<Duration> {
        self.waits.map(clock::since)
    }

    fn free(&mut self) {
        self.is_freed |= self.waits.take().is_some();
    }

    pub(crate) fn add_mds(&mut self, transaction: u64, request: UncommittedRequest) {
        self.count(Kind::Mds, request.frame.len());
        self.mds.insert(transaction, request);
    }

    pub(crate) fn add_ost(&mut self, transaction: u64, change: UncommittedWrite) {
        self.count(Kind::Ost, change.frame.len());
        let (ost, object) = change.object;
        self.of_objects.insert((object, ost, transaction));
        self.ost.insert(transaction, change);
    }

    /// The last change of data that was answered. What a server executes from now on comes after
    /// it, and after those with smaller numbers.
    pub(crate) fn mark(&self) -> u64 {
        self.ost.last_key_value().map_or(0, |(transaction, _)| *transaction)
    }

    /// The first change of data that is not known to be durable.
    pub(crate) fn first(&self) -> Option<u64> {
        self.ost.first_key_value().map(|(transaction, _)| *transaction)
    }

    /// A sync of an object that was sent at this mark has been answered: its changes up to there
    /// are durable.
    pub(crate) fn synced(&mut self, object: Object, mark: u64, spare: &mut impl FnMut(KeptFrame)) {
        let (ost, object) = object;
        let durable = self.of_objects.range((object, ost, 0)..=(object, ost, mark));
        let durable: Vec<u64> = durable.map(|(.., transaction)| *transaction).collect();
        for transaction in &durable {
            if let Some(change) = self.ost.remove(transaction) {
                self.leaves(*transaction, change, spare);
            }
        }
        if !durable.is_empty() {
            self.free();
        }
    }

    /// A change of a file's data could not be made again.
    pub(crate) fn fail(&mut self, ino: Ino, errno: Errno) {
        self.failed.insert(ino, errno);
    }

    /// Why data of a file is lost, once.
    pub(crate) fn take_failure(&mut self, ino: Ino) -> Option<Errno> {
        self.failed.remove(&ino)
    }

    /// Objects of a file that would be changed again.
    pub(crate) fn objects_of(&self, ino: Ino) -> Vec<Object> {
        let stripe = |stripe| ObjectId { ino, stripe };
        let logged =
            self.of_objects.range((stripe(0), 0, 0)..=(stripe(u16::MAX), u16::MAX, u64::MAX));
        let again = self.to_replay.ost.iter().map(|change| change.object);
        let mut objects: Vec<Object> = logged.map(|(object, ost, _)| (*ost, *object)).collect();
        objects.extend(again.filter(|(_, object)| object.ino == ino));
        objects.sort_unstable();
        objects.dedup();
        objects
    }

    fn leaves(
        &mut self,
        transaction: u64,
        UncommittedWrite { frame, object, .. }: UncommittedWrite,
        spare: &mut impl FnMut(KeptFrame),
    ) {
        let (ost, object) = object;
        self.of_objects.remove(&(object, ost, transaction));
        self.uncount(Kind::Ost, frame.len());
        spare(frame);
    }

    /// Servers have made transactions durable. Gives back buffers for others.
    pub(crate) fn committed(&mut self, committed: Committed, spare: &mut impl FnMut(KeptFrame)) {
        let before = self.bytes;
        while let Some(entry) = self.mds.first_entry().filter(|e| *e.key() <= committed.mds) {
            let frame = entry.remove().frame;
            self.uncount(Kind::Mds, frame.len());
            spare(frame);
        }
        while let Some(entry) = self.ost.first_entry().filter(|e| *e.key() <= committed.ost) {
            let (transaction, change) = entry.remove_entry();
            self.leaves(transaction, change, spare);
        }
        if self.bytes != before {
            self.free();
        }
    }

    /// A server has started again. What did not survive has to be sent again.
    pub(crate) fn after_restart(&mut self, survived: Survived) {
        let again = std::mem::take(&mut self.to_replay);
        // The last run took it with it, if it had it.
        self.is_first_sent = false;
        let mds = std::mem::take(&mut self.mds).split_off(&survived.mds.saturating_add(1));
        let ost = std::mem::take(&mut self.ost).split_off(&survived.ost.saturating_add(1));
        self.of_objects.clear();
        self.uncount_all();
        self.free();
        self.to_replay = ToReplay {
            mds: mds.into_values().chain(again.mds).collect(),
            ost: ost.into_values().chain(again.ost).collect(),
        };
        self.to_replay.mds.iter_mut().for_each(|request| request.retry = None);
        self.to_replay.ost.iter_mut().for_each(|change| change.retry = None);
    }

    /// Requests that are still to be replayed.
    pub(crate) fn unreplayed(&mut self) -> &mut ToReplay {
        &mut self.to_replay
    }

    /// The first change of data that is to be replayed: it is sent now.
    pub(crate) fn begin_replay(&mut self) -> Option<UncommittedWrite> {
        let first = self.to_replay.ost.front().cloned();
        self.is_first_sent = first.is_some();
        first
    }

    /// That change is answered.
    pub(crate) fn end_replay(&mut self) {
        self.is_first_sent = false;
    }

    /// Whether the server may make a change of a file that is being replayed.
    pub(crate) fn is_replaying(&self, ino: Ino) -> bool {
        let first = self.to_replay.ost.front().filter(|_| self.is_first_sent);
        first.is_some_and(|first| first.object.1.ino == ino)
    }

    /// The first one that is to be replayed, a change of `object` or else a request to an MDS, is
    /// sent again now under this number. Returns whether it is still there.
    pub(crate) fn note_retry(&mut self, object: Option<Object>, number: (u16, u64)) -> bool {
        let ToReplay { mds, ost } = &mut self.to_replay;
        let retry = match object {
            Some(object) => {
                let first = ost.front_mut().filter(|change| change.object == object);
                self.is_first_sent = first.is_some();
                first.map(|change| &mut change.retry)
            }
            None => mds.front_mut().map(|request| &mut request.retry),
        };
        retry.map(|retry| *retry = Some(number)).is_some()
    }

    /// Forgets everything: the server has evicted this client.
    pub(crate) fn clear(&mut self) {
        self.ost.clear();
        self.after_restart(Survived::ALL);
        self.to_replay = ToReplay::default();
    }

    /// Chains of which there are changes.
    pub(crate) fn chains(&self) -> BTreeSet<u16> {
        let targets = self.of_objects.iter().map(|(_, ost, _)| *ost);
        targets.filter(|target| ChainId::of_target(*target).is_some()).collect()
    }

    /// Whether there are changes of chains.
    pub(crate) fn has_chains(&self) -> bool {
        self.of_objects.iter().any(|(_, target, _)| ChainId::of_target(*target).is_some())
    }

    /// Takes the changes of a chain out of this log, in their order: they are to be sent to whichever
    /// is its head.
    pub(crate) fn take_chain(&mut self, target: u16) -> Vec<UncommittedWrite> {
        let is_of_it = |(_, ost, _): &&(ObjectId, u16, u64)| *ost == target;
        let of_it = self.of_objects.iter().filter(is_of_it);
        let of_it: BTreeSet<u64> = of_it.map(|(.., transaction)| *transaction).collect();
        let mut taken = Vec::new();
        for transaction in &of_it {
            if let Some(change) = self.ost.remove(transaction) {
                self.of_objects.remove(&(change.object.1, target, *transaction));
                self.uncount(Kind::Ost, change.frame.len());
                taken.push(change);
            }
        }
        if !of_it.is_empty() {
            self.free();
        }
        taken
    }

    /// Forgets changes of a file's data, because others may change it from now on: those on the
    /// targets that are `meant`, but for one that is being replayed. Returns them, with their
    /// transactions in this run, if any.
    pub(crate) fn abandon(&mut self, ino: Ino, meant: impl Fn(u16) -> bool) -> Vec<GivenUpWrite> {
        let is_left = |(ost, object): &Object| object.ino != ino || !meant(*ost);
        let mut again = std::mem::take(&mut self.to_replay.ost);
        let sent = if self.is_first_sent { again.pop_front() } else { None };
        let (left, again): (VecDeque<_>, VecDeque<_>) =
            again.into_iter().partition(|one| is_left(&one.object));
        self.to_replay.ost = sent.into_iter().chain(left).collect();
        let mut abandoned: Vec<_> = again.into_iter().map(|change| (None, change)).collect();
        for (ost, object) in self.objects_of(ino).into_iter().filter(|object| !is_left(object)) {
            let of_it = self.of_objects.range((object, ost, 0)..=(object, ost, u64::MAX));
            let of_it: Vec<u64> = of_it.map(|(.., transaction)| *transaction).collect();
            for transaction in of_it {
                if let Some(change) = self.ost.remove(&transaction) {
                    self.of_objects.remove(&(object, ost, transaction));
                    self.uncount(Kind::Ost, change.frame.len());
                    abandoned.push((Some(transaction), change));
                }
            }
        }
        if !abandoned.is_empty() {
            self.free();
        }
        abandoned
    }
}

#[cfg(test)]
mod tests;

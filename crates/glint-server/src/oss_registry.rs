//! The other servers of OSTs (OSSes), as the server of the MDS sees them: who has joined, what
//! each has still to do.
//!
//! Invariants:
//! - An order is told at every beat until it is said to be done. Orders are bounded: what finds
//!   no room is left to the MDS, whose own record of it is durable, and comes again.
//! - A session counts as fenced when each OSS has said so, or was not heard of for a whole
//!   lease: it executes nothing for anybody after half of one.
//! - An OSS that has shown a certificate is believed only with one of the same name.
//! - An OSS is remembered, durably, before files are laid out over its OSTs.

use crate::records::{OssIdentity, Records};
use glint_proto::limits::OST_COUNT_MAX;
use glint_proto::oss::{Destroy, Heartbeat, Orders, OssInfo};
use glint_proto::{Errno, FsResult, Ino, ObjectId, SpaceInfo, clock};
use parking_lot::Mutex;
use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Orders that are told at once.
const ORDERS: usize = 64;
/// Objects of one order.
const OBJECTS: usize = 256;
/// Objects in all orders of one OSS that are not done yet. One that is away for long costs no more.
const ORDERED_OBJECTS_MAX: usize = 1 << 16;
/// Silence after which no new file is laid out over the OSTs of an OSS.
const ABSENT: Duration = Duration::from_secs(2);
/// Sessions that are told to be fenced at once.
const FENCES: usize = 1024;
/// Sessions that one OSS has still to fence, remembered one by one. Beyond that it has to ask about
/// all that it knows.
const FENCES_MAX: usize = 1 << 16;

/// An order that is not done yet.
struct Pending {
    number: u64,
    order: Destroy,
    /// The change of data that it is a part of.
    change: u64,
}

struct RegisteredOss {
    identity: OssIdentity,
    /// Names the sequence of its orders. Another one has it ask about all sessions.
    orders_sequence: u64,
    heard: Instant,
    space: Vec<SpaceInfo>,
    /// Sessions that it has not said to be fenced.
    fence: Vec<u64>,
    pending: VecDeque<Pending>,
    /// Objects in `pending`.
    ordered: usize,
}

/// The OSSes that have joined.
pub struct OssRegistry {
    boot_verifier: u64,
    lease: Duration,
    state: Mutex<OssTable>,
}

#[derive(Default)]
struct OssTable {
    all: Vec<RegisteredOss>,
    /// Number of the last order.
    last: u64,
    /// Files of which an object could not be removed, until the reaper takes them.
    left: HashSet<Ino>,
}

impl OssRegistry {
    /// OSSes that `records` remember, in this run of the MDS.
    pub fn new(records: &dyn Records, boot_verifier: u64, lease: Duration) -> OssRegistry {
        let remembered = |identity: &OssIdentity| RegisteredOss {
            identity: identity.clone(),
            orders_sequence: boot_verifier,
            // The OSS may still rely on what it heard in the last run.
            heard: clock::now(),
            space: Vec::new(),
            fence: Vec::new(),
            pending: VecDeque::new(),
            ordered: 0,
        };
        let all = records.osses().iter().map(remembered).collect();
        OssRegistry {
            boot_verifier,
            lease,
            state: Mutex::new(OssTable { all, ..OssTable::default() }),
        }
    }

    /// How many OSTs there are after the `own` ones.
    pub fn osts(&self, own: u16) -> u16 {
        let state = self.state.lock();
        state.all.last().map_or(own, |oss| oss.identity.first_ost + oss.identity.osts)
    }

    /// Addresses and OSTs of all OSSes, for clients.
    pub fn infos(&self) -> Vec<OssInfo> {
        let info = |oss: &RegisteredOss| OssInfo {
            first_ost: oss.identity.first_ost,
            osts: oss.identity.osts,
            address: oss.identity.address.clone(),
            space: oss.space.clone(),
        };
        self.state.lock().all.iter().map(info).collect()
    }

    /// OSTs of those that were not heard of just now.
    pub fn absent(&self) -> Vec<u16> {
        let state = self.state.lock();
        let absent = state.all.iter().filter(|oss| clock::since(oss.heard) > ABSENT);
        absent
            .flat_map(|oss| (0..oss.identity.osts).map(|ost| oss.identity.first_ost + ost))
            .collect()
    }

    /// How long each was not heard of.
    pub fn silence(&self) -> Vec<Duration> {
        self.state.lock().all.iter().map(|oss| clock::since(oss.heard)).collect()
    }

    /// An OSS lives, whose certificate has this name. Returns what it has to do.
    pub fn beat(
        &self,
        records: &dyn Records,
        name: Option<&str>,
        beat: Heartbeat,
    ) -> FsResult<Orders> {
        let uuid = format!("{:032x}", beat.uuid);
        let mut state = self.state.lock();
        let index = match state.all.iter().position(|oss| oss.identity.uuid == uuid) {
            Some(index) => index,
            None => self.join(records, &mut state.all, name, uuid, &beat)?,
        };
        let oss = &mut state.all[index];
        if oss.identity.osts != beat.osts {
            return Err(Errno::EINVAL);
        }
        let known = oss.identity.certificate.as_deref();
        if known.is_some() && known != name {
            return Err(Errno::EPERM);
        }
        if oss.identity.address != beat.address || known != name {
            let address = beat.address;
            let now = OssIdentity {
                address,
                certificate: name.map(str::to_owned),
                ..oss.identity.clone()
            };
            let before = std::mem::replace(&mut oss.identity, now);
            // An identity that is not stored does not count: the next beat tries again.
            if let Err(errno) = remember(records, &state.all) {
                state.all[index].identity = before;
                return Err(errno);
            }
        }
        let OssTable { all, left, .. } = &mut *state;
        let oss = &mut all[index];
        oss.heard = clock::now();
        oss.space = beat.space;
        oss.fence.retain(|session| !beat.fenced.contains(session));
        if beat.done.0 == oss.orders_sequence {
            let is_done = |pending: &mut Pending| pending.number <= beat.done.1;
            while let Some(done) = oss.pending.pop_front_if(is_done) {
                oss.ordered -= done.order.objects.len();
            }
            left.extend(beat.failed.iter().map(|object| object.ino));
        }
        let told = oss.pending.iter().take(ORDERS);
        Ok(Orders {
            fs_uuid: records.uuid(),
            sequence: oss.orders_sequence,
            first_ost: oss.identity.first_ost,
            lease_ms: self.lease.as_millis() as u64,
            fence: oss.fence.iter().take(FENCES).copied().collect(),
            more_to_fence: oss.fence.len() > FENCES,
            orders: told.map(|pending| (pending.number, pending.order.clone())).collect(),
        })
    }

    /// Whether an OSS is a member already, under this address and with a certificate of this name:
    /// its beat stores nothing.
    pub fn knows(&self, name: Option<&str>, beat: &Heartbeat) -> bool {
        let uuid = format!("{:032x}", beat.uuid);
        let state = self.state.lock();
        let known = state.all.iter().find(|oss| oss.identity.uuid == uuid);
        known.is_some_and(|oss| {
            oss.identity.address == beat.address && oss.identity.certificate.as_deref() == name
        })
    }

    /// One more. Returns where it is.
    fn join(
        &self,
        records: &dyn Records,
        all: &mut Vec<RegisteredOss>,
        name: Option<&str>,
        uuid: String,
        beat: &Heartbeat,
    ) -> FsResult<usize> {
        if beat.fs_uuid != 0 {
            // The OSS has objects of another file system, or of one that has forgotten it.
            return Err(Errno::ESTALE);
        }
        let first_ost =
            all.last().map_or(records.osts(), |oss| oss.identity.first_ost + oss.identity.osts);
        if beat.osts == 0 || beat.osts > OST_COUNT_MAX - first_ost {
            return Err(Errno::ERANGE);
        }
        let (osts, address) = (beat.osts, beat.address.clone());
        let certificate = name.map(str::to_owned);
        tracing::info!(address, osts, first_ost, "a server of OSTs joins");
        all.push(RegisteredOss {
            identity: OssIdentity { uuid, first_ost, osts, address, certificate },
            orders_sequence: self.boot_verifier,
            heard: clock::now(),
            space: Vec::new(),
            fence: Vec::new(),
            pending: VecDeque::new(),
            ordered: 0,
        });
        if let Err(errno) = remember(records, all) {
            all.pop();
            return Err(errno);
        }
        Ok(all.len() - 1)
    }

    /// Has objects destroyed, each on the OST of its number, as a part of a change of data. Those
    /// for which an OSS has no more room count as left.
    pub fn destroy(&self, objects: &[(u16, ObjectId)], change: u64) {
        let mut state = self.state.lock();
        let OssTable { all, last, left } = &mut *state;
        for oss in all {
            let first = oss.identity.first_ost;
            for index in 0..oss.identity.osts {
                let there = objects.iter().filter(|(ost, _)| *ost == first + index);
                let mut there: Vec<ObjectId> = there.map(|(_, object)| *object).collect();
                let room = ORDERED_OBJECTS_MAX - oss.ordered;
                left.extend(there.drain(room.min(there.len())..).map(|object| object.ino));
                oss.ordered += there.len();
                for objects in there.chunks(OBJECTS) {
                    *last += 1;
                    let order = Destroy { ost: index, objects: objects.to_vec() };
                    oss.pending.push_back(Pending { number: *last, order, change });
                }
            }
        }
    }

    /// Objects that could not be removed here.
    pub fn left(&self, objects: Vec<ObjectId>) {
        self.state.lock().left.extend(objects.into_iter().map(|object| object.ino));
    }

    /// Files of which an object could not be removed, once.
    pub fn take_left(&self) -> Vec<Ino> {
        std::mem::take(&mut self.state.lock().left).into_iter().collect()
    }

    /// Changes of data up to this number are done everywhere; of those up to `own` here.
    pub fn durable(&self, own: u64) -> u64 {
        let state = self.state.lock();
        // Orders are in the order of their changes.
        let first = state.all.iter().filter_map(|oss| oss.pending.front());
        let first = first.map(|pending| pending.change).min();
        first.map_or(own, |change| own.min(change - 1))
    }

    /// Has a session ended everywhere; see [`OssRegistry::is_fenced`].
    pub fn fence(&self, session: u64) {
        for oss in &mut self.state.lock().all {
            if oss.fence.len() == FENCES_MAX {
                // One that is away for so long executes nothing before it is back and has asked.
                oss.fence.clear();
                oss.orders_sequence = oss.orders_sequence.wrapping_add(1);
            }
            oss.fence.push(session);
        }
    }

    /// Whether nothing of a session that is to be fenced is executed anywhere any more.
    pub fn is_fenced(&self, session: u64) -> bool {
        let goes_on = |oss: &RegisteredOss| {
            clock::since(oss.heard) <= self.lease && oss.fence.contains(&session)
        };
        !self.state.lock().all.iter().any(goes_on)
    }
}

fn remember(records: &dyn Records, all: &[RegisteredOss]) -> FsResult<()> {
    let identities = all.iter().map(|oss| oss.identity.clone()).collect();
    records.store_osses(identities).map_err(|error| {
        tracing::error!(
            %error,
            "could not store which servers of OSTs there are; the next beat tries again"
        );
        Errno::EIO
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::data_dir::{DataDir, Role};

    fn beat(uuid: u128, done: (u64, u64)) -> Heartbeat {
        let address = format!("host{uuid}:1");
        let (fenced, failed, space) = (Vec::new(), Vec::new(), Vec::new());
        Heartbeat { uuid, fs_uuid: 0, address, osts: 2, fenced, done, failed, space }
    }

    #[test]
    fn orders_are_told_until_they_are_done() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), Some(3), Role::Mds).unwrap();
        let osses = OssRegistry::new(&data, 7, Duration::from_secs(1));
        assert_eq!(osses.beat(&data, None, beat(1, (0, 0))).unwrap().first_ost, 3);
        assert_eq!(osses.beat(&data, None, beat(2, (0, 0))).unwrap().first_ost, 5);
        assert_eq!(osses.beat(&data, None, beat(1, (0, 0))).unwrap().first_ost, 3);
        assert_eq!(osses.osts(3), 7);
        let moved = Heartbeat { address: "elsewhere:1".into(), ..beat(2, (0, 0)) };
        let known = [beat(1, (0, 0)), beat(2, (0, 0)), beat(3, (0, 0)), moved];
        assert_eq!(known.map(|beat| osses.knows(None, &beat)), [true, true, false, false]);
        let foreign = Heartbeat { fs_uuid: 5, ..beat(3, (0, 0)) };
        assert_eq!(osses.beat(&data, None, foreign), Err(Errno::ESTALE));

        let object = |ino| ObjectId { ino: Ino(ino), stripe: 0 };
        osses.destroy(&[(4, object(1)), (6, object(2)), (0, object(3))], 11);
        assert_eq!((osses.durable(10), osses.durable(20)), (10, 10));
        let told = osses.beat(&data, None, beat(1, (0, 0))).unwrap().orders;
        assert_eq!(told, [(1, Destroy { ost: 1, objects: vec![object(1)] })]);
        assert_eq!(
            osses.beat(&data, None, beat(1, (6, 1))).unwrap().orders,
            told,
            "of another sequence"
        );
        assert!(osses.beat(&data, None, beat(1, (7, 1))).unwrap().orders.is_empty());
        assert_eq!(osses.durable(20), 10);
        osses.beat(&data, None, beat(2, (7, 2))).unwrap();
        assert_eq!(osses.durable(20), 20);

        // Remembered by the next run.
        drop(data);
        let data = DataDir::open(dir.path()).unwrap();
        assert_eq!(OssRegistry::new(&data, 8, Duration::from_secs(1)).osts(3), 7);
    }

    #[test]
    fn what_could_not_be_stored_is_not_so_and_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
        let osses = OssRegistry::new(&data, 7, Duration::from_secs(1));
        osses.beat(&data, None, beat(1, (0, 0))).unwrap();
        std::fs::remove_dir_all(dir.path()).unwrap();
        let moved = || Heartbeat { address: "elsewhere:1".into(), ..beat(1, (0, 0)) };
        for _ in 0..2 {
            assert!(osses.beat(&data, None, moved()).is_err());
            assert!(!osses.knows(None, &moved()) && osses.knows(None, &beat(1, (0, 0))));
            assert!(osses.beat(&data, None, beat(2, (0, 0))).is_err());
        }
        assert_eq!(osses.osts(1), 3);
    }

    #[test]
    fn orders_for_who_is_away_are_bounded_and_what_fails_comes_again() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
        let osses = OssRegistry::new(&data, 7, Duration::from_secs(1));
        osses.beat(&data, None, beat(1, (0, 0))).unwrap();
        let object = |ino| ObjectId { ino: Ino(ino), stripe: 0 };
        let many = ORDERED_OBJECTS_MAX as u64 + 10;
        let objects: Vec<_> = (0..many).map(|ino| (1, object(ino))).collect();
        osses.destroy(&objects, 1);
        assert_eq!(osses.take_left().len(), 10, "there was no room for them");
        assert!(osses.take_left().is_empty());
        let mut done = 0;
        while osses.durable(1) < 1 {
            let told = osses.beat(&data, None, beat(1, (7, done))).unwrap().orders;
            done = told.last().map_or(done, |(number, _)| *number);
        }
        osses.destroy(&[(1, object(1)), (1, object(2))], 2);
        let failed = vec![object(2)];
        osses.beat(&data, None, Heartbeat { failed, ..beat(1, (7, done + 1)) }).unwrap();
        assert_eq!((osses.durable(2), osses.take_left()), (2, vec![Ino(2)]));
    }

    #[test]
    fn sessions_to_fence_are_told_in_parts_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
        let osses = OssRegistry::new(&data, 7, Duration::ZERO);
        osses.beat(&data, None, beat(1, (0, 0))).unwrap();
        (0..FENCES as u64 + 1).for_each(|session| osses.fence(session));
        let told = osses.beat(&data, None, beat(1, (7, 0))).unwrap();
        assert!(told.fence.len() == FENCES && told.more_to_fence);
        let rest = Heartbeat { fenced: told.fence, ..beat(1, (7, 0)) };
        let told = osses.beat(&data, None, rest).unwrap();
        assert!(told.fence.len() == 1 && !told.more_to_fence);
        (0..FENCES_MAX as u64).for_each(|session| osses.fence(session));
        let told = osses.beat(&data, None, beat(1, (7, 0))).unwrap();
        assert_eq!((told.sequence, told.fence.len()), (8, 1), "it asks about all that it knows");
    }

    #[test]
    fn nobody_takes_the_place_of_an_oss() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), Some(3), Role::Mds).unwrap();
        let osses = OssRegistry::new(&data, 7, Duration::from_secs(1));
        // The OSS had no certificate when it joined.
        osses.beat(&data, None, beat(1, (0, 0))).unwrap();
        osses.beat(&data, Some("one"), beat(1, (0, 0))).unwrap();
        drop(data);
        let data = DataDir::open(dir.path()).unwrap();
        let osses = OssRegistry::new(&data, 8, Duration::from_secs(1));
        for name in [None, Some("two")] {
            let taken = Heartbeat { address: "evil:1".into(), ..beat(1, (8, 1000)) };
            assert_eq!(osses.beat(&data, name, taken), Err(Errno::EPERM), "{name:?}");
        }
        assert_eq!(osses.infos()[0].address, "host1:1");
        osses.beat(&data, Some("one"), beat(1, (0, 0))).unwrap();
    }

    #[test]
    fn a_session_is_fenced_when_all_have_said_so_or_are_silent() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
        let lease = Duration::from_secs(2);
        clock::simulate(Some(clock::now()));
        let osses = OssRegistry::new(&data, 7, lease);
        osses.beat(&data, None, beat(1, (0, 0))).unwrap();
        let start = clock::now();
        osses.beat(&data, None, beat(2, (0, 0))).unwrap();
        osses.fence(99);
        // The first one is heard all the time.
        let told = || osses.beat(&data, None, beat(1, (0, 0))).unwrap().fence;
        assert!(told() == [99] && !osses.is_fenced(99));
        let fenced = Heartbeat { fenced: vec![99], ..beat(1, (0, 0)) };
        assert!(osses.beat(&data, None, fenced).unwrap().fence.is_empty());
        assert!(!osses.is_fenced(99), "the other one was heard just now");
        clock::simulate(Some(start + lease + Duration::from_millis(1)));
        assert!(osses.is_fenced(99), "it was silent");
        clock::simulate(None);
        let again = osses.beat(&data, None, beat(2, (0, 0))).unwrap().fence;
        assert_eq!(again, [99], "it learns of it when it is back");
    }
}

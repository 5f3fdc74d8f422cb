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

mod destruction;

use crate::records::{OssIdentity, Records};
use glint_mds::{Placed, Seen};
use glint_proto::chain::ChainPolicy;
use glint_proto::limits::{CHAIN_LEASE_MS, OST_COUNT_MAX};
use glint_proto::oss::{Destroy, Heartbeat, Orders, OssInfo};
use glint_proto::{Errno, FsResult, Ino, SpaceInfo, clock};
use parking_lot::Mutex;
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Orders that are told at once.
const ORDERS: usize = 64;
/// Silence after which no new file is laid out over the OSTs of an OSS.
const ABSENT: Duration = Duration::from_secs(2);
/// A server that was not heard of for so long serves no chain.
const CHAIN_LEASE: Duration = Duration::from_millis(CHAIN_LEASE_MS);
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
    /// Said by its last beat: it is stopped.
    has_left: bool,
    /// Boot verifier of its run, once that is known to the table of chains.
    run: Option<u64>,
    /// Last change of the table of chains that it knows.
    rows: u64,
    space: Vec<SpaceInfo>,
    /// Its OSTs that are searched, and those that have failed, counted from the first one.
    searching: Vec<u16>,
    failed_osts: Vec<u16>,
    /// Sessions with requests that may wait for a disk there that stands still.
    held_up: Vec<u64>,
    /// Sessions that it has not said to be fenced.
    fence: Vec<u64>,
    pending: VecDeque<Pending>,
    /// Objects in `pending`.
    ordered: usize,
}

impl RegisteredOss {
    /// Numbers of its OSTs.
    fn osts(&self) -> Range<u16> {
        self.identity.first_ost..self.identity.first_ost + self.identity.osts
    }

    /// Whether it may act by rows that it was told: it has heard of the MDS just now.
    fn acts(&self) -> bool {
        !self.has_left && clock::since(self.heard) < CHAIN_LEASE
    }

    /// How long it was not heard of; it need not be waited for once it has said that it leaves.
    fn silence(&self) -> Duration {
        if self.has_left { Duration::MAX } else { clock::since(self.heard) }
    }

    /// Its address and OSTs.
    fn info(&self) -> OssInfo {
        OssInfo {
            first_ost: self.identity.first_ost,
            osts: self.identity.osts,
            address: self.identity.address.clone(),
            space: self.space.clone(),
        }
    }

    /// Whether an OST of it does not exist any more.
    fn has_given_up(&self, ost: u16) -> bool {
        self.identity.given_up.contains(&ost)
    }

    /// Label of all that it fails together with. Without one it is alone: its UUID stays the same
    /// when its address changes.
    fn domain(&self) -> &str {
        match self.identity.failure_domain.as_str() {
            "" => &self.identity.uuid,
            said => said,
        }
    }

    /// Name of its failure domain for people.
    fn domain_name(&self) -> &str {
        match self.identity.failure_domain.as_str() {
            "" => &self.identity.address,
            said => said,
        }
    }
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
            has_left: false,
            run: None,
            rows: 0,
            space: Vec::new(),
            searching: Vec::new(),
            failed_osts: Vec::new(),
            held_up: Vec::new(),
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

    /// Addresses and OSTs of the OSSes that clients may use: a client would wait for one that does
    /// not exist any more.
    pub fn infos_for_clients(&self) -> Vec<OssInfo> {
        let is_there = |oss: &&RegisteredOss| !oss.osts().all(|ost| oss.has_given_up(ost));
        self.state.lock().all.iter().filter(is_there).map(RegisteredOss::info).collect()
    }

    /// An OST does not exist any more, until its OSS is heard of.
    pub fn give_up(&self, records: &dyn Records, ost: u16) -> FsResult<()> {
        let mut state = self.state.lock();
        let its = state.all.iter_mut().find(|oss| oss.osts().contains(&ost));
        let Some(oss) = its.filter(|oss| !oss.has_given_up(ost)) else { return Ok(()) };
        let before = oss.identity.given_up.clone();
        oss.identity.given_up.push(ost);
        let first_ost = oss.identity.first_ost;
        let stored = remember(records, &state.all);
        if stored.is_err() {
            let its = state.all.iter_mut().find(|oss| oss.identity.first_ost == first_ost);
            its.into_iter().for_each(|oss| oss.identity.given_up.clone_from(&before));
        }
        stored
    }

    /// OSTs that were given up, of each OSS; all of them are [absent](OssRegistry::absent).
    pub fn given_up(&self) -> Vec<Vec<u16>> {
        self.state.lock().all.iter().map(|oss| oss.identity.given_up.clone()).collect()
    }

    /// Addresses and OSTs of all OSSes.
    pub fn infos(&self) -> Vec<OssInfo> {
        self.state.lock().all.iter().map(RegisteredOss::info).collect()
    }

    /// OSTs that new files are better not laid out over: of those that were not heard of just now,
    /// given up ones, and full ones.
    pub fn absent(&self) -> Vec<u16> {
        let is_absent = |oss: &RegisteredOss, ost: u16| {
            let space = oss.space.get(usize::from(ost - oss.identity.first_ost));
            clock::since(oss.heard) > ABSENT
                || oss.has_given_up(ost)
                || space.is_some_and(SpaceInfo::is_full)
        };
        let of = |oss: &RegisteredOss| {
            oss.osts().filter(|ost| is_absent(oss, *ost)).collect::<Vec<u16>>()
        };
        self.state.lock().all.iter().flat_map(of).collect()
    }

    /// How long each was not heard of.
    pub fn silence(&self) -> Vec<Duration> {
        self.state.lock().all.iter().map(|oss| clock::since(oss.heard)).collect()
    }

    /// An OSS lives, whose certificate has this name. Returns what it has to do if it is accepted.
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
        if !is_as_known(&oss.identity, name, &beat) {
            let now = OssIdentity {
                address: beat.address,
                failure_domain: beat.failure_domain,
                certificate: name.map(str::to_owned),
                given_up: Vec::new(),
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
        (oss.space, oss.searching, oss.failed_osts) =
            (beat.space, beat.searching, beat.failed_osts);
        oss.held_up = beat.held_up;
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
            chains: Vec::new(),
            last_change: 0,
            known_everywhere: 0,
            policy: ChainPolicy::default(),
        })
    }

    /// Last change of the table of chains that an OSS knew when it was heard last.
    pub fn rows_known(&self, uuid: u128) -> u64 {
        self.of(uuid, |oss| oss.rows).unwrap_or(0)
    }

    /// OSTs of an OSS, if this beat is the first of a run that the table of chains does not know of.
    pub fn restarted(&self, beat: &Heartbeat) -> Option<Range<u16>> {
        self.of(beat.uuid, |oss| {
            // One that talked to the last run of the MDS was known to that.
            let is_known = oss.run.map_or(beat.done.0 != 0, |run| run == beat.boot_verifier);
            (!is_known).then(|| oss.osts())
        })?
    }

    /// Notes a beat of a run that the table of chains knows. An OSS that is refused is not waited for.
    pub fn accept(&self, beat: &Heartbeat) {
        self.of(beat.uuid, |oss| {
            (oss.heard, oss.has_left) = (clock::now(), beat.leaves);
            oss.rows = if beat.done.0 == oss.orders_sequence { beat.chains } else { 0 };
            oss.run = Some(beat.boot_verifier);
        });
    }

    fn of<R>(&self, uuid: u128, look: impl FnOnce(&mut RegisteredOss) -> R) -> Option<R> {
        let uuid = format!("{uuid:032x}");
        self.state.lock().all.iter_mut().find(|oss| oss.identity.uuid == uuid).map(look)
    }

    /// OSTs of each OSS, how long it was not heard of, and whether its run is known.
    pub fn silences(&self) -> Vec<(Range<u16>, Duration, bool)> {
        let one = |oss: &RegisteredOss| (oss.osts(), oss.silence(), oss.run.is_some());
        self.state.lock().all.iter().map(one).collect()
    }

    /// How an OST is that can take part in nothing, as its OSS has said last: searched, or failed.
    pub fn not_ready(&self, ost: u16) -> Option<Seen> {
        let state = self.state.lock();
        let oss = state.all.iter().find(|oss| oss.osts().contains(&ost))?;
        let index = ost - oss.identity.first_ost;
        match () {
            () if oss.failed_osts.contains(&index) => Some(Seen::Failed),
            () if oss.searching.contains(&index) => Some(Seen::Searched),
            () => None,
        }
    }

    /// OSTs of each OSS, and how long that was not heard of, also if it said that it leaves.
    pub fn unheard(&self) -> Vec<(Range<u16>, Duration)> {
        let one = |oss: &RegisteredOss| (oss.osts(), clock::since(oss.heard));
        self.state.lock().all.iter().map(one).collect()
    }

    /// How many OSTs of all OSSes there are, but for those that were given up.
    pub fn placed_count(&self) -> usize {
        let state = self.state.lock();
        let there = |oss: &RegisteredOss| oss.osts().filter(|ost| !oss.has_given_up(*ost)).count();
        state.all.iter().map(there).sum()
    }

    /// Failure domains of the OSTs of all OSSes, but for those that were given up.
    pub fn placed(&self) -> Vec<Placed> {
        let one = |oss: &RegisteredOss| {
            let domain = oss.domain().to_owned();
            let there = oss.osts().filter(|ost| !oss.has_given_up(*ost));
            let placed = there.map(|ost| Placed { ost, domain: domain.clone() });
            placed.collect::<Vec<Placed>>()
        };
        self.state.lock().all.iter().flat_map(one).collect()
    }

    /// Name of the failure domain of each OSS, for people: its label, or the address of one that is
    /// a domain by itself.
    pub fn domain_names(&self) -> Vec<String> {
        self.state.lock().all.iter().map(|oss| oss.domain_name().to_owned()).collect()
    }

    /// Change of the table of chains up to which every server knows all rows, or acts by none; `last`
    /// is the last one of all.
    pub fn rows_known_everywhere(&self, last: u64) -> u64 {
        let state = self.state.lock();
        let acting = state.all.iter().filter(|oss| oss.acts());
        acting.map(|oss| oss.rows).min().unwrap_or(last)
    }

    /// Whether the servers of these OSTs know a change of the table of chains, or act by none.
    pub fn know_row(&self, osts: &[u16], change: u64) -> bool {
        let acts = |oss: &RegisteredOss| {
            oss.acts() && oss.rows < change && osts.iter().any(|ost| oss.osts().contains(ost))
        };
        !self.state.lock().all.iter().any(acts)
    }

    /// Whether the servers of these OSTs have said that they know a change of the table of chains.
    pub fn have_heard(&self, osts: &[u16], change: u64) -> bool {
        let has_not = |oss: &RegisteredOss| {
            oss.rows < change && osts.iter().any(|ost| oss.osts().contains(ost))
        };
        !self.state.lock().all.iter().any(has_not)
    }

    /// Whether an OSS is a member already, under this address and with a certificate of this name:
    /// its beat stores nothing.
    pub fn knows(&self, name: Option<&str>, beat: &Heartbeat) -> bool {
        let uuid = format!("{:032x}", beat.uuid);
        let state = self.state.lock();
        let known = state.all.iter().find(|oss| oss.identity.uuid == uuid);
        known.is_some_and(|oss| {
            is_as_known(&oss.identity, name, beat)
                && oss.run == Some(beat.boot_verifier)
                && beat.replaced.is_empty()
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
            orders_sequence: self.boot_verifier,
            heard: clock::now(),
            has_left: false,
            run: None,
            rows: 0,
            identity: OssIdentity {
                uuid,
                first_ost,
                osts,
                address,
                certificate,
                failure_domain: beat.failure_domain.clone(),
                given_up: Vec::new(),
            },
            space: Vec::new(),
            searching: Vec::new(),
            failed_osts: Vec::new(),
            held_up: Vec::new(),
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

    /// Whether a disk of an OSS that stands still may hold up a request of a session.
    pub fn holds_up(&self, session: u64) -> bool {
        let holds_up = |oss: &RegisteredOss| {
            oss.held_up.contains(&session) && clock::since(oss.heard) <= self.lease
        };
        self.state.lock().all.iter().any(holds_up)
    }
}

/// Whether a beat says nothing that is to be stored.
fn is_as_known(known: &OssIdentity, name: Option<&str>, beat: &Heartbeat) -> bool {
    known.given_up.is_empty()
        && known.address == beat.address
        && known.certificate.as_deref() == name
        && known.failure_domain == beat.failure_domain
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
mod tests;

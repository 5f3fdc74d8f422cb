//! Rows of chains that a client knows: which OST is asked for what.
//!
//! Invariants:
//! - A row never gives way to an older one.
//! - From when a chain has another head, or may have lost something, until the head has, on stable
//!   storage or from this client, what the old one has not made durable, nothing else is sent to the
//!   chain ([`MovedChanges::is_moving`]).
//! - A chain is lost only by a row that was in force when the MDS named its servers
//!   ([`ChainRows::hear`]); any newer row says nothing of that.

use crate::client::moved::MovedChanges;
use crate::client::recovery::abandoned::{AbandonedData, LoggedChange, ObjectToSync};
use crate::client::recovery::frames::{capability_sent, changed_chain};
use crate::client::recovery::replay_log::UncommittedWrite;
use crate::client::recovery::resent::ResentChanges;
use glint_proto::chain::{Chain, ChainVersion, Destination};
use glint_proto::{Errno, Ino, OstRequest, clock};
use glint_telemetry::event;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Rows of chains, for all servers of a client.
#[derive(Default)]
pub struct ChainRows {
    rows: RwLock<HashMap<u16, Arc<Chain>>>,
    /// Chains that have another head, and changes to be sent to them, which the old one may lose.
    pub(crate) moved: MovedChanges,
    /// Changes that are not kept any more.
    pub(crate) abandoned: AbandonedData,
    /// Changes that are sent again just now.
    pub(crate) resent: ResentChanges,
    /// Some server has changes of a chain that are not known to be stable.
    pub(crate) wants_news: AtomicBool,
    /// When they were all asked for.
    asked: Mutex<Option<Instant>>,
    /// How often they were asked for.
    times_asked: AtomicU64,
    lost: RwLock<LostChains>,
}

/// Chains whose members' servers were all given up.
#[derive(Default)]
struct LostChains {
    /// Which [`Inquiry`] found that.
    inquiry: u64,
    /// Each by this version of its row alone.
    versions: HashMap<u16, u32>,
}

/// What is known when somebody asks for the servers, and then for the rows.
pub(crate) struct Inquiry {
    number: u64,
    /// Versions of the rows without a head.
    waiting: HashMap<u16, u32>,
}

impl Inquiry {
    /// Whether some chain is without a head: then the servers are asked for, too.
    pub(crate) fn is_one_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl ChainRows {
    /// Installs a row if it is newer than the one known.
    pub(crate) fn learn(&self, row: Chain) {
        let mut rows = self.rows.write();
        let target = row.id.target();
        let known = rows.get(&target);
        if known.is_some_and(|known| known.version >= row.version) || !row.is_valid() {
            return;
        }
        let row = Arc::new(row);
        let before = rows.insert(target, row.clone());
        let has_lost =
            |before: &Chain| before.head() != row.head() || before.version < row.intact_since;
        if before.is_some_and(|before| has_lost(&before)) {
            self.moved.moves(target);
        }
        drop(rows);
        self.resent.on_row();
        self.judge_abandoned(&row);
    }

    /// Forgets changes of a file that wait for a head, because others may change it from now on.
    pub(crate) fn abandon(&self, ino: Ino) {
        self.give_up(self.moved.abandon(ino).into_iter().map(|change| (change, None)));
    }

    /// Acknowledged changes, which their server has logged so, are not kept any more. Their files
    /// hear of it if they are lost by that.
    pub(crate) fn give_up(
        &self,
        changes: impl IntoIterator<Item = (UncommittedWrite, Option<LoggedChange>)>,
    ) {
        let mut targets = BTreeSet::new();
        for (UncommittedWrite { frame, object: (_, object), .. }, logged) in changes {
            let Some((_, chain)) = changed_chain(&frame.head) else {
                self.moved.fail(object.ino, Errno::EIO);
                continue;
            };
            let capability = capability_sent(&frame.head);
            self.abandoned.put(ObjectToSync { object, capability }, chain, logged);
            targets.insert(chain.target);
        }
        for target in targets {
            if self.is_lost(target) {
                self.are_lost(target, Errno::ENXIO, self.abandoned.on_loss(target));
            } else if let Some(row) = self.get(target) {
                self.judge_abandoned(&row);
            }
        }
    }

    /// Files whose abandoned changes the chain may have lost hear of it. Where it has a head that
    /// has them, somebody is to have it bring them to stable storage.
    fn judge_abandoned(&self, row: &Chain) {
        let target = row.id.target();
        self.are_lost(target, Errno::EIO, self.abandoned.on_row(row));
        if self.abandoned.to_settle(row).is_some() {
            self.moved.moves(target);
        }
    }

    /// The head by this row cannot bring abandoned changes of older rows to stable storage.
    pub(crate) fn on_unsettled(&self, row: ChainVersion, errno: Errno) {
        self.are_lost(row.target, errno, self.abandoned.on_unsettled(row));
    }

    /// Files of a chain have lost acknowledged data, or cannot keep it.
    fn are_lost(&self, target: u16, errno: Errno, files: Vec<Ino>) {
        for ino in files {
            if self.moved.is_to_say(ino, target) {
                tracing::error!(
                    event = event::REPLAY_FAILED, %errno, target, %ino,
                    "acknowledged data was not on stable storage, its servers have lost it or \
                     cannot write it, and it is not sent again, as others may have changed the \
                     file since"
                );
            }
            self.moved.fail(ino, errno);
        }
    }

    /// Whether what was acknowledged by this version is with the members of today, or will be before
    /// they do anything else.
    pub(crate) fn is_intact(&self, chain: ChainVersion) -> bool {
        self.get(chain.target).is_some_and(|row| row.intact_since <= chain.version)
    }

    /// Whether an answer by this row of this member comes too late: what comes after it may have been
    /// sent to another head before it.
    pub(crate) fn is_overtaken(&self, ost: u16, chain: ChainVersion) -> bool {
        let is_later = |row: &Chain| {
            row.version > chain.version
                && (row.head() != Some(ost) || row.intact_since > chain.version)
        };
        self.get(chain.target).is_some_and(|row| is_later(&row))
    }

    /// Somebody is about to ask for the servers, and then for the rows.
    pub(crate) fn inquire(&self) -> Inquiry {
        let number = self.times_asked.fetch_add(1, Ordering::Relaxed) + 1;
        let rows = self.rows.read();
        let waiting = rows.iter().filter(|(_, row)| row.head().is_none());
        Inquiry { number, waiting: waiting.map(|(target, row)| (*target, row.version)).collect() }
    }

    /// The MDS has answered: which servers may be asked, by their OSTs (the others were given up), and
    /// then these rows. Without the servers, nobody is lost.
    ///
    /// Neither order alone will do. A server may join or come back after it was not named, and be a
    /// member of a row that is told later; and a chain may get other members after its row was told,
    /// before the servers are. So a chain is lost if its row was known before the servers were asked
    /// for, and is told again after that: versions only rise, so it was in force when they were named.
    pub(crate) fn hear(
        &self,
        inquiry: &Inquiry,
        servers: Option<&[Range<u16>]>,
        told: impl IntoIterator<Item = Chain>,
    ) {
        let is_gone = |ost: u16| {
            servers.is_some_and(|servers| !servers.iter().any(|osts| osts.contains(&ost)))
        };
        let mut versions = HashMap::new();
        for row in told {
            let target = row.id.target();
            let was_in_force = inquiry.waiting.get(&target) == Some(&row.version);
            if was_in_force && row.members.iter().all(|member| is_gone(member.ost)) {
                versions.insert(target, row.version);
            }
            self.learn(row);
        }
        let mut lost = self.lost.write();
        // Answers may be heard in another order than they were asked for.
        if lost.inquiry >= inquiry.number {
            return;
        }
        *lost = LostChains { inquiry: inquiry.number, versions };
        let targets: Vec<u16> = lost.versions.keys().copied().collect();
        drop(lost);
        for target in targets.into_iter().filter(|target| self.is_lost(*target)) {
            self.are_lost(target, Errno::ENXIO, self.abandoned.on_loss(target));
            self.resent.on_loss(target);
        }
    }

    /// Whether a chain waits for members whose servers were all given up: nobody is to come back,
    /// for all that the MDS has said so far.
    pub(crate) fn is_lost(&self, target: u16) -> bool {
        let Some(row) = self.get(target) else { return false };
        self.lost.read().versions.get(&target) == Some(&row.version)
    }

    /// Whether a member of a chain may be read from, as far as is known.
    pub(crate) fn is_readable(&self, target: u16, ost: u16) -> bool {
        let has = |row: Arc<Chain>| row.readable().any(|member| member == ost);
        self.get(target).is_some_and(has) && !self.moved.is_moving(target)
    }

    /// Whether none is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.read().is_empty()
    }

    pub(crate) fn get(&self, target: u16) -> Option<Arc<Chain>> {
        self.rows.read().get(&target).cloned()
    }

    /// Whether nobody has asked for the rows for so long; then the caller does.
    pub(crate) fn is_due(&self, pause: Duration) -> bool {
        let mut asked = self.asked.lock();
        let is_due = asked.is_none_or(|asked| clock::since(asked) >= pause);
        if is_due {
            *asked = Some(clock::now());
        }
        is_due
    }

    /// Member that a request goes to; `near` ones are asked first where several may be. `None` if
    /// the chain is not known, or waits for a member.
    pub(crate) fn destination(
        &self,
        target: u16,
        request: &OstRequest,
        near: impl Fn(u16) -> bool,
    ) -> Option<Destination> {
        let row = self.get(target)?;
        let ost = match request {
            OstRequest::Read { object, .. } => {
                let readable: Vec<u16> = row.readable().collect();
                let spread = object.ino.0.wrapping_add(object.stripe.into()) as usize;
                let nearest = readable.iter().copied().find(|ost| near(*ost));
                nearest.or_else(|| readable.get(spread % readable.len().max(1)).copied())?
            }
            // The head has made every change first.
            _ => row.head()?,
        };
        let chain = ChainVersion { target, version: row.version };
        Some(Destination { ost, chain: Some(chain) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::ObjectId;
    use glint_proto::chain::{ChainId, Member, MemberState};

    const ID: ChainId = ChainId { copies: 3, index: 0 };

    fn row(version: u32, members: &[(u16, MemberState)]) -> Chain {
        let member = |(ost, state): &(u16, MemberState)| Member { ost: *ost, state: *state };
        let members = members.iter().map(member).collect();
        Chain { id: ID, version, members, founders: Vec::new(), intact_since: 1 }
    }

    #[test]
    fn older_rows_are_not_learnt_and_requests_find_their_member() {
        use MemberState::{Offline, Serving, Syncing};
        let (rows, object) = (ChainRows::default(), ObjectId { ino: Ino(4), stripe: 0 });
        let read = OstRequest::Read { object, offset: 0, len: 1 };
        let write = OstRequest::Truncate { object, size: 0 };
        let ost = |request: &OstRequest, near: u16| {
            rows.destination(ID.target(), request, |ost| ost == near).map(|to| to.ost)
        };
        assert_eq!(ost(&write, 9), None);
        rows.learn(row(2, &[(1, Serving), (2, Serving), (3, Serving)]));
        assert_eq!((ost(&write, 9), ost(&read, 9), ost(&read, 3)), (Some(1), Some(2), Some(3)));
        rows.learn(row(1, &[(3, Serving), (2, Serving), (1, Serving)]));
        rows.learn(row(3, &[(1, Serving), (2, Serving), (3, Offline)]));
        assert!(rows.moved.moving().is_empty(), "the head is the same");
        assert_eq!(ost(&write, 9), Some(1));
        rows.learn(row(4, &[(2, Serving), (3, Syncing), (1, Offline)]));
        assert_eq!(rows.moved.moving(), [ID.target()]);
        rows.moved.moves(ID.target());
        rows.moved.on_sent(ID.target(), 1);
        assert!(rows.moved.is_moving(ID.target()), "it has moved again");
        rows.moved.on_sent(ID.target(), 2);
        assert!(!rows.moved.is_moving(ID.target()));
        assert_eq!((ost(&write, 9), ost(&read, 3)), (Some(2), Some(2)));
    }

    /// Asks once, and is told of these servers and rows.
    fn ask(rows: &ChainRows, servers: &[Range<u16>], told: Chain) {
        rows.hear(&rows.inquire(), Some(servers), [told]);
    }

    #[test]
    fn a_chain_is_lost_when_the_servers_of_all_members_were_given_up() {
        use MemberState::{Emptied, Offline, Serving};
        let (rows, own) = (ChainRows::default(), [0..1, 7..9]);
        let serves = row(2, &[(1, Serving), (2, Offline), (3, Offline)]);
        rows.learn(serves.clone());
        ask(&rows, &own, serves);
        assert!(!rows.inquire().is_one_waiting() && !rows.is_lost(ID.target()), "one serves");
        let waits = row(3, &[(1, Emptied), (2, Emptied), (3, Emptied)]);
        rows.learn(waits.clone());
        assert!(rows.inquire().is_one_waiting());
        ask(&rows, &own, waits.clone());
        assert!(rows.is_lost(ID.target()));
        ask(&rows, &[0..1, 3..5], waits.clone());
        assert!(!rows.is_lost(ID.target()), "the third may begin with nothing");
        ask(&rows, &own, waits);
        assert!(rows.is_lost(ID.target()));
        rows.learn(row(4, &[(3, Serving), (1, Emptied), (2, Emptied)]));
        assert!(!rows.is_lost(ID.target()), "it has come back");
        assert!(!ChainRows::default().is_lost(ID.target()), "nobody knows of it");
    }

    #[test]
    fn no_chain_is_lost_by_servers_that_were_named_under_another_row() {
        use MemberState::{Emptied, LastServing, Serving};
        let (rows, own) = (ChainRows::default(), [0..1, 7..9]);
        let emptied = row(2, &[(1, Emptied), (2, Emptied), (3, Emptied)]);
        rows.learn(emptied.clone());
        ask(&rows, &own, emptied.clone());
        assert!(rows.is_lost(ID.target()));
        // Servers come back and join, and then are away for a moment.
        rows.learn(row(3, &[(1, Serving), (4, Serving), (5, Serving)]));
        let away = row(4, &[(1, LastServing), (4, LastServing), (5, LastServing)]);
        rows.learn(away.clone());
        assert!(!rows.is_lost(ID.target()), "the servers were named before");
        let late = rows.inquire();
        ask(&rows, &[0..2, 4..6], away.clone());
        assert!(!rows.is_lost(ID.target()), "they are there");
        ask(&rows, &own, away.clone());
        assert!(rows.is_lost(ID.target()), "they were given up");
        rows.hear(&late, Some(&[0..2, 4..6]), [away.clone()]);
        assert!(rows.is_lost(ID.target()), "that was asked before");
        rows.hear(&rows.inquire(), None, [away.clone()]);
        assert!(!rows.is_lost(ID.target()), "nobody has named the servers");
        let next = row(5, &[(1, Emptied), (4, Emptied), (5, Emptied)]);
        ask(&rows, &own, next.clone());
        assert!(!rows.is_lost(ID.target()), "they may have joined before the row was told");
        ask(&rows, &own, next);
        assert!(rows.is_lost(ID.target()));
    }

    #[test]
    fn a_file_hears_of_a_change_that_was_abandoned_when_its_chain_is_lost() {
        use MemberState::{LastServing, Serving};
        let (rows, own) = (ChainRows::default(), [0..1, 7..9]);
        rows.learn(row(2, &[(1, Serving), (2, Serving), (3, Serving)]));
        let chain = ChainVersion { target: ID.target(), version: 2 };
        let object = ObjectId { ino: Ino(7), stripe: 0 };
        rows.abandoned.put(ObjectToSync { object, capability: None }, chain, None);
        let away = row(3, &[(1, LastServing), (2, LastServing), (3, LastServing)]);
        rows.learn(away.clone());
        ask(&rows, &[0..1, 3..5], away.clone());
        assert_eq!(rows.moved.take_failure(Ino(7)), None, "the third may come back with it");
        ask(&rows, &own, away);
        assert_eq!(rows.moved.take_failure(Ino(7)), Some(Errno::ENXIO));
        assert!(rows.abandoned.is_empty());
    }
}

//! The pace of heal: it gives way to users.
//!
//! Heal works at full speed while nobody else does. Of the time in which it works at pieces beside
//! requests of users it rests a part afterwards ([`REST_PER_WORK`]), all pieces of the server
//! together: so its share of what both need (the disks, processors and the network) is bounded, and
//! no measure of how fast any of them is enters into it. Beside users there are also no more than
//! [`PIECES_BESIDE_USERS`] at once: a request waits behind those that are in the queue of the disk
//! before it.
//!
//! Invariants:
//! - A piece begins while no rest lasts, and holds the turn of no range before: no user waits for
//!   heal that rests.
//! - Rests are no longer than [`REST_MAX`], and earned by work before: heal always goes on, and has
//!   its full speed again so soon after the last request. Pieces that stand still keep no others
//!   from that for longer than [`STILL`].

use crate::replication::Replication;
use glint_net::host;
use glint_ost::Bandwidth;
use glint_proto::{OstReply, clock};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Rest for each time that heal worked beside users. Beside users who never pause it works half
/// of the time, and otherwise more.
const REST_PER_WORK: f64 = 1.0;
/// Rests that are shorter are taken together: in one of this length some requests end.
const REST_MIN: Duration = Duration::from_millis(10);
/// Pieces at once beside users: enough for the disks and the network to have work from each.
const PIECES_BESIDE_USERS: usize = 2;
/// If no piece began or ended for so long, one more begins: those under way may wait for one disk.
const STILL: Duration = Duration::from_millis(20);
/// Pause before another look whether one has ended. Those that go on take their places meanwhile.
const LOOK: Duration = Duration::from_millis(10);
/// Users are there for so long after a request: another one comes.
const USERS_STAY: Duration = Duration::from_millis(100);
/// However long a piece took.
const REST_MAX: Duration = Duration::from_secs(1);

/// Requests of users at this server.
#[derive(Default)]
pub(super) struct UserRequests {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A request of a user, under way until it is dropped.
pub(crate) struct UserRequest<'a>(&'a UserRequests);

/// Requests of users that have begun, and ended, at some time.
#[derive(Clone, Copy, Default)]
pub(in crate::replication) struct RequestCount {
    begun: u64,
    ended: u64,
}

impl UserRequests {
    /// A user is served from now on.
    pub(super) fn begin(&self) -> UserRequest<'_> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        UserRequest(self)
    }

    /// Counts requests so far.
    fn count(&self) -> RequestCount {
        let ended = self.ended.load(Ordering::Relaxed);
        RequestCount { begun: self.begun.load(Ordering::Relaxed), ended }
    }
}

impl Drop for UserRequest<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl RequestCount {
    /// Whether any request was under way between this time and a later one.
    pub(in crate::replication) fn is_any_until(self, later: RequestCount) -> bool {
        later.begun > self.ended
    }
}

/// When heal works and when it rests: the decision alone.
#[derive(Default)]
struct Pacing {
    /// Pieces that are under way.
    pieces: usize,
    /// Until when work was counted, and requests by then.
    counted: Option<Instant>,
    requests: RequestCount,
    /// Until when users count as being there.
    users_until: Option<Instant>,
    /// Rest that was earned and not begun.
    owed: Duration,
    rests_until: Option<Instant>,
}

impl Pacing {
    /// Begins a piece. Returns how long to wait before another attempt instead, if heal rests or has
    /// enough under way.
    fn begin(&mut self, now: Instant, requests: RequestCount) -> Option<Duration> {
        let rest = self.rests_until.map(|until| until.saturating_duration_since(now));
        if let Some(rest) = rest.filter(|rest| !rest.is_zero()) {
            return Some(rest);
        }
        let is_beside_users = self.users_until.is_some_and(|until| now < until);
        let is_moving = self.counted.is_some_and(|last| now < last + STILL);
        if self.pieces >= PIECES_BESIDE_USERS && is_beside_users && is_moving {
            return Some(LOOK);
        }
        self.work(now, requests, false);
        self.pieces += 1;
        None
    }

    /// Ends a piece, which may have been beside users at the member that got it.
    fn end(&mut self, now: Instant, requests: RequestCount, beside_users: bool) {
        self.work(now, requests, beside_users);
        self.pieces -= 1;
        if self.owed >= REST_MIN {
            // A piece that was under way when a rest began has made it longer.
            let from = self.rests_until.map_or(now, |until| until.max(now));
            self.rests_until = Some((from + self.owed).min(now + REST_MAX));
            self.owed = Duration::ZERO;
        }
    }

    /// Whether users were served beside heal so short a time ago that it may still rest for them.
    fn gives_way(&self, now: Instant) -> bool {
        self.users_until.is_some_and(|until| now < until + REST_MAX)
    }

    /// Counts work since the last time if users were served meanwhile, here or elsewhere.
    fn work(&mut self, now: Instant, requests: RequestCount, elsewhere: bool) {
        let worked =
            self.counted.map_or(Duration::ZERO, |from| now.saturating_duration_since(from));
        if elsewhere || self.requests.is_any_until(requests) {
            self.users_until = Some(now + USERS_STAY);
            if self.pieces > 0 {
                // One that stood still for long earns no more than the longest rest.
                let earned = worked.min(REST_MAX).mul_f64(REST_PER_WORK);
                self.owed = (self.owed + earned).min(REST_MAX);
            }
        }
        (self.counted, self.requests) = (Some(now), requests);
    }
}

impl Replication {
    /// A request of a user is under way here, to whom heal gives way, until that is dropped.
    pub(crate) fn serves_user(&self) -> UserRequest<'_> {
        self.healing.pace.users.begin()
    }

    /// Counts requests of users here so far.
    pub(in crate::replication) fn served(&self) -> RequestCount {
        self.healing.pace.users.count()
    }

    /// Whether heal has given way to users just now.
    pub(crate) fn heal_gives_way(&self) -> bool {
        self.healing.pace.pacing.lock().gives_way(clock::now())
    }
}

/// Pace of all that one server heals.
pub(in crate::replication) struct HealPace {
    /// Bytes a second, if that is limited.
    limit: Option<Bandwidth>,
    pub(super) users: UserRequests,
    pacing: Mutex<Pacing>,
}

/// A piece of heal, under way until it is dropped.
pub(in crate::replication) struct HealPiece<'a> {
    pace: &'a HealPace,
    /// At the member that gets it.
    beside_users: bool,
}

impl HealPace {
    /// With a limit in bytes a second, if there is one.
    pub(super) fn new(limit: Option<u64>) -> HealPace {
        HealPace {
            limit: limit.map(Bandwidth::new),
            users: UserRequests::default(),
            pacing: Mutex::default(),
        }
    }

    /// Begins a piece once heal does not rest.
    pub(in crate::replication) async fn begin(&self) -> HealPiece<'_> {
        loop {
            let rest = self.pacing.lock().begin(clock::now(), self.users.count());
            match rest {
                Some(rest) => host::sleep(rest).await,
                None => return HealPiece { pace: self, beside_users: false },
            }
        }
    }

    /// Waits as long as the limit says after so many bytes.
    pub(in crate::replication) async fn gave(&self, bytes: u64) {
        if let Some(limit) = &self.limit {
            host::sleep(limit.take(bytes, clock::now())).await;
        }
    }
}

impl HealPiece<'_> {
    /// The member has answered this.
    pub(in crate::replication) fn answered(&mut self, reply: &OstReply) {
        self.beside_users |= matches!(reply, OstReply::Given { beside_users: true });
    }
}

impl Drop for HealPiece<'_> {
    fn drop(&mut self) {
        let HealPiece { pace, beside_users } = self;
        pace.pacing.lock().end(clock::now(), pace.users.count(), *beside_users);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::tests::{Hurrying, World};
    use futures_lite::future::block_on;
    use glint_proto::chain::Destination;
    use glint_proto::chain::MemberState::Serving;
    use glint_proto::{Bulk, ClientId, Ino, ObjectId, OstRequest};
    use std::rc::Rc;
    use std::sync::Arc;

    const PIECE: Duration = Duration::from_millis(4);
    const SECOND: Duration = Duration::from_secs(1);

    /// A heal with so many pieces at once, each of which takes as long.
    struct Heal {
        pacing: Pacing,
        now: Instant,
        requests: RequestCount,
        /// Pieces at once, the last time.
        at_once: usize,
    }

    impl Heal {
        fn new() -> Heal {
            Heal {
                pacing: Pacing::default(),
                now: Instant::now(),
                requests: RequestCount::default(),
                at_once: 0,
            }
        }

        /// Heals for so long, while one request follows the other if users are `there`. Returns the
        /// part of the time in which it has worked.
        fn run(&mut self, time: Duration, lanes: usize, there: bool) -> f64 {
            let (begun, mut worked) = (self.now, Duration::ZERO);
            while self.now < begun + time {
                let mut pieces = 0;
                let mut rest = Duration::ZERO;
                for _ in 0..lanes {
                    match self.pacing.begin(self.now, self.requests) {
                        Some(wait) => rest = wait,
                        None => pieces += 1,
                    }
                }
                if pieces == 0 {
                    assert!(rest <= REST_MAX);
                    self.now += rest;
                    continue;
                }
                self.at_once = pieces;
                self.requests.begun += u64::from(there);
                self.now += PIECE;
                worked += PIECE;
                for _ in 0..pieces {
                    self.pacing.end(self.now, self.requests, false);
                }
                self.requests.ended = self.requests.begun;
            }
            worked.as_secs_f64() / (self.now - begun).as_secs_f64()
        }
    }

    #[test]
    fn heal_works_all_the_time_while_nobody_else_does() {
        let mut heal = Heal::new();
        assert_eq!(heal.run(SECOND, 1, false), 1.0);
        assert_eq!(heal.run(SECOND, 8, false), 1.0);
    }

    #[test]
    fn heal_works_its_part_of_the_time_beside_users_however_many_pieces_it_has() {
        for lanes in [1, 2, 8] {
            let part = Heal::new().run(10 * SECOND, lanes, true);
            let least = 1.0 / (1.0 + REST_PER_WORK);
            assert!((least - 0.01..least + 0.02).contains(&part), "{part} with {lanes}");
        }
    }

    #[test]
    fn heal_has_its_full_speed_again_once_users_have_gone() {
        let mut heal = Heal::new();
        assert!(!heal.pacing.gives_way(heal.now));
        heal.run(SECOND, 3, true);
        assert!(heal.pacing.gives_way(heal.now));
        let left = heal.now;
        heal.run(Duration::from_millis(1), 3, false);
        assert!(heal.now - left <= SECOND);
        assert_eq!(heal.run(2 * SECOND, 3, false), 1.0);
        assert!(!heal.pacing.gives_way(heal.now));
    }

    #[test]
    fn heal_has_few_pieces_at_once_beside_users() {
        let mut heal = Heal::new();
        for (there, most) in [(false, 64), (true, PIECES_BESIDE_USERS), (false, 64)] {
            heal.run(SECOND, 64, there);
            assert_eq!(heal.at_once, most);
        }
    }

    #[test]
    fn pieces_that_stand_still_keep_others_only_for_a_moment() {
        let (mut pacing, mut now) = (Pacing::default(), Instant::now());
        let requests = |n| RequestCount { begun: n + 1, ended: n };
        for _ in 0..PIECES_BESIDE_USERS {
            assert_eq!(pacing.begin(now, requests(0)), None);
        }
        for n in 1..9 {
            assert_eq!(pacing.begin(now, requests(n)), Some(LOOK));
            now += STILL;
            assert_eq!(pacing.begin(now, requests(n)), None);
        }
    }

    #[test]
    fn users_who_are_seldom_there_take_little_from_heal() {
        let mut heal = Heal::new();
        let mut parts = Vec::new();
        for _ in 0..20 {
            parts.push(heal.run(10 * PIECE, 1, false));
            parts.push(heal.run(PIECE, 1, true));
        }
        let part = parts.iter().sum::<f64>() / parts.len() as f64;
        assert!(part > 0.8, "{part}");
    }

    #[test]
    fn a_piece_that_stood_still_is_followed_by_a_bounded_rest() {
        let (mut pacing, now) = (Pacing::default(), Instant::now());
        let requests = RequestCount { begun: 1, ended: 0 };
        for _ in 0..2 {
            assert_eq!(pacing.begin(now, requests), None);
        }
        let later = now + Duration::from_secs(100);
        pacing.end(later, requests, false);
        let rest = pacing.begin(later, requests);
        assert!(rest.is_some_and(|rest| rest <= REST_MAX), "{rest:?}");
        // One that was under way all the same.
        let latest = later + Duration::from_secs(100);
        pacing.end(latest, requests, false);
        assert!(pacing.begin(latest, requests).is_some_and(|rest| rest <= REST_MAX));
        assert_eq!(pacing.begin(latest + REST_MAX, requests), None);
    }

    #[test]
    fn a_piece_waits_until_heal_has_rested_for_the_one_before_beside_a_user() {
        host::simulate(Some(Rc::new(Hurrying)));
        let start = Instant::now();
        clock::simulate(Some(start));
        let pace = HealPace::new(None);
        let work = Duration::from_millis(20);
        for (is_there, rest) in [(false, Duration::ZERO), (true, work.mul_f64(REST_PER_WORK))] {
            let begun = clock::now();
            let user = is_there.then(|| pace.users.begin());
            let piece = block_on(pace.begin());
            clock::simulate(Some(begun + work));
            drop(piece);
            drop(user);
            drop(block_on(pace.begin()));
            assert_eq!(clock::since(begun), work + rest);
        }
        clock::simulate(None);
        host::simulate(None);
    }

    #[test]
    fn users_of_a_member_are_those_whose_changes_a_head_orders_and_not_heal() {
        let world = World::new(&[Serving, Serving]);
        let (head, chain) = (world.server(0), world.version());
        head.rows.activate_own(chain, 0);
        let object = ObjectId { ino: Ino(7), stripe: 0 };
        let write = OstRequest::Write { object, offset: 0, mtime: None, kept: false };
        let to = Destination { ost: 0, chain: Some(chain) };
        let (here, client) = (world.here(0), ClientId::IN_PROCESS);
        block_on(head.execute(here, client, to, write, Bulk::Out(b"data"))).reply.unwrap();
        let row = world.row();
        let data = Arc::new(b"heal".to_vec());
        let give = || block_on(head.give(here, (1, &row), write, Some(&data))).unwrap();
        assert_eq!(give(), OstReply::Given { beside_users: false });
        let served = world.server(1).served();
        assert_eq!((served.begun, served.ended), (1, 1));
        let _user = world.server(1).serves_user();
        assert_eq!(give(), OstReply::Given { beside_users: true });
    }

    #[test]
    fn a_request_that_ended_before_a_piece_began_is_not_beside_it() {
        let (mut pacing, now) = (Pacing::default(), Instant::now());
        let requests = RequestCount { begun: 5, ended: 5 };
        assert_eq!(pacing.begin(now, requests), None);
        pacing.end(now + SECOND, requests, false);
        assert_eq!(pacing.begin(now + SECOND, requests), None);
        // Unless the member says that there was one at its server.
        pacing.end(now + 2 * SECOND, requests, true);
        assert!(pacing.begin(now + 2 * SECOND, requests).is_some());
    }
}

//! Tests of what is settled before a lock is returned.

use super::*;
use crate::client::cluster::ClientIdentity;
use crate::client::connection::Connection;
use crate::client::recovery::replay_budget::ReplayBudget;
use crate::client::recovery::replay_log::UncommittedWrite;
use crate::client::recovery::resent::ResentChange;
use crate::client::remote::RemoteOptions;
use crate::client::session::ClientSession;
use crate::client::session::tests::{log_write, welcome};
use crate::client::transport::{
    Granting, LockClient, LockTraffic, MdsRequests, MdsSession, ServerStatistics,
};
use crate::transport::framing::{Envelope, request_frame};
use glint_proto::chain::{Chain, ChainId, Destination, Member, MemberState};
use glint_proto::lock::Return;
use glint_proto::message::{Reply, Request, Survived, Welcome};
use glint_proto::oss::OssInfo;
use glint_proto::{Capability, ClientId, Cred, Errno, MdsRequest, ObjectId, OstReply};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

const ID: ChainId = ChainId { copies: 2, index: 0 };
const FILE: Ino = Ino(7);

/// What a head was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HeadStep {
    /// To sync an object, by an OST and the version of the row.
    Sync(u16, u32),
    /// To bring all of its server to stable storage.
    Commit,
}

type Event = Box<dyn FnOnce() + Send>;

/// One server with all OSTs, which notes what it is asked for.
#[derive(Default)]
struct HeadServer {
    steps: Mutex<Vec<HeadStep>>,
    /// Answers to the next syncs; all others are done.
    answers: Mutex<VecDeque<FsResult<OstReply>>>,
    /// The rows that it tells.
    rows: Mutex<Vec<Chain>>,
    /// Session in which it is sent changes, which it does not answer by itself.
    session: Option<Arc<ClientSession>>,
    /// What happens before and after changes of a file are abandoned there, in turns.
    events: Mutex<VecDeque<Event>>,
    /// Other servers, which it names.
    osses: Mutex<Vec<OssInfo>>,
    /// OST that answers no sync.
    silent: Option<u16>,
}

impl MdsRequests for HeadServer {
    async fn request(&self, _: &Cred, _: &MdsRequest<'_>) -> Granting {
        (Err(Errno::EOPNOTSUPP), Vec::new())
    }

    async fn post(&self, _: &Cred, _: &MdsRequest<'_>) -> FsResult<()> {
        Err(Errno::EOPNOTSUPP)
    }
}

impl OstRequests for HeadServer {
    async fn ost(
        &self,
        to: Destination,
        request: OstRequest,
        capability: Option<Capability>,
        bulk: Bulk<'_>,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<OstReply> {
        if let Some(session) = self.session.as_ref().filter(|_| request.is_modifying()) {
            let call = Request::Ost { to, request, capability, forward: None };
            let connection = Connection::of_thread(session)?;
            return match connection.call(&call, &bulk, is_held).await?.0 {
                Reply::Ost { reply, .. } => reply,
                _ => Err(Errno::EPROTO),
            };
        }
        assert!(matches!(request, OstRequest::Sync { .. }), "{request:?}");
        if self.silent == Some(to.ost) {
            std::future::pending::<()>().await;
        }
        let version = to.chain.map_or(0, |chain| chain.version);
        self.steps.lock().push(HeadStep::Sync(to.ost, version));
        self.answers.lock().pop_front().unwrap_or(Ok(OstReply::Done))
    }
}

impl Durability for HeadServer {
    async fn commit(&self) -> FsResult<()> {
        self.steps.lock().push(HeadStep::Commit);
        Ok(())
    }

    async fn abandon(&self, ino: Ino) {
        let next = || self.events.lock().pop_front().into_iter().for_each(|event| event());
        next();
        if let Some(session) = &self.session {
            session.abandon_replayed(ino).await;
        }
        next();
    }
}

impl MdsSession for HeadServer {
    fn welcome(&self) -> Welcome {
        Welcome { osts: 4, own_osts: 4, ..welcome() }
    }

    fn identity(&self) -> ClientIdentity {
        ClientIdentity::new(ClientId(1))
    }

    fn silence(&self) -> Duration {
        Duration::ZERO
    }

    async fn osses(&self) -> FsResult<Vec<OssInfo>> {
        Ok(self.osses.lock().clone())
    }

    async fn chains(&self) -> FsResult<Vec<Chain>> {
        Ok(self.rows.lock().clone())
    }
}

impl LockTraffic for HeadServer {
    fn set_lock_client(&self, _: Weak<dyn LockClient>) {}

    async fn listen(&self) {}

    async fn return_locks(&self, _: Vec<Return>) -> FsResult<()> {
        Ok(())
    }
}

impl ServerStatistics for HeadServer {
    async fn status(&self) -> FsResult<String> {
        Ok(String::new())
    }

    async fn stats(&self) -> FsResult<String> {
        Ok(String::new())
    }

    async fn reset_stats(&self) -> FsResult<()> {
        Ok(())
    }
}

impl Transport for HeadServer {
    type Mds = HeadServer;

    fn mds(&self) -> &HeadServer {
        self
    }

    fn is_away(&self) -> bool {
        false
    }
}

fn row(version: u32, osts: [u16; 2], state: MemberState) -> Chain {
    let members = osts.map(|ost| Member { ost, state }).to_vec();
    Chain { id: ID, version, members, founders: Vec::new(), intact_since: 1 }
}

/// A client that has abandoned a change which OST 1 acknowledged by row 2; OST 2 is the head by
/// row 3.
fn moved() -> Cluster<HeadServer> {
    let cluster = Cluster::new(HeadServer::default(), None, "/here".into());
    cluster.rows.learn(row(2, [1, 2], MemberState::Serving));
    let by = ChainVersion { target: ID.target(), version: 2 };
    let object = ObjectId { ino: FILE, stripe: 0 };
    cluster.rows.abandoned.put(ObjectToSync { object, capability: None }, by, None);
    cluster.rows.learn(row(3, [2, 1], MemberState::Serving));
    cluster
}

/// Settles. Returns whether that was all, and what heads were asked for.
fn settle(cluster: &Cluster<HeadServer>) -> (bool, Vec<HeadStep>) {
    let runtime = crate::runtime(None).unwrap();
    let is_all = runtime.block_on(cluster.settle_abandoned(ID.target()));
    (is_all, std::mem::take(&mut *cluster.mds.steps.lock()))
}

/// What becomes of the change: its file hears of a loss, or it is forgotten, or it waits.
fn outcome(cluster: &Cluster<HeadServer>) -> (Option<Errno>, bool) {
    (cluster.rows.moved.take_failure(FILE), cluster.rows.abandoned.is_empty())
}

const BY_3: [HeadStep; 3] = [HeadStep::Sync(2, 3), HeadStep::Commit, HeadStep::Sync(2, 3)];

#[test]
fn a_new_head_syncs_before_and_after_all_of_its_server_is_stable() {
    let cluster = moved();
    assert!(cluster.rows.moved.is_moving(ID.target()), "somebody is to settle it");
    assert_eq!(settle(&cluster), (true, BY_3.to_vec()));
    assert_eq!(outcome(&cluster), (None, true));
    assert_eq!(settle(&cluster), (true, Vec::new()), "once is enough");
}

#[test]
fn syncs_by_two_rows_do_not_stand_for_what_came_before() {
    let cluster = moved();
    // It is the head no more when it is asked for the second time.
    let answers = [Ok(OstReply::Done), Err(Errno::EREMCHG)];
    cluster.mds.answers.lock().extend(answers);
    cluster.mds.rows.lock().push(row(4, [1, 2], MemberState::Serving));
    let by_4 = [HeadStep::Sync(1, 4), HeadStep::Commit, HeadStep::Sync(1, 4)];
    assert_eq!(settle(&cluster), (true, [BY_3, by_4].concat()));
    assert_eq!(outcome(&cluster), (None, true));
}

#[test]
fn a_head_that_fails_is_asked_again_unless_the_failure_stays() {
    let cluster = moved();
    cluster.mds.answers.lock().push_back(Err(Errno::EAGAIN));
    let again = [&BY_3[..1], &BY_3[..]].concat();
    assert_eq!(settle(&cluster), (true, again));
    assert_eq!(outcome(&cluster), (None, true));

    let cluster = moved();
    cluster.mds.answers.lock().push_back(Err(Errno::ENOSPC));
    assert_eq!(settle(&cluster), (true, BY_3[..1].to_vec()));
    assert_eq!(outcome(&cluster), (Some(Errno::ENOSPC), true), "the file hears of it");
}

#[test]
fn a_chain_without_a_head_is_not_asked_and_loses_nothing() {
    let cluster = moved();
    cluster.rows.learn(row(4, [2, 1], MemberState::LastServing));
    assert_eq!(settle(&cluster), (true, Vec::new()));
    assert_eq!(outcome(&cluster), (None, false), "it waits for a head");
    cluster.rows.learn(row(5, [1, 2], MemberState::Serving));
    let by_5 = [HeadStep::Sync(1, 5), HeadStep::Commit, HeadStep::Sync(1, 5)];
    assert_eq!(settle(&cluster), (true, by_5.to_vec()));
    assert_eq!(outcome(&cluster), (None, true));
}

/// A client that is to send a change of the file to OST 2, the head by row 3, which does not
/// have it; nobody is there to answer.
fn resending() -> (Cluster<HeadServer>, Arc<ClientSession>) {
    let address = crate::Address::parse("127.0.0.1:1");
    let options = RemoteOptions { address, mount_point: "/here".into() };
    let (client, budget) = (ClientId(1), ReplayBudget::simulated());
    let session = ClientSession::new(options, "host".into(), client, 2, welcome(), None, budget);
    let server = HeadServer { session: Some(session.clone()), ..HeadServer::default() };
    let cluster = Cluster::new(server, None, "/here".into());
    let _ = session.chain_rows.set(cluster.rows.clone());
    cluster.rows.learn(row(2, [1, 2], MemberState::Serving));
    cluster.rows.learn(Chain { intact_since: 3, ..row(3, [2, 1], MemberState::Serving) });
    let (target, object) = (ID.target(), ObjectId { ino: FILE, stripe: 0 });
    let to = Destination { ost: 1, chain: Some(ChainVersion { target, version: 2 }) };
    let request = OstRequest::Truncate { object, size: 0 };
    let request = Request::Ost { to, request, capability: None, forward: None };
    let frame = request_frame(Envelope::request(request.op(), client), &request).unwrap();
    let object = (target, object);
    let change = UncommittedWrite { frame: frame.into(), object, retry: None };
    cluster.rows.moved.put_back(target, vec![change], || true);
    (cluster, session)
}

/// Sends what has moved, until that waits for an answer, and drops it.
async fn send_and_drop(cluster: &Cluster<HeadServer>) {
    let mut sending = pin!(cluster.send_moved(ID.target()));
    assert!(futures_util::poll!(sending.as_mut()).is_pending());
}

/// Requests of this thread that have no answer: their places and numbers.
fn under_way(session: &Arc<ClientSession>) -> Vec<(u16, u64)> {
    let connection = Connection::of_thread(session).unwrap();
    let all = connection.pending.borrow();
    let places = (0..).zip(all.iter());
    let found = places.filter_map(|(place, one)| Some((place, one.as_ref()?.xid)));
    found.collect::<Vec<(u16, u64)>>()
}

/// The server answers the only one that is under way.
fn answer(session: &Arc<ClientSession>) {
    let connection = Connection::of_thread(session).unwrap();
    let all = under_way(session);
    assert_eq!(all.len(), 1);
    connection.finish(all[0].0);
}

#[test]
fn what_is_sent_again_and_dropped_is_answered_before_anything_else_is_sent() {
    let (cluster, session) = resending();
    crate::runtime(None).unwrap().block_on(async {
        send_and_drop(&cluster).await;
        let dropped = under_way(&session);
        assert_eq!(dropped.len(), 1);
        // Another thread does it next, on its own connection.
        send_and_drop(&cluster).await;
        assert_eq!(under_way(&session), dropped);
        assert!(cluster.rows.moved.is_moving(ID.target()), "others wait, too");
        answer(&session);
        send_and_drop(&cluster).await;
        let next = under_way(&session);
        assert!(next.len() == 1 && next != dropped);
        // The same head by the next row: it has nothing to do by the old one.
        cluster.rows.learn(Chain { intact_since: 3, ..row(4, [2, 1], MemberState::Serving) });
        send_and_drop(&cluster).await;
        assert_eq!(under_way(&session).len(), 2);
        session.end();
    });
}

/// How the wait for a change that is sent again ends, and what heads are asked for before.
type WaitEnd = (fn(&Cluster<HeadServer>, &Arc<ClientSession>), &'static [HeadStep]);

#[test]
fn a_lock_is_returned_when_no_head_makes_an_old_change_of_its_file() {
    let ends: [WaitEnd; 3] = [
        (|_, session| answer(session), &[]),
        // It is told to who asks. The new head has not heard of it at first.
        (
            |cluster, _| {
                cluster.mds.answers.lock().push_back(Err(Errno::EREMCHG));
                cluster.mds.rows.lock().push(row(5, [1, 2], MemberState::Serving));
            },
            &[HeadStep::Sync(1, 5), HeadStep::Sync(1, 5)],
        ),
        (|_, session| session.on_eviction(), &[]),
    ];
    for (end, steps) in ends {
        let (cluster, session) = resending();
        crate::runtime(None).unwrap().block_on(async {
            send_and_drop(&cluster).await;
            assert!(futures_util::poll!(pin!(cluster.abandon(Ino(8)))).is_ready());
            let mut abandoning = pin!(cluster.abandon(FILE));
            assert!(futures_util::poll!(abandoning.as_mut()).is_pending());
            // Nor is another lock of the file, under which nothing is left to sync.
            assert!(cluster.unstable(FILE).is_empty());
            for ino in [Some(FILE), None] {
                assert!(futures_util::poll!(pin!(cluster.until_answered(ino))).is_pending());
            }
            // The head may have the change in its socket and not have heard of this row.
            cluster.rows.learn(row(4, [2, 1], MemberState::Serving));
            assert!(futures_util::poll!(abandoning.as_mut()).is_pending());
            end(&cluster, &session);
            abandoning.await;
            assert!(futures_util::poll!(pin!(cluster.until_answered(None))).is_ready());
            assert!(cluster.rows.moved.is_empty());
            assert_eq!(*cluster.mds.steps.lock(), steps);
            session.end();
        });
    }
}

/// Another thread sends the change again, and has its answer between two steps of the return.
#[test]
fn a_change_that_is_answered_while_its_file_is_abandoned_is_not_kept() {
    for moves_again in [false, true] {
        let (cluster, session) = resending();
        let target = ID.target();
        let change = cluster.rows.moved.first(target).unwrap().change;
        let by = ChainVersion { target, version: 3 };
        let of = ObjectToSync { object: change.object.1, capability: None };
        let resent = ResentChange::new(&cluster.rows, (2, by), of);
        let (answering, moving) = (session.clone(), session.clone());
        let is_answered = move || {
            let log = answering.log_of_run(welcome().boot_verifier).unwrap();
            log.keep_write(1, change);
            drop(resent);
        };
        let moves = move || moving.move_chain(target);
        let mut events: VecDeque<Event> = [Box::new(|| ()) as Event].into();
        events.push_back(Box::new(is_answered));
        events.extend(moves_again.then(|| Box::new(moves) as Event));
        *cluster.mds.events.lock() = events;
        crate::runtime(None).unwrap().block_on(async {
            cluster.abandon(FILE).await;
            assert!(session.replay_log.lock().objects_of(FILE).is_empty());
            assert!(cluster.rows.moved.is_empty() && cluster.mds.events.lock().is_empty());
            session.end();
        });
    }
}

#[test]
fn nothing_newer_is_sent_before_an_old_change_whose_lock_is_being_returned() {
    let (cluster, session) = resending();
    crate::runtime(None).unwrap().block_on(async {
        send_and_drop(&cluster).await;
        let dropped = under_way(&session);
        let mut abandoning = pin!(cluster.abandon(FILE));
        assert!(futures_util::poll!(abandoning.as_mut()).is_pending());
        assert!(cluster.rows.moved.is_empty(), "it does not wait to be sent once more");
        send_and_drop(&cluster).await;
        assert!(cluster.rows.moved.is_moving(ID.target()), "others wait, too");
        assert_eq!(under_way(&session), dropped);
        answer(&session);
        cluster.send_moved(ID.target()).await;
        assert!(!cluster.rows.moved.is_moving(ID.target()));
        abandoning.await;
        session.end();
    });
}

#[test]
fn a_chain_whose_head_does_not_answer_stops_no_other() {
    let (cluster, session) = resending();
    let other = ChainId { copies: 2, index: 1 };
    for (version, osts) in [(2, [1, 2]), (3, [2, 1])] {
        cluster.rows.learn(Chain { id: other, ..row(version, osts, MemberState::Serving) });
    }
    crate::runtime(None).unwrap().block_on(async {
        let mut sending = pin!(cluster.send_to_moving());
        assert!(futures_util::poll!(sending.as_mut()).is_pending());
        assert_eq!(cluster.rows.moved.moving(), [ID.target()]);
        // Nor does it stop other tasks meanwhile.
        cluster.rows.moved.moves(other.target());
        let mut sends = pin!(cluster.send_moved(other.target()));
        assert!(futures_util::poll!(sends.as_mut()).is_ready());
        assert_eq!(cluster.rows.moved.moving(), [ID.target()]);
        session.end();
    });
}

#[test]
fn the_servers_of_a_chain_that_are_all_given_up_are_not_waited_for() {
    let (cluster, session) = resending();
    crate::runtime(None).unwrap().block_on(async {
        send_and_drop(&cluster).await;
        let waits = row(4, [2, 1], MemberState::LastServing);
        cluster.rows.learn(waits.clone());
        let mut abandoning = pin!(cluster.abandon(FILE));
        assert!(futures_util::poll!(abandoning.as_mut()).is_pending());
        cluster.rows.hear(&cluster.rows.inquire(), Some(&[]), [waits]);
        abandoning.await;
        session.end();
    });
}

/// A change is sent again to an OSS without copies, which dies before it has answered.
#[test]
fn a_lock_is_returned_when_the_server_of_a_replay_was_given_up() {
    let cluster = Cluster::new(HeadServer::default(), None, "/here".into());
    let oss = OssInfo { first_ost: 4, osts: 1, address: "127.0.0.1:1".into(), space: vec![] };
    cluster.mds.osses.lock().push(oss.clone());
    cluster.learn(vec![oss]);
    let session = cluster.find(4).unwrap().session.clone();
    session.count_anew(1, Survived::ALL);
    let object = (4, ObjectId { ino: FILE, stripe: 0 });
    log_write(&session, 1, UncommittedWrite { frame: vec![0].into(), object, retry: None });
    session.count_anew(2, Survived { mds: 0, ost: 0 });
    assert!(session.replay_log.lock().begin_replay().is_some());
    crate::runtime(None).unwrap().block_on(async {
        let mut abandoning = pin!(cluster.abandon(FILE));
        for is_given_up in [false, true] {
            if is_given_up {
                cluster.mds.osses.lock().clear();
            }
            let patience = if is_given_up { Duration::from_secs(20) } else { 3 * LOOK_AGAIN };
            let is_late = pin!(host::sleep(patience));
            let ended = select(abandoning.as_mut(), is_late).await;
            assert_eq!(matches!(ended, Either::Left(_)), is_given_up);
        }
    });
    assert_eq!(cluster.take_failure(FILE), Some(Errno::EIO));
    assert!(session.replay_log.lock().is_empty());
}

#[test]
fn a_chain_that_moves_while_another_one_waits_for_its_head_is_sent_to() {
    let mut cluster = moved();
    cluster.mds.silent = Some(2);
    let id = ChainId { copies: 2, index: 1 };
    let learn = |version, osts| {
        cluster.rows.learn(Chain { id, ..row(version, osts, MemberState::Serving) });
    };
    learn(2, [1, 3]);
    let by = ChainVersion { target: id.target(), version: 2 };
    let object = ObjectId { ino: Ino(8), stripe: 0 };
    cluster.rows.abandoned.put(ObjectToSync { object, capability: None }, by, None);
    crate::runtime(None).unwrap().block_on(async {
        let mut sending = pin!(cluster.send_to_moving());
        assert!(futures_util::poll!(sending.as_mut()).is_pending());
        learn(3, [3, 1]);
        let settled = async {
            for _ in 0..1000 {
                if !cluster.rows.moved.is_moving(id.target()) {
                    return;
                }
                host::sleep(Duration::from_millis(10)).await;
            }
            panic!("it waits for the other one");
        };
        assert!(matches!(select(sending, pin!(settled)).await, Either::Right(_)));
    });
    assert!(cluster.rows.moved.is_moving(ID.target()), "the other one waits still");
    assert_eq!(cluster.mds.steps.lock().first(), Some(&HeadStep::Sync(3, 3)));
}

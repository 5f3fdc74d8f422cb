//! Tests of what a session hears.

use super::*;
use crate::client::recovery::replay_log::UncommittedWrite;
use crate::host;
use crate::transport::framing::{Envelope, request_frame};
use crate::transport::stream::Address;
use glint_proto::Committed;
use glint_proto::chain::{ChainVersion, Destination, Member, MemberState};
use glint_proto::limits::REPLAY_LOG_BYTES_MAX;
use glint_proto::{ObjectId, OstRequest};
use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

/// Welcome of a server.
pub(crate) fn welcome() -> Welcome {
    Welcome {
        fs_uuid: 1,
        boot_verifier: 1,
        osts: 1,
        own_osts: 1,
        osses: Vec::new(),
        session: 7,
        cache_ms: 0,
        commit_sync: false,
        lease_ms: 1000,
        locks: true,
        root: Ino::ROOT,
        capabilities: false,
        survived: Survived::ALL,
        evicted: false,
    }
}

#[test]
fn a_server_of_another_file_system_does_not_end_a_session() {
    let options =
        RemoteOptions { address: Address::parse("127.0.0.1:1"), mount_point: "/here".into() };
    let (client, own) = (ClientId(1), welcome());
    let budget = ReplayBudget::simulated();
    let session = ClientSession::new(options, "host".into(), client, 2, own, None, budget);
    let hear = |welcome| {
        let is_taken = session.on_welcome(Reply::Welcome(welcome), session.hello().1).is_ok();
        (is_taken, session.heard.lock().session, session.evictions.load(Ordering::Acquire))
    };
    let other = Welcome { fs_uuid: 2, session: 9, evicted: true, ..welcome() };
    assert_eq!(hear(other), (false, 7, 0));
    let anew = Welcome { session: 9, evicted: true, ..welcome() };
    assert_eq!(hear(anew), (true, 9, 1));
}

pub(super) fn session(oss_of: Option<&ClientIdentity>) -> Arc<ClientSession> {
    let address = Address::parse("127.0.0.1:1");
    let options = RemoteOptions { address, mount_point: "/here".into() };
    // Of an OSS no run is known in the beginning.
    let boot_verifier = if oss_of.is_some() { 0 } else { 1 };
    let welcome = Welcome { boot_verifier, ..welcome() };
    let budget = ReplayBudget::simulated();
    ClientSession::new(options, "host".into(), ClientId(1), 2, welcome, oss_of, budget)
}

#[test]
fn an_eviction_is_heard_once_from_whichever_hello_is_answered_first() {
    let session = session(None);
    let hear = |evicted| {
        let welcome = Welcome { session: 9, evicted, ..welcome() };
        let mark = session.hello().1;
        assert!(session.on_welcome(Reply::Welcome(welcome), mark).is_ok());
        session.evictions.load(Ordering::Acquire)
    };
    // The hello that began the new session is answered last, or never.
    assert_eq!([hear(false), hear(true), hear(false)], [1, 1, 1]);
    // Each connection asks a run that knows nothing of the last one, and is told the same.
    let in_run = |boot_verifier| {
        let welcome = Welcome { session: 9, evicted: true, boot_verifier, ..welcome() };
        let mark = session.hello().1;
        assert!(session.on_welcome(Reply::Welcome(welcome), mark).is_ok());
        session.evictions.load(Ordering::Acquire)
    };
    assert_eq!([in_run(2), in_run(2), in_run(3), in_run(3)], [2, 2, 3, 3]);
}

/// The numbers of sessions begin anew, anywhere, with each run of the MDS.
#[test]
fn a_late_answer_is_neither_a_new_session_nor_another_run() {
    let session = session(None);
    let of =
        |session, boot_verifier| Reply::Welcome(Welcome { session, boot_verifier, ..welcome() });
    let state = || {
        let heard = session.heard.lock();
        (heard.session, heard.boot_verifier, session.evictions.load(Ordering::Acquire))
    };
    assert!(session.on_welcome(of(7, 1), session.hello().1).is_ok());
    let late = session.hello().1;
    assert!(session.on_welcome(of(9, 1), session.hello().1).is_ok());
    assert_eq!(state(), (9, 1, 1));
    assert!(session.on_welcome(of(7, 1), late).is_err());
    assert_eq!(state(), (9, 1, 1), "the session of before");
    assert!(session.on_welcome(of(9, 1), late).is_ok(), "it says what is known");
    let late = session.hello().1;
    assert!(session.on_welcome(of(3, 2), session.hello().1).is_ok());
    assert_eq!(state(), (3, 2, 2));
    for old in [of(9, 1), of(9, 2), of(3, 1)] {
        assert!(session.on_welcome(old, late).is_err());
        assert_eq!(state(), (3, 2, 2));
    }
}

#[test]
fn each_eviction_counts_at_an_oss_in_one_run_of_it() {
    let own = Arc::new(AtomicU64::new(7));
    let (client, session) = (ClientId(1), own.clone());
    let identity = ClientIdentity { client, session, secret: 2, in_process: false };
    let session = self::session(Some(&identity));
    // The session of a welcome is what the OSS was told.
    let connect = |boot_verifier, evicted| {
        let (hello, mark) = session.hello();
        let Request::Hello(hello) = hello else { panic!() };
        let welcome = Welcome { session: hello.session, boot_verifier, evicted, ..welcome() };
        session.on_welcome(Reply::Welcome(welcome), mark).unwrap();
        session.evictions.load(Ordering::Acquire)
    };
    assert_eq!([connect(5, false), connect(5, false)], [0, 0]);
    session.count_anew(5, Survived::ALL);
    // The server starts again, and remembers nothing of the run before.
    assert_eq!([connect(6, true), connect(6, true)], [1, 1]);
    session.count_anew(6, Survived::ALL);
    // The MDS evicts this client, twice.
    for (number, evictions) in [(8, 2), (9, 3)] {
        own.store(number, Ordering::Release);
        assert_eq!([connect(6, false), connect(6, false)], [evictions, evictions]);
    }
    // A hello from before the recovery is answered late.
    assert_eq!(connect(6, true), 3);
}

pub(crate) fn log_write(session: &ClientSession, transaction: u64, change: UncommittedWrite) {
    let run = session.boot_verifier.load(Ordering::Acquire);
    session.log_of_run(run).unwrap().keep_write(transaction, change);
}

/// Notes whether the replay log is locked when it is woken.
struct Woken(Arc<ClientSession>, AtomicU64);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        let is_locked = self.0.replay_log.try_lock().is_none();
        self.1.fetch_add(if is_locked { 100 } else { 1 }, Ordering::AcqRel);
    }
}

#[test]
fn a_commit_is_over_when_nothing_of_before_is_left_in_the_log() {
    let session = self::session(None);
    let run = session.boot_verifier.load(Ordering::Acquire);
    let object = (0x8000, ObjectId { ino: Ino(7), stripe: 0 });
    let write = || UncommittedWrite { frame: vec![0; 10].into(), object, retry: None };
    log_write(&session, 3, write());
    let mark = session.mark_log();
    log_write(&session, 4, write());
    // The answer to a commit says that a chain may have lost some of it.
    session.on_committed(run, Committed { mds: 0, ost: 2 }, &mut drop);
    assert_eq!(session.are_stable(mark), Some(false));
    session.on_committed(run, Committed { mds: 0, ost: 3 }, &mut drop);
    assert_eq!(session.are_stable(mark), Some(true));
    session.count_anew(run + 1, Survived { mds: 0, ost: 0 });
    assert_eq!(session.are_stable(mark), None, "there are other numbers");
}

/// An answer is lost, and sent again after the server has said that everything is durable.
#[test]
fn a_change_whose_answer_comes_after_its_commit_is_not_kept() {
    let session = self::session(None);
    let run = session.boot_verifier.load(Ordering::Acquire);
    let object = (0, ObjectId { ino: Ino(7), stripe: 0 });
    let write = || UncommittedWrite { frame: vec![0; 10].into(), object, retry: None };
    session.on_committed(run, Committed { mds: 0, ost: 18 }, &mut drop);
    log_write(&session, 18, write());
    assert!(session.replay_log.lock().is_empty(), "a sync would wait for it without end");
    log_write(&session, 19, write());
    assert!(!session.replay_log.lock().is_empty());
    // What a run that has ended said late is not so in the next one.
    session.count_anew(run + 1, Survived { mds: 0, ost: 0 });
    session.on_committed(run, Committed { mds: 0, ost: 30 }, &mut drop);
    log_write(&session, 1, write());
    assert_eq!(session.are_stable(session.mark_log()), Some(false));
}

/// Its answer comes while another thread begins to count the next run.
#[test]
fn an_answer_of_a_run_that_has_ended_is_not_kept_in_the_next_one() {
    let session = self::session(None);
    let run = session.boot_verifier.load(Ordering::Acquire);
    let log = session.log_of_run(run).unwrap();
    let other = session.clone();
    let counting = std::thread::spawn(move || other.count_anew(run + 1, Survived::ALL));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!counting.is_finished(), "it would not know of the change");
    let object = (0, ObjectId { ino: Ino(7), stripe: 0 });
    log.keep_write(30, UncommittedWrite { frame: vec![0; 10].into(), object, retry: None });
    counting.join().unwrap();
    assert!(session.log_of_run(run).is_none());
    assert!(session.replay_log.lock().is_empty(), "it has survived");
    assert!(session.log_of_run(run + 1).is_some());
}

/// A world in which no time passes while somebody sleeps.
struct Sleepless;

impl host::World for Sleepless {
    fn spawn(&self, _: host::Task) {}

    fn sleep(&self, _: Duration) -> host::Task {
        Box::pin(std::future::ready(()))
    }

    fn connect(&self, _: &str) -> std::io::Result<host::Pipe> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

#[test]
fn a_commit_that_fails_is_tried_again_but_not_after_an_eviction() {
    host::simulate(Some(Rc::new(Sleepless)));
    let session = self::session(None);
    let answers = RefCell::new(vec![Ok(()), Err(Errno::EIO), Err(Errno::EAGAIN)]);
    let asked = session.until_stable(async || answers.borrow_mut().pop().unwrap());
    assert_eq!(futures_lite::future::block_on(asked), Ok(()));
    assert!(answers.borrow().is_empty());
    let asked = session.until_stable(async || Err(Errno::ENOSPC));
    assert_eq!(futures_lite::future::block_on(asked), Err(Errno::ENOSPC), "that does not pass");
    let asked = session.until_stable(async || {
        session.on_eviction();
        Ok(())
    });
    assert_eq!(futures_lite::future::block_on(asked), Err(Errno::EIO), "nothing is left of it");
    host::simulate(None);
}

#[test]
fn nobody_is_woken_under_the_lock_of_the_replay_log() {
    let session = self::session(None);
    let object = (0, ObjectId { ino: Ino(7), stripe: 0 });
    let full =
        UncommittedWrite { frame: vec![0; REPLAY_LOG_BYTES_MAX].into(), object, retry: None };
    log_write(&session, 1, full);
    let woken = Arc::new(Woken(session.clone(), AtomicU64::new(0)));
    let waker = Waker::from(woken.clone());
    let request = OstRequest::Truncate { object: object.1, size: 0 };
    let request = Request::Ost { to: 0.into(), request, capability: None, forward: None };
    let mut room = pin!(session.room(&request));
    assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    session.on_committed(1, Committed { mds: 0, ost: 1 }, &mut drop);
    assert_eq!(woken.1.load(Ordering::Acquire), 1);
    assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

/// Both members of a chain are away for long, and others want the file.
#[test]
fn a_file_hears_of_abandoned_changes_only_if_its_chain_may_have_lost_them() {
    use MemberState::{LastServing, Serving};
    let (session, rows) = (self::session(None), Arc::new(ChainRows::default()));
    let _ = session.chain_rows.set(rows.clone());
    let (run, file) = (session.boot_verifier.load(Ordering::Acquire), Ino(7));
    let (id, object) = (ChainId { copies: 2, index: 0 }, ObjectId { ino: file, stripe: 0 });
    let learn = |version, state, intact_since| {
        let members = [1, 2].map(|ost| Member { ost, state }).to_vec();
        rows.learn(Chain { id, version, members, founders: Vec::new(), intact_since });
    };
    let write = |transaction, version| {
        let chain = Some(ChainVersion { target: id.target(), version });
        let request = OstRequest::Truncate { object, size: 0 };
        let to = Destination { ost: 1, chain };
        let request = Request::Ost { to, request, capability: None, forward: None };
        let envelope = Envelope::request(request.op(), session.client);
        let frame = request_frame(envelope, &request).unwrap().into();
        let object = (id.target(), object);
        log_write(&session, transaction, UncommittedWrite { frame, object, retry: None });
    };
    let failures = || [session.take_failure(file), rows.moved.take_failure(file)];
    learn(2, Serving, 1);
    write(1, 2);
    learn(3, LastServing, 1);
    session.abandon(file);
    assert!(session.replay_log.lock().is_empty() && !rows.abandoned.is_empty());
    learn(4, Serving, 1);
    assert!(rows.moved.is_moving(id.target()) && !rows.abandoned.is_empty(), "in memory alone");
    rows.abandoned.on_settled(ChainVersion { target: id.target(), version: 4 });
    assert!(rows.abandoned.is_empty());
    assert_eq!(failures(), [None, None], "they are back with all that they had");

    write(2, 4);
    learn(5, LastServing, 1);
    session.move_chain(id.target());
    rows.abandon(file);
    assert_eq!(failures(), [None, None], "nobody knows yet");
    learn(6, Serving, 6);
    assert_eq!(failures(), [None, Some(Errno::EIO)]);

    write(3, 6);
    session.abandon(file);
    session.on_committed(run, Committed { mds: 0, ost: 3 }, &mut drop);
    assert!(rows.abandoned.is_empty());
    learn(7, Serving, 7);
    assert_eq!(failures(), [None, None], "it was durable before");

    // The servers of all members are given up.
    write(4, 7);
    learn(8, LastServing, 7);
    session.abandon(file);
    assert_eq!(failures(), [None, None]);
    let waiting = rows.get(id.target()).unwrap();
    rows.hear(&rows.inquire(), Some(std::slice::from_ref(&(0..1))), [Chain::clone(&waiting)]);
    assert_eq!(failures(), [None, Some(Errno::ENXIO)]);
    (5..9).for_each(|transaction| write(transaction, 7));
    session.abandon(file);
    assert!(!rows.moved.is_to_say(file, id.target()), "it is said once for all of them");
    assert_eq!(failures(), [None, Some(Errno::ENXIO)]);
}

/// Another thread hears of the next head while an answer of the old one comes, and takes out of the
/// log what the next one is to have.
#[test]
fn a_change_is_kept_by_the_row_that_is_known_when_the_log_is_locked() {
    let (session, rows) = (self::session(None), Arc::new(ChainRows::default()));
    let _ = session.chain_rows.set(rows.clone());
    let id = ChainId { copies: 2, index: 0 };
    let learn = |version, osts: [u16; 2]| {
        let members = osts.map(|ost| Member { ost, state: MemberState::Serving }).to_vec();
        rows.learn(Chain { id, version, members, founders: Vec::new(), intact_since: 1 });
    };
    learn(1, [1, 2]);
    let to = Destination { ost: 1, chain: Some(ChainVersion { target: id.target(), version: 1 }) };
    let request = OstRequest::Truncate { object: ObjectId { ino: Ino(7), stripe: 0 }, size: 0 };
    let request = Request::Ost { to, request, capability: None, forward: None };
    let frame = request_frame(Envelope::request(request.op(), session.client), &request).unwrap();
    let run = session.boot_verifier.load(Ordering::Acquire);
    let is_overtaken = || session.log_of_run(run).unwrap().is_overtaken(&frame);
    assert!(!is_overtaken());
    let log = session.replay_log.lock();
    std::thread::scope(|scope| {
        let answer = scope.spawn(is_overtaken);
        std::thread::sleep(Duration::from_millis(50));
        learn(2, [2, 1]);
        drop(log);
        assert!(answer.join().unwrap());
    });
}

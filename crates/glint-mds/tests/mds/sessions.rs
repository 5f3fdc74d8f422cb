//! Sessions: to whom they belong, and what is left of one that has ended.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{Nowhere, Server};
use futures_lite::future::{block_on, poll_once};
use glint_kv::memory::MemoryKv;
use glint_proto::MetadataService;
use glint_proto::deferred::Deferred;
use glint_proto::limits::RUNS_MAX;
use glint_proto::lock::{Bits, Grant, Range, Recall, Return};
use glint_proto::posix::ScanFilter;
use glint_proto::{
    Answer, Arrival, ClientId, Cred, Errno, Ino, MdsReply, MdsRequest, ObjectAttr, OpenFlags,
    Owner, Placement, PosixLock, PosixLockHow, PosixLockMode, RequestId, Session, SetAttr,
    Timestamp, clock,
};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn start(kv: &Arc<MemoryKv>, run: u64) -> Server {
    crate::support::start(kv.clone(), run, true)
}

fn owner(secret: u128) -> Owner {
    Owner { certificate: None, secret }
}

pub(crate) fn connect(mds: &Server, client: u64) -> Arc<Session> {
    let connected = mds.connect(ClientId(client), owner(client.into()), "host", "/mnt");
    block_on(connected).unwrap().1
}

pub(crate) async fn ask(
    mds: &Server,
    session: &Session,
    xid: u64,
    request: MdsRequest<'_>,
) -> Answer<MdsReply> {
    let id = Some(RequestId { client: session.client(), slot: 0, xid });
    let now = Timestamp::now();
    let arrival = Arrival { session: Some(session), id, now, ..Arrival::default() };
    mds.handle(&arrival, &Cred::ROOT, &request).await
}

pub(crate) fn ino_of(answer: Answer<MdsReply>) -> Ino {
    match answer.reply {
        Ok(MdsReply::Attr(attr) | MdsReply::Opened { attr, .. }) => attr.ino,
        other => panic!("{other:?}"),
    }
}

pub(crate) const FILE: MdsRequest<'_> = MdsRequest::Create {
    parent: Ino::ROOT,
    name: b"f",
    mode: 0o100644,
    umask: 0,
    rdev: 0,
    target: b"",
    open: None,
    exclusive: true,
};

#[test]
fn a_session_is_its_owners_also_after_a_restart() {
    let kv = Arc::<MemoryKv>::default();
    let mds = start(&kv, 1000);
    let session = connect(&mds, 5);
    let certificate = Some([7; 32]);
    let tls = block_on(mds.connect(ClientId(6), Owner { certificate, secret: 1 }, "h", "/m"));
    let number = tls.unwrap().1.number();
    let check = |mds: &Server| {
        for (client, stranger) in [
            (5, owner(6)),
            (5, Owner { certificate, secret: 5 }),
            (6, owner(1)),
            (6, Owner { certificate: Some([8; 32]), secret: 1 }),
            (6, Owner { certificate, secret: 2 }),
        ] {
            let refused = block_on(mds.connect(ClientId(client), stranger, "evil", "/"));
            assert_eq!(refused.err(), Some(Errno::EACCES), "{client}");
        }
        assert!(mds.sessions().iter().all(|info| info.host != "evil"));
        assert!(mds.has_session(ClientId(6), number, &Owner { certificate, secret: 1 }));
        assert!(!mds.has_session(ClientId(5), number, &owner(5)));
    };
    check(&mds);
    drop(mds);
    let mds = start(&kv, 2000);
    check(&mds);
    let (is_new, again) = block_on(mds.connect(ClientId(5), owner(5), "host", "/mnt")).unwrap();
    assert!(!is_new && again.number() == session.number());
}

#[test]
fn what_waited_when_its_session_ended_is_refused_when_it_wakes_up() {
    let mds = start(&Arc::default(), 1000);
    let (one, other) = (connect(&mds, 1), connect(&mds, 2));
    let file = ino_of(block_on(ask(&mds, &one, 1, FILE)));
    // The other one has its attributes cached, and listens to recalls.
    mds.listen(other.client());
    let look = MdsRequest::Lookup { parent: Ino::ROOT, name: b"f" };
    assert!(!block_on(ask(&mds, &other, 1, look)).grants.is_empty());
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    let mut opening = pin!(ask(&mds, &one, 2, MdsRequest::Open { ino: file, flags }));
    assert!(block_on(poll_once(&mut opening)).is_none());

    block_on(mds.goodbye(&one)).unwrap();
    let returned = |ino| Return::Bits { ino, bits: Bits::ALL, number: u64::MAX };
    mds.return_locks(other.client(), &[returned(file), returned(Ino::ROOT)]);
    assert_eq!(block_on(opening).reply, Err(Errno::ESTALE));
    // Nobody has the file open when its name goes.
    let unlink = MdsRequest::Unlink { parent: Ino::ROOT, name: b"f" };
    assert!(block_on(ask(&mds, &other, 2, unlink)).reply.is_ok());
    block_on(mds.expire(&Nowhere)).unwrap();
    while block_on(mds.reap(&Nowhere)).unwrap() {}
    assert_eq!(mds.inode_count(), 1, "the root");
    for request in [FILE, MdsRequest::Open { ino: Ino::ROOT, flags: OpenFlags::default() }] {
        assert_eq!(block_on(ask(&mds, &one, 3, request)).reply, Err(Errno::ESTALE));
    }
}

#[test]
fn what_hangs_of_one_client_keeps_no_locks_of_another() {
    let start_time = std::time::Instant::now();
    clock::simulate(Some(start_time));
    let mds = start(&Arc::default(), 1000);
    let (hangs, dead) = (connect(&mds, 1), connect(&mds, 2));
    let running = hangs.enter().unwrap();
    for tenths in 0..310 {
        clock::simulate(Some(start_time + Duration::from_millis(100) * tenths));
        mds.time_passes();
    }
    block_on(mds.expire(&Nowhere)).unwrap();
    assert!(hangs.is_over() && dead.is_over());
    let clients = || mds.sessions().iter().map(|info| info.client.0).collect::<Vec<_>>();
    assert_eq!(clients(), [1], "something of it is still being executed");
    block_on(mds.expire(&Nowhere)).unwrap();
    assert_eq!(clients(), [1]);
    drop(running);
    block_on(mds.expire(&Nowhere)).unwrap();
    assert!(clients().is_empty());
    clock::simulate(None);
}

#[test]
fn a_command_that_was_killed_is_not_waited_for_if_it_holds_nothing() {
    let start_time = std::time::Instant::now();
    clock::simulate(Some(start_time));
    let mds = start(&Arc::default(), 1000);
    let connect = |client: u64, place: &str| {
        let connected = mds.connect(ClientId(client), owner(client.into()), "host", place);
        block_on(connected).unwrap()
    };
    let (_, looks) = connect(1, "(find)");
    let (_, changes) = connect(2, "(find)");
    let others = [(3, "/mnt"), (4, "(copies)"), (5, "(du)")].map(|(id, at)| connect(id, at).1);
    assert!(block_on(ask(&mds, &changes, 1, FILE)).reply.is_ok());
    for session in others.iter().chain([&looks, &changes]) {
        mds.disconnect(session);
    }
    let (is_new, _) = connect(5, "(du)");
    assert!(!is_new, "it was cut off for a moment");
    for tenths in 1..40 {
        clock::simulate(Some(start_time + Duration::from_millis(100) * tenths));
        mds.time_passes();
    }
    block_on(mds.expire(&Nowhere)).unwrap();
    let mut left: Vec<u64> = mds.sessions().iter().map(|info| info.client.0).collect();
    left.sort_unstable();
    assert_eq!(left, [2, 3, 4, 5]);
    let (is_new, next) = connect(1, "(find)");
    assert!(looks.is_over() && is_new && next.number() != looks.number());
    clock::simulate(None);
}

#[test]
fn a_release_of_an_old_session_closes_nothing_of_the_new_one() {
    let mds = start(&Arc::default(), 1000);
    let old = connect(&mds, 1);
    let file = ino_of(block_on(ask(&mds, &old, 1, FILE)));
    block_on(mds.goodbye(&old)).unwrap();
    let new = connect(&mds, 1);
    assert_ne!(new.number(), old.number());
    let open =
        MdsRequest::Open { ino: file, flags: OpenFlags { read: true, ..OpenFlags::default() } };
    assert!(block_on(ask(&mds, &new, 1, open)).reply.is_ok());
    let release = MdsRequest::Release { ino: file, write: false, wrote: None };
    assert_eq!(block_on(ask(&mds, &old, 2, release)).reply, Err(Errno::ESTALE));
    let unlink = MdsRequest::Unlink { parent: Ino::ROOT, name: b"f" };
    assert!(block_on(ask(&mds, &new, 2, unlink)).reply.is_ok());
    block_on(mds.expire(&Nowhere)).unwrap();
    while block_on(mds.reap(&Nowhere)).unwrap() {}
    assert_eq!(mds.inode_count(), 2, "it is open");
}

#[test]
fn the_next_session_begins_when_the_last_one_is_quiet() {
    let mds = start(&Arc::default(), 1000);
    let old = connect(&mds, 1);
    let running = old.enter().unwrap();
    let mut ending = pin!(mds.goodbye(&old));
    assert!(block_on(poll_once(&mut ending)).is_none());
    let early = block_on(mds.connect(ClientId(1), owner(1), "host", "/mnt"));
    assert_eq!(early.err(), Some(Errno::EAGAIN));
    assert!(!mds.knows(ClientId(1)));
    // A second good-bye is in nobody's way.
    block_on(mds.goodbye(&old)).unwrap();
    drop(running);
    block_on(ending).unwrap();
    let new = connect(&mds, 1);
    block_on(mds.goodbye(&old)).unwrap();
    assert!(!new.is_over() && mds.knows(ClientId(1)));
}

/// A client that connects anew sends again what had no answer; the copy on the old connection may
/// come after what was done since.
#[test]
fn a_copy_of_an_unlock_takes_no_later_lock_away() {
    let mds = start(&Arc::default(), 1);
    let (a, b) = (connect(&mds, 1), connect(&mds, 2));
    let send = |session: &Session, slot, xid, mode| {
        let lock = PosixLock {
            ino: Ino::ROOT,
            owner: 5,
            pid: 5,
            range: Range::ALL,
            mode,
            flock: true,
            how: PosixLockHow::Try,
            ticket: 0,
        };
        let id = Some(RequestId { client: session.client(), slot, xid });
        let arrival = Arrival { session: Some(session), id, ..Arrival::default() };
        block_on(mds.handle(&arrival, &Cred::ROOT, &MdsRequest::PosixLock(lock))).reply
    };
    assert_eq!(send(&a, 0, 1, PosixLockMode::Write), Ok(MdsReply::Done));
    assert_eq!(send(&a, 1, 2, PosixLockMode::Unlock), Ok(MdsReply::Done));
    assert_eq!(send(&a, 2, 3, PosixLockMode::Write), Ok(MdsReply::Done));
    assert_eq!(send(&a, 1, 2, PosixLockMode::Unlock), Ok(MdsReply::Done), "as it was answered");
    assert_eq!(send(&b, 0, 1, PosixLockMode::Write), Err(Errno::EAGAIN), "it is locked");
    assert_eq!(send(&a, 1, 4, PosixLockMode::Unlock), Ok(MdsReply::Done));
    assert_eq!(send(&a, 2, 3, PosixLockMode::Write), Ok(MdsReply::Done), "a copy of a lock");
    assert_eq!(send(&b, 0, 2, PosixLockMode::Write), Ok(MdsReply::Done), "it is free");
}

/// Place of a file with several names, for clients that see only a part of the tree.
#[test]
fn a_file_is_inside_only_as_long_as_it_has_a_name_there() {
    let mds = start(&Arc::default(), 1);
    let session = connect(&mds, 1);
    let xid = std::cell::Cell::new(0);
    let act = |request: MdsRequest<'_>| {
        xid.set(xid.get() + 1);
        block_on(ask(&mds, &session, xid.get(), request))
    };
    let make = |parent, name, mode| {
        let (umask, rdev, target, open, exclusive) = (0, 0, b"".as_slice(), None, true);
        let request =
            MdsRequest::Create { parent, name, mode, umask, rdev, target, open, exclusive };
        ino_of(act(request))
    };
    let jail = make(Ino::ROOT, b"jail", 0o040_755);
    let (root, inner) = (Ino::ROOT, make(jail, b"inner", 0o040_755));
    let is_inside = |ino| block_on(mds.is_within(jail, ino)).unwrap();
    let link =
        |ino, parent, name| assert!(act(MdsRequest::Link { ino, parent, name }).reply.is_ok());
    let unlink = |parent, name| assert!(act(MdsRequest::Unlink { parent, name }).reply.is_ok());
    let rename = |parent, name, new_parent, new_name| {
        let flags = Default::default();
        let request = MdsRequest::Rename { parent, name, new_parent, new_name, flags };
        assert!(act(request).reply.is_ok());
    };

    let out = make(jail, b"a", 0o100_644);
    link(out, root, b"a");
    assert!(is_inside(out), "it was made there");
    unlink(jail, b"a");
    assert!(!is_inside(out), "nothing there leads to it");
    // As git and mail servers do it: the new name first, then the old one goes.
    let stays = make(jail, b"tmp", 0o100_644);
    link(stays, jail, b"final");
    unlink(jail, b"tmp");
    assert!(is_inside(stays));
    link(stays, inner, b"final");
    unlink(jail, b"final");
    assert!(is_inside(stays));
    rename(inner, b"final", root, b"final");
    assert!(!is_inside(stays));
    rename(root, b"final", jail, b"back");
    assert!(is_inside(stays));
    // A name that is replaced goes, too.
    link(stays, root, b"b");
    make(jail, b"new", 0o100_644);
    rename(jail, b"new", jail, b"back");
    assert!(!is_inside(stays));
}

/// A client that connects anew does not know whether the answer on the old connection came: what
/// it is given it hears of with the copy, or it holds what it never returns.
#[test]
fn an_answer_that_is_said_again_brings_the_same_locks() {
    let mds = start(&Arc::default(), 1);
    let session = connect(&mds, 1);
    mds.listen(session.client());
    let epoch = 3;
    let numbers = block_on(ask(&mds, &session, 1, MdsRequest::GrantInodes { count: 8, epoch }));
    let Ok(MdsReply::Inodes { first, .. }) = numbers.reply else { panic!("{:?}", numbers.reply) };
    let first = Ino(first);
    let MdsRequest::Create { parent, umask, rdev, target, open, exclusive, .. } = FILE else {
        panic!("{FILE:?}")
    };
    let mode = 0o040_755;
    let (name, target) = (b"d".as_slice(), target);
    let make = MdsRequest::Create { parent, name, mode, umask, rdev, target, open, exclusive };
    let made = block_on(ask(&mds, &session, 2, make.clone()));
    let again = block_on(ask(&mds, &session, 2, make));
    assert!(!made.grants.is_empty() && made.grants == again.grants, "{again:?}");

    let directory = ino_of(made);
    let open = Some(OpenFlags { write: true, ..OpenFlags::default() });
    let placement = Placement { first: 0, osts: 1 };
    let (name, mode) = (b"f".as_slice(), 0o100_644);
    let (umask, exclusive) = (0, true);
    let request =
        MdsRequest::Create { parent: directory, name, mode, umask, rdev, target, open, exclusive };
    let mut changes = Vec::new();
    let change = Deferred {
        uid: 0,
        gid: 0,
        time: Timestamp::now(),
        made: Some((first, placement)),
        request,
    };
    change.encode(&mut changes).unwrap();
    let batch = MdsRequest::Batch { epoch, changes: &changes };
    let done = block_on(ask(&mds, &session, 3, batch.clone()));
    assert_eq!(done.reply, Ok(MdsReply::Batched { done: 1, failed: Vec::new() }));
    let is_data = |grant: &Grant| matches!(grant, Grant::Data { ino, .. } if *ino == first);
    assert!(done.grants.iter().any(is_data), "{:?}", done.grants);
    let again = block_on(ask(&mds, &session, 3, batch));
    assert_eq!((again.reply, again.grants), (done.reply, done.grants));
}

/// When an inode was read travels with changes, so it is neither refused nor waited for, and counts
/// for nothing if the inode has changed since.
#[test]
fn an_access_harms_no_change() {
    let mds = start(&Arc::default(), 1);
    let [reader, other] = [1, 2].map(|client| connect(&mds, client));
    mds.listen(other.client());
    let ino = ino_of(block_on(ask(&mds, &other, 1, FILE)));
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let changed = block_on(ask(&mds, &other, 2, MdsRequest::Setattr { ino, set: set.clone() }));
    let Ok(MdsReply::Attr(changed)) = changed.reply else { panic!("{:?}", changed.reply) };
    let batch = |xid, ago, request| {
        let secs = changed.ctime.secs - ago;
        let (time, made) = (Timestamp { secs, ..changed.ctime }, None);
        let mut changes = Vec::new();
        Deferred { uid: 0, gid: 0, time, made, request }.encode(&mut changes).unwrap();
        // The server has never heard of this epoch.
        let batch = MdsRequest::Batch { epoch: 7, changes: &changes };
        let reply = block_on(ask(&mds, &reader, xid, batch)).reply;
        let found = block_on(ask(&mds, &other, 3, MdsRequest::Getattr { ino })).reply;
        let Ok(MdsReply::Attr(found)) = found else { panic!("{found:?}") };
        (reply, found.atime)
    };
    let touch = |ino| MdsRequest::Touch { ino };
    let done = || Ok(MdsReply::Batched { done: 1, failed: Vec::new() });
    assert_eq!(batch(1, 1, touch(ino)), (done(), changed.atime), "it was changed since");
    assert_eq!(batch(2, 0, touch(Ino(999))), (done(), changed.atime), "it is gone");
    // The other client has the attributes, and answers no recall.
    let later = Timestamp { secs: changed.ctime.secs + 1, ..changed.ctime };
    assert_eq!(batch(3, -1, touch(ino)), (done(), later));
    assert_eq!(batch(4, -2, MdsRequest::Setattr { ino, set }).0, Err(Errno::ESTALE));
}

/// A scan asks the writers of all files that it comes to at once, and says what they answered.
#[test]
fn a_scan_glimpses_all_files_at_once() {
    let mds = start(&Arc::default(), 1);
    let [writer, reader] = [1, 2].map(|client| connect(&mds, client));
    let listening = mds.listen(writer.client());
    let write = OpenFlags { write: true, ..OpenFlags::default() };
    let files: Vec<Ino> = [&b"a"[..], b"b", b"c"]
        .iter()
        .zip(1..)
        .map(|(name, xid)| {
            let MdsRequest::Create { parent, mode, umask, rdev, target, exclusive, .. } = FILE
            else {
                panic!("{FILE:?}")
            };
            let open = Some(write);
            let create =
                MdsRequest::Create { parent, name, mode, umask, rdev, target, open, exclusive };
            ino_of(block_on(ask(&mds, &writer, xid, create)))
        })
        .collect();
    let directories = vec![(Ino::ROOT, 0)];
    // They may be that large by now.
    let filter = Some(Box::new(ScanFilter { size: (1 << 30, u64::MAX), ..ScanFilter::default() }));
    let scan = MdsRequest::Scan { directories, bytes_max: 1 << 16, filter };
    let mut scanning = pin!(ask(&mds, &reader, 1, scan));
    assert!(block_on(poll_once(&mut scanning)).is_none(), "it waits for the writer");
    let recalls = block_on(mds.recalls(writer.client(), listening)).unwrap();
    let size = |ino: Ino| (ino != files[1]).then_some((1000 + ino.0, Timestamp::default()));
    let answers = recalls.iter().filter_map(|recall| match *recall {
        Recall::Glimpse { ino, number } => Some(Return::Glimpse { ino, number, seen: size(ino) }),
        _ => None,
    });
    let answers: Vec<Return> = answers.collect();
    assert_eq!(answers.len(), files.len(), "{recalls:?}");
    mds.return_locks(writer.client(), &answers);
    let scanned = block_on(scanning).reply;
    let Ok(MdsReply::Scanned { pages, mut unsent }) = scanned else { panic!("{scanned:?}") };
    let entries = &pages[0].as_ref().unwrap().entries;
    assert!(entries.iter().all(|entry| entry.attr.as_ref().unwrap().size_on_ost), "{entries:?}");
    unsent.sort_unstable();
    let expected = [files[0], files[2]].map(|ino| (ino, 1000 + ino.0, Timestamp::default()));
    assert_eq!(unsent, expected);
}

/// A client that was last heard of in a run that nobody remembers has missed too many: it is told
/// that it was evicted.
#[test]
fn a_server_remembers_so_many_runs_and_no_more() {
    let kv = Arc::<MemoryKv>::default();
    let last = RUNS_MAX as u64 + 2;
    for run in 1..last {
        drop(start(&kv, run));
    }
    let mds = start(&kv, last);
    assert_eq!(mds.survived(1), None, "the oldest");
    for known in [2, 3, last - 1, last] {
        assert!(mds.survived(known).is_some(), "run {known}");
    }
}

/// Others have closed the file meanwhile, so its record says a size.
#[test]
fn a_writer_that_goes_on_after_an_eviction_takes_the_size_to_the_objects_again() {
    for with_locks in [false, true] {
        let kv = Arc::<MemoryKv>::default();
        let mds = crate::support::start(kv.clone(), 1000, with_locks);
        let (mut evicted, other) = (connect(&mds, 1), connect(&mds, 2));
        mds.listen(other.client());
        let file = ino_of(block_on(ask(&mds, &evicted, 1, FILE)));
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let open = MdsRequest::Open { ino: file, flags };
        assert!(block_on(ask(&mds, &evicted, 2, open.clone())).reply.is_ok());
        block_on(mds.goodbye(&evicted)).unwrap();
        evicted = connect(&mds, 1);

        let objects = ObjectAttr { size: 5, ..ObjectAttr::default() };
        let release =
            MdsRequest::Release { ino: file, write: true, wrote: Some((1, Some(objects))) };
        assert!(block_on(ask(&mds, &other, 1, open)).reply.is_ok());
        assert!(block_on(ask(&mds, &other, 2, release)).reply.is_ok());
        let attr = |mds: &Server, session: &Session, xid| {
            let getattr = MdsRequest::Getattr { ino: file };
            match block_on(ask(mds, session, xid, getattr)).reply {
                Ok(MdsReply::Attr(attr)) => (attr.size, attr.size_on_ost),
                reply => panic!("{reply:?}"),
            }
        };
        assert_eq!(attr(&mds, &other, 3), (5, false));

        let reopen =
            |writers| MdsRequest::Reopen { ino: file, readers: 1, writers, capability: None };
        let reopened = |writers| block_on(ask(&mds, &evicted, 1, reopen(writers))).reply;
        assert_eq!(reopened(0), Ok(MdsReply::Done));
        assert_eq!(attr(&mds, &other, 4), (5, false), "it only reads");
        // Others know the size, as attributes that they have cached.
        let mut reopening = Box::pin(ask(&mds, &evicted, 2, reopen(1)));
        assert_eq!(block_on(poll_once(&mut reopening)).is_none(), with_locks);
        let returned = Return::Bits { ino: file, bits: Bits::ALL, number: u64::MAX };
        mds.return_locks(other.client(), &[returned]);
        if with_locks {
            assert_eq!(block_on(&mut reopening).reply, Ok(MdsReply::Done));
        }
        drop(reopening);
        assert!(attr(&mds, &other, 5).1, "it may write");
        // It ends without a word, and so does the server.
        block_on(mds.goodbye(&evicted)).unwrap();
        assert!(attr(&mds, &other, 6).1, "nobody has said what it wrote");
        drop((mds, evicted, other));
        kv.lose_power();
        let mds = crate::support::start(kv, 2000, with_locks);
        for client in [1, 2] {
            mds.recovered(ClientId(client));
        }
        let new = connect(&mds, 3);
        assert!(attr(&mds, &new, 1).1, "nobody has said what it wrote");
    }
}

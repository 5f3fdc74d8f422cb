//! Who is told the attributes of a file whose writers know them better, who is late to give them back,
//! and what is said again after a restart.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::sessions::{FILE, ask, connect, ino_of, start};
use crate::support::{Nowhere, Server, make};
use futures_lite::future::{block_on, poll_once};
use glint_kv::memory::MemoryKv;
use glint_proto::deferred::Deferred;
use glint_proto::lock::{Bits, Grant, Range, Recall, Return};
use glint_proto::{
    Answer, Arrival, ClientId, Cred, FileType, FsResult, Ino, Layout, MdsReply, MdsRequest,
    MetadataService, ObjectAttr, OpenFlags, PosixLock, PosixLockHow, PosixLockMode, RenameFlags,
    RequestId, Session, SetAttr, Timestamp, XattrFlags, clock,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn open(ino: Ino) -> MdsRequest<'static> {
    MdsRequest::Open { ino, flags: OpenFlags { write: true, ..OpenFlags::default() } }
}

fn gives_attributes(answer: &Answer<MdsReply>) -> bool {
    let gives =
        |grant: &Grant| matches!(grant, Grant::Bits { bits, .. } if bits.contains(Bits::ATTR));
    answer.grants.iter().any(gives)
}

/// Bits of a file that come with an answer.
fn given(answer: &Answer<MdsReply>, file: Ino) -> Bits {
    answer.grants.iter().fold(Bits::NONE, |all, grant| match *grant {
        Grant::Bits { ino, bits, .. } if ino == file => all | bits,
        _ => all,
    })
}

/// A client looks at a file. Returns whether it is told the attributes, and that nobody else writes.
fn looks(mds: &Server, client: &Session, xid: u64, file: Ino) -> (bool, bool) {
    let bits = given(&block_on(ask(mds, client, xid, MdsRequest::Getattr { ino: file })), file);
    (bits.contains(Bits::ATTR), bits.contains(Bits::UNWRITTEN))
}

/// A lock on all data of a file.
fn lock_all(ino: Ino, write: bool) -> MdsRequest<'static> {
    MdsRequest::Lock { ino, range: Range::ALL, write, reclaim: false, capability: None }
}

fn reopen(ino: Ino) -> MdsRequest<'static> {
    MdsRequest::Reopen { ino, readers: 0, writers: 1, capability: None }
}

#[test]
fn a_writer_that_goes_on_after_an_eviction_is_seen_by_who_knows_the_attributes() {
    let mds = start(&Arc::default(), 1000);
    let (evicted, other) = (connect(&mds, 1), connect(&mds, 2));
    mds.listen(other.client());
    let file = ino_of(block_on(ask(&mds, &evicted, 1, FILE)));
    assert!(block_on(ask(&mds, &evicted, 2, open(file))).reply.is_ok());
    block_on(mds.goodbye(&evicted)).unwrap();
    let returns = connect(&mds, 1);
    // Nobody has said how large it is, but nobody writes it either.
    let getattr = MdsRequest::Getattr { ino: file };
    let seen = block_on(ask(&mds, &other, 1, getattr.clone()));
    assert!(matches!(&seen.reply, Ok(MdsReply::Attr(attr)) if attr.size_on_ost));
    assert!(gives_attributes(&seen));

    let mut reopening = Box::pin(ask(&mds, &returns, 1, reopen(file)));
    assert!(block_on(poll_once(&mut reopening)).is_none(), "the other one has cached them");
    let returned = Return::Bits { ino: file, bits: Bits::ALL, number: u64::MAX };
    mds.return_locks(other.client(), &[returned]);
    assert_eq!(block_on(reopening).reply, Ok(MdsReply::Done));
    assert!(!gives_attributes(&block_on(ask(&mds, &other, 2, getattr))));
}

/// The answer to its last close was lost with the server, so it says once more that it has the file
/// open.
#[test]
fn a_close_that_was_executed_before_a_restart_is_one_open_less_after_it() {
    let kv = Arc::<MemoryKv>::default();
    let mds = start(&kv, 1000);
    let (writer, other) = (connect(&mds, 1), connect(&mds, 2));
    let file = ino_of(block_on(ask(&mds, &writer, 1, FILE)));
    assert!(block_on(ask(&mds, &writer, 2, open(file))).reply.is_ok());
    let wrote = Some((1, Some(ObjectAttr { size: 5, ..ObjectAttr::default() })));
    let release = MdsRequest::Release { ino: file, write: true, wrote };
    assert!(block_on(ask(&mds, &writer, 3, release.clone())).reply.is_ok());
    drop((mds, writer, other));

    let mds = start(&kv, 2000);
    let (writer, other) = (connect(&mds, 1), connect(&mds, 2));
    mds.listen(other.client());
    assert_eq!(block_on(ask(&mds, &writer, 4, reopen(file))).reply, Ok(MdsReply::Done));
    [1, 2].into_iter().for_each(|client| mds.recovered(ClientId(client)));
    assert!(block_on(ask(&mds, &writer, 3, release)).reply.is_ok());
    let seen = block_on(ask(&mds, &other, 1, MdsRequest::Getattr { ino: file }));
    assert!(gives_attributes(&seen), "nobody has it open");
}

/// They may send again the end of a file that an OST has lost.
#[test]
fn no_end_is_said_while_clients_are_waited_for() {
    let kv = Arc::default();
    let mds = start(&kv, 1000);
    let writer = connect(&mds, 1);
    let file = ino_of(block_on(ask(&mds, &writer, 1, FILE)));
    assert!(block_on(ask(&mds, &writer, 2, open(file))).reply.is_ok());
    let wrote = Some((1, Some(ObjectAttr { size: 5, ..ObjectAttr::default() })));
    let release = MdsRequest::Release { ino: file, write: true, wrote };
    assert!(block_on(ask(&mds, &writer, 3, release)).reply.is_ok());
    let ends = |mds: &Server| block_on(mds.object_ends(Ino(0), 1)).unwrap().uses;
    let object = ends(&mds)[0].object;
    let end = |mds: &Server| block_on(mds.object_uses(&[object], 1)).unwrap()[0].end;
    assert_eq!(end(&mds), Some(5));
    drop((mds, writer));

    let mds = start(&kv, 2000);
    let _writer = connect(&mds, 1);
    assert!(mds.is_recovering() && ends(&mds).is_empty() && end(&mds).is_none());
    mds.recovered(ClientId(1));
    assert_eq!((ends(&mds).len(), end(&mds)), (1, Some(5)));
}

/// creat(2), or open(2) with O_CREAT alone.
fn create(name: &[u8], truncate: bool) -> MdsRequest<'_> {
    MdsRequest::Create {
        parent: Ino::ROOT,
        name,
        mode: 0o100_644,
        umask: 0,
        rdev: 0,
        target: b"",
        open: Some(OpenFlags { write: true, truncate, ..OpenFlags::default() }),
        exclusive: false,
    }
}

/// Asks in a slot of its own: its answer is kept until the slot is used again.
fn ask_in(
    mds: &Server,
    session: &Session,
    slot: usize,
    request: &MdsRequest<'_>,
) -> FsResult<MdsReply> {
    let id = Some(RequestId { client: session.client(), slot: slot as u16, xid: 1 });
    let now = Timestamp::now();
    let arrival = Arrival { session: Some(session), id, now, ..Arrival::default() };
    block_on(mds.handle(&arrival, &Cred::ROOT, request)).reply
}

/// The client has not heard the first answer, and takes no other one for its request.
#[test]
fn what_is_asked_again_after_a_restart_is_answered_as_before() {
    let kv = Arc::<MemoryKv>::default();
    let run = |number| {
        let mds = start(&kv, number);
        let client = connect(&mds, 1);
        mds.recovered(client.client());
        (mds, client)
    };
    let (mds, client) = run(1000);
    let mut said = Vec::new();
    let mut change = |request: MdsRequest<'static>| {
        let reply = ask_in(&mds, &client, said.len(), &request);
        assert!(request.is_modifying() && reply.is_ok(), "{request:?}: {reply:?}");
        said.push((request, reply.clone()));
        match reply {
            Ok(MdsReply::Attr(attr) | MdsReply::Opened { attr, .. }) => (attr.ino, attr.layout),
            _ => (Ino(0), Layout::default()),
        }
    };
    let parent = Ino::ROOT;
    change(MdsRequest::SetLayout { ino: parent, layout: Layout::default() });
    change(make(parent, b"dir", FileType::Directory, 0o755));
    change(make(parent, b"symlink", FileType::Symlink, 0o777));
    change(MdsRequest::Tmpfile { parent, mode: 0o600, umask: 0 });
    let (new, _) = change(create(b"new", true));
    let wrote = Some((1, Some(ObjectAttr { size: 5, ..ObjectAttr::default() })));
    change(MdsRequest::Release { ino: new, write: true, wrote });

    let (ino, from) = change(FILE);
    // Its first writer, and two that cut it.
    change(create(b"f", false));
    change(create(b"f", true));
    let cut = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
    change(MdsRequest::Open { ino, flags: cut });
    change(MdsRequest::AddOpens { ino, readers: 1 });
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    change(MdsRequest::Setattr { ino, set });
    let (name, value, flags) = (b"user.a".as_slice(), b"1".as_slice(), XattrFlags::default());
    change(MdsRequest::Setxattr { ino, name, value, flags });
    change(MdsRequest::Removexattr { ino, name });
    let plan = MdsRequest::PlanLayout { ino, layout: from, avoid: Vec::new() };
    let [(_, to), (_, layout)] = [plan.clone(), plan].map(&mut change);
    let lock =
        MdsRequest::Lock { ino, range: Range::ALL, write: true, reclaim: false, capability: None };
    assert!(block_on(ask(&mds, &client, 2, lock)).reply.is_ok());
    change(MdsRequest::SwitchLayout { ino, from, to });
    change(MdsRequest::DropLayout { ino, layout });
    let (owner, range, mode) = (5, Range::ALL, PosixLockMode::Write);
    let how = PosixLockHow::Try;
    let lock = PosixLock { ino, owner, pid: 5, range, mode, flock: true, how, ticket: 0 };
    change(MdsRequest::PosixLock(lock));
    let time = Timestamp { secs: Timestamp::now().secs + 60, nanos: 0 };
    let request = MdsRequest::Touch { ino };
    let mut changes = Vec::new();
    Deferred { uid: 0, gid: 0, time, made: None, request }.encode(&mut changes).unwrap();
    change(MdsRequest::Batch { epoch: 1, changes: changes.leak() });

    change(MdsRequest::Link { ino, parent, name: b"link" });
    let mut rename = |name, new_name, flags| {
        change(MdsRequest::Rename { parent, name, new_parent: parent, new_name, flags });
    };
    rename(b"link".as_slice(), b"moved".as_slice(), RenameFlags::default());
    rename(b"moved", b"new", RenameFlags::default());
    rename(b"new", b"symlink", RenameFlags { exchange: true, ..RenameFlags::default() });
    change(MdsRequest::Unlink { parent, name: b"new" });
    change(MdsRequest::Rmdir { parent, name: b"dir" });
    drop((mds, client));

    let (mds, client) = run(2000);
    for (slot, (request, before)) in said.iter().enumerate() {
        assert_eq!(ask_in(&mds, &client, slot, request), *before, "{request:?}");
    }
}

/// A copy of an object is lost while no other is there.
#[test]
fn a_file_that_nobody_has_cut_is_no_smaller_for_what_a_close_says() {
    let mds = start(&Arc::default(), 1000);
    let writer = connect(&mds, 1);
    let file = ino_of(block_on(ask(&mds, &writer, 1, FILE)));
    let mut number = 1;
    let mut ask = |request| {
        number += 1;
        block_on(ask(&mds, &writer, number, request)).reply.unwrap()
    };
    for (close, (size, is_known)) in (1..).zip([(100, true), (40, false), (100, true)]) {
        ask(open(file));
        let wrote = Some((close, Some(ObjectAttr { size, ..ObjectAttr::default() })));
        ask(MdsRequest::Release { ino: file, write: true, wrote });
        let MdsReply::Attr(attr) = ask(MdsRequest::Getattr { ino: file }) else { panic!() };
        assert_eq!((attr.size, attr.size_on_ost), (100, !is_known));
    }
}

/// It has asked the objects before they are cut, and says so after the MDS has heard of the cut.
#[test]
fn a_close_that_overtakes_a_cut_by_who_opens_to_read_is_not_believed() {
    let mds = start(&Arc::default(), 1000);
    let client = connect(&mds, 1);
    let file = ino_of(block_on(ask(&mds, &client, 1, FILE)));
    let mut number = 1;
    let mut ask = |request| {
        number += 1;
        block_on(ask(&mds, &client, number, request)).reply.unwrap()
    };
    let mut is_known = |write| {
        ask(open(file));
        let flags = OpenFlags { read: true, write, truncate: true, ..OpenFlags::default() };
        ask(MdsRequest::Open { ino: file, flags });
        for (number, size, write) in [(1, 4, true), (2, 0, write)] {
            let wrote = Some((number, Some(ObjectAttr { size, ..ObjectAttr::default() })));
            ask(MdsRequest::Release { ino: file, write, wrote });
        }
        let MdsReply::Attr(attr) = ask(MdsRequest::Getattr { ino: file }) else { panic!() };
        assert_eq!(attr.size, 0);
        !attr.size_on_ost
    };
    // Only who may write is believed.
    assert_eq!([false, true, false].map(&mut is_known), [false, true, false]);
}

/// Its objects are cut after the MDS has been asked.
#[test]
fn who_looks_while_a_size_is_being_set_does_not_keep_what_it_sees() {
    let mds = start(&Arc::default(), 1000);
    let (setter, other) = (connect(&mds, 1), connect(&mds, 2));
    let listening = mds.listen(setter.client());
    mds.listen(other.client());
    let file = ino_of(block_on(ask(&mds, &setter, 1, FILE)));
    // It keeps the lock to write that comes with the open.
    assert!(block_on(ask(&mds, &setter, 2, open(file))).reply.is_ok());
    let wrote = Some((1, Some(ObjectAttr { size: 100, ..ObjectAttr::default() })));
    let release = MdsRequest::Release { ino: file, write: true, wrote };
    assert!(block_on(ask(&mds, &setter, 3, release)).reply.is_ok());
    let set = SetAttr { size: Some(10), ..SetAttr::default() };
    let setattr = MdsRequest::Setattr { ino: file, set };
    assert!(block_on(ask(&mds, &setter, 4, setattr)).reply.is_ok());

    let mut looking = Box::pin(ask(&mds, &other, 1, MdsRequest::Getattr { ino: file }));
    assert!(block_on(poll_once(&mut looking)).is_none(), "who may write is asked");
    let recalls = block_on(mds.recalls(setter.client(), listening)).unwrap();
    for recall in recalls {
        if let Recall::Glimpse { ino, number } = recall {
            let seen = Some((100, Timestamp::default()));
            mds.return_locks(setter.client(), &[Return::Glimpse { ino, number, seen }]);
        }
    }
    let seen = block_on(looking);
    assert!(matches!(seen.reply, Ok(MdsReply::Glimpsed { .. })), "{seen:?}");
    assert!(!gives_attributes(&seen));
}

/// Its data is copied elsewhere (`glint restripe`), so it is locked without being opened.
#[test]
fn who_locks_a_file_to_write_waits_for_who_relies_on_it_that_nobody_does() {
    let mds = start(&Arc::default(), 1000);
    let [writer, other, third] = [1, 2, 3].map(|number| connect(&mds, number));
    let file = ino_of(block_on(ask(&mds, &writer, 1, FILE)));
    let [_, listening, _] = [&writer, &other, &third].map(|client| mds.listen(client.client()));
    assert_eq!(looks(&mds, &other, 1, file), (true, true));
    let to_read = block_on(ask(&mds, &third, 1, lock_all(file, false))).reply;
    let Ok(MdsReply::Locked(to_read)) = to_read else { panic!("{to_read:?}") };

    for gives_up in [true, false] {
        let mut locking = Box::pin(ask(&mds, &writer, 2, lock_all(file, true)));
        assert!(block_on(poll_once(&mut locking)).is_none());
        assert_eq!(looks(&mds, &third, 2, file), (true, false), "somebody wants to write");
        if gives_up {
            drop(locking);
            assert_eq!(looks(&mds, &third, 3, file), (true, true));
            continue;
        }
        let recalls = block_on(mds.recalls(other.client(), listening)).unwrap();
        let [Recall::Bits { ino, bits: Bits::UNWRITTEN, number }] = recalls[..] else {
            panic!("{recalls:?}")
        };
        let returned = |number| Return::Bits { ino, bits: Bits::UNWRITTEN, number };
        mds.return_locks(other.client(), &[returned(number)]);
        assert!(block_on(poll_once(&mut locking)).is_none(), "the third one has it, too");
        mds.return_locks(third.client(), &[returned(u64::MAX)]);
        // Now it waits for the third one, which reads.
        assert!(block_on(poll_once(&mut locking)).is_none());
        assert_eq!(looks(&mds, &other, 2, file), (true, false), "it is the next one");
        mds.return_locks(third.client(), &[Return::Data { ino, number: to_read.number }]);
        let to_write = block_on(locking).reply;
        let Ok(MdsReply::Locked(to_write)) = to_write else { panic!("{to_write:?}") };
        assert_eq!(looks(&mds, &other, 3, file), (true, false));
        let number = to_write.number;
        mds.return_locks(writer.client(), &[Return::Data { ino, number }]);
        assert_eq!(looks(&mds, &other, 4, file), (true, true));
    }
}

/// The lock to write, which is next, has nobody asked once more.
#[test]
fn who_opens_or_cuts_a_file_has_its_attributes_and_unwritten_recalled_at_once() {
    let mds = start(&Arc::default(), 1000);
    let (writer, other) = (connect(&mds, 1), connect(&mds, 2));
    let file = ino_of(block_on(ask(&mds, &writer, 1, FILE)));
    mds.listen(writer.client());
    let listening = mds.listen(other.client());
    let set = SetAttr { size: Some(10), ..SetAttr::default() };
    for (xid, request) in (2..).zip([MdsRequest::Setattr { ino: file, set }, open(file)]) {
        assert_eq!(looks(&mds, &other, xid, file), (true, true));
        let mut changing = Box::pin(ask(&mds, &writer, xid, request));
        assert!(block_on(poll_once(&mut changing)).is_none());
        let recalls = block_on(mds.recalls(other.client(), listening)).unwrap();
        let [Recall::Bits { ino, bits, number }] = recalls[..] else { panic!("{recalls:?}") };
        assert_eq!(bits, Bits::ATTR | Bits::UNWRITTEN);
        mds.return_locks(other.client(), &[Return::Bits { ino, bits, number }]);
        assert!(block_on(changing).reply.is_ok());
    }
}

#[test]
fn who_makes_a_file_is_told_that_nobody_else_writes_it_and_nothing_like_that_of_a_directory() {
    let mds = start(&Arc::default(), 1000);
    let maker = connect(&mds, 1);
    mds.listen(maker.client());
    for (xid, mode, is_told) in [(1, 0o100_644, true), (2, 0o040_755, false)] {
        let name = if is_told { b"file" } else { b"dire" };
        let (umask, rdev, target, open) = (0, 0, b"".as_slice(), None);
        let (parent, exclusive) = (Ino::ROOT, true);
        let make = MdsRequest::Create { parent, name, mode, umask, rdev, target, open, exclusive };
        let answer = block_on(ask(&mds, &maker, xid, make));
        let Ok(MdsReply::Attr(attr)) = &answer.reply else { panic!("{:?}", answer.reply) };
        let bits = given(&answer, attr.ino);
        assert!(bits.contains(Bits::ATTR));
        assert_eq!(bits.contains(Bits::UNWRITTEN), is_told);
    }
}

/// Of two clients that owe something, one has a request at a disk that stands still.
#[test]
fn a_disk_that_stands_still_holds_only_debts_of_clients_with_a_request_under_way() {
    let begun = Instant::now();
    clock::simulate(Some(begun));
    let mds = start(&Arc::default(), 1000);
    let [writer, waits, idle] = [1, 2, 3].map(|client| connect(&mds, client));
    let file = ino_of(block_on(ask(&mds, &writer, 1, FILE)));
    for client in [&waits, &idle] {
        mds.listen(client.client());
        assert!(looks(&mds, client, 1, file).0);
    }
    let mut opening = Box::pin(ask(&mds, &writer, 2, open(file)));
    assert!(block_on(poll_once(&mut opening)).is_none());
    let pass = |from: u64, to: u64| {
        for tenths in from * 10..to * 10 {
            clock::simulate(Some(begun + Duration::from_millis(100) * tenths as u32));
            mds.time_passes();
            mds.hold_debts(&Nowhere);
            for client in [&writer, &waits, &idle] {
                mds.heard(client);
            }
        }
        block_on(mds.expire(&Nowhere)).unwrap();
    };
    let at_disk = waits.enter().unwrap();
    pass(0, 40);
    assert!(idle.is_over() && !waits.is_over());
    pass(40, 200);
    drop(at_disk);
    pass(200, 229);
    assert!(!waits.is_over(), "it may answer only now");
    pass(229, 231);
    assert!(waits.is_over() && !writer.is_over());
    clock::simulate(None);
}

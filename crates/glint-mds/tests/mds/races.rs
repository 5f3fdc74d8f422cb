//! Operations that run at the same time, each stopped between two reads while another one is made.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{ROOT, make};
use futures_lite::future::{block_on, poll_once, yield_now};
use glint_kv::memory::MemoryKv;
use glint_kv::{Batch, Keyspace, Kv, KvError, Precondition, TransactionId};
use glint_mds::{InodeRecord, Mds};
use glint_proto::deferred::Deferred;
use glint_proto::lock::{Bits, Return};
use glint_proto::{
    Answer, Arrival, ClientId, Cred, Errno, FileType, FsResult, Ino, MdsReply, MdsRequest,
    MetadataService, OpenFlags, Owner, Placement, RequestId, Session, SetAttr, Timestamp,
    XattrFlags,
};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// An engine in memory, one read of which takes its time after it has read.
#[derive(Default)]
struct Pausing {
    kv: MemoryKv,
    /// The keyspace of that read, and how its key ends.
    at: Mutex<Option<(Keyspace, Vec<u8>)>>,
    /// Whether the next commit pauses before it is made.
    pauses_commit: AtomicBool,
}

impl Pausing {
    /// Has the next read of such a key pause.
    fn pause_after(&self, keyspace: Keyspace, key_end: &[u8]) {
        *self.at.lock().unwrap() = Some((keyspace, key_end.to_vec()));
    }

    async fn after_read(&self, keyspace: Keyspace, is_read: impl Fn(&[u8]) -> bool) {
        let pauses = |(at, key): &mut (Keyspace, Vec<u8>)| *at == keyspace && is_read(key);
        let pause = self.at.lock().unwrap().take_if(pauses);
        if pause.is_some() {
            yield_now().await;
        }
    }
}

impl Kv for Pausing {
    type Value = Vec<u8>;

    async fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        let value = self.kv.get(keyspace, key).await;
        self.after_read(keyspace, |end| key.ends_with(end)).await;
        value
    }

    async fn multi_get(
        &self,
        keyspace: Keyspace,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, KvError> {
        let values = self.kv.multi_get(keyspace, keys).await;
        self.after_read(keyspace, |end| keys.iter().any(|key| key.ends_with(end))).await;
        values
    }

    async fn scan_each(
        &self,
        keyspace: Keyspace,
        from: &[u8],
        to: &[u8],
        limit: usize,
        visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), KvError> {
        let scanned = self.kv.scan_each(keyspace, from, to, limit, visit).await;
        self.after_read(keyspace, |key| (from..to).contains(&key)).await;
        scanned
    }

    async fn commit(
        &self,
        batch: Batch,
        preconditions: &[Precondition],
    ) -> Result<TransactionId, KvError> {
        if self.pauses_commit.swap(false, Ordering::AcqRel) {
            yield_now().await;
        }
        self.kv.commit(batch, preconditions).await
    }

    async fn sync(&self) -> Result<(), KvError> {
        self.kv.sync().await
    }

    fn durable(&self) -> TransactionId {
        self.kv.durable()
    }

    fn accepted(&self) -> TransactionId {
        self.kv.accepted()
    }
}

type Server = Mds<Arc<Pausing>>;

fn start(locks: bool) -> (Arc<Pausing>, Server) {
    let kv = Arc::<Pausing>::default();
    (kv.clone(), crate::support::start(kv, 1, locks))
}

/// Executes a request of the mount of this process.
async fn ask(mds: &Server, cred: &Cred, request: MdsRequest<'_>) -> FsResult<MdsReply> {
    let arrival = Arrival { now: Timestamp::now(), ..Arrival::default() };
    mds.handle(&arrival, cred, &request).await.reply
}

fn connect(mds: &Server, client: u64) -> Arc<Session> {
    let owner = Owner { certificate: None, secret: client.into() };
    block_on(mds.connect(ClientId(client), owner, "host", "/mnt")).unwrap().1
}

/// Executes a request of a client.
async fn send(
    mds: &Server,
    session: &Session,
    (slot, xid): (u16, u64),
    request: MdsRequest<'_>,
) -> Answer<MdsReply> {
    let id = Some(RequestId { client: session.client(), slot, xid });
    let now = Timestamp::now();
    let arrival = Arrival { session: Some(session), id, now, ..Arrival::default() };
    mds.handle(&arrival, &Cred::ROOT, &request).await
}

fn ino_of(reply: FsResult<MdsReply>) -> Ino {
    match reply {
        Ok(MdsReply::Attr(attr) | MdsReply::Opened { attr, .. }) => attr.ino,
        other => panic!("{other:?}"),
    }
}

fn make_file(mds: &Server, name: &[u8]) -> Ino {
    ino_of(block_on(ask(mds, &ROOT, make(Ino::ROOT, name, FileType::Regular, 0o644))))
}

#[test]
fn a_name_that_is_replaced_while_it_is_looked_up_is_found() {
    let (kv, mds) = start(false);
    let (new, _old) = (make_file(&mds, b"new"), make_file(&mds, b"name"));
    let look = MdsRequest::Lookup { parent: Ino::ROOT, name: b"name" };

    kv.pause_after(Keyspace::Entry, b"name");
    let mut looking = pin!(ask(&mds, &ROOT, look.clone()));
    assert!(block_on(poll_once(&mut looking)).is_none());
    let rename = MdsRequest::Rename {
        parent: Ino::ROOT,
        name: b"new",
        new_parent: Ino::ROOT,
        new_name: b"name",
        flags: Default::default(),
    };
    block_on(ask(&mds, &ROOT, rename)).unwrap();
    assert_eq!(ino_of(block_on(looking)), new);

    kv.pause_after(Keyspace::Entry, b"name");
    let mut looking = pin!(ask(&mds, &ROOT, look));
    assert!(block_on(poll_once(&mut looking)).is_none());
    let unlink = MdsRequest::Unlink { parent: Ino::ROOT, name: b"name" };
    block_on(ask(&mds, &ROOT, unlink)).unwrap();
    assert_eq!(block_on(looking), Err(Errno::ENOENT));
}

#[test]
fn attributes_that_another_client_changed_by_itself_are_not_told() {
    let (kv, mds) = start(true);
    let [maker, reader] = [1, 2].map(|client| connect(&mds, client));
    mds.listen(maker.client());
    let by_maker = |xid, request| block_on(send(&mds, &maker, (0, xid), request)).reply;
    by_maker(1, MdsRequest::GrantInodes { count: 8, epoch: 3 }).unwrap();
    let file = ino_of(by_maker(2, make(Ino::ROOT, b"file", FileType::Regular, 0o644)));
    let directory = ino_of(by_maker(3, make(Ino::ROOT, b"dir", FileType::Directory, 0o755)));

    kv.pause_after(Keyspace::Inode, &file.key());
    let list = MdsRequest::Readdir { ino: Ino::ROOT, cookie: 0, bytes_max: 1 << 16, plus: true };
    let mut listing = pin!(send(&mds, &reader, (0, 1), list));
    assert!(block_on(poll_once(&mut listing)).is_none());
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    by_maker(4, MdsRequest::Setattr { ino: directory, set }).unwrap();
    let returned = Return::Bits { ino: directory, bits: Bits::ALL, number: u64::MAX };
    mds.return_locks(maker.client(), &[returned]);
    let Ok(MdsReply::Dir(page)) = block_on(listing).reply else { panic!("it is listed") };
    let told = |ino| page.entries.iter().find(|entry| entry.ino == ino).unwrap().attr.clone();
    assert!(told(file).is_some() && told(directory).is_none(), "{page:?}");
}

fn regular(name: &[u8]) -> MdsRequest<'_> {
    make(Ino::ROOT, name, FileType::Regular, 0o644)
}

#[test]
fn a_directory_does_not_go_back_in_time() {
    let (kv, mds) = start(false);
    let old = make_file(&mds, b"old");
    let at = |secs, request| {
        let now = Timestamp { secs, nanos: 0 };
        let mds = &mds;
        async move {
            let arrival = Arrival { now, ..Arrival::default() };
            mds.handle(&arrival, &ROOT, &request).await.reply
        }
    };
    let times = || match block_on(ask(&mds, &ROOT, MdsRequest::Getattr { ino: Ino::ROOT })) {
        Ok(MdsReply::Attr(attr)) => (attr.mtime.secs, attr.ctime.secs),
        other => panic!("{other:?}"),
    };
    let base = times().1;
    // One that began before, and had to wait.
    block_on(at(base - 50, regular(b"early"))).unwrap();
    assert_eq!(times(), (base, base));
    let quick = [&b"1"[..], b"2", b"3", b"4"];
    let of_old = || (Keyspace::Inode, old.key().to_vec());
    let parent = Ino::ROOT;
    let slow = [
        ((Keyspace::Entry, b"slow".to_vec()), regular(b"slow")),
        (of_old(), MdsRequest::Link { ino: old, parent, name: b"link" }),
        (
            of_old(),
            MdsRequest::Rename {
                parent,
                name: b"old",
                new_parent: parent,
                new_name: b"renamed",
                flags: Default::default(),
            },
        ),
        (of_old(), MdsRequest::Unlink { parent, name: b"renamed" }),
    ];
    for ((((keyspace, key), request), quick), round) in slow.into_iter().zip(quick).zip(1..) {
        let (late, early) = (base + 100 * round, base + 100 * round - 50);
        kv.pause_after(keyspace, &key);
        let mut changing = pin!(at(early, request));
        assert!(block_on(poll_once(&mut changing)).is_none());
        block_on(at(late, regular(quick))).unwrap();
        assert_eq!(times(), (late, late));
        block_on(changing).unwrap();
        assert_eq!(times(), (late, late), "{round}");
        // As the engine has it, too.
        let stored = block_on(kv.get(Keyspace::Inode, &Ino::ROOT.key())).unwrap().unwrap();
        let stored = InodeRecord::decode(Ino::ROOT, &stored).unwrap().attr;
        assert_eq!((stored.mtime.secs, stored.ctime.secs), (late, late), "{round}");
    }
}

#[test]
fn a_directory_is_opened_before_it_goes_or_not_at_all() {
    let (kv, mds) = start(false);
    let request = make(Ino::ROOT, b"dir", FileType::Directory, 0o755);
    let ino = ino_of(block_on(ask(&mds, &ROOT, request)));
    kv.pause_after(Keyspace::Inode, &ino.key());
    let flags = OpenFlags { read: true, ..OpenFlags::default() };
    let mut opening = pin!(ask(&mds, &ROOT, MdsRequest::Open { ino, flags }));
    assert!(block_on(poll_once(&mut opening)).is_none());
    let remove = MdsRequest::Rmdir { parent: Ino::ROOT, name: b"dir" };
    let mut removing = pin!(ask(&mds, &ROOT, remove));
    assert!(block_on(poll_once(&mut removing)).is_none(), "it waits for the open");
    block_on(opening).unwrap();
    block_on(removing).unwrap();
    assert_eq!(ino_of(block_on(ask(&mds, &ROOT, MdsRequest::Getattr { ino }))), ino, "it is open");
}

#[test]
fn a_mode_of_a_list_that_is_gone_permits_nothing() {
    let acl = |entries: &[(u16, u16, u32)]| {
        let mut bytes = vec![2, 0, 0, 0];
        for (tag, permissions, id) in entries {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&permissions.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    };
    // The group may do nothing; the mask, which the mode shows instead, would let it in.
    let named = acl(&[(1, 7, !0), (2, 5, 77), (4, 0, !0), (16, 5, !0), (32, 0, !0)]);
    for (group, expected) in [(0, Errno::EACCES), (5, Errno::ENOENT)] {
        let (kv, mds) = start(false);
        let request = make(Ino::ROOT, b"dir", FileType::Directory, 0o755);
        let ino = ino_of(block_on(ask(&mds, &ROOT, request)));
        let set = |mds: &Server, value: &[u8]| {
            let (name, flags) = (b"system.posix_acl_access".as_slice(), XattrFlags::default());
            block_on(ask(mds, &ROOT, MdsRequest::Setxattr { ino, name, value, flags })).unwrap();
        };
        set(&mds, &named);
        drop(mds);
        // Another run has not cached the record.
        let mds = crate::support::start(kv.clone(), 2, false);
        let member = Cred { uid: 5, gid: 0, groups: None };
        kv.pause_after(Keyspace::Inode, &ino.key());
        let look = MdsRequest::Lookup { parent: ino, name: b"absent" };
        let mut looking = pin!(ask(&mds, &member, look));
        assert!(block_on(poll_once(&mut looking)).is_none());
        set(&mds, &acl(&[(1, 7, !0), (4, group, !0), (32, 0, !0)]));
        assert_eq!(block_on(looking), Err(expected));
    }
}

#[test]
fn two_batches_of_a_client_make_an_inode_of_one_number_once() {
    let (kv, mds) = start(true);
    let maker = connect(&mds, 1);
    mds.listen(maker.client());
    let epoch = 3;
    let numbers = send(&mds, &maker, (0, 1), MdsRequest::GrantInodes { count: 8, epoch });
    let Ok(MdsReply::Inodes { first, .. }) = block_on(numbers).reply else { panic!("no numbers") };
    let changes = [b"one".as_slice(), b"other"].map(|name| {
        let made = Some((Ino(first), Placement { first: 0, osts: 1 }));
        let request = make(Ino::ROOT, name, FileType::Regular, 0o644);
        let mut changes = Vec::new();
        let change = Deferred { uid: 0, gid: 0, time: Timestamp::now(), made, request };
        change.encode(&mut changes).unwrap();
        changes
    });
    kv.pause_after(Keyspace::Inode, &Ino(first).key());
    let [one, other] = &changes;
    let one = MdsRequest::Batch { epoch, changes: one };
    let other = MdsRequest::Batch { epoch, changes: other };
    let mut one = pin!(send(&mds, &maker, (0, 2), one));
    assert!(block_on(poll_once(&mut one)).is_none());
    let mut other = pin!(send(&mds, &maker, (1, 3), other));
    assert!(block_on(poll_once(&mut other)).is_none(), "it waits for the first one");
    let done = |failed| Ok(MdsReply::Batched { done: 1, failed });
    assert_eq!(block_on(one).reply, done(Vec::new()));
    assert_eq!(block_on(other).reply, done(vec![(0, Errno::EEXIST)]));
}

#[test]
fn layouts_that_are_switched_are_seen_when_moves_are_doubted() {
    let (kv, mds) = start(false);
    let ino = make_file(&mds, b"file");
    let layout_of = |reply| match reply {
        Ok(MdsReply::Attr(attr)) => attr.layout,
        other => panic!("{other:?}"),
    };
    let ask_root = |request| ask(&mds, &ROOT, request);
    let layout = || layout_of(block_on(ask_root(MdsRequest::Getattr { ino })));
    let plan = |layout| {
        let plan = MdsRequest::PlanLayout { ino, layout, avoid: Vec::new() };
        layout_of(block_on(ask_root(plan)))
    };
    let from = layout();
    let [to, late] = [plan(from), plan(from)];
    kv.pauses_commit.store(true, Ordering::Release);
    let mut switching = pin!(ask_root(MdsRequest::SwitchLayout { ino, from, to }));
    assert!(block_on(poll_once(&mut switching)).is_none());
    let mut doubting = pin!(mds.doubt_moves());
    assert!(block_on(poll_once(&mut doubting)).is_none(), "it may be switched yet");
    block_on(switching).unwrap();
    block_on(doubting);
    assert_eq!(layout(), to);
    let late = block_on(ask_root(MdsRequest::SwitchLayout { ino, from: to, to: late }));
    assert_eq!(late, Err(Errno::EAGAIN));
}

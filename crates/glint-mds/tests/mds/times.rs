//! Modification times that programs set, of files that are open to write or closed late.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::sessions::{FILE, ask, connect, ino_of, start};
use crate::support::Server;
use futures_lite::future::block_on;
use glint_proto::deferred::Deferred;
use glint_proto::{
    Attr, Ino, MdsReply, MdsRequest, ObjectAttr, OpenFlags, Session, SetAttr, SetTime, Timestamp,
};
use std::cell::Cell;
use std::sync::Arc;

const SET: Timestamp = Timestamp { secs: 1000, nanos: 1 };
const WRITTEN: Timestamp = Timestamp { secs: 2000, nanos: 2 };
const NONE: OpenFlags = OpenFlags {
    read: false,
    write: false,
    truncate: false,
    append: false,
    exec: false,
    kill_suidgid: false,
};

/// A server with a file, and two clients.
struct World {
    mds: Server,
    clients: [Arc<Session>; 2],
    xid: Cell<u64>,
    ino: Ino,
}

impl World {
    fn new() -> World {
        let mds = start(&Arc::default(), 1);
        let clients = [connect(&mds, 1), connect(&mds, 2)];
        let ino = ino_of(block_on(ask(&mds, &clients[0], 1, FILE)));
        let world = World { mds, clients, xid: Cell::new(1), ino };
        world.ask(0, MdsRequest::GrantInodes { count: 8, epoch: 3 });
        world
    }

    fn ask(&self, client: usize, request: MdsRequest<'_>) -> MdsReply {
        self.xid.set(self.xid.get() + 1);
        block_on(ask(&self.mds, &self.clients[client], self.xid.get(), request)).reply.unwrap()
    }

    /// The first client tells this from its write-back log.
    fn batch(&self, time: Timestamp, request: MdsRequest<'_>) {
        let mut changes = Vec::new();
        let change = Deferred { uid: 0, gid: 0, time, made: None, request };
        change.encode(&mut changes).unwrap();
        let done = self.ask(0, MdsRequest::Batch { epoch: 3, changes: &changes });
        assert_eq!(done, MdsReply::Batched { done: 1, failed: Vec::new() });
    }

    fn open(&self, client: usize, flags: OpenFlags) -> Attr {
        let opened = self.ask(client, MdsRequest::Open { ino: self.ino, flags });
        let MdsReply::Attr(attr) = opened else { panic!("{opened:?}") };
        attr
    }

    fn to_write(&self, client: usize) -> Attr {
        self.open(client, OpenFlags { write: true, ..NONE })
    }

    fn close(&self, client: usize, wrote: Option<Timestamp>) {
        let objects = |mtime| ObjectAttr { size: 5, blocks: 8, mtime, ctime: mtime };
        let wrote = wrote.map(|mtime| (self.xid.get(), Some(objects(mtime))));
        self.ask(client, MdsRequest::Release { ino: self.ino, write: true, wrote });
    }

    fn set(&self) -> MdsRequest<'static> {
        let set = SetAttr { mtime: Some(SetTime::At(SET)), ..SetAttr::default() };
        MdsRequest::Setattr { ino: self.ino, set }
    }

    /// Said before data changes.
    fn announcement(&self) -> MdsRequest<'static> {
        let set = SetAttr { kill_capability: true, ..SetAttr::default() };
        MdsRequest::Setattr { ino: self.ino, set }
    }

    /// Time, whether it was set, and whether the objects know the size.
    fn times(&self) -> (Timestamp, bool, bool) {
        let MdsReply::Attr(attr) = self.ask(1, MdsRequest::Getattr { ino: self.ino }) else {
            panic!()
        };
        (attr.mtime, attr.mtime_set, attr.size_on_ost)
    }
}

#[test]
fn a_time_that_was_set_stays_until_a_writer_says_that_data_changes() {
    let world = World::new();
    world.to_write(0);
    world.close(0, Some(WRITTEN));
    assert_eq!(world.times(), (WRITTEN, false, false));
    world.ask(1, world.set());
    assert_eq!(world.times(), (SET, true, false));
    let opened = world.to_write(0);
    assert_eq!((opened.mtime, opened.mtime_set, opened.size_on_ost), (SET, true, true));
    world.close(0, None);
    assert_eq!(world.times(), (SET, true, false), "nothing was written");
    world.to_write(0);
    // Also while it is open.
    world.ask(1, world.set());
    assert_eq!(world.times(), (SET, true, true));
    world.ask(1, world.announcement());
    assert_eq!(world.times(), (SET, true, true), "the other client does not write it");
    world.ask(0, world.announcement());
    let (now, is_set, _) = world.times();
    assert!(now > WRITTEN && !is_set);
    // From here on the objects are told.
    world.ask(0, world.set());
    assert_eq!(world.times(), (SET, false, true));
}

#[test]
fn a_close_that_comes_after_a_time_was_set_brings_no_older_one() {
    let world = World::new();
    world.to_write(0);
    world.batch(SET, world.set());
    assert_eq!(world.times(), (SET, true, true), "the objects do not know it");
    world.close(0, Some(WRITTEN));
    assert_eq!(world.times(), (SET, true, false));
    world.to_write(0);
    world.batch(SET, world.announcement());
    world.batch(WRITTEN, world.set());
    world.batch(WRITTEN, world.announcement());
    assert_eq!(world.times(), (WRITTEN, false, true));
    world.close(0, Some(WRITTEN));
    assert_eq!(world.times(), (WRITTEN, false, false));
}

#[test]
fn a_time_that_was_set_ends_with_the_data() {
    let world = World::new();
    world.ask(0, world.set());
    let size = SetAttr { size: Some(3), ..SetAttr::default() };
    let truncate = MdsRequest::Setattr { ino: world.ino, set: size };
    world.ask(0, truncate);
    assert!(!world.times().1);
    world.to_write(0);
    world.close(0, Some(WRITTEN));
    world.ask(0, world.set());
    assert!(world.times().1);
    let opened = world.open(0, OpenFlags { write: true, truncate: true, ..NONE });
    assert!(!opened.mtime_set && opened.mtime > WRITTEN);
    let directory = MdsRequest::Setattr {
        ino: Ino::ROOT,
        set: SetAttr { mtime: Some(SetTime::At(SET)), ..SetAttr::default() },
    };
    let MdsReply::Attr(attr) = world.ask(0, directory) else { panic!() };
    assert!(attr.mtime == SET && !attr.mtime_set, "a directory has no objects");
}

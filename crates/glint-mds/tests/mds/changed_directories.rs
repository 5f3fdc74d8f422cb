//! What the answer to a change says of the directories whose entries it has changed.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::sessions::{ask, connect, ino_of, start};
use crate::support::make;
use futures_lite::future::block_on;
use glint_proto::deferred::Deferred;
use glint_proto::lock::Grant;
use glint_proto::{Answer, FileType, Ino, MdsReply, MdsRequest, Placement, RenameFlags, Timestamp};
use std::cell::Cell;
use std::sync::Arc;

/// A directory, and a name in it.
type Place = (Ino, &'static [u8]);

/// The directories that an answer says something of: their links, and the time.
fn changed(answer: &Answer<MdsReply>) -> Vec<(Ino, u32, Timestamp)> {
    let changed = answer.grants.iter().filter_map(|grant| match *grant {
        Grant::Changed { ino, nlink, time } => Some((ino, nlink, time)),
        _ => None,
    });
    changed.collect()
}

#[test]
fn a_change_says_what_it_has_made_of_each_directory() {
    let mds = start(&Arc::default(), 1);
    let session = connect(&mds, 1);
    mds.listen(session.client());
    let xid = Cell::new(0);
    let answer = |request: MdsRequest<'_>| {
        xid.set(xid.get() + 1);
        block_on(ask(&mds, &session, xid.get(), request))
    };
    let state = |ino: Ino| match answer(MdsRequest::Getattr { ino }).reply {
        Ok(MdsReply::Attr(attr)) => {
            assert_eq!(attr.mtime, attr.ctime);
            (ino, attr.nlink, attr.ctime)
        }
        other => panic!("{other:?}"),
    };
    let must_say = |request: MdsRequest<'_>, directories: &[Ino]| {
        let answer = answer(request);
        assert!(answer.reply.is_ok(), "{answer:?}");
        let states: Vec<_> = directories.iter().map(|ino| state(*ino)).collect();
        assert_eq!(changed(&answer), states, "{answer:?}");
        answer
    };
    let flags = RenameFlags::default();
    let directory =
        |parent: Ino, name: &'static [u8]| make(parent, name, FileType::Directory, 0o755);

    let a = ino_of(must_say(directory(Ino::ROOT, b"a"), &[Ino::ROOT]));
    let b = ino_of(must_say(directory(Ino::ROOT, b"b"), &[Ino::ROOT]));
    assert_eq!(state(Ino::ROOT).1, 4);
    let file = ino_of(must_say(make(a, b"f", FileType::Regular, 0o644), &[a]));
    must_say(MdsRequest::Link { ino: file, parent: b, name: b"g" }, &[b]);
    must_say(directory(a, b"d"), &[a]);
    let rename = |(parent, name): Place, (new_parent, new_name): Place| MdsRequest::Rename {
        parent,
        name,
        new_parent,
        new_name,
        flags,
    };
    must_say(rename((a, b"d"), (b, b"d")), &[a, b]);
    assert_eq!((state(a).1, state(b).1), (2, 3));
    must_say(rename((b, b"d"), (b, b"e")), &[b]);
    // Two names of one file: nothing happens.
    must_say(rename((a, b"f"), (b, b"g")), &[]);
    must_say(MdsRequest::Unlink { parent: a, name: b"f" }, &[a]);
    must_say(MdsRequest::Rmdir { parent: b, name: b"e" }, &[b]);
    assert_eq!(state(b).1, 2);
}

#[test]
fn a_client_that_knows_it_or_holds_no_locks_is_told_nothing() {
    let mds = start(&Arc::default(), 1);
    let deaf = connect(&mds, 1);
    let request = || make(Ino::ROOT, b"d", FileType::Directory, 0o755);
    let made = block_on(ask(&mds, &deaf, 1, request()));
    assert!(made.reply.is_ok() && made.grants.is_empty(), "{made:?}");

    let mds = start(&Arc::default(), 1);
    let session = connect(&mds, 1);
    mds.listen(session.client());
    let epoch = 3;
    let numbers = block_on(ask(&mds, &session, 1, MdsRequest::GrantInodes { count: 8, epoch }));
    let Ok(MdsReply::Inodes { first, .. }) = numbers.reply else { panic!("{:?}", numbers.reply) };
    let directory = ino_of(block_on(ask(&mds, &session, 2, request())));
    let made = Some((Ino(first), Placement { first: 0, osts: 1 }));
    let request = make(directory, b"f", FileType::Regular, 0o644);
    let mut changes = Vec::new();
    let change = Deferred { uid: 0, gid: 0, time: Timestamp::now(), made, request };
    change.encode(&mut changes).unwrap();
    let done = block_on(ask(&mds, &session, 3, MdsRequest::Batch { epoch, changes: &changes }));
    assert_eq!(done.reply, Ok(MdsReply::Batched { done: 1, failed: Vec::new() }));
    assert!(changed(&done).is_empty(), "{done:?}");
}

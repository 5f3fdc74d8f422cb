//! Names of a directory that a client changes by itself, once it has forgotten their inodes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{FILE, Fake, with_client};
use glint_client::{Caller, Client, Make, Vfs};
use glint_net::{LockClient, host};
use glint_proto::lock::{Bits, Grant, Recall, Return};
use glint_proto::{Attr, DirPage, Errno, Ino, MdsReply, MdsRequest, Op, XattrFlags, deferred};
use serde_json::Value;
use std::time::{Duration, Instant};

const DIRECTORY: Ino = Ino(8);
/// Inodes that may be known.
const LIMIT: usize = 50;
/// Longer than a machine that is busy takes.
const LONG: Duration = Duration::from_secs(60);

/// The MDS delegates the directory that is made, and makes all changes that it is told of.
fn delegate(fake: &Fake) {
    let file = fake.0.lock().attr();
    let grant = |ino, bits| vec![Grant::Bits { ino, bits, number: 1 }];
    let mut next = 100;
    fake.turn(move |_, request, answer| match request {
        MdsRequest::GrantInodes { count, .. } => {
            let (first, count, osts, name_seed) = (next, *count, 4, 7);
            let (avoided, chains) = (Vec::new(), Vec::new());
            next += u64::from(count);
            let reply = MdsReply::Inodes { first, count, osts, avoided, chains, name_seed };
            (Ok(reply), Vec::new())
        }
        MdsRequest::Create { parent, .. } if *parent == Ino::ROOT => {
            let attr = Attr { ino: DIRECTORY, mode: 0o040_755, nlink: 2, ..file.clone() };
            (Ok(MdsReply::Attr(attr)), grant(DIRECTORY, Bits::ALL))
        }
        MdsRequest::Create { .. } => (Ok(MdsReply::Attr(file.clone())), grant(FILE, Bits::SHARED)),
        MdsRequest::Batch { changes, .. } => {
            let done = deferred::changes(changes).flatten().count() as u32;
            (Ok(MdsReply::Batched { done, failed: Vec::new() }), Vec::new())
        }
        _ => answer,
    });
}

async fn make(client: &Client<Fake>, parent: Ino, name: &str, mode: u32) {
    let make = Make { mode, umask: 0, rdev: 0, target: b"" };
    client.make(&Caller::ROOT, parent, name.as_bytes(), make).await.unwrap();
}

/// Makes the directory, and so many files in it.
async fn make_files(client: &Client<Fake>, files: usize) {
    make(client, Ino::ROOT, "d", 0o040_755).await;
    for number in 0..files {
        make(client, DIRECTORY, &number.to_string(), 0o100_644).await;
    }
}

fn known(client: &Client<Fake>) -> u64 {
    let status: Value = serde_json::from_slice(&client.status("{}".into())).unwrap();
    status["client"]["cached_inodes"].as_u64().unwrap()
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "{what}");
        host::sleep(Duration::from_millis(1)).await;
    }
}

fn is_returned(fake: &Fake, number: u64) -> bool {
    let delegation = Return::Bits { ino: DIRECTORY, bits: Bits::DELEGATION, number };
    fake.0.lock().returns.contains(&delegation)
}

#[test]
fn a_directory_in_which_files_are_made_without_end_is_given_back() {
    with_client(async |fake, client| {
        delegate(&fake);
        client.limit_inodes(LIMIT);
        make_files(&client, 2 * LIMIT).await;
        assert_eq!(fake.asked(Op::Create), 1, "the files are made here");
        let begun = Instant::now();
        for number in 2 * LIMIT.. {
            assert!(begun.elapsed() < LONG, "the delegation is returned");
            make(&client, DIRECTORY, &number.to_string(), 0o100_644).await;
            if is_returned(&fake, u64::MAX) {
                break;
            }
        }
        let asked = fake.asked(Op::Create);
        make(&client, DIRECTORY, "later", 0o100_644).await;
        assert_eq!(fake.asked(Op::Create), asked + 1, "the next one by the MDS");
        client.limit_inodes(0);
        until("nothing keeps the directory", || known(&client) == 0).await;
    });
}

/// More names than are gone through in one step, half of them of inodes that are forgotten.
#[test]
fn a_delegation_of_a_large_directory_is_returned_in_steps() {
    const FILES: usize = 10_000;
    with_client(async |fake, client| {
        delegate(&fake);
        client.limit_inodes(FILES / 2);
        make_files(&client, FILES).await;
        until("inodes are forgotten", || known(&client) <= FILES as u64 / 2).await;
        make(&client, DIRECTORY, "later", 0o100_644).await;
        assert_eq!(fake.asked(Op::Create), 1, "its names are known all the same");
        let bits = Bits::DELEGATION;
        // Twice, as if it had been returned here just now.
        let recall = Recall::Bits { ino: DIRECTORY, bits, number: 1 };
        client.on_recall(vec![recall, recall]);
        until("the delegation is returned", || is_returned(&fake, 1)).await;
        make(&client, DIRECTORY, "last", 0o100_644).await;
        assert_eq!(fake.asked(Op::Create), 2, "the next one by the MDS");
        client.limit_inodes(0);
        until("nothing keeps the directory", || known(&client) == 0).await;
    });
}

#[test]
fn names_that_a_directory_has_kept_go_with_its_delegation() {
    with_client(async |fake, client| {
        delegate(&fake);
        client.limit_inodes(LIMIT);
        make_files(&client, 2 * LIMIT).await;
        until("inodes are forgotten", || known(&client) <= LIMIT as u64).await;
        make(&client, DIRECTORY, "later", 0o100_644).await;
        assert_eq!(fake.asked(Op::Create), 1, "its names are known all the same");
        let bits = Bits::DELEGATION;
        client.on_recall(vec![Recall::Bits { ino: DIRECTORY, bits, number: 1 }]);
        until("the delegation is returned", || is_returned(&fake, 1)).await;
        client.limit_inodes(0);
        until("nothing keeps the directory", || known(&client) == 0).await;
    });
}

/// An access list may say what new inodes get. The client does not know it, though it knows all names.
#[test]
fn in_a_directory_with_an_extended_attribute_nothing_is_made_without_asking() {
    with_client(async |fake, client| {
        delegate(&fake);
        let directory = Attr { ino: DIRECTORY, mode: 0o040_755, nlink: 2, ..fake.0.lock().attr() };
        let mut others = fake.0.lock().turn.take().unwrap();
        fake.turn(move |cred, request, answer| match request {
            MdsRequest::Setxattr { .. } => (Ok(MdsReply::Attr(directory.clone())), Vec::new()),
            MdsRequest::Lookup { .. } => (Err(Errno::ENOENT), Vec::new()),
            MdsRequest::Readdir { .. } => {
                let page = DirPage { entries: Vec::new(), end: true };
                let free = Grant::Bits { ino: DIRECTORY, bits: Bits::NEGATIVE, number: 2 };
                (Ok(MdsReply::Dir(page)), vec![free])
            }
            _ => others(cred, request, answer),
        });
        make_files(&client, 1).await;
        assert_eq!(fake.asked(Op::Create), 1, "the file is made here");
        let (caller, name) = (&Caller::ROOT, b"system.posix_acl_default");
        client.setxattr(caller, DIRECTORY, name, b"", XattrFlags::default()).await.unwrap();
        for name in [b"a", b"b", b"c"] {
            let found = client.lookup(caller, DIRECTORY, name).await;
            assert_eq!(found.err(), Some(Errno::ENOENT));
        }
        make(&client, DIRECTORY, "later", 0o100_644).await;
        assert_eq!(fake.asked(Op::Create), 2, "this one by the MDS");
    });
}

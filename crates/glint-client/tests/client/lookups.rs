//! Lookups in one directory, one after the other: a page of names comes with one request.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{FILE, Fake, with_client};
use glint_client::{Caller, Vfs};
use glint_net::LockClient;
use glint_proto::lock::{Bits, Grant, Recall, Return};
use glint_proto::{Attr, DirEntry, DirPage, Errno, FileType, Ino, MdsReply, MdsRequest, Op};
use std::time::Duration;

const NAMES: u64 = 5;

/// A directory of files `0`, `1` and so on, of which one page has all. Each has a lock.
fn directory(fake: &Fake) {
    let file = fake.0.lock().attr();
    let attr = move |at: u64| Attr { ino: Ino(FILE.0 + at), ..file.clone() };
    let locks =
        |at: u64| Grant::Bits { ino: Ino(FILE.0 + at), bits: Bits::ATTR | Bits::ENTRY, number: 1 };
    let all = Grant::Bits { ino: Ino::ROOT, bits: Bits::NEGATIVE, number: 1 };
    fake.turn(move |_, request, answer| match *request {
        MdsRequest::Lookup { name, .. } => {
            let at = std::str::from_utf8(name).unwrap().parse::<u64>().ok();
            match at.filter(|at| *at < NAMES) {
                Some(at) => (Ok(MdsReply::Attr(attr(at))), vec![locks(at)]),
                None => (Err(Errno::ENOENT), Vec::new()),
            }
        }
        MdsRequest::Readdir { cookie: 0, plus: true, .. } => {
            let entry = |at: u64| DirEntry {
                ino: Ino(FILE.0 + at),
                cookie: 100 + at,
                dirent_type: FileType::Regular.dirent_type(),
                name: at.to_string().into_bytes(),
                attr: Some(attr(at)),
            };
            let page = DirPage { entries: (0..NAMES).map(entry).collect(), end: true };
            (Ok(MdsReply::Dir(page)), (0..NAMES).map(locks).chain([all]).collect())
        }
        _ => answer,
    });
}

#[test]
fn the_second_lookup_learns_the_directory() {
    with_client(async |fake, client| {
        directory(&fake);
        let find = async |name: &str| {
            let found = client.lookup(&Caller::ROOT, Ino::ROOT, name.as_bytes()).await;
            found.map(|found| found.attr.ino.0 - FILE.0)
        };
        let asked = || (fake.asked(Op::Lookup), fake.asked(Op::Readdir));
        assert_eq!(find("0").await, Ok(0));
        assert_eq!(asked(), (1, 0), "one name is no reason to list");
        for at in 0..NAMES {
            assert_eq!(find(&at.to_string()).await, Ok(at));
        }
        assert_eq!((find("9").await, find("8").await), (Err(Errno::ENOENT), Err(Errno::ENOENT)));
        assert_eq!(asked(), (1, 1), "and what is not there is known, too");

        // Another client makes a name, and then removes one.
        let recalled = async |ino, bits| {
            client.on_recall(vec![Recall::Bits { ino, bits, number: 2 }]);
            while !fake.0.lock().returns.contains(&Return::Bits { ino, bits, number: 2 }) {
                glint_net::host::sleep(Duration::from_millis(1)).await;
            }
        };
        recalled(Ino::ROOT, Bits::NEGATIVE).await;
        assert_eq!((find("9").await, find("3").await), (Err(Errno::ENOENT), Ok(3)));
        assert_eq!(asked(), (2, 1), "a name is still where it was");
        recalled(Ino(FILE.0 + 3), Bits::ENTRY).await;
        assert_eq!(find("3").await, Ok(3));
        assert_eq!(asked(), (3, 1));
    });
}

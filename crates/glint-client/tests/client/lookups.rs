//! Lookups in one directory, one after the other: a page of names comes with one request.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{Tree, with_client};
use glint_client::{Caller, Vfs};
use glint_net::LockClient;
use glint_proto::lock::{Bits, Recall, Return};
use glint_proto::{Errno, Op};
use std::time::Duration;

const NAMES: u64 = 5;

#[test]
fn the_second_lookup_learns_the_directory() {
    with_client(async |fake, client| {
        fake.serve(Tree { directories: 1, files: NAMES, bytes: 0 });
        let directory = Tree::directory(0);
        let find = async |name: &str| {
            let found = client.lookup(&Caller::ROOT, directory, name.as_bytes()).await;
            found.map(|found| found.attr.ino.0 - Tree::file(0, 0).0)
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
        recalled(directory, Bits::NEGATIVE).await;
        assert_eq!((find("9").await, find("3").await), (Err(Errno::ENOENT), Ok(3)));
        assert_eq!(asked(), (2, 1), "a name is still where it was");
        recalled(Tree::file(0, 3), Bits::ENTRY).await;
        assert_eq!(find("3").await, Ok(3));
        assert_eq!(asked(), (3, 1));
    });
}

//! Small files that are read before a program does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{Fake, Tree, with_client};
use glint_client::{Caller, Vfs};
use glint_net::host;
use glint_proto::{Errno, ObjectId, OpenFlags, OstRequest};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const TREE: Tree = Tree { directories: 1, files: 10, bytes: 300 };
/// Files that a sequence begins with, once two were read.
const WINDOW: u64 = 4;

/// Reads of each file of the directory, so far.
fn reads(fake: &Fake) -> BTreeMap<u64, usize> {
    let mut reads = BTreeMap::new();
    for request in &fake.0.lock().requests {
        if let OstRequest::Read { object, .. } = request {
            *reads.entry(object.ino.0 - Tree::file(0, 0).0).or_default() += 1;
        }
    }
    reads
}

/// Of the files that are read together one object is of a chain with another row by now, one is not
/// allowed by its capability, and one is gone.
#[test]
fn what_a_batch_lacks_is_read_alone_and_nothing_else_is() {
    with_client(async |fake, client| {
        fake.serve(TREE);
        client.prefetch_files();
        let of = |number| ObjectId { ino: Tree::file(0, number), stripe: 0 };
        let mut refused = BTreeMap::from([(of(3), Errno::EREMCHG), (of(4), Errno::EACCES)]);
        fake.fail(move |request| refused.remove(&request.object()?));
        fake.0.lock().objects.remove(&of(5));
        let read = async |number: u64| {
            let ino = Tree::file(0, number);
            let name = number.to_string();
            client.lookup(&Caller::ROOT, Tree::directory(0), name.as_bytes()).await.unwrap();
            let flags = OpenFlags { read: true, ..OpenFlags::default() };
            let file = client.open(&Caller::ROOT, ino, flags).await.unwrap().handle;
            let mut data = vec![0; 1000];
            let len = client.read(file, 0, &mut data, true).await.unwrap();
            client.release(file).await.unwrap();
            data.truncate(len);
            data
        };
        for number in 0..2 {
            assert_eq!(read(number).await, TREE.content(Tree::file(0, number)));
        }
        let all_asked = (0..2 + WINDOW).map(|number| (number, 1)).collect();
        let begun = Instant::now();
        while reads(&fake) != all_asked {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", reads(&fake));
            host::sleep(Duration::from_millis(1)).await;
        }
        for number in 2..5 {
            assert_eq!(read(number).await, TREE.content(Tree::file(0, number)), "{number}");
        }
        // What is shorter than the file is not believed; asked alone, the server says how long it is.
        assert_eq!(read(5).await, b"");
        let of_these: BTreeMap<_, _> =
            reads(&fake).range(..6).map(|(n, reads)| (*n, *reads)).collect();
        assert_eq!(of_these, BTreeMap::from([(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]));
    });
}

//! Large files that are read: how many requests that takes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{Fake, Tree, with_client};
use glint_client::{Caller, Client, Handle, Vfs};
use glint_net::{LockClient, host};
use glint_proto::lock::Recall;
use glint_proto::{Errno, ObjectId, OpenFlags, OstRequest};
use std::time::{Duration, Instant};

const TREE: Tree = Tree { directories: 1, files: 1, bytes: 64 << 20 };
const MIB: u64 = 1 << 20;
/// Bytes of the odd transfers of IOR.
const ODD: u64 = 47_008;

/// A file that so many have open to read.
async fn open(fake: &Fake, client: &Client<Fake>, readers: u64) -> Vec<Handle> {
    fake.serve(TREE);
    client.lookup(&Caller::ROOT, Tree::directory(0), b"0").await.unwrap();
    let flags = OpenFlags { read: true, ..OpenFlags::default() };
    let mut handles = Vec::new();
    for _ in 0..readers {
        let opened = client.open(&Caller::ROOT, Tree::file(0, 0), flags).await.unwrap();
        handles.push(opened.handle);
    }
    handles
}

/// Reads so many bytes, which are all the same one.
async fn read(client: &Client<Fake>, file: Handle, offset: u64, len: u64) -> u8 {
    let mut data = vec![0; len as usize];
    let n = client.read(file, offset, &mut data, false).await.unwrap();
    assert_eq!(n as u64, len.min(TREE.bytes - offset));
    assert!(data[..n].iter().all(|byte| *byte == data[0]));
    data[0]
}

/// Bytes of the reads of objects so far.
fn requests(fake: &Fake) -> Vec<u64> {
    let length = |request: &OstRequest| match request {
        OstRequest::Read { len, .. } => Some(u64::from(*len)),
        _ => None,
    };
    fake.0.lock().requests.iter().filter_map(length).collect()
}

#[test]
fn what_is_read_in_order_comes_in_requests_of_four_mib() {
    with_client(async |fake, client| {
        let files = open(&fake, &client, 1).await;
        for n in 0..64 {
            assert_eq!(read(&client, files[0], n * MIB, MIB).await, Tree::file(0, 0).0 as u8);
        }
        let requests = requests(&fake);
        assert_eq!(requests.len(), 17, "{requests:?}");
        assert_eq!(requests.iter().filter(|len| **len == 4 * MIB).count(), 15);
        assert_eq!(requests.iter().sum::<u64>(), 64 * MIB, "nothing twice");
    });
}

#[test]
fn many_readers_in_turns_share_requests_of_four_mib() {
    for (transfer, most) in [(MIB, 17), (ODD, 26)] {
        with_client(async move |fake, client| {
            let files = open(&fake, &client, 8).await;
            for call in 0..TREE.bytes / transfer {
                let file = files[call as usize % 8];
                let byte = read(&client, file, call * transfer, transfer).await;
                assert_eq!(byte, Tree::file(0, 0).0 as u8);
            }
            let requests = requests(&fake);
            assert!(requests.len() <= most, "{requests:?}");
            let bytes: u64 = requests.iter().sum();
            assert!(100 * bytes <= 101 * TREE.bytes, "{bytes} bytes");
        });
    }
}

/// One reader of many, each on its own client, that read in turns.
#[test]
fn reads_at_equal_distances_come_together() {
    for (transfer, most) in [(ODD, 16), (MIB, 6)] {
        with_client(async move |fake, client| {
            let files = open(&fake, &client, 1).await;
            fake.0.lock().slow = Duration::from_millis(5);
            let mut reads = 0;
            for at in (0..TREE.bytes).step_by(8 * transfer as usize) {
                let byte = read(&client, files[0], at, transfer).await;
                assert_eq!(byte, Tree::file(0, 0).0 as u8);
                reads += 1;
            }
            let together = fake.0.lock().together.clone();
            let alone = requests(&fake).len() - together.iter().sum::<usize>();
            let count = together.len() + alone;
            assert!(count <= most, "{count} requests for {reads} reads, {together:?}");
        });
    }
}

#[test]
fn a_request_that_fails_is_no_error_of_who_has_not_asked_for_it() {
    with_client(async |fake, client| {
        let files = open(&fake, &client, 1).await;
        fake.fail(|request| {
            let is_large = matches!(request, OstRequest::Read { len, .. } if *len > 1 << 20);
            is_large.then_some(Errno::EIO)
        });
        for n in 0..16 {
            assert_eq!(read(&client, files[0], n * MIB, MIB).await, Tree::file(0, 0).0 as u8);
        }
    });
}

#[test]
fn what_another_client_writes_into_a_region_is_seen() {
    with_client(async |fake, client| {
        let (files, ino) = (open(&fake, &client, 1).await, Tree::file(0, 0));
        for n in 0..6 {
            read(&client, files[0], n * MIB, MIB).await;
        }
        client.on_recall(vec![Recall::Data { ino, number: 1 }]);
        let begun = Instant::now();
        while fake.0.lock().returns.is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            host::sleep(Duration::from_millis(1)).await;
        }
        let object = ObjectId { ino, stripe: 0 };
        fake.0.lock().objects.get_mut(&object).unwrap().fill(0xee);
        for n in 6..12 {
            assert_eq!(read(&client, files[0], n * MIB, MIB).await, 0xee);
        }
    });
}

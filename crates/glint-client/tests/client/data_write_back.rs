//! Tests of write-back of data, when sending it fails.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(missing_docs, reason = "what a test does is its name")]

use crate::support::{
    FILE, Fake, LEASE_MS, OBJECT_BYTES_MAX, READ_WRITE, open, with_client, write,
};
#[allow(dead_code, reason = "each test uses some of it")]
use glint_client::{Caller, Vfs};
use glint_net::LockClient;
use glint_proto::{Errno, OpenFlags, OstRequest, SetAttr};
use std::time::{Duration, Instant};

fn writes(request: &OstRequest) -> bool {
    request.is_write()
}

/// Age at which dirty data is sent by itself.
const OLD: Duration = Duration::from_secs(1);

/// Requests are as the test says when it is done before data becomes old, which on a busy machine
/// may take several attempts. What is no matter of time the test asserts itself, each time.
fn before_data_is_old(mut test: impl FnMut() -> Result<(), String>) {
    for _ in 0..20 {
        let begun = Instant::now();
        match test() {
            Ok(()) => return,
            Err(wrong) => assert!(begun.elapsed() >= OLD, "{wrong}"),
        }
    }
    println!("this machine is too slow to count requests");
}

/// The first writes fail, `times` of them.
fn fail_first(fake: &Fake, times: usize, errno: Errno) {
    let mut left = times;
    fake.fail(move |request| {
        let fails = request.is_write() && left > 0;
        left -= usize::from(fails);
        fails.then_some(errno)
    });
}

#[test]
fn what_fails_once_is_written_the_next_time_and_nobody_hears_of_it() {
    for errno in [Errno::EIO, Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::EAGAIN] {
        with_client(async |fake, client| {
            // EIO passes within a second or not at all, so the next attempt must not be too late.
            fail_first(&fake, if errno == Errno::EIO { 1 } else { 2 }, errno);
            let file = open(&client).await;
            write(&client, file, 0, b"old old").await.unwrap();
            write(&client, file, 100, b"apart").await.unwrap();
            assert_eq!(client.fsync(file).await, Ok(()));
            assert_eq!(&fake.data(0)[..7], b"old old");
            assert_eq!(&fake.data(0)[100..], b"apart");
            assert_eq!(client.flush(file).await, Ok(()));
            client.release(file).await.unwrap();
            assert_eq!(fake.0.lock().opens, 0);
        });
    }
}

#[test]
fn what_is_written_while_older_data_waits_wins() {
    with_client(async |fake, client| {
        fake.fail(|request| request.is_write().then_some(Errno::EMFILE));
        let file = open(&client).await;
        write(&client, file, 0, b"aaaaaaaa").await.unwrap();
        // The client says so, and goes on trying.
        assert_eq!(client.fsync(file).await, Err(Errno::EMFILE));
        write(&client, file, 2, b"bb").await.unwrap();
        assert_eq!(client.fsync(file).await, Err(Errno::EMFILE));
        fake.heal();
        assert_eq!(client.fsync(file).await, Ok(()));
        assert_eq!(fake.data(0), b"aabbaaaa");
    });
}

#[test]
fn a_loss_is_told_once_to_each_open_file() {
    // A full disk does not pass; a disk that goes on failing is given up.
    for errno in [Errno::ENOSPC, Errno::EFBIG, Errno::EIO] {
        with_client(async |fake, client| {
            let (a, b) = (open(&client).await, open(&client).await);
            fake.fail(move |request| request.is_write().then_some(errno));
            write(&client, a, 0, b"lost").await.unwrap();
            assert_eq!(client.fsync(a).await, Err(errno));
            fake.heal();
            assert_eq!(client.fsync(a).await, Ok(()), "once");
            assert_eq!(write(&client, a, 0, b"good").await, Ok(()));
            assert_eq!(client.flush(b).await, Err(errno), "each");
            assert_eq!(client.fsync(b).await, Ok(()));
            // A later open does not hear of losses that others know.
            let c = open(&client).await;
            assert_eq!(client.fsync(c).await, Ok(()));
            assert_eq!(fake.data(0), b"good");
        });
    }
}

#[test]
fn a_loss_that_nobody_has_heard_of_is_told_to_the_next_who_opens_the_file() {
    with_client(async |fake, client| {
        let file = open(&client).await;
        fake.fail(|request| request.is_write().then_some(Errno::ENOSPC));
        write(&client, file, 0, b"lost").await.unwrap();
        client.release(file).await.unwrap();
        fake.heal();
        let next = open(&client).await;
        assert_eq!(client.fsync(next).await, Err(Errno::ENOSPC));
        let after = open(&client).await;
        assert_eq!(client.fsync(after).await, Ok(()));
    });
}

#[test]
fn an_fsync_that_comes_after_the_failure_says_it() {
    with_client(async |fake, client| {
        let file = open(&client).await;
        fake.fail(|request| request.is_write().then_some(Errno::EISDIR));
        write(&client, file, 0, b"lost").await.unwrap();
        // The data becomes old and is sent by itself.
        let begun = Instant::now();
        while fake.count(writes) == 0 && begun.elapsed() < Duration::from_secs(60) {
            glint_net::host::sleep(Duration::from_millis(20)).await;
        }
        glint_net::host::sleep(Duration::from_millis(50)).await;
        fake.heal();
        assert_eq!(client.fsync(file).await, Err(Errno::EISDIR));
        assert_eq!(client.fsync(file).await, Ok(()));
    });
}

#[test]
fn an_eviction_is_a_loss_and_nothing_of_it_is_sent_later() {
    with_client(async |fake, client| {
        let (a, b) = (open(&client).await, open(&client).await);
        fake.fail(|request| request.is_write().then_some(Errno::EAGAIN));
        write(&client, a, 0, b"lost").await.unwrap();
        assert_eq!(client.fsync(a).await, Err(Errno::EAGAIN));
        client.on_server_restart(true).await;
        fake.heal();
        assert_eq!(client.fsync(a).await, Err(Errno::EIO));
        assert_eq!(client.fsync(a).await, Ok(()));
        assert_eq!(client.fsync(b).await, Err(Errno::EIO));
        assert_eq!(fake.data(0), b"");
        write(&client, a, 0, b"new").await.unwrap();
        assert_eq!(client.fsync(a).await, Ok(()));
        assert_eq!(fake.data(0), b"new");
    });
}

#[test]
fn sync_goes_on_after_a_file_that_fails_and_says_so() {
    with_client(async |fake, client| {
        let file = open(&client).await;
        fake.fail(|request| request.is_write().then_some(Errno::ENOSPC));
        write(&client, file, 0, b"lost").await.unwrap();
        assert_eq!(client.sync().await, Err(Errno::EIO));
        fake.heal();
        assert_eq!(client.sync().await, Ok(()));
    });
}

#[test]
fn a_client_that_ends_gives_up_what_cannot_be_written() {
    let begun = Instant::now();
    with_client(async |fake, client| {
        let file = open(&client).await;
        fake.fail(|request| request.is_write().then_some(Errno::EMFILE));
        write(&client, file, 0, b"lost").await.unwrap();
    });
    let limit = Duration::from_millis(LEASE_MS / 2);
    assert!(begun.elapsed() >= limit && begun.elapsed() < limit + Duration::from_secs(60));
}

#[test]
fn a_client_that_ends_has_what_it_did_made_durable_first() {
    let world = std::cell::RefCell::new(None);
    with_client(async |fake, _| {
        fake.0.lock().uncommitted = true;
        world.replace(Some(fake));
    });
    let fake = world.take().unwrap();
    assert!(!fake.0.lock().uncommitted, "it would be gone with a server that lost its power");
}

#[test]
fn a_client_owes_what_no_server_has_or_one_may_lose() {
    with_client(async |fake, client| {
        let file = open(&client).await;
        assert!(!client.owes(), "an open file can end without the server");
        fake.fail(|request| request.is_write().then_some(Errno::EMFILE));
        write(&client, file, 0, b"data").await.unwrap();
        assert!(client.owes());
        fake.heal();
        client.fsync(file).await.unwrap();
        assert!(!client.owes());
        fake.0.lock().uncommitted = true;
        assert!(client.owes());
    });
}

#[test]
fn a_client_that_is_not_used_sends_again_what_servers_may_lose() {
    with_client(async |fake, _client| {
        let begun = Instant::now();
        while fake.0.lock().sent_again == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60));
            glint_net::host::sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn opens_are_given_back_whatever_fails() {
    with_client(async |fake, client| {
        // A close that cannot ask the objects.
        fake.0.lock().layout.stripe_count = 2;
        let file = open(&client).await;
        write(&client, file, 0, b"data").await.unwrap();
        client.fsync(file).await.unwrap();
        fake.fail(|request| matches!(request, OstRequest::Stat { .. }).then_some(Errno::EIO));
        let _ = client.release(file).await;
        // An open that cannot cut the file off.
        fake.fail(|request| matches!(request, OstRequest::Truncate { .. }).then_some(Errno::EIO));
        let flags = OpenFlags { truncate: true, ..READ_WRITE };
        assert!(client.open(&Caller::ROOT, FILE, flags).await.is_err());
        let world = fake.0.lock();
        assert_eq!(world.opens, 0);
        assert!(world.released.iter().all(Option::is_some), "something was written");
        assert!(matches!(world.released.last(), Some(Some((_, None)))), "and nobody knows what");
    });
}

#[test]
fn space_that_is_not_needed_goes_back() {
    before_data_is_old(|| {
        let mut requests = (0, 0);
        with_client(async |fake, client| {
            let file = open(&client).await;
            for _ in 0..100 {
                write(&client, file, 0, &[7; 1 << 20]).await.unwrap();
            }
            client.fsync(file).await.unwrap();
            let reserved = fake.count(|request| matches!(request, OstRequest::GrantSpace { .. }));
            requests = (reserved, fake.count(writes));
        });
        let what = "space is kept and data sent once, as it is dirty once";
        if requests == (1, 1) { Ok(()) } else { Err(format!("{requests:?}: {what}")) }
    });
}

#[test]
fn space_is_what_the_objects_have() {
    with_client(async |fake, client| {
        let file = open(&client).await;
        let blocks = async || client.getattr(FILE).await.unwrap().attr.blocks;
        write(&client, file, 4096 * 1000, &[1; 4096]).await.unwrap();
        assert_eq!(blocks().await, 8, "while it is here");
        client.fsync(file).await.unwrap();
        assert_eq!(blocks().await, 8, "and when it is there");
        write(&client, file, 4096 * 1000, &[2; 4096]).await.unwrap();
        client.fsync(file).await.unwrap();
        let begun = Instant::now();
        write(&client, file, 4096 * 1001, b"x").await.unwrap();
        let while_dirty = blocks().await;
        assert!(while_dirty == 9 || begun.elapsed() >= OLD, "{while_dirty}");
        client.fsync(file).await.unwrap();
        assert_eq!(blocks().await, 16);
        client.release(file).await.unwrap();
        assert_eq!(blocks().await, 16);
        let said = fake.0.lock().released.last().copied().flatten();
        assert_eq!(said.and_then(|(_, objects)| objects).map(|objects| objects.blocks), Some(16));
    });
}

#[test]
fn a_write_behind_the_end_of_all_objects_is_an_error_at_once() {
    with_client(async |fake, client| {
        fake.0.lock().layout.stripe_count = 2;
        let file = open(&client).await;
        let end = 2 * OBJECT_BYTES_MAX;
        assert_eq!(write(&client, file, end - 1, b"xy").await, Err(Errno::EFBIG));
        assert_eq!(write(&client, file, 1 << 50, b"x").await, Err(Errno::EFBIG));
        let set = SetAttr { size: Some(end + 1), ..SetAttr::default() };
        assert_eq!(client.setattr(&Caller::ROOT, FILE, &set).await.err(), Some(Errno::EFBIG));
        assert_eq!(write(&client, file, 0, b"x").await, Ok(()));
        assert_eq!(client.fsync(file).await, Ok(()));
    });
}

fn seeks(request: &OstRequest) -> bool {
    matches!(request, OstRequest::Seek { .. } | OstRequest::Fallocate { .. })
}

#[test]
fn a_seek_is_a_request_to_each_object_at_most() {
    with_client(async |fake, client| {
        const STRIPE: u64 = 64 << 10;
        {
            let mut world = fake.0.lock();
            (world.layout.stripe_count, world.layout.stripe_bytes_log2) = (3, 16);
            world.size = 1 << 30;
        }
        let file = open(&client).await;
        // Data in two pages of the second object: the first page of its block 20, and one of its
        // block 40. All else is a hole.
        let at = |block: u64, within: u64| (block * 3 + 1) * STRIPE + within;
        for offset in [at(20, 0), at(40, 8192)] {
            write(&client, file, offset, &[1; 4096]).await.unwrap();
        }
        write(&client, file, (1 << 30) - 1, b"e").await.unwrap();
        client.fsync(file).await.unwrap();
        let seek = async |offset, hole| {
            let before = fake.count(seeks);
            let found = client.lseek(file, offset, hole).await;
            assert!(fake.count(seeks) - before <= 3, "one for each object");
            found
        };
        assert_eq!(seek(0, false).await, Ok(at(20, 0)));
        assert_eq!(seek(at(20, 100), false).await, Ok(at(20, 100)));
        assert_eq!(seek(at(20, 100), true).await, Ok(at(20, 4096)));
        assert_eq!(seek(at(20, 4096), false).await, Ok(at(40, 8192)));
        assert_eq!(seek(0, true).await, Ok(0));
        assert_eq!(seek(at(40, 3 * 4096), false).await, Ok(((1 << 30) - 1) / 4096 * 4096));
        assert_eq!(seek((1 << 30) - 1, true).await, Ok(1 << 30));
        assert_eq!(seek(1 << 30, false).await, Err(Errno::ENXIO));
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let before = fake.count(seeks);
        client.fallocate(&Caller::ROOT, file, punch, 4096, 1 << 62).await.unwrap();
        client.fallocate(&Caller::ROOT, file, 0, 100, STRIPE).await.unwrap();
        assert_eq!(fake.count(seeks) - before, 3 + 2);
        let lens: Vec<_> = fake.0.lock().requests.iter().rev().take(2).copied().collect();
        let ranges = lens.into_iter().map(|request| match request {
            OstRequest::Fallocate { object, offset, len, .. } => (object.stripe, offset, len),
            _ => panic!("{request:?}"),
        });
        let mut ranges: Vec<_> = ranges.collect();
        ranges.sort_unstable();
        assert_eq!(ranges, [(0, 100, STRIPE - 100), (1, 0, 100)]);
    });
}

#[test]
fn small_extents_travel_together() {
    before_data_is_old(|| {
        let mut sent = 0;
        with_client(async |fake, client| {
            let file = open(&client).await;
            let count = 8192u64;
            for at in 0..count {
                write(&client, file, (at * 7919 % count) * 1024, &[1; 512]).await.unwrap();
            }
            client.fsync(file).await.unwrap();
            sent = fake.count(writes);
            let data = fake.data(0);
            assert!(data.chunks(1024).all(|chunk| chunk[..512] == [1; 512]));
            assert!(data.chunks(1024).all(|chunk| chunk[512..].iter().all(|byte| *byte == 0)));
        });
        if sent <= 10 { Ok(()) } else { Err(format!("{sent} requests for 4 MiB")) }
    });
}

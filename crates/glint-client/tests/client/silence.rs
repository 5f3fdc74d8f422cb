//! Servers that were not heard of for most of the lease.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{FILE, Fake, LEASE_MS, Tree};
use glint_client::{Caller, Client, Handle, Vfs};
use glint_net::host;
use glint_proto::{Ino, Op, clock};
use std::time::Duration;

/// The thread that watches the lease does not run meanwhile, as after a pause of the whole process.
#[test]
fn the_first_call_after_a_pause_is_not_answered_from_the_cache() {
    let lease = Duration::from_millis(LEASE_MS);
    let begun = clock::now();
    clock::simulate(Some(begun));
    let fake = Fake::default();
    fake.0.lock().heard_at = Some(begun);
    let runtime = glint_net::runtime(None).unwrap();
    runtime.block_on(async {
        let client = Client::simulated(fake.clone(), true);
        // None of these waits for anything, so no other task of this thread runs in between.
        let asked = async || {
            client.getattr(FILE).await.unwrap();
            fake.asked(Op::Getattr)
        };
        assert_eq!((asked().await, asked().await), (1, 1), "it is cached");
        clock::simulate(Some(begun + lease / 2));
        assert_eq!(
            (asked().await, client.pages_are_current()),
            (1, true),
            "half of the lease is left"
        );
        clock::simulate(Some(begun + lease));
        assert_eq!(asked().await, 2, "it may be old");
        assert_eq!(asked().await, 3, "and every call asks");
        assert!(!client.pages_are_current());

        fake.0.lock().heard_at = Some(begun + lease);
        assert_eq!(asked().await, 3, "what the last answer brought may be used");
        assert!(client.pages_are_current());
    });
    clock::simulate(None);
}

/// The directory was opened before the pause, and is listed after it.
#[test]
fn a_listing_that_came_ahead_of_a_pause_is_not_used_after_it() {
    let lease = Duration::from_millis(LEASE_MS);
    let fake = Fake::default();
    fake.serve(Tree { directories: 9, files: 1, bytes: 0 });
    let runtime = glint_net::runtime(None).unwrap();
    runtime.block_on(async {
        let client = Client::simulated(fake.clone(), true);
        client.prefetch_files();
        let open = async |directory: Ino| client.opendir(&Caller::ROOT, directory).await.unwrap();
        let read = async |handle: Handle| {
            client.readdir(&Caller::ROOT, handle, 0, 32 << 10, true).await.unwrap().entries
        };
        let directories = read(open(Ino::ROOT).await).await;
        read(open(directories[0].ino).await).await;
        // The two that follow come ahead.
        while fake.asked(Op::Readdir) < 4 {
            host::sleep(Duration::from_millis(1)).await;
        }
        host::sleep(Duration::from_millis(20)).await;
        let next = open(directories[1].ino).await;
        let now = clock::now();
        fake.0.lock().heard_at = Some(now);
        clock::simulate(Some(now + lease));
        assert_eq!(read(next).await.len(), 1);
        assert_eq!(fake.asked(Op::Readdir), 5, "it may be old");
    });
    clock::simulate(None);
}

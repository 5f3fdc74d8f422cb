//! statfs(2): how many requests it takes, and what is waited for.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{FILE, Fake, with_client};
use futures_util::future::join;
use glint_client::{Client, FsStat, Vfs};
use glint_net::host;
use glint_proto::{ObjectId, Op, OstRequest, clock};
use std::time::Duration;

/// OSTs of the server.
const OSTS: usize = 4;

fn spaces_asked(fake: &Fake) -> usize {
    fake.count(|request| *request == OstRequest::Space)
}

#[test]
fn all_servers_are_asked_at_once() {
    with_client(async |fake, client| {
        fake.hold_answers(true);
        let answers = async {
            while spaces_asked(&fake) < OSTS {
                host::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(fake.asked(Op::Statfs), 1, "the MDS has not answered yet");
            fake.hold_answers(false);
        };
        let (stat, ()) = join(client.statfs(), answers).await;
        let osts = OSTS as u64;
        let expected = FsStat { inodes: 1, total: 4 * osts, free: 3 * osts, available: 2 * osts };
        assert_eq!(stat, Ok(expected));
    });
}

#[test]
fn who_asks_again_within_a_second_is_told_the_same_without_a_request() {
    let begun = clock::now();
    clock::simulate(Some(begun));
    let fake = Fake::default();
    fake.0.lock().heard_at = Some(begun);
    let runtime = glint_net::runtime(None).unwrap();
    runtime.block_on(async {
        let client = Client::simulated(fake.clone(), true);
        let inodes = async || client.statfs().await.unwrap().inodes;
        let asked = || (fake.asked(Op::Statfs), spaces_asked(&fake));
        assert_eq!((inodes().await, asked()), (1, (1, OSTS)));
        fake.0.lock().objects.insert(ObjectId { ino: FILE, stripe: 0 }, Vec::new());
        clock::simulate(Some(begun + Duration::from_millis(999)));
        assert_eq!((inodes().await, asked()), (1, (1, OSTS)));
        clock::simulate(Some(begun + Duration::from_secs(1)));
        assert_eq!((inodes().await, asked()), (2, (2, 2 * OSTS)));
    });
    clock::simulate(None);
}

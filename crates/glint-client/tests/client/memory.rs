//! What a client keeps where memory is short, or nobody uses it, and how long calls take meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{Fake, Tree, with_client};
use glint_client::{Caller, Client, Vfs};
use glint_memory::Supply;
use glint_proto::lock::Return;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TREE: Tree = Tree { directories: 60, files: 1000, bytes: 0 };
const INODES: u64 = TREE.directories * TREE.files;
/// Inodes that a client keeps in any case.
const FLOOR: u64 = 4096;
/// Bytes of pages that are asked for.
const PAGE: u32 = 64 << 10;

fn status(client: &Client<Fake>) -> Value {
    serde_json::from_slice(&client.status("{}".into())).unwrap()
}

fn known(client: &Client<Fake>) -> u64 {
    status(client)["client"]["cached_inodes"].as_u64().unwrap()
}

/// Lists all files with their attributes, which are known from then on.
async fn scan(client: &Client<Fake>) {
    for directory in (0..TREE.directories).map(Tree::directory) {
        let handle = client.opendir(&Caller::ROOT, directory).await.unwrap();
        let mut cookie = 0;
        loop {
            let page = client.readdir(&Caller::ROOT, handle, cookie, PAGE, true).await.unwrap();
            let Some(last) = page.entries.last() else { break };
            cookie = last.cookie;
        }
        client.release(handle).await.unwrap();
    }
}

/// Inodes whose locks were returned.
fn returned(fake: &Fake) -> BTreeSet<u64> {
    let returns = &fake.0.lock().returns;
    let of = |lock: &Return| match lock {
        Return::Bits { ino, .. } => Some(ino.0),
        _ => None,
    };
    returns.iter().filter_map(of).collect()
}

/// Waits, but not without end.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        glint_net::host::sleep(Duration::from_millis(1)).await;
    }
}

/// Scans, lets memory be short, and returns the longest time that a call took until inodes were
/// forgotten, of calls that are answered here.
async fn longest_call_while_it_shrinks(fake: &Fake, client: &Client<Fake>) -> Duration {
    scan(client).await;
    assert!(known(client) >= INODES);
    fake.0.lock().returns.clear();
    let used = Tree::file(TREE.directories - 1, 7);
    client.lookup(&Caller::ROOT, Tree::directory(TREE.directories - 1), b"7").await.unwrap();
    let is_done = AtomicBool::new(false);
    let mut longest = Duration::ZERO;
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let begun = Instant::now();
            // Far from what the client finds by itself on this machine.
            for second in (1000..).step_by(2) {
                client.note_memory(Duration::from_secs(second), Supply::Short);
                if known(client) <= FLOOR || begun.elapsed() > Duration::from_secs(60) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            is_done.store(true, Ordering::Relaxed);
        });
        while !is_done.load(Ordering::Relaxed) {
            let begun = Instant::now();
            futures_lite::future::block_on(client.getattr(used)).unwrap();
            longest = longest.max(begun.elapsed());
        }
    });
    longest
}

#[test]
fn calls_do_not_wait_while_caches_shrink() {
    let mut best = Duration::MAX;
    // This machine may have something else to do, and then whoever runs waits for a core: it is enough
    // to have been left alone once.
    for _ in 0..20 {
        let (sender, longest) = std::sync::mpsc::channel();
        with_client(async move |fake, client| {
            fake.serve(TREE);
            sender.send(longest_call_while_it_shrinks(&fake, &client).await).unwrap();
            assert!(known(&client) <= FLOOR, "{}", known(&client));
            let returned = || returned(&fake).len() as u64;
            until("their locks are returned", || returned() >= INODES - FLOOR).await;
            let memory = status(&client)["client"]["memory"].take();
            assert_eq!(memory["inodes_max"], FLOOR, "{memory}");
            assert_ne!(memory["data_part"], "all", "{memory}");
            // What was forgotten is found again.
            let found = client.lookup(&Caller::ROOT, Tree::directory(0), b"3").await.unwrap();
            assert_eq!(found.attr.ino, Tree::file(0, 3));
        });
        best = best.min(longest.recv().unwrap());
        if best < Duration::from_millis(10) {
            return;
        }
    }
    panic!("each time a call took {best:?} or more");
}

#[test]
fn caches_shrink_while_the_server_is_away() {
    with_client(async |fake, client| {
        fake.serve(TREE);
        scan(&client).await;
        fake.0.lock().holds_returns = true;
        for second in (1000..).step_by(2).take(5) {
            client.note_memory(Duration::from_secs(second), Supply::Short);
            let allowed = || status(&client)["client"]["memory"]["inodes_max"].as_u64().unwrap();
            until("caches shrink", || known(&client) <= allowed()).await;
        }
        assert!(known(&client) <= FLOOR, "{}", known(&client));
        assert!(returned(&fake).is_empty());
        fake.0.lock().holds_returns = false;
        until("locks are returned", || returned(&fake).len() as u64 >= INODES - FLOOR).await;
    });
}

#[test]
fn who_is_not_used_returns_all_locks_in_steps() {
    with_client(async |fake, client| {
        fake.serve(TREE);
        client.return_locks_after(Some(Duration::from_secs(600)));
        scan(&client).await;
        client.note_use();
        let look = |second| client.note_memory(Duration::from_secs(second), Supply::Ample);
        look(10_000);
        look(10_599);
        assert!(known(&client) >= INODES, "not yet");
        look(10_600);
        until("half of them are forgotten", || known(&client) <= INODES / 2 + 50).await;
        assert!(known(&client) >= INODES / 3, "{}: the others stay for now", known(&client));
        for step in 1..20 {
            look(10_600 + 60 * step);
            let allowed = || status(&client)["client"]["memory"]["inodes_max"].as_u64().unwrap();
            until("a part of them is forgotten", || known(&client) <= allowed()).await;
        }
        assert_eq!(known(&client), 0);
        let evicted = status(&client)["client"]["evicted_inodes"].as_u64().unwrap();
        assert!(evicted >= INODES, "{evicted}");
        until("all locks are returned", || returned(&fake).len() as u64 >= INODES).await;
        // The first call allows all, before anybody has looked again.
        client.note_use();
        let memory = status(&client)["client"]["memory"].take();
        assert_eq!(memory["inodes_max"], memory["inodes_max_ample"], "{memory}");
        scan(&client).await;
        assert!(known(&client) >= INODES, "it may keep all again");
    });
}

//! Allocations of requests on their steady path, counted.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use allocation_counter::measure;
use futures_lite::future::block_on;
use glint_kv::local::{LocalKv, Options};
use glint_mds::Mds;
use glint_proto::MetadataService;
use glint_proto::limits::SCAN_BYTES_MAX;
use glint_proto::{Arrival, Cred, FileType, Ino, MdsReply, MdsRequest, Timestamp};
use std::time::Duration;
use support::make;

fn start(path: &std::path::Path) -> Mds<LocalKv> {
    let options = Options {
        cache_bytes: 1 << 20,
        memtable_bytes: 16 << 20,
        journal_bytes: 64 << 20,
        segment_bytes: 32 << 20,
        open_tables: 64,
        commit_interval: Duration::from_secs(1),
        readers: 4,
    };
    support::start(LocalKv::open(path, options).unwrap(), 1, false)
}

/// Allocations of each of many requests, on average.
fn each(
    mds: &Mds<LocalKv>,
    mut request: impl FnMut(u64) -> Vec<u8>,
    parent: Ino,
    create: bool,
) -> f64 {
    const MANY: u64 = 2000;
    let names: Vec<Vec<u8>> = (0..MANY).map(&mut request).collect();
    let arrival = Arrival { now: Timestamp::now(), ..Arrival::default() };
    let counted = measure(|| {
        for name in &names {
            let request = match create {
                true => make(parent, name, FileType::Regular, 0o755),
                false if name.is_empty() => MdsRequest::Getattr { ino: parent },
                false => MdsRequest::Lookup { parent, name },
            };
            // A name that is not there is an answer, too.
            let _ = block_on(mds.handle(&arrival, &Cred::ROOT, &request));
        }
    });
    counted.count_total as f64 / MANY as f64
}

#[test]
fn a_request_allocates_what_it_keeps_and_hardly_more() {
    let dir = tempfile::tempdir().unwrap();
    let mds = start(dir.path());
    let arrival = Arrival { now: Timestamp::now(), ..Arrival::default() };
    let made = block_on(mds.handle(
        &arrival,
        &Cred::ROOT,
        &make(Ino::ROOT, b"directory", FileType::Directory, 0o755),
    ));
    let Ok(MdsReply::Attr(directory)) = made.reply else { panic!("{made:?}") };
    let parent = directory.ino;
    let name = |n: u64| format!("a name of usual length {n}").into_bytes();
    each(&mds, name, parent, true);

    let getattr = each(&mds, |_| Vec::new(), parent, false);
    let absent = each(&mds, |n| format!("absent {n}").into_bytes(), parent, false);
    let present = each(&mds, name, parent, false);
    let create = each(&mds, |n| format!("another name {n}").into_bytes(), parent, true);
    let scan = each_of_a_scan(&mds, parent);
    println!("scan {scan}");
    println!("getattr {getattr}, lookup {absent} (absent) {present} (there), create {create}");
    assert!(getattr < 0.01, "getattr: {getattr}");
    assert!(absent < 0.01, "lookup of what is not there: {absent}");
    // The key; what is found is shared with the engine.
    assert!(present < 2.01, "lookup: {present}");
    // The batch, keys and values that stay among the newest writes, and nodes of its maps.
    assert!(create < 13.0, "create: {create}");
    // The name. The page grows, and what is found is shared with the engine.
    assert!(scan < 1.3, "scan: {scan}");
}

/// Allocations for each entry of a directory that is scanned, on average.
fn each_of_a_scan(mds: &Mds<LocalKv>, directory: Ino) -> f64 {
    let arrival = Arrival { now: Timestamp::now(), ..Arrival::default() };
    let (mut cookie, mut entries) = (Some(0), 0);
    let counted = measure(|| {
        while let Some(from) = cookie {
            let directories = vec![(directory, from)];
            let bytes_max = SCAN_BYTES_MAX as u32;
            let request = MdsRequest::Scan { directories, bytes_max, filter: None };
            let answer = block_on(mds.handle(&arrival, &Cred::ROOT, &request));
            let Ok(MdsReply::Scanned { pages, .. }) = answer.reply else { panic!("{answer:?}") };
            let page = pages[0].as_ref().unwrap();
            entries += page.entries.len();
            cookie = page.entries.last().filter(|_| !page.end).map(|last| last.cookie);
        }
    });
    assert_eq!(entries, 4000);
    counted.count_total as f64 / entries as f64
}

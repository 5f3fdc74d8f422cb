//! Windows that are fetched around small reads, and regions around large ones.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{Fake, KernelPages, PAGE, Tree, with_client};
use futures_util::future::join;
use glint_client::{Caller, Client, Handle, Kernel, Vfs};
use glint_net::{LockClient, host};
use glint_proto::lock::Recall;
use glint_proto::{ObjectId, OpenFlags, OstRequest};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TREE: Tree = Tree { directories: 1, files: 1, bytes: 64 << 20 };
const WINDOW: u64 = 64 << 10;
const BLOCK: u64 = 1 << 20;

/// A file that is open to be read, and a kernel that has no pages of it.
async fn open(fake: &Fake, client: &Client<Fake>) -> (Arc<KernelPages>, Handle) {
    fake.serve(TREE);
    let pages = KernelPages::of(client);
    client.lookup(&Caller::ROOT, Tree::directory(0), b"0").await.unwrap();
    let flags = OpenFlags { read: true, ..OpenFlags::default() };
    let file = client.open(&Caller::ROOT, Tree::file(0, 0), flags).await.unwrap().handle;
    (pages, file)
}

/// Reads a page, which is all of the same byte.
async fn read(pages: &KernelPages, client: &Client<Fake>, file: Handle, page: u64) -> u8 {
    let ino = Tree::file(0, 0);
    let data = match pages.get(ino, page) {
        Some(data) => data,
        None => {
            let mut data = vec![0; PAGE as usize];
            let len = client.read(file, page * PAGE, &mut data, true).await.unwrap();
            assert_eq!(len as u64, PAGE);
            pages.store_pages(ino, page * PAGE, &data);
            data
        }
    };
    assert!(data.iter().all(|byte| *byte == data[0]));
    data[0]
}

/// Reads a block, which is all of the same byte.
async fn read_block(pages: &KernelPages, client: &Client<Fake>, file: Handle, block: u64) -> u8 {
    let ino = Tree::file(0, 0);
    let numbers = block * BLOCK / PAGE..(block + 1) * BLOCK / PAGE;
    let known: Vec<_> = numbers.map_while(|page| pages.get(ino, page)).flatten().collect();
    let data = match known.len() as u64 {
        BLOCK => known,
        _ => {
            let mut data = vec![0; BLOCK as usize];
            let len = client.read(file, block * BLOCK, &mut data, true).await.unwrap();
            assert_eq!(len as u64, BLOCK);
            pages.store_pages(ino, block * BLOCK, &data);
            data
        }
    };
    assert!(data.iter().all(|byte| *byte == data[0]));
    data[0]
}

/// Blocks of the file, in an order in which no two come one after the other.
fn blocks() -> impl Iterator<Item = u64> {
    (1..=TREE.bytes / BLOCK).map(|n| n * 37 % (TREE.bytes / BLOCK))
}

/// Waits until something is so.
async fn wait(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        host::sleep(Duration::from_millis(1)).await;
    }
}

/// Reads of objects, so far.
fn requests(fake: &Fake) -> usize {
    fake.count(|request| matches!(request, OstRequest::Read { .. }))
}

/// Requests for regions, so far.
fn regions(fake: &Fake) -> usize {
    fake.count(is_region)
}

fn is_region(request: &OstRequest) -> bool {
    matches!(request, OstRequest::Read { len, .. } if u64::from(*len) == 4 * BLOCK)
}

#[test]
fn a_quarter_of_a_file_is_read_anywhere_with_one_request_for_two_reads_at_most() {
    with_client(async |fake, client| {
        let (pages, file) = open(&fake, &client).await;
        let (all, mut random) = (TREE.bytes / PAGE, 1u64);
        for _ in 0..all / 4 {
            random = random.wrapping_mul(6_364_136_223_846_793_005);
            random = random.wrapping_add(1_442_695_040_888_963_407);
            let byte = read(&pages, &client, file, (random >> 24) % all).await;
            assert_eq!(byte, Tree::file(0, 0).0 as u8);
        }
        assert!(2 * requests(&fake) <= all as usize / 4, "{} requests", requests(&fake));
    });
}

#[test]
fn two_reads_in_one_window_are_one_request() {
    with_client(async |fake, client| {
        let (pages, file) = open(&fake, &client).await;
        // The lock is asked for.
        read(&pages, &client, file, 1000).await;
        let before = requests(&fake);
        join(read(&pages, &client, file, 165), read(&pages, &client, file, 172)).await;
        assert_eq!(requests(&fake), before + 1);
    });
}

/// Eight windows go to the kernel's pages, and one is kept: another client changes all of them.
#[test]
fn what_another_client_writes_into_a_window_is_seen() {
    with_client(async |fake, client| {
        let (pages, file) = open(&fake, &client).await;
        let (windows, ino) = ([5, 2, 9, 1, 7, 3, 8, 4, 6], Tree::file(0, 0));
        let of_window = WINDOW / PAGE;
        for window in windows {
            read(&pages, &client, file, window * of_window).await;
        }
        assert_eq!(requests(&fake), windows.len());
        wait(|| pages.count() as u64 == 8 * of_window + 1).await;
        client.on_recall(vec![Recall::Data { ino, number: 1 }]);
        wait(|| !fake.0.lock().returns.is_empty()).await;
        let object = ObjectId { ino, stripe: 0 };
        fake.0.lock().objects.get_mut(&object).unwrap().fill(0xee);
        for page in (1..of_window).rev() {
            for window in windows {
                assert_eq!(read(&pages, &client, file, window * of_window + page).await, 0xee);
            }
        }
    });
}

#[test]
fn a_file_that_is_read_in_blocks_in_any_order_comes_in_regions() {
    with_client(async |fake, client| {
        let (pages, file) = open(&fake, &client).await;
        for block in blocks() {
            let byte = read_block(&pages, &client, file, block).await;
            assert_eq!(byte, Tree::file(0, 0).0 as u8);
        }
        // Eight reads are alone, and perhaps one more before it is known that regions pay. The first
        // one is beside its region, and each after one that came late.
        let (all, regions) = (requests(&fake), regions(&fake));
        assert!((16..18).contains(&regions) && all <= 9 + 2 * regions, "{regions} of {all}");
    });
}

#[test]
fn a_read_in_no_order_does_not_wait_for_its_region_where_none_came_soon() {
    with_client(async |fake, client| {
        let (pages, file) = open(&fake, &client).await;
        fake.0.lock().stands_still = Some(is_region);
        for block in blocks().take(12) {
            let begun = Instant::now();
            read_block(&pages, &client, file, block).await;
            // One that waits gives up after two seconds.
            assert!(begun.elapsed() < Duration::from_secs(1), "{block}");
        }
        wait(|| fake.0.lock().unanswered == 4).await;
        assert_eq!((regions(&fake), requests(&fake)), (0, 12));
        fake.0.lock().stands_still = None;
        wait(|| regions(&fake) == 4).await;
        // One is kept, and three go to the kernel, which had one of their other blocks.
        wait(|| pages.count() as u64 == (12 + 3 * 3 - 1) * BLOCK / PAGE).await;
    });
}

/// Some regions go to the kernel's pages, and some are kept: another client changes all of them.
#[test]
fn what_another_client_writes_into_a_region_around_a_read_is_seen() {
    with_client(async |fake, client| {
        let (pages, file) = open(&fake, &client).await;
        for block in blocks().take(20) {
            read_block(&pages, &client, file, block).await;
        }
        assert!(regions(&fake) >= 8, "{}", regions(&fake));
        client.on_recall(vec![Recall::Data { ino: Tree::file(0, 0), number: 1 }]);
        wait(|| !fake.0.lock().returns.is_empty()).await;
        let object = ObjectId { ino: Tree::file(0, 0), stripe: 0 };
        fake.0.lock().objects.get_mut(&object).unwrap().fill(0xee);
        for block in blocks() {
            assert_eq!(read_block(&pages, &client, file, block).await, 0xee);
        }
    });
}

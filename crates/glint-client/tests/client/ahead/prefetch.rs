//! Small files that are read before a program does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{Fake, KernelPages, Tree, with_client};
use glint_client::{Caller, Client, Vfs};
use glint_net::{LockClient, host};
use glint_proto::lock::Recall;
use glint_proto::{Errno, Ino, ObjectId, Op, OpenFlags, OstRequest};
use std::collections::BTreeMap;
use std::sync::Arc;
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

/// A kernel that knows all files of a directory, and has no pages.
async fn known_files(fake: &Fake, client: &Client<Fake>) -> Arc<KernelPages> {
    fake.serve(TREE);
    let pages = KernelPages::of(client);
    for number in 0..TREE.files {
        let name = number.to_string();
        client.lookup(&Caller::ROOT, Tree::directory(0), name.as_bytes()).await.unwrap();
    }
    pages
}

/// Opens a file of one page, reads it if it is not here, and closes it. Returns its data, and
/// whether it was read.
async fn read_file(pages: &KernelPages, client: &Client<Fake>, ino: Ino) -> (Vec<u8>, bool) {
    let flags = OpenFlags { read: true, ..OpenFlags::default() };
    let file = client.open(&Caller::ROOT, ino, flags).await.unwrap().handle;
    let here = pages.get(ino, 0);
    let was_read = here.is_none();
    let data = match here {
        Some(data) => data,
        None => {
            let mut data = vec![0; 1000];
            let len = client.read(file, 0, &mut data, true).await.unwrap();
            data.truncate(len);
            data
        }
    };
    client.release(file).await.unwrap();
    (data, was_read)
}

/// Waits until the kernel was given so many files, of one page each.
async fn are_here(pages: &KernelPages, files: usize) {
    let begun = Instant::now();
    while pages.count() < files {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} files", pages.count());
        host::sleep(Duration::from_millis(1)).await;
    }
}

/// Two files are read; all others of the directory are only opened and closed.
#[test]
fn the_kernel_is_given_files_that_are_prefetched_until_the_last_one() {
    with_client(async |fake, client| {
        let pages = known_files(&fake, &client).await;
        for number in 0..TREE.files {
            let ino = Tree::file(0, number);
            let (data, was_read) = read_file(&pages, &client, ino).await;
            assert_eq!((data, was_read), (TREE.content(ino), number < 2), "{number}");
            match number {
                1 => are_here(&pages, WINDOW as usize).await,
                // Half of them were opened: the rest is asked for.
                4 => are_here(&pages, TREE.files as usize - 2).await,
                _ => {}
            }
        }
        let once = (0..TREE.files).map(|number| (number, 1)).collect();
        assert_eq!(reads(&fake), once);
    });
}

/// Lists a directory with the attributes of its files. Returns these in order.
async fn list(client: &Client<Fake>, directory: u64) -> Vec<Ino> {
    let handle = client.opendir(&Caller::ROOT, Tree::directory(directory)).await.unwrap();
    let (mut files, mut cookie) = (Vec::new(), 0);
    loop {
        let page = client.readdir(&Caller::ROOT, handle, cookie, 1 << 16, true).await.unwrap();
        let Some(last) = page.entries.last() else { break };
        cookie = last.cookie;
        files.extend(page.entries.iter().map(|entry| entry.ino));
    }
    client.release(handle).await.unwrap();
    files
}

/// All directories are listed, and then all files are read in this order, as `find | xargs cat` does.
#[test]
fn a_sequence_goes_on_in_the_directory_that_was_listed_next() {
    const TREE: Tree = Tree { directories: 12, files: 5, bytes: 300 };
    with_client(async |fake, client| {
        fake.serve(TREE);
        let pages = KernelPages::of(&client);
        // Another order than that of numbers.
        let order: Vec<u64> = (0..12).map(|n| n * 5 % 12).collect();
        let mut files = Vec::new();
        for directory in &order {
            files.extend(list(&client, *directory).await);
        }
        assert_eq!(files.len(), 60);
        let mut read_alone = Vec::new();
        for (at, ino) in files.iter().enumerate() {
            let (data, was_read) = read_file(&pages, &client, *ino).await;
            assert_eq!(data, TREE.content(*ino), "{at}");
            if was_read {
                read_alone.push(at);
            }
            match at {
                // The rest of the first directory; of the second one with some that follow it.
                1 => are_here(&pages, 3).await,
                5 => are_here(&pages, 3 + 16).await,
                6 => are_here(&pages, 3 + 16 + 16).await,
                // A file of the directories that follow was read: all others are asked for.
                22.. => are_here(&pages, 60 - 3).await,
                _ => {}
            }
        }
        assert_eq!(read_alone, [0, 1, 5]);
        // Each of those asked for its lock; four requests did for all others.
        assert!(fake.asked(Op::Lock) <= 3 + 4, "{} requests", fake.asked(Op::Lock));
    });
}

/// Directories are listed one by one, each right before its files are read, as tar(1) does, or files
/// are opened by names that the program knows; and in some directories they are not.
#[test]
fn a_listing_begins_with_its_files_after_a_sequence_and_not_without_reads() {
    const TREE: Tree = Tree { directories: 5, files: 10, bytes: 300 };
    for is_by_name in [false, true] {
        with_client(async move |fake, client| {
            fake.serve(TREE);
            client.prefetch_files();
            let begin = async |directory: u64| {
                if !is_by_name {
                    return list(&client, directory).await;
                }
                for name in [b"0", b"1"] {
                    let parent = Tree::directory(directory);
                    client.lookup(&Caller::ROOT, parent, name).await.unwrap();
                }
                (0..TREE.files).map(|number| Tree::file(directory, number)).collect()
            };
            let files_read = |directory: u64| {
                let first = Tree::file(directory, 0).0 - Tree::file(0, 0).0;
                reads(&fake).range(first..first + TREE.files).count()
            };
            let wait_for = async |directory: u64, files: usize| {
                let begun = Instant::now();
                while files_read(directory) < files {
                    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", reads(&fake));
                    host::sleep(Duration::from_millis(1)).await;
                }
            };
            let no_pages = KernelPages::default();
            for (at, ino) in begin(0).await.into_iter().enumerate() {
                let (data, _) = read_file(&no_pages, &client, ino).await;
                assert_eq!(data, TREE.content(ino), "{at}");
                match at {
                    1 => wait_for(0, 2 + WINDOW as usize).await,
                    2 => wait_for(0, 10).await,
                    _ => {}
                }
            }
            // Nothing was read before.
            assert_eq!((1..5).map(files_read).sum::<usize>(), 0);
            for directory in 1..3 {
                begin(directory).await;
                wait_for(directory, 10).await;
            }
            for directory in 3..5 {
                begin(directory).await;
            }
            host::sleep(Duration::from_millis(20)).await;
            assert_eq!((3..5).map(files_read).sum::<usize>(), 0);
        });
    }
}

/// All files of a tree are read once, in an order that looks random, as a data loader reads them.
#[test]
fn who_reads_files_in_no_order_has_most_of_them_asked_for_together() {
    const TREE: Tree = Tree { directories: 10, files: 60, bytes: 300 };
    with_client(async |fake, client| {
        fake.serve(TREE);
        let pages = KernelPages::of(&client);
        let mut files = Vec::new();
        for directory in 0..TREE.directories {
            files.extend(list(&client, directory).await);
        }
        let mut random = 1_u64;
        for at in (1..files.len()).rev() {
            random = random.wrapping_mul(6_364_136_223_846_793_005);
            random = random.wrapping_add(1_442_695_040_888_963_407);
            files.swap(at, (random >> 33) as usize % (at + 1));
        }
        for (at, ino) in files.iter().enumerate() {
            assert_eq!(read_file(&pages, &client, *ino).await.0, TREE.content(*ino), "{at}");
            // What was asked for comes meanwhile.
            host::sleep(Duration::from_millis(1)).await;
        }
        // Some 60 have asked for their locks alone; 600 without this.
        assert!(fake.asked(Op::Lock) <= 200, "{} requests", fake.asked(Op::Lock));
        let reads: usize = reads(&fake).values().sum();
        assert!((600..=615).contains(&reads), "{reads} reads");
    });
}

/// One file of each directory is read, as `cat */Makefile` does.
#[test]
fn who_reads_one_file_of_each_directory_has_no_others_asked_for() {
    const TREE: Tree = Tree { directories: 60, files: 10, bytes: 300 };
    with_client(async |fake, client| {
        fake.serve(TREE);
        let pages = KernelPages::of(&client);
        for directory in 0..TREE.directories {
            list(&client, directory).await;
        }
        for directory in 0..TREE.directories {
            // No order begins or ends with it.
            let ino = Tree::file(directory, 3);
            assert_eq!(read_file(&pages, &client, ino).await, (TREE.content(ino), true));
        }
        host::sleep(Duration::from_millis(20)).await;
        assert_eq!((reads(&fake).len(), fake.asked(Op::Lock)), (60, 60));
    });
}

/// The lock on the data of one that nobody has opened is recalled.
#[test]
fn the_kernel_forgets_what_it_was_given_when_the_lock_is_recalled() {
    with_client(async |fake, client| {
        let pages = known_files(&fake, &client).await;
        for number in 0..2 {
            read_file(&pages, &client, Tree::file(0, number)).await;
        }
        are_here(&pages, WINDOW as usize).await;
        let ino = Tree::file(0, 3);
        client.on_recall(vec![Recall::Data { ino, number: 1 }]);
        let begun = Instant::now();
        while pages.get(ino, 0).is_some() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it has the pages");
            host::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(read_file(&pages, &client, ino).await, (TREE.content(ino), true));
    });
}

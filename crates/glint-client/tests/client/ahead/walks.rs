//! A program that walks a tree finds the listings of further directories here.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{Fake, Tree, with_client};
use futures_util::FutureExt;
use futures_util::future::join;
use glint_client::{Caller, Client, Handle, Make, Vfs};
use glint_net::{LockClient, host};
use glint_proto::lock::{Bits, Recall, Return};
use glint_proto::{DirEntry, Ino, Op};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const TREE: Tree = Tree { directories: 40, files: 10, bytes: 0 };
/// Bytes that a program has room for in a page.
const ROOM: u32 = 32 << 10;

/// A program that walks the tree of a client.
struct TreeReader<'a> {
    fake: &'a Fake,
    client: &'a Client<Fake>,
}

impl TreeReader<'_> {
    async fn open(&self, directory: Ino) -> Handle {
        self.client.opendir(&Caller::ROOT, directory).await.unwrap()
    }

    /// Lists an open directory, and closes it.
    async fn read(&self, handle: Handle) -> Vec<DirEntry> {
        let (mut entries, mut cookie) = (Vec::new(), 0);
        loop {
            let page =
                self.client.readdir(&Caller::ROOT, handle, cookie, ROOM, true).await.unwrap();
            let Some(last) = page.entries.last() else { break };
            cookie = last.cookie;
            entries.extend(page.entries);
        }
        self.client.release(handle).await.unwrap();
        entries
    }

    async fn list(&self, directory: Ino) -> Vec<DirEntry> {
        let handle = self.open(directory).await;
        self.read(handle).await
    }

    /// Listings that were asked for.
    fn asked(&self) -> usize {
        self.fake.asked(Op::Readdir)
    }

    /// Waits until so many listings were asked for, and no more.
    async fn has_asked(&self, listings: usize) {
        let begun = Instant::now();
        while self.asked() < listings {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", self.asked());
            host::sleep(Duration::from_millis(1)).await;
        }
        host::sleep(Duration::from_millis(20)).await;
        assert_eq!(self.asked(), listings);
    }

    /// Another client wants these.
    async fn loses(&self, ino: Ino, bits: Bits) {
        self.client.on_recall(vec![Recall::Bits { ino, bits, number: 2 }]);
        while !self.fake.0.lock().returns.contains(&Return::Bits { ino, bits, number: 2 }) {
            host::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Lists the root, and the first of its directories. Returns the others, in their order.
    async fn begin(&self) -> Vec<Ino> {
        self.begin_in(TREE).await
    }

    /// The same in this tree.
    async fn begin_in(&self, tree: Tree) -> Vec<Ino> {
        self.fake.serve(tree);
        self.client.prefetch_files();
        let mut directories: Vec<Ino> =
            self.list(Ino::ROOT).await.iter().map(|entry| entry.ino).collect();
        assert_eq!(directories.len() as u64, tree.directories);
        self.has_asked(1).await;
        self.list(directories.remove(0)).await;
        self.has_asked(3 + tree.pages(ROOM)).await;
        directories
    }
}

#[test]
fn who_walks_a_tree_waits_for_no_more_listings_and_asks_for_as_many() {
    with_client(async |fake, client| {
        let walk = TreeReader { fake: &fake, client: &client };
        let directories = walk.begin().await;
        for (at, directory) in directories.iter().enumerate() {
            let handle = walk.open(*directory).await;
            fake.hold_answers(true);
            let read = client.readdir(&Caller::ROOT, handle, 0, ROOM, true);
            let page = read.now_or_never().expect("it is here").unwrap();
            fake.hold_answers(false);
            assert_eq!(page.entries.len() as u64, TREE.files);
            let is_whole =
                |entry: &DirEntry| entry.attr.as_ref().is_some_and(|attr| attr.ino == entry.ino);
            assert!(page.entries.iter().all(is_whole), "{at}");
            client.release(handle).await.unwrap();
            host::sleep(Duration::from_millis(5)).await;
        }
        walk.has_asked(1 + TREE.directories as usize).await;
        // What it has learned on the way is known.
        assert_eq!(fake.asked(Op::Lookup), 0);
        client.lookup(&Caller::ROOT, directories[7], b"3").await.unwrap();
        assert_eq!(fake.asked(Op::Lookup), 0);
    });
}

#[test]
fn who_comes_while_a_listing_is_on_its_way_waits_for_it() {
    with_client(async |fake, client| {
        let walk = TreeReader { fake: &fake, client: &client };
        let directories = walk.begin().await;
        let handles = [walk.open(directories[0]).await, walk.open(directories[2]).await];
        // This has four be ahead: two more than are here.
        walk.read(handles[0]).await;
        fake.hold_answers(true);
        let answers = async {
            host::sleep(Duration::from_millis(20)).await;
            fake.hold_answers(false);
        };
        let (entries, ()) = join(walk.read(handles[1]), answers).await;
        assert_eq!(entries.len() as u64, TREE.files);
        walk.list(directories[1]).await;
        for directory in &directories[3..] {
            walk.list(*directory).await;
        }
        walk.has_asked(1 + TREE.directories as usize).await;
    });
}

#[test]
fn who_goes_no_further_costs_few_requests() {
    with_client(async |fake, client| {
        let walk = TreeReader { fake: &fake, client: &client };
        let directories = walk.begin().await;
        host::sleep(Duration::from_millis(50)).await;
        walk.has_asked(4).await;
        for at in [30, 20, 10, 25, 15] {
            walk.list(directories[at]).await;
        }
        walk.has_asked(4 + 5 + 1).await;
    });
}

#[test]
fn nothing_is_listed_ahead_where_nothing_is_prefetched() {
    with_client(async |fake, client| {
        let walk = TreeReader { fake: &fake, client: &client };
        fake.serve(TREE);
        for directory in walk.list(Ino::ROOT).await {
            walk.list(directory.ino).await;
        }
        walk.has_asked(1 + TREE.directories as usize).await;
    });
}

/// A directory that is larger than a page, or than what comes ahead, costs as many requests as
/// without; each name comes once.
#[test]
fn what_does_not_fit_into_a_page_is_asked_for() {
    for files in [300, 600] {
        with_client(async move |fake, client| {
            let walk = TreeReader { fake: &fake, client: &client };
            let tree = Tree { directories: 10, files, bytes: 0 };
            fake.serve(tree);
            client.prefetch_files();
            for directory in walk.list(Ino::ROOT).await {
                let listed = walk.list(directory.ino).await;
                let inodes: BTreeSet<u64> = listed.iter().map(|entry| entry.ino.0).collect();
                assert_eq!((listed.len() as u64, inodes.len() as u64), (files, files));
            }
            walk.has_asked(1 + 10 * tree.pages(ROOM)).await;
        });
    }
}

/// The first page of a large directory was listed ahead; then others make a name in it.
#[test]
fn a_name_that_another_client_makes_in_a_large_directory_is_seen() {
    with_client(async |fake, client| {
        let walk = TreeReader { fake: &fake, client: &client };
        let large = Tree { files: 600, ..TREE };
        let directories = walk.begin_in(large).await;
        walk.loses(directories[0], Bits::NEGATIVE).await;
        fake.serve(Tree { files: large.files + 1, ..large });
        assert_eq!(walk.list(directories[0]).await.len() as u64, large.files + 1);
    });
}

/// The kernel has room for fewer entries than a page has, and asks for the others again.
#[test]
fn entries_that_come_again_are_no_further_directories() {
    with_client(async |fake, client| {
        let walk = TreeReader { fake: &fake, client: &client };
        fake.serve(TREE);
        client.prefetch_files();
        let root = walk.open(Ino::ROOT).await;
        let (mut directories, mut cookie) = (Vec::new(), 0);
        loop {
            let page = client.readdir(&Caller::ROOT, root, cookie, ROOM, true).await.unwrap();
            let fit = page.entries.into_iter().take(30);
            let before = directories.len();
            directories.extend(fit.map(|entry| (entry.ino, entry.cookie)));
            match directories[before..].last() {
                Some((_, last)) => cookie = *last,
                None => break,
            }
        }
        client.release(root).await.unwrap();
        assert_eq!(directories.len() as u64, TREE.directories);
        for (directory, _) in directories {
            walk.list(directory).await;
        }
        walk.has_asked(2 + TREE.directories as usize).await;
    });
}

/// `git status` looks all names up that it knows, and lists their directories after that, for others.
#[test]
fn who_has_looked_names_up_lists_their_directories_without_asking() {
    with_client(async |fake, client| {
        let walk = TreeReader { fake: &fake, client: &client };
        fake.serve(TREE);
        client.prefetch_files();
        let directories: Vec<Ino> = (0..TREE.directories).map(Tree::directory).collect();
        for directory in &directories {
            for number in 0..TREE.files {
                let name = number.to_string();
                client.lookup(&Caller::ROOT, *directory, name.as_bytes()).await.unwrap();
            }
        }
        let pages = TREE.directories as usize;
        walk.has_asked(pages).await;
        walk.loses(directories[7], Bits::NEGATIVE).await;
        for directory in &directories {
            assert_eq!(walk.list(*directory).await.len() as u64, TREE.files);
        }
        walk.has_asked(pages + 1).await;
        // Each is told once.
        walk.list(directories[0]).await;
        walk.has_asked(pages + 2).await;
    });
}

/// A program that lists nothing goes through the directories in the order of their names, and lists them
/// after that.
#[test]
fn who_looks_names_up_in_directory_after_directory_finds_the_next_one_here() {
    with_client(async |fake, client| {
        let walk = TreeReader { fake: &fake, client: &client };
        fake.serve(TREE);
        client.prefetch_files();
        let mut names: Vec<String> = (0..TREE.directories).map(|n| n.to_string()).collect();
        names.sort_unstable();
        for (at, name) in names.iter().enumerate() {
            let found = client.lookup(&Caller::ROOT, Ino::ROOT, name.as_bytes()).await.unwrap();
            for number in 0..TREE.files {
                fake.hold_answers(at > 2);
                let name = number.to_string();
                let lookup = client.lookup(&Caller::ROOT, found.attr.ino, name.as_bytes());
                if at > 2 {
                    lookup.now_or_never().expect("it is here").unwrap();
                } else {
                    lookup.await.unwrap();
                }
                fake.hold_answers(false);
            }
            host::sleep(Duration::from_millis(5)).await;
        }
        // The first directory and its first file, and a page of each directory.
        let pages = 1 + TREE.directories as usize;
        walk.has_asked(pages).await;
        assert_eq!(fake.asked(Op::Lookup), 2);
        for directory in 0..TREE.directories {
            let entries = walk.list(Tree::directory(directory)).await;
            assert_eq!(entries.len() as u64, TREE.files);
        }
        walk.has_asked(pages).await;
    });
}

#[test]
fn who_looks_a_name_up_while_the_page_is_on_its_way_waits_for_it() {
    with_client(async |fake, client| {
        let walk = TreeReader { fake: &fake, client: &client };
        fake.serve(TREE);
        client.prefetch_files();
        let find = async |parent: Ino, name: &str| {
            client.lookup(&Caller::ROOT, parent, name.as_bytes()).await.unwrap().attr.ino
        };
        for (directory, name) in [(0, "0"), (1, "1")] {
            find(Ino::ROOT, name).await;
            for file in ["0", "1"] {
                find(Tree::directory(directory), file).await;
            }
            // Two in the order of names: the next one, 10, is asked for.
            fake.hold_answers(directory == 1);
        }
        let answers = async {
            host::sleep(Duration::from_millis(20)).await;
            fake.hold_answers(false);
        };
        let (found, ()) = join(find(Tree::directory(10), "7"), answers).await;
        assert_eq!(found, Tree::file(10, 7));
        assert_eq!(fake.asked(Op::Lookup), 2);
        walk.has_asked(4).await;
    });
}

/// Others make a name, and move one away, in directories that were listed ahead.
#[test]
fn a_change_by_another_client_is_seen() {
    with_client(async |fake, client| {
        let walk = TreeReader { fake: &fake, client: &client };
        let directories = walk.begin().await;
        walk.loses(directories[0], Bits::NEGATIVE).await;
        let file = Ino(directories[1].0 + 1);
        walk.loses(file, Bits::ENTRY).await;
        fake.serve(Tree { files: TREE.files + 1, ..TREE });
        for directory in &directories[..2] {
            let asked = walk.asked();
            assert_eq!(walk.list(*directory).await.len() as u64, TREE.files + 1);
            assert!(walk.asked() > asked);
        }
    });
}

/// The names are still those that came.
#[test]
fn attributes_that_others_may_have_changed_are_not_told() {
    with_client(async |fake, client| {
        let walk = TreeReader { fake: &fake, client: &client };
        let directories = walk.begin().await;
        let file = Ino(directories[0].0 + 1);
        walk.loses(file, Bits::ATTR).await;
        let entries = walk.list(directories[0]).await;
        let unknown: Vec<Ino> =
            entries.iter().filter(|entry| entry.attr.is_none()).map(|entry| entry.ino).collect();
        assert_eq!((entries.len() as u64, unknown), (TREE.files, vec![file]));
    });
}

/// All names of the directories are known, but others write one file of each, so that they are not listed
/// from memory.
#[test]
fn directories_that_cannot_be_listed_from_memory_are_listed_ahead() {
    with_client(async |fake, client| {
        let walk = TreeReader { fake: &fake, client: &client };
        fake.serve(TREE);
        client.prefetch_files();
        // It hears in which order the MDS lists names.
        let make = Make { mode: 0o040_755, umask: 0, rdev: 0, target: b"" };
        assert!(client.make(&Caller::ROOT, Ino::ROOT, b"d", make).await.is_err());
        let directories = async || {
            let mut entries = walk.list(Ino::ROOT).await;
            entries.retain(|entry| !matches!(entry.name.as_slice(), b"." | b".."));
            entries.into_iter().map(|entry| entry.ino).collect::<Vec<Ino>>()
        };
        let all = 1 + TREE.directories as usize;
        for _ in 0..2 {
            for directory in directories().await {
                walk.list(directory).await;
            }
            walk.has_asked(all).await;
        }
        for directory in 0..TREE.directories {
            walk.loses(Tree::file(directory, 3), Bits::ATTR).await;
        }
        for (at, directory) in directories().await.into_iter().enumerate() {
            let handle = walk.open(directory).await;
            fake.hold_answers(at > 0);
            let read = client.readdir(&Caller::ROOT, handle, 0, ROOM, true);
            let page = match at {
                0 => read.await,
                _ => read.now_or_never().expect("it is here"),
            };
            fake.hold_answers(false);
            assert_eq!(page.unwrap().entries.len() as u64, TREE.files);
            client.release(handle).await.unwrap();
            host::sleep(Duration::from_millis(5)).await;
        }
        walk.has_asked(all + TREE.directories as usize).await;
    });
}

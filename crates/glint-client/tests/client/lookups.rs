//! Lookups in one directory, one after the other: a page of names comes with one request.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{Fake, Tree, with_client};
use glint_client::{Caller, Client, Vfs};
use glint_net::LockClient;
use glint_proto::lock::{Bits, Recall, Return};
use glint_proto::{Errno, Ino, Op};
use std::time::Duration;

const NAMES: u64 = 5;
/// Bytes of pages that are asked for.
const SMALL: u32 = 8 << 10;
const LARGE: u32 = 64 << 10;

#[test]
fn the_second_lookup_learns_the_directory() {
    with_client(async |fake, client| {
        fake.serve(Tree { directories: 1, files: NAMES, bytes: 0 });
        let directory = Tree::directory(0);
        let find = async |name: &str| {
            let found = client.lookup(&Caller::ROOT, directory, name.as_bytes()).await;
            found.map(|found| found.attr.ino.0 - Tree::file(0, 0).0)
        };
        let asked = || (fake.asked(Op::Lookup), fake.asked(Op::Readdir));
        assert_eq!(find("0").await, Ok(0));
        assert_eq!(asked(), (1, 0), "one name is no reason to list");
        for at in 0..NAMES {
            assert_eq!(find(&at.to_string()).await, Ok(at));
        }
        assert_eq!((find("9").await, find("8").await), (Err(Errno::ENOENT), Err(Errno::ENOENT)));
        assert_eq!(asked(), (1, 1), "and what is not there is known, too");

        // Another client makes a name, and then removes one.
        let recalled = async |ino, bits| {
            client.on_recall(vec![Recall::Bits { ino, bits, number: 2 }]);
            while !fake.0.lock().returns.contains(&Return::Bits { ino, bits, number: 2 }) {
                glint_net::host::sleep(Duration::from_millis(1)).await;
            }
        };
        recalled(directory, Bits::NEGATIVE).await;
        assert_eq!((find("9").await, find("3").await), (Err(Errno::ENOENT), Ok(3)));
        assert_eq!(asked(), (2, 1), "a name is still where it was");
        recalled(Tree::file(0, 3), Bits::ENTRY).await;
        assert_eq!(find("3").await, Ok(3));
        assert_eq!(asked(), (3, 1));
    });
}

/// Files of a directory whose names come by some ten pages; a prime.
const FILES: u64 = 9_973;

/// Requests of lookups of all names of a directory, one by one in this order; where it `is_listed`, names
/// were listed without attributes before. `step` is that from one to the next.
fn requests_for_all_names(is_listed: bool, step: u64) -> usize {
    let (sender, requests) = std::sync::mpsc::channel();
    with_client(async move |fake, client| {
        fake.serve(Tree { directories: 1, files: FILES, bytes: 0 });
        let (caller, directory) = (Caller::ROOT, Tree::directory(0));
        if is_listed {
            let handle = client.opendir(&caller, directory).await.unwrap();
            let mut cookie = 0;
            loop {
                let page = client.readdir(&caller, handle, cookie, LARGE, false).await.unwrap();
                let Some(last) = page.entries.last() else { break };
                cookie = last.cookie;
            }
        }
        let asked = || fake.asked(Op::Lookup) + fake.asked(Op::Readdir);
        let before = asked();
        for at in 0..FILES {
            let name = (at * step % FILES).to_string();
            let found = client.lookup(&caller, directory, name.as_bytes()).await.unwrap();
            assert_eq!(found.attr.ino, Tree::file(0, at * step % FILES));
        }
        sender.send(asked() - before).unwrap();
    });
    requests.recv().unwrap()
}

#[test]
fn names_that_were_listed_come_by_pages_whatever_their_order() {
    // Pages have them in this order, from the last to the first.
    let in_order = requests_for_all_names(false, FILES - 1);
    assert!(in_order < 150, "{in_order} in the order of the directory");
    for step in [1, FILES - 1, 4_999] {
        let listed = requests_for_all_names(true, step);
        assert!(listed < 300, "{listed} of listed names, {step} apart");
    }
}

/// A directory of which all names are looked up comes whole, long before they all were asked for; also
/// if pages have the names that are looked up first last.
#[test]
fn names_that_were_not_listed_come_by_pages_in_any_order() {
    for step in [1, 377, 4_999] {
        let requests = requests_for_all_names(false, step);
        assert!(requests < 200, "{requests} of names that are {step} apart");
    }
}

/// Looks names up in one directory after the other.
struct Walk<'a> {
    fake: &'a Fake,
    client: &'a Client<Fake>,
}

impl Walk<'_> {
    /// Looks a name up that is there.
    async fn find(&self, directory: Ino, number: u64) {
        let name = number.to_string();
        let found = self.client.lookup(&Caller::ROOT, directory, name.as_bytes()).await;
        let is_root = directory == Ino::ROOT;
        let ino = if is_root { Tree::directory(number) } else { Ino(directory.0 + 1 + number) };
        assert_eq!(found.map(|found| found.attr.ino), Ok(ino));
    }

    /// Looks up a directory, and then so many of its files.
    async fn look_at(&self, directory: u64, files: u64) {
        self.find(Ino::ROOT, directory).await;
        for number in 0..files {
            self.find(Tree::directory(directory), number).await;
        }
    }

    /// Names and pages that were asked for.
    fn asked(&self) -> (usize, usize) {
        (self.fake.asked(Op::Lookup), self.fake.asked(Op::Readdir))
    }
}

#[test]
fn further_directories_are_learned_by_their_first_lookup() {
    const DIRECTORIES: u64 = 20;
    with_client(async |fake, client| {
        let walk = Walk { fake: &fake, client: &client };
        fake.serve(Tree { directories: DIRECTORIES, files: 100, bytes: 0 });
        walk.look_at(0, 100).await;
        // The directory itself and its first file, three names that a small page did not have, and
        // the rest of the names.
        assert_eq!(walk.asked(), (5, 2));
        for directory in 1..DIRECTORIES {
            walk.look_at(directory, 100).await;
        }
        // A page with all directories, and one for each of them.
        assert_eq!(walk.asked(), (5, 2 + DIRECTORIES as usize));
        let mut sizes = fake.0.lock().pages.clone();
        assert_eq!(sizes.drain(..3).collect::<Vec<_>>(), [SMALL, LARGE, SMALL]);
        assert!(sizes.iter().all(|size| *size == LARGE), "as large as was of use before");
    });
}

#[test]
fn small_directories_are_guessed_by_small_pages() {
    with_client(async |fake, client| {
        let walk = Walk { fake: &fake, client: &client };
        fake.serve(Tree { directories: 5, files: 3, bytes: 0 });
        for directory in 0..5 {
            walk.look_at(directory, 3).await;
        }
        assert_eq!((walk.asked(), fake.0.lock().pages.clone()), ((2, 6), vec![SMALL; 6]));
    });
}

/// Requests, and pages among them, for one name in each of many directories: at first, and after
/// some in which all names were looked up.
fn one_name_in_each(files: u64, all_in: u64) -> (usize, usize) {
    const DIRECTORIES: u64 = 50;
    let (sender, receiver) = std::sync::mpsc::channel();
    with_client(async |fake, client| {
        let walk = Walk { fake: &fake, client: &client };
        fake.serve(Tree { directories: 60, files, bytes: 0 });
        for directory in 0..all_in {
            walk.look_at(directory, files).await;
        }
        // The root is known from here on.
        walk.find(Ino::ROOT, 58).await;
        walk.find(Ino::ROOT, 59).await;
        let (names, pages) = walk.asked();
        for directory in 8..8 + DIRECTORIES {
            walk.look_at(directory, 1).await;
        }
        let (names, pages) = (walk.asked().0 - names, walk.asked().1 - pages);
        sender.send((names + pages, pages)).unwrap();
    });
    receiver.recv().unwrap()
}

#[test]
fn one_name_in_each_of_many_directories_costs_no_more_than_it() {
    // The directories were two names that were looked up in one place: as many guesses.
    assert_eq!(one_name_in_each(10, 0), (50, 2));
    // Some pages in vain, no more than are guessed at a time, and instead of the names.
    assert_eq!(one_name_in_each(10, 8), (50, 8));
    // A page that lacks the name costs a request, and is the last one.
    assert_eq!(one_name_in_each(5000, 0), (51, 1));
    assert_eq!(one_name_in_each(5000, 2), (50, 0));
}

#[test]
fn no_more_is_guessed_than_was_of_use_before() {
    with_client(async |fake, client| {
        let walk = Walk { fake: &fake, client: &client };
        fake.serve(Tree { directories: 60, files: 10, bytes: 0 });
        // In one of ten directories two names are looked up.
        for directory in 0..60 {
            walk.look_at(directory, if directory % 10 == 9 { 2 } else { 1 }).await;
        }
        // In the root and in six directories a page is of use at the second name. All but the last
        // one earn two guesses, which are in vain; each is instead of a name.
        let of_use = 7;
        let in_vain = 2 * (of_use - 1);
        let firsts = 1 + 60;
        assert_eq!(walk.asked(), (firsts - in_vain, of_use + in_vain));
    });
}

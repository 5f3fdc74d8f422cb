//! A program that reads a large directory finds the next page here.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{Fake, Tree, with_client};
use futures_util::FutureExt;
use glint_client::{Caller, Client, Handle, Make, Vfs};
use glint_net::{LockClient, host};
use glint_proto::limits::DIR_PAGE_BYTES_MAX;
use glint_proto::lock::{Bits, Grant, Recall, Return};
use glint_proto::{Attr, DirEntry, DirPage, FileType, Ino, MdsReply, MdsRequest, Op, Timestamp};
use std::collections::BTreeSet;
use std::time::Duration;

/// One large directory.
const TREE: Tree = Tree { directories: 1, files: 2000, bytes: 0 };
/// Bytes that a program has room for in a page, and how many entries that are.
const ROOM: u32 = 32 << 10;
const IN_PAGE: u64 = 240;

/// A program that reads the directory.
struct PageReader<'a> {
    fake: &'a Fake,
    client: &'a Client<Fake>,
    handle: Handle,
    /// The kernel has room for so many entries of each page.
    takes: usize,
    cookie: u64,
    read: Vec<DirEntry>,
}

impl<'a> PageReader<'a> {
    async fn begin(fake: &'a Fake, client: &'a Client<Fake>, takes: usize) -> PageReader<'a> {
        fake.serve(TREE);
        client.prefetch_files();
        let handle = client.opendir(&Caller::ROOT, Tree::directory(0)).await.unwrap();
        PageReader { fake, client, handle, takes, cookie: 0, read: Vec::new() }
    }

    /// The same, and it has read two pages.
    async fn begin_in_order(fake: &'a Fake, client: &'a Client<Fake>) -> PageReader<'a> {
        let mut reader = PageReader::begin(fake, client, usize::MAX).await;
        assert!(reader.next().await && reader.next().await);
        reader.has_asked(3).await;
        reader
    }

    /// Reads the next page. Returns whether there was one.
    async fn next(&mut self) -> bool {
        let (client, cookie) = (self.client, self.cookie);
        let page = client.readdir(&Caller::ROOT, self.handle, cookie, ROOM, true).await.unwrap();
        self.take(page.entries)
    }

    /// The same, of one that is here.
    fn next_is_here(&mut self) -> bool {
        self.fake.hold_answers(true);
        let (client, cookie) = (self.client, self.cookie);
        let read = client.readdir(&Caller::ROOT, self.handle, cookie, ROOM, true);
        let page = read.now_or_never().expect("it is here").unwrap();
        self.fake.hold_answers(false);
        let is_whole =
            |entry: &DirEntry| entry.attr.as_ref().is_some_and(|attr| attr.ino == entry.ino);
        assert!(page.entries.iter().all(is_whole));
        self.take(page.entries)
    }

    fn take(&mut self, entries: Vec<DirEntry>) -> bool {
        let before = self.read.len();
        self.read.extend(entries.into_iter().take(self.takes));
        self.cookie = self.read.last().map_or(0, |last| last.cookie);
        self.read.len() > before
    }

    fn asked(&self) -> usize {
        self.fake.asked(Op::Readdir)
    }

    /// So many pages were asked for, and have come.
    async fn has_asked(&self, pages: usize) {
        host::sleep(Duration::from_millis(20)).await;
        assert_eq!(self.asked(), pages);
    }

    /// Each name was read once.
    fn has_read_all(&self) {
        let inodes: BTreeSet<Ino> = self.read.iter().map(|entry| entry.ino).collect();
        assert_eq!((self.read.len() as u64, inodes.len() as u64), (TREE.files, TREE.files));
    }
}

/// Pages as large as they can be, for what is left after so many entries.
fn large_pages(read: u64) -> usize {
    Tree { files: TREE.files - read, ..TREE }.pages(DIR_PAGE_BYTES_MAX as u32)
}

#[test]
fn who_reads_a_large_directory_finds_the_next_page_here() {
    with_client(async |fake, client| {
        let mut reader = PageReader::begin_in_order(&fake, &client).await;
        while reader.next_is_here() {
            host::sleep(Duration::from_millis(20)).await;
        }
        reader.has_read_all();
        reader.has_asked(2 + large_pages(2 * IN_PAGE)).await;
        assert!(reader.asked() <= TREE.pages(ROOM));
        // It goes with the handle.
        client.release(reader.handle).await.unwrap();
    });
}

#[test]
fn who_comes_while_the_page_is_on_its_way_waits_for_it() {
    with_client(async |fake, client| {
        let mut reader = PageReader::begin(&fake, &client, usize::MAX).await;
        while reader.next().await {}
        reader.has_read_all();
        reader.has_asked(2 + large_pages(2 * IN_PAGE)).await;
    });
}

/// The kernel goes on in the middle of each page.
#[test]
fn entries_for_which_there_was_no_room_come_again() {
    with_client(async |fake, client| {
        let mut reader = PageReader::begin(&fake, &client, 200).await;
        while reader.next().await {}
        reader.has_read_all();
        reader.has_asked(2 + large_pages(200 + IN_PAGE)).await;
    });
}

/// Small directories, and those that somebody looks into only, cost no more.
#[test]
fn who_stops_after_the_first_page_has_asked_for_one() {
    with_client(async |fake, client| {
        let mut reader = PageReader::begin(&fake, &client, usize::MAX).await;
        for pages in 1..4 {
            assert!(reader.next().await);
            reader.has_asked(pages).await;
            (reader.cookie, reader.read) = (0, Vec::new());
        }
    });
}

/// What the directory is after a change: one name follows.
fn change(fake: &Fake) {
    let attr = |ino| Attr::new(ino, FileType::Regular.mode_bits() | 0o644, Timestamp::default());
    let (directory, new) = (Tree::directory(0), Ino(7));
    fake.turn(move |_, request, answer| {
        let lock = Grant::Bits { ino: new, bits: Bits::ATTR | Bits::ENTRY, number: 1 };
        match *request {
            MdsRequest::Readdir { ino, cookie, .. } if ino == directory => {
                let entry = DirEntry {
                    ino: new,
                    cookie: cookie + 1,
                    dirent_type: FileType::Regular.dirent_type(),
                    name: b"new".to_vec(),
                    attr: Some(attr(new)),
                };
                let page = DirPage { entries: vec![entry], end: true };
                (Ok(MdsReply::Dir(page)), vec![lock])
            }
            MdsRequest::Create { .. } => (Ok(MdsReply::Attr(attr(new))), vec![lock]),
            _ => answer,
        }
    });
}

/// The page has come; then a name is made, or another one moved away.
#[test]
fn a_change_is_seen() {
    type Change = fn(&PageReader<'_>) -> (Ino, Bits);
    let by_others: [Change; 2] = [
        |_| (Tree::directory(0), Bits::NEGATIVE),
        // A file of the page that has come: names come backwards.
        |reader| (Ino(reader.read[reader.read.len() - 1].ino.0 - 1), Bits::ENTRY),
    ];
    for by_other in by_others {
        with_client(async move |fake, client| {
            let mut reader = PageReader::begin_in_order(&fake, &client).await;
            let (ino, bits) = by_other(&reader);
            client.on_recall(vec![Recall::Bits { ino, bits, number: 2 }]);
            while !fake.0.lock().returns.contains(&Return::Bits { ino, bits, number: 2 }) {
                host::sleep(Duration::from_millis(1)).await;
            }
            change(&fake);
            assert!(reader.next().await);
            assert_eq!(reader.read.last().unwrap().name, b"new");
            reader.has_asked(4).await;
        });
    }
}

#[test]
fn a_name_that_this_client_makes_is_seen() {
    with_client(async |fake, client| {
        let mut reader = PageReader::begin_in_order(&fake, &client).await;
        change(&fake);
        let mode = FileType::Regular.mode_bits() | 0o644;
        let make = Make { mode, umask: 0, rdev: 0, target: b"" };
        client.make(&Caller::ROOT, Tree::directory(0), b"new", make).await.unwrap();
        assert!(reader.next().await);
        assert_eq!(reader.read.last().unwrap().name, b"new");
        reader.has_asked(4).await;
    });
}

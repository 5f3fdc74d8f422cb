//! Directories that are listed from memory, and by the MDS once others change them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{Fake, with_client};
use glint_client::{Caller, Client, Handle, Make, Vfs};
use glint_net::{LockClient, host};
use glint_proto::lock::{Bits, Grant, Recall, Return};
use glint_proto::posix::cookie;
use glint_proto::{
    Attr, DirEntry, DirPage, Errno, FileType, Ino, MdsReply, MdsRequest, Op, RenameFlags,
    Timestamp, deferred,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

const DIRECTORY: Ino = Ino(8);
const SEED: u64 = 9;
const FILES: usize = 300;
/// Bytes that a program has room for in a page: for some of the files, and for all.
const ROOM: u32 = 4 << 10;
const ROOM_FOR_ALL: u32 = 64 << 10;
/// Bytes that an entry takes at the MDS.
const ENTRY_BYTES: usize = 136;

/// Names of the directory that the MDS has, with their cookies.
type NamesOfMds = Arc<Mutex<BTreeMap<(u64, Vec<u8>), Ino>>>;

fn place(name: &str) -> (u64, Vec<u8>) {
    (cookie(name.as_bytes(), SEED), name.as_bytes().to_vec())
}

fn attr(ino: Ino) -> Attr {
    let kind = if ino == DIRECTORY { FileType::Directory } else { FileType::Regular };
    let attr = Attr::new(ino, kind.mode_bits() | 0o755, Timestamp::now());
    Attr { nlink: if ino == DIRECTORY { 2 } else { 1 }, ..attr }
}

/// The MDS delegates the directory that is made, makes all changes in it that it is told of but renames,
/// and lists it: with attributes and locks where these are wanted.
fn serve(fake: &Fake) -> NamesOfMds {
    let names = NamesOfMds::default();
    let served = names.clone();
    let grant = |ino, bits, number| Grant::Bits { ino, bits, number };
    fake.turn(move |_, request, answer| match *request {
        MdsRequest::GrantInodes { count, .. } => {
            let (first, osts, name_seed) = (100, 4, SEED);
            let (avoided, chains) = (Vec::new(), Vec::new());
            let reply = MdsReply::Inodes { first, count, osts, avoided, chains, name_seed };
            (Ok(reply), Vec::new())
        }
        MdsRequest::Create { .. } => {
            (Ok(MdsReply::Attr(attr(DIRECTORY))), vec![grant(DIRECTORY, Bits::ALL, 1)])
        }
        // As when somebody looks at the file just then.
        MdsRequest::Unlink { name, .. } => {
            let removed = served.lock().remove(&(cookie(name, SEED), name.to_vec()));
            (removed.map(|ino| MdsReply::Removed { ino }).ok_or(Errno::ENOENT), Vec::new())
        }
        MdsRequest::Open { ino, .. } => (Ok(MdsReply::Attr(attr(ino))), Vec::new()),
        MdsRequest::Batch { changes, .. } => {
            let (mut done, mut failed, mut names) = (0, Vec::new(), served.lock());
            for change in deferred::changes(changes).flatten() {
                done += 1;
                match (change.request, change.made) {
                    (MdsRequest::Create { name, .. }, Some((ino, _))) => {
                        names.insert((cookie(name, SEED), name.to_vec()), ino);
                    }
                    (MdsRequest::Unlink { name, .. }, _) => {
                        names.remove(&(cookie(name, SEED), name.to_vec()));
                    }
                    (MdsRequest::Rename { .. }, _) => failed.push((done - 1, Errno::ENOSPC)),
                    _ => {}
                }
            }
            (Ok(MdsReply::Batched { done, failed }), Vec::new())
        }
        MdsRequest::Readdir { ino: DIRECTORY, cookie: after, bytes_max, plus } => {
            let names = served.lock();
            let mut all = names.range((after + 1, Vec::new())..);
            let entry = |((cookie, name), ino): (&(u64, Vec<u8>), &Ino)| DirEntry {
                ino: *ino,
                cookie: *cookie,
                dirent_type: FileType::Regular.dirent_type(),
                name: name.clone(),
                attr: plus.then(|| attr(*ino)),
            };
            let some = all.by_ref().take(bytes_max as usize / ENTRY_BYTES);
            let entries: Vec<DirEntry> = some.map(entry).collect();
            let of_entries = entries.iter().filter(|_| plus);
            let mut grants: Vec<Grant> =
                of_entries.map(|entry| grant(entry.ino, Bits::ENTRY | Bits::ATTR, 3)).collect();
            if plus && after == 0 {
                grants.push(grant(DIRECTORY, Bits::NEGATIVE, 3));
            }
            (Ok(MdsReply::Dir(DirPage { entries, end: all.next().is_none() })), grants)
        }
        _ => answer,
    });
    names
}

async fn make(client: &Client<Fake>, parent: Ino, name: &str, mode: u32) {
    let make = Make { mode, umask: 0, rdev: 0, target: b"" };
    client.make(&Caller::ROOT, parent, name.as_bytes(), make).await.unwrap();
}

/// Makes the directory, and the files in it.
async fn make_files(client: &Client<Fake>) {
    make(client, Ino::ROOT, "d", 0o040_755).await;
    for number in 0..FILES {
        make(client, DIRECTORY, &number.to_string(), 0o100_644).await;
    }
}

/// Another client wants these.
async fn lose(fake: &Fake, client: &Client<Fake>, ino: Ino, bits: Bits, number: u64) {
    client.on_recall(vec![Recall::Bits { ino, bits, number }]);
    while !fake.0.lock().returns.contains(&Return::Bits { ino, bits, number }) {
        host::sleep(Duration::from_millis(1)).await;
    }
}

/// A program that reads the directory.
struct EntryReader<'a> {
    client: &'a Client<Fake>,
    handle: Handle,
    room: u32,
    plus: bool,
    cookie: u64,
}

impl<'a> EntryReader<'a> {
    async fn open(client: &'a Client<Fake>, room: u32, plus: bool) -> EntryReader<'a> {
        let handle = client.opendir(&Caller::ROOT, DIRECTORY).await.unwrap();
        EntryReader { client, handle, room, plus, cookie: 0 }
    }

    /// Names of the next page, with their cookies; none at the end.
    async fn next(&mut self) -> Vec<(u64, Vec<u8>)> {
        let EntryReader { client, handle, room, plus, cookie } = *self;
        let page = client.readdir(&Caller::ROOT, handle, cookie, room, plus).await.unwrap();
        let is_dots = |entry: &DirEntry| matches!(entry.name.as_slice(), b"." | b"..");
        let names: Vec<DirEntry> =
            page.entries.into_iter().filter(|entry| !is_dots(entry)).collect();
        for entry in &names {
            assert_eq!(entry.dirent_type, FileType::Regular.dirent_type());
            assert_eq!(entry.attr.as_ref().map(|attr| attr.ino), plus.then_some(entry.ino));
            assert!(entry.cookie > self.cookie);
            self.cookie = entry.cookie;
        }
        names.into_iter().map(|entry| (entry.cookie, entry.name)).collect()
    }

    /// What is left, and closes the directory.
    async fn rest(mut self) -> Vec<(u64, Vec<u8>)> {
        let mut names = Vec::new();
        loop {
            let page = self.next().await;
            if page.is_empty() {
                self.client.release(self.handle).await.unwrap();
                return names;
            }
            names.extend(page);
        }
    }
}

fn all_names() -> Vec<(u64, Vec<u8>)> {
    let mut names: Vec<_> = (0..FILES).map(|number| place(&number.to_string())).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_directory_of_ones_own_is_listed_without_asking() {
    for plus in [false, true] {
        with_client(async move |fake, client| {
            serve(&fake);
            make_files(&client).await;
            let reader = EntryReader::open(&client, ROOM, plus).await;
            assert_eq!(reader.rest().await, all_names());
            // As `rm -r` does.
            let mut reader = EntryReader::open(&client, ROOM, plus).await;
            let mut removed = Vec::new();
            loop {
                let page = reader.next().await;
                if page.is_empty() {
                    break;
                }
                for (_, name) in &page {
                    client.unlink(&Caller::ROOT, DIRECTORY, name).await.unwrap();
                }
                removed.extend(page);
            }
            assert_eq!(removed, all_names());
            make(&client, DIRECTORY, "new", 0o100_644).await;
            reader.cookie = 0;
            assert_eq!(reader.rest().await, [place("new")]);
            assert_eq!(fake.asked(Op::Readdir), 0);
        });
    }
}

/// Another client looks at the directory, removes a name that the program was not told of yet, and makes
/// another one.
#[test]
fn who_reads_on_when_others_change_the_directory_is_told_of_each_name_once() {
    with_client(async |fake, client| {
        let of_mds = serve(&fake);
        make_files(&client).await;
        let mut reader = EntryReader::open(&client, ROOM, false).await;
        let mut told = reader.next().await;
        assert!(!told.is_empty() && told.len() < FILES);
        assert_eq!(fake.asked(Op::Readdir), 0);
        lose(&fake, &client, DIRECTORY, Bits::DELEGATION | Bits::NEGATIVE, 2).await;
        let (other, gone) = (place("other"), {
            let mut names = of_mds.lock();
            assert_eq!(names.len(), FILES, "they are told of before");
            let (gone, _) = names.pop_last().unwrap();
            names.insert(place("other"), Ino(7777));
            gone
        });
        told.extend(reader.rest().await);
        assert!(fake.asked(Op::Readdir) > 0);
        let once: BTreeSet<_> = told.iter().cloned().collect();
        assert_eq!(once.len(), told.len());
        let mut now = all_names();
        now.retain(|name| *name != gone);
        assert!(now.iter().all(|name| once.contains(name)) && !once.contains(&gone));
        now.push(other);
        now.sort_unstable();
        assert_eq!(EntryReader::open(&client, ROOM, false).await.rest().await, now);
    });
}

/// It is no more this client's own; then others change it.
#[test]
fn a_directory_that_was_listed_whole_is_not_asked_for_again() {
    with_client(async |fake, client| {
        let of_mds = serve(&fake);
        make_files(&client).await;
        lose(&fake, &client, DIRECTORY, Bits::DELEGATION | Bits::NEGATIVE, 2).await;
        let list = async || EntryReader::open(&client, ROOM_FOR_ALL, true).await.rest().await;
        for _ in 0..3 {
            assert_eq!(list().await, all_names());
        }
        assert_eq!(fake.asked(Op::Readdir), 1);
        let absent = client.lookup(&Caller::ROOT, DIRECTORY, b"absent").await;
        assert!(matches!(absent, Err(Errno::ENOENT)) && fake.asked(Op::Lookup) == 0);
        // Others take one of the names.
        let ((cookie, name), ino) = of_mds.lock().pop_first().unwrap();
        lose(&fake, &client, ino, Bits::ENTRY, 4).await;
        assert_eq!(list().await, all_names()[1..]);
        assert_eq!(fake.asked(Op::Readdir), 2);
        // And make it again.
        lose(&fake, &client, DIRECTORY, Bits::NEGATIVE, 4).await;
        of_mds.lock().insert((cookie, name), Ino(7777));
        assert_eq!(list().await, all_names());
        assert_eq!(fake.asked(Op::Readdir), 3);
    });
}

/// The name is still where it was, and is not missing there.
#[test]
fn a_directory_that_a_file_did_not_leave_is_not_taken_for_known() {
    with_client(async |fake, client| {
        serve(&fake);
        make_files(&client).await;
        make(&client, DIRECTORY, "sub", 0o040_755).await;
        let sub = client.lookup(&Caller::ROOT, DIRECTORY, b"sub").await.unwrap().attr.ino;
        let ends = [(DIRECTORY, &b"7"[..]), (sub, &b"7"[..])];
        let flags = RenameFlags::default();
        client.rename(&Caller::ROOT, ends[0], ends[1], flags).await.unwrap();
        let begun = Instant::now();
        while fake.asked(Op::Lookup) == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is taken for free");
            let _ = client.lookup(&Caller::ROOT, DIRECTORY, b"7").await;
            host::sleep(Duration::from_millis(1)).await;
        }
        let names = EntryReader::open(&client, ROOM_FOR_ALL, false).await.rest().await;
        assert!(fake.asked(Op::Readdir) > 0 && names.contains(&place("7")));
    });
}

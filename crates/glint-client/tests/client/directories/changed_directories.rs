//! What is known of a directory once this client has changed its entries.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{FILE, Fake, with_client};
use futures_util::future::join;
use glint_client::{Caller, Client, Make, Vfs};
use glint_net::{LockClient, host};
use glint_proto::lock::{Bits, Grant, Recall, Return};
use glint_proto::{Attr, Errno, Ino, MdsReply, MdsRequest, Op, RenameFlags};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const DIRECTORY: Ino = Ino(9);
/// Longer than a machine that is busy takes.
const LONG: Duration = Duration::from_secs(60);

/// The directory, as the MDS has it.
type Stored = Arc<Mutex<Attr>>;

/// A change of the directory, a second after the one before. Which it is says the number of links.
fn change(directory: &mut Attr) {
    directory.nlink += 1;
    directory.ctime.secs += 1;
    directory.mtime = directory.ctime;
}

/// The MDS has a directory, whose attributes come with a lock. Numbers of locks are even.
fn serve(fake: &Fake) -> Stored {
    let file = fake.0.lock().attr();
    let attr = Attr { ino: DIRECTORY, mode: 0o040_755, nlink: 2, ..file.clone() };
    let stored = Arc::new(Mutex::new(Attr { mtime: attr.ctime, ..attr }));
    let (directory, mut number) = (stored.clone(), 0);
    fake.turn(move |_, request, answer| {
        let mut directory = directory.lock();
        let reply = match request {
            MdsRequest::Getattr { .. } => {
                number += 2;
                let grant = Grant::Bits { ino: DIRECTORY, bits: Bits::ATTR, number };
                return (Ok(MdsReply::Attr(directory.clone())), vec![grant]);
            }
            MdsRequest::Unlink { .. } | MdsRequest::Rmdir { .. } => MdsReply::Removed { ino: FILE },
            MdsRequest::Create { .. } | MdsRequest::Link { .. } => MdsReply::Attr(file.clone()),
            MdsRequest::Rename { .. } => MdsReply::Done,
            _ => return answer,
        };
        change(&mut directory);
        let (ino, nlink, time) = (DIRECTORY, directory.nlink, directory.ctime);
        (Ok(reply), vec![Grant::Changed { ino, nlink, time }])
    });
    stored
}

/// What the client says is what the MDS has; it has asked for it so often.
async fn must_know(fake: &Fake, client: &Client<Fake>, stored: &Stored, asked: usize) {
    let found = client.getattr(DIRECTORY).await.unwrap().attr;
    assert_eq!((found, fake.asked(Op::Getattr)), (stored.lock().clone(), asked));
}

async fn until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "it never comes");
        host::sleep(Duration::from_millis(1)).await;
    }
}

/// Another client changes the directory: its lock is recalled, by this number.
async fn change_elsewhere(fake: &Fake, client: &Client<Fake>, stored: &Stored, number: u64) {
    client.on_recall(vec![Recall::Bits { ino: DIRECTORY, bits: Bits::ATTR, number }]);
    let returned = Return::Bits { ino: DIRECTORY, bits: Bits::ATTR, number };
    until(|| fake.0.lock().returns.contains(&returned)).await;
    change(&mut stored.lock());
}

#[test]
fn a_directory_is_not_asked_for_after_a_change_of_ones_own() {
    with_client(async |fake, client| {
        let stored = serve(&fake);
        let caller = &Caller::ROOT;
        must_know(&fake, &client, &stored, 1).await;
        client.unlink(caller, DIRECTORY, b"1").await.unwrap();
        must_know(&fake, &client, &stored, 1).await;
        client.rmdir(caller, DIRECTORY, b"2").await.unwrap();
        must_know(&fake, &client, &stored, 1).await;
        let (from, to) = ((DIRECTORY, &b"3"[..]), (DIRECTORY, &b"4"[..]));
        client.rename(caller, from, to, RenameFlags::default()).await.unwrap();
        must_know(&fake, &client, &stored, 1).await;
        client.link(caller, FILE, DIRECTORY, b"5").await.unwrap();
        must_know(&fake, &client, &stored, 1).await;
        let make = Make { mode: 0o100_644, umask: 0, rdev: 0, target: b"" };
        client.make(caller, DIRECTORY, b"6", make).await.unwrap();
        must_know(&fake, &client, &stored, 1).await;
        assert_eq!(stored.lock().nlink, 7);
    });
}

#[test]
fn what_others_have_changed_since_is_asked_for() {
    with_client(async |fake, client| {
        let stored = serve(&fake);
        must_know(&fake, &client, &stored, 1).await;
        // Before the answer is here, which is older.
        fake.hold_answers(true);
        let caller = &Caller::ROOT;
        let unlink = client.unlink(caller, DIRECTORY, b"1");
        let other = async {
            until(|| fake.asked(Op::Unlink) == 1).await;
            change_elsewhere(&fake, &client, &stored, 3).await;
            fake.hold_answers(false);
        };
        join(unlink, other).await.0.unwrap();
        assert_eq!(stored.lock().nlink, 4);
        must_know(&fake, &client, &stored, 2).await;
        // And right after it. The next lock has the number 6.
        client.unlink(caller, DIRECTORY, b"2").await.unwrap();
        must_know(&fake, &client, &stored, 2).await;
        change_elsewhere(&fake, &client, &stored, 5).await;
        must_know(&fake, &client, &stored, 3).await;
        // Nor is an answer enough that has come while nothing was locked.
        change_elsewhere(&fake, &client, &stored, 7).await;
        client.unlink(caller, DIRECTORY, b"3").await.unwrap();
        must_know(&fake, &client, &stored, 4).await;
    });
}

/// The MDS makes a directory of which the client knows all names, and files `1`, `2` and so on in it.
/// Returns how many of them it has.
fn serve_files(fake: &Fake) -> Arc<AtomicU64> {
    let (file, made) = (fake.0.lock().attr(), Arc::new(AtomicU64::new(0)));
    let served = made.clone();
    let bits = Bits::ATTR | Bits::ENTRY;
    let say = move |number: u64| {
        let attr = Attr { ino: Ino(100 + number), ..file.clone() };
        let grant = Grant::Bits { ino: attr.ino, bits, number: 1 };
        (Ok(MdsReply::Attr(attr)), vec![grant])
    };
    let directory = Attr { ino: DIRECTORY, mode: 0o040_755, nlink: 2, ..fake.0.lock().attr() };
    fake.turn(move |_, request, answer| match *request {
        MdsRequest::Create { parent: Ino::ROOT, .. } => {
            let bits = bits | Bits::NEGATIVE;
            let grant = Grant::Bits { ino: DIRECTORY, bits, number: 1 };
            (Ok(MdsReply::Attr(directory.clone())), vec![grant])
        }
        MdsRequest::Create { .. } => say(served.fetch_add(1, Ordering::SeqCst) + 1),
        MdsRequest::Lookup { name, .. } => say(std::str::from_utf8(name).unwrap().parse().unwrap()),
        _ => answer,
    });
    made
}

/// One thread makes files, and another one looks for the last one that the MDS has.
#[test]
fn a_file_is_there_once_the_mds_has_made_it() {
    with_client(async |fake, client| {
        let made = serve_files(&fake);
        let caller = &Caller::ROOT;
        let make = |mode| Make { mode, umask: 0, rdev: 0, target: b"" };
        client.make(caller, Ino::ROOT, b"d", make(0o040_755)).await.unwrap();
        let absent = client.lookup(caller, DIRECTORY, b"1").await.err();
        assert_eq!((absent, fake.asked(Op::Lookup)), (Some(Errno::ENOENT), 0), "all are known");
        let has_ended = Arc::new(AtomicBool::new(false));
        let looks = std::thread::spawn({
            let (client, has_ended) = (client.clone(), has_ended.clone());
            move || {
                let look = async {
                    while !has_ended.load(Ordering::SeqCst) {
                        let last = made.load(Ordering::SeqCst);
                        let name = last.to_string();
                        let looked = client.lookup(&Caller::ROOT, DIRECTORY, name.as_bytes()).await;
                        assert!(looked.is_ok() || last == 0, "{name}: {:?}", looked.err());
                    }
                };
                glint_net::runtime(None).unwrap().block_on(look);
            }
        });
        for number in 1..=5000 {
            let name = number.to_string();
            client.make(caller, DIRECTORY, name.as_bytes(), make(0o100_644)).await.unwrap();
        }
        has_ended.store(true, Ordering::SeqCst);
        looks.join().unwrap();
    });
}

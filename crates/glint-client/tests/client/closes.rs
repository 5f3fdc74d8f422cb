//! Closes of files that were written, and what is set meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(missing_docs, reason = "what a test does is its name")]

use crate::support::{FILE, Fake, open, with_client, write};
use futures_util::future::join;
use glint_client::{Caller, Client, Make, Vfs};
use glint_net::host;
use glint_proto::lock::{Bits, DataLock, Grant, Range};
use glint_proto::{
    Attr, Errno, Ino, MdsReply, MdsRequest, Op, OstRequest, SetAttr, SetTime, Timestamp,
    XattrFlags, deferred,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Runs a test with a client that keeps no locks, as that of `glint up` without `--listen`.
fn without_locks<F: Future<Output = ()>>(test: impl FnOnce(Fake, Arc<Client<Fake>>) -> F) {
    let fake = Fake::default();
    fake.turn(|_, _, (reply, _)| (reply, Vec::new()));
    let client = Arc::new(Client::new(fake.clone(), true));
    glint_net::runtime(None).unwrap().block_on(test(fake, client));
}

/// A program closes a file, which returns before the server knows of it, and sets its size or time. A
/// close that arrived later would bring back what it knew before.
#[test]
fn what_is_set_after_a_close_is_not_overtaken_by_it() {
    let noon = SetTime::At(Timestamp { secs: 1_000_000_000, nanos: 0 });
    let sets = [
        SetAttr { mtime: Some(noon), ..SetAttr::default() },
        SetAttr { size: Some(0), ..SetAttr::default() },
    ];
    let test = async |fake: Fake, client: Arc<Client<Fake>>, set: &SetAttr| {
        let file = open(&client).await;
        write(&client, file, 0, b"data").await.unwrap();
        fake.0.lock().asked.clear();
        fake.0.lock().holds_closes = true;
        let setting = async {
            while fake.0.lock().closing == 0 {
                host::sleep(Duration::from_millis(1)).await;
            }
            client.setattr(&Caller::ROOT, FILE, set).await.unwrap();
        };
        let arrival = async {
            // Time enough to overtake it.
            host::sleep(Duration::from_millis(100)).await;
            fake.0.lock().holds_closes = false;
        };
        let (closed, _) = join(client.release(file), join(setting, arrival)).await;
        closed.unwrap();
        let asked = fake.0.lock().asked.clone();
        let order: Vec<_> =
            asked.into_iter().filter(|op| matches!(op, Op::Release | Op::Setattr)).collect();
        assert_eq!(order, [Op::Release, Op::Setattr], "{set:?}");
    };
    for set in &sets {
        with_client(|fake, client| test(fake, client, set));
        without_locks(|fake, client| test(fake, client, set));
    }
}

/// The MDS knows the new size, and the objects are still longer.
#[test]
fn a_close_that_begins_while_a_file_is_cut_says_the_new_size() {
    without_locks(async |fake, client| {
        let file = open(&client).await;
        write(&client, file, 0, b"data").await.unwrap();
        fake.0.lock().stands_still = Some(|request| matches!(request, OstRequest::Truncate { .. }));
        let set = SetAttr { size: Some(1), ..SetAttr::default() };
        let closing = async {
            while fake.0.lock().unanswered == 0 {
                host::sleep(Duration::from_millis(1)).await;
            }
            let cut = async {
                host::sleep(Duration::from_millis(50)).await;
                fake.0.lock().stands_still = None;
            };
            join(client.release(file), cut).await.0.unwrap();
        };
        join(client.setattr(&Caller::ROOT, FILE, &set), closing).await.0.unwrap();
        let released = fake.0.lock().released.clone();
        let said = released.iter().flatten().filter_map(|(_, objects)| *objects);
        assert_eq!(said.map(|objects| objects.size).collect::<Vec<_>>(), [1]);
        assert_eq!(fake.data(0), b"d");
    });
}

/// The program of a write was killed, and its file is closed, while the call waits for a lock.
#[test]
fn a_close_says_what_calls_write_that_still_wait() {
    with_client(async |fake, client| {
        let file = open(&client).await;
        let said = Arc::new(Mutex::new(Vec::new()));
        let says = said.clone();
        fake.turn(move |_, request, answer| {
            if let MdsRequest::Release { wrote, .. } = request {
                says.lock().push(wrote.and_then(|(_, objects)| objects));
            }
            answer
        });
        fake.hold_answers(true);
        let closing = async {
            while fake.asked(Op::Lock) == 0 {
                host::sleep(Duration::from_millis(1)).await;
            }
            let answer = async {
                host::sleep(Duration::from_millis(50)).await;
                fake.hold_answers(false);
            };
            join(client.release(file), answer).await.0.unwrap();
        };
        join(write(&client, file, 0, b"data"), closing).await.0.unwrap();
        let said = said.lock().clone();
        assert_eq!(said.iter().flatten().map(|objects| objects.size).collect::<Vec<_>>(), [4]);
        assert_eq!(fake.data(0), b"data");
    });
}

/// Another client may be cutting the file, which was opened after the MDS has heard of that: it knows the
/// size, and the objects are still longer.
#[test]
fn a_close_after_a_write_that_had_no_lock_says_nothing_of_the_size() {
    with_client(async |fake, client| {
        let file = open(&client).await;
        fake.turn(|_, request, answer| match request {
            MdsRequest::Lock { .. } => (Err(Errno::EIO), Vec::new()),
            _ => answer,
        });
        assert_eq!(write(&client, file, 0, b"data").await, Err(Errno::EIO));
        let caller = &Caller::ROOT;
        assert_eq!(client.fallocate(caller, file, 0, 0, 4).await, Err(Errno::EIO));
        client.release(file).await.unwrap();
        let released = fake.0.lock().released.clone();
        assert!(matches!(released[..], [None]), "{released:?}");
    });
}

/// A file that the client has made by itself is closed: what it says of that goes with its other
/// changes. Its objects have a time, so the server is asked to set another.
#[test]
fn a_close_that_begins_while_a_time_is_set_says_that_one() {
    with_client(async |fake, client| {
        let time = Timestamp { secs: 1_000_000_000, nanos: 0 };
        let (directory, file) = (Ino(8), Ino(100));
        let attr = Attr { ino: directory, mode: 0o040_755, nlink: 2, ..fake.0.lock().attr() };
        let said = Arc::new(Mutex::new(Vec::new()));
        let says = said.clone();
        fake.turn(move |_, request, answer| match request {
            MdsRequest::GrantInodes { .. } => {
                let (first, count, osts, name_seed) = (file.0, 64, 4, 7);
                let (avoided, chains) = (Vec::new(), Vec::new());
                let reply = MdsReply::Inodes { first, count, osts, avoided, chains, name_seed };
                (Ok(reply), Vec::new())
            }
            MdsRequest::Create { .. } => {
                let bits = Grant::Bits { ino: directory, bits: Bits::ALL, number: 1 };
                (Ok(MdsReply::Attr(attr.clone())), vec![bits])
            }
            MdsRequest::Setattr { .. } => {
                let mode = 0o100_644;
                let attr = Attr { ino: file, mode, mtime: time, size_on_ost: true, ..attr.clone() };
                let bits = Grant::Bits { ino: file, bits: Bits::ATTR, number: 2 };
                (Ok(MdsReply::Attr(attr)), vec![bits])
            }
            MdsRequest::Batch { changes, .. } => {
                let (mut done, mut grants) = (0, Vec::new());
                for change in deferred::changes(changes).flatten() {
                    done += 1;
                    if let MdsRequest::Release { wrote, .. } = change.request {
                        says.lock().push(wrote.and_then(|(_, objects)| objects));
                    }
                    if change.made.is_some() {
                        let lock = DataLock { number: 1, range: Range::ALL, write: true };
                        grants.push(Grant::Data { ino: file, lock });
                    }
                }
                (Ok(MdsReply::Batched { done, failed: Vec::new() }), grants)
            }
            _ => answer,
        });
        let make = |mode| Make { mode, umask: 0, rdev: 0, target: b"" };
        client.make(&Caller::ROOT, Ino::ROOT, b"d", make(0o040_755)).await.unwrap();
        let made = make(0o100_644);
        let open = client.create(&Caller::ROOT, directory, b"f", made, libc::O_RDWR).await.unwrap();
        write(&client, open.handle, 0, b"data").await.unwrap();
        client.fsync(open.handle).await.unwrap();
        assert_eq!(fake.asked(Op::Create), 1, "the file is made here");
        fake.hold_answers(true);
        let set = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
        let closing = async {
            while fake.asked(Op::Setattr) == 0 {
                host::sleep(Duration::from_millis(1)).await;
            }
            client.release(open.handle).await.unwrap();
            host::sleep(Duration::from_millis(100)).await;
            fake.hold_answers(false);
        };
        join(client.setattr(&Caller::ROOT, file, &set), closing).await.0.unwrap();
        client.sync().await.unwrap();
        let said = said.lock().clone();
        assert_eq!(said.iter().flatten().map(|said| said.mtime).collect::<Vec<_>>(), [time]);
    });
}

/// The client knows what it has written, also after the server has changed an extended attribute.
#[test]
fn a_close_after_an_extended_attribute_was_changed_asks_no_object() {
    for changes in [false, true] {
        with_client(async |fake, client| {
            let attr = fake.0.lock().attr();
            fake.turn(move |_, request, answer| match request {
                MdsRequest::Setxattr { .. } | MdsRequest::Removexattr { .. } => {
                    // It does not know the size while the file is open.
                    let attr = Attr { mode: 0o100_600, size_on_ost: true, ..attr.clone() };
                    (Ok(MdsReply::Attr(attr)), Vec::new())
                }
                _ => answer,
            });
            let caller = &Caller::ROOT;
            let file = open(&client).await;
            client.getattr(FILE).await.unwrap();
            write(&client, file, 0, b"data").await.unwrap();
            let asked = || {
                let stats = fake.count(|request| matches!(request, OstRequest::Stat { .. }));
                (stats, fake.asked(Op::Getattr))
            };
            let before = asked();
            if changes {
                let (name, flags) = (b"user.a", XattrFlags::default());
                client.setxattr(caller, FILE, name, b"1", flags).await.unwrap();
                client.removexattr(caller, FILE, name).await.unwrap();
                let attr = client.getattr(FILE).await.unwrap().attr;
                assert_eq!((attr.mode, attr.size), (0o100_600, 4));
            }
            client.release(file).await.unwrap();
            assert_eq!(asked(), before, "changes: {changes}");
            let released = fake.0.lock().released.clone();
            let sizes = released.iter().map(|wrote| wrote.and_then(|(_, said)| Some(said?.size)));
            assert_eq!(sizes.collect::<Vec<_>>(), [Some(4)]);
        });
    }
}

//! Locks that come with answers: late, twice, or not at all.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(missing_docs, reason = "what a test does is its name")]

use crate::support::{FILE, Fake, open, with_client, write};
#[allow(dead_code, reason = "each test uses some of it")]
use futures_util::future::join;
use glint_client::{Caller, Make, Vfs};
use glint_net::{LockClient, host};
use glint_proto::lock::{Bits, DataLock, Grant, Range, Recall, Return};
use glint_proto::{Attr, Cred, Errno, Ino, MdsReply, MdsRequest, ObjectId, Op, OstRequest};
use std::future::Future;
use std::time::{Duration, Instant};

/// Longer than a machine that is busy takes.
const LONG: Duration = Duration::from_secs(60);

async fn until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "it never comes");
        host::sleep(Duration::from_millis(1)).await;
    }
}

fn bits(ino: Ino, bits: Bits, number: u64) -> Grant {
    Grant::Bits { ino, bits, number }
}

fn whole(number: u64) -> Grant {
    let lock = DataLock { number, range: Range::ALL, write: true };
    Grant::Data { ino: FILE, lock }
}

fn is_returned(fake: &Fake, number: u64) -> bool {
    fake.0.lock().returns.contains(&Return::Data { ino: FILE, number })
}

/// A call, and an eviction while its answer is on its way.
async fn evicted_during<R>(
    fake: &Fake,
    client: &impl LockClient,
    op: Op,
    call: impl Future<Output = R>,
) -> R {
    let before = fake.asked(op);
    fake.hold_answers(true);
    let eviction = async {
        until(|| fake.asked(op) > before).await;
        client.on_server_restart(true).await;
        fake.hold_answers(false);
    };
    join(call, eviction).await.0
}

#[test]
fn bits_of_an_answer_from_before_an_eviction_are_not_relied_on() {
    with_client(async |fake, client| {
        let ask = client.getattr(FILE);
        evicted_during(&fake, &*client, Op::Getattr, ask).await.unwrap();
        client.getattr(FILE).await.unwrap();
        assert_eq!(fake.asked(Op::Getattr), 2, "the MDS has forgotten that lock");
        client.getattr(FILE).await.unwrap();
        assert_eq!(fake.asked(Op::Getattr), 2, "but not this one");
    });
}

#[test]
fn data_of_an_answer_from_before_an_eviction_is_not_relied_on() {
    with_client(async |fake, client| {
        fake.turn(|_, request, (reply, mut grants)| {
            grants.extend(matches!(request, MdsRequest::Open { .. }).then(|| whole(1)));
            (reply, grants)
        });
        let file = evicted_during(&fake, &*client, Op::Open, open(&client)).await;
        until(|| is_returned(&fake, 1)).await;
        fake.0.lock().turn = None;
        // The next lock has the number 2.
        fake.0.lock().locks = 1;
        client.getattr(FILE).await.unwrap();
        write(&client, file, 0, b"data").await.unwrap();
        assert_eq!(fake.asked(Op::Lock), 1);
    });
}

#[test]
fn a_lock_that_was_asked_for_before_an_eviction_is_asked_for_again() {
    with_client(async |fake, client| {
        let file = open(&client).await;
        let call = write(&client, file, 0, b"data");
        evicted_during(&fake, &*client, Op::Lock, call).await.unwrap();
        assert_eq!(fake.asked(Op::Lock), 2);
        until(|| is_returned(&fake, 1)).await;
        client.getattr(FILE).await.unwrap();
        write(&client, file, 0, b"more").await.unwrap();
        assert_eq!(fake.asked(Op::Lock), 2);
    });
}

/// A caller that is refused is asked about again with all groups: what either answer grants counts.
#[test]
fn what_a_refusal_grants_and_what_the_next_answer_grants_is_held() {
    for refusal_grants in [true, false] {
        with_client(async |fake, client| {
            let attr = fake.0.lock().attr();
            fake.turn(move |cred, request, answer| {
                if !matches!(request, MdsRequest::Lookup { .. }) {
                    return answer;
                }
                let is_refused = cred.groups.is_none();
                let grant = bits(FILE, Bits::ATTR | Bits::ENTRY, 5);
                let grants = if is_refused == refusal_grants { vec![grant] } else { Vec::new() };
                match is_refused {
                    true => (Err(Errno::EACCES), grants),
                    false => (Ok(MdsReply::Attr(attr.clone())), grants),
                }
            });
            let cred = Cred { uid: 1000, gid: 1000, groups: None };
            let caller = Caller { cred, pid: std::process::id() };
            client.lookup(&caller, Ino::ROOT, b"f").await.unwrap();
            assert_eq!(fake.asked(Op::Lookup), 2);
            client.getattr(FILE).await.unwrap();
            client.lookup(&caller, Ino::ROOT, b"f").await.unwrap();
            assert_eq!((fake.asked(Op::Getattr), fake.asked(Op::Lookup)), (0, 2));
        });
    }
}

/// How a lock that is recalled before it is here comes, or does not.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Arrival {
    Comes,
    ComesNot,
    IsOnItsWay,
}

#[test]
fn a_lock_that_is_recalled_before_it_comes_is_waited_for_and_not_for_long() {
    // As long as the lock may be on its way, and less.
    let soon = Duration::from_millis(200);
    for arrival in [Arrival::Comes, Arrival::ComesNot, Arrival::IsOnItsWay] {
        let round = |ended: &mut Duration| {
            with_client(async |fake, client| {
                fake.turn(move |_, request, (reply, mut grants)| {
                    let brings =
                        arrival != Arrival::ComesNot && matches!(request, MdsRequest::Open { .. });
                    grants.extend(brings.then(|| whole(9)));
                    (reply, grants)
                });
                fake.hold_answers(true);
                let recall = async {
                    until(|| fake.asked(Op::Open) > 0).await;
                    client.on_recall(vec![Recall::Data { ino: FILE, number: 9 }]);
                    host::sleep(Duration::from_millis(20)).await;
                    assert!(!is_returned(&fake, 9), "it may be coming");
                    let begun = Instant::now();
                    if arrival != Arrival::IsOnItsWay {
                        fake.hold_answers(false);
                    }
                    until(|| is_returned(&fake, 9)).await;
                    *ended = begun.elapsed();
                    fake.hold_answers(false);
                };
                let file = join(open(&client), recall).await.0;
                fake.0.lock().locks = 9;
                write(&client, file, 0, b"data").await.unwrap();
                assert_eq!(fake.asked(Op::Lock), 1, "nobody relies on it");
            });
        };
        let mut ended = LONG;
        // Nothing makes it come sooner; what has to be soon is not always so on a busy machine.
        let rounds = if arrival == Arrival::IsOnItsWay { 1 } else { 20 };
        for _ in 0..rounds {
            round(&mut ended);
            if ended < soon {
                break;
            }
        }
        assert_eq!(ended < soon, arrival != Arrival::IsOnItsWay, "{arrival:?} after {ended:?}");
    }
}

/// A number of the client's status.
fn count(client: &glint_client::Client<Fake>, name: &str) -> usize {
    let status = String::from_utf8(client.status("{}".into())).unwrap();
    let (_, rest) = status.split_once(&format!("\"{name}\":")).unwrap();
    rest.split(',').next().unwrap().parse().unwrap()
}

#[test]
fn a_lock_that_does_not_come_with_its_batch_keeps_no_inode() {
    with_client(async |fake, client| {
        let directory = Ino(8);
        let attr = Attr { ino: directory, mode: 0o040_755, nlink: 2, ..fake.0.lock().attr() };
        fake.turn(move |_, request, answer| match request {
            MdsRequest::GrantInodes { .. } => {
                let (first, count, osts, name_seed) = (100, 64, 4, 7);
                let (avoided, chains) = (Vec::new(), Vec::new());
                (
                    Ok(MdsReply::Inodes { first, count, osts, avoided, chains, name_seed }),
                    Vec::new(),
                )
            }
            MdsRequest::Create { .. } => {
                (Ok(MdsReply::Attr(attr.clone())), vec![bits(directory, Bits::ALL, 1)])
            }
            // As one that was answered before, by an MDS that has forgotten what came with it.
            MdsRequest::Batch { .. } => {
                (Ok(MdsReply::Batched { done: 1, failed: Vec::new() }), Vec::new())
            }
            _ => answer,
        });
        let make = |mode| Make { mode, umask: 0, rdev: 0, target: b"" };
        client.make(&Caller::ROOT, Ino::ROOT, b"d", make(0o040_755)).await.unwrap();
        let cached = || count(&client, "cached_inodes");
        let before = cached();
        let made = make(0o100_644);
        let flags = libc::O_RDWR;
        let file = client.create(&Caller::ROOT, directory, b"f", made, flags).await.unwrap();
        assert_eq!((fake.asked(Op::Create), cached()), (1, before + 1), "it is made here");
        client.release(file.handle).await.unwrap();
        until(|| count(&client, "unsent_changes") == 0).await;
        client.limit_inodes(0);
        until(|| cached() <= before).await;
        assert!(fake.asked(Op::Batch) > 0);
    });
}

/// The MDS recalls the lock of a file of which another client removes a name, perhaps another one.
#[test]
fn a_recall_makes_no_name_free() {
    with_client(async |fake, client| {
        let directory = Ino(9);
        let file = fake.0.lock().attr();
        fake.turn(move |_, request, answer| match request {
            MdsRequest::Create { .. } => {
                let attr = Attr { ino: directory, mode: 0o040_755, ..file.clone() };
                (Ok(MdsReply::Attr(attr)), vec![bits(directory, Bits::SHARED, 1)])
            }
            MdsRequest::Link { .. } | MdsRequest::Lookup { .. } => {
                (Ok(MdsReply::Attr(file.clone())), vec![bits(FILE, Bits::SHARED, 2)])
            }
            _ => answer,
        });
        let make = Make { mode: 0o040_755, umask: 0, rdev: 0, target: b"" };
        client.make(&Caller::ROOT, Ino::ROOT, b"d", make).await.unwrap();
        client.link(&Caller::ROOT, FILE, directory, b"name").await.unwrap();
        let recall = Recall::Bits { ino: FILE, bits: Bits::ENTRY, number: 3 };
        client.on_recall(vec![recall]);
        let returned = Return::Bits { ino: FILE, bits: Bits::ENTRY, number: 3 };
        until(|| fake.0.lock().returns.contains(&returned)).await;
        let found = client.lookup(&Caller::ROOT, directory, b"name").await;
        assert_eq!(found.map(|found| found.attr.ino), Ok(FILE));
    });
}

#[test]
fn a_link_whose_objects_cannot_be_asked_leaves_no_name_free() {
    with_client(async |fake, client| {
        let directory = Ino(9);
        let file = fake.0.lock().attr();
        fake.turn(move |_, request, answer| match request {
            MdsRequest::Create { .. } => {
                let attr = Attr { ino: directory, mode: 0o040_755, ..file.clone() };
                (Ok(MdsReply::Attr(attr)), vec![bits(directory, Bits::SHARED, 1)])
            }
            MdsRequest::Link { .. } => {
                let attr = Attr { nlink: 2, size_on_ost: true, ..file.clone() };
                (Ok(MdsReply::Attr(attr)), Vec::new())
            }
            MdsRequest::Lookup { .. } => {
                (Ok(MdsReply::Attr(file.clone())), vec![bits(FILE, Bits::SHARED, 2)])
            }
            _ => answer,
        });
        let make = Make { mode: 0o040_755, umask: 0, rdev: 0, target: b"" };
        client.make(&Caller::ROOT, Ino::ROOT, b"d", make).await.unwrap();
        let lookup = async || client.lookup(&Caller::ROOT, directory, b"name").await;
        assert_eq!(lookup().await.err(), Some(Errno::ENOENT));
        assert_eq!(fake.asked(Op::Lookup), 0, "all names of the directory are known");

        fake.0.lock().fault = Some(Box::new(|_| Some(Errno::EMFILE)));
        let linked = client.link(&Caller::ROOT, FILE, directory, b"name").await;
        assert_eq!(linked.err(), Some(Errno::EMFILE));
        fake.0.lock().fault = None;
        assert_eq!(lookup().await.unwrap().attr.ino, FILE);
    });
}

/// Others may write when the lock is theirs: what a server may still change of it comes before.
#[test]
fn a_lock_is_not_returned_before_what_is_sent_again_is_over() {
    with_client(async |fake, client| {
        let file = open(&client).await;
        write(&client, file, 0, b"data").await.unwrap();
        {
            let mut world = fake.0.lock();
            world.unstable = vec![(0, ObjectId { ino: FILE, stripe: 0 })];
            world.stands_still = Some(|request| matches!(request, OstRequest::Sync { .. }));
            world.holds_resends = true;
        }
        client.on_recall(vec![Recall::Data { ino: FILE, number: 1 }]);
        // After half a lease.
        until(|| fake.0.lock().abandons == 1).await;
        assert_eq!(fake.0.lock().unanswered, 1);
        host::sleep(Duration::from_millis(100)).await;
        assert!(!is_returned(&fake, 1));
        fake.0.lock().holds_resends = false;
        until(|| is_returned(&fake, 1)).await;
        fake.0.lock().stands_still = None;
    });
}

/// It was given up when another lock of the file was to be returned.
#[test]
fn a_lock_under_which_nothing_is_left_to_sync_waits_too_for_what_is_sent_again() {
    with_client(async |fake, client| {
        let file = open(&client).await;
        write(&client, file, 0, b"data").await.unwrap();
        fake.0.lock().holds_resends = true;
        client.on_recall(vec![Recall::Data { ino: FILE, number: 1 }]);
        host::sleep(Duration::from_millis(200)).await;
        assert!(!is_returned(&fake, 1));
        fake.0.lock().holds_resends = false;
        until(|| is_returned(&fake, 1)).await;
        assert_eq!(fake.0.lock().abandons, 0);
    });
}

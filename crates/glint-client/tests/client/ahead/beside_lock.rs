//! Reads that are sent while the lock that they need is asked for.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{FILE, Fake, Tree, with_client};
use futures_util::future::join;
use glint_client::{Caller, Client, Handle, Vfs};
use glint_net::{LockClient, host};
use glint_proto::lock::{Bits, Grant, Recall, Return};
use glint_proto::{Errno, FsResult, Ino, Layout, MdsRequest, ObjectId, Op, OpenFlags, OstRequest};
use std::future::Future;
use std::time::{Duration, Instant};

const TREE: Tree = Tree { directories: 1, files: 1, bytes: 300 };
const READ: OpenFlags = OpenFlags {
    read: true,
    write: false,
    truncate: false,
    exec: false,
    kill_suidgid: false,
    append: false,
};

async fn until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never comes");
        host::sleep(Duration::from_millis(1)).await;
    }
}

/// Requests for locks and for data, so far.
fn asked(fake: &Fake) -> (usize, usize) {
    let reads = fake.count(|request| matches!(request, OstRequest::Read { .. }));
    (fake.asked(Op::Lock), reads)
}

fn file() -> Ino {
    Tree::file(0, 0)
}

/// Opens a small file of which the attributes are known, and no lock on its data is here.
async fn open(fake: &Fake, client: &Client<Fake>) -> Handle {
    fake.serve(TREE);
    open_served(client).await
}

async fn open_served(client: &Client<Fake>) -> Handle {
    client.lookup(&Caller::ROOT, Tree::directory(0), b"0").await.unwrap();
    client.open(&Caller::ROOT, file(), READ).await.unwrap().handle
}

/// Has the file lie on the first OST of another server: that of the MDS has four.
fn move_elsewhere(fake: &Fake) {
    fake.0.lock().layout = Layout { first_ost: 4, osts: 5, ..Layout::default() };
}

/// Opens the file on another server, and the MDS says that nobody else may write it.
async fn open_unwritten(fake: &Fake, client: &Client<Fake>) -> Handle {
    move_elsewhere(fake);
    fake.serve(TREE);
    let mut served = fake.0.lock().turn.take().unwrap();
    fake.turn(move |cred, request, answer| {
        let (reply, mut grants) = served(cred, request, answer);
        for grant in &mut grants {
            if let Grant::Bits { bits, .. } = grant {
                *bits |= Bits::UNWRITTEN;
            }
        }
        (reply, grants)
    });
    open_served(client).await
}

async fn read(client: &Client<Fake>, file: Handle) -> FsResult<Vec<u8>> {
    let mut data = vec![0; 1000];
    let len = client.read(file, 0, &mut data, true).await?;
    data.truncate(len);
    Ok(data)
}

/// Reads the file. Once its data was read, and while the lock is on its way, `others` happens, and
/// the data is changed. Returns whether the read has the change.
async fn is_read_again(
    fake: &Fake,
    client: &Client<Fake>,
    handle: Handle,
    others: impl Future<Output = ()>,
) -> bool {
    let changed = vec![9; TREE.bytes as usize];
    fake.hold_answers(true);
    let change = async {
        until(|| asked(fake) == (1, 1)).await;
        others.await;
        let object = ObjectId { ino: file(), stripe: 0 };
        fake.0.lock().objects.insert(object, changed.clone());
        fake.hold_answers(false);
    };
    let data = join(read(client, handle), change).await.0.unwrap();
    assert!(data == changed || data == TREE.content(file()));
    data == changed
}

#[test]
fn a_small_file_is_read_while_its_lock_is_on_its_way() {
    with_client(async |fake, client| {
        let handle = open(&fake, &client).await;
        let nothing = std::future::ready(());
        assert!(!is_read_again(&fake, &client, handle, nothing).await, "nobody told of the change");
        assert_eq!(asked(&fake), (1, 1));
        read(&client, handle).await.unwrap();
        assert_eq!(asked(&fake), (1, 2), "under the lock");
    });
}

#[test]
fn a_small_file_of_another_server_is_read_so_if_nobody_else_may_write_it() {
    with_client(async |fake, client| {
        let handle = open_unwritten(&fake, &client).await;
        let nothing = std::future::ready(());
        assert!(!is_read_again(&fake, &client, handle, nothing).await, "nobody told of the change");
        assert_eq!(asked(&fake), (1, 1));
    });
}

/// Another client changes the file, or moves it.
async fn lose_attributes(fake: &Fake, client: &Client<Fake>) {
    lose(fake, client, Bits::ATTR).await;
}

async fn lose(fake: &Fake, client: &Client<Fake>, bits: Bits) {
    client.on_recall(vec![Recall::Bits { ino: file(), bits, number: 2 }]);
    let is_it = |returned: &Return| matches!(returned, Return::Bits { ino, .. } if *ino == file());
    until(|| fake.0.lock().returns.iter().any(is_it)).await;
}

/// Another client opens the file to write, and writes.
#[test]
fn it_is_read_again_if_the_attributes_were_recalled() {
    with_client(async |fake, client| {
        let handle = open(&fake, &client).await;
        let recall = lose_attributes(&fake, &client);
        assert!(is_read_again(&fake, &client, handle, recall).await);
        assert_eq!(asked(&fake), (1, 2));
    });
}

/// Another client has got a lock to write. Nobody has opened the file, so its attributes are known all
/// the time.
#[test]
fn it_is_read_again_if_somebody_may_write_it_meanwhile() {
    with_client(async |fake, client| {
        let handle = open_unwritten(&fake, &client).await;
        let recall = lose(&fake, &client, Bits::UNWRITTEN);
        assert!(is_read_again(&fake, &client, handle, recall).await);
        assert_eq!(asked(&fake), (1, 2));
    });
}

/// The lock is asked for again, and what was read beside the first one counts no more than it does.
#[test]
fn it_is_read_again_after_an_eviction() {
    with_client(async |fake, client| {
        let handle = open(&fake, &client).await;
        let eviction = async {
            client.on_server_restart(true).await;
        };
        assert!(is_read_again(&fake, &client, handle, eviction).await);
        assert_eq!(asked(&fake), (2, 2));
    });
}

/// Reads a file; nothing of it before the lock has come.
async fn is_read_under_its_lock(fake: &Fake, client: &Client<Fake>, handle: Handle) -> Vec<u8> {
    fake.hold_answers(true);
    let answer = async {
        until(|| fake.asked(Op::Lock) == 1).await;
        host::sleep(Duration::from_millis(20)).await;
        assert_eq!(asked(fake), (1, 0));
        fake.hold_answers(false);
    };
    let data = join(read(client, handle), answer).await.0.unwrap();
    assert_eq!(asked(fake), (1, 1));
    data
}

#[test]
fn a_file_that_somebody_writes_is_read_under_its_lock() {
    with_client(async |fake, client| {
        fake.0.lock().size = 3;
        fake.0.lock().objects.insert(ObjectId { ino: FILE, stripe: 0 }, b"abc".to_vec());
        // The MDS says that its objects know its size.
        let handle = client.open(&Caller::ROOT, FILE, READ).await.unwrap().handle;
        assert_eq!(is_read_under_its_lock(&fake, &client, handle).await, b"abc");
    });
}

/// The open file knows where the data was, and what is there is old.
#[test]
fn a_file_that_has_moved_since_it_was_opened_is_read_under_its_lock() {
    with_client(async |fake, client| {
        let handle = open(&fake, &client).await;
        lose_attributes(&fake, &client).await;
        fake.0.lock().layout = Layout { first_object: 9, ..Layout::default() };
        let attr = client.getattr(file()).await.unwrap().attr;
        assert_eq!(attr.layout.first_object, 9);
        is_read_under_its_lock(&fake, &client, handle).await;
    });
}

#[test]
fn a_file_of_another_server_that_others_may_write_is_read_under_its_lock() {
    with_client(async |fake, client| {
        move_elsewhere(&fake);
        let handle = open(&fake, &client).await;
        let data = is_read_under_its_lock(&fake, &client, handle).await;
        assert_eq!(data, TREE.content(file()));
    });
}

#[test]
fn who_is_refused_the_lock_gets_no_data() {
    with_client(async |fake, client| {
        let handle = open(&fake, &client).await;
        let mut served = fake.0.lock().turn.take().unwrap();
        fake.turn(move |cred, request, answer| match request {
            MdsRequest::Lock { .. } => (Err(Errno::ESTALE), Vec::new()),
            _ => served(cred, request, answer),
        });
        assert_eq!(read(&client, handle).await, Err(Errno::ESTALE));
    });
}

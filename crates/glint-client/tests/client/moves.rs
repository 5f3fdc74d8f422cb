//! Tests of moves of files: of those that are changed while they are copied, and moves that fail.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(missing_docs, reason = "what a test does is its name")]

use crate::support::{FILE, Fake, LEASE_MS, open, with_client, write};
use glint_client::{Caller, Client, Vfs};
use glint_net::host;
use glint_proto::{
    Attr, Errno, FsResult, Layout, MdsReply, MdsRequest, ObjectId, Op, OstRequest, XattrFlags,
    clock,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

const PAGE: usize = 4096;
/// Number of the new object.
const NEW: u16 = 9;
/// What was asked for in the background ended with this.
type Ended = Arc<Mutex<Option<FsResult<()>>>>;

/// The MDS has planned where the data of a file of so many bytes goes, and hears what became of it.
fn plan(fake: &Fake, bytes: usize) {
    let planned = {
        let mut world = fake.0.lock();
        world.size = bytes as u64;
        world.objects.insert(ObjectId { ino: FILE, stripe: 0 }, vec![1; bytes]);
        Attr { layout: Layout { first_object: NEW, ..world.layout }, ..world.attr() }
    };
    fake.turn(move |_, request, answer| match request {
        MdsRequest::PlanLayout { .. } => (Ok(MdsReply::Attr(planned.clone())), Vec::new()),
        MdsRequest::DropLayout { .. } => (Ok(MdsReply::Done), Vec::new()),
        _ => answer,
    });
}

/// Tests moves of a file of one page that the MDS has planned, while time passes only where the
/// test says so.
fn with_planned<F: Future<Output = ()>>(test: impl FnOnce(Fake, Arc<Client<Fake>>) -> F) {
    let fake = Fake::default();
    plan(&fake, PAGE);
    clock::simulate(Some(clock::now()));
    let runtime = glint_net::runtime(None).unwrap();
    runtime.block_on(async {
        let client = Client::simulated(fake.clone(), true);
        test(fake, client).await;
    });
    clock::simulate(None);
}

/// Does something in the background.
fn begin(call: impl Future<Output = FsResult<()>> + 'static) -> Ended {
    let ended = Ended::default();
    let end = ended.clone();
    host::spawn(async move {
        let result = call.await;
        *end.lock() = Some(result);
    });
    ended
}

/// Begins to move the file.
fn begin_move(client: &Arc<Client<Fake>>) -> Ended {
    let client = client.clone();
    begin(async move {
        let (name, value) = (b"glint.restripe", b"stripe_count=1");
        client.setxattr(&Caller::ROOT, FILE, name, value, XattrFlags::default()).await
    })
}

/// Waits until something is so, while several leases pass. Returns whether it was.
async fn within_leases(is_so: impl Fn() -> bool) -> bool {
    for _ in 0..200 {
        if is_so() {
            return true;
        }
        host::sleep(Duration::from_millis(5)).await;
        clock::simulate(Some(clock::now() + Duration::from_millis(LEASE_MS / 8)));
    }
    false
}

#[test]
fn what_changes_while_a_file_is_copied_is_copied_again() {
    for is_lost in [false, true] {
        with_client(async |fake, client| {
            let mut content = vec![1u8; 20 << 20];
            content[4 << 20..5 << 20].fill(0);
            let old = content.clone();
            // Data in place of data that was read, and of a hole; a hole in place of data; and five
            // extents, which are more than an answer has.
            let mut changes = vec![
                (0, vec![2; 100]),
                ((4 << 20) + PAGE, vec![3; PAGE]),
                (2 * PAGE, vec![0; 2 * PAGE]),
            ];
            changes.extend((1..6).map(|n| (((10 + n) << 20) + PAGE, vec![4; PAGE])));
            for (offset, data) in &changes {
                content[*offset..offset + data.len()].copy_from_slice(data);
            }
            let planned = {
                let mut world = fake.0.lock();
                world.size = old.len() as u64;
                world.objects.insert(ObjectId { ino: FILE, stripe: 0 }, old);
                world.watched.is_lost = is_lost;
                let changes = changes.into_iter().map(|(offset, data)| (offset as u64, data));
                world.watched.changes = changes.collect();
                Attr { layout: Layout { first_object: NEW, ..world.layout }, ..world.attr() }
            };
            fake.turn(move |_, request, answer| match request {
                MdsRequest::PlanLayout { .. } => (Ok(MdsReply::Attr(planned.clone())), Vec::new()),
                MdsRequest::SwitchLayout { .. } => (Ok(MdsReply::Done), Vec::new()),
                _ => answer,
            });
            let (name, value) = (b"glint.restripe", b"stripe_count=1");
            let moved =
                client.setxattr(&Caller::ROOT, FILE, name, value, XattrFlags::default()).await;
            assert_eq!(moved, Ok(()));
            assert!(fake.0.lock().watched.changes.is_empty());
            assert!(fake.data(0) == content && fake.data(NEW) == content);
            let watches = fake.count(|request| matches!(request, OstRequest::Watch { .. }));
            assert_eq!(watches, if is_lost { 2 } else { 1 });
        });
    }
}

/// What was sent to a server it executes in any case. If that came after the new objects were
/// removed, they would be there again.
#[test]
fn a_move_that_fails_at_one_server_waits_for_the_others() {
    with_client(async |fake, client| {
        let planned = {
            let mut world = fake.0.lock();
            let content = vec![1; 2 << 16];
            world.size = content.len() as u64;
            world.objects.insert(ObjectId { ino: FILE, stripe: 0 }, content);
            let two = Layout { stripe_bytes_log2: 16, stripe_count: 2, ..world.layout };
            Attr { layout: Layout { first_object: NEW, ..two }, ..world.attr() }
        };
        fake.turn(move |_, request, answer| match request {
            MdsRequest::PlanLayout { .. } => (Ok(MdsReply::Attr(planned.clone())), Vec::new()),
            MdsRequest::DropLayout { .. } => (Ok(MdsReply::Done), Vec::new()),
            _ => answer,
        });
        let writes = |request: &OstRequest, stripe| {
            let OstRequest::Write { object, .. } = request else { return false };
            object.stripe == stripe
        };
        fake.fail(move |request| writes(request, NEW).then_some(Errno::EIO));
        let (name, value) = (b"glint.restripe", b"stripe_count=2");
        let moved = client.setxattr(&Caller::ROOT, FILE, name, value, XattrFlags::default()).await;
        assert_eq!(moved, Err(Errno::EIO));
        assert_eq!(fake.count(|request| writes(request, NEW + 1)), 1);
        assert_eq!(fake.asked(Op::MoveLayout), 2, "it was planned, and is dropped");
    });
}

/// Nobody elsewhere wants the lock, but other calls of this client wait at the gate.
#[test]
fn a_move_that_waits_for_a_server_lets_calls_in_after_a_lease() {
    // A call that is inside when the gate is shut, and the last step of the copy.
    let kinds: [fn(&OstRequest) -> bool; 2] = [
        |request| matches!(request, OstRequest::Seek { .. }),
        |request| matches!(request, OstRequest::Sync { .. }),
    ];
    for kind in kinds {
        with_planned(async |fake, client| {
            let file = open(&client).await;
            fake.0.lock().stands_still = Some(kind);
            let seeks = client.clone();
            let sought = begin(async move { seeks.lseek(file, 0, false).await.map(drop) });
            host::sleep(Duration::from_millis(20)).await;
            let moved = begin_move(&client);
            while fake.0.lock().unanswered == 0 {
                host::sleep(Duration::from_millis(1)).await;
            }
            // Until the gate is shut, in either case.
            host::sleep(Duration::from_millis(100)).await;
            let writes = client.clone();
            let written = begin(async move { write(&writes, file, 0, b"new").await });
            assert!(within_leases(|| written.lock().is_some()).await, "a call waits");
            assert_eq!(*written.lock(), Some(Ok(())));
            assert!(within_leases(|| moved.lock().is_some()).await);
            assert_eq!(*moved.lock(), Some(Err(Errno::ETIMEDOUT)));
            fake.0.lock().stands_still = None;
            assert!(within_leases(|| fake.asked(Op::MoveLayout) == 2).await, "it is dropped");
            assert!(within_leases(|| sought.lock().is_some()).await);
        });
    }
}

/// Each that was given up is still there, until the server answers.
#[test]
fn moves_that_were_given_up_are_limited_in_number() {
    with_planned(async |fake, client| {
        fake.0.lock().stands_still = Some(|request| matches!(request, OstRequest::Sync { .. }));
        let move_once = async || {
            let moved = begin_move(&client);
            assert!(within_leases(|| moved.lock().is_some()).await);
            moved.lock().unwrap()
        };
        let mut given_up = 0;
        let refused = loop {
            match move_once().await {
                Err(Errno::ETIMEDOUT) if given_up < 100 => given_up += 1,
                other => break other,
            }
        };
        assert_eq!((refused, given_up), (Err(Errno::ENOBUFS), 16));
        assert_eq!(fake.asked(Op::MoveLayout), given_up, "only those were planned");
        fake.0.lock().stands_still = None;
        assert!(within_leases(|| fake.asked(Op::MoveLayout) == 2 * given_up).await, "all dropped");
        assert_eq!(move_once().await, Err(Errno::EOPNOTSUPP), "it gets as far as the switch");
    });
}

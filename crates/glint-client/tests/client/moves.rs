//! Tests of moves of files: of those that are changed while they are copied, and moves that fail.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(missing_docs, reason = "what a test does is its name")]

use crate::support::{FILE, with_client};
use glint_client::{Caller, Vfs};
use glint_proto::{
    Attr, Errno, Layout, MdsReply, MdsRequest, ObjectId, Op, OstRequest, XattrFlags,
};

const PAGE: usize = 4096;
/// Number of the new object.
const NEW: u16 = 9;

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

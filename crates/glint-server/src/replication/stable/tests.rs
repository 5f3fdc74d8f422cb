//! Tests of what is called stable, on servers in memory.

use crate::replication::tests::World;
use futures_lite::future::block_on;
use glint_proto::chain::{Destination, MemberState};
use glint_proto::{Bulk, ClientId, Ino, ObjectId, OstRequest};

const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };

#[test]
fn members_bring_changes_to_stable_storage_at_the_same_time() {
    let world = World::new(&[MemberState::Serving; 3]);
    block_on(world.server(0).take_over(world.here(0)));
    let to = Destination { ost: 0, chain: Some(world.version()) };
    let write = OstRequest::Write { object: OBJECT, offset: 0, mtime: None, kept: false };
    let written =
        world.server(0).execute(world.here(0), ClientId::IN_PROCESS, to, write, Bulk::Out(b"c"));
    block_on(written).reply.unwrap();
    block_on(world.server(0).settle(world.here(0))).unwrap();
    assert_eq!(*world.committing.lock(), (0, 2));
    let target = world.version().target;
    for ost in 0..3 {
        assert!(world.server(ost).recent.list((target, 0)).is_empty(), "stable at {ost}");
        assert_eq!(world.here(ost).osts.committed(), world.here(ost).osts.next_change() - 1);
    }
}

//! Tests of what is called stable, on servers in memory.

use crate::replication::Here;
use crate::replication::tests::{Server, World};
use futures_lite::future::block_on;
use glint_ost::disk::memory::{DiskOperation, Fault};
use glint_proto::chain::{Chain, ChainId, Destination, Member, MemberState};
use glint_proto::{Bulk, ClientId, Errno, Ino, ObjectId, OstRequest};

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

#[test]
fn a_chain_does_not_wait_for_an_ost_that_is_no_member_of_it() {
    let server = Server::with(2);
    let (replication, here) = (&server.replication, Here { osts: &server.osts, first: 0 });
    let row = |index, ost| Chain {
        id: ChainId { copies: 2, index },
        version: 1,
        members: vec![Member { ost, state: MemberState::Serving }],
        founders: vec![ost],
        intact_since: 1,
    };
    let (works, failed) = (row(0, 0), row(1, 1));
    server.disks[1].fail(Fault::new(DiskOperation::Sync, "", Errno::EIO.0, 1));
    for ost in 0..2 {
        let write = OstRequest::Write { object: OBJECT, offset: 0, mtime: None, kept: false };
        let written = server.osts.handle(ClientId::IN_PROCESS, ost, write, Bulk::Out(b"c"));
        block_on(written).reply.unwrap();
    }
    let committed = |rows: &[&Chain]| {
        let rows = rows.iter().copied();
        block_on(replication.commit_members(here, rows)).unwrap().into_iter().collect::<Vec<_>>()
    };
    assert_eq!(committed(&[&works]), [(0, Ok(()))]);
    assert_eq!(server.osts.failure(1), None, "it was not asked");
    assert_eq!(server.osts.committed(), 0, "the other one has what is not on stable storage");
    assert_eq!(committed(&[&works, &failed]), [(0, Ok(())), (1, Err(Errno::EIO))]);
    assert_eq!(server.osts.committed(), 0);
}

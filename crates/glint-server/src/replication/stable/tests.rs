//! Tests of what is called stable, on servers in memory.

use crate::replication::Here;
use crate::replication::tests::{Server, Still, World};
use crate::replication::touched::UNNUMBERED;
use futures_lite::future::{block_on, poll_once};
use glint_net::host;
use glint_ost::disk::memory::{DiskOperation, Fault};
use glint_proto::chain::{Chain, ChainId, ChainVersion, Destination, Member, MemberState, Touched};
use glint_proto::{Bulk, ClientId, Errno, Ino, ObjectId, OstRequest};
use std::pin::pin;
use std::rc::Rc;

const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };

#[test]
fn members_bring_changes_to_stable_storage_at_the_same_time() {
    let world = World::new(&[MemberState::Serving; 3]);
    block_on(world.server(0).take_over(world.here(0)));
    write(&world);
    block_on(world.server(0).settle(world.here(0))).unwrap();
    assert_eq!(*world.committing.lock(), (0, 2));
    let target = world.version().target;
    for ost in 0..3 {
        assert!(world.server(ost).recent.list((target, 0)).is_empty(), "stable at {ost}");
        assert_eq!(world.here(ost).osts.committed(), world.here(ost).osts.next_change() - 1);
    }
}

/// Writes to the object by the first server, which is the head.
fn write(world: &World) {
    let to = Destination { ost: 0, chain: Some(world.version()) };
    let write = OstRequest::Write { object: OBJECT, offset: 0, mtime: None, kept: false };
    let (server, client) = (world.server(0), ClientId::IN_PROCESS);
    let written = server.execute(world.here(0), client, to, write, Bulk::Out(b"c"));
    block_on(written).reply.unwrap();
}

/// OSTs that may have something that others do not have, as they see it.
fn with_recent(world: &World, members: u16) -> Vec<u16> {
    let key = (world.version().target, 0);
    (0..members).filter(|ost| !world.server(*ost).recent.is_empty(key)).collect()
}

#[test]
fn a_member_that_had_a_newer_row_is_told_again_what_is_stable() {
    let world = World::new(&[MemberState::Serving; 3]);
    let (server, here) = (world.server(0), world.here(0));
    block_on(server.take_over(here));
    write(&world);
    let newer = Chain { version: world.version().version + 1, ..world.row() };
    *world.before_stable.lock() = Some(newer);
    block_on(server.settle_once(here)).unwrap();
    assert!(world.before_stable.lock().is_none());
    assert!(!with_recent(&world, 3).is_empty(), "all have listened");
    world.next_row(|_| {});
    block_on(server.settle_if_due(here));
    assert!(with_recent(&world, 3).is_empty());
}

#[test]
fn what_was_called_stable_while_it_was_in_doubt_is_over_with_the_doubt() {
    let world = World::new(&[MemberState::Serving; 3]);
    let key = (world.version().target, 0);
    let all = std::iter::once(Touched::whole(OBJECT));
    block_on(world.server(1).recent.touch_all(key, all, UNNUMBERED)).unwrap();
    let (server, here) = (world.server(0), world.here(0));
    block_on(server.take_over(here));
    write(&world);
    block_on(server.settle_once(here)).unwrap();
    assert_eq!(with_recent(&world, 3), [0, 1, 2], "it is in doubt");
    while block_on(server.decide_some(here)) {}
    assert!(with_recent(&world, 3).is_empty());
}

#[test]
fn what_was_called_stable_while_a_member_was_synced_is_over_when_it_serves() {
    let world = World::new(&[MemberState::Serving, MemberState::Offline]);
    let key = (world.version().target, 0);
    block_on(world.server(1).recent.touch(key, Touched::whole(OBJECT), (1, 9))).unwrap();
    let chain = world.next_row(|row| row.members[1].state = MemberState::Syncing);
    let now = (chain.version, 5);
    block_on(world.server(1).recent.touch(key, Touched::whole(OBJECT), now)).unwrap();
    world.server(1).learn_stable(world.here(1), chain, 5);
    assert_eq!(with_recent(&world, 2), [1], "the head may not know of the first one");
    world.next_row(|row| row.members[1].state = MemberState::Serving);
    assert!(with_recent(&world, 2).is_empty());
}

#[test]
fn what_a_member_had_changed_before_it_was_lost_is_not_over_with_a_doubt_from_then() {
    let world = World::new(&[MemberState::Serving, MemberState::Offline]);
    let key = (world.version().target, 0);
    let other = ObjectId { ino: Ino(8), stripe: 0 };
    // One that was away has changed something that nobody else has.
    let own = std::iter::once(Touched::whole(other));
    block_on(world.server(1).recent.touch_all(key, own, UNNUMBERED)).unwrap();
    let (server, here) = (world.server(0), world.here(0));
    let all = std::iter::once(Touched::whole(OBJECT));
    block_on(server.recent.touch_all(key, all, UNNUMBERED)).unwrap();
    block_on(server.take_over(here));
    world.next_row(|row| row.members[1].state = MemberState::Syncing);
    while block_on(server.decide_some(here)) {}
    assert_eq!(with_recent(&world, 2), [1], "the head has not asked for it");
    world.next_row(|row| row.members[1].state = MemberState::Serving);
    assert!(with_recent(&world, 2).is_empty());
}

/// A row of which one member only is left.
fn row_of_one(index: u16, ost: u16) -> Chain {
    Chain {
        id: ChainId { copies: 2, index },
        version: 1,
        members: vec![Member { ost, state: MemberState::Serving }],
        founders: vec![ost],
        intact_since: 1,
    }
}

#[test]
fn a_chain_does_not_wait_for_an_ost_that_is_no_member_of_it() {
    let server = Server::with(2);
    let (replication, here) = (&server.replication, Here { osts: &server.osts, first: 0 });
    let (works, failed) = (row_of_one(0, 0), row_of_one(1, 1));
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

#[test]
fn a_chain_does_not_wait_for_changes_of_another_one() {
    host::simulate(Some(Rc::new(Still)));
    let server = Server::with(2);
    let (replication, here) = (&server.replication, Here { osts: &server.osts, first: 0 });
    let [waits, goes_on] = [0, 1].map(|index| {
        let row = row_of_one(index, index);
        replication.adopt(here, &row);
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        let (number, _) = replication.rows.begin(chain, here.osts.next_change()).unwrap();
        (chain.target, number)
    });
    let end = |(target, number): (u16, u64)| replication.rows.end(target, &[number], true, &(0..2));
    let unstable = || -> Vec<u16> {
        replication.rows.unstable().into_iter().map(|(target, _)| target).collect()
    };
    end(goes_on);
    // The disk of the first one stands still.
    let mut all = pin!(replication.settle_once(here));
    assert!(block_on(poll_once(all.as_mut())).is_none());
    assert_eq!(unstable(), [waits.0]);
    let (number, _) = {
        let chain = ChainVersion { target: goes_on.0, version: 1 };
        replication.rows.begin(chain, here.osts.next_change()).unwrap()
    };
    end((goes_on.0, number));
    block_on(replication.settle_if_due(here));
    assert_eq!(unstable(), [waits.0], "the round leaves the first one to who has its turn");
    end(waits);
    block_on(all).unwrap();
    assert!(unstable().is_empty());
    host::simulate(None);
}

//! Tests of takeovers, on servers in memory.

use super::merged;
use crate::replication::copy::PIECE;
use crate::replication::tests::World;
use futures_lite::future::block_on;
use glint_proto::chain::{Destination, MemberState, Touched};
use glint_proto::{Bulk, ClientId, FsResult, Ino, ObjectId, OstReply, OstRequest};

const SERVING: MemberState = MemberState::Serving;
const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };

fn part(ino: u64, start: u64, end: u64) -> Touched {
    Touched { object: ObjectId { ino: Ino(ino), stripe: 0 }, start, end }
}

#[test]
fn parts_that_overlap_are_one() {
    let all = vec![part(8, 5, 6), part(7, 90, 99), part(7, 0, 10), part(7, 5, 20), part(7, 20, 21)];
    assert_eq!(merged(all), [part(7, 0, 21), part(7, 90, 99), part(8, 5, 6)]);
}

#[test]
fn what_lies_between_two_writes_is_not_compared() {
    const END: u64 = 64 * PIECE;
    let world = World::new(&[SERVING, SERVING]);
    let chain = world.version();
    for ost in [0, 1] {
        world.write(ost, OBJECT, 0, &vec![b'a'; (END + 1) as usize]);
    }
    world.write(0, OBJECT, 0, b"b");
    world.write(0, OBJECT, END, b"b");
    // Nobody has noted this; it stands for data that need not be read.
    world.write(0, OBJECT, END / 2, b"b");
    let key = (chain.target, 0);
    world.server(0).recent.touch(key, part(7, 0, 1), (1, 1)).unwrap();
    world.server(1).recent.touch(key, part(7, END, END + 1), (1, 2)).unwrap();
    block_on(world.server(0).take_over(world.here(0)));
    assert!(world.server(0).rows.enter(chain).unwrap().is_active);
    for (at, byte) in [(0, b"b"), (END / 2, b"a"), (END, b"b")] {
        assert_eq!(world.read(1, OBJECT, at, 1), byte, "at {at}");
    }
}

/// A client's write, by the row of now.
fn write_at(world: &World, head: u16, object: ObjectId) -> FsResult<OstReply> {
    let to = Destination { ost: head, chain: Some(world.version()) };
    let write = OstRequest::Write { object, offset: 0, mtime: None, kept: false };
    let (server, client) = (world.server(head), ClientId::IN_PROCESS);
    block_on(server.execute(world.here(head), client, to, write, Bulk::Out(b"c"))).reply
}

/// The last member that served is away, and may have lost what it had.
#[test]
fn changes_of_a_chain_in_which_nobody_serves_are_not_called_stable() {
    let world = World::new(&[SERVING, SERVING]);
    block_on(world.server(0).take_over(world.here(0)));
    let committed = || world.server(0).committed(world.here(0).osts.committed());
    let settle = || block_on(world.server(0).settle(world.here(0))).unwrap();
    write_at(&world, 0, OBJECT).unwrap();
    settle();
    let before = committed();
    write_at(&world, 0, OBJECT).unwrap();
    world.next_row(|row| {
        row.members.reverse();
        row.members[0].state = MemberState::LastServing;
        row.members[1].state = MemberState::Offline;
    });
    settle();
    assert_eq!(committed(), before, "the last member may lose it");
    // It comes back without its memory, and clients send again what they have not heard to be stable.
    world.next_row(|row| {
        row.members[0].state = SERVING;
        row.intact_since = row.version;
    });
    settle();
    assert_eq!(committed(), before, "it may be lost");
}

#[test]
fn one_that_was_the_head_calls_nothing_stable_that_another_has_ordered() {
    let world = World::new(&[SERVING, SERVING]);
    block_on(world.server(0).take_over(world.here(0)));
    for ino in 1..=9 {
        write_at(&world, 0, ObjectId { ino: Ino(ino), ..OBJECT }).unwrap();
    }
    let target = world.next_row(|row| row.members.reverse()).target;
    block_on(world.server(1).take_over(world.here(1)));
    write_at(&world, 1, OBJECT).unwrap();
    // It may have begun before that change.
    block_on(world.server(0).settle_once(world.here(0))).unwrap();
    for ost in [0, 1] {
        let left = world.server(ost).recent.list((target, 0));
        assert!(left.contains(&part(7, 0, 1)), "nobody has brought it to stable storage");
    }
}

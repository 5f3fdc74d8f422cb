//! Tests of takeovers, on servers in memory.

use super::merged;
use crate::replication::copy::PIECE;
use crate::replication::tests::World;
use futures_lite::future::block_on;
use glint_proto::chain::{MemberState, Touched};
use glint_proto::{Ino, ObjectId};

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

//! Tests of heal, on servers in memory.

use crate::replication::tests::World;
use crate::replication::touched::UNNUMBERED;
use futures_lite::future::block_on;
use glint_proto::chain::{MemberState, Touched};
use glint_proto::limits::BODY_BYTES_MAX;
use glint_proto::{Ino, ObjectId, message};

const SERVING: MemberState = MemberState::Serving;
const SYNCING: MemberState = MemberState::Syncing;

fn touched(ino: u64) -> Touched {
    Touched { object: ObjectId { ino: Ino(ino), stripe: 0 }, start: 0, end: 1 }
}

/// Heals from the first server until all serve, in no more than so many steps.
fn heal(world: &World, steps: usize) {
    for _ in 0..steps {
        if world.row().readable().count() == world.row().members.len() {
            return;
        }
        block_on(world.server(0).heal(world.here(0)));
    }
    panic!("heal does not end: {:?}", world.row());
}

#[test]
fn a_member_that_changed_more_than_a_message_holds_is_healed() {
    const OBJECTS: u64 = 131_000;
    let world = World::new(&[SERVING, SYNCING]);
    let chain = world.version();
    for ino in 1..=OBJECTS {
        let key = (chain.target, 0);
        world.server(1).recent.touch(key, touched(ino << 32), UNNUMBERED).unwrap();
    }
    let last = touched(OBJECTS << 32).object;
    world.write(0, last, 0, b"head");
    world.write(1, last, 0, b"lost");
    let listed = world.server(1).recent.list((chain.target, 0));
    let mut all = Vec::new();
    message::encode(&listed, &mut all).unwrap();
    assert!(all.len() > BODY_BYTES_MAX, "{} bytes", all.len());
    world.server(0).rows.activate_own(chain, 0);
    heal(&world, OBJECTS as usize / 32);
    assert_eq!(world.read(1, last, 0, 9), b"host", "the first byte is that of the head");
}

/// A later change of an object does not say that its copies are equal: one from before the member
/// was lost may be at it alone.
#[test]
fn a_member_that_is_synced_forgets_nothing() {
    let world = World::new(&[SERVING, SYNCING]);
    let chain = world.version();
    let key = (chain.target, 0);
    let member = world.server(1);
    let before = (chain.version - 1, 5);
    member.recent.touch(key, touched(1), before).unwrap();
    member.recent.touch(key, touched(1), (chain.version, 4)).unwrap();
    member.recent.touch(key, touched(2), UNNUMBERED).unwrap();
    member.recent.touch(key, touched(3), (chain.version, 5)).unwrap();
    member.recent.touch(key, touched(4), (chain.version, 7)).unwrap();
    member.is_stable(world.here(1), chain, 6);
    let left: Vec<u64> = member.recent.list(key).iter().map(|one| one.object.ino.0).collect();
    assert_eq!(left, [1, 2, 3, 4]);
}

#[test]
fn a_member_that_lacks_everything_is_given_all_objects() {
    const FILES: u64 = 200;
    let world = World::new(&[SERVING, SYNCING]);
    let chain = world.version();
    let object = |ino| touched(ino).object;
    for ino in 1..=FILES {
        world.write(0, object(ino), 0, b"data");
        world.files.lock().insert(object(ino));
    }
    let key = (chain.target, 1);
    let head = world.server(0);
    head.pending.touch(key, Touched::EVERYTHING, UNNUMBERED).unwrap();
    head.pending.touch(key, touched(7), UNNUMBERED).unwrap();
    let shown = &head.pending(world.here(0))[0];
    assert_eq!((shown.everything, shown.objects), (true, 0));
    head.rows.activate_own(chain, 0);
    heal(&world, 10);
    for ino in 1..=FILES {
        assert_eq!(world.read(1, object(ino), 0, 9), b"data", "{ino}");
    }
    assert!(head.pending(world.here(0)).is_empty());
}

#[test]
fn removed_objects_are_not_pending_any_more() {
    let world = World::new(&[SERVING, MemberState::Offline]);
    let chain = world.version();
    let head = world.server(0);
    for ino in 1..=1000 {
        head.pending.touch((chain.target, 1), touched(ino), UNNUMBERED).unwrap();
    }
    head.are_removed((1..1000).map(|ino| touched(ino).object));
    assert_eq!(head.pending.list((chain.target, 1)), [touched(1000)]);
    head.are_removed(std::iter::once(touched(1000).object));
    assert!(head.pending(world.here(0)).is_empty());
}

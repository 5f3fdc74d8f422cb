//! Tests of objects that were begun while a member lagged behind that has them.

use super::*;
use crate::replication::rows::Told;
use crate::replication::tests::World;
use MemberState::{Offline, Serving, Syncing};
use futures_lite::future::block_on;
use glint_ost::disk::memory::{DiskOperation, Fault};
use glint_proto::chain::Destination;
use glint_proto::{ClientId, Ino};

const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };
const OLD: [u8; 300] = [b'g'; 300];

/// Some members serve and have nothing of an object of a file, and the last one lags behind, which
/// has it.
fn lost_by(serve: usize) -> Arc<World> {
    let world = World::new(&vec![Serving; serve + 1]);
    world.files.lock().insert(OBJECT);
    world.write(serve as u16, OBJECT, 0, &OLD);
    is_away(&world);
    world
}

fn is_away(world: &World) {
    world.next_row(|row| row.members.last_mut().unwrap().state = Offline);
    block_on(world.server(0).take_over(world.here(0)));
}

fn change(world: &World, request: OstRequest, data: &[u8]) {
    let to = Destination { ost: 0, chain: Some(world.version()) };
    let bulk = if data.is_empty() { Bulk::None } else { Bulk::Out(data) };
    let (here, client) = (world.here(0), ClientId::IN_PROCESS);
    block_on(world.server(0).execute(here, client, to, request, bulk)).reply.unwrap();
}

fn write(world: &World, offset: u64, data: &[u8]) {
    let write = OstRequest::Write { object: OBJECT, offset, mtime: None, kept: false };
    change(world, write, data);
}

/// The last member comes back. All have this then.
fn must_be(world: &World, wanted: &[u8]) {
    world.next_row(|row| row.members.last_mut().unwrap().state = Syncing);
    (0..10).for_each(|_| _ = block_on(world.server(0).heal(world.here(0))));
    world.next_row(|_| {});
    let (row, target) = (world.row(), world.version().target);
    assert_eq!(row.readable().count(), row.members.len(), "{row:?}");
    for ost in 0..row.members.len() as u16 {
        let has = world.read(ost, OBJECT, 0, 1000);
        assert!(has == wanted, "OST {ost}: {}", String::from_utf8_lossy(&has));
        assert!(!world.server(ost).is_begun(target, OBJECT), "OST {ost}");
    }
}

#[test]
fn what_a_member_that_was_away_has_of_a_lost_object_is_not_written_over() {
    for serve in [1, 2] {
        let world = lost_by(serve);
        write(&world, 100, b"zz");
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let punch = OstRequest::Fallocate { object: OBJECT, mode, offset: 200, len: 10 };
        change(&world, punch, &[]);
        write(&world, 110, b"y\0");
        write(&world, 400, b"end");
        let target = world.version().target;
        (0..serve as u16).for_each(|ost| assert!(world.server(ost).is_begun(target, OBJECT)));
        let mut wanted = OLD.to_vec();
        wanted[100..102].copy_from_slice(b"zz");
        wanted[110..112].copy_from_slice(b"y\0");
        wanted[200..210].fill(0);
        wanted.resize(400, 0);
        wanted.extend_from_slice(b"end");
        must_be(&world, &wanted);
    }
}

#[test]
fn what_was_cut_meanwhile_does_not_come_back() {
    let world = lost_by(1);
    change(&world, OstRequest::Truncate { object: OBJECT, size: 100 }, &[]);
    write(&world, 50, b"x");
    let mut wanted = OLD[..100].to_vec();
    wanted[50] = b'x';
    must_be(&world, &wanted);

    // Nobody has lost it.
    let world = World::new(&[Serving; 2]);
    world.files.lock().insert(OBJECT);
    (0..2).for_each(|ost| world.write(ost, OBJECT, 0, &OLD));
    is_away(&world);
    change(&world, OstRequest::Truncate { object: OBJECT, size: 0 }, &[]);
    write(&world, 4, b"new");
    must_be(&world, b"\0\0\0\0new");
}

/// Heal had no reason to come to the object.
#[test]
fn what_a_member_that_is_synced_has_of_an_object_that_is_begun_beside_it_is_taken() {
    let world = World::new(&[Serving, Syncing]);
    let (head, chain) = (world.server(0), world.version());
    world.files.lock().insert(OBJECT);
    world.write(1, OBJECT, 0, &OLD);
    head.rows.activate_own(chain, 0);
    head.rows.told(Told::Syncing, chain);
    // It is not asked whether the head has lost what a change is under way of.
    let part = Touched { object: OBJECT, start: 100, end: 102 };
    block_on(head.recent.touch((chain.target, 0), part, UNNUMBERED)).unwrap();
    write(&world, 100, b"zz");
    assert!(!head.pending.is_empty((chain.target, 1)));
    (0..10).for_each(|_| _ = block_on(head.heal(world.here(0))));
    assert_eq!(world.row().readable().count(), 2, "{:?}", world.row());
    let mut wanted = OLD;
    wanted[100..102].copy_from_slice(b"zz");
    (0..2).for_each(|ost| assert!(world.read(ost, OBJECT, 0, 1000) == wanted, "OST {ost}"));
}

#[test]
fn what_a_member_lacks_or_has_alone_is_not_taken_from_it() {
    // It was cut while the member was away, and heal has not come to it yet.
    let world = World::new(&[Serving; 2]);
    world.files.lock().insert(OBJECT);
    (0..2).for_each(|ost| world.write(ost, OBJECT, 0, &OLD));
    is_away(&world);
    change(&world, OstRequest::Truncate { object: OBJECT, size: 0 }, &[]);
    world.next_row(|row| row.members[1].state = Syncing);
    write(&world, 4, b"new");
    must_be(&world, b"\0\0\0\0new");

    // The member alone has made a change of which nobody has heard.
    let world = lost_by(1);
    let alone = Touched { object: OBJECT, start: 10, end: 300 };
    let key = (world.version().target, 0);
    block_on(world.server(1).recent.touch(key, alone, UNNUMBERED)).unwrap();
    write(&world, 4, b"new");
    must_be(&world, b"ggggnewggg");
}

/// A takeover, or a change that has failed, copies parts before heal comes to the object.
#[test]
fn what_was_lost_is_taken_before_anything_else_is_copied() {
    let world = lost_by(1);
    write(&world, 4, b"new");
    world.next_row(|row| row.members[1].state = Syncing);
    let (row, part) = (world.row(), Touched { object: OBJECT, start: 4, end: 7 });
    let parts = [part];
    let copied = world.server(0).copy(world.here(0), (0, &row), 1, (OBJECT, &parts), None);
    block_on(copied).unwrap();
    let mut wanted = OLD.to_vec();
    wanted[4..7].copy_from_slice(b"new");
    (0..2).for_each(|ost| assert_eq!(world.read(ost, OBJECT, 0, 1000), wanted, "OST {ost}"));
}

#[test]
fn a_hole_is_looked_for_and_not_read_however_long_it_is() {
    const END: u64 = 1 << 40;
    let world = lost_by(1);
    world.write(1, OBJECT, END, b"end");
    write(&world, 4, b"new");
    let mut wanted = OLD.to_vec();
    wanted[4..7].copy_from_slice(b"new");
    wanted.resize(1000, 0);
    must_be(&world, &wanted);
    (0..2).for_each(|ost| assert_eq!(world.read(ost, OBJECT, END, 9), b"end", "OST {ost}"));
}

#[test]
fn a_member_that_cannot_take_what_it_has_lost_is_named_and_gets_it_later() {
    let world = lost_by(2);
    write(&world, 4, b"new");
    let target = world.version().target;
    world.next_row(|row| row.members[2].state = Syncing);
    let unite = || {
        let (here, row) = (world.here(0), world.row());
        block_on(world.server(0).unite(here, (0, &row), 2, OBJECT, None))
    };
    let (object, errno) = (OBJECT, Errno::ENOSPC);
    let failed = [CopyError::Own { ost: 0, object, errno }, CopyError::Member { ost: 1, errno }];
    for (ost, failed) in (0..).zip(failed) {
        let path = OBJECT.to_string();
        world.disk(ost).fail(Fault::new(DiskOperation::Write, &path, libc::ENOSPC, 1));
        assert_eq!(unite(), Err(failed));
    }
    world.next_row(|row| row.members[1].state = Offline);
    assert_eq!(unite(), Ok(()));
    let lacks = world.server(0).pending.parts_of((target, 1), OBJECT);
    assert!(lacks.iter().any(|part| (part.start..part.end).contains(&200)), "{lacks:?}");
}

#[test]
fn a_member_that_does_not_serve_knows_of_no_object_that_it_was_begun() {
    let world = lost_by(2);
    write(&world, 4, b"new");
    let target = world.version().target;
    let are_begun = || [0, 1].map(|ost| world.server(ost).is_begun(target, OBJECT));
    assert_eq!(are_begun(), [true, true]);
    world.next_row(|row| row.members[1].state = Offline);
    assert_eq!(are_begun(), [true, false], "it will not hear of cuts");

    // Heal has not come to the object yet.
    let world = World::new(&[Serving, Syncing, Offline]);
    world.files.lock().insert(OBJECT);
    [0, 2].iter().for_each(|ost| world.write(*ost, OBJECT, 0, &OLD));
    world.next_row(|_| {});
    block_on(world.server(0).take_over(world.here(0)));
    write(&world, 400, b"end");
    assert_eq!(world.read(1, OBJECT, 400, 9), b"end");
    assert!(!world.server(1).is_begun(world.version().target, OBJECT));
}

#[test]
fn nothing_is_noted_of_an_object_that_no_member_can_have() {
    let whole = World::new(&[Serving; 2]);
    block_on(whole.server(0).take_over(whole.here(0)));
    write(&whole, 0, b"new");
    whole.next_row(|row| row.members[1].state = Offline);
    write(&whole, 3, b"!");
    assert!(!whole.server(0).is_begun(whole.version().target, OBJECT));
}

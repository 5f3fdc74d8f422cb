//! Tests of heal, on servers in memory.

use crate::replication::tests::{Hurrying, World};
use crate::replication::touched::UNNUMBERED;
use futures_lite::future::{block_on, poll_once};
use glint_net::host;
use glint_proto::chain::{
    Chain, ChainId, ChainPolicy, ChainVersion, Destination, MemberState, Touched,
};
use glint_proto::limits::BODY_BYTES_MAX;
use glint_proto::{Bulk, ClientId, Errno, Ino, ObjectId, OstRequest, clock, message};
use std::pin::pin;
use std::rc::Rc;

const SERVING: MemberState = MemberState::Serving;
const SYNCING: MemberState = MemberState::Syncing;
const OFFLINE: MemberState = MemberState::Offline;

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
        block_on(world.server(1).recent.touch(key, touched(ino << 32), UNNUMBERED)).unwrap();
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
fn a_member_that_is_synced_forgets_what_is_stable_since_and_nothing_from_before() {
    let world = World::new(&[SERVING, SYNCING]);
    let chain = world.version();
    let key = (chain.target, 0);
    let member = world.server(1);
    let before = (chain.version - 1, 5);
    block_on(member.recent.touch(key, touched(1), before)).unwrap();
    block_on(member.recent.touch(key, touched(1), (chain.version, 4))).unwrap();
    block_on(member.recent.touch(key, touched(2), UNNUMBERED)).unwrap();
    block_on(member.recent.touch(key, touched(3), (chain.version, 5))).unwrap();
    block_on(member.recent.touch(key, touched(4), (chain.version, 7))).unwrap();
    member.learn_stable(world.here(1), chain, 6);
    let left: Vec<u64> = member.recent.list(key).iter().map(|one| one.object.ino.0).collect();
    assert_eq!(left, [1, 2, 4]);
}

/// Version of a row, and states of its members.
type Row = (u32, [MemberState; 3]);

/// Rows that the server of the second member hears of after the first one, in which it is synced, and
/// whether it is written in the last one as it has been since.
const ROWS: [(&[Row], bool); 6] = [
    // Another member is lost, or its head: it is written on.
    (&[(2, [SERVING, SYNCING, OFFLINE])], true),
    (&[(2, [OFFLINE, SYNCING, SERVING])], true),
    (&[(2, [SERVING, SERVING, OFFLINE])], true),
    // It is lost again while it is synced, and synced again.
    (&[(2, [SERVING, OFFLINE, SERVING]), (3, [SERVING, SYNCING, SERVING])], false),
    // It does not hear that it was.
    (&[(3, [SERVING, SYNCING, SERVING])], false),
    // It hears late that it serves: it does not without having heard that it is synced.
    (&[(4, [SERVING, SERVING, OFFLINE])], true),
];

#[test]
fn a_member_that_is_synced_again_keeps_what_it_changed_when_it_was_synced_before() {
    for (case, (rows, is_on)) in ROWS.into_iter().enumerate() {
        let world = World::new(&[SERVING, SYNCING, SERVING]);
        let (first, here) = (world.row(), world.here(1));
        let (target, member) = (first.id.target(), world.server(1));
        let key = (target, 0);
        // The first one from before it was lost, the second one from when it was synced.
        block_on(member.recent.touch(key, touched(7), UNNUMBERED)).unwrap();
        block_on(member.recent.touch(key, touched(7), (1, 2))).unwrap();
        block_on(member.recent.touch(key, touched(8), (1, 3))).unwrap();
        for (version, states) in rows {
            let mut row = Chain { version: *version, ..first.clone() };
            row.members.iter_mut().zip(states).for_each(|(one, state)| one.state = *state);
            member.adopt(here, &row);
        }
        let version = rows[rows.len() - 1].0;
        member.learn_stable(here, ChainVersion { target, version }, 3);
        let serves = member.rows.get(target).unwrap().state_of(1) == Some(SERVING);
        let left: Vec<u64> = member.recent.list(key).iter().map(|one| one.object.ino.0).collect();
        let expected: &[u64] = match (serves, is_on) {
            (true, _) => &[],
            (false, true) => &[7],
            (false, false) => &[7, 8],
        };
        assert_eq!(left, expected, "case {case}");
    }
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
    block_on(head.pending.touch(key, Touched::EVERYTHING, UNNUMBERED)).unwrap();
    block_on(head.pending.touch(key, touched(7), UNNUMBERED)).unwrap();
    let shown = head.pending(world.here(0))[0].lack;
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
        block_on(head.pending.touch((chain.target, 1), touched(ino), UNNUMBERED)).unwrap();
    }
    head.are_removed((1..1000).map(|ino| touched(ino).object));
    assert_eq!(head.pending.list((chain.target, 1)), [touched(1000)]);
    head.are_removed(std::iter::once(touched(1000).object));
    assert!(head.pending(world.here(0)).is_empty());
}

#[test]
fn a_chain_whose_head_cannot_go_on_keeps_no_other_from_being_healed() {
    let world = World::new(&[SERVING, SYNCING]);
    let (head, here) = (world.server(0), world.here(0));
    let first = world.row();
    let second = Chain { id: ChainId { index: first.id.index + 1, ..first.id }, ..first.clone() };
    (0..2).for_each(|ost| world.server(ost).adopt(world.here(ost), &second));
    let chains = [&first, &second].map(|row| ChainVersion { target: row.id.target(), version: 1 });
    for (chain, ino) in chains.into_iter().zip(1..) {
        head.rows.activate_own(chain, 0);
        world.write(0, touched(ino).object, 0, b"data");
        block_on(head.pending.touch((chain.target, 1), touched(ino), UNNUMBERED)).unwrap();
    }
    let is_healed = |at: usize| head.pending.is_empty((chains[at].target, 1));
    // It stands for a disk that stands still.
    let turn = block_on(head.turn(touched(1).object, 0, u64::MAX));
    let mut waits = pin!(head.heal(here));
    for _ in 0..20 {
        assert!(block_on(poll_once(waits.as_mut())).is_none());
    }
    assert_eq!([is_healed(0), is_healed(1)], [false, true], "of the same pass");
    let more = Touched::whole(touched(3).object);
    world.write(0, more.object, 0, b"more");
    block_on(head.pending.touch((chains[1].target, 1), more, UNNUMBERED)).unwrap();
    // The next passes begin beside it.
    while !is_healed(1) {
        assert!(block_on(head.heal(here)));
    }
    assert_eq!(world.read(1, more.object, 0, 9), b"more");
    assert!(!is_healed(0));
    drop(turn);
    assert!(block_on(waits));
    assert!(is_healed(0));
}

/// A discard in the image of a virtual machine, and an allocation that makes it longer.
#[test]
fn a_hole_and_an_allocation_make_no_more_than_their_ranges_pending_and_doubtful() {
    const KIB: u64 = 1 << 10;
    let world = World::new(&[SERVING, OFFLINE]);
    let (chain, head) = (world.version(), world.server(0));
    let object = touched(7).object;
    (0..2).for_each(|ost| world.write(ost, object, 0, &[1; 16 << 10]));
    head.rows.activate_own(chain, 0);
    head.rows.mark_settled(&world.row());
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    for (mode, offset) in [(punch, 8 * KIB), (0, 256 * KIB)] {
        let request = OstRequest::Fallocate { object, mode, offset, len: 4 * KIB };
        let to = Destination { ost: 0, chain: Some(chain) };
        let client = ClientId::IN_PROCESS;
        let made = head.execute(world.here(0), client, to, request, Bulk::None);
        block_on(made).reply.unwrap();
    }
    let part = |start| Touched { object, start, end: start + 4 * KIB };
    let both = [part(8 * KIB), part(256 * KIB)];
    assert_eq!(head.pending.list((chain.target, 1)), both);
    assert_eq!(head.recent.list((chain.target, 0)), both);
    world.next_row(|row| row.members[1].state = SYNCING);
    heal(&world, 10);
    let (own, copy) = (world.read(0, object, 0, 512 << 10), world.read(1, object, 0, 512 << 10));
    assert_eq!(own.len() as u64, 260 * KIB);
    assert!(own == copy, "a copy of {} bytes", copy.len());
}

#[test]
fn changes_wait_for_as_many_members_that_serve_as_are_asked_for() {
    let world = World::new(&[SERVING, OFFLINE]);
    let (head, object) = (world.server(0), touched(7).object);
    head.rows.activate_own(world.version(), 0);
    let ask_for = |min_replicas, min_replicas_fails| {
        head.set_policy(ChainPolicy { min_replicas, min_replicas_fails, ..ChainPolicy::default() });
    };
    let change = || {
        let to = Destination { ost: 0, chain: Some(world.version()) };
        let write = OstRequest::Write { object, offset: 0, mtime: None, kept: false };
        let (here, client) = (world.here(0), ClientId::IN_PROCESS);
        block_on(head.execute(here, client, to, write, Bulk::Out(b"data"))).reply.map(drop)
    };
    ask_for(2, true);
    assert_eq!(change(), Err(Errno::EROFS));
    // Who gets this asks again, by the row that is the newest then.
    ask_for(2, false);
    assert_eq!(change(), Err(Errno::EREMCHG));
    world.next_row(|row| row.members[1].state = SYNCING);
    assert_eq!(change(), Err(Errno::EREMCHG), "one that is synced does not serve yet");
    heal(&world, 10);
    assert_eq!(change(), Ok(()));
    (0..2).for_each(|ost| assert_eq!(world.read(ost, object, 0, 9), b"data"));
    ask_for(3, false);
    assert_eq!(change(), Ok(()), "of a chain with fewer members all are needed");
}

#[test]
fn heal_copies_no_more_in_a_second_than_it_may() {
    const MIB: u64 = 1 << 20;
    let object = touched(1).object;
    // After a pause 4 MiB pass at once.
    for (limit, takes_ms) in [(None, 0..1), (Some(32 * MIB), 370..400)] {
        let world = World::limited(&[SERVING, SYNCING], limit);
        host::simulate(Some(Rc::new(Hurrying)));
        let (begun, head) = (clock::now(), world.server(0));
        clock::simulate(Some(begun));
        head.rows.activate_own(world.version(), 0);
        (0..4).for_each(|n| world.write(0, object, n * 4 * MIB, &vec![7; 4 << 20]));
        let key = (world.version().target, 1);
        block_on(head.pending.touch(key, Touched::whole(object), UNNUMBERED)).unwrap();
        heal(&world, 10);
        let took = clock::since(begun);
        clock::simulate(None);
        assert!(takes_ms.contains(&took.as_millis()), "{took:?} with {limit:?}");
        assert_eq!(world.read(1, object, 16 * MIB - 9, 99), [7; 9]);
    }
}

/// Somebody has removed its file, and nobody has noticed.
#[test]
fn a_member_that_lacks_a_part_of_an_object_and_has_none_of_it_is_given_all_of_it() {
    let world = World::new(&[SERVING, SYNCING]);
    let (chain, head) = (world.version(), world.server(0));
    let object = touched(7).object;
    world.write(0, object, 0, &[7; 300_000]);
    head.rows.activate_own(chain, 0);
    block_on(head.pending.touch((chain.target, 1), touched(7), UNNUMBERED)).unwrap();
    heal(&world, 10);
    assert!(world.read(1, object, 0, 300_001) == [7; 300_000]);
}

//! Tests of takeovers, on servers in memory.

use super::merged;
use crate::replication::copy::PIECE;
use crate::replication::takeover::doubts::Wanted;
use crate::replication::tests::{OF_NEXT, World};
use crate::replication::touched::{UNNUMBERED, unsealed};
use futures_lite::future::{block_on, poll_once};
use glint_proto::chain::{Chain, ChainId, ChainVersion, Destination, MemberState, Touched};
use glint_proto::{Bulk, ClientId, Errno, FsResult, Ino, ObjectId, OstReply, OstRequest};
use std::pin::pin;
use std::sync::Arc;

const SERVING: MemberState = MemberState::Serving;
const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };
const OTHER: ObjectId = ObjectId { ino: Ino(8), stripe: 0 };

fn part(ino: u64, start: u64, end: u64) -> Touched {
    Touched { object: ObjectId { ino: Ino(ino), stripe: 0 }, start, end }
}

#[test]
fn parts_that_overlap_are_one() {
    let all = vec![part(8, 5, 6), part(7, 90, 99), part(7, 0, 10), part(7, 5, 20), part(7, 20, 21)];
    assert_eq!(merged(all), [part(7, 0, 21), part(7, 90, 99), part(8, 5, 6)]);
}

/// Makes the copies equal, as the rounds of a head do.
fn decide_all(world: &World, head: u16) {
    while block_on(world.server(head).decide_some(world.here(head))) {}
}

/// A client's read of an object, by the row of now.
fn read_at(world: &World, ost: u16, object: ObjectId, len: usize) -> FsResult<Vec<u8>> {
    let to = Destination { ost, chain: Some(world.version()) };
    let read = OstRequest::Read { object, offset: 0, len: len as u32 };
    let (server, client, mut room) = (world.server(ost), ClientId::IN_PROCESS, vec![0; len]);
    let answer = server.execute(world.here(ost), client, to, read, Bulk::In(&mut room));
    match block_on(answer).reply? {
        OstReply::Data(len) => room.truncate(len as usize),
        other => panic!("{other:?}"),
    }
    Ok(room)
}

/// Three members, of which the first two and the last have other bytes, as the first alone knows; the
/// first has taken over.
fn in_doubt() -> Arc<World> {
    let world = World::new(&[SERVING; 3]);
    for (ost, byte) in [(0, b"b"), (1, b"b"), (2, b"a")] {
        world.write(ost, OBJECT, 0, byte);
        world.write(ost, OTHER, 0, b"o");
    }
    let key = (world.version().target, 0);
    block_on(world.server(0).recent.touch(key, part(7, 0, 1), (1, 1))).unwrap();
    block_on(world.server(0).take_over(world.here(0)));
    assert_eq!(world.read(2, OBJECT, 0, 1), b"a", "nobody has waited for it");
    world
}

#[test]
fn a_reader_of_what_is_in_doubt_waits_until_it_is_the_same_everywhere() {
    for reader in 0..3 {
        let world = in_doubt();
        assert_eq!(read_at(&world, reader, OTHER, 1).unwrap(), b"o");
        assert_eq!(world.read(2, OBJECT, 0, 1), b"a", "another object was read");
        assert_eq!(read_at(&world, reader, OBJECT, 1).unwrap(), b"b", "OST {reader}");
        assert_eq!(world.read(2, OBJECT, 0, 1), b"b", "it was read at OST {reader}");
    }
}

#[test]
fn changes_do_not_wait_for_what_is_in_doubt() {
    let world = in_doubt();
    let at = |offset| OstRequest::Write { object: OBJECT, offset, mtime: None, kept: false };
    let to = Destination { ost: 0, chain: Some(world.version()) };
    let (server, client) = (world.server(0), ClientId::IN_PROCESS);
    block_on(server.execute(world.here(0), client, to, at(1), Bulk::Out(b"c"))).reply.unwrap();
    assert_eq!(world.read(2, OBJECT, 0, 2), b"ac");
    decide_all(&world, 0);
    for ost in 0..3 {
        assert_eq!(world.read(ost, OBJECT, 0, 2), b"bc");
    }
}

#[test]
fn the_next_head_finds_what_was_in_doubt_and_forgets_what_was_decided() {
    for is_decided in [false, true] {
        let world = in_doubt();
        if is_decided {
            decide_all(&world, 0);
        }
        let target = world.next_row(|row| row.members.rotate_left(1)).target;
        for ost in [1, 2] {
            let noted = world.server(ost).recent.list((target, 0));
            assert_eq!(noted.contains(&part(7, 0, 1)), !is_decided, "OST {ost}: {noted:?}");
        }
        block_on(world.server(1).take_over(world.here(1)));
        decide_all(&world, 1);
        for ost in 0..3 {
            assert_eq!(world.read(ost, OBJECT, 0, 1), b"b");
            assert!(world.server(ost).recent.is_empty((target, 0)));
            assert!(world.server(ost).doubts.chains().is_empty());
        }
    }
}

#[test]
fn what_an_absent_member_may_lack_is_known_to_all_that_serve() {
    let world = World::new(&[SERVING, SERVING, MemberState::Offline]);
    let (target, doubtful) = (world.version().target, part(7, 0, 1));
    block_on(world.server(0).recent.touch((target, 0), doubtful, (1, 1))).unwrap();
    block_on(world.server(0).take_over(world.here(0)));
    for ost in [0, 1] {
        assert_eq!(world.server(ost).pending.list((target, 2)), [doubtful], "OST {ost}");
    }
}

#[test]
fn a_head_that_cannot_note_what_is_in_doubt_is_taken_out_if_another_member_goes_on() {
    for (other, head) in [(SERVING, 1), (MemberState::Syncing, 0)] {
        let world = World::new(&[SERVING, other]);
        let key = (world.version().target, 0);
        block_on(world.server(1).recent.touch(key, part(7, 0, 1), (1, 1))).unwrap();
        world.lose_logs(0);
        block_on(world.server(0).take_over(world.here(0)));
        assert_eq!(world.row().head(), Some(head), "{other:?}");
    }
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
    block_on(world.server(0).recent.touch(key, part(7, 0, 1), (1, 1))).unwrap();
    block_on(world.server(1).recent.touch(key, part(7, END, END + 1), (1, 2))).unwrap();
    block_on(world.server(0).take_over(world.here(0)));
    assert!(world.server(0).rows.enter(chain).unwrap().is_active);
    decide_all(&world, 0);
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
    decide_all(&world, 1);
    write_at(&world, 1, OBJECT).unwrap();
    // It may have begun before that change.
    block_on(world.server(0).settle_once(world.here(0))).unwrap();
    block_on(world.server(0).settle_if_due(world.here(0)));
    for ost in [0, 1] {
        let left = world.server(ost).recent.list((target, 0));
        assert!(left.contains(&part(7, 0, 1)), "nobody has brought it to stable storage");
    }
}

/// Three members, of which the first has lost an object that the others have; only its first byte was
/// under way. The file may be gone, too. The first has taken over.
fn lost_by_the_head(is_of_file: bool) -> Arc<World> {
    let world = World::new(&[SERVING; 3]);
    for ost in [1, 2] {
        world.write(ost, OBJECT, 0, b"good");
    }
    if is_of_file {
        world.files.lock().insert(OBJECT);
    }
    let key = (world.version().target, 0);
    block_on(world.server(1).recent.touch(key, part(7, 0, 1), (1, 1))).unwrap();
    block_on(world.server(0).take_over(world.here(0)));
    world
}

#[test]
fn an_object_that_the_head_has_lost_is_not_removed_from_others() {
    for is_of_file in [true, false] {
        let world = lost_by_the_head(is_of_file);
        decide_all(&world, 0);
        let (left, head): (&[u8], _) = if is_of_file { (b"good", 1) } else { (b"", 0) };
        for ost in [1, 2] {
            assert_eq!(world.read(ost, OBJECT, 0, 9), left, "OST {ost}, {is_of_file}");
        }
        assert_eq!(world.row().head(), Some(head));
        if is_of_file {
            let target = world.version().target;
            let pending = world.server(1).pending.list((target, 0));
            assert!(pending.contains(&Touched::whole(OBJECT)), "{pending:?}");
        }
    }
}

#[test]
fn an_end_that_the_head_has_lost_is_not_cut_off_at_others() {
    // The first byte was under way, or a truncation, or a write at the end.
    for (under_way, is_cut) in
        [(part(7, 0, 1), false), (part(7, 2, u64::MAX), true), (part(7, 3, 4), true)]
    {
        let world = World::new(&[SERVING; 3]);
        world.files.lock().insert(OBJECT);
        world.write(0, OBJECT, 0, b"go");
        for ost in [1, 2] {
            world.write(ost, OBJECT, 0, b"good");
        }
        let key = (world.version().target, 0);
        block_on(world.server(1).recent.touch(key, under_way, (1, 1))).unwrap();
        block_on(world.server(0).take_over(world.here(0)));
        decide_all(&world, 0);
        let (left, head): (&[u8], _) = if is_cut { (b"go", 0) } else { (b"good", 1) };
        for ost in [1, 2] {
            assert_eq!(world.read(ost, OBJECT, 0, 9), left, "OST {ost}, {under_way:?}");
        }
        assert_eq!(world.row().head(), Some(head), "{under_way:?}");
    }
}

#[test]
fn an_object_that_only_a_change_under_way_has_made_is_removed() {
    let world = World::new(&[SERVING; 2]);
    world.files.lock().insert(OBJECT);
    world.write(1, OBJECT, 4, b"new");
    let key = (world.version().target, 0);
    block_on(world.server(1).recent.touch(key, part(7, 4, 7), (1, 1))).unwrap();
    block_on(world.server(0).take_over(world.here(0)));
    decide_all(&world, 0);
    assert_eq!(world.read(1, OBJECT, 0, 9), b"");
    assert_eq!(world.row().head(), Some(0));
}

#[test]
fn a_change_makes_no_new_object_where_the_head_has_lost_its_own() {
    let world = lost_by_the_head(true);
    assert_eq!(write_at(&world, 0, OBJECT), Err(Errno::EREMCHG));
    assert_eq!(world.row().head(), Some(1));
    for ost in [1, 2] {
        assert_eq!(world.read(ost, OBJECT, 0, 9), b"good", "OST {ost}");
    }
}

/// The client hears nothing of an error that passes, and waits; and who makes copies equal says why not.
#[test]
fn nothing_is_removed_nor_taken_out_while_the_mds_does_not_say_what_files_have() {
    let world = lost_by_the_head(true);
    *world.mds_fails.lock() = Some(Errno::EAGAIN);
    let wanted = Wanted { object: OBJECT, start: 0, end: 1 };
    let decided = block_on(world.server(0).decide(world.here(0), world.version(), wanted));
    assert_eq!(decided, Err(Errno::EAGAIN), "there is no other row");
    assert!(!block_on(world.server(0).decide_some(world.here(0))));
    assert_eq!(write_at(&world, 0, OBJECT), Err(Errno::EREMCHG));
    assert_eq!((world.row().head(), world.row().version), (Some(0), 1));
    *world.mds_fails.lock() = None;
    decide_all(&world, 0);
    for ost in [1, 2] {
        assert_eq!(world.read(ost, OBJECT, 0, 9), b"good", "OST {ost}");
    }
    assert_eq!(world.row().head(), Some(1));
}

#[test]
fn a_change_goes_on_without_a_member_that_does_not_say_what_it_has() {
    let world = World::new(&[SERVING; 3]);
    let key = (world.version().target, 0);
    block_on(world.server(1).recent.touch(key, part(7, 0, 1), (1, 1))).unwrap();
    block_on(world.server(0).take_over(world.here(0)));
    *world.silent.lock() = Some(1);
    let to = Destination { ost: 0, chain: Some(world.version()) };
    let write = OstRequest::Write { object: OBJECT, offset: 0, mtime: None, kept: false };
    let (server, client) = (world.server(0), ClientId::IN_PROCESS);
    let written = server.execute(world.here(0), client, to, write, Bulk::Out(b"c"));
    let reply = block_on(written).reply;
    assert!(world.row().readable().eq([0, 2]), "{:?}", world.row());
    assert!(matches!(reply, Ok(_) | Err(Errno::EREMCHG)), "{reply:?}");
    // The head takes over by the new row, if it has to.
    block_on(world.server(0).take_over(world.here(0)));
    if reply.is_err() {
        write_at(&world, 0, OBJECT).unwrap();
    }
    for ost in [0, 2] {
        assert_eq!(world.read(ost, OBJECT, 0, 9), b"c", "OST {ost}");
    }
}

/// All of it was changed not long ago: the head has made that change, too.
#[test]
fn what_was_acknowledged_not_long_ago_is_not_removed_where_the_head_has_lost_it() {
    for by_a_change in [false, true] {
        let world = World::new(&[SERVING; 3]);
        world.files.lock().insert(OBJECT);
        let key = (world.version().target, 0);
        for ost in [0, 1, 2] {
            block_on(world.server(ost).recent.touch(key, part(7, 0, 4), (1, 1))).unwrap();
        }
        for ost in [1, 2] {
            world.write(ost, OBJECT, 0, b"good");
        }
        block_on(world.server(0).take_over(world.here(0)));
        match by_a_change {
            true => assert_eq!(write_at(&world, 0, OBJECT), Err(Errno::EREMCHG)),
            false => decide_all(&world, 0),
        }
        assert_eq!(world.row().head(), Some(1));
        for ost in [1, 2] {
            assert_eq!(world.read(ost, OBJECT, 0, 9), b"good", "OST {ost}");
        }
    }
}

/// Three members, of which the second has other bytes than the others, in an object that it has found
/// without checksums after a loss of power.
fn found_unsealed() -> Arc<World> {
    let world = World::new(&[SERVING; 3]);
    for (ost, byte) in [(0, b"a"), (1, b"b"), (2, b"a")] {
        world.write(ost, OBJECT, 0, byte);
        world.write(ost, OTHER, 0, byte);
    }
    world.files.lock().insert(OBJECT);
    let found = [OBJECT, OTHER].map(Touched::whole).into_iter();
    block_on(world.server(1).recent.touch_all(unsealed(0), found, UNNUMBERED)).unwrap();
    world
}

#[test]
fn objects_of_a_chain_that_a_member_has_found_unsealed_are_made_equal() {
    let world = found_unsealed();
    let take_over = || {
        for ost in [1, 0] {
            block_on(world.server(ost).take_over(world.here(ost)));
        }
    };
    *world.mds_fails.lock() = Some(Errno::EAGAIN);
    take_over();
    assert_eq!(read_at(&world, 0, OBJECT, 1), Err(Errno::EREMCHG), "which it are is not known");
    assert_eq!(world.row().readable().count(), 3, "nobody is to blame for that");
    *world.mds_fails.lock() = None;
    world.here(1).osts.await_search(0);
    take_over();
    assert_eq!(read_at(&world, 0, OBJECT, 1), Err(Errno::EREMCHG), "there may be more");
    block_on(world.server(1).search(world.here(1).osts));
    take_over();
    assert_eq!(read_at(&world, 1, OBJECT, 1).unwrap(), b"a");
    decide_all(&world, 0);
    assert_eq!(world.read(1, OTHER, 0, 1), b"b", "it is of another chain");
}

#[test]
fn a_member_that_is_synced_gets_what_it_has_found_unsealed() {
    let world = found_unsealed();
    world.next_row(|row| row.members[1].state = MemberState::Offline);
    block_on(world.server(0).take_over(world.here(0)));
    assert_eq!(world.read(1, OBJECT, 0, 1), b"b");
    // The head goes on, and asks for it then.
    world.next_row(|row| row.members[1].state = MemberState::Syncing);
    while block_on(world.server(0).heal(world.here(0))) {}
    assert_eq!(world.row().readable().count(), 2, "it does not know yet");
    block_on(world.server(1).take_over(world.here(1)));
    while block_on(world.server(0).heal(world.here(0))) {}
    assert_eq!(world.row().readable().count(), 3);
    assert_eq!(
        (world.read(1, OBJECT, 0, 1), world.read(1, OTHER, 0, 1)),
        (b"a".into(), b"b".into())
    );
}

#[test]
fn no_head_waits_for_the_search_of_a_member_that_serves_nobody() {
    let world = World::new(&[SERVING, SERVING, MemberState::Syncing]);
    world.here(2).osts.await_search(0);
    block_on(world.server(0).take_over(world.here(0)));
    assert_eq!(world.row().state_of(2), Some(MemberState::Offline));
    block_on(world.server(0).take_over(world.here(0)));
    assert!(world.server(0).rows.enter(world.version()).unwrap().is_active);
}

#[test]
fn what_was_found_unsealed_is_forgotten_once_its_chains_have_noted_it() {
    let world = found_unsealed();
    let (server, here) = (world.server(1), world.here(1));
    *world.mds_fails.lock() = Some(Errno::EAGAIN);
    block_on(server.take_over(here));
    assert_eq!(server.found_on(0), [OBJECT, OTHER]);
    *world.mds_fails.lock() = None;
    block_on(server.take_over(here));
    assert_eq!(server.found_on(0), []);
    let target = world.version().target;
    assert_eq!(server.recent.list((target, 0)), [Touched::whole(OBJECT)]);
    block_on(server.recent.shrink()).unwrap();
    assert_eq!(server.recent.records_in_log(), 1, "the next process has no more to do");
}

#[test]
fn of_many_objects_that_were_found_those_of_each_chain_are_noted() {
    let world = World::new(&[SERVING; 2]);
    let of = |ino| ObjectId { ino: Ino(ino), stripe: 0 };
    let all = (500..2500).chain(OF_NEXT..OF_NEXT + 500);
    world.files.lock().extend(all.clone().filter(|ino| ino % 3 == 0).map(of));
    let found = all.clone().filter(|ino| ino % 2 == 0).map(|ino| Touched::whole(of(ino)));
    let (server, here) = (world.server(1), world.here(1));
    block_on(server.recent.touch_all(unsealed(0), found, UNNUMBERED)).unwrap();
    block_on(server.take_over(here));
    let (first, next) = (world.row().id, ChainId { index: 1, ..world.row().id });
    for (chain, is_its) in [(first, false), (next, true)] {
        let its = all.clone().filter(|ino| ino % 6 == 0 && (*ino >= OF_NEXT) == is_its);
        let its: Vec<Touched> = its.map(|ino| Touched::whole(of(ino))).collect();
        assert_eq!(server.recent.list((chain.target(), 0)), its, "{chain}");
    }
}

#[test]
fn of_a_file_whose_data_is_being_moved_the_chains_are_asked() {
    let world = World::new(&[SERVING; 2]);
    let moved = ObjectId { stripe: 5, ..OBJECT };
    world.files.lock().extend([OBJECT, moved]);
    let (server, here) = (world.server(1), world.here(1));
    let found = [moved, ObjectId { stripe: 6, ..OBJECT }].map(Touched::whole).into_iter();
    block_on(server.recent.touch_all(unsealed(0), found, UNNUMBERED)).unwrap();
    block_on(server.take_over(here));
    assert_eq!(server.found_on(0).len(), 2, "there may be chains that are not known here");
    server.said(here, &[world.row()], 1, 1);
    block_on(server.take_over(here));
    assert_eq!(server.found_on(0), []);
    assert_eq!(server.recent.list((world.version().target, 0)), [Touched::whole(moved)]);
}

#[test]
fn a_chain_in_which_an_older_row_is_in_use_keeps_no_other_from_being_taken_over() {
    let world = World::new(&[SERVING; 2]);
    let (head, here) = (world.server(0), world.here(0));
    let row = world.row();
    let other = Chain { id: ChainId { index: row.id.index + 1, ..row.id }, ..row };
    // A read that its disk does not answer.
    let read = head.rows.enter(world.version()).unwrap();
    let chain = world.next_row(|_| {});
    let mut waits = pin!(head.take_over(here));
    for _ in 0..9 {
        assert!(block_on(poll_once(waits.as_mut())).is_none());
    }
    (0..2).for_each(|ost| world.server(ost).adopt(world.here(ost), &other));
    block_on(head.take_over(here));
    let is_active = |chain: ChainVersion| head.rows.enter(chain).unwrap().is_active;
    let other = ChainVersion { target: other.id.target(), version: other.version };
    assert_eq!([is_active(chain), is_active(other)], [false, true]);
    drop(read);
    block_on(waits);
    assert!(is_active(chain));
}

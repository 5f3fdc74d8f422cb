//! Tests of changes that fail, on servers in memory.

use crate::replication::tests::World;
use futures_lite::future::block_on;
use glint_ost::disk::memory::{DiskOperation, Fault};
use glint_proto::chain::MemberState::{Offline, Serving};
use glint_proto::chain::{Destination, Touched};
use glint_proto::{Bulk, ClientId, Errno, Ino, ObjectId, OstRequest};

const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };

/// Each member may have made another part of it.
#[test]
fn a_change_that_fails_everywhere_is_the_same_in_all_copies_and_noted_for_absent_members() {
    let world = World::new(&[Serving, Serving, Offline]);
    let (head, chain) = (world.server(0), world.version());
    head.rows.activate_own(chain, 0);
    for (ost, part) in [(0, b"head"), (1, b"part")] {
        world.write(ost, OBJECT, 0, part);
        world.disk(ost).fail(Fault::new(DiskOperation::Write, "", Errno::EIO.0, 1));
    }
    let write = OstRequest::Write { object: OBJECT, offset: 0, mtime: None, kept: false };
    let to = Destination { ost: 0, chain: Some(chain) };
    let (here, client) = (world.here(0), ClientId::IN_PROCESS);
    let answer = block_on(head.execute(here, client, to, write, Bulk::Out(b"new data")));
    assert_eq!(answer.reply.err(), Some(Errno::EIO));
    assert_eq!(world.version(), chain, "nobody is taken out for it");
    for ost in [0, 1] {
        assert_eq!(world.read(ost, OBJECT, 0, 9), b"head", "OST {ost}");
        let lacking = world.server(ost).pending.list((chain.target, 2));
        assert_eq!(lacking, [Touched { object: OBJECT, start: 0, end: 8 }], "OST {ost}");
    }
    assert!(head.doubts.chains().is_empty(), "it is decided");
}

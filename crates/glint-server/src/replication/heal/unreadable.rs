//! Objects that no member which serves can read: who is healed serves without them.
//!
//! Invariants:
//! - Such an object is marked in the member, on stable storage, before the index forgets it: nobody
//!   reads there what the member had before, whatever is changed of it later.
//! - A read of a marked object is answered by another member that serves. It is an error only if none
//!   can read what is asked for.
//! - A member that does not have an object may have lost it: nothing is read there in the place of a copy
//!   that cannot be read, and nobody is taken out to get it from there.
//! - The mark ends when the object was copied whole.

use super::CopyFault;
use crate::replication::copy::PIECE;
use crate::replication::touched::Tag;
use crate::replication::{Here, PATIENCE, Replication, within};
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion, Destination, Forward, PeerReply, PeerRequest};
use glint_proto::{Bulk, ClientId, Errno, FsResult, ObjectId, OstReply, OstRequest};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet};

/// Objects that were marked here in this run: the index of their OST, and which.
#[derive(Default)]
pub(crate) struct Marks(Mutex<BTreeSet<(u16, ObjectId)>>);

impl Marks {
    /// Notes that an object is marked, or is no more.
    pub(in crate::replication) fn note(&self, one: (u16, ObjectId), is_unreadable: bool) {
        let mut marks = self.0.lock();
        match is_unreadable {
            true => marks.insert(one),
            false => marks.remove(&one),
        };
    }
}

impl Replication {
    /// Objects that were marked here in this run.
    pub(crate) fn marked(&self) -> Vec<(u16, ObjectId)> {
        self.marks.0.lock().iter().copied().collect()
    }

    /// Whether an object is marked still that was in this run. If not, that is forgotten.
    pub(crate) async fn is_marked_still<D: Disk>(
        &self,
        here: Here<'_, D>,
        (index, object): (u16, ObjectId),
    ) -> bool {
        let is_marked = here.osts.is_unreadable(index, object).await;
        if !is_marked {
            self.marks.note((index, object), false);
        }
        is_marked
    }

    /// The head cannot read these objects, each for this reason, which a member lacks changes of: has
    /// another one take over that may be able to, or marks them in the member if there is none. Returns
    /// whether there is more to do.
    pub(super) async fn give_up_objects<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        member: u16,
        objects: Vec<(ObjectId, Errno)>,
        upto: Tag,
    ) -> FsResult<bool> {
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        let (mut marked, mut failed) = (HashSet::new(), Ok(false));
        for (object, errno) in objects {
            match self.repair(here, chain.target, (head, object), CopyFault::Damaged).await {
                Ok(()) => return Err(Errno::EREMCHG),
                Err(Errno::EIO | Errno::EBADMSG) if errno == Errno::EIO => {}
                // It says nothing about the object.
                Err(_) => {
                    failed = Err(errno);
                    continue;
                }
            }
            // It may have been so for a moment only.
            if self.may_read(here, (head, row), object, None).await {
                failed = Err(errno);
                continue;
            }
            let _turn = self.turn(object, 0, u64::MAX).await;
            match self.mark(here, (member, row), object, true).await {
                Ok(()) => {}
                Err(Errno::EREMCHG) => return Err(Errno::EREMCHG),
                Err(errno) => {
                    self.take_out(here, chain, member, errno).await?;
                    return Err(Errno::EREMCHG);
                }
            }
            tracing::error!(
                %object, ost = member, chain = %row.id,
                "no member that serves can read an object; a member that lacks a change of it serves \
                 without it"
            );
            marked.insert(object);
        }
        if marked.is_empty() {
            return failed;
        }
        self.commit_at(here, chain, member).await?;
        self.pending.remove((chain.target, member), &marked, upto);
        Ok(true)
    }

    /// Has nobody read an object of a member any more; or, if not `is_unreadable`, ends that.
    async fn mark<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, row): (u16, &Chain),
        object: ObjectId,
        is_unreadable: bool,
    ) -> FsResult<()> {
        if here.index(ost).is_some() {
            return self.mark_own(here, (ost, row), object, is_unreadable).await;
        }
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        let mark = PeerRequest::Mark { chain, ost, object, is_unreadable };
        self.ask_member(here, chain, ost, mark).await.map(drop)
    }

    /// Answers the head, which has an object of a member here removed or marked, or the MDS, which has
    /// those of a former member removed.
    pub(in crate::replication) async fn answer_about_object<D: Disk>(
        &self,
        here: Here<'_, D>,
        request: PeerRequest,
    ) -> FsResult<PeerReply> {
        match request {
            PeerRequest::Remove { chain, ost, object } => {
                let entered = self.rows.enter(chain)?;
                let removed = self.remove_own(here, (ost, &entered.row), object);
                self.unless_newer(chain, removed).await.map(|()| PeerReply::Done)
            }
            PeerRequest::Mark { chain, ost, object, is_unreadable } => {
                let entered = self.rows.enter(chain)?;
                let marked = self.mark_own(here, (ost, &entered.row), object, is_unreadable);
                self.unless_newer(chain, marked).await.map(|()| PeerReply::Done)
            }
            PeerRequest::Clear { row, ost, objects } => {
                // Apart from the state of other questions.
                let cleared = Box::pin(self.clear(here, &row, ost, &objects)).await;
                cleared.map(|()| PeerReply::Done)
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// Ends the mark of an object that was copied whole to a member which had it before, if it has one:
    /// who reads it there gets it again.
    pub(in crate::replication) async fn end_mark<D: Disk>(
        &self,
        here: Here<'_, D>,
        to: (u16, &Chain),
        object: ObjectId,
    ) -> FsResult<()> {
        let read = OstRequest::Read { object, offset: 0, len: 1 };
        match self.ask_for(here, to, read, Bulk::In(&mut [0])).await {
            Err(Errno::EIO) => self.mark(here, to, object, false).await,
            read => read.map(drop),
        }
    }

    /// Whether an object of a member here is marked.
    pub(super) async fn is_marked<D: Disk>(
        &self,
        here: Here<'_, D>,
        ost: u16,
        object: ObjectId,
    ) -> bool {
        match here.index(ost) {
            Some(index) => here.osts.is_unreadable(index, object).await,
            None => false,
        }
    }

    /// Reads something of an object that is marked in this member: from another one.
    pub(super) async fn read_elsewhere<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, chain): (u16, ChainVersion),
        request: OstRequest,
        mut bulk: Bulk<'_>,
    ) -> FsResult<OstReply> {
        let row = self.row_of(chain)?;
        for member in row.readable().filter(|member| *member != ost) {
            if let Some(object) = request.object()
                && self.is_absent_at(here, (member, &row), object).await
            {
                continue;
            }
            match self.ask_for(here, (member, &row), request, bulk.lend()).await {
                Err(Errno::EIO) => {}
                // A member that does not answer is taken out soon.
                Err(_) => return Err(Errno::EREMCHG),
                Ok(reply) => {
                    // As for who reads here: others may have gone on without that member, or this one.
                    self.row_of(chain)?;
                    return if self.is_leased() { Ok(reply) } else { Err(Errno::EREMCHG) };
                }
            }
        }
        Err(Errno::EIO)
    }

    /// Whether another member that serves may be able to read these bytes of an object, or all of it. So
    /// may one that does not answer.
    pub(super) async fn may_be_read<D: Disk>(
        &self,
        here: Here<'_, D>,
        row: &Chain,
        (ost, object): (u16, ObjectId),
        range: Option<(u64, u32)>,
    ) -> bool {
        for member in row.readable().filter(|member| *member != ost) {
            if !self.is_absent_at(here, (member, row), object).await
                && self.may_read(here, (member, row), object, range).await
            {
                return true;
            }
        }
        false
    }

    /// Whether a member says that it does not have an object.
    async fn is_absent_at<D: Disk>(
        &self,
        here: Here<'_, D>,
        member: (u16, &Chain),
        object: ObjectId,
    ) -> bool {
        let stat = OstRequest::Stat { object };
        let its = self.ask_for(here, member, stat, Bulk::None).await;
        matches!(its, Ok(OstReply::Stat(None)))
    }

    async fn may_read<D: Disk>(
        &self,
        here: Here<'_, D>,
        member: (u16, &Chain),
        object: ObjectId,
        range: Option<(u64, u32)>,
    ) -> bool {
        let (mut offset, len) = range.unwrap_or((0, PIECE as u32));
        let mut room = vec![0u8; len as usize];
        loop {
            let read = OstRequest::Read { object, offset, len };
            match self.ask_for(here, member, read, Bulk::In(&mut room)).await {
                Ok(OstReply::Data(got)) if range.is_none() && got == len => {
                    offset += u64::from(got);
                }
                Err(Errno::EIO) => return false,
                _ => return true,
            }
        }
    }

    /// Has a member read an object, or say something about it.
    pub(in crate::replication) async fn ask_for<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, row): (u16, &Chain),
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> FsResult<OstReply> {
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        let asked = async {
            if here.index(ost).is_some() {
                let client = ClientId::IN_PROCESS;
                return self.at_member(here, client, (ost, row), request, bulk).await.reply;
            }
            let (peers, to) = (self.peers()?, Destination { ost, chain: Some(chain) });
            let forward = Forward { sequence: 0, stable: 0 };
            peers.forward(to, forward, request, bulk).await
        };
        within(PATIENCE, self.unless_newer(chain, asked)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::tests::World;
    use crate::replication::touched::UNNUMBERED;
    use futures_lite::future::block_on;
    use glint_ost::disk::memory::{DiskOperation, Fault};
    use glint_proto::chain::{MemberState, Touched};
    use glint_proto::{Answer, Ino};
    use std::sync::Arc;

    const SERVING: MemberState = MemberState::Serving;
    const SYNCING: MemberState = MemberState::Syncing;
    const OBJECT: ObjectId = ObjectId { ino: Ino(1), stripe: 0 };
    const OTHER: ObjectId = ObjectId { ino: Ino(2), stripe: 0 };
    const READ: OstRequest = OstRequest::Read { object: OBJECT, offset: 0, len: 9 };

    /// Two servers, each of which has the object with its own content.
    fn world(second: MemberState) -> Arc<World> {
        let world = World::new(&[SERVING, second]);
        world.server(0).rows.activate_own(world.version(), 0);
        world.write(0, OBJECT, 0, b"head");
        world.write(1, OBJECT, 0, b"old!");
        world
    }

    fn heal(world: &World, lacks: Touched) {
        let head = world.server(0);
        block_on(head.pending.touch((world.version().target, 1), lacks, UNNUMBERED)).unwrap();
        for _ in 0..100 {
            if world.row().readable().count() == 2 {
                world.next_row(|_| {});
                return;
            }
            block_on(head.heal(world.here(0)));
        }
        panic!("heal does not end: {:?}", world.row());
    }

    fn mark(world: &World, ost: u16) {
        block_on(world.here(ost).osts.mark(0, OBJECT, true, Box::new(()))).unwrap();
    }

    fn is_marked(world: &World, ost: u16) -> bool {
        block_on(world.server(ost).is_marked(world.here(ost), ost, OBJECT))
    }

    /// What somebody gets who could not read the object at a member.
    fn read_after_error(world: &World, ost: u16) -> FsResult<Vec<u8>> {
        let (here, mut room) = (world.here(ost), vec![0; 9]);
        let error = Answer::unchanged(Err(Errno::EIO));
        let to = (ost, world.version());
        let server = world.server(ost);
        let answer = server.unless_damaged(here, to, READ, Bulk::In(&mut room), error);
        match block_on(answer).reply? {
            OstReply::Data(len) => room.truncate(len as usize),
            other => panic!("{other:?}"),
        }
        Ok(room)
    }

    #[test]
    fn a_member_serves_without_what_nobody_can_read_and_never_reads_its_own() {
        let world = world(SYNCING);
        let fault = Fault::new(DiskOperation::Read, &OBJECT.to_string(), libc::EIO, u32::MAX);
        world.disk(0).fail(fault);
        world.write(0, OTHER, 0, b"good");
        let key = (world.version().target, 1);
        let other = Touched::whole(OTHER);
        block_on(world.server(0).pending.touch(key, other, UNNUMBERED)).unwrap();
        // Of this object it lacks the change of a byte only.
        heal(&world, Touched { end: 1, ..Touched::whole(OBJECT) });
        assert_eq!(world.read(1, OTHER, 0, 9), b"good");
        assert!(is_marked(&world, 1) && world.server(0).pending.is_empty(key));
        // Not even after a change that both make.
        (0..2).for_each(|ost| world.write(ost, OBJECT, 3, b"D"));
        for ost in [0, 1, 0] {
            assert_eq!(read_after_error(&world, ost), Err(Errno::EIO));
        }
        let damaged = CopyFault::Damaged;
        let head = world.server(0);
        let repaired = head.repair(world.here(0), key.0, (0, OBJECT), damaged);
        assert_eq!(block_on(repaired), Err(Errno::EBADMSG));
        assert_eq!(world.row().readable().count(), 2, "nobody is taken out for it again");
    }

    #[test]
    fn what_is_marked_is_read_from_another_member() {
        let world = world(SERVING);
        mark(&world, 1);
        assert_eq!(read_after_error(&world, 1).unwrap(), b"head");
        assert_eq!(world.row().readable().count(), 2);
        // Nobody waits for that: it gets the object again.
        let (target, damaged) = (world.version().target, CopyFault::Damaged);
        let _ = block_on(world.server(1).repair(world.here(1), target, (1, OBJECT), damaged));
        assert_eq!(world.row().readable().collect::<Vec<u16>>(), [0]);
        assert!(!world.server(0).pending.is_empty((target, 1)));
    }

    /// Zeros in its place would be wrong data.
    #[test]
    fn what_cannot_be_read_is_not_taken_from_a_member_that_has_lost_it() {
        let world = World::new(&[SERVING, SERVING]);
        world.server(0).rows.activate_own(world.version(), 0);
        world.files.lock().insert(OBJECT);
        world.write(0, OBJECT, 0, b"head");
        for is_marked in [false, true] {
            if is_marked {
                mark(&world, 0);
            } else {
                let fault =
                    Fault::new(DiskOperation::Read, &OBJECT.to_string(), libc::EIO, u32::MAX);
                world.disk(0).fail(fault);
            }
            assert_eq!(read_after_error(&world, 0), Err(Errno::EIO), "{is_marked}");
            let (head, target) = (world.server(0), world.version().target);
            let repaired = head.repair(world.here(0), target, (0, OBJECT), CopyFault::Damaged);
            assert_eq!(block_on(repaired), Err(Errno::EBADMSG), "{is_marked}");
            assert_eq!(world.row().readable().count(), 2, "{is_marked}");
        }
    }

    #[test]
    fn a_mark_ends_when_the_object_is_copied_whole() {
        let part = Touched { end: 1, ..Touched::whole(OBJECT) };
        for (lacks, is_whole) in [(Touched::whole(OBJECT), true), (part, false)] {
            let world = world(SYNCING);
            mark(&world, 1);
            heal(&world, lacks);
            assert_eq!(is_marked(&world, 1), !is_whole);
            if is_whole {
                assert_eq!(world.read(1, OBJECT, 0, 9), b"head");
            }
        }
    }
}

//! Objects that a member does not have when somebody reads them. Usually they were never written;
//! or somebody has removed their files behind the server's back, as `e2fsck` does.
//!
//! A member alone cannot tell these apart, and its peers can. So an answer that may be that of an
//! absent object is given once the others that serve were asked for the size of theirs. The head
//! knows all changes that may be in some copies only: it has lost its own if another member has
//! what is not noted ([`lost`](crate::replication::takeover::lost)). Another member knows only
//! which of them have reached it: it answers with what the others have, and has lost its own if it
//! still does not have the object after a time in which each change has reached it, or it is taken
//! out. Whoever has lost an object is taken out of the chain, and gets it whole, like one whose
//! copy is damaged ([`repair`](super::repair)): it is not made anew here as a damaged one, because
//! heal brings it soon, and nobody reads it before. A change that comes first is looked at by
//! [`begins`](crate::replication::order::begins).
//!
//! A head that serves alone, as after a start of all servers, cannot be taken out. While another
//! member is synced that lacks no change of the object, it reads that member's, and changes wait
//! until it serves. Of a member that may lack some it takes the object first
//! ([`begun_alone`](super::begun_alone)).
//!
//! Invariants:
//! - An absent object is read as a hole only where no other member that serves has any of it, or
//!   has more than changes under way.
//! - Members are asked for what is on their disks, and ask nobody: none waits for another in a
//!   circle.
//! - No member is taken out for an object of which the file is gone.

use crate::replication::copy::CopyError;
use crate::replication::order::begins::{Begins, ForwardedChanges};
use crate::replication::order::lacking::LateFinds;
use crate::replication::rows::Told;
use crate::replication::takeover::doubts::Wanted;
use crate::replication::{Here, PATIENCE, Replication};
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion};
use glint_proto::{Answer, Bulk, Errno, FsResult, ObjectId, OstReply, OstRequest, clock};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Time in which a change reaches a member, or the member is taken out: twice what is needed.
const LASTING: Duration = PATIENCE.saturating_mul(2);
/// Absent objects that are remembered.
const ABSENCES_MAX: usize = 4096;

/// What says that members have lost objects.
#[derive(Default)]
pub(crate) struct LostCopies {
    absences: Absences,
    pub(in crate::replication) begins: Begins,
    pub(in crate::replication) forwarded: ForwardedChanges,
    pub(in crate::replication) late: LateFinds,
}

/// Objects that members here do not have and others have: by OST, with the version of the row and
/// the time when that was seen first.
#[derive(Default)]
struct Absences(Mutex<HashMap<(u16, ObjectId), (u32, Instant)>>);

impl Absences {
    /// Notes that an object is absent. Returns whether that is no change under way.
    fn is_lasting(&self, one: (u16, ObjectId), version: u32) -> bool {
        let mut all = self.0.lock();
        match all.get(&one) {
            Some((by, since)) if *by == version => clock::since(*since) >= LASTING,
            _ => {
                if all.len() >= ABSENCES_MAX {
                    all.clear();
                }
                all.insert(one, (version, clock::now()));
                false
            }
        }
    }
}

/// Whether an answer may be that of an object which is not there.
fn may_be_absent(request: &OstRequest, reply: &FsResult<OstReply>) -> bool {
    match (request, reply) {
        (_, Ok(OstReply::Stat(None) | OstReply::Data(0) | OstReply::Offset(None))) => true,
        (OstRequest::Seek { offset, hole: true, .. }, Ok(OstReply::Offset(Some(found)))) => {
            found == offset
        }
        _ => false,
    }
}

impl Replication {
    /// Returns the answer to a reader. If the object is not here and others have it, it is theirs;
    /// or EREMCHG if the member here has lost its own, and the reader asks another one.
    pub(in crate::replication) async fn unless_absent<D: Disk>(
        &self,
        here: Here<'_, D>,
        to: (u16, ChainVersion),
        request: OstRequest,
        bulk: Bulk<'_>,
        answer: Answer<OstReply>,
    ) -> Answer<OstReply> {
        let object = request.object().filter(|_| may_be_absent(&request, &answer.reply));
        let Some(object) = object else { return answer };
        // Apart from the state of each read.
        match Box::pin(self.read_of_absent(here, to, object, (request, bulk))).await {
            Ok(None) => answer,
            Ok(Some(reply)) => Answer::unchanged(Ok(reply)),
            Err(errno) => Answer::unchanged(Err(errno)),
        }
    }

    /// Returns what another member says to a read of an object that is not here, and was; `None` if
    /// none has it, or it is here.
    async fn read_of_absent<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, chain): (u16, ChainVersion),
        object: ObjectId,
        (request, mut bulk): (OstRequest, Bulk<'_>),
    ) -> FsResult<Option<OstReply>> {
        let row = self.row_of(chain)?;
        let others: Vec<u16> = row.readable().filter(|member| *member != ost).collect();
        let failed = |error| match error {
            CopyError::Own { errno, .. } => errno,
            // The reader asks again; a member that does not answer is taken out soon.
            _ => Errno::EREMCHG,
        };
        if others.is_empty() {
            let Some(member) = self.synced_has(here, (ost, &row), object).await? else {
                // The reader asks again.
                let is_taken = self.take_before_use(here, (ost, &row), object).await;
                return if is_taken { Err(Errno::EREMCHG) } else { Ok(None) };
            };
            let reply = self.ask_for(here, (member, &row), request, bulk).await?;
            self.row_of(chain)?;
            return if self.is_leased() { Ok(Some(reply)) } else { Err(Errno::EREMCHG) };
        }
        if self.is_there(here, (ost, &row), object).await.map_err(failed)? {
            return Ok(None);
        }
        let mut is_unreadable = false;
        for member in others {
            let stat = OstRequest::Stat { object };
            let its = match self.ask_for(here, (member, &row), stat, Bulk::None).await {
                Ok(OstReply::Stat(its)) => its,
                Ok(_) => return Err(Errno::EPROTO),
                // It has something, and cannot say what: no hole.
                Err(Errno::EIO) => {
                    is_unreadable = true;
                    None
                }
                Err(_) => return Err(Errno::EREMCHG),
            };
            let Some(its) = its.filter(|its| its.size > 0) else { continue };
            if row.head() == Some(ost) {
                let to = (ost, (member, &*row));
                self.unless_lost_here(here, to, object, its.size).await.map_err(failed)?;
                continue;
            }
            self.unless_lost_for_long(here, (ost, &row), object).await?;
            match self.ask_for(here, (member, &row), request, bulk.lend()).await {
                Err(Errno::EIO) => is_unreadable = true,
                Err(_) => return Err(Errno::EREMCHG),
                Ok(reply) => {
                    // As for who reads here: others may have gone on without that member, or this one.
                    self.row_of(chain)?;
                    return if self.is_leased() { Ok(Some(reply)) } else { Err(Errno::EREMCHG) };
                }
            }
        }
        if is_unreadable { Err(Errno::EIO) } else { Ok(None) }
    }

    /// The head is about to change an object. If it serves alone and has lost that, which a member
    /// has that is synced, the change waits until that one serves: EREMCHG.
    pub(in crate::replication) async fn unless_lost_alone<D: Disk>(
        &self,
        here: Here<'_, D>,
        head: (u16, &Chain),
        object: ObjectId,
    ) -> FsResult<()> {
        if head.1.written().count() == 1 || head.1.readable().count() > 1 {
            return Ok(());
        }
        // Apart from the state of each change.
        let has_it = Box::pin(self.synced_has(here, head, object)).await?;
        has_it.map_or(Ok(()), |_| Err(Errno::EREMCHG))
    }

    /// Returns a member that is synced, and has an object as the head has lost it that serves
    /// alone. EREMCHG if it is not known yet whether the member has what the head had.
    async fn synced_has<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        object: ObjectId,
    ) -> FsResult<Option<u16>> {
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        let is_there = async || {
            self.is_there(here, (head, row), object).await.map_err(|error| match error {
                CopyError::Own { errno, .. } => errno,
                _ => Errno::EREMCHG,
            })
        };
        let mut syncing = row.written().filter(|member| *member != head).peekable();
        if syncing.peek().is_none() || is_there().await? {
            return Ok(None);
        }
        for member in syncing {
            let stat = OstRequest::Stat { object };
            let its = match self.ask_for(here, (member, row), stat, Bulk::None).await {
                Ok(OstReply::Stat(its)) => its,
                Ok(_) => return Err(Errno::EPROTO),
                Err(Errno::EIO) => None,
                Err(_) => return Err(Errno::EREMCHG),
            };
            if its.is_none_or(|its| its.size == 0) {
                continue;
            }
            // The head is about to decide whether it has lost it.
            if self.doubts.of(chain.target, Wanted { object, start: 0, end: 0 }).is_some() {
                return Err(Errno::EREMCHG);
            }
            let is_told = self.rows.is_told(Told::Syncing, chain);
            let lacks = self.pending.parts_of((chain.target, member), object);
            // What it has may be older, or a change that is under way has made it.
            let is_noted = !self.recent.parts_of((chain.target, 0), object).is_empty();
            if is_told && !lacks.is_empty() || is_noted || is_there().await? {
                continue;
            }
            return match self.is_of_file(row, object).await {
                Ok(false) => Ok(None),
                Ok(true) if is_told => Ok(Some(member)),
                Ok(true) | Err(_) => Err(Errno::EREMCHG),
            };
        }
        Ok(None)
    }

    /// A member here that is not the head does not have an object which another one has. If that is
    /// no change under way, it is taken out: EREMCHG.
    async fn unless_lost_for_long<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, row): (u16, &Chain),
        object: ObjectId,
    ) -> FsResult<()> {
        if !self.lost.absences.is_lasting((ost, object), row.version) {
            return Ok(());
        }
        match self.is_lost_by(here, (ost, row), object).await {
            Ok(()) | Err(CopyError::Unknown { .. }) => Ok(()),
            Err(_) => Err(Errno::EREMCHG),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::tests::World;
    use crate::replication::touched::UNNUMBERED;
    use futures_lite::future::block_on;
    use glint_proto::chain::{Destination, MemberState, Touched};
    use glint_proto::{ClientId, Ino};
    use std::sync::Arc;

    const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };

    /// Three members, of which one has lost an object of a file, and the first has taken over.
    fn lost_by(ost: u16) -> Arc<World> {
        let world = World::new(&[MemberState::Serving; 3]);
        world.files.lock().insert(OBJECT);
        for other in (0..3).filter(|other| *other != ost) {
            world.write(other, OBJECT, 0, b"good");
        }
        block_on(world.server(0).take_over(world.here(0)));
        world
    }

    /// What a client gets, by the row of now.
    fn ask(world: &World, ost: u16, request: OstRequest, room: &mut [u8]) -> FsResult<OstReply> {
        let to = Destination { ost, chain: Some(world.version()) };
        let bulk = if room.is_empty() { Bulk::None } else { Bulk::In(room) };
        let (server, here) = (world.server(ost), world.here(ost));
        block_on(server.execute(here, ClientId::IN_PROCESS, to, request, bulk)).reply
    }

    fn read(world: &World, ost: u16) -> FsResult<Vec<u8>> {
        let (mut room, read) = (vec![0; 9], OstRequest::Read { object: OBJECT, offset: 0, len: 9 });
        match ask(world, ost, read, &mut room)? {
            OstReply::Data(len) => room.truncate(len as usize),
            other => panic!("{other:?}"),
        }
        Ok(room)
    }

    fn size(world: &World, ost: u16) -> FsResult<u64> {
        match ask(world, ost, OstRequest::Stat { object: OBJECT }, &mut [])? {
            OstReply::Stat(attr) => Ok(attr.map_or(0, |attr| attr.size)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_head_that_has_lost_an_object_is_taken_out_when_somebody_asks_for_it() {
        for of_size in [true, false] {
            let world = lost_by(0);
            match of_size {
                true => assert_eq!(size(&world, 0), Err(Errno::EREMCHG)),
                false => assert_eq!(read(&world, 0), Err(Errno::EREMCHG)),
            }
            assert!(world.row().readable().eq([1, 2]), "{:?}", world.row());
            let target = world.version().target;
            let lacks = world.server(1).pending.list((target, 0));
            assert!(lacks.contains(&Touched::whole(OBJECT)), "{lacks:?}");
            world.next_row(|_| {});
            block_on(world.server(1).take_over(world.here(1)));
            assert_eq!((size(&world, 1), read(&world, 1)), (Ok(4), Ok(b"good".into())));
        }
    }

    #[test]
    fn what_the_head_does_not_have_is_a_hole_if_nobody_else_has_more_than_a_change_under_way() {
        let world = World::new(&[MemberState::Serving; 3]);
        block_on(world.server(0).take_over(world.here(0)));
        world.files.lock().insert(OBJECT);
        assert_eq!((size(&world, 0), read(&world, 0)), (Ok(0), Ok(Vec::new())));
        let under_way = Touched { object: OBJECT, start: 4, end: 7 };
        let key = (world.version().target, 0);
        block_on(world.server(0).recent.touch(key, under_way, UNNUMBERED)).unwrap();
        world.write(1, OBJECT, 4, b"new");
        assert_eq!((size(&world, 0), read(&world, 0)), (Ok(0), Ok(Vec::new())));
        assert_eq!(world.row().readable().count(), 3);
    }

    #[test]
    fn nobody_is_taken_out_for_an_object_of_a_file_that_is_gone() {
        let world = lost_by(0);
        world.files.lock().clear();
        assert_eq!(read(&world, 0), Ok(Vec::new()));
        assert_eq!(world.row().readable().count(), 3);
    }

    #[test]
    fn a_head_alone_that_has_lost_an_object_reads_that_of_a_member_which_is_synced() {
        let world = World::new(&[MemberState::Serving, MemberState::Syncing]);
        let (chain, head) = (world.version(), world.server(0));
        world.files.lock().insert(OBJECT);
        world.write(1, OBJECT, 0, b"good");
        head.rows.activate_own(chain, 0);
        let write_end = || {
            let to = Destination { ost: 0, chain: Some(chain) };
            let write = OstRequest::Write { object: OBJECT, offset: 4, mtime: None, kept: false };
            let (here, client) = (world.here(0), ClientId::IN_PROCESS);
            block_on(head.execute(here, client, to, write, Bulk::Out(b"!"))).reply.map(drop)
        };
        assert_eq!(read(&world, 0), Err(Errno::EREMCHG), "it may have changed it by itself");
        head.rows.told(Told::Syncing, chain);
        assert_eq!((size(&world, 0), read(&world, 0)), (Ok(4), Ok(b"good".into())));
        assert_eq!(write_end(), Err(Errno::EREMCHG));
        let key = (chain.target, 1);
        block_on(head.pending.touch(key, Touched::whole(OBJECT), UNNUMBERED)).unwrap();
        assert_eq!(read(&world, 0), Err(Errno::EREMCHG), "what it has may be older: it is taken");
        assert_eq!(read(&world, 0), Ok(b"good".into()));
        assert_eq!(write_end(), Ok(()));
    }

    #[test]
    fn a_member_that_has_lost_an_object_answers_with_that_of_others_and_is_taken_out_then() {
        let world = lost_by(2);
        let begun = clock::now();
        clock::simulate(Some(begun));
        let seek = OstRequest::Seek { object: OBJECT, offset: 0, hole: true };
        for _ in 0..2 {
            assert_eq!((size(&world, 2), read(&world, 2)), (Ok(4), Ok(b"good".into())));
            assert_eq!(ask(&world, 2, seek, &mut []), Ok(OstReply::Offset(Some(4))));
        }
        assert_eq!(world.row().readable().count(), 3, "a change may be on its way");
        clock::simulate(Some(begun + LASTING));
        let answer = read(&world, 2);
        clock::simulate(None);
        assert_eq!(answer, Err(Errno::EREMCHG));
        assert!(world.row().readable().eq([0, 1]), "{:?}", world.row());
        let target = world.version().target;
        let lacks = world.server(0).pending.list((target, 2));
        assert!(lacks.contains(&Touched::whole(OBJECT)), "{lacks:?}");
    }
}

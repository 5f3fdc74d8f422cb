//! Objects that a head has lost which serves alone, and a member has that is synced.
//!
//! What the member lacks of such an object, by the index, the head may have had newer, or only the member
//! may have changed it just before it was lost. Nobody knows what the head had. So the head takes all
//! that the member has: perhaps it is older, but nothing is newer. What was cut since the object was
//! begun, or is of a change that has failed, is no part of it.
//!
//! Invariants:
//! - Nothing is removed from a member that is synced because the head does not have it, while a file has
//!   the object; but for what was cut.
//! - The object is noted as begun, and as taken, on stable storage, before the head has a part of it: if
//!   the head crashes, it takes the rest later, and nobody takes that part for all of it. What a member
//!   lacks of such an object, or has changed alone, is taken as well.
//! - What the head cannot take stays at the member, and heal goes on. Once the member serves, whoever
//!   reads the object finds that the head has lost it ([`absent`](crate::replication::heal)).

use crate::replication::copy::{CopyError, PIECE, of_member};
use crate::replication::rows::Told;
use crate::replication::touched::{UNNUMBERED, cut_alone, taken_alone, written_alone};
use crate::replication::{Here, Replication};
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion, Touched};
use glint_proto::{Bulk, Errno, ObjectAttr, ObjectId, OstReply, OstRequest};
use std::sync::Arc;

impl Replication {
    /// Whether an object is one that its head had lost, and takes from members that are synced.
    pub(super) fn is_taken_alone(&self, target: u16, object: ObjectId) -> bool {
        !self.pending.parts_of(taken_alone(target), object).is_empty()
    }

    /// Whether the head may have lost an object which it does not have: a member has this much of it that
    /// is synced, and a file has it.
    pub(in crate::replication) async fn may_be_lost_alone(
        &self,
        (member, row): (u16, &Chain),
        object: ObjectId,
        size: u64,
    ) -> Result<bool, CopyError> {
        if size == 0 || row.readable().any(|other| other == member) {
            return Ok(false);
        }
        let is_of_file = self.is_of_file(row, object).await;
        is_of_file.map_err(|errno| CopyError::Unknown { object, errno })
    }

    /// Somebody reads or changes an object at the head, which may have lost it. Has it take the object from
    /// members that are synced, and may lack changes of it, before heal comes to that. Returns whether
    /// that was so.
    pub(in crate::replication) async fn take_before_use<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        object: ObjectId,
    ) -> bool {
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        // Before that everybody waits ([`absent`](crate::replication::heal)).
        if row.head() != Some(head) || !self.rows.is_told(Told::Syncing, chain) {
            return false;
        }
        // Nobody is asked about objects that are new.
        let lacks = |member: &u16| {
            *member != head && !self.pending.parts_of((chain.target, *member), object).is_empty()
        };
        let mut lacking = row.written().filter(lacks).peekable();
        if lacking.peek().is_none() {
            return false;
        }
        let taken: Result<bool, CopyError> = async {
            if self.is_there(here, (head, row), object).await? {
                return Ok(false);
            }
            for member in lacking {
                let size = self.size_at(here, (member, row), object).await?;
                if self.may_be_lost_alone((member, row), object, size).await?
                    && self.take_lost(here, (head, row), member, object).await?
                {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        .await;
        taken.unwrap_or_else(|error| {
            tracing::debug!(%error, chain = %row.id, "a lost object is left to heal");
            false
        })
    }

    /// Has the head take an object that it may have lost from a member which is synced, or removes from
    /// that what was cut. Returns whether it is decided: otherwise the member keeps it.
    pub(in crate::replication) async fn take_lost<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        member: u16,
        object: ObjectId,
    ) -> Result<bool, CopyError> {
        let (target, its) = (row.id.target(), (member, row));
        // Changes of it wait for all of it: they would be made in a part.
        let _turn = self.turn(object, 0, u64::MAX).await;
        if self.is_there(here, (head, row), object).await? {
            return Ok(true);
        }
        let Some(attr) = self.stat_at(here, its, object).await?.filter(|attr| attr.size > 0) else {
            return Ok(true);
        };
        let cut = self.pending.parts_of(cut_alone(target), object);
        let last = attr.size - 1;
        let is_cut = cut.iter().any(|part| (part.start..part.end).contains(&last));
        if is_cut && self.next_to_take(here, its, object, (0, attr.size)).await?.is_none() {
            self.remove_from(here, its, object).await?;
            return Ok(true);
        }
        // Of others that serve each may have lost it, too. They are asked when the member serves.
        let is_alone = row.readable().all(|other| other == head);
        let taken = match is_alone && self.pending.is_begun(target, object).is_some() {
            true => self.take_all(here, (head, row), member, (object, attr), is_cut).await,
            false => Ok(None),
        };
        match taken {
            Ok(Some(bytes)) => {
                // It may be a change that was under way when power was lost.
                tracing::warn!(
                    %object, ost = head, from = member, chain = %row.id, bytes,
                    "an object of a file is not there; it is taken from a member that was away, which \
                     may have missed its last changes"
                );
                Ok(true)
            }
            Ok(None) | Err(CopyError::Own { .. }) => {
                if self.is_there(here, (head, row), object).await? {
                    self.remove_from(here, (head, row), object).await?;
                }
                let errno = match taken {
                    Err(CopyError::Own { errno, .. }) => Some(tracing::field::display(errno)),
                    _ => None,
                };
                tracing::error!(
                    %object, ost = member, chain = %row.id, errno,
                    "an object of a file is not there, and cannot be taken from a member that was away; \
                     it is left at that one"
                );
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes all that was not cut of an object which the head does not have, in its turn. Returns how many
    /// bytes that are; `None` if the member cannot read them.
    async fn take_all<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        member: u16,
        (object, attr): (ObjectId, ObjectAttr),
        is_end_cut: bool,
    ) -> Result<Option<u64>, CopyError> {
        let (target, its) = (row.id.target(), (member, row));
        let begun = Touched { object, start: u64::MAX, end: 0 };
        for key in [written_alone(target), taken_alone(target)] {
            self.pending.note(key, std::iter::once(begun), UNNUMBERED);
        }
        let others = row.members.iter().map(|one| one.ost);
        for other in others.filter(|other| *other != head && *other != member) {
            let whole = std::iter::once(Touched::whole(object));
            self.pending.note((target, other), whole, UNNUMBERED);
        }
        let unknown = |errno| match errno {
            Errno::EREMCHG => CopyError::Changed,
            errno => CopyError::Unknown { object, errno },
        };
        self.pending.sync().await.map_err(unknown)?;
        let (mut at, mut taken) = (0, 0);
        while let Some(from) = self.next_to_take(here, its, object, (at, attr.size)).await? {
            let stop = attr.size.min((from / PIECE + 1) * PIECE);
            let Some(data) = self.read_of(here, its, object, (from, stop)).await? else {
                return Ok(None);
            };
            let got = (from, from + data.len() as u64);
            for (start, end) in self.not_changed(here, (head, row), object, got).await? {
                let part = Arc::new(data[(start - from) as usize..(end - from) as usize].to_vec());
                let write = OstRequest::Write { object, offset: start, mtime: None, kept: false };
                self.give_own(here, (head, row), object, write, Some(&part)).await?;
                taken += end - start;
            }
            at = stop;
        }
        if !is_end_cut {
            let truncate = OstRequest::Truncate { object, size: attr.size };
            self.give_own(here, (head, row), object, truncate, None).await?;
        }
        let time = OstRequest::SetTime { object, mtime: attr.mtime };
        self.give_own(here, (head, row), object, time, None).await?;
        let chain = ChainVersion { target, version: row.version };
        self.commit_at(here, chain, head).await.map_err(unknown)?;
        Ok(Some(taken))
    }

    /// Attributes of an object in a member, if it is there.
    async fn stat_at<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, row): (u16, &Chain),
        object: ObjectId,
    ) -> Result<Option<ObjectAttr>, CopyError> {
        match self.ask_for(here, (ost, row), OstRequest::Stat { object }, Bulk::None).await {
            Ok(OstReply::Stat(attr)) => Ok(attr),
            Ok(_) => Err(CopyError::Member { ost, errno: Errno::EPROTO }),
            Err(errno) => Err(of_member(ost, errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::tests::World;
    use MemberState::{Offline, Serving, Syncing};
    use futures_lite::future::block_on;
    use glint_ost::disk::memory::{DiskOperation, Fault};
    use glint_proto::chain::{Destination, MemberState};
    use glint_proto::{ClientId, FsResult, Ino};

    const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };
    const OLD: [u8; 300] = [b'g'; 300];

    /// The first member serves alone and has nothing of an object of a file. The second one is synced and
    /// has it; it was changed just before that was away.
    fn lost_by_head() -> Arc<World> {
        let world = World::new(&[Serving, Syncing]);
        world.files.lock().insert(OBJECT);
        world.write(1, OBJECT, 0, &OLD);
        let (key, part) =
            ((world.version().target, 0), Touched { end: 300, ..Touched::whole(OBJECT) });
        block_on(world.server(1).recent.touch(key, part, UNNUMBERED)).unwrap();
        world
    }

    fn heal(world: &World) {
        (0..10).for_each(|_| _ = block_on(world.server(0).heal(world.here(0))));
        assert_eq!(world.row().readable().count(), 2, "{:?}", world.row());
    }

    fn is_full(world: &World) {
        let fault = Fault::new(DiskOperation::Write, &OBJECT.to_string(), libc::ENOSPC, u32::MAX);
        world.disk(0).fail(fault);
    }

    fn head_has_it(world: &World) -> bool {
        let (head, here, row) = (world.server(0), world.here(0), world.row());
        block_on(head.is_there(here, (0, &row), OBJECT)).unwrap()
    }

    #[test]
    fn what_the_head_has_lost_is_taken_from_a_member_that_is_synced() {
        for by_heal in [true, false] {
            let (world, head) = (lost_by_head(), 0);
            match by_heal {
                true => world.server(head).rows.activate_own(world.version(), 0),
                false => {
                    block_on(world.server(head).take_over(world.here(head)));
                    while block_on(world.server(head).decide_some(world.here(head))) {}
                    assert!(world.read(head, OBJECT, 0, 1000) == OLD);
                }
            }
            heal(&world);
            for ost in [0, 1] {
                assert!(world.read(ost, OBJECT, 0, 1000) == OLD, "OST {ost}, {by_heal}");
            }
        }
    }

    #[test]
    fn a_change_of_what_the_head_has_lost_and_is_in_doubt_waits_until_that_is_decided() {
        let world = lost_by_head();
        let head = world.server(0);
        block_on(head.take_over(world.here(0)));
        let change = || {
            let to = Destination { ost: 0, chain: Some(world.version()) };
            let write = OstRequest::Write { object: OBJECT, offset: 0, mtime: None, kept: false };
            let (here, client) = (world.here(0), ClientId::IN_PROCESS);
            block_on(head.execute(here, client, to, write, Bulk::Out(b"new"))).reply.map(drop)
        };
        assert_eq!(change(), Err(Errno::EREMCHG));
        while block_on(head.decide_some(world.here(0))) {}
        assert_eq!(change(), Ok(()));
        heal(&world);
        let mut wanted = OLD;
        wanted[..3].copy_from_slice(b"new");
        (0..2).for_each(|ost| assert!(world.read(ost, OBJECT, 0, 1000) == wanted, "OST {ost}"));
    }

    /// Heal may have much to do before it comes to the object.
    #[test]
    fn what_the_head_has_lost_is_taken_before_it_is_read_or_changed() {
        for reads in [true, false] {
            let world = lost_by_head();
            let (head, chain) = (world.server(0), world.version());
            head.rows.activate_own(chain, 0);
            head.rows.told(Told::Syncing, chain);
            let key = (chain.target, 1);
            block_on(head.pending.touch(key, Touched::whole(OBJECT), UNNUMBERED)).unwrap();
            let to = Destination { ost: 0, chain: Some(chain) };
            let (here, client) = (world.here(0), ClientId::IN_PROCESS);
            let mut wanted = OLD;
            if reads {
                let mut room = [0u8; 300];
                for expected in [Err(Errno::EREMCHG), Ok(OstReply::Data(300))] {
                    let (read, bulk) = (
                        OstRequest::Read { object: OBJECT, offset: 0, len: 300 },
                        Bulk::In(&mut room),
                    );
                    let reply = block_on(head.execute(here, client, to, read, bulk)).reply;
                    assert_eq!(reply, expected);
                }
                assert!(room == OLD);
            } else {
                let write =
                    OstRequest::Write { object: OBJECT, offset: 0, mtime: None, kept: false };
                let made = head.execute(here, client, to, write, Bulk::Out(b"new"));
                block_on(made).reply.unwrap();
                wanted[..3].copy_from_slice(b"new");
            }
            heal(&world);
            for ost in [0, 1] {
                assert!(world.read(ost, OBJECT, 0, 1000) == wanted, "OST {ost}, {reads}");
            }
        }
    }

    #[test]
    fn an_object_of_a_file_that_is_gone_is_removed_from_a_member_that_is_synced() {
        let world = lost_by_head();
        world.files.lock().clear();
        world.server(0).rows.activate_own(world.version(), 0);
        heal(&world);
        assert!(world.read(1, OBJECT, 0, 1000).is_empty() && !head_has_it(&world));
    }

    #[test]
    fn nothing_is_removed_while_the_mds_does_not_say_whether_a_file_has_it() {
        let world = lost_by_head();
        world.server(0).rows.activate_own(world.version(), 0);
        *world.mds_fails.lock() = Some(Errno::EAGAIN);
        let (row, parts) = (world.row(), [Touched::whole(OBJECT)]);
        let copied = world.server(0).copy(world.here(0), (0, &row), 1, (OBJECT, &parts), None);
        let unknown = CopyError::Unknown { object: OBJECT, errno: Errno::EAGAIN };
        assert_eq!(block_on(copied), Err(unknown));
        assert!(world.read(1, OBJECT, 0, 1000) == OLD);
    }

    #[test]
    fn what_a_full_head_cannot_take_stays_at_the_member_and_heal_goes_on() {
        let world = lost_by_head();
        world.server(0).rows.activate_own(world.version(), 0);
        is_full(&world);
        heal(&world);
        assert!(world.read(1, OBJECT, 0, 1000) == OLD);
        assert!(!head_has_it(&world), "a part of it would be taken for all of it");
    }

    /// The head crashed meanwhile: it has a part, and the member says once more what it has changed.
    #[test]
    fn the_rest_of_what_was_taken_in_part_is_taken_later() {
        let world = lost_by_head();
        let (head, target) = (world.server(0), world.version().target);
        head.rows.activate_own(world.version(), 0);
        world.write(0, OBJECT, 0, &OLD[..100]);
        let begun = Touched { object: OBJECT, start: u64::MAX, end: 0 };
        for key in [written_alone(target), taken_alone(target)] {
            block_on(head.pending.touch(key, begun, UNNUMBERED)).unwrap();
        }
        heal(&world);
        (0..2).for_each(|ost| assert!(world.read(ost, OBJECT, 0, 1000) == OLD, "OST {ost}"));
    }

    #[test]
    fn what_a_change_has_made_that_failed_at_a_full_head_is_removed() {
        let world = World::new(&[Serving, Syncing]);
        world.files.lock().insert(OBJECT);
        world.server(0).rows.activate_own(world.version(), 0);
        is_full(&world);
        let written: FsResult<OstReply> = {
            let to = Destination { ost: 0, chain: Some(world.version()) };
            let write = OstRequest::Write { object: OBJECT, offset: 0, mtime: None, kept: false };
            let (here, client) = (world.here(0), ClientId::IN_PROCESS);
            block_on(world.server(0).execute(here, client, to, write, Bulk::Out(&OLD))).reply
        };
        assert_eq!(written, Err(Errno::ENOSPC));
        assert!(world.read(1, OBJECT, 0, 1000) == OLD);
        assert_eq!(world.row().state_of(1), Some(Offline));
        world.next_row(|row| row.members[1].state = Syncing);
        heal(&world);
        assert!(world.read(1, OBJECT, 0, 1000).is_empty());
    }
}

//! Objects that were begun here while a member lagged behind that may have them: those that serve may
//! have lost them.
//!
//! Nobody can be asked then, and a lost object cannot be told from one that was never written. So it
//! becomes a new one, of zeros and the change. Which bytes were changed since is noted in the index,
//! until no member lags behind. A member that comes back has the truth about all others: what it lacks
//! of before is noted with them, and what it alone may have. So before heal gives it anything, those
//! that serve take from it what nobody has changed since the object was begun, where they have zeros.
//! Of one that nobody had lost that is nothing, or what they have.
//!
//! Invariants:
//! - A change of such an object is noted on stable storage before it is acknowledged: as written, where
//!   extents may have what is a hole here, or as cut. What was cut, freed or removed does not come back.
//! - Nothing is noted of an object by a member that does not serve, and nothing outlasts that it does
//!   not, or that no member lags behind: cuts that it has not heard of would come back.
//! - What is taken is on stable storage at all that serve before the index forgets that the member lacks
//!   something of the object. Until then it is taken again, which changes nothing.
//! - It is taken in the turn of its range: no change of a client comes between.
//! - Where more objects were begun than are remembered, nothing is taken of any of the chain: what was
//!   cut from others is not noted, and would come back.
//! - Where extents had to be joined or have grown, bytes beside a change that are in one block of the
//!   disk with it may stay zeros. The object is named in the log in any case.

use crate::replication::copy::{CopyError, PIECE, of_member};
use crate::replication::takeover::doubts::Wanted;
use crate::replication::touched::{UNNUMBERED, cut_alone, written_alone};
use crate::replication::{Here, Replication};
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion, MemberState, Touched};
use glint_proto::{Bulk, Errno, ObjectId, OstReply, OstRequest};
use std::sync::Arc;

/// Whether a member of a chain may have old objects that others have lost.
fn is_one_behind(row: &Chain) -> bool {
    let has_nothing = |state| matches!(state, MemberState::Serving | MemberState::Emptied);
    row.members.iter().any(|member| !has_nothing(member.state))
}

/// Whether a change takes bytes away that another copy may have.
fn cuts(request: &OstRequest) -> bool {
    match *request {
        OstRequest::Truncate { .. } => true,
        // Blocks for what is there change no byte of it.
        OstRequest::Fallocate { mode, .. } => mode & !libc::FALLOC_FL_KEEP_SIZE != 0,
        _ => false,
    }
}

impl Replication {
    /// Whether an object was begun here while members lagged behind.
    pub(super) fn is_begun(&self, target: u16, object: ObjectId) -> bool {
        self.pending.is_begun(target, object) == Some(true)
    }

    /// Notes a change if its object was begun here, or is by it. Returns whether it was.
    pub(in crate::replication) fn note_begun(
        &self,
        row: &Chain,
        (request, begins): (&OstRequest, bool),
        parts: impl Iterator<Item = Touched>,
    ) -> bool {
        let mut parts = parts.filter(|part| part.start < part.end).peekable();
        let Some(object) = parts.peek().map(|part| part.object) else { return false };
        let target = row.id.target();
        let is_begun = || self.pending.is_begun(target, object);
        let is_noted = is_one_behind(row) && is_begun().is_some_and(|is_begun| begins || is_begun);
        if !is_noted {
            return false;
        }
        let key = |is_cut| if is_cut { cut_alone(target) } else { written_alone(target) };
        if begins {
            // Of what these lack by now they know nothing that is newer.
            for member in row.members.iter().filter(|one| one.state != MemberState::Serving) {
                let lacks = self.pending.parts_of((target, member.ost), object);
                self.pending.note(key(true), lacks.into_iter(), UNNUMBERED);
            }
            // Changes that are under way beside it, or such that another head has ordered.
            let recent = self.recent.parts_of((target, 0), object);
            let whatever = Wanted { object, start: 0, end: 0 };
            let is_in_doubt = self.doubts.of(target, whatever).is_some();
            self.pending.note(key(is_in_doubt), recent.into_iter(), UNNUMBERED);
        }
        self.pending.note(key(cuts(request)), parts, UNNUMBERED);
        true
    }

    /// A member that comes back has changed this just before it was lost, and maybe nobody else has:
    /// it is not taken from there.
    pub(super) fn is_not_taken(&self, target: u16, recent: &[Touched]) {
        let begun = recent.iter().copied().filter(|part| self.is_begun(target, part.object));
        // Looked up before the index is held to note it.
        let begun: Vec<Touched> = begun.collect();
        self.pending.note(cut_alone(target), begun.into_iter(), UNNUMBERED);
    }

    /// A member serves: forgets what it lacked. Also forgets what others may have alone, if none lags
    /// behind, or those here do: the head tells them before they serve.
    pub(in crate::replication) fn forget_lacks<D: Disk>(
        &self,
        here: Here<'_, D>,
        row: &Chain,
        member: u16,
    ) {
        let target = row.id.target();
        self.pending.forget((target, member), |_| true);
        let has_all = |state| matches!(state, MemberState::Serving | MemberState::LastServing);
        let mut own = row.members.iter().filter(|one| here.index(one.ost).is_some());
        if !is_one_behind(row) || !own.any(|one| has_all(one.state)) {
            self.pending.forget_key(written_alone(target));
            self.pending.forget_key(cut_alone(target));
        }
    }

    /// Has all that serve take from a member that is synced what it has of an object and they have
    /// lost, before the object was begun anew without it.
    pub(super) async fn unite<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        member: u16,
        object: ObjectId,
    ) -> Result<(), CopyError> {
        if !self.is_there(here, (head, row), object).await? {
            return Ok(());
        }
        let size = self.size_at(here, (member, row), object).await?;
        let (mut at, mut taken) = (0, 0);
        while at < size {
            let stop = size.min((at / PIECE + 1) * PIECE);
            let _turn = self.turn(object, at, stop).await;
            taken += self.take_piece(here, (head, row), member, object, (at, stop)).await?;
            at = stop;
        }
        taken += self.take_size(here, (head, row), member, object).await?;
        if taken == 0 {
            return Ok(());
        }
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        for other in row.written().filter(|other| *other != member) {
            let committed = self.commit_at(here, chain, other).await;
            committed.map_err(|errno| match errno {
                Errno::EREMCHG => CopyError::Changed,
                errno => CopyError::Unknown { object, errno },
            })?;
        }
        tracing::error!(
            %object, ost = head, from = member, chain = %row.id, bytes = taken,
            "an object was lost, and changed while no member was there that has it; it is put \
             together from both copies"
        );
        Ok(())
    }

    /// Takes a piece, in its turn. Returns how many bytes were looked at to take some.
    async fn take_piece<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        member: u16,
        object: ObjectId,
        (at, stop): (u64, u64),
    ) -> Result<u64, CopyError> {
        let mut data = vec![0; (stop - at) as usize];
        let read = OstRequest::Read { object, offset: at, len: data.len() as u32 };
        match self.ask_for(here, (member, row), read, Bulk::In(&mut data)).await {
            Ok(OstReply::Data(len)) => data.truncate(len as usize),
            Ok(_) => return Err(CopyError::Member { ost: member, errno: Errno::EPROTO }),
            Err(Errno::EIO) => {
                tracing::error!(
                    %object, ost = member, chain = %row.id, offset = at,
                    "a part of an object cannot be read that others may have lost"
                );
                return Ok(0);
            }
            Err(errno) => return Err(of_member(member, errno)),
        }
        if data.iter().all(|byte| *byte == 0) {
            return Ok(0);
        }
        let (mut taken, end) = (0, at + data.len() as u64);
        for (from, to) in self.not_changed(here, (head, row), object, (at, end)).await? {
            let part = &data[(from - at) as usize..(to - at) as usize];
            let mut own = vec![0; part.len()];
            let read = OstRequest::Read { object, offset: from, len: own.len() as u32 };
            self.own_of(here, (head, row), object, read, Bulk::In(&mut own)).await?;
            let is_known = |(own, its): (&u8, &u8)| *own != 0 || *its == 0;
            if std::iter::zip(&own, part).all(is_known) {
                continue;
            }
            // Nothing is written over that is here.
            let both = std::iter::zip(&own, part);
            let both = both.map(|(own, its)| if *own == 0 { *its } else { *own });
            let part: Arc<Vec<u8>> = Arc::new(both.collect());
            let write = OstRequest::Write { object, offset: from, mtime: None, kept: false };
            for other in row.written().filter(|other| *other != member) {
                self.give_to(here, (other, row), write, Some(&part)).await?;
            }
            taken += to - from;
        }
        Ok(taken)
    }

    /// Has the object be as large as in a member, unless its end was cut since it was begun. Returns
    /// whether it was smaller, as a number of bytes.
    async fn take_size<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        member: u16,
        object: ObjectId,
    ) -> Result<u64, CopyError> {
        let _turn = self.turn(object, 0, u64::MAX).await;
        let size = self.size_at(here, (member, row), object).await?;
        let own = self.size_at(here, (head, row), object).await?;
        let cut = self.pending.parts_of(cut_alone(row.id.target()), object);
        let is_cut = |last: u64| cut.iter().any(|part| (part.start..part.end).contains(&last));
        if size <= own || is_cut(size - 1) {
            return Ok(0);
        }
        let truncate = OstRequest::Truncate { object, size };
        for other in row.written().filter(|other| *other != member) {
            self.give_to(here, (other, row), truncate, None).await?;
        }
        Ok(size - own)
    }

    /// Parts of a range that nobody has changed since the object was begun.
    async fn not_changed<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        object: ObjectId,
        (at, end): (u64, u64),
    ) -> Result<Vec<(u64, u64)>, CopyError> {
        let parts = |key| {
            let parts = self.pending.parts_of(key, object).into_iter();
            let clipped = parts.map(|part| (part.start.max(at), part.end.min(end)));
            clipped.filter(|(from, to)| from < to).collect::<Vec<(u64, u64)>>()
        };
        let mut changed = parts(cut_alone(row.id.target()));
        for (mut from, to) in parts(written_alone(row.id.target())) {
            // What lies between changes, or behind their end, is a hole.
            while from < to {
                let data = self.hole(here, (head, row), object, (from, to)).await?;
                let seek = OstRequest::Seek { object, offset: data, hole: true };
                if data >= to {
                    break;
                }
                from = match self.own_of(here, (head, row), object, seek, Bulk::None).await? {
                    OstReply::Offset(Some(hole)) if hole > data => hole.min(to),
                    _ => to,
                };
                changed.push((data, from));
            }
        }
        changed.sort_unstable();
        let (mut left, mut from) = (Vec::new(), at);
        for (start, stop) in changed {
            if from < start {
                left.push((from, start));
            }
            from = from.max(stop);
        }
        if from < end {
            left.push((from, end));
        }
        Ok(left)
    }

    /// Size of an object in a member: 0 if it is not there.
    async fn size_at<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, row): (u16, &Chain),
        object: ObjectId,
    ) -> Result<u64, CopyError> {
        match self.ask_for(here, (ost, row), OstRequest::Stat { object }, Bulk::None).await {
            Ok(OstReply::Stat(attr)) => Ok(attr.map_or(0, |attr| attr.size)),
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
}

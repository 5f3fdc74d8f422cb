//! Objects that were begun here while a member lagged behind that may have them: those that serve may
//! have lost them.
//!
//! Nobody can be asked then, and a lost object cannot be told from one that was never written. So it
//! becomes a new one, of zeros and the change. Which bytes were changed since is noted in the index,
//! until no member lags behind. A member that comes back has the truth about all others: what it lacks
//! of before is noted with them, and what it alone may have. So before it is given anything, those
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
//! - It is taken in the turn of its range: no change of a client comes between. The head has it last,
//!   so what the head has is taken no more.
//! - Where more objects were begun than are remembered, nothing is taken of any of the chain: what was
//!   cut from others is not noted, and would come back.
//! - Where extents had to be joined or have grown, bytes beside a change that are in one block of the
//!   disk with it may stay zeros. The object is named in the log in any case.

mod head_lost;

use super::HealPace;
use crate::replication::copy::{CopyError, PIECE, begin, of_member};
use crate::replication::takeover::doubts::Wanted;
use crate::replication::touched::{UNNUMBERED, cut_alone, taken_alone, written_alone};
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
    pub(in crate::replication) fn is_begun(&self, target: u16, object: ObjectId) -> bool {
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
        let is_noted = is_one_behind(row)
            && self.pending.is_begun(target, object).is_some_and(|is_begun| begins || is_begun);
        if !is_noted {
            return false;
        }
        let key = |is_cut| if is_cut { cut_alone(target) } else { written_alone(target) };
        if begins && !self.is_taken_alone(target, object) {
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
    pub(in crate::replication) fn is_not_taken(&self, target: u16, recent: &[Touched]) {
        let is_cut = |object| self.is_begun(target, object) && !self.is_taken_alone(target, object);
        let begun = recent.iter().copied().filter(|part| is_cut(part.object));
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
            self.pending.forget_key(taken_alone(target));
        }
    }

    /// Has all that serve take from a member that is synced what it has of an object and they have
    /// lost, before the object was begun anew without it: at the `pace` of heal, or at once.
    pub(in crate::replication) async fn unite<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        member: u16,
        object: ObjectId,
        pace: Option<&HealPace>,
    ) -> Result<(), CopyError> {
        let size = self.size_at(here, (member, row), object).await?;
        // Most were made while it was away.
        if size == 0 || !self.is_there(here, (head, row), object).await? {
            return Ok(());
        }
        let (mut at, mut taken) = (0, 0);
        while let Some(from) = self.next_to_take(here, (member, row), object, (at, size)).await? {
            let stop = size.min((from / PIECE + 1) * PIECE);
            // Before its turn, for which users wait.
            let _piece = begin(pace).await;
            let _turn = self.turn(object, from, stop).await;
            taken += self.take_piece(here, (head, row), member, object, (from, stop)).await?;
            at = stop;
        }
        taken += self.take_size(here, (head, row), member, object).await?;
        if taken == 0 {
            return Ok(());
        }
        let noted = self.pending.sync().await;
        noted.map_err(|errno| CopyError::Unknown { object, errno })?;
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

    /// Where a member has more data within a range of an object, which was not cut since that was begun.
    /// Holes and what was cut may be as long as any.
    async fn next_to_take<D: Disk>(
        &self,
        here: Here<'_, D>,
        (member, row): (u16, &Chain),
        object: ObjectId,
        (mut at, end): (u64, u64),
    ) -> Result<Option<u64>, CopyError> {
        let cut = self.pending.parts_of(cut_alone(row.id.target()), object);
        while at < end {
            if let Some(part) = cut.iter().find(|part| part.start <= at && at < part.end) {
                at = part.end;
                continue;
            }
            let seek = OstRequest::Seek { object, offset: at, hole: false };
            let data = match self.ask_for(here, (member, row), seek, Bulk::None).await {
                Ok(OstReply::Offset(data)) => data.unwrap_or(end),
                Ok(_) => return Err(CopyError::Member { ost: member, errno: Errno::EPROTO }),
                // Who reads it says what is damaged.
                Err(Errno::EIO) => at,
                Err(errno) => return Err(of_member(member, errno)),
            };
            if data <= at {
                return Ok(Some(at));
            }
            at = data;
        }
        Ok(None)
    }

    /// Has all that are written make a change of an object, but for this member. The head comes last:
    /// what it has then, all others have.
    async fn give_others<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        (member, object): (u16, ObjectId),
        request: OstRequest,
        data: Option<&Arc<Vec<u8>>>,
    ) -> Result<(), CopyError> {
        let others = row.written().filter(|other| *other != member && *other != head);
        for other in others {
            self.give_to(here, (other, row), request, data).await?;
        }
        self.give_own(here, (head, row), object, request, data).await.map(drop)
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
            for absent in row.missing() {
                let lacks = std::iter::once(Touched { object, start: from, end: to });
                self.pending.note((row.id.target(), absent), lacks, UNNUMBERED);
            }
            let of = (member, object);
            self.give_others(here, (head, row), of, write, Some(&part)).await?;
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
        let stat = OstRequest::Stat { object };
        let OstReply::Stat(own) = self.own_of(here, (head, row), object, stat, Bulk::None).await?
        else {
            return Err(CopyError::Own { ost: head, object, errno: Errno::EPROTO });
        };
        let own = own.map_or(0, |attr| attr.size);
        let cut = self.pending.parts_of(cut_alone(row.id.target()), object);
        let is_cut = |last: u64| cut.iter().any(|part| (part.start..part.end).contains(&last));
        if size <= own || is_cut(size - 1) {
            return Ok(0);
        }
        let truncate = OstRequest::Truncate { object, size };
        self.give_others(here, (head, row), (member, object), truncate, None).await?;
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
mod tests;

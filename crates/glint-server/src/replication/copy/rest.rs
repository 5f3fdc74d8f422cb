//! Whether a member that lacks parts of an object has the rest of it.
//!
//! A member that has lost all of an object makes it anew with the next change. Usually it says so
//! ([`lacking`](crate::replication::order::lacking)); not if it, or the head, was lost at that
//! moment. Then it has what was changed just then, which is among the parts that it lacks or that
//! are in doubt, and zeros in the place of the rest: where the head has other bytes there, it
//! gets all of the object.
//!
//! That costs one read of the member for an object of which it lacks parts. Nothing of an object
//! that is new to it lies beside these. Where the head itself has nothing beside them, a member
//! that serves may have: then it is the head that has made a lost object anew.

use super::{CopyError, of_member};
use crate::replication::{Here, Replication};
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, Touched};
use glint_proto::{Bulk, Errno, ObjectId, OstReply, OstRequest};
use std::ops::Range;

/// Bytes that are looked at together.
const LOOK: u64 = 64 << 10;
/// How often it is looked, at most, for a place where the head has anything but zeros.
const LOOKS: usize = 16;

/// What lies between these parts of an object, which are in their order, and after them.
fn gaps(parts: &[Touched], size: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut at = 0;
    let parts = parts.iter().map(|part| (part.start, part.end)).chain([(size, size)]);
    parts.filter_map(move |(start, end)| {
        let gap = (at, start.min(size));
        at = at.max(end);
        (gap.0 < gap.1).then_some(gap)
    })
}

fn has_data(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| *byte != 0)
}

impl Replication {
    /// Whether a member has something beside these parts of an object, as far as the head has, of
    /// which the own one has this size.
    pub(super) async fn has_rest<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, to): (u16, (u16, &Chain)),
        (object, parts): (ObjectId, &[Touched]),
        size: u64,
    ) -> Result<bool, CopyError> {
        let own = (head, to.1);
        let (mut looks, mut is_all) = (0..LOOKS, true);
        for (mut at, end) in gaps(parts, size) {
            is_all = false;
            while at < end && looks.next().is_some() {
                let looked = async {
                    let data = self.hole(here, own, object, (at, end)).await?;
                    let stop = end.min(data.saturating_add(LOOK));
                    let is_data =
                        data < stop && has_data(&self.read(here, own, object, (data, stop)).await?);
                    Ok((data, stop, is_data))
                };
                match looked.await {
                    Ok((data, stop, true)) => {
                        return self.has_some(here, to, object, (data, stop)).await;
                    }
                    Ok((_, stop, false)) => at = stop,
                    Err(CopyError::Changed) => return Err(CopyError::Changed),
                    // It could not be copied either. Whoever reads it says so.
                    Err(_) => return Ok(true),
                }
            }
        }
        if !is_all && to.1.readable().any(|member| member == to.0) {
            self.unless_rest_lost_here(here, (head, to), object, size).await?;
        }
        Ok(true)
    }

    /// The head has nothing beside what is noted as recent of an object. If a member that serves
    /// has something there, which no change under way has made, the head is taken out: as
    /// [`unless_lost_here`](Replication::unless_lost_here).
    pub(in crate::replication) async fn unless_rest_lost_here<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, to): (u16, (u16, &Chain)),
        object: ObjectId,
        size: u64,
    ) -> Result<(), CopyError> {
        let own = (head, to.1);
        let (noted, mut looks, mut at) = (self.noted_of(to.1, object), 0..LOOKS, 0);
        let beside = (object, &noted[..]);
        while let Some((data, end)) =
            self.data_beside(here, to, beside, (at, size), &mut looks).await?
        {
            let stop = end.min(data.saturating_add(LOOK));
            let its = self.read_of(here, to, object, (data, stop)).await?.unwrap_or_default();
            let mine = self.read(here, own, object, (data, stop)).await?;
            let is_zero = |at: usize| mine.get(at).is_none_or(|byte| *byte == 0);
            let lost = (0..its.len()).find(|at| its[*at] != 0 && is_zero(*at));
            // A change may have come there meanwhile.
            if lost.is_some_and(|lost| !self.is_noted(to.1, object, data + lost as u64)) {
                return self.is_lost_by(here, own, object).await;
            }
            at = stop;
        }
        Ok(())
    }

    /// Finds where another member has data beside these parts of an object, which are in their order,
    /// and before `size`: the first place from `at` on, with the end of its gap. Where the member
    /// cannot read it, it has something. Each gap that is looked at takes one of `looks`.
    pub(in crate::replication) async fn data_beside<D: Disk>(
        &self,
        here: Here<'_, D>,
        to: (u16, &Chain),
        (object, parts): (ObjectId, &[Touched]),
        (at, size): (u64, u64),
        looks: &mut Range<usize>,
    ) -> Result<Option<(u64, u64)>, CopyError> {
        for (start, end) in gaps(parts, size) {
            let from = start.max(at);
            if from >= end {
                continue;
            }
            if looks.next().is_none() {
                break;
            }
            let seek = OstRequest::Seek { object, offset: from, hole: false };
            let data = match self.give_to(here, to, seek, None).await {
                Ok(OstReply::Offset(data)) => data,
                Ok(_) => return Err(CopyError::Member { ost: to.0, errno: Errno::EPROTO }),
                Err(CopyError::Member { errno: Errno::EIO, .. }) => Some(from),
                Err(error) => return Err(error),
            };
            if let Some(data) = data.filter(|data| *data < end) {
                return Ok(Some((data, end)));
            }
        }
        Ok(None)
    }

    /// Whether a member has anything but zeros in a part of an object.
    async fn has_some<D: Disk>(
        &self,
        here: Here<'_, D>,
        to: (u16, &Chain),
        object: ObjectId,
        range: (u64, u64),
    ) -> Result<bool, CopyError> {
        let its = self.read_of(here, to, object, range).await?;
        // What is damaged is there.
        Ok(its.is_none_or(|bytes| has_data(&bytes)))
    }

    /// Reads a part of an object of a member; `None` if it is damaged.
    pub(in crate::replication) async fn read_of<D: Disk>(
        &self,
        here: Here<'_, D>,
        to: (u16, &Chain),
        object: ObjectId,
        (offset, stop): (u64, u64),
    ) -> Result<Option<Vec<u8>>, CopyError> {
        let mut bytes = vec![0; (stop - offset) as usize];
        let read = OstRequest::Read { object, offset, len: bytes.len() as u32 };
        match self.ask_for(here, to, read, Bulk::In(&mut bytes)).await {
            Ok(OstReply::Data(len)) => bytes.truncate(len as usize),
            Ok(_) => return Err(CopyError::Member { ost: to.0, errno: Errno::EPROTO }),
            Err(Errno::EIO) => return Ok(None),
            Err(errno) => return Err(of_member(to.0, errno)),
        }
        Ok(Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::tests::World;
    use crate::replication::touched::UNNUMBERED;
    use futures_lite::future::block_on;
    use glint_proto::Ino;
    use glint_proto::chain::MemberState::{Serving, Syncing};

    const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };

    fn part(start: u64, end: u64) -> Touched {
        Touched { object: OBJECT, start, end }
    }

    #[test]
    fn gaps_are_what_no_part_has_before_the_end() {
        let gaps = |parts: &[Touched]| gaps(parts, 9).collect::<Vec<_>>();
        assert_eq!(gaps(&[]), [(0, 9)]);
        assert_eq!(gaps(&[part(2, 4), part(3, 5), part(7, 8)]), [(0, 2), (5, 7), (8, 9)]);
        assert!(gaps(&[part(0, 9)]).is_empty());
        assert_eq!(gaps(&[part(4, u64::MAX)]), [(0, 4)]);
        assert_eq!(gaps(&[part(20, 30)]), [(0, 9)]);
    }

    /// The head before it was lost together with its client, when the change had made a new object
    /// here and was made in full elsewhere.
    #[test]
    fn a_head_that_has_made_a_lost_object_anew_is_taken_out() {
        let world = World::new(&[Serving; 2]);
        let (head, key) = (world.server(0), (world.version().target, 0));
        world.files.lock().insert(OBJECT);
        world.write(1, OBJECT, 0, b"good");
        (0..2).for_each(|ost| world.write(ost, OBJECT, 4, b"!"));
        block_on(head.recent.touch(key, part(4, 5), UNNUMBERED)).unwrap();
        block_on(head.take_over(world.here(0)));
        while block_on(head.decide_some(world.here(0))) {}
        assert!(world.row().readable().eq([1]), "{:?}", world.row());
        let lacks = world.server(1).pending.list((key.0, 0));
        assert!(lacks.contains(&Touched::whole(OBJECT)), "{lacks:?}");
        assert_eq!(world.read(1, OBJECT, 0, 9), b"good!");
    }

    /// Nor is one for what a change under way has made elsewhere.
    #[test]
    fn a_head_that_has_nothing_but_what_is_in_doubt_is_not_taken_out() {
        let world = World::new(&[Serving; 2]);
        let (head, key) = (world.server(0), (world.version().target, 0));
        world.files.lock().insert(OBJECT);
        world.write(1, OBJECT, 0, b"new");
        (0..2).for_each(|ost| world.write(ost, OBJECT, 4, b"!"));
        for noted in [part(4, 5), part(0, 3)] {
            block_on(head.recent.touch(key, noted, UNNUMBERED)).unwrap();
        }
        block_on(head.take_over(world.here(0)));
        while block_on(head.decide_some(world.here(0))) {}
        assert_eq!(world.row().readable().count(), 2, "{:?}", world.row());
        (0..2).for_each(|ost| assert_eq!(world.read(ost, OBJECT, 0, 9), b"\0\0\0\0!"));
    }

    /// Its answer that it had nothing was lost, together with the member.
    #[test]
    fn a_member_that_has_made_a_lost_object_anew_is_given_all_of_it() {
        const END: u64 = 300_000;
        // What the member has beside the part that it lacks, and what it has after that.
        for (its, left) in [(None, b"good!"), (Some(b"kept"), b"kept!")] {
            let world = World::new(&[Serving, Syncing]);
            let (head, key) = (world.server(0), (world.version().target, 1));
            world.write(0, OBJECT, END, b"good!");
            world.write(1, OBJECT, END + 4, b"?");
            its.iter().for_each(|its| world.write(1, OBJECT, END, *its));
            head.rows.activate_own(world.version(), 0);
            let lacks = part(END + 4, END + 5);
            block_on(head.pending.touch(key, lacks, UNNUMBERED)).unwrap();
            (0..10).for_each(|_| _ = block_on(head.heal(world.here(0))));
            assert_eq!(world.row().readable().count(), 2, "{:?}", world.row());
            assert_eq!(world.read(1, OBJECT, END, 9), left);
        }
    }
}

//! Objects that the head has lost, or the end of one: its disk has them no more, and nobody has removed
//! them.
//!
//! Invariant: that the head does not have an object, or that its own is smaller, takes nothing from a
//! member that serves but what a change under way has made, which the head was not asked for, or what one
//! has cut. All that was acknowledged the head had: it is noted as recent there, or stable. Whether the
//! file is gone, only the MDS knows.

use crate::replication::copy::CopyError;
use crate::replication::takeover::doubts::Wanted;
use crate::replication::{CopyFault, Here, Replication};
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion, Touched};
use glint_proto::{Bulk, Errno, FsResult, Ino, ObjectId, OstReply, OstRequest};

/// Disks know of no smaller parts whether there is data: more than any has in a block.
const BLOCK: u64 = 64 << 10;

/// Whether what a member has says something of what the head has lost: it serves. One that is synced
/// may have anything, from before it was lost.
fn may_know((member, row): (u16, &Chain)) -> bool {
    row.readable().any(|other| other == member)
}

impl Replication {
    /// The head is about to change an object. If that is in doubt, and the head has lost it, the head is
    /// taken out first; and so is a member that does not say what it has. Returns whether the chain is
    /// the same still. Else the change would make a new object, to which others are made equal.
    pub(in crate::replication) async fn unless_lost_in_doubt<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        object: ObjectId,
    ) -> FsResult<bool> {
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        if self.doubts.of(chain.target, Wanted { object, start: 0, end: 0 }).is_none() {
            return Ok(true);
        }
        let find = async {
            if self.is_there(here, (head, row), object).await? {
                return Ok(());
            }
            for member in row.readable().filter(|member| *member != head) {
                let stat = OstRequest::Stat { object };
                let its = self.give_to(here, (member, row), stat, None).await?;
                if let OstReply::Stat(Some(its)) = its {
                    self.unless_lost_here(here, (head, (member, row)), object, its.size).await?;
                }
            }
            Ok(())
        };
        match find.await {
            Ok(()) => Ok(true),
            Err(CopyError::Changed) => Ok(false),
            Err(CopyError::Member { ost, errno }) => {
                self.take_out(here, chain, ost, errno).await?;
                Ok(false)
            }
            // Who asks waits for the MDS, as for each row that it needs.
            Err(error @ CopyError::Unknown { .. }) => {
                tracing::warn!(%error, chain = %row.id, "a change waits until that is known");
                Err(Errno::EREMCHG)
            }
            Err(CopyError::Own { errno, .. }) => Err(errno),
        }
    }

    /// Another member has an object that the head does not have. If the head has lost its own, it is
    /// taken out of the chain, to get the object from the others: [`CopyError::Changed`]. Nothing is
    /// known if the MDS does not say whether there is a file: [`CopyError::Unknown`].
    pub(in crate::replication) async fn unless_lost_here<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, to): (u16, (u16, &Chain)),
        object: ObjectId,
        size: u64,
    ) -> Result<(), CopyError> {
        let (_, row) = to;
        if !may_know(to) {
            return Ok(());
        }
        let had_it = size > 0 && self.doubts.is_of_head(row.id.target(), object)
            || self.has_stable(here, to, object, size).await?;
        if !had_it || self.is_there(here, (head, row), object).await? {
            return Ok(());
        }
        self.is_lost_by(here, (head, row), object).await
    }

    /// Another member has a larger object than the head, up to `size`. If no change that is noted ends
    /// there, the head has lost the end of its own: as [`Replication::unless_lost_here`].
    pub(in crate::replication) async fn unless_cut_here<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, to): (u16, (u16, &Chain)),
        object: ObjectId,
        size: u64,
    ) -> Result<(), CopyError> {
        let (_, row) = to;
        if !may_know(to) {
            return Ok(());
        }
        // Here objects that were found without checksums count: their ends may differ.
        if size.checked_sub(1).is_none_or(|last| self.is_noted(row, object, last)) {
            return Ok(());
        }
        self.is_lost_by(here, (head, row), object).await
    }

    /// Has a member taken out of its chain that has lost an object, to get it from the others: unless
    /// the file is gone.
    pub(in crate::replication) async fn is_lost_by<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, row): (u16, &Chain),
        object: ObjectId,
    ) -> Result<(), CopyError> {
        let unknown = |errno| CopyError::Unknown { object, errno };
        if !self.is_of_file(row, object).await.map_err(unknown)? {
            return Ok(());
        }
        let target = row.id.target();
        // In a box: it answers requests of peers, of which some copy.
        let lacks = CopyFault::Lacks;
        let repaired = Box::pin(self.repair(here, target, (ost, object), lacks)).await;
        // Not with the row of before, whatever became of that.
        repaired.map_err(|_| CopyError::Changed).and(Err(CopyError::Changed))
    }

    /// Whether a member here has an object.
    pub(in crate::replication) async fn is_there<D: Disk>(
        &self,
        here: Here<'_, D>,
        own: (u16, &Chain),
        object: ObjectId,
    ) -> Result<bool, CopyError> {
        let stat = OstRequest::Stat { object };
        match self.own_of(here, own, object, stat, Bulk::None).await? {
            OstReply::Stat(attr) => Ok(attr.is_some()),
            _ => Err(CopyError::Own { ost: own.0, object, errno: Errno::EPROTO }),
        }
    }

    /// Whether another member has more of an object than is noted as recent.
    async fn has_stable<D: Disk>(
        &self,
        here: Here<'_, D>,
        to: (u16, &Chain),
        object: ObjectId,
        size: u64,
    ) -> Result<bool, CopyError> {
        let Some(last) = size.checked_sub(1) else { return Ok(false) };
        let noted = self.noted_changes_of(to.1, object);
        let found = match cover(&noted, last, 1) {
            false => Some((last, 1)),
            true => {
                let blocks: Vec<Touched> = noted.iter().map(|part| outwards(part, BLOCK)).collect();
                let (beside, mut looks) = ((object, &blocks[..]), 0..usize::MAX);
                let found = self.data_beside(here, to, beside, (0, size), &mut looks).await?;
                found.map(|(data, _)| (data, BLOCK))
            }
        };
        // A change may have come there meanwhile.
        let noted = self.noted_changes_of(to.1, object);
        Ok(found.is_some_and(|(at, unit)| !cover(&noted, at, unit)))
    }

    /// Parts of an object that are noted as recent, in their order.
    pub(in crate::replication) fn noted_of(&self, row: &Chain, object: ObjectId) -> Vec<Touched> {
        let mut noted = self.recent.parts_of((row.id.target(), 0), object);
        noted.retain(|part| part.start < part.end);
        noted.sort_unstable_by_key(|part| part.start);
        noted
    }

    /// Whether one of them has an offset.
    pub(in crate::replication) fn is_noted(&self, row: &Chain, object: ObjectId, at: u64) -> bool {
        cover(&self.noted_of(row, object), at, 1)
    }

    /// Those of them that changes have made. An object that is noted from its begin to its end may have
    /// been found without checksums after a loss of power, which says nothing about what is stable in
    /// it ([`unsealed`](super::unsealed)). (It may be a truncation to nothing, too, that the head alone
    /// has not made: then another head takes over without need.)
    fn noted_changes_of(&self, row: &Chain, object: ObjectId) -> Vec<Touched> {
        let mut noted = self.noted_of(row, object);
        noted.retain(|part| *part != Touched::whole(object));
        noted
    }

    /// Whether a file has an object, by what the MDS knows.
    pub(in crate::replication) async fn is_of_file(
        &self,
        row: &Chain,
        object: ObjectId,
    ) -> FsResult<bool> {
        let page = self.peers()?.objects(row.id.target(), before(object)).await?;
        Ok(page.objects.contains(&object))
    }
}

/// A part up to where units of this size begin and end.
fn outwards(part: &Touched, unit: u64) -> Touched {
    let end = part.end.checked_next_multiple_of(unit).unwrap_or(u64::MAX);
    Touched { start: part.start / unit * unit, end, ..*part }
}

/// Whether one of these parts, each in whole units, has an offset.
fn cover(noted: &[Touched], at: u64, unit: u64) -> bool {
    noted.iter().map(|part| outwards(part, unit)).any(|part| part.start <= at && at < part.end)
}

/// The last object that there can be before this one.
pub(super) fn before(ObjectId { ino, stripe }: ObjectId) -> ObjectId {
    match stripe.checked_sub(1) {
        Some(stripe) => ObjectId { ino, stripe },
        None => ObjectId { ino: Ino(ino.0.saturating_sub(1)), stripe: u16::MAX },
    }
}

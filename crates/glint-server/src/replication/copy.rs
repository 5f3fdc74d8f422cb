//! Copying of changed parts of an object from the head to another member.
//!
//! Invariant: each piece is read and given in the turn of its range, so no change of a client comes
//! between; changes after it reach the member by themselves.

use super::{Here, Replication};
use glint_net::host;
use glint_ost::Bandwidth;
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion, PeerRequest, Touched};
use glint_proto::{Bulk, Errno, ObjectAttr, ObjectId, OstReply, OstRequest, clock};
use glint_telemetry::{Layer, OP_NONE, Span, traced};
use std::pin::pin;

/// Why a part of an object was not copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum CopyError {
    /// The head cannot read its own.
    #[error("reading {object} of OST {ost}: {errno}")]
    Own { ost: u16, object: ObjectId, errno: Errno },
    /// The member does not take it.
    #[error("writing to OST {ost}: {errno}")]
    Member { ost: u16, errno: Errno },
    /// The chain is another one now.
    #[error("the chain has changed")]
    Changed,
}

/// Bytes that are read and given at once.
const PIECE: u64 = 1 << 20;
/// FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE.
const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

impl Replication {
    /// Makes what was changed of an object in `member` as it is in `head`, which is here, no faster
    /// than the `limit`. Returns how many bytes were given.
    pub(super) async fn copy<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        member: u16,
        touched: &Touched,
        limit: Option<&Bandwidth>,
    ) -> Result<u64, CopyError> {
        let copied = async {
            let _span = Span::start(Layer::Heal, OP_NONE);
            self.copy_timed(here, (head, row), member, touched, limit).await
        };
        traced(pin!(copied)).await
    }

    async fn copy_timed<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        member: u16,
        touched: &Touched,
        limit: Option<&Bandwidth>,
    ) -> Result<u64, CopyError> {
        let object = touched.object;
        let to = (member, row);
        let Some(attr) = self.same_size(here, (head, to), object).await? else { return Ok(0) };
        let end = touched.end.min(attr.size);
        let (mut at, mut given) = (touched.start.min(end), 0);
        let mut room = Vec::new();
        while at < end {
            let stop = end.min((at / PIECE + 1) * PIECE);
            if let Some(limit) = limit {
                host::sleep(limit.take(stop - at, clock::now())).await;
            }
            let _turn = self.turn(object, at, stop).await;
            room.resize((stop - at) as usize, 0);
            given += self.piece(here, (head, to), object, at, &mut room).await?;
            at = stop;
        }
        let _turn = self.turn(object, 0, u64::MAX).await;
        if let OstReply::Stat(Some(attr)) =
            self.own_of(here, (head, object), OstRequest::Stat { object }, Bulk::None).await?
        {
            let time = OstRequest::SetTime { object, mtime: attr.mtime };
            self.give_to(here, to, time, None).await?;
        }
        Ok(given)
    }

    /// Gives the object in another member the size that it has in the head. `None` if it is there no
    /// more, and then here neither.
    async fn same_size<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, to): (u16, (u16, &Chain)),
        object: ObjectId,
    ) -> Result<Option<ObjectAttr>, CopyError> {
        let _turn = self.turn(object, 0, u64::MAX).await;
        let stat = OstRequest::Stat { object };
        let OstReply::Stat(own) = self.own_of(here, (head, object), stat, Bulk::None).await? else {
            return Err(CopyError::Own { ost: head, object, errno: Errno::EPROTO });
        };
        let OstReply::Stat(its) = self.give_to(here, to, stat, None).await? else {
            return Err(CopyError::Member { ost: to.0, errno: Errno::EPROTO });
        };
        match (own, its) {
            (Some(own), its) if its.is_none_or(|its| its.size != own.size) => {
                let truncate = OstRequest::Truncate { object, size: own.size };
                self.give_to(here, to, truncate, None).await?;
            }
            (None, Some(_)) => self.remove_from(here, to, object).await?,
            _ => {}
        }
        Ok(own)
    }

    /// Removes an object that the head does not have: it was removed here, or a change that failed
    /// has made it there.
    async fn remove_from<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, row): (u16, &Chain),
        object: ObjectId,
    ) -> Result<(), CopyError> {
        let removed = match here.index(ost) {
            Some(_) => self.remove_own(here, ost, object),
            None => {
                let chain = ChainVersion { target: row.id.target(), version: row.version };
                let remove = PeerRequest::Remove { chain, ost, object };
                self.ask_member(here, chain, ost, remove).await.map(drop)
            }
        };
        removed.map_err(|errno| match errno {
            Errno::EREMCHG => CopyError::Changed,
            errno => CopyError::Member { ost, errno },
        })
    }

    /// Gives one piece, in its turn: data as data, holes as holes.
    async fn piece<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, to): (u16, (u16, &Chain)),
        object: ObjectId,
        at: u64,
        room: &mut [u8],
    ) -> Result<u64, CopyError> {
        let end = at + room.len() as u64;
        let seek = OstRequest::Seek { object, offset: at, hole: false };
        let found = self.own_of(here, (head, object), seek, Bulk::None).await?;
        let OstReply::Offset(data) = found else {
            return Err(CopyError::Own { ost: head, object, errno: Errno::EPROTO });
        };
        if data.is_none_or(|data| data >= end) {
            let len = end - at;
            let hole = OstRequest::Fallocate { object, mode: PUNCH_HOLE, offset: at, len };
            return self.give_to(here, to, hole, None).await.map(|_| 0);
        }
        let len = room.len() as u32;
        let read = OstRequest::Read { object, offset: at, len };
        let OstReply::Data(len) = self.own_of(here, (head, object), read, Bulk::In(room)).await?
        else {
            return Err(CopyError::Own { ost: head, object, errno: Errno::EPROTO });
        };
        let Some(data) = room.get(..len as usize).filter(|data| !data.is_empty()) else {
            return Ok(0);
        };
        let write = OstRequest::Write { object, offset: at, mtime: None, kept: false };
        self.give_to(here, to, write, Some(data)).await?;
        Ok(u64::from(len))
    }

    async fn own_of<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, object): (u16, ObjectId),
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Result<OstReply, CopyError> {
        let failed = |errno| CopyError::Own { ost, object, errno };
        self.own(here, ost, request, bulk).await.map_err(failed)
    }

    async fn give_to<D: Disk>(
        &self,
        here: Here<'_, D>,
        to: (u16, &Chain),
        request: OstRequest,
        data: Option<&[u8]>,
    ) -> Result<OstReply, CopyError> {
        self.give(here, to, request, data).await.map_err(|errno| match errno {
            Errno::EREMCHG => CopyError::Changed,
            errno => CopyError::Member { ost: to.0, errno },
        })
    }
}

//! Copying of changed parts of an object from the head to another member.
//!
//! Invariant: each piece is read and given in the turn of its range, so no change of a client comes
//! between; changes after it reach the member by themselves.

mod rest;

use super::heal::{HealPace, HealPiece};
use super::{Here, Replication};
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion, PeerRequest, Touched};
use glint_proto::{Bulk, Errno, ObjectAttr, ObjectId, OstReply, OstRequest};
use glint_telemetry::{Layer, OP_NONE, Span, traced};
use std::pin::pin;
use std::sync::Arc;

/// An object in the head and in another member, after that was given its size.
enum SizedCopy {
    /// Both have it, and whether the member had it before.
    Same(ObjectAttr, bool),
    /// Neither has it.
    Absent,
    /// The member is synced and has it, and the head may have [lost](Replication::take_lost) it.
    Lost,
}

/// Why a part of an object was not copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum CopyError {
    /// The head cannot read its own.
    #[error("reading {object} of OST {ost}: {errno}")]
    Own { ost: u16, object: ObjectId, errno: Errno },
    /// The member does not take it.
    #[error("writing to OST {ost}: {errno}")]
    Member { ost: u16, errno: Errno },
    /// The MDS does not say whether a file has the object.
    #[error("asking the MDS for {object}: {errno}")]
    Unknown { object: ObjectId, errno: Errno },
    /// The chain is another one now.
    #[error("the chain has changed")]
    Changed,
}

/// Bytes that are read and given at once.
pub(super) const PIECE: u64 = 1 << 20;
/// FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE.
const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// Begins a piece at the pace of heal, or at once.
pub(super) async fn begin(pace: Option<&HealPace>) -> Option<HealPiece<'_>> {
    match pace {
        Some(pace) => Some(pace.begin().await),
        None => None,
    }
}

/// Why a member has not made a part of a copy.
pub(super) fn of_member(ost: u16, errno: Errno) -> CopyError {
    match errno {
        Errno::EREMCHG => CopyError::Changed,
        errno => CopyError::Member { ost, errno },
    }
}

/// Why the own member has not.
pub(super) fn of_own(ost: u16, object: ObjectId, errno: Errno) -> CopyError {
    match errno {
        Errno::EREMCHG => CopyError::Changed,
        errno => CopyError::Own { ost, object, errno },
    }
}

impl Replication {
    /// Makes these parts of an object in `member`, or all of it if the member has nothing else of
    /// it, its size and its time as they are in `head`, which is here, at the `pace` of heal, or at
    /// once. What others have lost, and the member has alone, they take from it first. Returns how many
    /// bytes were given.
    pub(super) async fn copy<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        member: u16,
        (object, parts): (ObjectId, &[Touched]),
        pace: Option<&HealPace>,
    ) -> Result<u64, CopyError> {
        let copied = async {
            let _span = Span::start(Layer::Heal, OP_NONE);
            self.copy_timed(here, (head, row), member, (object, parts), pace).await
        };
        traced(pin!(copied)).await
    }

    async fn copy_timed<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        member: u16,
        (object, parts): (ObjectId, &[Touched]),
        pace: Option<&HealPace>,
    ) -> Result<u64, CopyError> {
        let to = (member, row);
        let is_synced = row.readable().all(|other| other != member);
        let mut may_take = true;
        let (attr, was_there, piece) = loop {
            if is_synced && self.is_begun(row.id.target(), object) {
                // Apart from the state of each copy.
                Box::pin(self.unite(here, (head, row), member, object, pace)).await?;
            }
            let piece = begin(pace).await;
            match self.same_size(here, (head, to), object).await? {
                SizedCopy::Same(attr, was_there) => break (attr, was_there, piece),
                SizedCopy::Lost if may_take => {
                    drop(piece);
                    if !Box::pin(self.take_lost(here, (head, row), member, object)).await? {
                        return Ok(0);
                    }
                    may_take = false;
                }
                SizedCopy::Absent | SizedCopy::Lost => return Ok(0),
            }
        };
        // A member that has lost all of it has no more than these parts right after it.
        let whole = [Touched::whole(object)];
        let (of, from_to) = ((object, parts), (head, to));
        // Apart from the state of each copy.
        let has_rest = was_there && Box::pin(self.has_rest(here, from_to, of, attr.size)).await?;
        drop(piece);
        let parts = if has_rest { parts } else { &whole[..] };
        let mut given = 0;
        for part in parts {
            let end = part.end.min(attr.size);
            let mut at = part.start.min(end);
            while at < end {
                let stop = end.min((at / PIECE + 1) * PIECE);
                // Before its turn, for which users wait.
                let mut piece = begin(pace).await;
                let turn = self.turn(object, at, stop).await;
                let data = self.read(here, (head, row), object, (at, stop)).await?;
                // Most data needs no other call to the disk.
                let hole = match data.iter().all(|byte| *byte == 0) {
                    true => self.hole(here, (head, row), object, (at, end)).await?,
                    false => at,
                };
                if hole > stop {
                    drop(turn);
                    at = self.give_hole(here, (head, to), object, (at, hole)).await?;
                    continue;
                }
                let data = Some(data).filter(|_| hole < stop);
                let (bytes, reply) = self.give_piece(here, to, object, (at, stop), data).await?;
                if let Some(piece) = &mut piece {
                    piece.answered(&reply);
                }
                drop((turn, piece));
                // Behind it: nobody who changes the object waits for that, and holes cost nothing.
                if let Some(pace) = pace {
                    pace.gave(bytes).await;
                }
                given += bytes;
                at = stop;
            }
        }
        let _piece = begin(pace).await;
        let _turn = self.turn(object, 0, u64::MAX).await;
        if let OstReply::Stat(Some(attr)) =
            self.own_of(here, (head, row), object, OstRequest::Stat { object }, Bulk::None).await?
        {
            let time = OstRequest::SetTime { object, mtime: attr.mtime };
            self.give_to(here, to, time, None).await?;
        }
        if was_there && parts.contains(&Touched::whole(object)) {
            let ended = self.end_mark(here, to, object).await;
            ended.map_err(|errno| of_member(member, errno))?;
        }
        Ok(given)
    }

    /// Gives the object in another member the size that it has in the head.
    async fn same_size<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, to): (u16, (u16, &Chain)),
        object: ObjectId,
    ) -> Result<SizedCopy, CopyError> {
        let _turn = self.turn(object, 0, u64::MAX).await;
        let stat = OstRequest::Stat { object };
        let OstReply::Stat(own) = self.own_of(here, (head, to.1), object, stat, Bulk::None).await?
        else {
            return Err(CopyError::Own { ost: head, object, errno: Errno::EPROTO });
        };
        let OstReply::Stat(its) = self.give_to(here, to, stat, None).await? else {
            return Err(CopyError::Member { ost: to.0, errno: Errno::EPROTO });
        };
        match (own, its) {
            (Some(own), its) if its.is_none_or(|its| its.size != own.size) => {
                if let Some(its) = its.filter(|its| its.size > own.size) {
                    self.unless_cut_here(here, (head, to), object, its.size).await?;
                }
                let truncate = OstRequest::Truncate { object, size: own.size };
                self.give_to(here, to, truncate, None).await?;
            }
            (None, Some(its)) => {
                self.unless_lost_here(here, (head, to), object, its.size).await?;
                if self.may_be_lost_alone(to, object, its.size).await? {
                    return Ok(SizedCopy::Lost);
                }
                self.remove_from(here, to, object).await?;
            }
            _ => {}
        }
        Ok(own.map_or(SizedCopy::Absent, |own| SizedCopy::Same(own, its.is_some())))
    }

    /// Removes an object that the head does not have: it was removed here, or a change that failed
    /// has made it there. Not if the head has lost its own
    /// ([`unless_lost_here`](Replication::unless_lost_here),
    /// [`may_be_lost_alone`](Replication::may_be_lost_alone)).
    pub(super) async fn remove_from<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, row): (u16, &Chain),
        object: ObjectId,
    ) -> Result<(), CopyError> {
        let removed = match here.index(ost) {
            Some(_) => self.remove_own(here, (ost, row), object).await,
            None => {
                let chain = ChainVersion { target: row.id.target(), version: row.version };
                let remove = PeerRequest::Remove { chain, ost, object };
                self.ask_member(here, chain, ost, remove).await.map(drop)
            }
        };
        removed.map_err(|errno| of_member(ost, errno))
    }

    /// Returns the end of the hole at `at`, at most `end`; `at` itself if there is data.
    pub(super) async fn hole<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        object: ObjectId,
        (at, end): (u64, u64),
    ) -> Result<u64, CopyError> {
        let seek = OstRequest::Seek { object, offset: at, hole: false };
        match self.own_of(here, (head, row), object, seek, Bulk::None).await? {
            OstReply::Offset(data) => Ok(data.unwrap_or(end).min(end)),
            _ => Err(CopyError::Own { ost: head, object, errno: Errno::EPROTO }),
        }
    }

    /// Gives a hole in one request, of any length. Returns its end as it is in the turn of its range:
    /// `at` if there is data by now.
    async fn give_hole<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, to): (u16, (u16, &Chain)),
        object: ObjectId,
        (at, end): (u64, u64),
    ) -> Result<u64, CopyError> {
        let _turn = self.turn(object, at, end).await;
        let end = self.hole(here, (head, to.1), object, (at, end)).await?;
        if end > at {
            let (mode, len) = (PUNCH_HOLE, end - at);
            let punch = OstRequest::Fallocate { object, mode, offset: at, len };
            self.give_to(here, to, punch, None).await?;
        }
        Ok(end)
    }

    /// Reads a part of an object in the head. Returns what there is of it.
    async fn read<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        object: ObjectId,
        (offset, end): (u64, u64),
    ) -> Result<Vec<u8>, CopyError> {
        // A new one for each piece: the connection keeps it.
        let mut data = vec![0; (end - offset) as usize];
        let read = OstRequest::Read { object, offset, len: data.len() as u32 };
        match self.own_of(here, (head, row), object, read, Bulk::In(&mut data)).await? {
            OstReply::Data(len) => data.truncate(len as usize),
            _ => return Err(CopyError::Own { ost: head, object, errno: Errno::EPROTO }),
        }
        Ok(data)
    }

    /// Gives one piece, in its turn: data, or else a hole. Returns the bytes of data, and the
    /// answer.
    async fn give_piece<D: Disk>(
        &self,
        here: Here<'_, D>,
        to: (u16, &Chain),
        object: ObjectId,
        (at, stop): (u64, u64),
        data: Option<Vec<u8>>,
    ) -> Result<(u64, OstReply), CopyError> {
        let Some(data) = data else {
            let hole =
                OstRequest::Fallocate { object, mode: PUNCH_HOLE, offset: at, len: stop - at };
            return self.give_to(here, to, hole, None).await.map(|reply| (0, reply));
        };
        if data.is_empty() {
            return Ok((0, OstReply::Done));
        }
        let (bytes, data) = (data.len() as u64, Arc::new(data));
        let write = OstRequest::Write { object, offset: at, mtime: None, kept: false };
        self.give_to(here, to, write, Some(&data)).await.map(|reply| (bytes, reply))
    }

    /// Reads an object of the own member, or asks about it.
    pub(super) async fn own_of<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, row): (u16, &Chain),
        object: ObjectId,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Result<OstReply, CopyError> {
        let answered = self.own(here, (ost, row), request, bulk).await;
        answered.map_err(|errno| of_own(ost, object, errno))
    }

    /// Has the own member make a part of an older change, which only others have made.
    pub(super) async fn give_own<D: Disk>(
        &self,
        here: Here<'_, D>,
        own: (u16, &Chain),
        object: ObjectId,
        request: OstRequest,
        data: Option<&Arc<Vec<u8>>>,
    ) -> Result<OstReply, CopyError> {
        let given = self.give(here, own, request, data).await;
        given.map_err(|errno| of_own(own.0, object, errno))
    }

    pub(super) async fn give_to<D: Disk>(
        &self,
        here: Here<'_, D>,
        to: (u16, &Chain),
        request: OstRequest,
        data: Option<&Arc<Vec<u8>>>,
    ) -> Result<OstReply, CopyError> {
        self.give(here, to, request, data).await.map_err(|errno| of_member(to.0, errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::tests::{Server, Still};
    use crate::replication::{Asked, Peers};
    use futures_lite::future::block_on;
    use glint_net::host;
    use glint_proto::chain::{
        ChainId, Destination, Forward, Member, MemberEvent, MemberState, PeerReply,
    };
    use glint_proto::oss::ObjectPage;
    use glint_proto::{ClientId, Ino, Layout};
    use parking_lot::Mutex;
    use std::rc::Rc;

    /// Another server, which takes everything and remembers what it was given.
    #[derive(Default)]
    struct Other(Mutex<Vec<OstRequest>>);

    impl Peers for Other {
        fn forward<'a>(
            &'a self,
            _: Destination,
            _: Forward,
            request: OstRequest,
            _: Bulk<'a>,
        ) -> Asked<'a, OstReply> {
            self.0.lock().push(request);
            let reply = match request {
                OstRequest::Stat { .. } => OstReply::Stat(None),
                _ => OstReply::Done,
            };
            Box::pin(std::future::ready(Ok(reply)))
        }

        fn ask(&self, _: u16, _: PeerRequest) -> Asked<'_, PeerReply> {
            Box::pin(std::future::ready(Err(Errno::EIO)))
        }

        fn keep(&self) -> Asked<'_, ()> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn objects(&self, _: u16, _: ObjectId) -> Asked<'_, ObjectPage> {
            Box::pin(std::future::ready(Err(Errno::EIO)))
        }

        fn layout(&self, _: Ino) -> Asked<'_, Option<Layout>> {
            Box::pin(std::future::ready(Err(Errno::EIO)))
        }

        fn tell(&self, _: ChainVersion, _: u16, _: MemberEvent) -> Asked<'_, Chain> {
            Box::pin(std::future::ready(Err(Errno::EIO)))
        }
    }

    #[test]
    fn a_hole_is_copied_in_one_request_however_long_it_is() {
        const END: u64 = 1 << 40;
        let server = Server::new();
        let (replication, osts) = (&server.replication, &server.osts);
        let other = Arc::new(Other::default());
        replication.set_peers(Some(other.clone()));
        let here = Here { osts, first: 0 };
        let member = |(ost, state)| Member { ost, state };
        let row = Chain {
            id: ChainId { copies: 2, index: 0 },
            version: 1,
            members: [(0, MemberState::Serving), (1, MemberState::Syncing)].map(member).to_vec(),
            founders: vec![0, 1],
            intact_since: 0,
        };
        replication.adopt(here, &row);
        let object = ObjectId { ino: Ino(7), stripe: 0 };
        host::simulate(Some(Rc::new(Still)));
        for offset in [0, END] {
            let write = OstRequest::Write { object, offset, mtime: None, kept: false };
            let written = osts.handle(ClientId::IN_PROCESS, 0, write, Bulk::Out(b"data"));
            block_on(written).reply.unwrap();
        }
        let whole = Touched { object, start: 0, end: u64::MAX };
        block_on(replication.copy(here, (0, &row), 1, (object, &[whole]), None)).unwrap();
        host::simulate(None);
        let given = other.0.lock();
        let (data, hole) = (PIECE, END - PIECE);
        assert!(
            matches!(
                given[..],
                [
                    OstRequest::Stat { .. },
                    OstRequest::Truncate { .. },
                    OstRequest::Write { offset: 0, .. },
                    OstRequest::Fallocate { mode: PUNCH_HOLE, offset, len, .. },
                    OstRequest::Write { offset: END, .. },
                    OstRequest::SetTime { .. },
                ] if (offset, len) == (data, hole)
            ),
            "{} requests, first {:?}",
            given.len(),
            &given[..given.len().min(8)]
        );
    }
}

//! Requests for data of chains: as the head, as another member, as one that is only read.
//!
//! Invariant: while a change is under way its range is nobody else's turn at the head, and it is
//! noted as recent at every member before it is made there.

use super::rows::Entered;
use super::{Here, PATIENCE, PATIENCE_WITH_DISKS, Replication, within};
use futures_util::future::{join, join_all};
use glint_ost::disk::Disk;
use glint_proto::chain::{
    Chain, ChainVersion, Destination, Forward, MemberEvent, MemberState, PeerReply, PeerRequest,
    Touched,
};
use glint_proto::{
    Answer, Bulk, ClientId, Errno, Extents, FsResult, ObjectId, OstReply, OstRequest,
};

/// How often a member that does not know the row is told it before the request is tried anew.
const TELLINGS: usize = 3;

/// Outcome of one attempt to make a change by one row.
enum Attempt {
    Done(Answer<OstReply>),
    /// The chain is another one now.
    Again,
}

/// Bulk that is given to several members.
#[derive(Clone, Copy)]
struct Data<'a>(Option<&'a [u8]>);

impl<'a> Data<'a> {
    fn bulk(self) -> Bulk<'a> {
        self.0.map_or(Bulk::None, Bulk::Out)
    }
}

/// Part of its object that a request changes; `None` if it changes none.
fn touched(request: &OstRequest, data: Data<'_>) -> FsResult<Option<Touched>> {
    let data = data.0.unwrap_or_default();
    let (object, start, end) = match *request {
        OstRequest::Write { object, offset, .. } => (object, offset, offset + data.len() as u64),
        OstRequest::WriteExtents { object, count, .. } => {
            let extents = Extents::parse(data, count)?;
            let range = |(start, end): (u64, u64), (offset, data): (u64, &[u8])| {
                (start.min(offset), end.max(offset + data.len() as u64))
            };
            let (start, end) = extents.fold((u64::MAX, 0), range);
            (object, start, end)
        }
        OstRequest::Truncate { object, size } => (object, size, u64::MAX),
        OstRequest::Fallocate { object, offset, .. } => (object, offset, u64::MAX),
        OstRequest::SetTime { object, .. } => (object, u64::MAX, 0),
        _ => return Ok(None),
    };
    Ok(Some(Touched { object, start, end }))
}

/// Range whose turn a change needs.
fn range_of(request: &OstRequest, touched: &Touched) -> (u64, u64) {
    match request.is_write() {
        true => (touched.start, touched.end),
        // Sizes and times are of the whole object.
        false => (0, u64::MAX),
    }
}

impl Replication {
    /// Executes a request of a client for a chain.
    pub(crate) async fn execute<D: Disk>(
        &self,
        here: Here<'_, D>,
        client: ClientId,
        to: Destination,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        let (Some(chain), Some(index)) = (to.chain, here.index(to.ost)) else {
            return Answer::unchanged(Err(Errno::ENXIO));
        };
        let is_ordered = request.is_modifying()
            || matches!(request, OstRequest::Sync { .. } | OstRequest::GrantSpace { .. });
        if !is_ordered {
            return match self.is_read_here(to.ost, chain) {
                Ok(_entered) => here.osts.handle(client, index, request, bulk).await,
                Err(errno) => Answer::unchanged(Err(errno)),
            };
        }
        let data = match bulk.borrowed() {
            Bulk::Out(data) => Data(Some(data)),
            _ => Data(None),
        };
        self.order(here, client, to.ost, chain, request, data)
            .await
            .unwrap_or_else(|errno| Answer::unchanged(Err(errno)))
    }

    /// Enters for a read of a member: EREMCHG if it may not be read.
    fn is_read_here(&self, ost: u16, chain: ChainVersion) -> FsResult<Entered> {
        let entered = self.rows.enter(chain)?;
        let serves = entered.row.state_of(ost) == Some(MemberState::Serving);
        (serves && entered.is_active && self.is_leased()).then_some(entered).ok_or(Errno::EREMCHG)
    }

    /// Has a change made by all members, as the head.
    async fn order<D: Disk>(
        &self,
        here: Here<'_, D>,
        client: ClientId,
        ost: u16,
        chain: ChainVersion,
        request: OstRequest,
        data: Data<'_>,
    ) -> FsResult<Answer<OstReply>> {
        let touched = touched(&request, data)?;
        let _turn = match &touched {
            Some(touched) => {
                let (start, end) = range_of(&request, touched);
                Some(self.turns.take(touched.object, start, end).await)
            }
            None => None,
        };
        let mut entered = self.rows.enter(chain)?;
        loop {
            if entered.row.head() != Some(ost) || !entered.is_active {
                return Err(Errno::EREMCHG);
            }
            match self.attempt(here, client, ost, &entered, (request, data, touched)).await? {
                Attempt::Done(answer) => return Ok(answer),
                Attempt::Again => {
                    let before = entered.row.version;
                    drop(entered);
                    // The change is made once more, by the new row: it brings the same bytes.
                    entered = self.rows.enter_newest(chain.target)?;
                    if entered.row.version == before {
                        // The client waits for another row.
                        return Err(Errno::EREMCHG);
                    }
                }
            }
        }
    }

    /// Makes a change by one row.
    async fn attempt<D: Disk>(
        &self,
        here: Here<'_, D>,
        client: ClientId,
        ost: u16,
        entered: &Entered,
        (request, data, touched): (OstRequest, Data<'_>, Option<Touched>),
    ) -> FsResult<Attempt> {
        let (row, version) = (&entered.row, entered.version());
        let index = here.index(ost).ok_or(Errno::ENXIO)?;
        let (sequence, stable) = self.rows.begin(version.target, here.osts.next_change());
        let _ends = Ends { replication: self, target: version.target, sequence };
        if let Some(touched) = touched {
            self.recent.touch((version.target, 0), touched, (version.version, sequence))?;
        }
        let forward = Forward { sequence, stable };
        let others: Vec<u16> = row.written().filter(|member| *member != ost).collect();
        let forwards = others
            .iter()
            .map(|member| self.forward(here, client, (*member, row), forward, request, data));
        if matches!(request, OstRequest::Sync { .. }) {
            self.recent.sync().await?;
        }
        let own = here.osts.handle(client, index, request, data.bulk());
        let (own, made) = join(own, join_all(forwards)).await;
        if let Err(errno) = own.reply {
            let may_have_it: Vec<u16> = others
                .iter()
                .zip(&made)
                .filter(|(_, made)| **made != Err(errno))
                .map(|(member, _)| *member)
                .collect();
            if may_have_it.is_empty() {
                return Ok(Attempt::Done(own));
            }
            if row.readable().any(|member| member != ost) {
                self.is_lost(here, version, ost, errno).await?;
                return Ok(Attempt::Again);
            }
            // Members that may have it are synced, and get what is here again.
            for member in &may_have_it {
                if let Some(touched) = touched {
                    self.pending.touch((version.target, *member), touched, (0, 0))?;
                }
                self.is_lost(here, version, *member, errno).await?;
            }
            let now = self.rows.get(version.target).ok_or(Errno::EREMCHG)?;
            return match now.readable().all(|member| member == ost) {
                true => Ok(Attempt::Done(own)),
                false => Ok(Attempt::Again),
            };
        }
        if made.contains(&Err(Errno::EREMCHG)) {
            return Ok(Attempt::Again);
        }
        for (member, made) in others.iter().zip(&made) {
            if let Err(errno) = made {
                self.is_lost(here, version, *member, *errno).await?;
            }
        }
        let now = self.rows.get(version.target).ok_or(Errno::EREMCHG)?;
        let has_it = |member: u16| {
            let made = others.iter().zip(&made).find(|(other, _)| **other == member);
            member == ost || made.is_some_and(|(_, made)| made.is_ok())
        };
        if now.head() != Some(ost) || !now.written().all(has_it) {
            return Ok(Attempt::Again);
        }
        self.note_pending(&now, touched).await?;
        let reply = match own.reply {
            Ok(OstReply::SpaceGranted { bytes, object_bytes_max }) => {
                let least = made.iter().flatten().filter_map(|reply| match reply {
                    OstReply::SpaceGranted { bytes, .. } => Some(*bytes),
                    _ => None,
                });
                let bytes = least.min().map_or(bytes, |least| least.min(bytes));
                Ok(OstReply::SpaceGranted { bytes, object_bytes_max })
            }
            reply => reply,
        };
        Ok(Attempt::Done(Answer { reply, ..own }))
    }

    /// Notes, durably, that the absent members of a chain lack a change.
    async fn note_pending(&self, row: &Chain, touched: Option<Touched>) -> FsResult<()> {
        let Some(touched) = touched else { return Ok(()) };
        let mut is_one = false;
        for absent in row.missing() {
            self.pending.touch((row.id.target(), absent), touched, (0, 0))?;
            is_one = true;
        }
        if is_one { self.pending.sync().await } else { Ok(()) }
    }

    /// Has a member make a change: EREMCHG if there is another row.
    async fn forward<D: Disk>(
        &self,
        here: Here<'_, D>,
        client: ClientId,
        (member, row): (u16, &Chain),
        forward: Forward,
        request: OstRequest,
        data: Data<'_>,
    ) -> FsResult<OstReply> {
        if let Some(index) = here.index(member) {
            return here.osts.handle(client, index, request, data.bulk()).await.reply;
        }
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        let to = Destination { ost: member, chain: Some(chain) };
        let patience = match request {
            OstRequest::Sync { .. } => PATIENCE_WITH_DISKS,
            _ => PATIENCE,
        };
        let made = async {
            for _ in 0..TELLINGS {
                let peers = self.peers()?;
                match peers.forward(to, forward, request, data.bulk()).await {
                    Err(Errno::EREMCHG) => {}
                    made => return made,
                }
                let PeerReply::Row(known) =
                    peers.ask(member, PeerRequest::Adopt(row.clone())).await?
                else {
                    return Err(Errno::EPROTO);
                };
                if known.version > row.version {
                    self.adopt(here, &known);
                    return Err(Errno::EREMCHG);
                }
            }
            Err(Errno::EPROTO)
        };
        let changed = async {
            self.rows.until_newer(chain).await;
            Err(Errno::EREMCHG)
        };
        within(patience, futures_lite::future::or(made, changed)).await
    }

    /// Has the MDS take a member out of its chain.
    pub(super) async fn is_lost<D: Disk>(
        &self,
        here: Here<'_, D>,
        chain: ChainVersion,
        member: u16,
        why: Errno,
    ) -> FsResult<()> {
        tracing::warn!(
            ost = member, target = chain.target, errno = %why,
            "a member of a chain cannot do what it should; it is taken out"
        );
        let told = self.peers()?.tell(chain, member, MemberEvent::Lost).await;
        let row = told.map_err(|_| Errno::EREMCHG)?;
        self.adopt(here, &row);
        Ok(())
    }

    /// Makes a change that the head of a chain has ordered.
    pub(crate) async fn execute_forward<D: Disk>(
        &self,
        here: Here<'_, D>,
        client: ClientId,
        to: Destination,
        forward: Forward,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        match self.follow(here, client, to, forward, request, bulk).await {
            Ok(answer) => answer,
            Err(errno) => Answer::unchanged(Err(errno)),
        }
    }

    async fn follow<D: Disk>(
        &self,
        here: Here<'_, D>,
        client: ClientId,
        to: Destination,
        forward: Forward,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> FsResult<Answer<OstReply>> {
        let (Some(chain), Some(index)) = (to.chain, here.index(to.ost)) else {
            return Err(Errno::ENXIO);
        };
        let entered = self.rows.enter(chain)?;
        if !entered.row.written().any(|member| member == to.ost) {
            return Err(Errno::EREMCHG);
        }
        let data = match bulk.borrowed() {
            Bulk::Out(data) => Data(Some(data)),
            Bulk::In(room) => {
                return Ok(here.osts.handle(client, index, request, Bulk::In(room)).await);
            }
            _ => Data(None),
        };
        let mut touched = touched(&request, data)?;
        if forward.sequence > 0 {
            // The head orders changes only when the copies are equal.
            self.rows.activate(chain);
            self.is_stable(chain, forward.stable);
            if let Some(touched) = touched {
                let tag = (chain.version, forward.sequence);
                self.recent.touch((chain.target, 0), touched, tag)?;
            }
        } else {
            touched = None;
        }
        if matches!(request, OstRequest::Sync { .. }) {
            self.recent.sync().await?;
        }
        let answer = here.osts.handle(client, index, request, data.bulk()).await;
        if answer.reply.is_ok() {
            self.note_pending(&entered.row, touched).await?;
        }
        Ok(answer)
    }

    /// Reads an object of a member here, or asks about it.
    pub(super) async fn own<D: Disk>(
        &self,
        here: Here<'_, D>,
        ost: u16,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> FsResult<OstReply> {
        let index = here.index(ost).ok_or(Errno::ENXIO)?;
        here.osts.handle(ClientId::IN_PROCESS, index, request, bulk).await.reply
    }

    /// Has a member make a part of an older change, which it lacks.
    pub(super) async fn give<D: Disk>(
        &self,
        here: Here<'_, D>,
        to: (u16, &Chain),
        request: OstRequest,
        data: Option<&[u8]>,
    ) -> FsResult<OstReply> {
        let forward = Forward { sequence: 0, stable: 0 };
        self.forward(here, ClientId::IN_PROCESS, to, forward, request, Data(data)).await
    }

    /// Waits for the turn of a range of an object.
    pub(super) async fn turn(
        &self,
        object: ObjectId,
        start: u64,
        end: u64,
    ) -> super::ranges::RangeTurn<'_> {
        self.turns.take(object, start, end).await
    }
}

/// A change is over, however it ends.
struct Ends<'a> {
    replication: &'a Replication,
    target: u16,
    sequence: u64,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.replication.rows.end(self.target, self.sequence);
    }
}

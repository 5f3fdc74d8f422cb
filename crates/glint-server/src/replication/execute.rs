//! Requests for data of chains: to the head ([`super::order`]), to another member, to one that is
//! only read.
//!
//! Invariants:
//! - A change is noted as recent at a member before it is made there.
//! - A read is answered only by a server that the MDS cannot have given up by then, however long the
//!   disk took.
//! - Watches of objects are those of the head: all changes go through it. They end with the version of
//!   its row.

use super::rows::Entered;
use super::takeover::doubts::Wanted;
use super::{Here, PATIENCE, PATIENCE_WITH_DISKS, Replication, within};
use glint_ost::Apart;
use glint_ost::disk::Disk;
use glint_proto::chain::{
    Chain, ChainVersion, Destination, Forward, MemberState, PeerReply, PeerRequest, Touched,
};
use glint_proto::{Answer, Bulk, ClientId, Errno, FsResult, ObjectId, OstReply, OstRequest};
use glint_telemetry::{Layer, Span};
use std::time::Duration;

/// How often a member that does not know the row is told it before the request is tried anew.
const TELLINGS: usize = 3;

/// Bulk that is given to several members.
#[derive(Clone, Copy)]
pub(super) struct Data<'a>(pub(super) Option<&'a [u8]>);

impl<'a> Data<'a> {
    pub(super) fn bulk(self) -> Bulk<'a> {
        self.0.map_or(Bulk::None, Bulk::Out)
    }
}

/// Range of its object that a request changes; `None` if it changes none. See [`parts`].
pub(super) fn touched(request: &OstRequest, data: Data<'_>) -> FsResult<Option<Touched>> {
    let cover = request.changed(data.0.unwrap_or_default())?.cover();
    let touched = request.object().zip(cover);
    Ok(touched.map(|(object, (start, end))| Touched { object, start, end }))
}

/// Parts of its object that a request changes, of which `touched` is the whole range.
pub(super) fn parts<'a>(
    request: &OstRequest,
    data: Data<'a>,
    touched: Option<Touched>,
) -> impl Iterator<Item = Touched> + Clone + 'a {
    let ranges = touched.and_then(|touched| {
        let ranges = request.changed(data.0.unwrap_or_default()).ok()?;
        Some(ranges.map(move |(start, end)| Touched { start, end, ..touched }))
    });
    ranges.into_iter().flatten()
}

impl Replication {
    /// Executes a request of a client for a chain.
    pub(crate) async fn execute<D: Disk>(
        &self,
        here: Here<'_, D>,
        client: ClientId,
        to: Destination,
        request: OstRequest,
        mut bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        let (Some(chain), Some(index)) = (to.chain, here.index(to.ost)) else {
            return Answer::unchanged(Err(Errno::ENXIO));
        };
        let is_ordered = request.is_modifying()
            || matches!(request, OstRequest::Sync { .. } | OstRequest::GrantSpace { .. });
        if !is_ordered {
            return match self.enter_to_read(here, to.ost, chain, &request).await {
                Ok(entered) => {
                    if let Some(watched) = here.osts.answer_watch(Some(chain), &request) {
                        let is_head = entered.row.head() == Some(to.ost) && self.is_leased();
                        return Answer::unchanged(watched.and_then(|reply| match is_head {
                            true => Ok(reply),
                            false => Err(Errno::EREMCHG),
                        }));
                    }
                    let (room, apart) = (bulk.lend(), Apart::default());
                    let read = here.osts.handle_apart(client, index, request, room, apart);
                    let read = self.unless_slow(here, chain, &entered.row, to.ost, &request, read);
                    let read = async { Ok(read.await) };
                    let answer = match self.unless_out((chain.target, to.ost), read).await {
                        Ok(answer) => answer,
                        Err(errno) => return Answer::unchanged(Err(errno)),
                    };
                    drop(entered);
                    // While the disk made it wait, others may have gone on without this server.
                    if !self.is_leased() {
                        return Answer::unchanged(Err(Errno::EREMCHG));
                    }
                    self.unless_damaged(here, (to.ost, chain), request, bulk, answer).await
                }
                Err(errno) => Answer::unchanged(Err(errno)),
            };
        }
        let _span = Span::start(Layer::Handler, request.op() as u8);
        let data = match bulk.borrowed() {
            Bulk::Out(data) => Data(Some(data)),
            _ => Data(None),
        };
        self.order(here, client, to.ost, chain, request, data)
            .await
            .unwrap_or_else(|errno| Answer::unchanged(Err(errno)))
    }

    /// Enters for a read of a member, once nothing of what is read is in doubt: EREMCHG if it may not
    /// be read.
    async fn enter_to_read<D: Disk>(
        &self,
        here: Here<'_, D>,
        ost: u16,
        chain: ChainVersion,
        request: &OstRequest,
    ) -> FsResult<Entered> {
        loop {
            let entered = self.is_read_here(ost, chain)?;
            let in_doubt = |wanted: &Wanted| self.doubts.of(chain.target, *wanted).is_some();
            let Some(wanted) = Wanted::of(request).filter(in_doubt) else { return Ok(entered) };
            drop(entered);
            // Apart from the state of each read: it is rare, and has much.
            Box::pin(self.until_decided(here, chain, wanted)).await?;
        }
    }

    /// Enters for a read of a member: EREMCHG if it may not be read.
    fn is_read_here(&self, ost: u16, chain: ChainVersion) -> FsResult<Entered> {
        let entered = self.rows.enter(chain)?;
        let serves = entered.row.state_of(ost) == Some(MemberState::Serving);
        (serves && entered.is_active && self.is_leased()).then_some(entered).ok_or(Errno::EREMCHG)
    }

    /// Has a member make a change: EREMCHG if there is another row.
    pub(super) async fn forward<D: Disk>(
        &self,
        here: Here<'_, D>,
        client: ClientId,
        (member, row): (u16, &Chain),
        forward: Forward,
        request: OstRequest,
        data: Data<'_>,
    ) -> FsResult<OstReply> {
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        let to = Destination { ost: member, chain: Some(chain) };
        let made = async {
            if here.index(member).is_some() {
                let _entered = self.rows.enter(chain)?;
                return self
                    .at_member(here, client, (member, row), request, data.bulk())
                    .await
                    .reply;
            }
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
        within(patience(&request), self.unless_newer(chain, made)).await
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
        let _span = Span::start(Layer::Handler, request.op() as u8);
        let target = to.chain.map_or(0, |chain| chain.target);
        let followed = self.follow(here, client, to, forward, request, bulk);
        match self.unless_out((target, to.ost), followed).await {
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
        let chain = to.chain.ok_or(Errno::ENXIO)?;
        let entered = self.rows.enter(chain)?;
        let member = (to.ost, &*entered.row);
        if self.is_given_up(here, member) {
            return Err(Errno::ETIMEDOUT);
        }
        if !entered.row.written().any(|member| member == to.ost) {
            return Err(Errno::EREMCHG);
        }
        let data = match bulk.borrowed() {
            Bulk::Out(data) => Data(Some(data)),
            Bulk::In(room) => {
                return Ok(self.at_member(here, client, member, request, Bulk::In(room)).await);
            }
            _ => Data(None),
        };
        let mut touched = touched(&request, data)?;
        if forward.sequence > 0 {
            // The head orders changes only when it has taken over: what may differ in copies is in doubt
            // here by then.
            self.rows.activate(chain);
            self.learn_stable(here, chain, forward.stable);
            let tag = (chain.version, forward.sequence);
            let parts = parts(&request, data, touched);
            self.recent.note_for_request((chain.target, 0), parts, tag);
        } else {
            touched = None;
        }
        if matches!(request, OstRequest::Sync { .. }) {
            self.recent.sync_for_request().await?;
            // Of what the head has found to be in doubt.
            self.pending.sync_for_request().await?;
        }
        let answer = self.at_member(here, client, member, request, data.bulk()).await;
        // A part of a change that fails may be made.
        self.note_pending(&entered.row, parts(&request, data, touched)).await?;
        Ok(answer)
    }

    /// Reads an object of a member here, or asks about it: EREMCHG if there is a newer row, as there
    /// is when that takes too long and another member serves.
    pub(super) async fn own<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, row): (u16, &Chain),
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> FsResult<OstReply> {
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        let index = here.index(ost).ok_or(Errno::ENXIO)?;
        let client = ClientId::IN_PROCESS;
        // Heal, or a comparison, must not push out what clients read.
        let apart = Apart { adds_none: true, ..Apart::default() };
        let own = here.osts.handle_apart(client, index, request, bulk, apart);
        let own = self.unless_slow(here, chain, row, ost, &request, own);
        self.unless_newer(chain, async { own.await.reply }).await
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
    ) -> super::order::ranges::RangeTurn<'_> {
        self.turns.take(object, start, end).await
    }
}

/// How long a member may take.
pub(super) fn patience(request: &OstRequest) -> Duration {
    match request {
        OstRequest::Sync { .. } => PATIENCE_WITH_DISKS,
        _ => PATIENCE,
    }
}

//! Requests of clients for data of chains: changes go to [`super::order`], others are answered here.
//!
//! Invariants:
//! - A read is answered only by a server that the MDS cannot have given up by then, however long the
//!   disk took.
//! - Watches of objects are those of the head: all changes go through it. They end with the version of
//!   its row.

use super::order::changed::Data;
use super::rows::Entered;
use super::takeover::doubts::Wanted;
use super::{Here, Replication};
use glint_ost::Apart;
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion, Destination, MemberState};
use glint_proto::{Answer, Bulk, ClientId, Errno, FsResult, OstReply, OstRequest};
use glint_telemetry::{Counter, Layer, Span};
use std::sync::Arc;

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
                    let (at, room) = ((to.ost, chain), bulk.lend());
                    let answer = self.unless_absent(here, at, request, room, answer).await;
                    self.unless_damaged(here, at, request, bulk, answer).await
                }
                Err(errno) => Answer::unchanged(Err(errno)),
            };
        }
        let _span = Span::start(Layer::Handler, request.op() as u8);
        // One copy for the disk here and for the connections to all other members, which keep it
        // until they have it on stable storage.
        let shared = match &bulk {
            Bulk::Shared(data) => Some(Arc::clone(data)),
            Bulk::Out(data) => {
                glint_telemetry::count(Counter::BytesCopied, data.len() as u64);
                Some(Arc::new(data.to_vec()))
            }
            Bulk::None | Bulk::In(_) | Bulk::Lent(_) => None,
        };
        let data = shared.as_ref().map_or(Data::None, Data::Shared);
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
}

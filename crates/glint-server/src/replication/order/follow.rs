//! A change as a member makes it that is not the head.
//!
//! Invariant: a change is noted as recent before it is made.

use super::changed::{Data, parts, touched};
use super::forward::told;
use crate::replication::{Here, Replication};
use glint_ost::disk::Disk;
use glint_proto::chain::{Destination, Forward};
use glint_proto::{Answer, Bulk, ClientId, Errno, FsResult, OstReply, OstRequest};
use glint_telemetry::{Layer, Span};
use std::sync::atomic::Ordering;

impl Replication {
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
            Bulk::Out(data) => Data::Borrowed(data),
            Bulk::In(room) => {
                return Ok(self.at_member(here, client, member, request, Bulk::In(room)).await);
            }
            _ => Data::None,
        };
        let mut touched = touched(&request, data)?;
        // Others are of heal.
        let _user = (forward.sequence > 0).then(|| self.serves_user());
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
        let numbered = (to.ost, chain, forward.sequence);
        let was_empty = self.lost.forwarded.enter(numbered);
        let served = self.served();
        let made = self.change_at_member(here, client, member, request, data.bulk(), &was_empty);
        let mut answer = made.await;
        if forward.sequence == 0 && request.is_write() && answer.reply.is_ok() {
            answer.reply = Ok(OstReply::Given { beside_users: served.is_any_until(self.served()) });
        }
        // Who is synced may not have been given the object yet, which others have.
        let serves = entered.row.readable().any(|member| member == to.ost);
        let may_begin = serves && entered.row.missing().next().is_some();
        let change = (&request, may_begin && was_empty.load(Ordering::Acquire));
        // A part of a change that fails may be made.
        self.note_pending(&entered.row, change, parts(&request, data, touched)).await?;
        self.lost.forwarded.end(numbered);
        Ok(told(answer, &was_empty, forward))
    }
}

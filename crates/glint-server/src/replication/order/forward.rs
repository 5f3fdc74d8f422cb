//! A change as it goes from the head of a chain to another member. There, [`super::follow`] makes it.

use super::changed::Data;
use crate::replication::{Here, PATIENCE, PATIENCE_WITH_DISKS, Replication, within};
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion, Destination, Forward, PeerReply, PeerRequest};
use glint_proto::{Answer, ClientId, Errno, FsResult, OstReply, OstRequest};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a member that does not know the row is told it before the request is tried anew.
const TELLINGS: usize = 3;

/// How long a member may take.
pub(super) fn patience(request: &OstRequest) -> Duration {
    match request {
        OstRequest::Sync { .. } => PATIENCE_WITH_DISKS,
        _ => PATIENCE,
    }
}

/// The answer of a member to the head, which is told if the object had no bytes before the change.
pub(super) fn told(
    answer: Answer<OstReply>,
    was_empty: &AtomicBool,
    forward: Forward,
) -> Answer<OstReply> {
    let is_told = forward.sequence > 0 && was_empty.load(Ordering::Acquire);
    let reply = answer.reply.map(|reply| if is_told { OstReply::WasEmpty } else { reply });
    Answer { reply, ..answer }
}

impl Replication {
    /// Has a member make a change: EREMCHG if it refuses because there is another row, or is out by
    /// that.
    pub(in crate::replication) async fn forward<D: Disk>(
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
                let (to, was_empty) = ((member, row), Arc::default());
                let made =
                    self.change_at_member(here, client, to, request, data.bulk(), &was_empty);
                return told(made.await, &was_empty, forward).reply;
            }
            for tellings in 0..=TELLINGS {
                let peers = self.peers()?;
                match peers.forward(to, forward, request, data.bulk()).await {
                    Err(Errno::EREMCHG) if tellings < TELLINGS => {}
                    // It has heard of the row each time.
                    Err(Errno::EREMCHG) => break,
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
        let made = async {
            match forward.sequence > 0 && request.is_modifying() {
                // It makes it by this row, and nothing but its answer says what it had before.
                true => self.unless_out((chain.target, member), made).await,
                false => self.unless_newer(chain, made).await,
            }
        };
        within(patience(&request), made).await
    }

    /// Has a member make a part of an older change, which it lacks.
    pub(in crate::replication) async fn give<D: Disk>(
        &self,
        here: Here<'_, D>,
        to: (u16, &Chain),
        request: OstRequest,
        data: Option<&Arc<Vec<u8>>>,
    ) -> FsResult<OstReply> {
        let forward = Forward { sequence: 0, stable: 0 };
        let data = data.map_or(Data::None, Data::Shared);
        self.forward(here, ClientId::IN_PROCESS, to, forward, request, data).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::tests::World;
    use futures_lite::future::block_on;
    use glint_proto::chain::MemberState::Serving;
    use glint_proto::{Ino, ObjectId};

    #[test]
    fn a_member_is_asked_again_after_each_time_that_it_was_told_the_row() {
        let world = World::new(&[Serving, Serving]);
        let request = OstRequest::Stat { object: ObjectId { ino: Ino(7), stripe: 0 } };
        let ask = |early| {
            *world.early.lock() = early;
            let (here, row) = (world.here(0), world.row());
            block_on(world.server(0).give(here, (1, &row), request, None)).err()
        };
        assert_eq!(ask(TELLINGS), None);
        assert_eq!(ask(TELLINGS + 1), Some(Errno::EPROTO));
    }
}

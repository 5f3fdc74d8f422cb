//! Repair of a copy that cannot be read, or is not what its checksum says.
//!
//! Invariants:
//! - No reader gets damaged bytes, nor an error while another member serves.
//! - A damaged object is written anew as a whole, from a member that serves and can read its own:
//!   the damaged member is taken out of the chain first, with the object in the index of the others,
//!   on stable storage. So nothing that happens meanwhile leaves a part of the damage under new
//!   checksums, and no older bytes come over newer ones: both are kept by heal.
//! - The last member that serves is not taken out.

use crate::replication::{Here, Replication};
use glint_ost::disk::Disk;
use glint_proto::chain::{ChainVersion, MemberState, Touched};
use glint_proto::{Answer, Errno, FsResult, ObjectId, OstReply, OstRequest};

/// How often the row may change meanwhile.
const ATTEMPTS: usize = 4;

impl Replication {
    /// Returns the answer to a reader. If the object cannot be read here it is EREMCHG, and the
    /// reader asks another member.
    pub(crate) async fn unless_damaged<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, target): (u16, u16),
        request: OstRequest,
        answer: Answer<OstReply>,
    ) -> Answer<OstReply> {
        match (&answer.reply, request.object()) {
            (Err(Errno::EIO), Some(object)) => match self.repair(here, target, ost, object).await {
                Ok(()) => Answer::unchanged(Err(Errno::EREMCHG)),
                Err(Errno::EREMCHG) => Answer::unchanged(Err(Errno::EREMCHG)),
                Err(_) => answer,
            },
            _ => answer,
        }
    }

    /// Has a member here with a damaged object taken out of the chain, to get the object from
    /// another member. EIO if no other serves.
    pub(crate) async fn repair<D: Disk>(
        &self,
        here: Here<'_, D>,
        target: u16,
        ost: u16,
        object: ObjectId,
    ) -> FsResult<()> {
        let whole = Touched::whole(object);
        for _ in 0..ATTEMPTS {
            let row = self.rows.get(target).ok_or(Errno::EREMCHG)?;
            let state = row.state_of(ost).ok_or(Errno::ENXIO)?;
            if row.readable().all(|member| member == ost) {
                return Err(Errno::EIO);
            }
            // Heal may forget the object, which it has copied before in part; it is over soon.
            if state == MemberState::Syncing {
                return Err(Errno::EREMCHG);
            }
            match self.tell_pending(here, &row, ost, &[whole]).await {
                // The member is out already, and gets the object before it serves again.
                Ok(()) if state != MemberState::Serving => return Ok(()),
                Ok(()) => {}
                Err(Errno::EREMCHG) => continue,
                // A member that does not answer is taken out soon.
                Err(_) => return Err(Errno::EREMCHG),
            }
            tracing::error!(
                %object, ost, chain = %row.id,
                "a copy cannot be read, or does not match its checksums; it is written anew from \
                 another one"
            );
            let chain = ChainVersion { target, version: row.version };
            self.take_out(here, chain, ost, Errno::EIO).await?;
        }
        Err(Errno::EREMCHG)
    }
}

//! Repair of a copy that cannot be read, or is not what its checksum says.
//!
//! Invariants:
//! - No reader gets damaged bytes, nor an error while another member serves.
//! - A damaged object is written anew as a whole, from a member that serves and can read its own:
//!   the damaged member is taken out of the chain first, with the object in the index of the others,
//!   on stable storage. So nothing that happens meanwhile leaves a part of the damage under new
//!   checksums, and no older bytes come over newer ones: both are kept by heal.
//! - The last member that serves is not taken out, nor one with damage that no other can put right.

use crate::replication::{Here, Replication};
use glint_ost::disk::Disk;
use glint_proto::chain::{ChainVersion, MemberState, Touched};
use glint_proto::{Answer, Bulk, Errno, FsResult, ObjectId, OstReply, OstRequest};

/// What is wrong with an object of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyFault {
    /// Somebody reads these bytes, and gets an error.
    Read { offset: u64, len: u32 },
    /// Some of it cannot be read, for which nobody waits.
    Damaged,
    /// It is not there, or its end is not, which another member has.
    Lacks,
}

/// How often the row may change meanwhile.
const ATTEMPTS: usize = 4;

impl Replication {
    /// Returns the answer to a reader. If the object cannot be read here it is EREMCHG, and the
    /// reader asks another member.
    pub(crate) async fn unless_damaged<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, chain): (u16, ChainVersion),
        request: OstRequest,
        bulk: Bulk<'_>,
        answer: Answer<OstReply>,
    ) -> Answer<OstReply> {
        match (&answer.reply, request.object()) {
            // Apart from the state of each read.
            (Err(Errno::EIO), Some(object)) => {
                let asked = (request, bulk);
                let answer = self.answer_of_damaged(here, (ost, chain), object, asked, answer);
                Box::pin(answer).await
            }
            _ => answer,
        }
    }

    /// Answers who reads an object that cannot be read here: from another member if it is marked, else
    /// it is repaired.
    async fn answer_of_damaged<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, chain): (u16, ChainVersion),
        object: ObjectId,
        (request, bulk): (OstRequest, Bulk<'_>),
        answer: Answer<OstReply>,
    ) -> Answer<OstReply> {
        if self.is_marked(here, ost, object).await {
            let read = self.read_elsewhere(here, (ost, chain), request, bulk).await;
            return Answer::unchanged(read);
        }
        let (offset, len) = match request {
            OstRequest::Read { offset, len, .. } => (offset, len),
            OstRequest::Seek { offset, .. } => (offset, 1),
            _ => (0, 1),
        };
        let fault = CopyFault::Read { offset, len };
        match self.repair(here, chain.target, (ost, object), fault).await {
            Ok(()) | Err(Errno::EREMCHG) => Answer::unchanged(Err(Errno::EREMCHG)),
            Err(_) => answer,
        }
    }

    /// An object of a member here is damaged, or not there: has the member taken out of the chain, to
    /// get the object from another one. EIO if there is none, EBADMSG if none of them can read it.
    pub(crate) async fn repair<D: Disk>(
        &self,
        here: Here<'_, D>,
        target: u16,
        (ost, object): (u16, ObjectId),
        fault: CopyFault,
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
            // Who reads waits for no more than the same read of other copies.
            let range = match fault {
                CopyFault::Read { offset, len } => Some((offset, len)),
                CopyFault::Damaged | CopyFault::Lacks => None,
            };
            if fault != CopyFault::Lacks
                && state == MemberState::Serving
                && !self.may_be_read(here, &row, (ost, object), range).await
            {
                return Err(Errno::EBADMSG);
            }
            match self.tell_pending(here, &row, ost, &[whole]).await {
                // The member is out already, and gets the object before it serves again.
                Ok(()) if state != MemberState::Serving => return Ok(()),
                Ok(()) => {}
                Err(Errno::EREMCHG) => continue,
                // A member that does not answer is taken out soon.
                Err(_) => return Err(Errno::EREMCHG),
            }
            match fault {
                CopyFault::Read { .. } | CopyFault::Damaged => tracing::error!(
                    %object, ost, chain = %row.id,
                    "a copy cannot be read, or does not match its checksums; it is written anew from \
                     another one"
                ),
                CopyFault::Lacks => tracing::warn!(
                    %object, ost, chain = %row.id,
                    "an object, or its end, is not there that another member has; it is copied from \
                     that one"
                ),
            }
            let chain = ChainVersion { target, version: row.version };
            let why = if fault == CopyFault::Lacks { Errno::ENOENT } else { Errno::EIO };
            self.take_out(here, chain, ost, why).await?;
        }
        Err(Errno::EREMCHG)
    }
}

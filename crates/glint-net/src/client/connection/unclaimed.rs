//! Locks and opens in answers that nobody waits for any more, because their call was dropped.
//!
//! Invariant: whatever a server counts for this client somebody here knows of, or it is given back:
//! locks as if they were recalled, an open by a close.

use crate::client::connection::Connection;
use crate::client::opens::OpenedFile;
use crate::client::recovery::frames::parse;
use glint_proto::lock::{Bits, Grant, Recall};
use glint_proto::message::{Reply, Request};
use glint_proto::{Cred, FsResult, MdsReply, MdsRequest};
use std::rc::Rc;

/// The recalls that would end what came with the answer to a request.
fn recalls_of(frame: &[u8], reply: &FsResult<MdsReply>, grants: &[Grant]) -> Vec<Recall> {
    let recall = |grant: &Grant| match *grant {
        // With all that servers count and have not said, or nobody here would know of it.
        Grant::Bits { ino, bits, number } => {
            Some(Recall::Bits { ino, bits: bits | Bits::SHARED, number })
        }
        Grant::Data { ino, lock } => Some(Recall::Data { ino, number: lock.number }),
        Grant::Capability { .. } | Grant::Layout { .. } | Grant::Changed { .. } => None,
    };
    let mut recalls: Vec<_> = grants.iter().filter_map(recall).collect();
    if let Ok(MdsReply::Locked(lock)) = reply
        && let Some((_, Request::Mds { request: MdsRequest::Lock { ino, .. }, .. })) = parse(frame)
    {
        recalls.push(Recall::Data { ino, number: lock.number });
    }
    recalls
}

impl Connection {
    /// Gives back what the answer to a request has brought. Waits for nothing.
    pub(super) fn give_back(&self, frame: &[u8], reply: &Reply, opened: Option<OpenedFile>) {
        let Reply::Mds { reply, grants, .. } = reply else { return };
        let recalls = recalls_of(frame, reply, grants);
        if !recalls.is_empty()
            && let Some(lock_client) = self.session.lock_client()
        {
            lock_client.on_recall(recalls);
        }
        if let Some(opened) = opened {
            self.unclaimed.borrow_mut().push(opened);
            self.flush();
        }
    }

    /// Closes what nobody claims.
    pub(super) async fn close_unclaimed(self: Rc<Self>, files: Vec<OpenedFile>) {
        for file in files {
            let closing = self.session.opens.begin_close(file.ino);
            let close = Request::Mds { cred: Cred::ROOT, request: file.close() };
            match self.clone().post(&close).await {
                Ok(()) => closing.sent(),
                Err(errno) => tracing::warn!(
                    ino = %file.ino, %errno,
                    "could not close a file that nobody waited for; the server counts it as open \
                    until this client ends"
                ),
            }
        }
    }
}

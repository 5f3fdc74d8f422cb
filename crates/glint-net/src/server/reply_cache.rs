//! Changes of data are executed once by a run of a server, however often they are sent.
//!
//! A client sends a request again when its connection broke, and the first copy may still be
//! on its way through the server. A write that is executed again after a later one, or after
//! the file was removed, would bring the past back. (The MDS keeps its own record of this,
//! because there it must outlive the run.)
//!
//! Invariant: within a slot of a session a request is executed only if its xid is above those
//! before it, and one at a time.

use glint_proto::message::OstReply;
use glint_proto::{Answer, Errno, RequestId, Session};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

type Slot = Arc<futures_util::lock::Mutex<Option<LastChange>>>;

/// The last change of a slot: its xid, the checksums of its body and its data, and its answer.
type LastChange = (u64, (u32, u32), Answer<OstReply>);

/// The slots of a session.
type SessionReplies = (Arc<Session>, HashMap<u16, Slot>);

/// The last changes of all sessions, by their numbers.
#[derive(Default)]
pub(crate) struct ReplyCache {
    sessions: Mutex<HashMap<u64, SessionReplies>>,
}

impl ReplyCache {
    /// Executes a change, or answers as it was answered before.
    pub(crate) async fn run(
        &self,
        session: &Arc<Session>,
        id: RequestId,
        digest: (u32, u32),
        execute: impl Future<Output = Answer<OstReply>>,
    ) -> Answer<OstReply> {
        let slot = {
            let mut sessions = self.sessions.lock();
            let new = || (session.clone(), HashMap::new());
            let (kept, slots) = sessions.entry(session.number()).or_insert_with(new);
            if kept.is_over() {
                // An OSS had forgotten it for a while.
                *kept = session.clone();
            }
            slots.entry(id.slot).or_default().clone()
        };
        let mut last = slot.lock().await;
        match &*last {
            Some((xid, before, answer)) if *xid == id.xid && *before == digest => {
                return answer.clone();
            }
            // An old one, or another one under the same number.
            Some((xid, ..)) if *xid >= id.xid => return Answer::unchanged(Err(Errno::EPROTO)),
            _ => {}
        }
        let answer = execute.await;
        *last = Some((id.xid, digest, answer.clone()));
        answer
    }

    /// Forgets sessions that are over.
    pub(crate) fn forget_ended(&self) {
        self.sessions.lock().retain(|_, (session, _)| !session.is_over());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::block_on;
    use glint_proto::ClientId;
    use std::cell::Cell;

    #[test]
    fn a_change_is_executed_once_and_an_old_one_not_at_all() {
        let (reply_cache, session) = (ReplyCache::default(), Session::new(ClientId(1), 9, None));
        let executed = Cell::new(0);
        let send_other = |xid, digest| {
            let id = RequestId { client: ClientId(1), slot: 3, xid };
            block_on(reply_cache.run(&session, id, digest, async {
                executed.set(executed.get() + 1);
                Answer::changed(xid, Ok(OstReply::Done))
            }))
        };
        let send = |xid| send_other(xid, (7, 8));
        assert_eq!(send(5).transaction, 5);
        assert_eq!(send(5).transaction, 5);
        assert_eq!(executed.get(), 1);
        assert_eq!(send(4).reply, Err(Errno::EPROTO));
        assert_eq!(send_other(5, (7, 9)).reply, Err(Errno::EPROTO), "another one");
        assert_eq!(send(6).transaction, 6);
        assert_eq!(executed.get(), 2);
        session.end();
        reply_cache.forget_ended();
        assert!(reply_cache.sessions.lock().is_empty());
    }
}

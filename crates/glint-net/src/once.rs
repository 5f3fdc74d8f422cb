//! Changes of data are executed once by a run of a server, however often they are sent.
//!
//! A client sends a request again when its connection broke, and the first copy may still be
//! on its way through the server. A write that is executed again after a later one, or after
//! the file was removed, would bring the past back. (The MDS keeps its own record of this,
//! because there it must outlive the run.)
//!
//! Invariant: within a slot of a client a request is executed only if its xid is above those
//! before it, and one at a time.

use glint_proto::message::OstReply;
use glint_proto::{Answer, ClientId, Errno, RequestId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

type Slot = Arc<futures_util::lock::Mutex<Option<(u64, Answer<OstReply>)>>>;

/// The last changes of all clients.
#[derive(Default)]
pub(crate) struct Once {
    clients: Mutex<HashMap<ClientId, HashMap<u16, Slot>>>,
}

impl Once {
    /// Executes a change, or answers as it was answered before.
    pub(crate) async fn run(
        &self,
        id: RequestId,
        execute: impl Future<Output = Answer<OstReply>>,
    ) -> Answer<OstReply> {
        let slot = {
            let mut clients = self.clients.lock();
            clients.entry(id.client).or_default().entry(id.slot).or_default().clone()
        };
        let mut last = slot.lock().await;
        match &*last {
            Some((xid, answer)) if *xid == id.xid => return answer.clone(),
            Some((xid, _)) if *xid > id.xid => return Answer::unchanged(Err(Errno::EPROTO)),
            _ => {}
        }
        let answer = execute.await;
        *last = Some((id.xid, answer.clone()));
        answer
    }

    /// Forgets clients that are gone.
    pub(crate) fn retain(&self, is_known: impl Fn(ClientId) -> bool) {
        self.clients.lock().retain(|client, _| is_known(*client));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::block_on;
    use std::cell::Cell;

    #[test]
    fn a_change_is_executed_once_and_an_old_one_not_at_all() {
        let once = Once::default();
        let executed = Cell::new(0);
        let send = |xid| {
            let id = RequestId { client: ClientId(1), slot: 3, xid };
            block_on(once.run(id, async {
                executed.set(executed.get() + 1);
                Answer::changed(xid, Ok(OstReply::Done))
            }))
        };
        assert_eq!(send(5).transaction, 5);
        assert_eq!(send(5).transaction, 5);
        assert_eq!(executed.get(), 1);
        assert_eq!(send(4).reply, Err(Errno::EPROTO));
        assert_eq!(send(6).transaction, 6);
        assert_eq!(executed.get(), 2);
        once.retain(|_| false);
        assert!(once.clients.lock().is_empty());
    }
}

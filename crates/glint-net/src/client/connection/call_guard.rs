//! Calls that nobody waits for any more.

use crate::client::connection::Connection;

/// Sees to the slot of a call that is dropped before it was answered.
pub(super) struct CallGuard<'a> {
    pub(super) connection: &'a Connection,
    pub(super) slot: u16,
    pub(super) done: bool,
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        self.connection.awaited.set(self.connection.awaited.get() - 1);
        let mut all = self.connection.pending.borrow_mut();
        if let Some(pending) = &mut all[self.slot as usize]
            && !pending.rests
        {
            match pending.answer.take() {
                Some(Ok((reply, _))) => {
                    self.connection.give_back(&pending.frame.head, &reply, pending.opened);
                }
                Some(Err(_)) => {}
                None => {
                    pending.abandoned = true;
                    return;
                }
            }
        }
        drop(all);
        self.connection.finish(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::recovery::replay_budget::ReplayBudget;
    use crate::client::remote::RemoteOptions;
    use crate::client::session::ClientSession;
    use crate::client::session::tests::welcome;
    use crate::host;
    use crate::transport::framing::ReceivedBulk;
    use futures_util::FutureExt;
    use glint_proto::Bulk;
    use glint_proto::ClientId;
    use glint_proto::message::{Reply, Request};
    use std::pin::pin;
    use std::time::Duration;

    /// A request that was sent once, to a server that was too busy for it.
    fn is_busy(connection: &Connection) {
        let answer = (Reply::Busy { retry_ms: 50 }, ReceivedBulk::default());
        connection.pending.borrow_mut()[0].as_mut().unwrap().answer = Some(Ok(answer));
    }

    #[test]
    fn a_call_that_rests_is_not_sent_by_a_new_connection() {
        let address = crate::Address::parse("127.0.0.1:1");
        let options = RemoteOptions { address, mount_point: "/here".into() };
        let budget = ReplayBudget::simulated();
        let session =
            ClientSession::new(options, "host".into(), ClientId(1), 2, welcome(), None, budget);
        crate::runtime(None).unwrap().block_on(async {
            let connection = Connection::of_thread(&session).unwrap();
            {
                let mut call = pin!(connection.call(&Request::Osses, &Bulk::None, &|| true));
                assert!(call.as_mut().now_or_never().is_none());
                assert_eq!(connection.unanswered().len(), 1);
                is_busy(&connection);
                assert!(call.as_mut().now_or_never().is_none());
                assert!(connection.unanswered().is_empty(), "who drops it now leaves nothing");
                host::sleep(Duration::from_millis(100)).await;
                assert!(call.as_mut().now_or_never().is_none());
                assert_eq!(connection.unanswered().len(), 1, "the rest is over");
                is_busy(&connection);
                assert!(call.as_mut().now_or_never().is_none());
            }
            assert!(connection.pending.borrow()[0].is_none());
            assert!(connection.unanswered().is_empty());
            session.end();
        });
    }
}

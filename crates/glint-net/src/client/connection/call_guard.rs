//! Calls that nobody waits for any more.

use crate::client::connection::Connection;
use crate::client::recovery::resent::ResentChange;
use glint_proto::message::Reply;

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
        if let Some(pending) = &mut all[self.slot as usize] {
            let answer = pending.answer.take();
            // It rests also if nobody has heard yet that the server was busy.
            let was_busy = matches!(answer, Some(Ok((Reply::Busy { .. }, _))));
            pending.rests |= was_busy;
            match answer.filter(|_| !was_busy) {
                Some(Ok((reply, _))) => {
                    self.connection.give_back(&pending.frame.head, &reply, pending.opened);
                }
                Some(Err(_)) => {}
                None => {
                    let rows = self.connection.session.chain_rows.get();
                    let resent =
                        rows.and_then(|rows| ResentChange::of_dropped(rows, &pending.frame.head));
                    let (xid, rests) = (pending.xid, pending.rests);
                    if !rests || resent.is_some() {
                        (pending.abandoned, pending.resent) = (true, resent);
                        drop(all);
                        if rests {
                            // The server was busy for this copy, not for one on the last connection.
                            self.connection.send_again(self.slot, xid);
                            self.connection.flush();
                        }
                        return;
                    }
                }
            }
        }
        drop(all);
        self.connection.finish(self.slot);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::client::chain_rows::ChainRows;
    use crate::client::recovery::abandoned::ObjectToSync;
    use crate::client::recovery::replay_budget::ReplayBudget;
    use crate::client::remote::RemoteOptions;
    use crate::client::session::ClientSession;
    use crate::client::session::tests::welcome;
    use crate::host;
    use crate::transport::framing::ReceivedBulk;
    use futures_util::FutureExt;
    use glint_proto::chain::{Chain, ChainId, ChainVersion, Destination, Member, MemberState};
    use glint_proto::message::Request;
    use glint_proto::{Bulk, ClientId, Ino, ObjectId, OstRequest};
    use std::pin::pin;
    use std::sync::Arc;
    use std::time::Duration;

    /// A request that was sent once, to a server that was too busy for it.
    fn is_busy(connection: &Connection) {
        let answer = (Reply::Busy { retry_ms: 50 }, ReceivedBulk::default());
        connection.pending.borrow_mut()[0].as_mut().unwrap().answer = Some(Ok(answer));
    }

    /// A session with a server that is not there.
    fn session() -> Arc<ClientSession> {
        let address = crate::Address::parse("127.0.0.1:1");
        let options = RemoteOptions { address, mount_point: "/here".into() };
        let budget = ReplayBudget::simulated();
        ClientSession::new(options, "host".into(), ClientId(1), 2, welcome(), None, budget)
    }

    const ID: ChainId = ChainId { copies: 2, index: 0 };
    pub(in crate::client::connection) const OF: ObjectToSync =
        ObjectToSync { object: ObjectId { ino: Ino(7), stripe: 0 }, capability: None };

    pub(in crate::client::connection) fn is_ours(ino: Ino) -> bool {
        ino == OF.object.ino
    }

    pub(in crate::client::connection) fn by(version: u32) -> ChainVersion {
        ChainVersion { target: ID.target(), version }
    }

    /// A change of the object that is sent to OST 1, the head by row 1.
    pub(in crate::client::connection) fn change() -> Request<'static> {
        let to = Destination { ost: 1, chain: Some(by(1)) };
        let request = OstRequest::Truncate { object: OF.object, size: 0 };
        Request::Ost { to, request, capability: None, forward: None }
    }

    pub(in crate::client::connection) fn session_with_rows() -> (Arc<ClientSession>, Arc<ChainRows>)
    {
        let (session, rows) = (session(), Arc::new(ChainRows::default()));
        let _ = session.chain_rows.set(rows.clone());
        (session, rows)
    }

    #[test]
    fn a_change_that_is_sent_again_is_under_way_until_its_dropped_call_is_answered() {
        let (session, rows) = session_with_rows();
        let learn = |version, osts: [u16; 2]| {
            let members = osts.map(|ost| Member { ost, state: MemberState::Serving }).to_vec();
            rows.learn(Chain { id: ID, version, members, founders: Vec::new(), intact_since: 1 });
        };
        let (row, request) = (by(1), change());
        learn(1, [1, 2]);
        crate::runtime(None).unwrap().block_on(async {
            let connection = Connection::of_thread(&session).unwrap();
            let is_under_way = || {
                let is_waited_for = rows.until_none_resent(row).now_or_never().is_none();
                (is_waited_for, rows.is_resent(is_ours))
            };
            let send_and_drop = || {
                let mut call = pin!(connection.call(&request, &Bulk::None, &|| true));
                assert!(call.as_mut().now_or_never().is_none());
            };
            send_and_drop();
            assert_eq!(is_under_way(), (false, false), "it is the first time");
            connection.forget_elsewhere();
            for is_answered in [true, false] {
                let resent = ResentChange::new(&rows, (1, row), OF);
                send_and_drop();
                drop(resent);
                assert_eq!(is_under_way(), (true, true));
                connection.forget_elsewhere();
                assert_eq!(is_under_way(), (true, true), "the server may have it");
                if is_answered {
                    let all = connection.pending.borrow();
                    let at = all.iter().position(Option::is_some).unwrap();
                    drop(all);
                    connection.finish(at as u16);
                } else {
                    let is_kept = || {
                        connection.forget_elsewhere();
                        is_under_way()
                    };
                    learn(2, [1, 2]);
                    assert_eq!(is_kept(), (false, true), "the head may not know of it");
                    learn(3, [2, 1]);
                    assert_eq!(is_kept(), (false, true), "nor may another one");
                    rows.resent.on_synced((1, by(3)));
                    assert_eq!(is_kept(), (false, true), "it is not the one that has it");
                    rows.resent.on_synced((2, by(3)));
                    connection.forget_elsewhere();
                }
                assert_eq!(is_under_way(), (false, false));
                assert!(connection.pending.borrow().iter().all(Option::is_none));
            }
            session.end();
        });
    }

    #[test]
    fn a_change_that_has_to_end_is_sent_though_its_call_is_dropped_while_it_rests() {
        let (session, rows) = session_with_rows();
        crate::runtime(None).unwrap().block_on(async {
            let connection = Connection::of_thread(&session).unwrap();
            for hears_of_it in [true, false] {
                let (resent, request) = (ResentChange::new(&rows, (1, by(1)), OF), change());
                {
                    let mut call = pin!(connection.call(&request, &Bulk::None, &|| true));
                    assert!(call.as_mut().now_or_never().is_none());
                    is_busy(&connection);
                    if hears_of_it {
                        assert!(call.as_mut().now_or_never().is_none());
                    }
                    assert!(connection.unanswered().is_empty(), "it rests");
                }
                drop(resent);
                connection.forget_elsewhere();
                assert_eq!(connection.unanswered().len(), 1, "a copy may be with the server");
                assert!(rows.is_resent(is_ours));
                connection.finish(0);
                assert!(!rows.is_resent(is_ours));
            }
            session.end();
        });
    }

    #[test]
    fn a_call_that_rests_is_not_sent_by_a_new_connection() {
        let session = session();
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

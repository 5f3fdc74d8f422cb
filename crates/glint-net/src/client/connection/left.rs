//! Changes that have to be answered ([`ResentChange`]) and whose threads have ended before that.
//!
//! Invariants:
//! - They stay noted, and nobody is given the number of their connection, until another thread adopts
//!   both. So the server, which may have them, is sent them again under their own numbers, and
//!   executes no copy after it has answered.
//! - Nothing else is sent on a connection that was adopted. It ends with their answers.

use crate::client::connection::{Connection, Pending};
use crate::client::recovery::resent::ResentChange;
use crate::client::session::ClientSession;
use crate::host;
use crate::transport::frame_writer::KeptFrame;
use futures_util::future::select;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Pause before it is looked again whether all is answered.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A connection whose thread is gone, with those of its requests that have to be answered.
pub(crate) struct LeftConnection {
    number: u16,
    next_xid: u64,
    changes: Vec<LeftChange>,
}

struct LeftChange {
    slot: u16,
    xid: u64,
    frame: KeptFrame,
    resent: ResentChange,
}

impl LeftChange {
    fn into_pending(self) -> Pending {
        let LeftChange { xid, frame, resent, .. } = self;
        let (answer, waker, rests, opened, sync, session) = Default::default();
        let (abandoned, resent) = (true, Some(resent));
        Pending { frame, xid, answer, waker, abandoned, resent, rests, opened, sync, session }
    }
}

impl LeftConnection {
    /// What is left of a connection of this number with these requests, if something is.
    pub(super) fn of(
        number: u16,
        next_xid: u64,
        requests: &mut [Option<Pending>],
    ) -> Option<LeftConnection> {
        let left = (0u16..).zip(requests).filter_map(|(slot, request)| {
            let Pending { xid, frame, resent, .. } = request.take_if(|one| one.has_to_end())?;
            Some(LeftChange { slot, xid, frame, resent: resent? })
        });
        let changes: Vec<LeftChange> = left.collect();
        (!changes.is_empty()).then_some(LeftConnection { number, next_xid, changes })
    }
}

impl Connection {
    /// Has what threads have left that are gone be answered, on this thread.
    pub(crate) fn adopt_left(session: &Arc<ClientSession>) {
        let left = session.connection_numbers.lock().take_left();
        for one in left {
            let connection = Connection::of_left(session, one);
            host::spawn(connection.clone().keep_until_answered());
            host::spawn(connection.keep_flushing());
        }
    }

    fn of_left(session: &Arc<ClientSession>, left: LeftConnection) -> Rc<Connection> {
        let LeftConnection { number, next_xid, changes } = left;
        let connection = Rc::new(Connection::new(session.clone(), number, next_xid));
        for change in changes {
            let slot = change.slot;
            connection.slots.take_again(slot);
            connection.pending.borrow_mut()[usize::from(slot)] = Some(change.into_pending());
        }
        connection
    }

    async fn keep_until_answered(self: Rc<Self>) {
        let has_any = || self.pending.borrow().iter().flatten().any(Pending::has_to_end);
        let answered = async {
            while has_any() {
                host::sleep(LOOK_AGAIN).await;
            }
        };
        select(pin!(self.clone().keep()), pin!(answered)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::connection::call_guard::tests::{
        OF, by, change, is_ours, session_with_rows,
    };
    use crate::client::recovery::frames::parse;
    use futures_util::FutureExt;
    use glint_proto::message::Request;
    use glint_proto::{Bulk, Cred, Ino, MdsRequest};

    /// The numbers of the requests that a new connection would send.
    fn numbers(connection: &Connection) -> Vec<(u16, u64)> {
        let number = |frame: KeptFrame| {
            let header = parse(&frame.head).unwrap().0;
            (header.slot, header.xid)
        };
        connection.unanswered().into_iter().map(number).collect()
    }

    /// Does something on a thread that ends then.
    fn on_a_thread<R: Send>(work: impl AsyncFnOnce() -> R + Send) -> R {
        let work = || crate::runtime(None).unwrap().block_on(work());
        std::thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    #[test]
    fn a_change_that_has_to_end_is_adopted_by_another_thread_when_its_own_ends() {
        let (session, rows) = session_with_rows();
        let sent = on_a_thread(async || {
            let connection = Connection::of_thread(&session).unwrap();
            let (resent, request) = (ResentChange::new(&rows, (1, by(1)), OF), change());
            {
                let mut call = pin!(connection.call(&request, &Bulk::None, &|| true));
                assert!(call.as_mut().now_or_never().is_none());
            }
            drop(resent);
            numbers(&connection)
        });
        assert_eq!(sent.len(), 1);
        for is_answered in [false, true] {
            assert!(rows.is_resent(is_ours), "the server may have it");
            on_a_thread(async || {
                let left = session.connection_numbers.lock().take_left();
                assert_eq!(left.len(), 1);
                assert_ne!(session.connection_numbers.lock().take(), Some((0, 2)));
                for one in left {
                    let connection = Connection::of_left(&session, one);
                    assert_eq!(numbers(&connection), sent);
                    let mut keeping = pin!(connection.clone().keep_until_answered());
                    assert!(keeping.as_mut().now_or_never().is_none());
                    if is_answered {
                        connection.finish(0);
                        keeping.await;
                        assert!(connection.state.borrow().is_closed());
                    }
                }
            });
        }
        assert!(!rows.is_resent(is_ours));
        assert!(session.connection_numbers.lock().take_left().is_empty());
        session.end();
    }

    /// Who sets its size or times next would wait for ever.
    #[test]
    fn a_close_is_not_under_way_any_more_when_its_thread_has_ended() {
        let (session, ino) = (session_with_rows().0, Ino(7));
        session.opens.on_declared(ino, 1);
        on_a_thread(async || {
            let closing = session.opens.begin_close(ino);
            let close = MdsRequest::Release { ino, write: false, wrote: None };
            let close = Request::Mds { cred: Cred::ROOT, request: close };
            Connection::of_thread(&session).unwrap().post(&close).await.unwrap();
            closing.sent();
            assert!(session.opens.until_closed(ino).now_or_never().is_none());
        });
        assert!(session.opens.until_closed(ino).now_or_never().is_some());
        assert_eq!((session.opens.is_closing(), session.opens.len()), (false, 0));
        session.end();
    }
}

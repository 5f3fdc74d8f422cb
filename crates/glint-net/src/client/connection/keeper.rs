//! The task that keeps the connection of a thread: it connects, sends again what had no answer, and
//! begins anew when the connection breaks.
//!
//! Invariant: a connection ends with its keeper, and that with its session or its thread. Then
//! nothing of the thread refers to it any more.

use crate::NetError;
use crate::client::connection::state::{Generation, RecoveryStep};
use crate::client::connection::{Connection, Pending};
use crate::client::outage::{Broken, backoff};
use crate::client::recovery::connect;
use crate::client::recovery::frames::is_of_chain;
use crate::client::session::ClientSession;
use crate::host;
use crate::transport::frame_writer::KeptFrame;
use crate::transport::framing::{Envelope, FrameReader, request_frame};
use futures_util::future::{Either, select};
use glint_proto::message::Request;
use glint_proto::{Errno, FsResult};
use std::cell::RefCell;
use std::collections::HashMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

thread_local! {
    /// The connections of this thread, by the keys of their sessions.
    static CONNECTIONS: RefCell<HashMap<u64, Rc<Connection>>> = RefCell::default();
}

/// Ends a connection with the task that keeps it.
struct Keeper<'a>(&'a Rc<Connection>);

impl Drop for Keeper<'_> {
    fn drop(&mut self) {
        let connection = self.0;
        let writer = connection.state.borrow_mut().on_closed();
        if let Some(writer) = writer {
            writer.close();
        }
        connection.flush();
        // Where the thread ends, its map may be gone already.
        let removed = CONNECTIONS.try_with(|all| {
            let mut all = all.borrow_mut();
            let is_this =
                all.get(&connection.session.key).is_some_and(|known| Rc::ptr_eq(known, connection));
            is_this.then(|| all.remove(&connection.session.key))
        });
        drop(removed);
    }
}

impl Connection {
    /// The connection of this thread, made when it is first needed.
    pub(crate) fn of_thread(session: &Arc<ClientSession>) -> FsResult<Rc<Connection>> {
        let known = CONNECTIONS.with_borrow(|all| all.get(&session.key).cloned());
        if let Some(connection) = known.filter(|known| !known.state.borrow().is_closed()) {
            return Ok(connection);
        }
        let (number, xid) = session.connection_numbers.lock().take().ok_or(Errno::EMFILE)?;
        let connection = Connection::start(session.clone(), number, xid);
        CONNECTIONS.with_borrow_mut(|all| all.insert(session.key, connection.clone()));
        Ok(connection)
    }

    /// Keeps it connected until the session ends, or the runtime of its thread.
    pub(super) async fn keep(self: Rc<Self>) {
        let _keeper = Keeper(&self);
        select(pin!(self.keep_connected()), pin!(self.session.until_over())).await;
    }

    /// Connects, serves the connection until it breaks, and connects again.
    async fn keep_connected(self: &Rc<Self>) {
        let mut backoff = backoff();
        let mut broken = None;
        loop {
            let (connected, error) = self.connect_and_read(&mut broken).await;
            let writer = self.state.borrow_mut().on_broken();
            if let Some(writer) = writer {
                // A task that waits in there to send would not send on the next one.
                writer.close();
            }
            if connected || broken.is_none() {
                broken = Some(Broken::new(&self.session));
            }
            let pause = backoff.pause(connected);
            tracing::warn!(
                server = %self.session.options.address,
                "connection lost: {error}; trying again in {} ms",
                pause.as_millis()
            );
            host::sleep(pause).await;
        }
    }

    /// Returns whether it was ever connected, and why it is not any more.
    async fn connect_and_read(self: &Rc<Self>, broken: &mut Option<Broken>) -> (bool, NetError) {
        let silences = self.session.silences();
        let (mut reader, now) = match self.establish(silences).await {
            Ok(established) => established,
            Err(error) => return (false, error),
        };
        if let Some(broken) = broken.take() {
            broken.mend();
        }
        let read = async {
            loop {
                if let Err(error) = self.receive(&mut reader).await {
                    return error;
                }
            }
        };
        // Where nothing is asked just now, it would not be heard of here.
        let overtaken = async {
            let (another, again) =
                (self.session.until_after(now), self.session.until_heard_again(silences));
            select(pin!(another), pin!(again)).await;
            NetError::Closed
        };
        (true, select(pin!(read), pin!(overtaken)).await.factor_first().0)
    }

    /// Connects, and leads the connection from hello to where requests go. What is sent again is
    /// sent by the task that flushes: a server that has too much to say takes no more until it is
    /// listened to.
    async fn establish(&self, silences: u64) -> Result<(FrameReader, Generation), NetError> {
        let again = self.session.until_heard_again(silences);
        let (writer, mut reader, welcome) =
            match select(pin!(connect(&self.session)), pin!(again)).await {
                Either::Left((connected, _)) => connected?,
                Either::Right(_) => return Err(NetError::Closed),
            };
        let writer = Rc::new(writer);
        let now = self.recover(&writer, &mut reader, &welcome).await?;
        self.on_evictions();
        if self.state.borrow().step() != Some(RecoveryStep::SendAgain) {
            // The session in which this connection was welcomed has ended meanwhile.
            return Err(NetError::Closed);
        }
        if self.evictions.replace(now.evictions) != now.evictions {
            self.fail_all();
        }
        self.forget_elsewhere();
        for frame in self.unanswered() {
            writer.push(&frame);
        }
        self.state.borrow_mut().on_active(writer);
        self.flush();
        Ok((reader, now))
    }

    /// Gives up requests to chains that nobody waits for any more: they were sent to another
    /// member. One that has to end before what is newer goes on: the server may have it from the
    /// last connection.
    pub(super) fn forget_elsewhere(&self) {
        let is_one = |pending: &Pending| {
            pending.abandoned
                && pending.answer.is_none()
                && is_of_chain(&pending.frame.head)
                && !pending.has_to_end()
        };
        let elsewhere: Vec<u16> = {
            let all = self.pending.borrow();
            let places = (0u16..).zip(all.iter());
            let found = places.filter(|(_, one)| one.as_ref().is_some_and(is_one));
            found.map(|(slot, _)| slot).collect()
        };
        elsewhere.into_iter().for_each(|slot| self.finish(slot));
    }

    /// Requests to be sent again: those that were on their way, oldest first, under their old
    /// identity. One that rests is sent when its rest is over.
    pub(super) fn unanswered(&self) -> Vec<KeptFrame> {
        let mut all = self.pending.borrow_mut();
        let under_way =
            all.iter_mut().flatten().filter(|pending| pending.answer.is_none() && !pending.rests);
        let mut again: Vec<(u64, KeptFrame)> = under_way
            .map(|pending| {
                // The sync comes after all that was sent again before it.
                pending.sync = pending.sync.map(|sync| self.session.mark_sync(sync.object));
                (pending.xid, pending.frame.clone())
            })
            .collect();
        again.sort_unstable_by_key(|(xid, _)| *xid);
        again.into_iter().map(|(_, frame)| frame).collect()
    }

    /// Requests under way were perhaps executed, and nobody can say any more. Those that were
    /// made since were not sent yet.
    fn fail_all(&self) {
        let session = Some(self.evictions.get());
        let places = self.pending.borrow().len();
        for slot in 0..places {
            let mut all = self.pending.borrow_mut();
            let Some(pending) = &mut all[slot] else { continue };
            if pending.session == session {
                continue;
            }
            if pending.abandoned {
                pending.on_no_answer(&self.session.opens);
                drop(all);
                self.finish(slot as u16);
                continue;
            }
            pending.answer.get_or_insert(Err(Errno::EIO));
            if let Some(waker) = pending.waker.take() {
                waker.wake();
            }
        }
    }

    /// A frame of a request that needs no slot.
    pub(crate) fn request(&self, request: &Request<'_>) -> Result<Vec<u8>, NetError> {
        request_frame(Envelope::request(request.op(), self.session.client), request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::chain_rows::ChainRows;
    use crate::client::recovery::abandoned::ObjectToSync;
    use crate::client::recovery::replay_budget::ReplayBudget;
    use crate::client::recovery::resent::ResentChange;
    use crate::client::remote::{Remote, RemoteOptions};
    use crate::client::session::tests::welcome;
    use crate::client::transport::MdsSession;
    use crate::runtime;
    use crate::transport::framing::append_frame;
    use glint_proto::chain::{ChainVersion, Destination};
    use glint_proto::frame::NO_SLOT;
    use glint_proto::message::{Reply, Welcome};
    use glint_proto::{Bulk, ClientId, Ino, ObjectId, OstRequest};
    use std::cell::Cell;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    #[test]
    fn connections_end_with_the_transport() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = crate::Address::parse(&listener.local_addr().unwrap().to_string());
        // A server that says nothing and waits for the end of both: that of the thread, and that
        // on which the lease is kept.
        let server = std::thread::spawn(move || {
            let mut streams: Vec<_> = (0..2).map(|_| listener.accept().unwrap().0).collect();
            let heard = streams.iter_mut().map(|stream| {
                let mut said = Vec::new();
                stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                stream.read_to_end(&mut said).map(|_| said.len())
            });
            heard.collect::<std::io::Result<Vec<usize>>>()
        });
        runtime(None).unwrap().block_on(async {
            let options = RemoteOptions { address, mount_point: "/here".into() };
            let remote = Remote::simulated(options, ClientId(1), 2, welcome());
            let asked = futures_util::poll!(pin!(remote.osses()));
            assert!(asked.is_pending());
            let connection =
                CONNECTIONS.with_borrow(|all| all.values().next().map(Rc::downgrade).unwrap());
            host::sleep(Duration::from_millis(100)).await;
            // From another thread, as a client may be dropped.
            std::thread::spawn(move || drop(remote)).join().unwrap();
            host::sleep(Duration::from_millis(100)).await;
            assert!(CONNECTIONS.with_borrow(HashMap::is_empty));
            assert_eq!(connection.strong_count(), 0);
            // No longer than the lease waits for an answer.
            host::sleep(Duration::from_secs(1)).await;
        });
        let said = server.join().unwrap().unwrap();
        assert!(said.iter().all(|said| *said > 0), "hello was said, and then the end came");
    }

    fn reply(slot: u16, xid: u64, reply: &Reply) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (op, client) = (glint_proto::Op::Ping, ClientId(1));
        let envelope =
            Envelope { op, reply: true, client, slot, xid, boot_verifier: 1, committed: 0 };
        append_frame(&mut bytes, envelope, reply, &[]).unwrap();
        bytes
    }

    /// Accepts a connection, and welcomes whoever says hello.
    fn welcomes(listener: &TcpListener) -> TcpStream {
        let mut stream = listener.accept().unwrap().0;
        let mut hello = [0; 64];
        assert!(stream.read(&mut hello).unwrap() > 0);
        stream.write_all(&reply(NO_SLOT, 0, &Reply::Welcome(welcome()))).unwrap();
        stream
    }

    fn session_at(listener: &TcpListener) -> Arc<ClientSession> {
        let address = crate::Address::parse(&listener.local_addr().unwrap().to_string());
        let options = RemoteOptions { address, mount_point: "/here".into() };
        let budget = ReplayBudget::simulated();
        ClientSession::new(options, "host".into(), ClientId(1), 2, welcome(), None, budget)
    }

    /// Has the session of this thread call a server that does what `serves` does, and ends it.
    /// Returns what the server returns.
    fn with_server<T: Send + 'static>(
        serves: impl FnOnce(TcpListener) -> T + Send + 'static,
        calls: impl AsyncFnOnce(&Arc<ClientSession>, &Connection),
    ) -> T {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let session = session_at(&listener);
        let server = std::thread::spawn(move || serves(listener));
        runtime(None).unwrap().block_on(async {
            let connection = Connection::of_thread(&session).unwrap();
            calls(&session, &connection).await;
            session.end();
        });
        server.join().unwrap()
    }

    const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };

    async fn until(happens: impl Fn() -> bool) {
        for _ in 0..1000 {
            if happens() {
                return;
            }
            host::sleep(Duration::from_millis(10)).await;
        }
        panic!("it does not happen");
    }

    #[test]
    fn a_server_is_listened_to_while_it_takes_nothing() {
        const WRITES: u16 = 16;
        let (numbers, number) = std::sync::mpsc::channel();
        let (heard, is_heard) = std::sync::mpsc::channel();
        let serves = move |listener: TcpListener| {
            let mut stream = welcomes(&listener);
            // More is sent again than sockets hold. The server answers before it reads on.
            let (slot, xid) = number.recv().unwrap();
            std::thread::sleep(Duration::from_millis(500));
            stream.write_all(&reply(slot, xid, &Reply::Json("answer".into()))).unwrap();
            is_heard.recv_timeout(Duration::from_secs(20)).unwrap();
        };
        with_server(serves, async |_, connection| {
            let request = OstRequest::Write { object: OBJECT, offset: 0, mtime: None, kept: false };
            let request = Request::Ost { to: 0.into(), request, capability: None, forward: None };
            let bulk = Arc::new(vec![0; 4 << 20]);
            let mut calls = Vec::new();
            for _ in 0..WRITES {
                let call = async || connection.call(&request, &Bulk::Shared(&bulk), &|| true).await;
                let mut call = Box::pin(call());
                assert!(futures_util::poll!(call.as_mut()).is_pending());
                calls.push(call);
            }
            let at = connection.pending.borrow().iter().position(Option::is_some).unwrap();
            let xid = connection.pending.borrow()[at].as_ref().unwrap().xid;
            numbers.send((connection.first_slot + at as u16, xid)).unwrap();
            let answered = futures_util::future::select_all(calls);
            let limit = host::sleep(Duration::from_secs(10));
            let Either::Left(((answer, ..), _)) = select(answered, pin!(limit)).await else {
                panic!("the server's answer is not heard");
            };
            assert!(matches!(answer, Ok((Reply::Json(_), _))));
            heard.send(()).unwrap();
        });
    }

    #[test]
    fn who_waits_for_a_slot_is_not_sent_when_its_lock_is_lost() {
        with_server(std::convert::identity, async |_, connection| {
            let request = OstRequest::Truncate { object: OBJECT, size: 0 };
            let request = Request::Ost { to: 0.into(), request, capability: None, forward: None };
            let held = Cell::new(true);
            let is_held = || held.get();
            let under_way = || connection.pending.borrow().iter().flatten().count();
            let mut calls = Vec::new();
            while under_way() == calls.len() {
                let mut call = Box::pin(connection.call(&request, &Bulk::None, &is_held));
                assert!(futures_util::poll!(call.as_mut()).is_pending());
                calls.push(call);
            }
            let waits = calls.pop().unwrap();
            held.set(false);
            // An eviction fails those under way, and so makes room.
            connection.finish(0);
            assert!(matches!(waits.await, Err(Errno::EIO)));
            assert_eq!(under_way(), calls.len() - 1);
        });
    }

    #[test]
    fn a_dropped_change_of_a_chain_is_sent_again_to_a_busy_server_only_if_it_has_to_end() {
        for has_to_end in [false, true] {
            let (numbers, number) = std::sync::mpsc::channel();
            let serves = move |listener: TcpListener| {
                let (mut stream, (slot, xid)) = (welcomes(&listener), number.recv().unwrap());
                let hears = |stream: &mut TcpStream, ms| {
                    stream.set_read_timeout(Some(Duration::from_millis(ms))).unwrap();
                    stream.read(&mut [0; 4096]).is_ok_and(|bytes| bytes > 0)
                };
                while hears(&mut stream, 200) {}
                stream.write_all(&reply(slot, xid, &Reply::Busy { retry_ms: 1 })).unwrap();
                if has_to_end {
                    assert!(hears(&mut stream, 20_000), "it is sent again");
                    stream.write_all(&reply(slot, xid, &Reply::Failed(Errno::EIO))).unwrap();
                }
                stream
            };
            with_server(serves, async |session, connection| {
                let rows = Arc::new(ChainRows::default());
                let _ = session.chain_rows.set(rows.clone());
                let request = OstRequest::Truncate { object: OBJECT, size: 0 };
                let by = ChainVersion { target: 0x8000, version: 1 };
                let to = Destination { ost: 0, chain: Some(by) };
                let request = Request::Ost { to, request, capability: None, forward: None };
                let of = ObjectToSync { object: OBJECT, capability: None };
                let resent = has_to_end.then(|| ResentChange::new(&rows, (0, by), of));
                let mut call = Box::pin(connection.call(&request, &Bulk::None, &|| true));
                assert!(futures_util::poll!(call.as_mut()).is_pending());
                until(|| connection.state.borrow().writer().is_some()).await;
                let at = connection.pending.borrow().iter().position(Option::is_some).unwrap();
                let xid = connection.pending.borrow()[at].as_ref().unwrap().xid;
                drop((call, resent));
                assert_eq!(rows.is_resent(|ino| ino == OBJECT.ino), has_to_end);
                assert!(connection.pending.borrow()[at].is_some(), "the server may have it");
                numbers.send((connection.first_slot + at as u16, xid)).unwrap();
                until(|| connection.pending.borrow()[at].is_none()).await;
                assert!(!rows.is_resent(|ino| ino == OBJECT.ino));
            });
        }
    }

    #[test]
    fn a_connection_that_died_in_silence_is_left_when_the_server_is_heard_again() {
        let (connected, is_connected) = std::sync::mpsc::channel();
        let serves = move |listener: TcpListener| {
            // A dead connection, whose segments are still acknowledged.
            let first = welcomes(&listener);
            connected.send(()).unwrap();
            let mut second = welcomes(&listener);
            let mut asked = [0; 64];
            assert!(second.read(&mut asked).unwrap() > 0, "the request is sent again");
            connected.send(()).unwrap();
            first
        };
        with_server(serves, async |session, connection| {
            let mut call = Box::pin(connection.call(&Request::Status, &Bulk::None, &|| true));
            assert!(futures_util::poll!(call.as_mut()).is_pending());
            for heard in [false, true] {
                let mut left = 1000;
                while is_connected.try_recv().is_err() {
                    left -= 1;
                    assert!(left > 0, "the server is heard again: {heard}");
                    host::sleep(Duration::from_millis(10)).await;
                    assert!(futures_util::poll!(call.as_mut()).is_pending());
                }
                if !heard {
                    host::sleep(Duration::from_millis(100)).await;
                    session.leave_connections();
                }
            }
            drop(call);
        });
    }

    #[test]
    fn a_connection_to_a_run_that_is_gone_is_left_without_its_end() {
        let (connected, is_connected) = std::sync::mpsc::channel();
        let serves = move |listener: TcpListener| {
            let first = welcomes(&listener);
            connected.send(()).unwrap();
            let second = welcomes(&listener);
            connected.send(()).unwrap();
            (first, second)
        };
        with_server(serves, async |session, _| {
            let until = async || {
                for _ in 0..1000 {
                    if is_connected.try_recv().is_ok() {
                        return true;
                    }
                    host::sleep(Duration::from_millis(10)).await;
                }
                false
            };
            assert!(until().await);
            host::sleep(Duration::from_millis(100)).await;
            // The lease was kept at another run of the server.
            let another = Welcome { boot_verifier: 2, ..welcome() };
            let mark = session.hello().1;
            session.on_welcome(Reply::Welcome(another), mark).unwrap();
            assert!(until().await, "the connection waits for an end that does not come");
        });
    }
}

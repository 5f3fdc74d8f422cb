//! The lease of a client at a server: a task says that the client lives, on a connection of its own,
//! and learns what is durable. It has a thread, but for a simulation, where it runs beside all others.
//!
//! Where an answer does not come in time and the server is heard on another connection, requests are
//! sent on other ones, too: something on the way, or a part of the server, has died behind what still
//! acknowledges segments.
//!
//! Invariants:
//! - Until the end of the session it does nothing that could wait for a disk, neither of the client
//!   nor of a server, and waits for nothing else that the client does.
//! - The MDS does not hear of the end while a head may still make a change that was sent to it again:
//!   the locks would be free at once, and the change made over what others write. It evicts the
//!   client after its lease, and frees them once nothing of the session is executed anywhere.
//! - The end takes a second at the most for the session of a server, and where the other side is
//!   away. It takes five for that of a mount with a server that was heard of, which would keep its
//!   locks for a lease, and where something that this client did there may not be durable. It
//!   counts from when the session was told to end, so those of many servers take as long as one.

use crate::client::link::{Link, PATIENCE};
use crate::client::outage::backoff;
use crate::client::session::ClientSession;
use crate::{NetError, host};
use futures_util::future::{Either, select};
use glint_proto::clock;
use glint_proto::limits::{AWAY_MS, CHAIN_NEWS_MS, PING_MS};
use glint_proto::message::{Reply, Request};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// Part of a lease that a client waits for the answer to a ping, before it sends the ping again on
/// another connection.
const PONGS_PER_LEASE: u64 = 4;
/// But not less than this.
const PATIENCE_MIN: Duration = Duration::from_millis(500);

/// Longest time for the end of a session of which everything is durable, and whose server need not,
/// or cannot, hear of it.
const GOODBYE: Duration = Duration::from_secs(1);

/// How often a client asks for the rows of chains while it has changes of them.
const NEWS: Duration = Duration::from_millis(CHAIN_NEWS_MS / 4);
/// Pause between pings while the server should hurry.
const HURRY: Duration = Duration::from_millis(20);
/// How long calls may wait for it before that is said.
const LONG: Duration = Duration::from_secs(5);

/// Keeps the lease of a session on a thread that does nothing else.
pub(crate) fn start_thread(session: &Arc<ClientSession>) -> Result<JoinHandle<()>, NetError> {
    let no_thread = |source| NetError::Io { what: "starting a thread".into(), source };
    let (session, (starts, started)) = (session.clone(), mpsc::channel());
    let keep = move || {
        // The starting thread waits for the outcome.
        match crate::runtime(None) {
            Ok(runtime) => {
                let _ = starts.send(Ok(()));
                runtime.block_on(session.keep_lease());
            }
            Err(error) => _ = starts.send(Err(error)),
        }
    };
    let thread = std::thread::Builder::new().name("lease".into()).spawn(keep).map_err(no_thread)?;
    started.recv().map_err(|_| NetError::Closed)?.map_err(no_thread)?;
    Ok(thread)
}

impl ClientSession {
    /// Says every now and then that this client lives, and learns what is durable. At the end of the
    /// session says that, too, if the server can be told soon.
    pub(crate) async fn keep_lease(&self) {
        if let Either::Right(_) = select(pin!(self.keep_until_end()), pin!(self.until_late())).await
        {
            let server = &self.options.address;
            tracing::debug!(%server, "a session has ended, and its server did not answer");
        }
        if self.is_left_to_its_lease() {
            tracing::warn!(
                "a change that was sent again to the head of a chain has no answer; others wait \
                 for a lease before they are given what this client had locked"
            );
        }
    }

    /// Waits until this session was told to end, and has had the time for it.
    async fn until_late(&self) {
        self.until_stopping().await;
        host::sleep(self.goodbye_max()).await;
    }

    /// How long its end may take. A server has no locks at others.
    fn goodbye_max(&self) -> Duration {
        let is_away = self.outage.is_now()
            || clock::since(*self.heard_at.lock()) > Duration::from_millis(AWAY_MS);
        match self.owes() || !(is_away || self.is_of_server()) {
            true => PATIENCE,
            false => GOODBYE,
        }
    }

    async fn keep_until_end(&self) {
        let (mut backoff, mut silent) = (backoff(), false);
        while !self.is_stopping() {
            let mut connected = false;
            match self.ping_until_end(&mut connected, &mut silent).await {
                Ok(()) => return,
                Err(error) => {
                    silent |= error.is_silence();
                    tracing::debug!(%error, "keeping the lease");
                }
            }
            self.pause(backoff.pause(connected)).await;
        }
        // The session ends while the connection is lost, or not there again: a server that did not
        // hear of it would keep locks, and after a restart have others wait, for a lease.
        if let Err(error) = self.say_goodbye().await {
            tracing::debug!(%error, "ending the session");
        }
    }

    /// Says on a connection of its own that the session ends.
    async fn say_goodbye(&self) -> Result<(), NetError> {
        if self.is_left_to_its_lease() {
            return Ok(());
        }
        let mut link = Link::open(&self.options.address, self.client, PATIENCE).await?;
        link.ask(&self.hello().0, PATIENCE).await?;
        self.say_bye(&mut link).await
    }

    /// Says that the session ends, once what this client did there is durable: nobody would do it
    /// again after that.
    async fn say_bye(&self, link: &mut Link) -> Result<(), NetError> {
        if self.owes() {
            let commit = Request::Ping { commit: true, hurry: false };
            let Reply::Pong(_) = link.ask(&commit, PATIENCE).await? else {
                return Err(NetError::Refused("it could not make all durable".into()));
            };
        }
        if self.is_left_to_its_lease() {
            return Ok(());
        }
        link.ask(&Request::Bye, PATIENCE).await.map(drop)
    }

    /// Whether something that this client did at the server may not be durable.
    fn owes(&self) -> bool {
        !self.replay_log.lock().is_empty() || self.opens.is_closing()
    }

    /// Whether the MDS is to end the session by itself: a change may still be made whose lock it would
    /// free.
    fn is_left_to_its_lease(&self) -> bool {
        let rows = self.chain_rows.get().filter(|_| !self.is_of_oss());
        rows.is_some_and(|rows| !rows.resent.is_empty())
    }

    /// Whether the server, which is that of the MDS, is to be asked for the rows of the chains: there
    /// are changes that are perhaps in no copy that counts, kept here or not.
    fn wants_rows(&self) -> bool {
        let Some(rows) = self.chain_rows.get() else { return false };
        let has_changes = self.replay_log.lock().has_chains() || !rows.abandoned.is_empty();
        if !rows.is_empty() && has_changes {
            rows.wants_news.store(true, Ordering::Release);
        }
        !self.is_of_oss()
            && rows.wants_news.load(Ordering::Acquire)
            && rows.is_due(NEWS)
            && rows.wants_news.swap(false, Ordering::AcqRel)
    }

    /// Waits so long, or until the server should hear of this client at once.
    async fn pause(&self, time: Duration) {
        let is_urgent = self.is_urgent.until(|is_urgent| std::mem::take(is_urgent).then_some(()));
        select(pin!(is_urgent), pin!(host::sleep(time))).await;
    }

    /// Says once that calls wait because the server makes nothing durable, and that it is over.
    fn complain(&self, waits: Option<Duration>) {
        let long = waits.is_some_and(|waits| waits > LONG);
        if self.complained.swap(long, Ordering::AcqRel) == long {
            return;
        }
        let server = &self.options.address;
        match waits {
            Some(_) => tracing::error!(
                %server,
                "the server has taken changes and brings none of them to stable storage; calls \
                 that change more there wait"
            ),
            None => tracing::warn!(%server, "the server brings changes to stable storage again"),
        }
    }

    async fn ping_until_end(
        &self,
        connected: &mut bool,
        silent: &mut bool,
    ) -> Result<(), NetError> {
        // A server whose threads stand still hears those who come anew.
        let patience = Duration::from_millis(self.welcome.lease_ms / PONGS_PER_LEASE);
        let patience = patience.clamp(PATIENCE_MIN, PATIENCE);
        let mut link = Link::open(&self.options.address, self.client, patience).await?;
        let (hello, mark) = self.hello();
        let welcome = link.ask(&hello, patience).await?;
        let boot_verifier = self.on_welcome(welcome, mark)?.boot_verifier;
        *connected = true;
        if std::mem::take(silent) {
            self.leave_connections();
        }
        while !self.is_stopping() {
            let (hurry, waits) = {
                let log = self.replay_log.lock();
                (log.is_filling(), log.waits())
            };
            let sent = clock::now();
            // A server that answers lives, however long its disk takes.
            let pong = link.ask(&Request::Ping { commit: false, hurry }, patience).await?;
            *self.heard_at.lock() = sent;
            if let Reply::Pong(committed) = pong {
                self.on_committed(boot_verifier, committed, &mut drop);
            }
            self.complain(waits);
            if self.wants_rows() {
                let Reply::Chains(rows) = link.ask(&Request::Chains, patience).await? else {
                    return Err(NetError::Refused("it did not send its chains".into()));
                };
                rows.into_iter().for_each(|row| self.learn_row(row));
            }
            let pause = if hurry { HURRY } else { Duration::from_millis(PING_MS) };
            self.pause(pause).await;
        }
        self.say_bye(&mut link).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::chain_rows::ChainRows;
    use crate::client::recovery::abandoned::ObjectToSync;
    use crate::client::recovery::frames::parse;
    use crate::client::recovery::replay_budget::ReplayBudget;
    use crate::client::recovery::resent::ResentChange;
    use crate::client::remote::RemoteOptions;
    use crate::client::session::tests::welcome;
    use crate::transport::framing::{Envelope, append_frame};
    use crate::transport::stream::Address;
    use glint_proto::chain::{ChainId, ChainVersion, SERVER_MOUNT_POINT};
    use glint_proto::frame::{HEADER_BYTES, Header};
    use glint_proto::message::Welcome;
    use glint_proto::{ClientId, Committed, Ino, ObjectId};
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Instant;

    fn session(address: &str, mount_point: &str) -> Arc<ClientSession> {
        let (address, mount_point) = (Address::parse(address), mount_point.into());
        let options = RemoteOptions { address, mount_point };
        // Answers are waited for as long as they usually are.
        let welcome = Welcome { lease_ms: 30_000, ..welcome() };
        let budget = ReplayBudget::simulated();
        ClientSession::new(options, "host".into(), ClientId(1), 2, welcome, None, budget)
    }

    #[test]
    fn sessions_of_servers_that_do_not_answer_end_soon_and_all_at_once() {
        // Connections are made there, and nobody takes them.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap().to_string();
        let session = || session(&address, SERVER_MOUNT_POINT);
        let sessions = [session(), session(), session()];
        let threads = sessions.each_ref().map(|session| start_thread(session).unwrap());
        let begun = Instant::now();
        sessions.iter().for_each(|session| session.stop());
        for thread in threads {
            thread.join().unwrap();
        }
        let took = begun.elapsed();
        assert!(took < 3 * GOODBYE, "{took:?}");
    }

    #[test]
    fn a_close_that_is_under_way_is_waited_for() {
        let session = session("127.0.0.1:1", SERVER_MOUNT_POINT);
        assert!(!session.owes() && session.goodbye_max() == GOODBYE);
        session.opens.begin_close(Ino(7)).sent();
        assert!(session.owes() && session.goodbye_max() == PATIENCE);
    }

    /// It has locks, which nobody else gets before it was heard, or its lease is over.
    #[test]
    fn a_mount_has_time_to_say_goodbye_to_a_server_that_is_slow_and_not_away() {
        let session = session("127.0.0.1:1", "/here");
        assert!(!session.owes() && session.goodbye_max() == PATIENCE);
        let away = Duration::from_millis(AWAY_MS + 1);
        *session.heard_at.lock() = clock::now().checked_sub(away).unwrap();
        assert_eq!(session.goodbye_max(), GOODBYE);
    }

    /// Answers the first connection until its session ends, or itself. Returns its requests but
    /// pings.
    fn answered_until_bye(listener: &TcpListener) -> Vec<&'static str> {
        let mut stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut asked = Vec::new();
        while asked.last() != Some(&"bye") {
            let mut frame = vec![0; HEADER_BYTES];
            if let Err(error) = stream.read_exact(&mut frame) {
                assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
                break;
            }
            let header = Header::decode(frame.first_chunk().unwrap()).unwrap();
            frame.resize(HEADER_BYTES + header.body_len as usize, 0);
            stream.read_exact(&mut frame[HEADER_BYTES..]).unwrap();
            let (word, reply) = match parse(&frame).unwrap().1 {
                Request::Hello(_) => (Some("hello"), Reply::Welcome(welcome())),
                Request::Ping { commit, .. } => {
                    (commit.then_some("commit"), Reply::Pong(Committed::default()))
                }
                Request::Bye => (Some("bye"), Reply::Pong(Committed::default())),
                other => panic!("{other:?}"),
            };
            asked.extend(word);
            let request = Envelope::request(header.op, header.client);
            let envelope = Envelope { reply: true, boot_verifier: 1, ..request };
            let mut bytes = Vec::new();
            append_frame(&mut bytes, envelope, &reply, &[]).unwrap();
            stream.write_all(&bytes).unwrap();
        }
        asked
    }

    #[test]
    fn a_session_that_owes_something_has_it_made_durable_before_its_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let session = session(&listener.local_addr().unwrap().to_string(), "/here");
        session.opens.begin_close(Ino(7)).sent();
        let server = std::thread::spawn(move || answered_until_bye(&listener));
        let lease = start_thread(&session).unwrap();
        session.stop();
        lease.join().unwrap();
        assert_eq!(server.join().unwrap(), ["hello", "commit", "bye"]);
    }

    /// It is in the socket of a head, perhaps, and the lock of its file still with this client.
    #[test]
    fn a_session_of_which_a_change_may_still_be_made_is_left_to_its_lease() {
        let (object, rows) = (ObjectId { ino: Ino(7), stripe: 0 }, Arc::new(ChainRows::default()));
        let by = ChainVersion { target: ChainId { copies: 2, index: 0 }.target(), version: 1 };
        let of = ObjectToSync { object, capability: None };
        let mut resent = Some(ResentChange::new(&rows, (1, by), of));
        for heard in [&["hello"][..], &["hello", "bye"][..]] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let session = session(&listener.local_addr().unwrap().to_string(), "/here");
            let _ = session.chain_rows.set(rows.clone());
            let server = std::thread::spawn(move || answered_until_bye(&listener));
            let begun = *session.heard_at.lock();
            let lease = start_thread(&session).unwrap();
            while *session.heard_at.lock() == begun {
                std::thread::sleep(Duration::from_millis(10));
            }
            session.stop();
            lease.join().unwrap();
            assert_eq!(server.join().unwrap(), heard);
            // It is answered when the next one ends.
            resent.take();
        }
    }
}

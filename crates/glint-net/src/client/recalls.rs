//! The connection on which recalls come to a client, and nothing else. It is made again
//! whenever it breaks; recalls that were not answered then come again.
//!
//! Invariant: a server that has started again hears of each client that listens to it what that had
//! open and locked, also where no thread asks anything: all others wait for that, and a client that
//! has not said it within a lease is evicted, though it says that it lives.

use crate::client::connection::Connection;
use crate::client::connection::state::Generation;
use crate::client::outage::backoff;
use crate::client::recovery::connect;
use crate::client::session::ClientSession;
use crate::transport::framing::{Envelope, FrameReader, reply_of, request_frame};
use crate::{NetError, host};
use futures_util::future::{Either, select};
use glint_proto::message::{Reply, Request};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Listens until the client ends.
pub(crate) async fn listen(session: &Arc<ClientSession>) {
    let mut backoff = backoff();
    while !session.is_stopping() {
        let mut connected = false;
        match listen_once(session, &mut connected).await {
            Err(NetError::Closed) if session.is_stopping() => return,
            Err(error) => tracing::debug!(%error, "listening to recalls"),
            Ok(()) => return,
        }
        host::sleep(backoff.pause(connected)).await;
    }
}

async fn listen_once(session: &Arc<ClientSession>, connected: &mut bool) -> Result<(), NetError> {
    let evictions = session.evictions.load(Ordering::Acquire);
    let (writer, mut reader, welcome) = connect(session).await?;
    let listen = Request::Listen;
    let listen = request_frame(Envelope::request(listen.op(), session.client), &listen)?;
    writer.queue().extend_from_slice(&listen);
    writer.flush().await?;
    let then = Generation { boot_verifier: welcome.boot_verifier, evictions };
    if !session.has_recovered(then) {
        // Recovers the session, unless another thread does. With so many others that this one gets
        // no number, one of them does.
        let _ = Connection::of_thread(session);
    }
    let listening = pin!(take_recalls(session, &mut reader, connected));
    match select(listening, pin!(session.until_after(then))).await {
        Either::Left((result, _)) => result,
        Either::Right(_) => Err(NetError::Closed),
    }
}

async fn take_recalls(
    session: &ClientSession,
    reader: &mut FrameReader,
    connected: &mut bool,
) -> Result<(), NetError> {
    loop {
        let (pass, frames) = reader.next_pass().await?;
        for frame in &frames {
            if let Reply::Recalls(recalls) = reply_of(pass.body(frame))? {
                *connected = true;
                let Some(lock_client) = session.lock_client() else { return Ok(()) };
                if !recalls.is_empty() {
                    lock_client.on_recall(recalls);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::recovery::frames::parse;
    use crate::client::recovery::replay_budget::ReplayBudget;
    use crate::client::remote::RemoteOptions;
    use crate::client::session::tests::welcome;
    use crate::runtime;
    use crate::transport::framing::append_frame;
    use glint_proto::ClientId;
    use glint_proto::frame::{HEADER_BYTES, Header};
    use glint_proto::message::Welcome;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    /// Welcomes the next connection, in another run of the server. Returns what is said on it after
    /// that, and the connection.
    fn welcomed(listener: &TcpListener) -> (&'static str, TcpStream) {
        let mut stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        loop {
            let mut frame = vec![0; HEADER_BYTES];
            stream.read_exact(&mut frame).unwrap();
            let header = Header::decode(frame.first_chunk().unwrap()).unwrap();
            frame.resize(HEADER_BYTES + header.body_len as usize, 0);
            stream.read_exact(&mut frame[HEADER_BYTES..]).unwrap();
            match parse(&frame).unwrap().1 {
                Request::Hello(_) => {}
                Request::Listen => return ("listen", stream),
                Request::Recovered => return ("recovered", stream),
                other => panic!("{other:?}"),
            }
            let request = Envelope::request(header.op, header.client);
            let envelope = Envelope { reply: true, boot_verifier: 2, ..request };
            let reply = Reply::Welcome(Welcome { boot_verifier: 2, ..welcome() });
            let mut bytes = Vec::new();
            append_frame(&mut bytes, envelope, &reply, &[]).unwrap();
            stream.write_all(&bytes).unwrap();
        }
    }

    #[test]
    fn a_client_that_asks_nothing_says_after_a_restart_that_it_has_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = crate::Address::parse(&listener.local_addr().unwrap().to_string());
        let options = RemoteOptions { address, mount_point: "/here".into() };
        let (own, budget) = (welcome(), ReplayBudget::simulated());
        let session = ClientSession::new(options, "host".into(), ClientId(1), 2, own, None, budget);
        let (says, said) = std::sync::mpsc::channel();
        let server = std::thread::spawn(move || {
            let (first, listening) = welcomed(&listener);
            says.send(first).unwrap();
            let (second, recovering) = welcomed(&listener);
            says.send(second).unwrap();
            (listening, recovering)
        });
        runtime(None).unwrap().block_on(async {
            let mut heard = Vec::new();
            let hears = async {
                for _ in 0..1000 {
                    heard.extend(said.try_iter());
                    if heard.len() == 2 {
                        break;
                    }
                    host::sleep(Duration::from_millis(10)).await;
                }
            };
            select(pin!(listen(&session)), pin!(hears)).await;
            assert_eq!(heard, ["listen", "recovered"]);
            session.end();
        });
        drop(server.join().unwrap());
    }
}

//! The connection on which recalls come to a client, and nothing else. It is made again
//! whenever it breaks; recalls that were not answered then come again.

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

//! The connection on which servers ask a client: call-backs, and nothing else. It is made again
//! whenever it breaks; what was asked and not answered is then said again.

use crate::client::session::ClientSession;
use crate::transport::framing::{Envelope, FrameReader, FrameWriter, reply_of, request_frame};
use crate::{NetError, host};
use glint_proto::limits::{RECONNECT_MS_MAX, RECONNECT_MS_MIN};
use glint_proto::message::{Reply, Request};
use std::sync::Arc;
use std::time::Duration;

/// Listens until the client ends.
pub(crate) async fn listen(session: &Arc<ClientSession>) {
    let mut pause = RECONNECT_MS_MIN;
    while !session.is_stopping() {
        let mut connected = false;
        match listen_once(session, &mut connected).await {
            Err(NetError::Closed) if session.is_stopping() => return,
            Err(error) => tracing::debug!(%error, "listening to call-backs"),
            Ok(()) => return,
        }
        if connected {
            pause = RECONNECT_MS_MIN;
        }
        host::sleep(Duration::from_millis(pause)).await;
        pause = (2 * pause).min(RECONNECT_MS_MAX);
    }
}

async fn listen_once(session: &Arc<ClientSession>, connected: &mut bool) -> Result<(), NetError> {
    let io = |source| NetError::Io { what: "connecting".into(), source };
    let stream = session.options.address.connect().await.map_err(io)?;
    let mut reader = FrameReader::new(stream.clone());
    let writer = FrameWriter::new(stream);
    let send = |request: &Request<'_>| {
        let envelope = Envelope::request(request.op(), session.client);
        let frame = request_frame(envelope, request)?;
        writer.queue().extend_from_slice(&frame);
        Ok::<_, NetError>(())
    };
    send(&session.hello())?;
    send(&Request::Listen)?;
    writer.flush().await?;
    loop {
        let (pass, frames) = reader.next_pass().await?;
        for frame in &frames {
            match reply_of(pass.body(frame))? {
                Reply::Callbacks(callbacks) => {
                    *connected = true;
                    let Some(lock_client) = session.lock_client() else { return Ok(()) };
                    if !callbacks.is_empty() {
                        lock_client.on_recall(callbacks);
                    }
                }
                Reply::Welcome(welcome) if welcome.evicted => session.evicted(),
                _ => {}
            }
        }
    }
}

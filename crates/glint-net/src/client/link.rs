//! A connection of its own for one conversation: one request at a time, or several, and their
//! answers.
//!
//! Invariant: nothing is waited for longer than a time that whoever asks has named, so a server
//! that is cut off, or stands still, is noticed.

use crate::client::recovery::{ask, open};
use crate::client::remote::explain_early_end;
use crate::transport::frame_writer::{FrameWriter, KeptFrame};
use crate::transport::framing::{Envelope, FrameReader, reply_of, request_frame};
use crate::transport::stream::Address;
use crate::{NetError, host};
use futures_util::future::{Either, select};
use glint_proto::ClientId;
use glint_proto::message::{Reply, Request};
use std::io::ErrorKind;
use std::pin::pin;
use std::time::Duration;

/// Longest time for a connection, and for an answer where nothing else can be done meanwhile.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// A connection on which whoever has it waits for each answer. Both sides see its end when it is
/// dropped.
pub(crate) struct Link {
    writer: FrameWriter,
    reader: FrameReader,
    address: Address,
    /// Client that asks.
    client: ClientId,
    /// The server has answered.
    is_heard: bool,
}

/// Result of `work`, or `TimedOut` after its patience.
async fn in_time<T>(
    what: &str,
    limit: Duration,
    work: impl Future<Output = Result<T, NetError>>,
) -> Result<T, NetError> {
    match select(pin!(work), pin!(host::sleep(limit))).await {
        Either::Left((result, _)) => result,
        Either::Right(_) => {
            Err(NetError::Io { what: what.to_owned(), source: ErrorKind::TimedOut.into() })
        }
    }
}

impl Link {
    /// Connects, in the runtime of this thread or in its simulated world.
    pub(crate) async fn open(
        address: &Address,
        client: ClientId,
        patience: Duration,
    ) -> Result<Link, NetError> {
        let opened = in_time("connecting", patience, open(address)).await;
        let (writer, reader) = opened.map_err(|error| explain_early_end(error, address))?;
        Ok(Link { writer, reader, address: address.clone(), client, is_heard: false })
    }

    /// Asks something, and waits so long for the answer.
    pub(crate) async fn ask(
        &mut self,
        request: &Request<'_>,
        patience: Duration,
    ) -> Result<Reply, NetError> {
        let frame = request_frame(Envelope::request(request.op(), self.client), request)?.into();
        let asking = ask(&self.writer, &mut self.reader, &frame);
        let reply = in_time("waiting for an answer", patience, asking).await;
        let reply = reply.map_err(|error| match self.is_heard {
            true => error,
            false => explain_early_end(error, &self.address),
        })?;
        self.is_heard = true;
        Ok(reply)
    }

    /// Asks several things at once, and waits so long for all answers, which are returned in the order
    /// of the requests.
    pub(crate) async fn ask_all(
        &mut self,
        requests: &[Request<'_>],
        patience: Duration,
    ) -> Result<Vec<Reply>, NetError> {
        let mut frames: Vec<KeptFrame> = Vec::with_capacity(requests.len());
        for (number, request) in (0..).zip(requests) {
            let envelope = Envelope::request(request.op(), self.client);
            frames.push(request_frame(Envelope { xid: number, ..envelope }, request)?.into());
        }
        let asking = ask_all(&self.writer, &mut self.reader, &frames);
        in_time("waiting for answers", patience, asking).await
    }
}

/// Requests under way at once, each with its place as its number, and their answers.
async fn ask_all(
    writer: &FrameWriter,
    reader: &mut FrameReader,
    requests: &[KeptFrame],
) -> Result<Vec<Reply>, NetError> {
    let mut replies: Vec<Option<Reply>> = requests.iter().map(|_| None).collect();
    requests.iter().for_each(|request| writer.push(request));
    while replies.iter().any(Option::is_none) {
        writer.flush().await?;
        let (pass, frames) = reader.next_pass().await?;
        let mut pause = None;
        for frame in &frames {
            let number = frame.header.xid as usize;
            let (Some(place), Some(request)) = (replies.get_mut(number), requests.get(number))
            else {
                continue;
            };
            match reply_of(pass.body(frame))? {
                Reply::Busy { retry_ms } => {
                    writer.push(request);
                    pause = Some(Duration::from_millis(retry_ms.into()));
                }
                reply => *place = Some(reply),
            }
        }
        if let Some(pause) = pause {
            host::sleep(pause).await;
        }
    }
    Ok(replies.into_iter().flatten().collect())
}

impl Drop for Link {
    fn drop(&mut self) {
        self.writer.close();
    }
}

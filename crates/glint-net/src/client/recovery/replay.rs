//! What a server answered and lost is sent again, in its order, one request after the other.
//!
//! Invariants:
//! - Nothing is sent again before what was answered before it: the next one waits for an answer.
//! - A failure that may pass does not end a replay: it is tried again as long as a write that is
//!   sent for the first time would be. Servers answer a number that failed with that failure again,
//!   so each try after it has a number of its own, in a slot that no connection uses.
//! - Acknowledged data that could not be written again is an error of writing behind: the file's
//!   next write, fsync or close fails with it.

use crate::client::connection::Connection;
use crate::client::recovery::ask;
use crate::client::recovery::replay_log::{ToReplay, UncommittedRequest, parse};
use crate::transport::framing::{Envelope, FrameReader, FrameWriter, request_frame};
use crate::{NetError, host};
use glint_proto::frame::{HEADER_BYTES, Header};
use glint_proto::limits::{REPLAY_FAILS_MS_MAX, SLOTS_PER_CONNECTION};
use glint_proto::message::{Reply, Request};
use glint_proto::retry::Failing;
use glint_proto::{Op, clock};
use std::borrow::Cow;
use std::time::{Duration, Instant};

/// A slot for replays that failed, as long as the client lives.
pub(crate) struct Retries {
    slot: u16,
    next_xid: u64,
}

impl Retries {
    /// A slot of the connection of this number.
    pub(crate) fn new((connection, first_xid): (u16, u64)) -> Retries {
        Retries { slot: connection * SLOTS_PER_CONNECTION, next_xid: first_xid }
    }

    /// Gives a frame the next number of the slot.
    fn renumber(&mut self, frame: &mut [u8]) -> Result<(), NetError> {
        let bytes = frame.first_chunk_mut::<HEADER_BYTES>().ok_or(NetError::Closed)?;
        let header = Header::decode(bytes)?;
        *bytes = Header { slot: self.slot, xid: self.next_xid, ..header }.encode();
        self.next_xid += 1;
        Ok(())
    }
}

impl Connection {
    /// Sends again what a server answered and lost.
    pub(crate) async fn replay(
        &self,
        writer: &FrameWriter,
        reader: &mut FrameReader,
        mut lost: ToReplay,
        retries: &mut Option<Retries>,
    ) -> Result<(), NetError> {
        let (requests, writes) = (lost.mds.len(), lost.ost.len());
        if requests + writes == 0 {
            return Ok(());
        }
        tracing::warn!(requests, writes, "the server lost what was not synced; replaying it");
        let result = self.replay_all(writer, reader, &mut lost, retries).await;
        if result.is_err() {
            self.session.replay_log.lock().put_back(lost);
        }
        result
    }

    /// Takes out of `lost` what was sent again.
    async fn replay_all(
        &self,
        writer: &FrameWriter,
        reader: &mut FrameReader,
        lost: &mut ToReplay,
        retries: &mut Option<Retries>,
    ) -> Result<(), NetError> {
        let patience = clock::now() + Duration::from_millis(REPLAY_FAILS_MS_MAX);
        while let Some(request) = lost.mds.front() {
            if let Some(replay) = self.as_replay(request)? {
                let reply = self.ask_again(writer, reader, Cow::Owned(replay), patience, retries);
                match reply.await? {
                    Reply::Mds { transaction, reply: Ok(_), .. } if transaction > 0 => {
                        self.session.log_request(transaction, request.clone());
                    }
                    Reply::Mds { reply: Ok(_), .. } => {}
                    Reply::Mds { reply: Err(errno), .. } => tracing::error!(
                        %errno, "an operation that was acknowledged could not be replayed"
                    ),
                    _ => return Err(NetError::Refused("it did not answer a replay".into())),
                }
            }
            lost.mds.pop_front();
        }
        while let Some(change) = lost.ost.front() {
            let frame = Cow::Borrowed(&change.frame[..]);
            match self.ask_again(writer, reader, frame, patience, retries).await? {
                Reply::Ost { transaction, reply: Ok(_) } => {
                    self.session.log_write(transaction, change.clone());
                }
                Reply::Ost { reply: Err(errno), .. } => {
                    let (ost, object) = change.object;
                    tracing::error!(
                        %errno, ost, %object, "acknowledged data could not be written again"
                    );
                    self.session.fail(object.ino, errno);
                }
                _ => return Err(NetError::Refused("it did not answer a write".into())),
            }
            lost.ost.pop_front();
        }
        Ok(())
    }

    /// Sends a request until it does not fail, or fails for good. What is kept of it keeps its
    /// number: another run of the server may hear it in another order than its retries.
    async fn ask_again(
        &self,
        writer: &FrameWriter,
        reader: &mut FrameReader,
        mut frame: Cow<'_, [u8]>,
        patience: Instant,
        retries: &mut Option<Retries>,
    ) -> Result<Reply, NetError> {
        let mut failing = None;
        loop {
            let reply = ask(writer, reader, &frame).await?;
            let errno = match &reply {
                Reply::Mds { reply: Err(errno), .. } | Reply::Ost { reply: Err(errno), .. } => {
                    *errno
                }
                _ => return Ok(reply),
            };
            let now = clock::now();
            failing = Failing::again(failing, errno, now).filter(|_| now < patience);
            let (Some(failing), Some(retries)) = (failing, self.retries(retries)) else {
                return Ok(reply);
            };
            retries.renumber(frame.to_mut())?;
            host::sleep(failing.rests_until.saturating_duration_since(now)).await;
        }
    }

    /// Where retries are numbered; `None` if all connections have their threads.
    fn retries<'a>(&self, retries: &'a mut Option<Retries>) -> Option<&'a mut Retries> {
        if retries.is_none() {
            *retries = self.session.numbers.lock().take().map(Retries::new);
        }
        retries.as_mut()
    }

    /// The frame that replays a request, if it is one to an MDS.
    fn as_replay(&self, logged: &UncommittedRequest) -> Result<Option<Vec<u8>>, NetError> {
        let Some((header, Request::Mds { cred, request })) = parse(&logged.frame) else {
            return Ok(None);
        };
        let envelope = Envelope {
            slot: header.slot,
            xid: header.xid,
            ..Envelope::request(Op::Recovery, self.session.client)
        };
        let (reply, proof) = (logged.reply.clone(), logged.proof);
        let replay = Request::Replay { cred, request, reply, proof };
        request_frame(envelope, &replay).map(Some)
    }
}

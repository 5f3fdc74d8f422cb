//! Replay of requests that a server answered and lost: in their order, one after the other.
//!
//! Invariants:
//! - A request to be replayed belongs to the log until it is answered: until then it is unstable,
//!   and a replay that is dropped or interrupted leaves it there. An eviction ends it.
//! - Nothing is sent again before what was answered before it: the next one waits for an answer.
//! - Changes of chains are not among them: they are sent to whichever is the head, by all servers'
//!   [`Cluster`](crate::Cluster).
//! - A failure that may pass does not end a replay: it is tried again as long as a write that is
//!   sent for the first time would be. Servers answer a number that failed with that failure again,
//!   so each try after it has a number of its own, in a slot that no connection uses.
//! - An acknowledged change that could not be made again is an error of writing behind: the next
//!   write, fsync or close of the file, or fsync of the directory, fails with it.

use crate::client::connection::Connection;
use crate::client::recovery::ask;
use crate::client::recovery::frames::{object_of, parse};
use crate::client::recovery::lost::lost;
use crate::client::recovery::replay_log::{UncommittedRequest, UncommittedWrite};
use crate::transport::frame_writer::{FrameWriter, KeptFrame};
use crate::transport::framing::{Envelope, FrameReader, request_frame};
use crate::{NetError, host};
use glint_proto::frame::{HEADER_BYTES, Header};
use glint_proto::limits::{REPLAY_FAILS_MS_MAX, SLOTS_PER_CONNECTION};
use glint_proto::message::{Reply, Request};
use glint_proto::retry::Failing;
use glint_proto::{FsResult, MdsReply, Op, clock};
use glint_telemetry::event;
use std::sync::atomic::Ordering;
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

    /// The next number: its slot and xid.
    fn next(&mut self) -> (u16, u64) {
        self.next_xid += 1;
        (self.slot, self.next_xid - 1)
    }
}

/// Gives a frame another number.
fn renumber(frame: &mut [u8], (slot, xid): (u16, u64)) -> Result<(), NetError> {
    let bytes = frame.first_chunk_mut::<HEADER_BYTES>().ok_or(NetError::Closed)?;
    let header = Header::decode(bytes)?;
    *bytes = Header { slot, xid, ..header }.encode();
    Ok(())
}

impl Connection {
    /// Sends again what a server answered and lost. Fails if this client was evicted since there had
    /// been so many `evictions`: then nothing of it is to be sent any more.
    pub(crate) async fn replay(
        &self,
        writer: &FrameWriter,
        reader: &mut FrameReader,
        evictions: u64,
        retries: &mut Option<Retries>,
    ) -> Result<(), NetError> {
        let (requests, writes) = {
            let mut log = self.session.replay_log.lock();
            (log.unreplayed().mds.len(), log.unreplayed().ost.len())
        };
        if requests + writes == 0 {
            return Ok(());
        }
        tracing::warn!(
            event = event::REPLAY_STARTED,
            requests,
            writes,
            "the server lost what was not synced; replaying it"
        );
        // Until when failures are tried again, from the first one on.
        let mut patience = None;
        let run = self.session.boot_verifier.load(Ordering::Acquire);
        let is_over = || self.session.evictions.load(Ordering::Acquire) != evictions;
        loop {
            // A request stays in the log until it is answered: it is unstable, and this task may be
            // dropped.
            let Some(request) = self.session.replay_log.lock().unreplayed().mds.front().cloned()
            else {
                break;
            };
            let Some(replay) = self.as_replay(&request)? else {
                self.session.replay_log.lock().unreplayed().mds.pop_front();
                continue;
            };
            let reply =
                self.ask_again(writer, reader, replay, request.retry, &mut patience, retries);
            let Reply::Mds { transaction, reply, .. } = reply.await? else {
                return Err(NetError::Refused("it did not answer a replay".into()));
            };
            self.tell_lost(&request, &reply);
            let logged = (reply.is_ok() && transaction > 0).then_some(transaction);
            let mut log = self.session.log_of_run(run).ok_or(NetError::Closed)?;
            if is_over() {
                return Err(NetError::Closed);
            }
            if let (Some(request), Some(transaction)) = (log.unreplayed().mds.pop_front(), logged) {
                log.keep_request(transaction, request);
            }
        }
        loop {
            let Some(change) = self.session.replay_log.lock().begin_replay() else { break };
            let (ost, object) = change.object;
            let frame = change.frame;
            let reply = self.ask_again(writer, reader, frame, change.retry, &mut patience, retries);
            let logged = match reply.await? {
                Reply::Ost { transaction, reply: Ok(_) } => Some(transaction),
                Reply::Ost { reply: Err(errno), .. } => {
                    tracing::error!(
                        event = event::REPLAY_FAILED, %errno, ost, %object,
                        "acknowledged data could not be written again"
                    );
                    self.session.fail(object.ino, errno);
                    None
                }
                _ => return Err(NetError::Refused("it did not answer a write".into())),
            };
            let mut log = self.session.log_of_run(run).ok_or(NetError::Closed)?;
            if is_over() {
                return Err(NetError::Closed);
            }
            log.end_replay();
            // The write has left the log if its lock was returned while it rested after a failure.
            let is_there = |first: &UncommittedWrite| first.object == (ost, object);
            let change = match log.unreplayed().ost.front().is_some_and(is_there) {
                true => log.unreplayed().ost.pop_front(),
                false => None,
            };
            match change.zip(logged) {
                Some((change, transaction)) => log.keep_write(transaction, change),
                None => drop(log),
            }
            self.session.on_replay_end();
        }
        Ok(())
    }

    /// Has the files and directories hear of it that a replayed request did not change again.
    fn tell_lost(&self, logged: &UncommittedRequest, replayed: &FsResult<MdsReply>) {
        let Some((_, Request::Mds { request, .. })) = parse(&logged.frame.head) else { return };
        let lost = lost(&request, &logged.reply, replayed);
        if let Err(errno) = replayed {
            tracing::error!(
                event = event::REPLAY_FAILED, %errno, op = ?request.op(),
                "an operation that was acknowledged could not be replayed"
            );
        }
        for (ino, errno) in lost {
            tracing::error!(
                event = event::REPLAY_FAILED, %errno, %ino,
                "an acknowledged change is lost"
            );
            self.session.fail(ino, errno);
        }
    }

    /// Sends a request until it does not fail, or fails for good. Its log keeps its own number for
    /// another run of the server, and the number of the last retry for this one.
    async fn ask_again(
        &self,
        writer: &FrameWriter,
        reader: &mut FrameReader,
        mut frame: KeptFrame,
        retry: Option<(u16, u64)>,
        patience: &mut Option<Instant>,
        retries: &mut Option<Retries>,
    ) -> Result<Reply, NetError> {
        if let Some(number) = retry {
            renumber(&mut frame.head, number)?;
        }
        let object = object_of(&frame.head);
        let mut failing = None;
        loop {
            let reply = ask(writer, reader, &frame).await?;
            let errno = match &reply {
                Reply::Mds { reply: Err(errno), .. } | Reply::Ost { reply: Err(errno), .. } => {
                    *errno
                }
                _ => {
                    *patience = None;
                    return Ok(reply);
                }
            };
            let now = clock::now();
            let patience =
                *patience.get_or_insert_with(|| now + Duration::from_millis(REPLAY_FAILS_MS_MAX));
            failing = Failing::again(failing, errno, now).filter(|_| now < patience);
            let (Some(failing), Some(retries)) = (failing, self.retries(retries)) else {
                return Ok(reply);
            };
            let number = retries.next();
            renumber(&mut frame.head, number)?;
            if object.is_some() {
                self.session.replay_log.lock().end_replay();
                self.session.on_replay_end();
            }
            host::sleep(failing.rests_until.saturating_duration_since(now)).await;
            // Where the lock on an object was returned meanwhile, it is not written any more.
            if !self.session.replay_log.lock().note_retry(object, number) {
                return Ok(reply);
            }
        }
    }

    /// Where retries are numbered; `None` if all connections have their threads.
    fn retries<'a>(&self, retries: &'a mut Option<Retries>) -> Option<&'a mut Retries> {
        if retries.is_none() {
            *retries = self.session.connection_numbers.lock().take().map(Retries::new);
        }
        retries.as_mut()
    }

    /// The frame that replays a request, if it is one to an MDS.
    fn as_replay(&self, logged: &UncommittedRequest) -> Result<Option<KeptFrame>, NetError> {
        let Some((header, Request::Mds { cred, request })) = parse(&logged.frame.head) else {
            return Ok(None);
        };
        let envelope = Envelope {
            slot: header.slot,
            xid: header.xid,
            ..Envelope::request(Op::Recovery, self.session.client)
        };
        let (reply, capability) = (logged.reply.clone(), logged.capability);
        let replay = Request::Replay { cred, request, reply, capability };
        Ok(Some(request_frame(envelope, &replay)?.into()))
    }
}

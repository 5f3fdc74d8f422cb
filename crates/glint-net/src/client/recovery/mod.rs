//! Recovery of a session on a new connection, before any other request. Hello comes first: the
//! client, and the run of the server that it heard of last. A server that has started again, or has
//! evicted this client, must then know what the client has open and locked, and what was lost:
//! those are the [steps](RecoveryStep), which the first connection of a session that hears of it
//! takes for all; others wait for it.
//!
//! Invariant: lost requests are [replayed](replay) in their order, after all else. Opens and locks
//! are reclaimed many in one request: their order means nothing, and a repetition does no harm.

pub(crate) mod abandoned;
pub(crate) mod frames;
mod lost;
pub(crate) mod replay;
pub(crate) mod replay_budget;
pub(crate) mod replay_log;
pub(crate) mod resent;

use crate::client::connection::Connection;
use crate::client::connection::state::{Generation, RecoveryStep};
use crate::client::session::ClientSession;
use crate::transport::frame_writer::{FrameWriter, KeptFrame};
use crate::transport::framing::{Envelope, FrameReader, append_frame, reply_of, request_frame};
use crate::transport::stream::Address;
use crate::{NetError, host};
use glint_proto::frame::{HEADER_BYTES, Header, NO_SLOT};
use glint_proto::limits::{RECLAIMS_MAX, SLOTS_PER_CONNECTION};
use glint_proto::message::{Reply, Request, Welcome};
use glint_proto::{FsResult, MdsReply, MdsRequest, Reclaim};
use glint_telemetry::event;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SLOTS: usize = SLOTS_PER_CONNECTION as usize;

impl Connection {
    /// Takes the steps that the session needs after hello. Returns the generation in which this
    /// connection may become active.
    pub(crate) async fn recover(
        &self,
        writer: &FrameWriter,
        reader: &mut FrameReader,
        welcome: &Welcome,
    ) -> Result<Generation, NetError> {
        // As of the welcome: while this connection waits for its turn, others may recover more.
        let counted = self.session.boot_verifier.load(Ordering::Acquire);
        let evictions = self.session.evictions.load(Ordering::Acquire);
        let now = Generation { boot_verifier: welcome.boot_verifier, evictions };
        let mut recovery = self.session.recovery.lock().await;
        let boot_verifier = self.session.boot_verifier.load(Ordering::Acquire);
        if boot_verifier != counted && boot_verifier != now.boot_verifier {
            // The run that has welcomed this connection has ended, and another one is counted.
            return Err(NetError::Closed);
        }
        self.state.borrow_mut().on_welcome(now, recovery.progress.first_step(now));
        self.on_evictions();
        let mut held = Vec::new();
        loop {
            let step = self.state.borrow().step().ok_or(NetError::Closed)?;
            match step {
                RecoveryStep::ForgetLocks => {
                    held = self.forget_locks(recovery.progress.is_evicted(now)).await;
                    if !self.session.is_of_oss() {
                        self.session.begin_at_osses(welcome.session, evictions);
                    }
                }
                RecoveryStep::Reclaim => {
                    self.reopen_and_reclaim(writer, reader, std::mem::take(&mut held)).await?;
                }
                RecoveryStep::Replay => {
                    if self.session.boot_verifier.load(Ordering::Acquire) != welcome.boot_verifier {
                        self.session.count_anew(welcome.boot_verifier, welcome.survived);
                    }
                    self.replay(writer, reader, evictions, &mut recovery.retries).await?;
                    // Another thread may have heard that it is durable before the answer was here.
                    self.session.forget_durable(None, &mut drop);
                }
                RecoveryStep::SayRecovered => {
                    let recovered = self.request(&Request::Recovered)?;
                    ask(writer, reader, &recovered.into()).await?;
                }
                RecoveryStep::SendAgain => return Ok(now),
            }
            recovery.progress.on_step_taken(step, now);
            self.state.borrow_mut().on_step_taken();
        }
    }

    /// Has the lock client forget its locks. Returns what it reclaims.
    async fn forget_locks(&self, evicted: bool) -> Vec<MdsRequest<'static>> {
        let mut held = match self.session.lock_client() {
            Some(lock_client) => lock_client.on_server_restart(evicted).await,
            None => Vec::new(),
        };
        // Opens that the client made by itself are told with all others, as how much is open, not
        // how much more.
        held.retain(|request| match request {
            MdsRequest::AddOpens { ino, readers } => {
                self.session.opens.on_declared(*ino, *readers);
                false
            }
            _ => true,
        });
        held
    }

    /// Opens again what is open, and takes again what was held.
    async fn reopen_and_reclaim(
        &self,
        writer: &FrameWriter,
        reader: &mut FrameReader,
        held: Vec<MdsRequest<'static>>,
    ) -> Result<(), NetError> {
        let mut requests = self.session.opens.to_reclaim();
        requests.extend(held);
        let lock_client = self.session.lock_client();
        self.reclaim_all(writer, reader, &requests, |request, reply| match (request, reply) {
            (MdsRequest::Reopen { ino, .. }, Err(errno)) => {
                tracing::error!(
                    event = event::REOPEN_FAILED, %ino, %errno,
                    "a file that is open here could not be opened again"
                );
            }
            (MdsRequest::Reopen { .. }, Ok(_)) => {}
            (request, reply) => {
                if let Some(lock_client) = &lock_client {
                    lock_client.on_reclaimed(request, reply);
                }
            }
        })
        .await
    }

    /// Says what was held before, many things in one request. Their order means nothing.
    async fn reclaim_all(
        &self,
        writer: &FrameWriter,
        reader: &mut FrameReader,
        held: &[MdsRequest<'static>],
        mut answered: impl FnMut(&MdsRequest<'static>, FsResult<MdsReply>),
    ) -> Result<(), NetError> {
        let parts: Vec<&[MdsRequest<'static>]> = held.chunks(RECLAIMS_MAX).collect();
        let mut queue: VecDeque<usize> = (0..parts.len()).collect();
        let mut under_way = 0;
        while under_way > 0 || !queue.is_empty() {
            while under_way < SLOTS
                && let Some(at) = queue.pop_front()
            {
                let items: Option<Vec<Reclaim>> = parts[at].iter().map(Reclaim::of).collect();
                let no_item = || NetError::Refused("it is asked for what cannot be held".into());
                let request = Request::Reclaim(items.ok_or_else(no_item)?);
                let envelope = Envelope {
                    xid: at as u64,
                    ..Envelope::request(request.op(), self.session.client)
                };
                append_frame(&mut writer.queue(), envelope, &request, &[])
                    .map_err(|errno| NetError::Refused(errno.to_string()))?;
                under_way += 1;
            }
            writer.flush().await?;
            let (pass, frames) = reader.next_pass().await?;
            let mut pause = None;
            for frame in &frames {
                under_way -= 1;
                let at = frame.header.xid as usize;
                match (reply_of(pass.body(frame))?, parts.get(at)) {
                    (Reply::Busy { retry_ms }, Some(_)) => {
                        queue.push_back(at);
                        pause = Some(retry_ms);
                    }
                    (Reply::Reclaimed(replies), Some(part)) if replies.len() == part.len() => {
                        part.iter().zip(replies).for_each(|(item, reply)| answered(item, reply));
                    }
                    _ => return Err(NetError::Refused("it did not take what is open".into())),
                }
            }
            if let Some(retry_ms) = pause {
                host::sleep(Duration::from_millis(retry_ms.into())).await;
            }
        }
        Ok(())
    }
}

/// How long a server's host may be silent, at least.
const SILENCE_MIN: Duration = Duration::from_secs(3);

/// Connects.
pub(crate) async fn open(address: &Address) -> Result<(FrameWriter, FrameReader), NetError> {
    let io = |source| NetError::Io { what: "connecting".into(), source };
    let stream = address.connect().await.map_err(io)?;
    Ok((FrameWriter::new(stream.clone()), FrameReader::new(stream)))
}

/// Connects and says hello.
pub(crate) async fn connect(
    session: &ClientSession,
) -> Result<(FrameWriter, FrameReader, Welcome), NetError> {
    let io = |source| NetError::Io { what: "connecting".into(), source };
    let stream = session.options.address.connect().await.map_err(io)?;
    // Within the lease: recalls that do not come cost this client its session.
    let lease = Duration::from_millis(session.welcome.lease_ms);
    stream.limit_silence((lease / 2).max(SILENCE_MIN)).map_err(io)?;
    let (writer, mut reader) = (FrameWriter::new(stream.clone()), FrameReader::new(stream));
    let (hello, mark) = session.hello();
    let frame = request_frame(Envelope::request(hello.op(), session.client), &hello)?;
    let welcome = session.on_welcome(ask(&writer, &mut reader, &frame.into()).await?, mark)?;
    Ok((writer, reader, welcome))
}

/// A request and its answer, before the connection is open to others. What answers another number is
/// left out: a request that has arrived twice is answered twice.
pub(crate) async fn ask(
    writer: &FrameWriter,
    reader: &mut FrameReader,
    frame: &KeptFrame,
) -> Result<Reply, NetError> {
    let head = frame.head.first_chunk::<HEADER_BYTES>().ok_or(NetError::Closed)?;
    let asked = Header::decode(head)?;
    let is_answer = |header: &Header| {
        header.slot == NO_SLOT || (header.slot, header.xid) == (asked.slot, asked.xid)
    };
    loop {
        writer.push(frame);
        writer.flush().await?;
        let reply = loop {
            let (pass, frames) = reader.next_pass().await?;
            if let Some(answer) = frames.iter().find(|frame| is_answer(&frame.header)) {
                break reply_of(pass.body(answer))?;
            }
        };
        match reply {
            Reply::Busy { retry_ms } => {
                host::sleep(Duration::from_millis(retry_ms.into())).await;
            }
            reply => return Ok(reply),
        }
    }
}

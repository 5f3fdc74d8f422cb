//! What a client says to a server that has started again, or has evicted it, before anything
//! else: what it has open, locked and for itself, and what that server lost.
//!
//! Invariant: what was lost is [sent again](replay) in its order, after all else. That is
//! said many things in one request: their order means nothing, and saying them twice does no harm.

pub(crate) mod replay;
pub(crate) mod replay_log;

use crate::client::connection::Connection;
use crate::client::recovery::replay::Retries;
use crate::client::session::OpenCount;
use crate::transport::framing::{Envelope, FrameReader, FrameWriter, append_frame, reply_of};
use crate::{NetError, host};
use glint_proto::limits::{RECLAIMS_MAX, SLOTS_PER_CONNECTION};
use glint_proto::message::{Reply, Request, Welcome};
use glint_proto::{FsResult, MdsReply, MdsRequest, Reclaim};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SLOTS: usize = SLOTS_PER_CONNECTION as usize;

impl Connection {
    /// A server that has started again, or evicted this client, is told what is open; what
    /// it lost is sent again.
    pub(crate) async fn recover(
        &self,
        writer: &FrameWriter,
        reader: &mut FrameReader,
        welcome: &Welcome,
    ) -> Result<(), NetError> {
        let mut recovery = self.session.recovery.lock().await;
        let now = (welcome.boot_verifier, self.session.evictions.load(Ordering::Acquire));
        if recovery.heard == now {
            return Ok(());
        }
        if recovery.said != now {
            let evicted = now.1 != recovery.heard.1;
            let retries = &mut recovery.retries;
            self.say_again(writer, reader, welcome, evicted, retries).await?;
            recovery.said = now;
        }
        // Once the server has heard this it waits for nothing more, and takes nothing more.
        ask(writer, reader, &self.request(&Request::Recovered)?).await?;
        recovery.heard = now;
        Ok(())
    }

    /// All that a server must know of this client.
    async fn say_again(
        &self,
        writer: &FrameWriter,
        reader: &mut FrameReader,
        welcome: &Welcome,
        evicted: bool,
        retries: &mut Option<Retries>,
    ) -> Result<(), NetError> {
        let lock_client = self.session.lock_client();
        let mut held = match &lock_client {
            Some(lock_client) => lock_client.on_server_restart(evicted).await,
            None => Vec::new(),
        };
        // What it opened by itself is said with the rest: how much is open, not how much more.
        held.retain(|request| {
            let opens = matches!(request, MdsRequest::AddOpens { .. });
            if opens {
                self.session.note_open(request, &Ok(MdsReply::Done));
            }
            !opens
        });
        let reopen = |(ino, OpenCount { readers, writers, proof })| MdsRequest::Reopen {
            ino,
            readers,
            writers,
            proof,
        };
        let mut requests: Vec<_> = self.session.opens().into_iter().map(reopen).collect();
        requests.extend(held);
        self.reclaim_all(writer, reader, &requests, |request, reply| match (request, reply) {
            (MdsRequest::Reopen { ino, .. }, Err(errno)) => {
                tracing::error!(%ino, %errno, "a file that is open here could not be opened again");
            }
            (MdsRequest::Reopen { .. }, Ok(_)) => {}
            (request, reply) => {
                if let Some(lock_client) = &lock_client {
                    lock_client.on_reclaimed(request, reply);
                }
            }
        })
        .await?;
        let lost = match self.session.run.load(Ordering::Acquire) == welcome.boot_verifier {
            // What an attempt before this one left.
            true => self.session.replay_log.lock().take_interrupted(),
            false => self.session.count_anew(welcome.boot_verifier, welcome.survived),
        };
        self.replay(writer, reader, lost, retries).await
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

/// A request and its answer, before the connection is open to others.
pub(crate) async fn ask(
    writer: &FrameWriter,
    reader: &mut FrameReader,
    frame: &[u8],
) -> Result<Reply, NetError> {
    loop {
        writer.queue().extend_from_slice(frame);
        writer.flush().await?;
        let (pass, frames) = reader.next_pass().await?;
        let first = frames.first().ok_or(NetError::Closed)?;
        match reply_of(pass.body(first))? {
            Reply::Busy { retry_ms } => {
                host::sleep(Duration::from_millis(retry_ms.into())).await;
            }
            reply => return Ok(reply),
        }
    }
}

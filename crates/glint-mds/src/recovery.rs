//! After a restart: clients of the last run come back, say what they have open and, where
//! the disk lost what was not synced, do again what they remember.
//!
//! Invariants:
//! - Until all clients of the last run have come back, or their time is over, nothing new
//!   is executed where transactions may be missing: it could take the place of what is
//!   still to be replayed. That holds for the runs that follow, until one ends the wait.
//! - Nor is anything where clients hold locks: nobody is given what another one still has, and
//!   says again.
//! - Until then nothing that a client may still have open is removed.

use crate::claims::wake;
use crate::context::Context;
use crate::error::errno;
use crate::keys;
use crate::reaper::Targets;
use crate::service::Mds;
use crate::session::SessionInfo;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::{ClientId, FsResult, MdsReply, MdsRequest, clock};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

#[derive(Default)]
struct State {
    waiting: HashSet<ClientId>,
    until: Option<Instant>,
    parked: Vec<Waker>,
}

/// Whom this run of the MDS waits for.
#[derive(Default)]
pub(crate) struct Recovery {
    /// Somebody is waited for.
    active: AtomicBool,
    /// New requests wait, too.
    blocks: AtomicBool,
    /// They did, and it is still written down that they must.
    replayed: AtomicBool,
    state: Mutex<State>,
}

impl Recovery {
    /// Begins to wait for `clients`.
    pub(crate) fn begin(
        &self,
        clients: HashSet<ClientId>,
        time: Duration,
        replays: bool,
        locks: bool,
    ) {
        if clients.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        state.waiting = clients;
        state.until = Some(clock::now() + time);
        self.blocks.store(replays || locks, Ordering::Release);
        self.replayed.store(replays, Ordering::Release);
        self.active.store(true, Ordering::Release);
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// A client has come back and said everything.
    pub(crate) fn returned(&self, client: ClientId) {
        let mut state = self.state.lock();
        state.waiting.remove(&client);
        if state.waiting.is_empty() {
            self.end(state);
        }
    }

    fn end(&self, mut state: MutexGuard<'_, State>) {
        self.active.store(false, Ordering::Release);
        self.blocks.store(false, Ordering::Release);
        state.until = None;
        let parked = std::mem::take(&mut state.parked);
        drop(state);
        wake(parked);
    }

    /// Clients that did not come in time. Until they are given up the others go on waiting.
    fn overdue(&self) -> Option<Vec<ClientId>> {
        let mut state = self.state.lock();
        let over = state.until.is_some_and(|until| clock::now() >= until);
        over.then(|| state.waiting.drain().collect())
    }

    /// Parks a new request until it may be executed.
    pub(crate) async fn permits_new(&self) {
        if !self.blocks.load(Ordering::Acquire) {
            return;
        }
        poll_fn(|context| {
            let mut state = self.state.lock();
            if !self.blocks.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            state.parked.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl<K: Kv> Mds<K> {
    /// The batch of a create survived, but that it left the file open did not.
    pub(crate) fn recover_open(
        &self,
        context: &Context<'_>,
        request: &MdsRequest<'_>,
        reply: &FsResult<MdsReply>,
    ) {
        let write = match request {
            MdsRequest::Create { open: Some(flags), .. } => flags.write,
            MdsRequest::Open { flags, .. } => flags.write,
            MdsRequest::Tmpfile { .. } => true,
            MdsRequest::Batch { changes, .. } => {
                if let Ok(MdsReply::Batched { done, .. }) = reply {
                    self.recover_batch(context, changes, *done);
                }
                return;
            }
            _ => return,
        };
        if let Ok(MdsReply::Opened { attr, .. } | MdsReply::Attr(attr)) = reply {
            self.opens.add(context.client, attr.ino, write);
        }
    }

    /// A client has come back and said everything.
    pub fn recovered(&self, client: ClientId) {
        self.recovery.returned(client);
    }

    /// Whether clients of the last run are waited for.
    pub fn is_recovering(&self) -> bool {
        self.recovery.is_active()
    }

    /// Gives up clients that did not come back.
    pub(crate) async fn end_recovery(&self, targets: &impl Targets) -> FsResult<()> {
        let lost = self.recovery.replayed.load(Ordering::Acquire);
        if !self.recovery.is_active() && self.recovery.replayed.swap(false, Ordering::AcqRel) {
            let mut batch = Batch::new();
            batch.delete(Keyspace::Meta, keys::META_REPLAYING);
            self.kv.commit(batch, &[]).await.map_err(errno)?;
        }
        let Some(overdue) = self.recovery.overdue() else { return Ok(()) };
        for client in overdue {
            let Some(SessionInfo { host, mount_point, .. }) = self.session(client) else {
                continue;
            };
            let loss = match lost {
                true => "what it had not synced before the server lost power is lost",
                false => "nothing that was acknowledged is lost",
            };
            tracing::warn!(
                %client, host, mount_point,
                "client did not come back within {} s and is evicted: {loss}; its open files \
                 are closed", self.config.lease.as_secs()
            );
            self.fence_and_evict(client, targets).await?;
        }
        self.recovery.end(self.recovery.state.lock());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    #[test]
    fn new_requests_wait_for_all_who_may_come_back() {
        let recovery = Recovery::default();
        let clients = HashSet::from([ClientId(1), ClientId(2)]);
        recovery.begin(clients, Duration::from_millis(50), false, true);
        let mut new = Box::pin(recovery.permits_new());
        assert!(block_on(poll_once(&mut new)).is_none());
        recovery.returned(ClientId(1));
        assert!(block_on(poll_once(&mut new)).is_none());
        assert!(recovery.overdue().is_none());
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(recovery.overdue(), Some(vec![ClientId(2)]));
        assert!(block_on(poll_once(&mut new)).is_none(), "before it is fenced");
        recovery.end(recovery.state.lock());
        assert!(block_on(poll_once(&mut new)).is_some());
        assert!(!recovery.is_active());
    }
}

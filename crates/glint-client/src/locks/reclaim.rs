//! Reclaim of locks when the servers have forgotten all, because they have started again or have
//! evicted this client: what is kept is said again, what is not given again is lost.

use crate::client::Client;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use glint_net::Transport;
use glint_net::host::{self, UnblockedWork};
use glint_proto::{Access, Errno, FsResult, MdsReply, MdsRequest};
use glint_telemetry::event;
use std::time::Duration;

/// How long the servers are not told that all is forgotten while the kernel still does.
const KERNEL_PATIENCE: Duration = Duration::from_secs(1);

impl<T: Transport> Client<T> {
    /// The servers have forgotten all locks. Returns what has to be said to keep those on data.
    pub(crate) async fn start_anew(&self, evicted: bool) -> Vec<MdsRequest<'static>> {
        self.cache.begin_generation(evicted);
        self.locks.returns.on_locks_forgotten();
        self.data.limits.nothing_is_kept();
        let mut requests = Vec::new();
        if !evicted && self.log.is_on() {
            requests.push(MdsRequest::WritesBack { epoch: self.log.epoch() });
        }
        let mut lost = 0;
        for inode in self.cache.all() {
            let mut state = inode.lock();
            state.on_locks_forgotten();
            let mut locks = Vec::new();
            if let Some(rare) = state.rare.made() {
                locks = rare.data_locks.lose();
                rare.data.change();
                if evicted {
                    rare.data_locks.forget_lost();
                    rare.capabilities.clear();
                }
            }
            let opens = state.pins.take_undeclared();
            // Delegations that are being returned just now are reclaimed, too: nobody may see the
            // directory before the changes are there.
            let delegation = &state.rare.delegation;
            let is_pending = self.log.is_pending(delegation.last_change());
            let owns = delegation.is_delegated() || delegation.is_ending() || is_pending;
            drop(state);
            inode.wake();
            if opens > 0 {
                requests.push(MdsRequest::AddOpens { ino: inode.ino, readers: opens });
            }
            if evicted {
                lost += self.discard(&inode, Errno::EIO);
                continue;
            }
            if owns {
                requests.push(MdsRequest::ReclaimDelegation { ino: inode.ino });
            }
            for lock in locks {
                let (ino, range, write) = (inode.ino, lock.range, lock.write);
                let access = if write { Access::WRITE } else { Access::READ };
                let capability = inode.lock().rare.capabilities.allowing(access);
                requests.push(MdsRequest::Lock { ino, range, write, reclaim: true, capability });
            }
        }
        match evicted {
            true => {
                self.lose_log();
                let locks = self.locks.posix.clear();
                if locks > 0 {
                    tracing::error!(locks, "locks that programs had taken are lost");
                }
            }
            false => requests.extend(self.locks.posix.to_reclaim()),
        }
        if lost > 0 {
            tracing::error!(
                event = event::DATA_LOST,
                lost,
                "bytes that were written and not yet sent are lost"
            );
        }
        wait_a_while(self.forget_cached()).await;
        requests
    }

    /// The answer to one of these has come.
    pub(crate) fn learn_reclaimed(&self, request: &MdsRequest<'static>, reply: FsResult<MdsReply>) {
        let ino = match (request, &reply) {
            (MdsRequest::Lock { ino, .. }, _) => ino,
            (_, Ok(_)) => return,
            (MdsRequest::ReclaimDelegation { ino }, Err(errno)) => {
                // Others may have been there.
                tracing::error!(%ino, %errno, "a directory is not delegated to this client any more");
                let inode = self.cache.inode(*ino);
                self.end_delegation(&inode);
                let mut state = inode.lock();
                state.dentries.clear();
                return;
            }
            (request, Err(errno)) => {
                tracing::error!(?request, %errno, "what was held before was not given again");
                return;
            }
        };
        let inode = self.cache.inode(*ino);
        match reply {
            Ok(MdsReply::Locked(lock)) => inode.lock().rare.make().data_locks.found(lock),
            _ => {
                if let Some(rare) = inode.lock().rare.made() {
                    rare.data_locks.forget_lost();
                }
                let lost = self.discard(&inode, Errno::EIO);
                tracing::error!(
                    event = event::DATA_LOST, %ino, lost,
                    "a lock was not given again; what was cached is lost"
                );
            }
        }
        inode.wake();
    }
}

/// Until the kernel has forgotten, if it does soon.
async fn wait_a_while(forgetting: Vec<UnblockedWork<()>>) {
    if forgetting.is_empty() {
        return;
    }
    let mut forgetting: FuturesUnordered<_> = forgetting.into_iter().collect();
    let patience = host::sleep(KERNEL_PATIENCE);
    let all = async { while forgetting.next().await.is_some() {} };
    if let Either::Right(_) = select(std::pin::pin!(all), std::pin::pin!(patience)).await {
        tracing::warn!("the kernel takes long to forget what it has cached");
    }
    forgetting.into_iter().for_each(UnblockedWork::detach);
}

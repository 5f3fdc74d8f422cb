//! Locks on data: taken before it is read or written, kept until a server asks for them.
//!
//! Invariants:
//! - A lock is given up only when nobody uses it, the kernel has forgotten the pages that were
//!   read under it, and everything that was written under it is at the OSTs.
//! - A request that comes from pages of the kernel waits for a lock only while this client
//!   holds none on the inode: the kernel keeps such pages locked, and giving a lock up waits
//!   for pages.
//! - While the inode is open to read and write, only locks to write are taken, because pages
//!   that are mapped become dirty without a word.

use crate::client::Client;
use crate::node::Node;
use glint_lock::held::Use;
use glint_net::{Holder, Transport, host};
use glint_proto::lock::{Callback, Cancel, Grant, Range};
use glint_proto::{Errno, FsResult, MdsReply, MdsRequest};
use std::sync::Arc;
use std::time::Duration;

/// Pause of who owes too many locks.
const OWED: Duration = Duration::from_millis(10);

/// A lock in use.
pub(crate) struct Guard {
    node: Arc<Node>,
    id: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let give_up = self.node.state().data.end(self.id);
        if give_up {
            self.node.wake();
        }
    }
}

/// The turn to ask for a lock on an inode.
struct Turn<'a>(&'a Node);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state().acquiring = false;
        self.0.wake();
    }
}

impl<T: Transport> Client<T> {
    /// A lock that covers `range`, to write or to read.
    pub(crate) async fn lock_data(
        &self,
        node: &Arc<Node>,
        range: Range,
        write: bool,
        purpose: Use,
    ) -> FsResult<Guard> {
        let held = node
            .until(|state| {
                let write = write || (purpose == Use::Pages && state.shared_writers > 0);
                if let Some(id) = state.data.begin(range, write, purpose) {
                    return Some(Ok(id));
                }
                if state.acquiring {
                    return None;
                }
                state.acquiring = true;
                Some(Err(write))
            })
            .await;
        let write = match held {
            Ok(id) => return Ok(Guard { node: node.clone(), id }),
            Err(write) => write,
        };
        let _turn = Turn(node);
        let range = match purpose {
            Use::Pages => {
                self.give_up_data(node, false).await;
                Range::ALL
            }
            Use::Call => range,
        };
        let (ino, reclaim, proof) = (node.ino, false, None);
        let request = MdsRequest::Lock { ino, range, write, reclaim, proof };
        let _under_way = self.cache.under_way();
        loop {
            let lock = match self.ask(&request).await {
                Ok(MdsReply::Locked(lock)) => lock,
                Ok(_) => return Err(Errno::EPROTO),
                // Too many of this file are still to be given up.
                Err(Errno::ENOLCK) => {
                    host::sleep(OWED).await;
                    continue;
                }
                Err(errno) => return Err(errno),
            };
            if let Some(id) = node.state().data.add(lock, true) {
                return Ok(Guard { node: node.clone(), id });
            }
            self.asked(vec![Callback::Data { ino: node.ino, number: lock.number }]);
        }
    }

    /// Gives all locks on the data of an inode up. `pages` of the kernel go with them; without,
    /// there must be none.
    pub(crate) async fn give_up_data(&self, node: &Arc<Node>, pages: bool) {
        let locks = node.state().data.unasked();
        for id in locks {
            node.state().data.release(id);
            self.give_up(node, id, pages).await;
        }
        // And those that a server asked for are on their way out.
        if !pages {
            node.until(|state| state.data.is_empty().then_some(())).await;
        }
        self.send_cancels().await;
    }

    /// Locks have come with an answer. Those that came too late to be relied on are given up.
    pub(crate) fn granted(&self, grants: &[Grant]) {
        let refused = self.cache.granted(grants);
        if !refused.is_empty() {
            self.asked(refused);
        }
    }

    /// Gives all locks on data up that were given before `number`.
    pub(crate) async fn give_up_older(&self, node: &Arc<Node>, number: u64) {
        loop {
            let Some(id) = node.state().data.older(number) else { break };
            node.state().data.release(id);
            self.give_up(node, id, true).await;
        }
        node.until(|state| (!state.data.has_older(number)).then_some(())).await;
    }

    /// Gives a lock up that was asked back.
    pub(crate) async fn give_up(&self, node: &Arc<Node>, id: u64, pages: bool) {
        loop {
            let idle = node.until(|state| match state.data.idle(id) {
                Some(range) => Some(Some(range)),
                // Somebody else gave it up, or it is lost.
                None => (!state.data.has(id)).then_some(None),
            });
            let Some(range) = idle.await else { return };
            let (has_pages, uses) = {
                let state = node.state();
                (state.pages, state.page_uses)
            };
            if has_pages
                && pages
                && let Some(kernel) = self.cache.kernel().cloned()
            {
                let ino = node.ino;
                blocking::unblock(move || kernel.forget_pages(ino, range)).await;
            }
            let mut state = node.state();
            // What was read meanwhile is in the kernel again.
            if state.page_uses == uses && state.data.close(id) {
                if range == Range::ALL {
                    state.pages = false;
                }
                break;
            }
        }
        self.flush_or_discard(node).await;
        let mut state = node.state();
        let number = state.data.remove(id);
        state.data_changes();
        drop(state);
        node.wake();
        if let Some(number) = number {
            self.cache.cancels.lock().push(Cancel::Data { ino: node.ino, number });
        }
    }
}

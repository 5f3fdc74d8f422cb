//! Sends what this client has changed by itself, and ends that: when somebody else looks at
//! a directory, when the servers are silent, when they have forgotten this client.

use crate::cache::inode::Node;
use crate::client::Client;
use crate::meta_log::log::Part;
use glint_net::{Transport, host};
use glint_proto::deferred::{self, Deferred};
use glint_proto::lock::{Bits, Cancel};
use glint_proto::{Cred, Errno, MdsReply, MdsRequest};
use std::collections::HashSet;
use std::sync::Arc;

/// Directories that a client has for itself at most.
const OWNED_MAX: usize = 4096;
/// A directory that one of so many last changes was made in is kept. A change is made in two at
/// most, so these are fewer than there may be.
const RECENT: u64 = OWNED_MAX as u64 / 4;

impl<T: Transport> Client<T> {
    /// Sends changes, and the data of files that were made with them and closed. Never ends.
    pub(crate) async fn send_backlog(self: Arc<Self>) {
        loop {
            let (part, closed) = self.backlog.next().await;
            for file in closed {
                let client = self.clone();
                host::spawn(async move { client.finish_closed(&file).await });
            }
            if let Some(part) = part {
                self.send_part(&part).await;
                self.backlog.done(part.count);
            }
        }
    }

    async fn send_part(self: &Arc<Self>, part: &Part) {
        let request = MdsRequest::Batch { life: part.life, changes: &part.changes };
        let _under_way = self.cache.under_way();
        let epoch = self.cache.epoch();
        let (reply, grants) = self.transport.mds(&Cred::ROOT, &request).await;
        self.granted(&grants, epoch);
        self.end_expecting(part);
        let failed = match reply {
            Ok(MdsReply::Batched { failed, .. }) => failed,
            other => {
                let errno = other.err().unwrap_or(Errno::EPROTO);
                tracing::error!(%errno, lost = part.count, "changes that were made here are lost");
                (0..part.count).map(|at| (at, errno)).collect()
            }
        };
        if failed.is_empty() {
            return;
        }
        for (at, change) in deferred::changes(&part.changes).flatten().enumerate() {
            if let Some((_, errno)) = failed.iter().find(|(number, _)| *number as usize == at) {
                self.change_failed(&change, *errno).await;
            }
        }
    }

    /// Changes are answered: locks on data that were expected with them and have not come are
    /// not held.
    fn end_expecting(self: &Arc<Self>, part: &Part) {
        for change in deferred::changes(&part.changes).flatten() {
            let Some((ino, _, true)) = change.opening() else { continue };
            let Some(node) = self.cache.find(ino) else { continue };
            let missing = node.state().data.has_not_come();
            if let Some(id) = missing {
                let client = self.clone();
                host::spawn(async move {
                    client.give_up(&node, id).await;
                    client.cache.note_idle(node.ino);
                });
            }
        }
    }

    /// A change that was made here could not be made by the servers. What is known here is
    /// wrong now, and asked anew.
    async fn change_failed(&self, change: &Deferred<'_>, errno: Errno) {
        // Each says something of its own, so none is left out as a repetition.
        tracing::warn!(target: "every", %errno, ?change, "a change that was made here was refused; it is lost");
        self.write_back.count_error();
        let name = match change.request {
            MdsRequest::Create { parent, name, .. }
            | MdsRequest::Unlink { parent, name }
            | MdsRequest::Rmdir { parent, name } => Some((parent, name)),
            MdsRequest::Rename { new_parent, new_name, .. } => Some((new_parent, new_name)),
            _ => None,
        };
        let ino = match change.request {
            MdsRequest::Setattr { ino, .. } | MdsRequest::Release { ino, .. } => Some(ino),
            _ => change.made.map(|(ino, _)| ino),
        };
        if let Some(node) = ino.and_then(|ino| self.cache.find(ino)) {
            let mut state = node.state();
            state.fail(errno);
            state.unborn |= change.made.is_some();
            (state.home, state.attr, state.own) = (None, None, false);
        }
        let Some((parent, name)) = name else { return };
        if let Some(directory) = self.cache.find(parent) {
            let mut state = directory.state();
            state.complete = false;
            state.children.remove(name);
            state.attr = None;
        }
        if let Some(kernel) = self.cache.kernel().cloned() {
            let name = name.to_vec();
            blocking::unblock(move || kernel.forget_name(parent, &name)).detach();
        }
    }

    /// Others may look at a directory from now on. Ends when the servers know all of it.
    pub(crate) async fn disown(&self, directory: &Arc<Node>) {
        let number = self.stop_owning(directory);
        self.backlog.until(number).await;
    }

    /// Changes nothing in a directory without asking any more. Returns the number of the last
    /// change there.
    pub(crate) fn stop_owning(&self, directory: &Node) -> u64 {
        let (children, mut number) = {
            let mut state = directory.state();
            state.own = false;
            let children: Vec<_> = state.children.values().flatten().copied().collect();
            (children, state.queued)
        };
        for node in children.into_iter().filter_map(|child| self.cache.find(child)) {
            let mut state = node.state();
            if state.home == Some(directory.ino) {
                state.home = None;
                number = number.max(state.queued);
            }
        }
        number
    }

    /// Gives directories up that this client has had for itself longest, if they are many, and
    /// was not busy in just now.
    pub(crate) async fn give_up_owned(&self) {
        while let Some(ino) = self.backlog.oldest_owned(OWNED_MAX) {
            let Some(node) = self.cache.find(ino).filter(|node| node.state().own) else { continue };
            let queued = node.state().queued;
            if queued > 0 && queued + RECENT > self.backlog.last() {
                // Fewer than are too many can be that.
                self.backlog.owns(ino);
                continue;
            }
            self.disown(&node).await;
            // Nobody is given it later, and after a restart its number was not said.
            let number = u64::MAX;
            self.cache.cancels.lock().push(Cancel::Bits { ino, bits: Bits::OWN, number });
            self.cache.note_idle(ino);
        }
    }

    /// Changes nothing without asking, until the servers are heard of again.
    pub(crate) fn disown_all(&self) {
        for node in self.cache.all().iter().filter(|node| node.state().own) {
            self.stop_owning(node);
        }
    }

    /// The servers have forgotten this client, with all that it might have told them.
    pub(crate) fn lose_backlog(&self) {
        for node in self.cache.all() {
            let mut state = node.state();
            if self.backlog.is_pending(state.made) {
                state.unborn = true;
                state.fail(Errno::EIO);
            }
        }
        self.disown_all();
        self.backlog.forget_numbers();
        let lost = self.backlog.lose();
        if lost > 0 {
            self.write_back.count_error();
            tracing::error!(lost, "changes that were made here and not yet sent are lost");
        }
    }

    /// Names in directories of this client lead to what it knows, or it does not know all.
    pub(crate) fn forget_foreign_children(&self, nodes: &[Arc<Node>]) {
        for node in nodes {
            let children: Vec<_> = {
                let state = node.state();
                if !state.own {
                    continue;
                }
                state.children.values().flatten().copied().collect()
            };
            let foreign = |ino: &glint_proto::Ino| {
                let child = self.cache.find(*ino);
                child.is_some_and(|child| child.state().home != Some(node.ino))
            };
            let foreign: HashSet<_> = children.into_iter().filter(foreign).collect();
            if !foreign.is_empty() {
                let mut state = node.state();
                state.complete = false;
                state.children.retain(|_, ino| ino.is_none_or(|ino| !foreign.contains(&ino)));
            }
        }
    }
}

//! Tells the servers what this client has done by itself, before it asks them something.
//!
//! Invariant: no request reaches a server while a change of what it names is in the backlog.
//! So what the servers answer is never older than what this client knows.

use crate::client::Client;
use glint_net::Transport;
use glint_proto::{Ino, MdsRequest};

impl<T: Transport> Client<T> {
    /// Tells the servers what is in the way of a request.
    pub(crate) async fn settle(&self, request: &MdsRequest<'_>) {
        match *request {
            MdsRequest::LeaseInodes { .. }
            | MdsRequest::WritesBack { .. }
            | MdsRequest::Batch { .. }
            | MdsRequest::Statfs => {}
            MdsRequest::Sync => self.settle_all().await,
            MdsRequest::Create { parent, name, .. }
            | MdsRequest::Lookup { parent, name }
            | MdsRequest::Unlink { parent, name }
            | MdsRequest::Rmdir { parent, name } => self.settle_name(parent, name).await,
            MdsRequest::Link { ino, parent, name } => {
                self.settle_inode(ino).await;
                self.settle_name(parent, name).await;
            }
            MdsRequest::Rename { parent, name, new_parent, new_name, .. } => {
                self.settle_name(parent, name).await;
                self.settle_name(new_parent, new_name).await;
            }
            MdsRequest::Tmpfile { parent: ino, .. }
            | MdsRequest::Getattr { ino }
            | MdsRequest::Setattr { ino, .. }
            | MdsRequest::Open { ino, .. }
            | MdsRequest::Release { ino, .. }
            | MdsRequest::Readdir { ino, .. }
            | MdsRequest::Readlink { ino }
            | MdsRequest::Getxattr { ino, .. }
            | MdsRequest::Setxattr { ino, .. }
            | MdsRequest::Listxattr { ino }
            | MdsRequest::Removexattr { ino, .. }
            | MdsRequest::SetLayout { ino, .. }
            | MdsRequest::Reopen { ino, .. }
            | MdsRequest::Touch { ino }
            | MdsRequest::AddOpens { ino, .. }
            | MdsRequest::Own { ino } => self.settle_inode(ino).await,
            // The data of a file goes while it is being closed, and needs its lock for that.
            MdsRequest::Lock { ino, .. } => self.settle_changes(ino).await,
            MdsRequest::Advisory(lock) => self.settle_changes(lock.ino).await,
        }
    }

    async fn settle_name(&self, parent: Ino, name: &[u8]) {
        if let Some(ino) = self.cache.child(parent, name) {
            self.settle_inode(ino).await;
        }
        self.settle_inode(parent).await;
    }

    async fn settle_inode(&self, ino: Ino) {
        let Some(node) = self.cache.find(ino) else { return };
        let closing = node.state().closing > 0;
        if closing {
            self.backlog.hurry();
            node.until(|state| (state.closing == 0).then_some(())).await;
        }
        self.settle_changes(ino).await;
    }

    /// Until the servers know all changes of an inode that were made here.
    pub(crate) async fn settle_changes(&self, ino: Ino) {
        let Some(node) = self.cache.find(ino) else { return };
        let number = node.state().queued;
        self.backlog.until(number).await;
    }

    /// Until the servers know everything.
    pub(crate) async fn settle_all(&self) {
        while self.backlog.is_busy() {
            self.backlog.hurry();
            self.backlog.until(self.backlog.last()).await;
            self.backlog.none_closing().await;
        }
    }
}

//! Tells the servers what this client has done by itself, before it asks them something.
//!
//! Invariant: no request reaches a server while a change of what it names is in the write-back log.
//! So what the servers answer is never older than what this client knows.

use crate::client::Client;
use glint_net::Transport;
use glint_proto::{Ino, MdsRequest};

impl<T: Transport> Client<T> {
    /// Tells the servers what is in the way of a request.
    pub(crate) async fn flush_before(&self, request: &MdsRequest<'_>) {
        match *request {
            MdsRequest::GrantInodes { .. }
            | MdsRequest::WritesBack { .. }
            | MdsRequest::Batch { .. }
            | MdsRequest::Statfs => {}
            MdsRequest::Sync => self.flush_log().await,
            MdsRequest::Create { parent, name, .. }
            | MdsRequest::Lookup { parent, name }
            | MdsRequest::Rmdir { parent, name } => self.flush_name(parent, name).await,
            MdsRequest::Unlink { parent, name } => {
                self.flush_access_of(parent, name).await;
                self.flush_name(parent, name).await;
            }
            MdsRequest::Link { ino, parent, name } => {
                self.flush_access(ino).await;
                self.flush_changes_and_closes(ino).await;
                self.flush_name(parent, name).await;
            }
            MdsRequest::Rename { parent, name, new_parent, new_name, .. } => {
                self.flush_access_of(parent, name).await;
                self.flush_name(parent, name).await;
                self.flush_name(new_parent, new_name).await;
            }
            // Closes were waited for before, and those that begin now wait for this.
            MdsRequest::Setattr { ino, ref set } if set.size.is_some() || set.mtime.is_some() => {
                self.flush_access(ino).await;
                self.flush_changes(ino).await;
            }
            MdsRequest::Setattr { ino, .. }
            | MdsRequest::Setxattr { ino, .. }
            | MdsRequest::Removexattr { ino, .. } => {
                self.flush_access(ino).await;
                self.flush_changes_and_closes(ino).await;
            }
            MdsRequest::Tmpfile { parent: ino, .. }
            | MdsRequest::Getattr { ino }
            | MdsRequest::Open { ino, .. }
            | MdsRequest::Release { ino, .. }
            | MdsRequest::Readdir { ino, .. }
            | MdsRequest::Readlink { ino }
            | MdsRequest::Getxattr { ino, .. }
            | MdsRequest::Listxattr { ino }
            | MdsRequest::SetLayout { ino, .. }
            | MdsRequest::PlanLayout { ino, .. }
            | MdsRequest::Reopen { ino, .. }
            | MdsRequest::Touch { ino }
            | MdsRequest::AddOpens { ino, .. }
            | MdsRequest::ReclaimDelegation { ino } => self.flush_changes_and_closes(ino).await,
            // The data of a file goes while it is being closed, and needs its lock for that.
            MdsRequest::Lock { ino, .. }
            | MdsRequest::SwitchLayout { ino, .. }
            | MdsRequest::DropLayout { ino, .. } => self.flush_changes(ino).await,
            // Only of files that this client does not change.
            MdsRequest::Prefetch { .. } => {}
            MdsRequest::PosixLock(lock) => self.flush_changes(lock.ino).await,
            // It shows inodes in them, too.
            MdsRequest::Scan { .. } => self.flush_log().await,
        }
    }

    async fn flush_name(&self, parent: Ino, name: &[u8]) {
        if let Some(ino) = self.cache.child(parent, name) {
            self.flush_changes_and_closes(ino).await;
        }
        self.flush_changes_and_closes(parent).await;
    }

    /// Waits until the servers know when an inode was read: if it was changed before they do, that
    /// counts for nothing.
    async fn flush_access(&self, ino: Ino) {
        let number = self.cache.find(ino).map_or(0, |inode| inode.lock().last_access());
        self.log.until_answered(number).await;
    }

    async fn flush_access_of(&self, parent: Ino, name: &[u8]) {
        if let Some(ino) = self.cache.child(parent, name) {
            self.flush_access(ino).await;
        }
    }

    async fn flush_changes_and_closes(&self, ino: Ino) {
        let Some(inode) = self.cache.find(ino) else { return };
        let closing = inode.lock().pins.is_closing();
        if closing {
            self.log.hurry();
            inode.until(|state| (!state.pins.is_closing()).then_some(())).await;
        }
        self.flush_changes(ino).await;
    }

    /// Until the servers know all changes of an inode that were made here; of a directory whose delegation
    /// ends just now also those of what was made in it, which it does not know all of.
    pub(crate) async fn flush_changes(&self, ino: Ino) {
        let Some(inode) = self.cache.find(ino) else { return };
        let number = {
            let delegation = &inode.lock().rare.delegation;
            if delegation.is_ending() { self.log.last() } else { delegation.last_change() }
        };
        self.log.until_answered(number).await;
    }

    /// Waits until the servers know everything but the closes of files that are stuck.
    pub(crate) async fn flush_log(&self) {
        if !self.log.is_to_flush() {
            return;
        }
        // What is changed from now on is not waited for: it may never end. Closes are changes that
        // come after those that made their files.
        self.log.hurry();
        self.log.until_answered(self.log.last()).await;
        self.log.hurry();
        self.log.none_closing().await;
        self.log.until_answered(self.log.last()).await;
    }
}

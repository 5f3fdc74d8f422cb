//! Delegations ([`Bits::DELEGATION`]): granted to the client that makes a directory, recalled when another
//! client looks.
//!
//! Invariant: nobody reads a directory, its times or its entries, or an inode that was made in it,
//! while another client holds its delegation: that one knows better what they are.

use crate::error::{Conflict, Stop};
use crate::locking::client_locks::ClientLocks;
use crate::service::{Context, Mds};
use crate::store::record::InodeRecord;
use glint_kv::Kv;
use glint_proto::lock::Bits;
use glint_proto::{ClientId, Ino, MdsReply, MdsRequest};
use std::sync::atomic::Ordering;

impl ClientLocks {
    /// Some client holds a delegation from now on.
    fn note_delegated(&self) {
        self.has_delegations.store(true, Ordering::Release);
    }

    /// Whether a client need not look at an inode: it holds locks of it, or nothing is delegated.
    fn has_seen(&self, client: ClientId, ino: Ino) -> bool {
        !self.has_delegations.load(Ordering::Acquire) || self.holds_any(client, ino)
    }

    /// A client may have made this inode, and told nobody: it has the delegation of it, which it
    /// returns when it has.
    fn note_hidden(&self, client: ClientId, ino: Ino) {
        self.grant(client, ino, Bits::DELEGATION);
    }
}

/// The inode that a request names by its number and not by a name. Not of requests that only say
/// what a client has open or has read.
fn named_by_number(request: &MdsRequest<'_>) -> Option<Ino> {
    match *request {
        MdsRequest::Getattr { ino }
        | MdsRequest::Setattr { ino, .. }
        | MdsRequest::Link { ino, .. }
        | MdsRequest::Open { ino, .. }
        | MdsRequest::Readdir { ino, .. }
        | MdsRequest::Readlink { ino }
        | MdsRequest::Getxattr { ino, .. }
        | MdsRequest::Setxattr { ino, .. }
        | MdsRequest::Listxattr { ino }
        | MdsRequest::Removexattr { ino, .. }
        | MdsRequest::SetLayout { ino, .. }
        | MdsRequest::PlanLayout { ino, .. } => Some(ino),
        _ => None,
    }
}

impl<K: Kv> Mds<K> {
    /// The operation looks at a directory: nobody else may hold its delegation. Nobody is
    /// given that later, either: only who makes a directory is.
    pub(crate) fn look(&self, context: &Context<'_>, ino: Ino) -> Result<(), Stop> {
        if !self.client_locks.is_used() || self.client_locks.is_visible(context.client, ino) {
            return Ok(());
        }
        let holder = context.client;
        Err(Stop::Conflict(Conflict { holder, ino, bits: Bits::DELEGATION }))
    }

    /// The request names an inode, of which its client may know the number alone (a file handle).
    /// Whoever may change the inode by itself gives that up first: the holder of the delegation of a
    /// directory that has a name of it, or the client that has the number and has not told yet what
    /// it made under it.
    pub(crate) async fn look_by_number(
        &self,
        context: &Context<'_>,
        request: &MdsRequest<'_>,
    ) -> Result<(), Stop> {
        match named_by_number(request) {
            Some(ino) => self.look_at_number(context, ino).await,
            None => Ok(()),
        }
    }

    /// See [`Mds::look_by_number`].
    pub(crate) async fn look_at_number(&self, context: &Context<'_>, ino: Ino) -> Result<(), Stop> {
        if !self.client_locks.is_used() || self.client_locks.has_seen(context.client, ino) {
            return Ok(());
        }
        if let Some(record) = self.find_inode(ino).await? {
            for directory in record.parents() {
                self.look(context, directory)?;
            }
            return Ok(());
        }
        match self.allocator.holder_of(ino).filter(|holder| *holder != context.client) {
            // It is asked once: what it has not made by then does not exist.
            Some(holder) if context.asked_for.replace(ino) != ino => {
                self.client_locks.note_hidden(holder, ino);
                self.look(context, ino)
            }
            _ => Ok(()),
        }
    }

    /// Whether no other client may change an inode by itself.
    pub(crate) fn is_seen(&self, context: &Context<'_>, record: &InodeRecord) -> bool {
        let ino = record.attr.ino;
        !self.client_locks.is_used()
            || self.client_locks.has_seen(context.client, ino)
            || record
                .parents()
                .chain([ino])
                .all(|directory| self.client_locks.is_visible(context.client, directory))
    }

    /// Grants the client the delegation of a directory that it makes, if it has use for that.
    pub(crate) fn grant_delegation(&self, context: &Context<'_>, ino: Ino) {
        if self.is_locking(context) && self.client_locks.recalls.epoch(context.client).is_some() {
            self.client_locks.note_delegated();
            self.grant(context, ino, Bits::DELEGATION);
        }
    }

    /// Reclaims a delegation after a restart. Nobody was let in since.
    pub(crate) fn reclaim_delegation(&self, context: &Context<'_>, ino: Ino) -> MdsReply {
        self.client_locks.recalls.expect(context.client);
        self.client_locks.note_delegated();
        self.client_locks.grant(context.client, ino, Bits::DELEGATION);
        MdsReply::Done
    }
}

//! Delegations ([`Bits::DELEGATION`]): granted to the client that makes a directory, recalled when another
//! client looks.
//!
//! Invariant: nobody reads a directory, its times or its entries while another client holds its
//! delegation: that one knows better what they are.

use crate::error::{Conflict, Stop};
use crate::locking::client_locks::ClientLocks;
use crate::service::{Context, Mds};
use glint_kv::Kv;
use glint_proto::lock::Bits;
use glint_proto::{Ino, MdsReply};
use std::sync::atomic::Ordering;

impl ClientLocks {
    /// Some client holds a delegation from now on.
    fn note_delegated(&self) {
        self.has_delegations.store(true, Ordering::Release);
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

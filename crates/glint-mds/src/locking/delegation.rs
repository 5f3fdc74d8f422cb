//! Directories that a client has for itself ([`Bits::OWN`]): given to who makes one, and taken
//! back when anybody else looks.
//!
//! Invariant: nobody reads a directory, its times or its entries while another client has it
//! for itself: that one knows better what they are.

use crate::error::RESTART;
use crate::locking::claims::Claims;
use crate::service::{Context, Mds};
use glint_kv::Kv;
use glint_proto::lock::Bits;
use glint_proto::{FsResult, Ino, MdsReply};
use std::sync::atomic::Ordering;

impl Claims {
    /// Some client has a directory for itself from now on.
    fn note_owned(&self) {
        self.owned.store(true, Ordering::Release);
    }
}

impl<K: Kv> Mds<K> {
    /// The operation looks at a directory: nobody else may have it for itself. Nobody is
    /// given that later, either: only who makes a directory is.
    pub(crate) fn look(&self, context: &Context<'_>, ino: Ino) -> FsResult<()> {
        if !self.claims.is_used() || self.claims.is_visible(context.client, ino) {
            return Ok(());
        }
        context.conflicts.borrow_mut().push((context.client, ino, Bits::OWN));
        Err(RESTART)
    }

    /// Gives the client a directory that it makes for itself, if it has use for that.
    pub(crate) fn grant_own(&self, context: &Context<'_>, ino: Ino) {
        if self.is_locking(context) && self.claims.mailboxes.life(context.client).is_some() {
            self.claims.note_owned();
            self.grant(context, ino, Bits::OWN);
        }
    }

    /// After a restart: the client had the directory for itself. Nobody was let in since.
    pub(crate) fn own_again(&self, context: &Context<'_>, ino: Ino) -> MdsReply {
        self.claims.mailboxes.expect(context.client);
        self.claims.note_owned();
        self.claims.grant(context.client, ino, Bits::OWN);
        MdsReply::Done
    }
}

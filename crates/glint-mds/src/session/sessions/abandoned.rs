//! Sessions of commands that were killed.
//!
//! Invariants:
//! - A session ends before its lease is over only if it is that of a command, which has no mount that
//!   may go on, and has no connection: none for a while, so that one that was only cut off is back.
//! - Nor does it if it may hold anything: if it was asked to make any change, which includes opens and
//!   locks of programs, if it was ever to be told recalls, if it was granted inodes, or if it was
//!   begun by an earlier run of the server, of which a recovery may wait for it.
//! - All that it sent to other servers is over before it is forgotten, as with an eviction.

use super::{Ended, Known, Sessions};
use crate::background::reaper::Targets;
use crate::service::Mds;
use glint_kv::Kv;
use glint_proto::ClientId;
use glint_proto::watch::Moment;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time without a connection after which a command is taken for dead.
const ABANDONED: Duration = Duration::from_secs(2);

impl<K: Kv> Mds<K> {
    /// Ends sessions of commands that ended without saying so and hold nothing.
    pub(super) fn end_abandoned(&self, targets: &impl Targets) {
        for (client, left) in self.sessions.abandoned(self.config.boot_verifier) {
            if self.client_locks.recalls.has(client) || self.allocator.has_granted(client) {
                continue;
            }
            let Some(ended) = self.sessions.end_abandoned(client, left) else { continue };
            tracing::debug!(%client, "a command has ended without saying so");
            targets.fence(ended.0.number());
            self.sessions.leaving.lock().push(ended.0.clone());
        }
    }
}

impl Sessions {
    /// Commands that are gone and have changed nothing, with the moment when each left.
    fn abandoned(&self, boot_verifier: u64) -> Vec<(ClientId, Moment)> {
        let begun_here = 1..=self.count.load(Ordering::Acquire);
        let map = self.map.lock();
        let abandoned = |(client, known): (&ClientId, &Known)| {
            let left = known.left?;
            let number = known.info.session.wrapping_sub(boot_verifier);
            let is_over = !known.ending
                && known.info.is_command()
                && known.slots.is_empty()
                && begun_here.contains(&number)
                && self.watch.is_silent(left, ABANDONED);
            is_over.then_some((*client, left))
        };
        map.iter().filter_map(abandoned).collect()
    }

    /// Nothing of a client is taken any more, if it was not back since it left.
    fn end_abandoned(&self, client: ClientId, left: Moment) -> Option<Ended<'_>> {
        let mut map = self.map.lock();
        let known = map.get_mut(&client).filter(|known| !known.ending)?;
        if known.left != Some(left) {
            return None;
        }
        known.ending = true;
        known.session.end();
        Some(Ended(known.session.clone(), self))
    }
}

//! Changes of a chain that this server ordered as the head.

use futures_util::lock;
use glint_proto::chain::Chain;
use glint_proto::clock;
use glint_proto::limits::CHAIN_NEWS_MS;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The changes.
#[derive(Default)]
pub(super) struct OwnChanges {
    /// Number of the last one.
    pub(super) last: u64,
    pub(super) under_way: BTreeSet<u64>,
    /// First change since the last look at what is stable, and before it.
    pub(super) unstable: Option<FirstChange>,
    pub(super) settling: Option<FirstChange>,
    /// Held during such a look.
    pub(super) turn: Arc<lock::Mutex<()>>,
    /// Since when it is known here that other members may have lost some of them, or may yet.
    pub(super) lost_since: Option<Instant>,
    /// Up to this one they are on stable storage in all copies.
    pub(super) stable: u64,
    /// Changes so far that may be in some copies only, and how many of them a takeover has made
    /// equal since.
    pub(super) undecided: u64,
    pub(super) decided: u64,
}

/// The first of some changes: its transaction, and the version of the row that it was ordered by.
#[derive(Clone, Copy)]
pub(super) struct FirstChange {
    pub(super) transaction: u64,
    pub(super) version: u32,
}

impl OwnChanges {
    /// Whether members that serve may lack some of them, or none serves who could have them, and
    /// clients may not have heard of that yet: what is called stable they would not send again.
    pub(super) fn are_lost(&mut self, first: FirstChange, row: &Chain) -> bool {
        if row.intact_since <= first.version && row.head().is_some() {
            self.lost_since = None;
            return false;
        }
        let since = *self.lost_since.get_or_insert_with(clock::now);
        clock::since(since) < Duration::from_millis(CHAIN_NEWS_MS)
    }

    /// Whether some are not known to be stable.
    pub(super) fn are_unstable(&self) -> bool {
        self.unstable.or(self.settling).is_some()
    }

    pub(super) fn is_undecided(&self) -> bool {
        self.undecided > self.decided
    }
}

/// Changes of a chain that are to be brought to stable storage in all copies.
pub(in crate::replication) struct Settling {
    pub(in crate::replication) row: Arc<Chain>,
    /// Number of the last one.
    pub(in crate::replication) upto: u64,
    /// Some may be lost, so they are not called stable yet.
    pub(in crate::replication) are_lost: bool,
}

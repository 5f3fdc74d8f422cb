//! Turns of changes of the same bytes, so that all copies make them in one order.
//!
//! Invariant: two changes that overlap are never under way at once.

use glint_proto::ObjectId;
use glint_wait::Turns;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Ranges of objects that are being changed.
#[derive(Default)]
pub(in crate::replication) struct RangeTurns {
    taken: Mutex<HashMap<ObjectId, Vec<(u64, u64)>>>,
    turns: Turns<ObjectId>,
}

/// A range whose turn it is, until it is dropped.
pub(in crate::replication) struct RangeTurn<'a> {
    of: &'a RangeTurns,
    object: ObjectId,
    range: (u64, u64),
}

impl RangeTurns {
    /// Waits for the turn of a range.
    pub(in crate::replication) async fn take(
        &self,
        object: ObjectId,
        start: u64,
        end: u64,
    ) -> RangeTurn<'_> {
        let range = (start, end.max(start.saturating_add(1)));
        let take = || {
            let mut taken = self.taken.lock();
            let of_it = taken.entry(object).or_default();
            let is_free = of_it.iter().all(|(from, to)| *to <= range.0 || range.1 <= *from);
            if is_free {
                of_it.push(range);
            }
            is_free.then_some(())
        };
        self.turns.take(object, take).await;
        RangeTurn { of: self, object, range }
    }
}

impl Drop for RangeTurn<'_> {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock();
        if let Some(of_it) = taken.get_mut(&self.object) {
            if let Some(at) = of_it.iter().position(|range| *range == self.range) {
                of_it.swap_remove(at);
            }
            if of_it.is_empty() {
                taken.remove(&self.object);
            }
        }
        drop(taken);
        self.of.turns.call(&self.object);
    }
}

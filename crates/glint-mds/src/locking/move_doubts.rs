//! Doubts about data that moves: what was written where it moves to may have been lost since.
//!
//! Invariant: when [`MoveDoubts::raise`] and [`MoveDoubts::settled`] are over, each move that was planned
//! before is switched, and can be read in the engine, or is never switched. A switch enters before it
//! compares the number of doubts with that of its plan, and leaves after its commit.

use glint_wait::Monitor;
use std::collections::BTreeMap;

/// Counts doubts, and switches under way.
#[derive(Default)]
pub(crate) struct MoveDoubts(Monitor<Doubts>);

#[derive(Default)]
struct Doubts {
    /// How many there were in this run.
    count: u64,
    /// Switches under way, by the number of doubts when they entered.
    switches: BTreeMap<u64, usize>,
}

/// A switch under way.
pub(crate) struct EnteredSwitch<'a> {
    doubts: &'a MoveDoubts,
    /// Doubts until it entered.
    pub(crate) count: u64,
}

impl MoveDoubts {
    /// Returns how many there were, for a plan.
    pub(crate) fn count(&self) -> u64 {
        self.0.lock().count
    }

    /// Raises a doubt: moves that were planned before are not switched by those that enter from now on.
    pub(crate) fn raise(&self) {
        self.0.lock().count += 1;
    }

    /// Waits for the end of switches that entered before the last doubt.
    pub(crate) async fn settled(&self) {
        let now = self.count();
        let is_settled = |doubts: &mut Doubts| doubts.switches.range(..now).next().is_none();
        self.0.until(|doubts| is_settled(doubts).then_some(())).await;
    }

    /// Enters a switch, which is under way until the result is dropped.
    pub(crate) fn enter(&self) -> EnteredSwitch<'_> {
        let mut doubts = self.0.lock();
        let count = doubts.count;
        *doubts.switches.entry(count).or_default() += 1;
        EnteredSwitch { doubts: self, count }
    }
}

impl Drop for EnteredSwitch<'_> {
    fn drop(&mut self) {
        self.doubts.0.change(|doubts| {
            if let Some(switches) = doubts.switches.get_mut(&self.count) {
                *switches -= 1;
                if *switches == 0 {
                    doubts.switches.remove(&self.count);
                }
            }
        });
    }
}

//! What is known of each block under a checksum while its object is open, also while it is changed.
//!
//! Invariants:
//! - A block is touched before the first of its bytes changes. Until then its checksum holds, and
//!   what does not match it is damage; from then on the checksum says nothing.
//! - Damage that was seen stays, whatever is written into a part of the block, until all of its
//!   bytes have been overwritten.
//! - Memory is bounded: a byte for each block, and [`RANGES_MAX`] ranges for each damaged one.

use crate::store::passing::Range;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering, fence};

/// It was found right, and not touched before.
const CHECKED: u8 = 1;
/// Bytes of it have changed, or are changing.
const TOUCHED: u8 = 2;
/// It did not match before it was touched.
const DAMAGED: u8 = 4;
/// If it was found right, that is long ago.
const STALE: u8 = 8;

/// Most ranges of a damaged block that are remembered as overwritten; what comes between more of
/// them does not count.
const RANGES_MAX: usize = 64;

/// The states of all blocks of an object.
pub(super) struct BlockStates {
    states: Box<[AtomicU8]>,
    /// What was overwritten of blocks that are damaged: ranges with gaps between them.
    overwritten: Mutex<BTreeMap<usize, Vec<Range>>>,
}

impl BlockStates {
    /// So many blocks of which nothing is known but which are damaged.
    pub(super) fn new(blocks: usize, is_damaged: impl Fn(usize) -> bool) -> BlockStates {
        let state = |index: usize| AtomicU8::new(if is_damaged(index) { DAMAGED } else { 0 });
        BlockStates { states: (0..blocks).map(state).collect(), overwritten: Mutex::default() }
    }

    fn has(&self, index: usize, flag: u8) -> bool {
        self.states[index].load(Ordering::Acquire) & flag != 0
    }

    pub(super) fn is_touched(&self, index: usize) -> bool {
        self.has(index, TOUCHED)
    }

    pub(super) fn is_damaged(&self, index: usize) -> bool {
        self.has(index, DAMAGED)
    }

    /// Whether there is nothing to compare: it was found right, or its checksum says nothing.
    pub(super) fn is_done(&self, index: usize) -> bool {
        let state = self.states[index].load(Ordering::Acquire);
        state & (CHECKED | TOUCHED) != 0 && state & DAMAGED == 0
    }

    /// The same, of a block that is being read: it was found right not long ago.
    pub(super) fn is_done_of_late(&self, index: usize) -> bool {
        self.is_done(index) && (self.is_touched(index) || !self.has(index, STALE))
    }

    /// Time has passed: blocks are compared again when they are read.
    pub(super) fn grow_stale(&self) {
        for state in &self.states {
            state.fetch_or(STALE, Ordering::AcqRel);
        }
    }

    /// A block matched, unless it was being changed.
    pub(super) fn found_right(&self, index: usize) {
        let right = |state: u8| (state & TOUCHED == 0).then_some(CHECKED);
        let _ = self.states[index].fetch_update(Ordering::AcqRel, Ordering::Acquire, right);
    }

    /// A block did not match. Returns whether that is damage: it was not touched, or damaged before
    /// that.
    pub(super) fn found_wrong(&self, index: usize) -> bool {
        // What was read was read before this looks whether it was touched.
        fence(Ordering::SeqCst);
        let wrong = |state: u8| (state & TOUCHED == 0).then_some(DAMAGED);
        match self.states[index].fetch_update(Ordering::AcqRel, Ordering::Acquire, wrong) {
            Ok(_) => true,
            Err(state) => state & DAMAGED != 0,
        }
    }

    /// Bytes of a block change from now on.
    pub(super) fn touch(&self, index: usize) {
        if !self.is_touched(index) {
            self.states[index].fetch_or(TOUCHED, Ordering::AcqRel);
            // Whoever reads what is written now sees that it is touched.
            fence(Ordering::SeqCst);
        }
    }

    /// A `part` of a block that was touched has been overwritten.
    pub(super) fn overwrite(&self, index: usize, block: Range, mut part: Range) {
        if !self.is_damaged(index) {
            return;
        }
        let mut overwritten = self.overwritten.lock();
        let ranges = overwritten.entry(index).or_default();
        ranges.retain(|range| {
            let adjoins = part.0 <= range.1 && range.0 <= part.1;
            if adjoins {
                part = (range.0.min(part.0), range.1.max(part.1));
            }
            !adjoins
        });
        if part == block {
            overwritten.remove(&index);
            self.states[index].fetch_and(!DAMAGED, Ordering::AcqRel);
        } else if ranges.len() < RANGES_MAX {
            ranges.push(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Range = (100, 200);

    #[test]
    fn what_does_not_match_is_damage_unless_it_was_touched_before() {
        let states = BlockStates::new(2, |_| false);
        assert!(!states.is_done(0));
        states.touch(0);
        assert!(states.is_done(0) && !states.found_wrong(0) && !states.is_damaged(0));
        states.found_right(0);
        assert!(states.is_touched(0));
        assert!(states.found_wrong(1) && states.is_damaged(1) && !states.is_done(1));
        states.found_right(1);
        assert!(states.is_done(1) && !states.is_damaged(1), "it was an error that passes");
    }

    #[test]
    fn a_block_that_was_found_right_long_ago_is_compared_again_unless_it_was_touched() {
        let states = BlockStates::new(3, |_| false);
        states.found_right(0);
        states.found_right(1);
        states.touch(1);
        states.grow_stale();
        let of_late = || [0, 1, 2].map(|index| states.is_done_of_late(index));
        assert_eq!(of_late(), [false, true, false]);
        assert!(states.is_done(0), "it was found right");
        states.found_right(0);
        assert_eq!(of_late(), [true, true, false]);
        states.grow_stale();
        assert!(states.found_wrong(0) && states.is_damaged(0));
    }

    #[test]
    fn damage_ends_when_all_of_its_block_was_overwritten() {
        let is_damaged_after = |parts: &[Range]| {
            let states = BlockStates::new(2, |index| index == 1);
            states.touch(1);
            parts.iter().for_each(|part| states.overwrite(1, BLOCK, *part));
            states.found_right(1);
            assert_eq!(states.found_wrong(1), states.is_damaged(1));
            states.is_damaged(1)
        };
        assert!(is_damaged_after(&[]) && is_damaged_after(&[(100, 199)]));
        assert!(!is_damaged_after(&[BLOCK]));
        assert!(!is_damaged_after(&[(100, 150), (150, 200)]));
        assert!(!is_damaged_after(&[(120, 200), (110, 130), (100, 115)]));
        assert!(is_damaged_after(&[(100, 149), (150, 200)]), "a byte between them");
        assert!(is_damaged_after(&[(150, 200), (100, 110), (110, 149)]));
        let bytes = (100..200u64).step_by(2).chain((101..200).step_by(2));
        let in_turns: Vec<Range> = bytes.map(|at| (at, at + 1)).collect();
        assert!(is_damaged_after(&in_turns[1..]) && !is_damaged_after(&in_turns));
    }
}

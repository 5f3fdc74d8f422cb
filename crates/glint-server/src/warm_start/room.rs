//! Memory that a warm start may take.
//!
//! What is available counts, with pages that the kernel could take back: after a restart most of
//! them are often those of the run before. In all a quarter of it is taken, as it was at the
//! beginning, so that the rest is left to others.

use glint_memory::{Supply, SupplyLook};
use glint_proto::clock;
use std::time::{Duration, Instant};

/// Asks how much memory there is.
pub(crate) type MemoryProbe = Box<dyn Fn() -> SupplyLook + Send + Sync>;

/// One part in so many of the memory that is available is taken.
const PART: u64 = 4;
/// A look is good for so long, if memory was ample, and if it was not.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Whether there is room for more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RoomLeft {
    /// For so many bytes.
    Bytes(u64),
    /// Not now: memory is not ample.
    Later,
    /// Nor will there be.
    None,
}

/// How much is loaded at most, all parts together.
pub(super) struct Room {
    probe: MemoryProbe,
    /// Nobody looks before there is something to load.
    looked: Option<(Instant, Supply)>,
    /// Bytes that are left, once memory was ample.
    left: Option<u64>,
}

impl Room {
    pub(super) fn new(probe: MemoryProbe) -> Room {
        Room { probe, looked: None, left: None }
    }

    /// Looks whether there is room.
    pub(super) fn look(&mut self) -> RoomLeft {
        if self.left == Some(0) {
            return RoomLeft::None;
        }
        let is_good = |&(at, supply): &(Instant, Supply)| {
            let ample = supply == Supply::Ample;
            clock::since(at) < if ample { LOOK_EVERY } else { LOOK_AGAIN_AFTER }
        };
        let supply = match self.looked.filter(is_good) {
            Some((_, supply)) => supply,
            None => {
                let look = (self.probe)();
                self.looked = Some((clock::now(), look.supply));
                if look.supply == Supply::Ample {
                    self.left.get_or_insert(look.spare / PART);
                }
                look.supply
            }
        };
        match (supply, self.left) {
            (Supply::Ample, Some(0)) => RoomLeft::None,
            (Supply::Ample, Some(left)) => RoomLeft::Bytes(left),
            _ => RoomLeft::Later,
        }
    }

    /// So much was loaded.
    pub(super) fn take(&mut self, bytes: u64) {
        self.left = self.left.map(|left| left.saturating_sub(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;

    #[test]
    fn a_quarter_of_what_was_available_at_first_is_taken_while_memory_is_ample() {
        let start = clock::now();
        clock::simulate(Some(start));
        let memory = Arc::new(Mutex::new(SupplyLook { supply: Supply::Short, spare: 0 }));
        let asked = memory.clone();
        let mut room = Room::new(Box::new(move || *asked.lock()));
        assert_eq!(room.look(), RoomLeft::Later);
        *memory.lock() = SupplyLook { supply: Supply::Ample, spare: 400 };
        assert_eq!(room.look(), RoomLeft::Later, "nobody looks again at once");
        let mut now = start + LOOK_AGAIN_AFTER;
        clock::simulate(Some(now));
        assert_eq!(room.look(), RoomLeft::Bytes(100));
        room.take(30);
        for (supply, left) in [
            (Supply::Tight, RoomLeft::Later),
            (Supply::Short, RoomLeft::Later),
            (Supply::Ample, RoomLeft::Bytes(70)),
        ] {
            *memory.lock() = SupplyLook { supply, spare: 4000 };
            now += LOOK_AGAIN_AFTER;
            clock::simulate(Some(now));
            assert_eq!(room.look(), left, "{supply:?}");
        }
        room.take(71);
        assert_eq!(room.look(), RoomLeft::None);
        clock::simulate(None);
    }
}

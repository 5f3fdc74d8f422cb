//! Whether memory is short: by what is left of it, and by how long tasks wait for it (PSI, where
//! the kernel has it).
//!
//! What the kernel could take back counts as left. A reserve of an eighth, at most 1 GiB, is to stay;
//! with less memory is short, and with a quarter more it is ample. Stalls say that it is short although
//! enough seems to be left, as where pages of files are read again and again. Those of the machine
//! may be stalls of others at limits of their own groups, so they count only where less than half of
//! the machine's memory is left; so may those of a group that has no limit itself, which do not count.

use crate::groups::text;
use crate::{MemoryLeft, MemoryLimits};

/// Per cent of time in which some task waited for memory, of the last ten seconds.
const STALLED_SHORT: f32 = 10.0;
const STALLED_TIGHT: f32 = 2.0;

/// How much memory there is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Supply {
    /// Caches may grow.
    Ample,
    /// Neither: caches that had to shrink stay as they are, and grow back after a while if it does not
    /// become short again.
    Tight,
    /// Caches have to shrink.
    Short,
}

/// Result of a look at the memory of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SupplyLook {
    /// How much there is.
    pub supply: Supply,
    /// Bytes that may be used before it is short.
    pub spare: u64,
}

/// Looks again and again how much memory there is for this process.
pub struct SupplyWatch(MemoryLimits);

impl SupplyWatch {
    /// Of the machine's memory, and of the control groups that this process is in now.
    pub fn of_this_process() -> SupplyWatch {
        SupplyWatch(MemoryLimits::of_this_process())
    }

    /// All bytes that this process may use, if the kernel says it.
    pub fn total(&self) -> Option<u64> {
        let all = self.0.machine_available().into_iter().chain(self.0.groups_available());
        all.map(|memory| memory.total).min()
    }

    /// Asks the kernel.
    pub fn look(&self) -> SupplyLook {
        let (machine, groups) = (self.0.machine_available(), self.0.groups_available());
        let stalls = Stalls {
            machine: stalled(&text("/proc/pressure/memory")),
            group: stalled(&self.0.group_pressure()),
        };
        judge(machine, groups, stalls)
    }
}

/// Per cent of time in which some task waited for memory; 0 where the kernel does not say it.
#[derive(Clone, Copy, Default)]
struct Stalls {
    machine: f32,
    group: f32,
}

/// Stalls of the last ten seconds, by a file as /proc/pressure/memory.
fn stalled(pressure: &str) -> f32 {
    let line = pressure.lines().find_map(|line| line.strip_prefix("some avg10="));
    line.and_then(|line| line.split(' ').next()?.parse().ok()).unwrap_or(0.0)
}

fn judge(
    machine: Option<MemoryLeft>,
    groups: impl Iterator<Item = MemoryLeft>,
    stalls: Stalls,
) -> SupplyLook {
    let of_machine = if machine.is_some_and(|m| !m.is_part(2)) { stalls.machine } else { 0.0 };
    let supply = match of_machine.max(stalls.group) {
        stalled if stalled >= STALLED_SHORT => Supply::Short,
        stalled if stalled >= STALLED_TIGHT => Supply::Tight,
        _ => Supply::Ample,
    };
    let add = |look: SupplyLook, memory: MemoryLeft| {
        let reserve = memory.reserve();
        let supply = match memory.left {
            left if left < reserve => Supply::Short,
            left if left < reserve + reserve / 4 => Supply::Tight,
            _ => Supply::Ample,
        };
        let spare = memory.left.saturating_sub(reserve);
        SupplyLook { supply: look.supply.max(supply), spare: look.spare.min(spare) }
    };
    machine.into_iter().chain(groups).fold(SupplyLook { supply, spare: u64::MAX }, add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::{empty, once};

    const GIB: u64 = 1 << 30;

    fn of(left: u64, total: u64) -> Option<MemoryLeft> {
        Some(MemoryLeft { left, total })
    }

    #[test]
    fn memory_is_short_when_its_reserve_is_touched() {
        let supply = |left, total| judge(of(left, total), empty(), Stalls::default());
        assert_eq!(supply(5 * GIB, 64 * GIB).supply, Supply::Ample);
        assert_eq!(supply(5 * GIB, 64 * GIB).spare, 4 * GIB);
        assert_eq!(supply(3 * GIB / 2, 8 * GIB).supply, Supply::Ample, "as hosts of 8 GiB have");
        assert_eq!(supply(9 * GIB / 8, 64 * GIB).supply, Supply::Tight);
        assert_eq!(supply(GIB / 2, 64 * GIB), SupplyLook { supply: Supply::Short, spare: 0 });
        // An eighth of a small one, and never all of it.
        assert_eq!(supply(150 << 20, GIB).supply, Supply::Tight);
        assert_eq!(supply(17 << 20, 64 << 20).supply, Supply::Tight);
        assert_eq!(supply(10 << 20, 20 << 20).supply, Supply::Tight);
        // Nobody says how much there is.
        assert_eq!(judge(None, empty(), Stalls::default()).supply, Supply::Ample);
    }

    #[test]
    fn the_shortest_of_machine_and_groups_counts() {
        let group = MemoryLeft { left: 10 << 20, total: 256 << 20 };
        let look = judge(of(50 * GIB, 64 * GIB), once(group), Stalls::default());
        assert_eq!(look, SupplyLook { supply: Supply::Short, spare: 0 });
    }

    #[test]
    fn stalls_of_the_machine_count_when_much_of_it_is_used() {
        let text = "some avg10=12.34 avg60=0.10 avg300=0.00 total=5\nfull avg10=1.00 total=1\n";
        assert_eq!((stalled(text), stalled("")), (12.34, 0.0));
        let supply = |left, machine, group| {
            judge(of(left, 64 * GIB), empty(), Stalls { machine, group }).supply
        };
        assert_eq!(supply(20 * GIB, 12.0, 0.0), Supply::Short);
        assert_eq!(supply(20 * GIB, 3.0, 0.0), Supply::Tight);
        assert_eq!(supply(50 * GIB, 90.0, 1.0), Supply::Ample, "others stall in their group");
        assert_eq!(supply(50 * GIB, 0.0, 12.0), Supply::Short, "it is its own group");
    }

    #[test]
    fn this_machine_is_looked_at() {
        assert!(SupplyWatch::of_this_process().look().spare < u64::MAX);
    }
}

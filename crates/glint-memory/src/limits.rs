//! How much memory is left to this process: of the machine's, and of each limit of a control group
//! that the process is in.

use crate::groups::{self, Group, text};

/// Least reserve: caches grow by some of it before somebody looks again.
const RESERVE_MIN: u64 = 16 << 20;
const RESERVE_MAX: u64 = 1 << 30;

/// Bytes that are left, and how many there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryLeft {
    /// Bytes that may still be used.
    pub left: u64,
    /// All of them.
    pub total: u64,
}

impl MemoryLeft {
    /// Returns true if at least one of so many parts is left.
    pub fn is_part(self, part: u64) -> bool {
        self.left >= self.total / part
    }

    /// What is to stay of all: with less memory is short.
    pub(crate) fn reserve(self) -> u64 {
        (self.total / 8).clamp(RESERVE_MIN, RESERVE_MAX).min(self.total / 2)
    }
}

/// What limits the memory of this process.
pub struct MemoryLimits(Vec<Group>);

impl MemoryLimits {
    /// The machine's memory, and the control groups that this process is in now.
    pub fn of_this_process() -> MemoryLimits {
        MemoryLimits(groups::of_process(&text("/proc/self/cgroup"), &text("/proc/self/mounts")))
    }

    /// Asks the kernel how much of each is free. What is cached is not: another stream would push it
    /// out.
    pub fn free(&self) -> impl Iterator<Item = MemoryLeft> {
        let machine = machine(&text("/proc/meminfo"), "MemFree:");
        machine.into_iter().chain(self.0.iter().filter_map(Group::free))
    }

    /// Asks the kernel how much of the machine's memory is free or could be taken back.
    pub(crate) fn machine_available(&self) -> Option<MemoryLeft> {
        machine(&text("/proc/meminfo"), "MemAvailable:")
    }

    /// The same of each control group.
    pub(crate) fn groups_available(&self) -> impl Iterator<Item = MemoryLeft> {
        self.0.iter().filter_map(Group::available)
    }

    /// Text of the kernel about stalls of the process's own control group, if that has a limit.
    pub(crate) fn group_pressure(&self) -> String {
        self.0.first().map(Group::pressure).unwrap_or_default()
    }
}

/// Memory of the machine, by the line of /proc/meminfo that says how much of it is left.
fn machine(meminfo: &str, left: &str) -> Option<MemoryLeft> {
    let bytes = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib << 10)
    };
    Some(MemoryLeft { left: bytes(left)?, total: bytes("MemTotal:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_of_a_machine_is_not_what_is_cached() {
        let text = "MemTotal:       16000 kB\nMemFree:         1999 kB\nMemAvailable: 15000 kB\n";
        let memory = machine(text, "MemFree:").unwrap();
        assert_eq!(memory, MemoryLeft { left: 1999 << 10, total: 16_000 << 10 });
        assert!(!memory.is_part(8) && memory.is_part(9));
        assert_eq!(machine(text, "MemAvailable:").unwrap().left, 15_000 << 10);
        assert_eq!(machine("MemTotal: many\n", "MemFree:"), None);
        let limits = MemoryLimits::of_this_process();
        assert!(limits.free().next().is_some(), "this machine says it");
        assert!(limits.machine_available().is_some());
    }
}

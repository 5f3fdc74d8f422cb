//! How much memory of this process's host is free: of the machine's, and of each limit of a control
//! group that the process is in (cgroups(7), version 1 and 2).

use std::fs;
use std::path::{Path, PathBuf};

/// Free bytes, and how many there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HostMemory {
    pub(crate) free: u64,
    pub(crate) total: u64,
}

impl HostMemory {
    /// Whether at least one of so many parts is free.
    pub(crate) fn has_free(self, part: u64) -> bool {
        self.free >= self.total / part
    }
}

/// What limits the memory of this process.
pub(crate) struct MemoryLimits(Vec<(PathBuf, GroupFiles)>);

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

impl MemoryLimits {
    /// The machine's memory, and the control groups that this process is in now.
    pub(crate) fn of_this_process() -> MemoryLimits {
        MemoryLimits(groups(&text("/proc/self/cgroup"), &text("/proc/self/mounts")))
    }

    /// Asks the kernel: nothing where it does not say.
    pub(crate) fn now(&self) -> impl Iterator<Item = HostMemory> {
        let groups = self.0.iter().filter_map(|(group, files)| of_group(group, *files));
        machine(&text("/proc/meminfo")).into_iter().chain(groups)
    }
}

/// Files of a group that say its limit and what is used of it.
type GroupFiles = [&'static str; 2];
const V1: GroupFiles = ["memory.limit_in_bytes", "memory.usage_in_bytes"];
const V2: GroupFiles = ["memory.max", "memory.current"];

/// Memory of the machine. What is cached is not free: another stream would push it out.
fn machine(meminfo: &str) -> Option<HostMemory> {
    let bytes = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib << 10)
    };
    Some(HostMemory { free: bytes("MemFree:")?, total: bytes("MemTotal:")? })
}

/// Groups that limit this process: its own, and those above it as far as they can be seen.
fn groups(own: &str, mounts: &str) -> Vec<(PathBuf, GroupFiles)> {
    let mut groups = Vec::new();
    for line in own.lines() {
        // hierarchy, controllers, path
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (files, kind) = match controllers {
            "" => (V2, "cgroup2"),
            list if list.split(',').any(|one| one == "memory") => (V1, "cgroup"),
            _ => continue,
        };
        let is_it = |fields: &Vec<&str>| {
            fields.len() > 3
                && fields[2] == kind
                && (files == V2 || fields[3].split(',').any(|word| word == "memory"))
        };
        let mut lines = mounts.lines().map(|line| line.split(' ').collect());
        let Some(at) = lines.find(is_it) else { continue };
        let path = Path::new(path.trim_start_matches('/'));
        groups.extend(path.ancestors().map(|path| (Path::new(at[1]).join(path), files)));
    }
    groups
}

/// Memory of a group; `None` if it has no limit.
fn of_group(group: &Path, files: GroupFiles) -> Option<HostMemory> {
    let read = |name| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = (read(files[0])?, read(files[1])?);
    // Version 1 says a limit that no machine has where there is none.
    (limit < 1 << 60).then(|| HostMemory { free: limit.saturating_sub(used), total: limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_of_a_machine_is_not_what_is_cached() {
        let text = "MemTotal:       16000 kB\nMemFree:         1999 kB\nMemAvailable: 15000 kB\n";
        let memory = machine(text).unwrap();
        assert_eq!(memory, HostMemory { free: 1999 << 10, total: 16_000 << 10 });
        assert!(!memory.has_free(8) && memory.has_free(9));
        assert_eq!(machine("MemTotal: many\n"), None);
        assert!(MemoryLimits::of_this_process().now().next().is_some(), "this machine says it");
    }

    #[test]
    fn the_groups_of_a_process_are_its_own_and_those_above_it() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";
        let found = groups("3:cpu:/a\n4:memory:/a/b\n0::/\n", mounts);
        let paths: Vec<_> = found.iter().map(|(path, _)| path.to_str().unwrap()).collect();
        let at = "/sys/fs/cgroup/memory/";
        assert_eq!(paths, [format!("{at}a/b"), format!("{at}a"), at.to_owned()]);
        let found = groups("0::/user/one\n", "none /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n");
        assert_eq!(found[0], ("/sys/fs/cgroup/user/one".into(), V2));
        assert_eq!(found.len(), 3);
        assert!(groups("0::/user\n", "proc /proc proc rw 0 0\n").is_empty());
    }

    #[test]
    fn a_group_without_a_limit_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name, text: &str| fs::write(dir.path().join(name), text).unwrap();
        assert_eq!(of_group(dir.path(), V2), None);
        write("memory.max", "max\n");
        write("memory.current", "70\n");
        assert_eq!(of_group(dir.path(), V2), None);
        write("memory.max", "100\n");
        assert_eq!(of_group(dir.path(), V2), Some(HostMemory { free: 30, total: 100 }));
        write("memory.limit_in_bytes", "9223372036854771712\n");
        write("memory.usage_in_bytes", "70\n");
        assert_eq!(of_group(dir.path(), V1), None);
    }
}

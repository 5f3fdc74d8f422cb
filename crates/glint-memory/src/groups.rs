//! Control groups that limit the memory of a process (cgroups(7), version 1 and 2).

use crate::MemoryLeft;
use std::fs;
use std::path::{Path, PathBuf};

/// Version of the control groups that have the memory controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hierarchy {
    /// One hierarchy for each controller.
    V1,
    /// One for all.
    V2,
}

impl Hierarchy {
    /// Name of the file of a group that says its limit.
    pub fn limit_file(self) -> &'static str {
        match self {
            Hierarchy::V1 => "memory.limit_in_bytes",
            Hierarchy::V2 => "memory.max",
        }
    }

    /// Name of the file of a group that says how much is used.
    pub fn usage_file(self) -> &'static str {
        match self {
            Hierarchy::V1 => "memory.usage_in_bytes",
            Hierarchy::V2 => "memory.current",
        }
    }

    /// Lines of `memory.stat` about pages of files and the kernel's own memory that can be taken back.
    fn reclaimable(self) -> &'static [&'static str] {
        match self {
            Hierarchy::V1 => &["total_inactive_file ", "total_active_file "],
            Hierarchy::V2 => &["inactive_file ", "active_file ", "slab_reclaimable "],
        }
    }
}

/// Returns where the memory controller is mounted, by the lines of /proc/self/mounts.
pub fn controller(mounts: &str) -> Option<(PathBuf, Hierarchy)> {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.filter(|fields| fields.len() >= 4).find_map(|fields| {
        let at = PathBuf::from(fields[1]);
        match fields[2] {
            "cgroup" if fields[3].split(',').any(|word| word == "memory") => {
                Some((at, Hierarchy::V1))
            }
            "cgroup2" if offers_memory(&at) => Some((at, Hierarchy::V2)),
            _ => None,
        }
    })
}

/// Returns true if the groups of version 2 that are mounted there have the memory controller.
fn offers_memory(at: &Path) -> bool {
    text(at.join("cgroup.controllers")).split_whitespace().any(|word| word == "memory")
}

pub(crate) fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// A control group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Group {
    path: PathBuf,
    hierarchy: Hierarchy,
}

/// Returns the groups that limit a process, its own first, and those above it as far as they can be
/// seen, by its /proc/self/cgroup and /proc/self/mounts.
pub(crate) fn of_process(own: &str, mounts: &str) -> Vec<Group> {
    let Some((at, hierarchy)) = controller(mounts) else { return Vec::new() };
    let path = own.lines().find_map(|line| {
        // hierarchy, controllers, path
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let is_it = match hierarchy {
            Hierarchy::V1 => controllers.split(',').any(|one| one == "memory"),
            Hierarchy::V2 => controllers.is_empty(),
        };
        is_it.then_some(path)
    });
    let Some(path) = path else { return Vec::new() };
    let all = Path::new(path.trim_start_matches('/')).ancestors();
    all.map(|path| Group { path: at.join(path), hierarchy }).collect()
}

impl Group {
    fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.path.join(file)).ok()?.trim().parse().ok()
    }

    fn limit(&self) -> Option<u64> {
        let max = self.number(self.hierarchy.limit_file());
        let limit = match self.hierarchy {
            Hierarchy::V1 => max?,
            // Above it the kernel slows the processes down.
            Hierarchy::V2 => max.into_iter().chain(self.number("memory.high")).min()?,
        };
        // Version 1 says a limit that no machine has where there is none.
        (limit < 1 << 60).then_some(limit)
    }

    /// Text of the kernel about stalls of its processes, which version 2 has; none of a group without a
    /// limit, as the root is: these may be stalls of others at theirs.
    pub(crate) fn pressure(&self) -> String {
        self.limit().map(|_| text(self.path.join("memory.pressure"))).unwrap_or_default()
    }

    /// Memory of the group that nothing is in; `None` if it has no limit.
    pub(crate) fn free(&self) -> Option<MemoryLeft> {
        let (total, used) = (self.limit()?, self.number(self.hierarchy.usage_file())?);
        Some(MemoryLeft { left: total.saturating_sub(used), total })
    }

    /// The same, with what the kernel could take back, if that matters: it has to add up the counts of
    /// all cores to say it.
    pub(crate) fn available(&self) -> Option<MemoryLeft> {
        let free = self.free()?;
        if free.left >= 2 * free.reserve() {
            return Some(free);
        }
        let stat = text(self.path.join("memory.stat"));
        let bytes = |line: &str| {
            let name = self.hierarchy.reclaimable().iter().find(|name| line.starts_with(**name))?;
            line[name.len()..].trim().parse::<u64>().ok()
        };
        let reclaimable: u64 = stat.lines().filter_map(bytes).sum();
        Some(MemoryLeft { left: (free.left + reclaimable).min(free.total), ..free })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_is_found_where_it_is_mounted() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
                      cgroup2 /nowhere/unified cgroup2 rw 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";
        let at = PathBuf::from("/sys/fs/cgroup/memory");
        assert_eq!(controller(mounts), Some((at, Hierarchy::V1)));
        assert_eq!(controller("cgroup2 /nowhere/unified cgroup2 rw 0 0\n"), None);
        let top = tempfile::tempdir().unwrap();
        fs::write(top.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        let line = format!("cgroup2 {} cgroup2 rw 0 0\n", top.path().display());
        assert_eq!(controller(&line), Some((top.path().to_owned(), Hierarchy::V2)));
    }

    #[test]
    fn the_groups_of_a_process_are_its_own_and_those_above_it() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";
        let found = of_process("3:cpu:/a\n4:memory:/a/b\n0::/\n", mounts);
        let paths: Vec<_> = found.iter().map(|group| group.path.to_str().unwrap()).collect();
        let at = "/sys/fs/cgroup/memory/";
        assert_eq!(paths, [format!("{at}a/b"), format!("{at}a"), at.to_owned()]);
        let top = tempfile::tempdir().unwrap();
        fs::write(top.path().join("cgroup.controllers"), "memory\n").unwrap();
        let line = format!("none {} cgroup2 rw,nosuid 0 0\n", top.path().display());
        let found = of_process("0::/user/one\n", &line);
        let path = top.path().join("user/one");
        assert_eq!(found[0], Group { path, hierarchy: Hierarchy::V2 });
        assert_eq!(found.len(), 3);
        assert!(of_process("0::/user\n", "proc /proc proc rw 0 0\n").is_empty());
    }

    #[test]
    fn a_group_without_a_limit_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let group = |hierarchy| Group { path: dir.path().to_owned(), hierarchy };
        let (v1, v2) = (group(Hierarchy::V1), group(Hierarchy::V2));
        assert_eq!(v2.free(), None);
        write("memory.max", "max\n");
        write("memory.high", "max\n");
        write("memory.current", "70\n");
        assert_eq!(v2.free(), None);
        write("memory.max", "100\n");
        assert_eq!(v2.free(), Some(MemoryLeft { left: 30, total: 100 }));
        write("memory.high", "80\n");
        assert_eq!(v2.free(), Some(MemoryLeft { left: 10, total: 80 }));
        write("memory.limit_in_bytes", "9223372036854771712\n");
        write("memory.usage_in_bytes", "70\n");
        assert_eq!(v1.free(), None);
    }

    #[test]
    fn stalls_count_only_of_a_group_that_has_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let group = Group { path: dir.path().to_owned(), hierarchy: Hierarchy::V2 };
        let stalls = "some avg10=50.00 avg60=0.10 avg300=0.00 total=5\n";
        write("memory.pressure", stalls);
        assert_eq!(group.pressure(), "", "the root has no such file");
        write("memory.max", "max\n");
        assert_eq!(group.pressure(), "");
        write("memory.max", "1000\n");
        assert_eq!(group.pressure(), stalls);
    }

    #[test]
    fn pages_of_files_can_be_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let left = |hierarchy| Group { path: dir.path().to_owned(), hierarchy }.available();
        write("memory.max", "100\n");
        write("memory.current", "90\n");
        write("memory.limit_in_bytes", "100\n");
        write("memory.usage_in_bytes", "95\n");
        assert_eq!(left(Hierarchy::V2), Some(MemoryLeft { left: 10, total: 100 }));
        let own = "anon 30\ninactive_file 5\nactive_file 20\nslab_reclaimable 3\n";
        let all = "total_inactive_file 1\ntotal_active_file 2\ntotal_unevictable 9\n";
        write("memory.stat", &format!("{own}{all}"));
        assert_eq!(left(Hierarchy::V2), Some(MemoryLeft { left: 38, total: 100 }));
        assert_eq!(left(Hierarchy::V1), Some(MemoryLeft { left: 8, total: 100 }));
        // Nobody has to know when much is free.
        let total = 128 << 20;
        write("memory.max", &format!("{total}\n"));
        write("memory.current", &format!("{}\n", total / 2));
        write("memory.stat", &format!("active_file {}\n", 20 << 20));
        assert_eq!(left(Hierarchy::V2), Some(MemoryLeft { left: total / 2, total }));
        write("memory.current", &format!("{}\n", total - (10 << 20)));
        assert_eq!(left(Hierarchy::V2), Some(MemoryLeft { left: 30 << 20, total }));
    }
}

//! Control groups that limit the memory of some processes of an experiment, and say how much they
//! have used: page cache and what the kernel keeps of inodes for them are counted, too.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long processes that were ended may take until their group lets them go.
const PATIENCE: Duration = Duration::from_secs(10);
/// Moves a shell into the group of its first word, and becomes the program of the others.
const JOIN: &str = "echo $$ > \"$0\" && exec \"$@\"";
/// What to do where there are no groups.
const ADVICE: &str = "run it as root on a host whose control groups can be written, or say \
                      `--memory off`";

/// Version of the control groups that have the memory controller here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hierarchy {
    /// One hierarchy for each controller.
    V1,
    /// One for all.
    V2,
}

impl Hierarchy {
    /// Files for: limit, use now, most use so far, what the kernel counts of kills.
    fn files(self) -> [&'static str; 4] {
        match self {
            Hierarchy::V1 => [
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "memory.max_usage_in_bytes",
                "memory.oom_control",
            ],
            Hierarchy::V2 => ["memory.max", "memory.current", "memory.peak", "memory.events"],
        }
    }
}

/// A control group with a limit of memory, gone in the end.
pub(crate) struct MemoryGroup {
    path: PathBuf,
    hierarchy: Hierarchy,
}

/// Where the memory controller is mounted, by the lines of /proc/self/mounts.
fn find(mounts: &str) -> Option<(PathBuf, Hierarchy)> {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.filter(|fields| fields.len() >= 4).find_map(|fields| {
        let at = PathBuf::from(fields[1]);
        match fields[2] {
            "cgroup" if fields[3].split(',').any(|word| word == "memory") => {
                Some((at, Hierarchy::V1))
            }
            "cgroup2" if is_offered(&at) => Some((at, Hierarchy::V2)),
            _ => None,
        }
    })
}

/// Whether the groups of version 2 have the memory controller.
fn is_offered(at: &Path) -> bool {
    let controllers = std::fs::read_to_string(at.join("cgroup.controllers")).unwrap_or_default();
    controllers.split_whitespace().any(|word| word == "memory")
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}; {ADVICE}", path.display()))
}

impl MemoryGroup {
    /// Makes a group with a limit, named after this process and `name`.
    pub(crate) fn new(name: &str, bytes: u64) -> Result<MemoryGroup, String> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let (top, hierarchy) = find(&mounts)
            .ok_or_else(|| format!("no control groups limit memory here; {ADVICE}"))?;
        if hierarchy == Hierarchy::V2 {
            write(&top.join("cgroup.subtree_control"), "+memory")?;
        }
        let path = top.join(format!("glint-bench-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).map_err(|e| format!("{}: {e}; {ADVICE}", path.display()))?;
        let group = MemoryGroup { path, hierarchy };
        write(&group.file(0), &bytes.to_string())?;
        Ok(group)
    }

    fn file(&self, which: usize) -> PathBuf {
        self.path.join(self.hierarchy.files()[which])
    }

    fn number(&self, which: usize) -> u64 {
        let text = std::fs::read_to_string(self.file(which)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// The same command, which joins the group before it begins. Its process has the number that
    /// it would have had.
    pub(crate) fn wrap(&self, command: &Command) -> Command {
        let mut within = Command::new("sh");
        within.args(["-c", JOIN]).arg(self.path.join("cgroup.procs"));
        within.arg(command.get_program()).args(command.get_args());
        if let Some(directory) = command.get_current_dir() {
            within.current_dir(directory);
        }
        within
    }

    /// The most bytes that it has used so far.
    pub(crate) fn peak(&self) -> u64 {
        self.number(2)
    }

    /// Processes that the kernel has killed because the limit was reached and nothing could be
    /// taken back.
    pub(crate) fn kills(&self) -> u64 {
        let text = std::fs::read_to_string(self.file(3)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let begun = Instant::now();
        while std::fs::remove_dir(&self.path).is_err() && self.path.exists() {
            if begun.elapsed() > PATIENCE {
                eprintln!("{}: this control group is left: it is used", self.path.display());
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
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
        assert_eq!(find(mounts), Some((at, Hierarchy::V1)));
        assert_eq!(find("cgroup2 /nowhere/unified cgroup2 rw 0 0\n"), None);
        let top = tempfile::tempdir().unwrap();
        std::fs::write(top.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        let line = format!("cgroup2 {} cgroup2 rw 0 0\n", top.path().display());
        assert_eq!(find(&line), Some((top.path().to_owned(), Hierarchy::V2)));
    }

    #[test]
    fn a_wrapped_command_joins_its_group_and_keeps_its_words() {
        let top = tempfile::tempdir().unwrap();
        let group = MemoryGroup { path: top.path().join("group"), hierarchy: Hierarchy::V1 };
        std::fs::create_dir(&group.path).unwrap();
        let mut command = Command::new("printf");
        command.args(["%s,", "two words", "$HOME"]).current_dir(top.path());
        let output = group.wrap(&command).output().unwrap();
        assert_eq!(output.stdout, b"two words,$HOME,");
        let joined = std::fs::read_to_string(group.path.join("cgroup.procs")).unwrap();
        assert!(joined.trim().parse::<u32>().is_ok(), "{joined}");
        std::fs::write(group.path.join("memory.max_usage_in_bytes"), "4096\n").unwrap();
        std::fs::write(group.path.join("memory.oom_control"), "under_oom 0\noom_kill 3\n").unwrap();
        assert_eq!((group.peak(), group.kills()), (4096, 3));
        // A real one has no files that have to be removed.
        std::fs::remove_dir_all(&group.path).unwrap();
    }
}

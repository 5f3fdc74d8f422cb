//! Control groups that limit the memory of some processes of an experiment, and say how much they
//! have used: page cache and what the kernel keeps of inodes for them are counted, too.

use glint_memory::Hierarchy;
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

/// Names of files for: limit, use now, most use so far, what the kernel counts of kills.
fn files(hierarchy: Hierarchy) -> [&'static str; 4] {
    let (peak, kills) = match hierarchy {
        Hierarchy::V1 => ("memory.max_usage_in_bytes", "memory.oom_control"),
        Hierarchy::V2 => ("memory.peak", "memory.events"),
    };
    [hierarchy.limit_file(), hierarchy.usage_file(), peak, kills]
}

/// A control group with a limit of memory, gone in the end.
pub(crate) struct MemoryGroup {
    path: PathBuf,
    hierarchy: Hierarchy,
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}; {ADVICE}", path.display()))
}

impl MemoryGroup {
    /// Makes a group with a limit, named after this process and `name`.
    pub(crate) fn new(name: &str, bytes: u64) -> Result<MemoryGroup, String> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let (top, hierarchy) = glint_memory::controller(&mounts)
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
        self.path.join(files(self.hierarchy)[which])
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

//! Control groups that limit the memory of a process, gone in the end.

use glint_memory::{Hierarchy, controller};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Moves a shell into the group of its first word, and becomes the program of the others.
const JOIN: &str = "echo $$ > \"$0\" && exec \"$@\"";

/// A control group with a limit of memory.
pub struct MemoryLimit {
    path: PathBuf,
    hierarchy: Hierarchy,
}

impl MemoryLimit {
    /// Makes a group; nothing on a host where that cannot be done.
    pub fn new(name: &str, bytes: u64) -> Option<MemoryLimit> {
        let (top, hierarchy) = controller(&fs::read_to_string("/proc/self/mounts").ok()?)?;
        if hierarchy == Hierarchy::V2 {
            fs::write(top.join("cgroup.subtree_control"), "+memory").ok()?;
        }
        let path = top.join(format!("glint-e2e-{}-{name}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let group = MemoryLimit { path, hierarchy };
        group.set(bytes).is_ok().then_some(group)
    }

    /// Sets another limit.
    pub fn set(&self, bytes: u64) -> std::io::Result<()> {
        fs::write(self.path.join(self.hierarchy.limit_file()), bytes.to_string())
    }

    /// The same command, which joins the group before it begins.
    pub fn wrap(&self, command: &Command) -> Command {
        let mut within = Command::new("sh");
        within.args(["-c", JOIN]).arg(self.path.join("cgroup.procs"));
        within.arg(command.get_program()).args(command.get_args());
        within
    }

    fn text(&self, file: &str) -> String {
        let path = self.path.join(file);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// Bytes that are used.
    pub fn used(&self) -> u64 {
        self.text(self.hierarchy.usage_file()).trim().parse().unwrap()
    }

    /// Processes that the kernel has killed because the limit was reached and nothing could be taken
    /// back.
    pub fn kills(&self) -> u64 {
        let text = self.text(match self.hierarchy {
            Hierarchy::V1 => "memory.oom_control",
            Hierarchy::V2 => "memory.events",
        });
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap()
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // Its processes have ended, and the kernel notices that a little later.
        let is_gone = |path: &Path| fs::remove_dir(path).is_ok() || !path.exists();
        for _ in 0..500 {
            if is_gone(&self.path) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        eprintln!("{}: this control group is left: it is used", self.path.display());
    }
}

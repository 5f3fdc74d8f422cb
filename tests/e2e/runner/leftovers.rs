//! What a test has left behind: processes, mounts, loop devices, network namespaces. All of it is
//! removed, and makes the test fail.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use support::paths::from_field;

/// Time that daemons and loop devices have to end after their test.
const PATIENCE: Duration = Duration::from_secs(10);

/// Removes whatever a test with these two directories has left, and names it.
pub(crate) fn remove(temporary: &Path, scratch: &Path) -> Vec<String> {
    let mut left: Vec<String> =
        lasting(|| processes_of(scratch)).into_iter().map(Process::kill).collect();
    left.extend(unmount_below(&[temporary, scratch]));
    left.extend(lasting(|| devices_below(scratch)).into_iter().map(detach));
    left.extend(namespaces_without_owner().into_iter().map(delete_namespace));
    left
}

/// Looks until nothing is found any more; returns what stays for longer than [`PATIENCE`].
fn lasting<T>(look: impl Fn() -> Vec<T>) -> Vec<T> {
    let begun = Instant::now();
    loop {
        let found = look();
        if found.is_empty() || begun.elapsed() > PATIENCE {
            return found;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

struct Process {
    pid: i32,
    command: String,
}

impl Process {
    fn kill(self) -> String {
        if let Some(pid) = rustix::process::Pid::from_raw(self.pid) {
            // Fails if it has just ended.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        format!("process {} ({})", self.pid, self.command.trim_end())
    }
}

/// Returns processes that have inherited the environment of a test, in whatever session they are.
fn processes_of(scratch: &Path) -> Vec<Process> {
    let variable = [b"E2E_SCRATCH=", scratch.as_os_str().as_bytes()].concat();
    let is_of_test =
        |environment: &[u8]| environment.split(|byte| *byte == 0).any(|v| v == variable);
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        // Empty of one that has ended and is not waited for yet.
        let environment = fs::read(entry.path().join("environ")).ok()?;
        let command = || fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        is_of_test(&environment).then(|| Process { pid, command: command() })
    });
    found.collect()
}

/// Detaches what is mounted below directories, the last one first.
fn unmount_below(directories: &[&Path]) -> Vec<String> {
    let mounts = fs::read("/proc/self/mounts").unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
    let is_below = |path: &PathBuf| directories.iter().any(|top| path.starts_with(top));
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(from_field);
    let mut left: Vec<PathBuf> = places.filter(is_below).collect();
    left.reverse();
    let detached = left.into_iter().map(|place| {
        let _ = rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH);
        format!("mount {}", place.display())
    });
    detached.collect()
}

/// Returns names of loop devices of files below a directory.
fn devices_below(directory: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let of_test = devices.filter(|device| {
        let file = fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        Path::new(file.trim_end()).starts_with(directory)
    });
    of_test.map(|device| Path::new("/dev").join(device.file_name())).collect()
}

fn detach(device: PathBuf) -> String {
    let _ = Command::new("losetup").arg("--detach").arg(&device).status();
    format!("loop device {}", device.display())
}

/// Returns hosts of tests (`support/namespace.rs`) whose number no process claims: of this test, or
/// of one that ends at the same time.
fn namespaces_without_owner() -> Vec<String> {
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let is_left = |name: &String| {
        let number = name.strip_prefix("glint-").and_then(|number| number.parse::<u16>().ok());
        let claimed = number.map(|number| support::claim_file("host", number));
        claimed.is_some_and(|path| File::create(path).is_ok_and(|file| file.try_lock().is_ok()))
    };
    names.filter(is_left).collect()
}

fn delete_namespace(name: String) -> String {
    let _ = Command::new("ip").args(["netns", "delete", &name]).status();
    format!("network namespace {name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn a_process_in_a_session_of_its_own_is_found_and_ended() {
        let scratch = tempfile::tempdir().unwrap();
        assert!(processes_of(scratch.path()).is_empty());
        let mut command = Command::new("setsid");
        command.args(["sleep", "100"]).env("E2E_SCRATCH", scratch.path()).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        // While setsid becomes sleep, it shows no environment.
        let mut found = Vec::new();
        support::eventually("the process is found", || {
            found = processes_of(scratch.path());
            found.iter().any(|process| process.command.trim() == "sleep")
        });
        assert_eq!(found.len(), 1);
        assert!(found.into_iter().map(Process::kill).all(|said| said.starts_with("process ")));
        assert!(!child.wait().unwrap().success());
        assert!(processes_of(scratch.path()).is_empty());
    }
}

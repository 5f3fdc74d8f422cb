//! What a test has left behind: processes, mounts, loop devices, network namespaces. All of it is
//! removed, and makes the test fail.
//!
//! Invariant: a test answers for what is known to be its own, whatever others do on the machine at
//! the same time. A process has its environment or its process group, a mount and the file of a loop
//! device are below its directories, the claim on a network namespace names its scratch directory.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use support::claims;
use support::paths::from_field;

/// Time that daemons and loop devices have to end after their test.
const PATIENCE: Duration = Duration::from_secs(10);

/// Removes whatever a test with these two directories and this process group has left, and names
/// it.
pub(crate) fn remove(temporary: &Path, scratch: &Path, group: u32) -> Vec<String> {
    let mut left: Vec<String> =
        lasting(|| processes_of(scratch, group)).into_iter().map(Process::kill).collect();
    left.extend(unmount_below(&[temporary, scratch]));
    left.extend(lasting(|| devices_below(scratch)).into_iter().map(detach));
    left.extend(delete_namespaces_of(scratch));
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

/// Returns processes that have inherited the environment of a test, in whatever session they are,
/// or are in its process group, in whatever environment.
fn processes_of(scratch: &Path, group: u32) -> Vec<Process> {
    let variable = [b"E2E_SCRATCH=", scratch.as_os_str().as_bytes()].concat();
    let has_variable =
        |environment: &[u8]| environment.split(|byte| *byte == 0).any(|v| v == variable);
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let is_of_test = is_alive_in(&stat, group) || {
            // Empty of one that has ended and is not waited for yet.
            has_variable(&fs::read(entry.path().join("environ")).unwrap_or_default())
        };
        let command = || fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        is_of_test.then(|| Process { pid, command: command() })
    });
    found.collect()
}

/// True if `/proc/PID/stat` is of a process of this group that has not ended.
fn is_alive_in(stat: &str, group: u32) -> bool {
    // The name may have spaces and parentheses: state, parent and group come after the last one.
    let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
    let mut fields = fields.split(' ');
    let (state, its) = (fields.next(), fields.nth(1));
    !matches!(state, Some("Z" | "X")) && its.and_then(|its| its.parse().ok()) == Some(group)
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

/// Returns names of loop devices of files below a directory that nobody has detached. The kernel
/// keeps one that was detached as long as somebody has it mounted in a mount namespace of its own.
fn devices_below(directory: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let of_test = devices.filter(|device| {
        let about = |what: &str| {
            fs::read_to_string(device.path().join("loop").join(what)).unwrap_or_default()
        };
        is_left(Path::new(about("backing_file").trim_end()), &about("autoclear"), directory)
    });
    of_test.map(|device| Path::new("/dev").join(device.file_name())).collect()
}

/// True if the file of a loop device is below a directory, and it goes by itself with its last user
/// only if `autoclear` says so.
fn is_left(file: &Path, autoclear: &str, directory: &Path) -> bool {
    file.starts_with(directory) && autoclear.trim_end() != "1"
}

fn detach(device: PathBuf) -> String {
    let _ = Command::new("losetup").arg("--detach").arg(&device).status();
    format!("loop device {}", device.display())
}

/// Deletes hosts (`support/host/namespace.rs`) that a test which has ended had claimed.
fn delete_namespaces_of(scratch: &Path) -> Vec<String> {
    // Where there can be no claims, there are no hosts.
    let Ok(claims) = claims::directory() else { return Vec::new() };
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let deleted = names.filter_map(|name| {
        let number = name.strip_prefix("glint-")?.parse().ok()?;
        // Nobody else makes a host of this name meanwhile.
        let _claim = claims::left_by(&claims, scratch, "host", number)?;
        let _ = Command::new("ip").args(["netns", "delete", &name]).status();
        Some(format!("network namespace {name}"))
    });
    deleted.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Stdio;

    /// No process group of this test.
    const NO_GROUP: u32 = u32::MAX;

    #[test]
    fn a_process_in_a_session_of_its_own_is_found_and_ended() {
        let scratch = tempfile::tempdir().unwrap();
        assert!(processes_of(scratch.path(), NO_GROUP).is_empty());
        let mut command = Command::new("setsid");
        command.args(["sleep", "100"]).env("E2E_SCRATCH", scratch.path()).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        // While setsid becomes sleep, it shows no environment.
        let mut found = Vec::new();
        support::eventually("the process is found", || {
            found = processes_of(scratch.path(), NO_GROUP);
            found.iter().any(|process| process.command.trim() == "sleep")
        });
        assert_eq!(found.len(), 1);
        assert!(found.into_iter().map(Process::kill).all(|said| said.starts_with("process ")));
        assert!(!child.wait().unwrap().success());
        assert!(processes_of(scratch.path(), NO_GROUP).is_empty());
    }

    #[test]
    fn a_process_of_the_group_is_found_whatever_its_environment_until_it_has_ended() {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = Command::new("sleep");
        command.arg("100").env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
        let mut child = command.process_group(0).spawn().unwrap();
        let group = child.id();
        let found = processes_of(scratch.path(), group);
        assert_eq!(found.len(), 1);
        found.into_iter().for_each(|process| drop(process.kill()));
        support::eventually("it has ended, and nobody has waited for it", || {
            processes_of(scratch.path(), group).is_empty()
        });
        child.wait().unwrap();
    }

    #[test]
    fn a_group_stands_behind_any_name() {
        assert!(is_alive_in("7 (a) Z 1 (b)) S 1 42 42 0", 42));
        assert!(!is_alive_in("7 (sleep) S 1 42 42 0", 1));
        assert!(!is_alive_in("7 (sleep) Z 1 42 42 0", 42));
        assert!(!is_alive_in("", 0));
    }

    #[test]
    fn a_device_that_was_detached_is_not_left_by_its_test() {
        let ours = Path::new("/build/scratch/a1");
        assert!(is_left(Path::new("/build/scratch/a1/disk"), "0\n", ours));
        assert!(!is_left(Path::new("/build/scratch/a1/disk (deleted)"), "1\n", ours));
        assert!(!is_left(Path::new("/build/scratch/a12/disk"), "0\n", ours));
        assert!(!is_left(Path::new(""), "", ours));
    }

    #[test]
    fn a_claim_is_of_the_test_that_made_it_last_and_has_ended() {
        let claims = tempfile::tempdir().unwrap();
        let claims = claims.path();
        let (ours, others) = (Path::new("/build/scratch/a1"), Path::new("/build/scratch/a2"));
        let held = claims::try_claim(claims, "host", 1, Some(others)).unwrap();
        assert!(claims::try_claim(claims, "host", 1, Some(ours)).is_none(), "it is held");
        assert!(claims::left_by(claims, others, "host", 1).is_none(), "it is used");
        drop(held);
        assert!(claims::left_by(claims, ours, "host", 1).is_none(), "it is another's");
        // A process that another test has just forked has all descriptors until it runs its program.
        let is_left = || claims::left_by(claims, others, "host", 1).is_some();
        assert!((0..1000).any(|_| is_left() || {
            std::thread::sleep(Duration::from_millis(1));
            false
        }));
        drop(claims::try_claim(claims, "host", 1, None));
        assert!(claims::left_by(claims, others, "host", 1).is_none(), "somebody had it since");
        assert!(claims::left_by(claims, ours, "host", 2).is_none(), "nobody has ever had it");
    }

    #[test]
    fn claims_are_in_a_directory_of_their_user_and_follow_no_link() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let top = tempfile::tempdir().unwrap();
        let (claims, file) = (top.path().join("claims"), top.path().join("file"));
        claims::own(&claims).unwrap();
        claims::own(&claims).unwrap();
        assert_eq!(fs::metadata(&claims).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(&file, "content").unwrap();
        symlink(&file, claims.join("host-1")).unwrap();
        let followed = std::panic::catch_unwind(|| claims::try_claim(&claims, "host", 1, None));
        assert!(followed.is_err());
        assert!(claims::left_by(&claims, Path::new("content"), "host", 1).is_none());
        assert_eq!(fs::read(&file).unwrap(), b"content");

        let link = top.path().join("link");
        symlink(&claims, &link).unwrap();
        for (wrong, why) in [(&link, "is not a directory"), (&file, "is not a directory")] {
            let refused = claims::own(wrong).unwrap_err();
            assert!(
                refused.contains(why) && refused.contains(wrong.to_str().unwrap()),
                "{refused}"
            );
        }
        fs::set_permissions(&claims, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(claims::own(&claims).unwrap_err().contains("is open to others"));
    }
}

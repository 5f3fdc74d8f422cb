//! Attaching to and detaching from the kernel's tree of mounts.

use crate::error::MountError;
use glint_proto::limits::READ_AHEAD_BYTES;
use glint_telemetry::event;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Source that `mount` and `df` show.
    pub source: String,
    /// Options that every file system has.
    pub flags: MountFlags,
    /// Data never stays in the kernel's page cache, as if every file was opened
    /// with O_DIRECT.
    pub direct_io: bool,
    /// Labels of SELinux, as `context=LABEL`; left out where the kernel has none.
    pub contexts: Vec<String>,
    /// Files whose objects are on this host are read by the kernel itself, if it can do that.
    pub passthrough: bool,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            source: String::new(),
            flags: MountFlags::empty(),
            direct_io: false,
            contexts: Vec::new(),
            passthrough: false,
        }
    }
}

/// A mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountedAt {
    /// The kernel's number of the mount in this namespace.
    pub id: u64,
    /// Number of the mount that it is mounted on.
    pub parent: u64,
    /// Source.
    pub source: String,
    /// Directory of the file system that is seen there: its root, but with bind mounts.
    pub root: PathBuf,
    /// Directory.
    pub path: PathBuf,
    /// Type.
    pub kind: String,
    /// Options, those of the mount and then those of the file system, separated by commas.
    pub options: String,
    /// The kernel's number of the file system, as MAJOR:MINOR.
    pub device: String,
}

/// File system type that mounts of Glint show.
pub const FS_TYPE: &str = "fuse.glint";
/// The capability that mounting needs, as a bit of a set.
const CAP_SYS_ADMIN: u64 = 1 << 21;
/// There where the kernel has SELinux.
const SELINUX: &str = "/sys/fs/selinux/enforce";

fn unescape(field: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\')
            .then(|| after.get(..3).and_then(|d| std::str::from_utf8(d).ok()))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(value) => {
                bytes.push(value);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// All mounts of this namespace, in the kernel's order, also those that others hide.
pub fn mounts() -> Vec<MountedAt> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(parse_mount).collect()
}

/// A line of mountinfo, as proc_pid_mountinfo(5) describes it.
fn parse_mount(line: &str) -> Option<MountedAt> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ');
    let id = mount.next()?.parse().ok()?;
    let parent = mount.next()?.parse().ok()?;
    let device = mount.next()?.to_owned();
    let root = PathBuf::from(unescape(mount.next()?));
    let path = PathBuf::from(unescape(mount.next()?));
    let own = mount.next()?;
    let mut file_system = file_system.split(' ');
    let kind = file_system.next()?.to_owned();
    let source = unescape(file_system.next()?);
    let options = format!("{own},{}", file_system.next()?);
    Some(MountedAt { id, parent, source, root, path, kind, options, device })
}

/// Returns the one of all `mounts` that shows an absolute path without links: the one to which the
/// kernel comes when it goes along that path. Mounts below others on the same directory, and those
/// on a directory that another mount hides, are never it, however long their paths are.
pub fn mount_showing<'a>(mounts: &'a [MountedAt], path: &Path) -> Option<&'a MountedAt> {
    // The root of this process has its mount on one that is not in the list.
    let is_first = |mount: &MountedAt| mounts.iter().all(|other| other.id != mount.parent);
    let mut shown: Option<&MountedAt> = None;
    // Each step leads to a mount on the last one.
    for _ in mounts {
        let is_on = |mount: &&MountedAt| match shown {
            Some(below) => mount.parent == below.id && mount.id != below.id,
            None => mount.id == mount.parent || is_first(mount),
        };
        let on_the_way = mounts.iter().rev().filter(is_on);
        let on_the_way = on_the_way.filter(|mount| path.starts_with(&mount.path));
        match on_the_way.min_by_key(|mount| mount.path.components().count()) {
            Some(next) => shown = Some(next),
            None => break,
        }
    }
    shown
}

/// The topmost mount exactly at `path`.
pub fn mounted_at(path: &Path) -> Option<MountedAt> {
    mounts().into_iter().rev().find(|mount| mount.path == path)
}

/// A process that has a mount in a mount namespace of its own, though it is unmounted in this one.
pub fn holder_elsewhere(mount: &MountedAt) -> Option<u32> {
    let has_it = |pid: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        text.lines().filter_map(parse_mount).any(|other| other.device == mount.device)
    };
    let pids = std::fs::read_dir("/proc").ok()?.flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(has_it)
}

/// Whether the daemon that served the mount at `path` is gone.
pub fn is_dead(path: &Path) -> bool {
    let dead = [Some(libc::ENOTCONN), Some(libc::ECONNABORTED)];
    std::fs::metadata(path).is_err_and(|e| dead.contains(&e.raw_os_error()))
}

fn needs_root(path: &Path) -> MountError {
    MountError::MountPoint {
        path: path.display().to_string(),
        reason: "mounting needs root (or CAP_SYS_ADMIN); run it with sudo".into(),
    }
}

/// Whether this process may mount anything, at `path`: asked before anything else is tried, whose
/// error would lead elsewhere.
pub fn check_rights(path: &Path) -> Result<(), MountError> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    match effective {
        Some(bits) if bits & CAP_SYS_ADMIN == 0 => Err(needs_root(path)),
        _ => Ok(()),
    }
}

/// Makes sure that a file system can be mounted at `path`: an existing, empty
/// directory, or one left behind by a crashed daemon, which is cleaned up.
pub fn prepare(path: &Path) -> Result<PathBuf, MountError> {
    let refuse =
        |reason: String| MountError::MountPoint { path: path.display().to_string(), reason };
    // A dead mount answers everything with an error, so the path is made absolute
    // without touching its last part.
    let absolute = std::path::absolute(path).map_err(|e| refuse(e.to_string()))?;
    let parent = absolute.parent().and_then(|parent| parent.canonicalize().ok());
    let resolved = match (parent, absolute.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => absolute,
    };
    if is_dead(&resolved) {
        tracing::warn!(
            event = event::STALE_MOUNT_REMOVED, path = %resolved.display(),
            "the mount of a daemon that is gone is cleaned up"
        );
        rustix::mount::unmount(&resolved, UnmountFlags::DETACH)
            .map_err(|e| refuse(format!("stale mount could not be removed: {e}")))?;
    }
    let resolved = resolved.canonicalize().map_err(|e| {
        let hint = if e.kind() == io::ErrorKind::NotFound { "; create it first" } else { "" };
        refuse(format!("{e}{hint}"))
    })?;
    if !resolved.is_dir() {
        return Err(refuse("not a directory".into()));
    }
    if let Some(mount) = mounted_at(&resolved).filter(|mount| mount.kind.starts_with("fuse")) {
        let what = format!("{} ({}) is already mounted here", mount.source, mount.kind);
        return Err(refuse(format!("{what}; unmount it first: glint umount {}", path.display())));
    }
    let mut entries = std::fs::read_dir(&resolved).map_err(|e| refuse(e.to_string()))?;
    if entries.next().is_some() {
        return Err(refuse("not empty; what is in it would be hidden, choose another".into()));
    }
    Ok(resolved)
}

/// Changes the flags of the mount at `path` (mount -o remount).
pub fn remount(path: &Path, flags: MountFlags) -> Result<(), MountError> {
    // The kernel closes files of FUSE in the background; one that was unlinked before
    // makes the mount look busy for a moment.
    let mut attempts = 50;
    loop {
        match rustix::mount::mount_remount(path, flags, "") {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::BUSY) if attempts > 0 => attempts -= 1,
            Err(e) => {
                let path = path.display().to_string();
                return Err(MountError::MountPoint { path, reason: format!("remount: {e}") });
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Opens /dev/fuse and mounts it at `path`.
pub(crate) fn mount(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/dev/fuse", flags, Mode::empty()).map_err(|e| match e {
        rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => needs_root(path),
        e => MountError::NoDevice(e.into()),
    })?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions,allow_other,max_read={}",
        fd.as_raw_fd(),
        glint_proto::limits::FUSE_IO_BYTES_MAX,
    );
    if Path::new(SELINUX).exists() {
        options.contexts.iter().for_each(|label| data.extend([",", label]));
    }
    let data = std::ffi::CString::new(data).map_err(|_| {
        MountError::io("mount options", io::Error::from(io::ErrorKind::InvalidInput))
    })?;
    rustix::mount::mount(options.source.as_str(), path, FS_TYPE, options.flags, data.as_c_str())
        .map_err(|e| match e {
            rustix::io::Errno::PERM => needs_root(path),
            e => MountError::io("mount", e),
        })?;
    Ok(fd)
}

/// Lets the kernel read ahead further than its default of 128 KiB, so that several large
/// requests are under way at once. Where sysfs cannot be written it stays as it is.
pub(crate) fn set_read_ahead(path: &Path) {
    let set = || {
        let device = rustix::fs::stat(path)?.st_dev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        std::fs::write(knob, (READ_AHEAD_BYTES / 1024).to_string())
    };
    if let Err(error) = set() {
        tracing::debug!(%error, "read-ahead stays at the kernel's default");
    }
}

/// Unmounts `path`. With `lazy` it disappears at once and ends when its last user
/// is gone; otherwise open files are EBUSY.
pub fn unmount(path: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    Ok(rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW)?)
}

/// Has all requests fail, and unmounts `path`, whoever still uses it.
pub(crate) fn abort(path: &Path) -> io::Result<()> {
    // The first ends the requests, and may fail because files are open.
    let forced = rustix::mount::unmount(path, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
    if forced.is_ok() { Ok(()) } else { unmount(path, true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_blanks_are_found() {
        assert_eq!(unescape(r"/mnt/a\040b\134c"), r"/mnt/a b\c");
        assert_eq!(unescape(r"/plain\"), r"/plain\");
        let line = r"36 35 0:44 / /mnt/a\040b rw,nosuid shared:1 - fuse.glint host:1 ro,user_id=0";
        let mount = parse_mount(line).unwrap();
        assert_eq!((mount.id, mount.parent), (36, 35));
        assert_eq!((mount.path, mount.kind), ("/mnt/a b".into(), "fuse.glint".into()));
        assert_eq!((mount.device, mount.source), ("0:44".into(), "host:1".into()));
        assert_eq!(mount.options, "rw,nosuid,ro,user_id=0");
    }

    #[test]
    fn a_path_is_shown_by_the_topmost_mount_on_the_way_to_it() {
        let mounts = |text: &str| -> Vec<MountedAt> {
            let line = |line: &str| {
                let [id, parent, path] = line.split(' ').collect::<Vec<_>>()[..] else { panic!() };
                parse_mount(&format!("{id} {parent} 0:{id} / {path} rw - fuse.glint s rw"))
            };
            text.split(',').map(|text| line(text).unwrap()).collect()
        };
        for (all, path, expected) in [
            ("1 0 /,2 1 /mnt/g", "/mnt/g/x", Some(2)),
            ("1 0 /,2 1 /mnt/g", "/mnt/gx", Some(1)),
            // Two on one directory, in any order of the lines.
            ("1 0 /,2 1 /mnt/g,3 2 /mnt/g", "/mnt/g", Some(3)),
            ("1 0 /,3 2 /mnt/g,2 1 /mnt/g", "/mnt/g/x", Some(3)),
            // One on a directory above it, before and after it.
            ("1 0 /,2 1 /mnt/g,3 1 /mnt", "/mnt/g/x", Some(3)),
            ("1 0 /,3 1 /mnt,2 3 /mnt/g", "/mnt/g/x", Some(2)),
            ("1 0 /,2 1 /mnt/g,3 1 /mnt,4 3 /mnt/g/a", "/mnt/g/a", Some(4)),
            ("1 0 /,2 1 /mnt/g,4 2 /mnt/g/a,3 2 /mnt/g", "/mnt/g/a", Some(3)),
            // Over the root, and a root that is on itself.
            ("1 1 /,2 1 /mnt/g,3 1 /", "/mnt/g", Some(3)),
            // A process whose root is no mount.
            ("7 5 /mnt/g", "/mnt/g/x", Some(7)),
            ("7 5 /mnt/g", "/mnt", None),
            // What the kernel never says leads to an end, too.
            ("7 5 /,8 9 /a,9 8 /a", "/a", Some(7)),
        ] {
            let all = mounts(all);
            let shown = mount_showing(&all, Path::new(path)).map(|mount| mount.id);
            assert_eq!(shown, expected, "{path} {all:?}");
        }
    }

    #[test]
    fn a_directory_with_files_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(prepare(dir.path()).is_ok());
        std::fs::write(dir.path().join("x"), b"").unwrap();
        let error = prepare(dir.path()).unwrap_err().to_string();
        assert!(error.contains("not empty"), "{error}");
        let error = prepare(&dir.path().join("absent")).unwrap_err().to_string();
        assert!(error.contains("create it first"), "{error}");
    }
}

//! The file that a process in the background logs to.
//!
//! Invariants:
//! - The file belongs to this user and is for nobody else; its directory is one that nobody else
//!   writes to, and links are not followed: a log is not a way to write where others point.
//! - The file and the one before it (`NAME.1`) hold at most [`LOG_BYTES_MAX`] each.

use glint_proto::limits::LOG_BYTES_MAX;
use rustix::fs::{Mode, OFlags};
use std::fmt::Display;
use std::fs::{DirBuilder, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a file name may have, without room for an ending.
const NAME_BYTES_MAX: usize = 240;

/// Directory where logs of this user belong.
fn directory() -> Result<PathBuf, String> {
    if rustix::process::geteuid().is_root() {
        return Ok("/var/log/glint".into());
    }
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let state = of("XDG_STATE_HOME").or_else(|| Some(of("HOME")?.join(".local/state")));
    let state = state.ok_or("no place for a log: neither XDG_STATE_HOME nor HOME is set")?;
    Ok(state.join("glint"))
}

/// The log of the mount at `path`: each path has a name of its own.
pub(crate) fn of_mount(path: &Path) -> Result<PathBuf, String> {
    let mut name = String::from("mount");
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' => name.push('-'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' => name.push(*byte as char),
            other => name.push_str(&format!("%{other:02x}")),
        }
    }
    if name.len() > NAME_BYTES_MAX {
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        // All of it is ASCII, so it may be cut anywhere.
        name.truncate(NAME_BYTES_MAX - 17);
        name.push_str(&format!("~{:016x}", hasher.finish()));
    }
    Ok(directory()?.join(name + ".log"))
}

/// Opens a log to append to it, and makes it if it is not there.
pub(crate) fn open(path: &Path) -> Result<File, String> {
    let refuse = |what: &dyn Display| format!("log file {}: {what}", path.display());
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(refuse(&"not a file"));
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(parent)
        .map_err(|e| format!("log directory {}: {e}", parent.display()))?;
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory =
        rustix::fs::open(parent, flags, Mode::empty()).map_err(|e| refuse(&e)).map(File::from)?;
    let meta = directory.metadata().map_err(|e| refuse(&e))?;
    let own = rustix::process::geteuid().as_raw();
    if ![own, 0].contains(&meta.uid()) || meta.mode() & 0o002 != 0 {
        return Err(refuse(&"others may write to its directory"));
    }
    let flags =
        OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // A reader at the other end of a FIFO is not waited for.
    let flags = flags | OFlags::NONBLOCK;
    let file = match rustix::fs::openat(&directory, name, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::LOOP) => return Err(refuse(&"it is a symbolic link")),
        Err(e) => return Err(refuse(&e)),
    };
    let meta = file.metadata().map_err(|e| refuse(&e))?;
    if !meta.is_file() || meta.uid() != own || meta.nlink() != 1 {
        return Err(refuse(&"somebody else has made it, or it has another name"));
    }
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(|e| refuse(&e))?;
    Ok(file)
}

/// Standard error, where that is a log: it is exchanged when it is full.
pub struct Log {
    path: PathBuf,
    bytes: AtomicU64,
}

impl Log {
    /// `path` is open as standard error.
    pub fn new(path: PathBuf) -> Log {
        let bytes = std::fs::metadata(&path).map_or(0, |meta| meta.len());
        Log { path, bytes: AtomicU64::new(bytes) }
    }

    fn exchange(&self) -> Result<(), String> {
        let mut older = self.path.clone().into_os_string();
        older.push(".1");
        std::fs::rename(&self.path, &older).map_err(|e| e.to_string())?;
        crate::daemon::become_stderr(&open(&self.path)?).map_err(|e| e.to_string())
    }
}

impl Write for &Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A formatter writes a line at once.
        let written = io::stderr().write(line)?;
        let before = self.bytes.fetch_add(written as u64, Ordering::Relaxed);
        let full = |bytes: u64| bytes > LOG_BYTES_MAX;
        if full(before + written as u64) && !full(before) {
            if let Err(error) = self.exchange() {
                let _ = writeln!(io::stderr(), "the log is full and stays: {error}");
            }
            self.bytes.store(0, Ordering::Relaxed);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn each_mount_has_a_log_of_its_own() {
        let long = format!("/{}", "d/".repeat(200));
        let names: std::collections::HashSet<_> =
            ["/a-b", "/a/b", "/a%2db", "/", "/ä b", &long, &format!("{long}x")]
                .map(|path| of_mount(Path::new(path)).unwrap())
                .into();
        assert_eq!(names.len(), 7);
        assert!(names.iter().all(|path| path.file_name().unwrap().len() <= 255));
    }

    #[test]
    fn what_others_have_prepared_is_not_written_to() {
        let top = tempfile::tempdir().unwrap();
        let (log, victim) = (top.path().join("a.log"), top.path().join("victim"));
        fs::write(&victim, b"").unwrap();
        symlink(&victim, &log).unwrap();
        assert!(open(&log).unwrap_err().contains("symbolic link"));
        fs::remove_file(&log).unwrap();
        fs::hard_link(&victim, &log).unwrap();
        assert!(open(&log).unwrap_err().contains("another name"));
        fs::remove_file(&log).unwrap();
        writeln!(open(&log).unwrap(), "a line").unwrap();
        assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(top.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(open(&log).unwrap_err().contains("others"));
    }
}

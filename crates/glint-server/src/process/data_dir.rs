//! The data directory of a server:
//! ```text
//! DATA/glint.json   format version, identity, number of OSTs
//! DATA/boot_id      of the host when it was last served
//! DATA/lock         held while a process uses the directory
//! DATA/listen       where its server listens, as the commands that serve it say
//! DATA/mds          metadata engine; not of an OSS
//! DATA/runs.json    how the runs of an OSS ended
//! DATA/scrubbed.json  when all data was compared with its checksums last
//! DATA/hot.*       what was read most, of the tables and of each OST
//! DATA/recent.log   objects of chains that were changed not long ago
//! DATA/pending.log  objects that absent members of chains lack changes of
//! DATA/*.log.draft  a shorter one, which takes its place
//! DATA/osts.json    which directory each OST is in, and which were replaced
//! DATA/ost0 ...     object stores
//! ```
//!
//! Invariant: nobody but its owner reads what is in it, whatever the modes below it are.

mod logs;
mod ost_identity;
mod records;
mod vacant;

pub use ost_identity::{OstIdentityError, replace_ost};

use crate::records::{OssIdentity, RecordsError};
use glint_proto::limits::{FORMAT_VERSION, FORMAT_VERSION_MIN, OST_COUNT_MAX};
use logs::OpenLog;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const IDENTITY: &str = "glint.json";
/// The kernel's boot_id when the directory was last served.
const BOOT: &str = "boot_id";
/// In its place when a flush failed.
const LOST: &str = "a flush failed";

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// A file of it cannot be read or written, or does not parse.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// There is something else in it.
    #[error("{0} is not empty and not a Glint data directory; choose another one")]
    Foreign(String),
    /// The directory was never created.
    #[error(
        "{0} is not a Glint data directory (there is no glint.json); `glint up` or `glint serve` creates one, and `glint oss` one of OSTs only"
    )]
    Absent(String),
    /// The directory belongs to another version.
    #[error(
        "{path} has format version {found}, this Glint reads versions {FORMAT_VERSION_MIN} to {FORMAT_VERSION}; use the version of Glint that made it"
    )]
    Version {
        /// Directory.
        path: String,
        /// Version of its format.
        found: u32,
    },
    /// Another process has it.
    #[error("{path} is in use by process {pid}; stop it first")]
    InUse {
        /// Directory.
        path: String,
        /// Id of the process that has it.
        pid: String,
    },
    /// The number of OSTs was fixed when it was created.
    #[error(
        "{path} was created with --osts {has}, not {asked}, and keeps them; leave --osts out, or choose another directory"
    )]
    Osts {
        /// Directory.
        path: String,
        /// OSTs that it has.
        has: u16,
        /// OSTs that were asked for.
        asked: u16,
    },
    /// The directory is one of the other kind of server.
    #[error("{path} holds {holds}; serve it with `{command}`")]
    Role {
        /// Directory.
        path: String,
        /// Kind of its content.
        holds: &'static str,
        /// Command that serves it.
        command: &'static str,
    },
    /// An impossible number of OSTs.
    #[error("--osts {0}: a file system has 1 to {OST_COUNT_MAX} OSTs")]
    OstCount(u16),
}

/// Kind of server that a directory is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The one with the MDS.
    #[default]
    Mds,
    /// One with OSTs only.
    Oss,
}

/// Content of `glint.json`.
#[derive(Clone, Serialize, Deserialize)]
pub struct DataDirIdentity {
    /// Format of the directory.
    pub format: u32,
    /// The file system, in hexadecimal; of an OSS, its directory.
    pub uuid: String,
    /// Number of OSTs.
    pub osts: u16,
    /// For which server.
    #[serde(default)]
    pub role: Role,
    /// Of an OSS that has joined one: the file system, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_system: Option<String>,
    /// The other servers of OSTs, in the order of their OSTs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub osses: Vec<OssIdentity>,
}

/// A data directory that this process has locked.
pub struct DataDir {
    path: PathBuf,
    identity: DataDirIdentity,
    /// Files of logs that were appended to.
    logs: Mutex<Vec<OpenLog>>,
    _lock: File,
}

/// Only the owner.
const PRIVATE: u32 = 0o700;

/// Closes a directory that an earlier version left open to others.
fn keep_private(path: &Path) {
    let is_open = std::fs::metadata(path).is_ok_and(|found| found.mode() & 0o077 != 0);
    let close = || std::fs::set_permissions(path, Permissions::from_mode(PRIVATE));
    if is_open && let Err(error) = close() {
        tracing::warn!(path = %path.display(), %error, "others may read the data directory");
    }
}

fn io_error(path: &Path) -> impl FnOnce(std::io::Error) -> RecordsError + '_ {
    move |source| RecordsError::Io { path: path.display().to_string(), source }
}

fn damaged(path: &Path, reason: String) -> RecordsError {
    RecordsError::Damaged { path: path.display().to_string(), reason }
}

/// Makes a path absolute: logs and messages are read by people who are elsewhere.
fn absolute(path: &Path) -> Result<PathBuf, RecordsError> {
    std::path::absolute(path).map_err(io_error(path))
}

/// A data directory that a command serves: what is there is open, what is not is created last,
/// when nothing of the command can be refused any more.
pub enum ServedDir {
    /// Was there before.
    Open(DataDir),
    /// Absent or empty; nothing of it is written yet.
    Absent {
        /// Path that it gets.
        path: PathBuf,
        /// Number of its OSTs.
        osts: u16,
        /// For which server.
        role: Role,
    },
}

impl ServedDir {
    /// Looks at a directory, and opens it if it is one already.
    pub fn find(path: &Path, osts: Option<u16>, role: Role) -> Result<ServedDir, DataDirError> {
        if let Some(count) = osts.filter(|count| *count == 0 || *count > OST_COUNT_MAX) {
            return Err(DataDirError::OstCount(count));
        }
        let path = &absolute(path)?;
        if !path.join(IDENTITY).exists() {
            if !vacant::is_vacant(path)? {
                return Err(DataDirError::Foreign(path.display().to_string()));
            }
            return Ok(ServedDir::Absent { path: path.clone(), osts: osts.unwrap_or(1), role });
        }
        let dir = DataDir::open(path)?;
        if dir.identity.role != role {
            let path = path.display().to_string();
            return Err(match role {
                Role::Mds => DataDirError::Role { path, holds: "OSTs only", command: "glint oss" },
                Role::Oss => {
                    DataDirError::Role { path, holds: "a file system", command: "glint serve" }
                }
            });
        }
        match osts {
            Some(asked) if asked != dir.identity.osts => Err(DataDirError::Osts {
                path: path.display().to_string(),
                has: dir.identity.osts,
                asked,
            }),
            _ => Ok(ServedDir::Open(dir)),
        }
    }

    /// Number of its OSTs.
    pub fn osts(&self) -> u16 {
        match self {
            ServedDir::Open(dir) => dir.identity.osts,
            ServedDir::Absent { osts, .. } => *osts,
        }
    }

    /// Creates it if it is not there.
    pub fn create(self) -> Result<DataDir, DataDirError> {
        let (path, osts, role) = match self {
            ServedDir::Open(dir) => return Ok(dir),
            ServedDir::Absent { path, osts, role } => (path, osts, role),
        };
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(PRIVATE).create(&path).map_err(io_error(&path))?;
        let lock = lock(&path)?;
        if path.join(IDENTITY).exists() {
            // Another process has created it meanwhile, and has ended.
            drop(lock);
            return match ServedDir::find(&path, Some(osts), role)? {
                ServedDir::Open(dir) => Ok(dir),
                ServedDir::Absent { path, .. } => {
                    Err(DataDirError::Absent(path.display().to_string()))
                }
            };
        }
        keep_private(&path);
        let identity = create(&path, osts, role)?;
        Ok(DataDir { path, identity, logs: Mutex::default(), _lock: lock })
    }
}

impl DataDir {
    /// Opens a data directory, creating it if it is absent or empty.
    pub fn open_or_create(
        path: &Path,
        osts: Option<u16>,
        role: Role,
    ) -> Result<DataDir, DataDirError> {
        ServedDir::find(path, osts, role)?.create()
    }

    /// Opens an existing data directory.
    pub fn open(path: &Path) -> Result<DataDir, DataDirError> {
        let path = &absolute(path)?;
        let identity_path = path.join(IDENTITY);
        let text = match std::fs::read_to_string(&identity_path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(DataDirError::Absent(path.display().to_string()));
            }
            Err(e) => return Err(io_error(&identity_path)(e).into()),
        };
        let damaged = |reason: String| damaged(&identity_path, reason);
        // The version first: other fields may differ between versions.
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| damaged(e.to_string()))?;
        let found = value.get("format").and_then(serde_json::Value::as_u64);
        match found.and_then(|found| u32::try_from(found).ok()) {
            Some(FORMAT_VERSION_MIN..=FORMAT_VERSION) => {}
            Some(found) => {
                let path = path.display().to_string();
                return Err(DataDirError::Version { path, found });
            }
            None => return Err(damaged("there is no format version".into()).into()),
        }
        let mut identity: DataDirIdentity =
            serde_json::from_value(value).map_err(|e| damaged(e.to_string()))?;
        if identity.osts == 0 || identity.osts > OST_COUNT_MAX {
            return Err(damaged(format!("{} OSTs", identity.osts)).into());
        }
        let lock = lock(path)?;
        keep_private(path);
        if identity.format < FORMAT_VERSION {
            // An older Glint would not see what this one writes.
            identity.format = FORMAT_VERSION;
            store(path, &identity)?;
        }
        Ok(DataDir { path: path.to_owned(), identity, logs: Mutex::default(), _lock: lock })
    }

    /// Waits until no process uses the directory any more, but not longer than `limit`. Whether none
    /// does.
    pub fn wait_until_free(path: &Path, limit: Duration) -> bool {
        let start = Instant::now();
        while let Ok(file) = File::open(path.join("lock"))
            && file.try_lock_shared().is_err()
        {
            if start.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    fn store_boot(&self, text: &str) -> Result<(), RecordsError> {
        let path = self.path.join(BOOT);
        let mut file = File::create(&path).map_err(io_error(&path))?;
        file.write_all(text.as_bytes()).map_err(io_error(&path))?;
        file.sync_all().map_err(io_error(&path))
    }

    /// A flush failed: what was answered for and is not durable counts as lost from now on, and
    /// clients do it again after the next start. Returns what to tell whoever looks after it.
    pub fn give_up(&self, reason: &str) -> String {
        let noted = self.store_boot(LOST);
        let how = if noted.is_ok() { "" } else { ", with --after-power-loss" };
        format!(
            "{reason}. This server ends, because it could not say any more what is safe. Look \
             after the disk under {} and start it again{how}; clients that are still there do \
             again what was lost",
            self.path.display()
        )
    }

    /// For which server it is.
    pub fn role(&self) -> Role {
        self.identity.role
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Directory of the metadata engine.
    pub fn mds(&self) -> PathBuf {
        self.path.join("mds")
    }

    /// Directory of an object store.
    pub fn ost(&self, index: u16) -> PathBuf {
        self.path.join(format!("ost{index}"))
    }
}

/// Drawn by the kernel when it starts.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

fn create(path: &Path, osts: u16, role: Role) -> Result<DataDirIdentity, RecordsError> {
    let uuid =
        u128::from(getrandom::u64().unwrap_or(1)) << 64 | u128::from(getrandom::u64().unwrap_or(2));
    let identity = DataDirIdentity {
        format: FORMAT_VERSION,
        uuid: format!("{uuid:032x}"),
        osts,
        role,
        file_system: None,
        osses: Vec::new(),
    };
    store(path, &identity)?;
    Ok(identity)
}

fn store(path: &Path, identity: &DataDirIdentity) -> Result<(), RecordsError> {
    store_json(path, IDENTITY, identity)
}

/// Puts a file into a data directory, durably: it is as before or as it is to be.
fn store_json(path: &Path, name: &str, value: &impl Serialize) -> Result<(), RecordsError> {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    store_bytes(path, name, text.as_bytes())
}

/// Puts such a file of any content there.
fn store_bytes(path: &Path, name: &str, bytes: &[u8]) -> Result<(), RecordsError> {
    let target = path.join(name);
    let draft = path.join(format!("{name}.new"));
    let mut file = File::create(&draft).map_err(io_error(&draft))?;
    file.write_all(bytes).map_err(io_error(&draft))?;
    file.sync_all().map_err(io_error(&draft))?;
    std::fs::rename(&draft, &target).map_err(io_error(&target))?;
    File::open(path).and_then(|dir| dir.sync_all()).map_err(io_error(path))
}

fn lock(path: &Path) -> Result<File, DataDirError> {
    let lock_path = path.join("lock");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&lock_path)
        .map_err(io_error(&lock_path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            let pid = if pid.is_empty() { "?".into() } else { pid };
            return Err(DataDirError::InUse { path: path.display().to_string(), pid });
        }
        Err(std::fs::TryLockError::Error(e)) => return Err(io_error(&lock_path)(e).into()),
    }
    file.set_len(0).map_err(io_error(&lock_path))?;
    file.rewind().map_err(io_error(&lock_path))?;
    write!(file, "{}", std::process::id()).map_err(io_error(&lock_path))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::Records;

    fn message(result: Result<DataDir, DataDirError>) -> String {
        match result {
            Ok(_) => panic!("should have been refused"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn created_once_and_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let uuid = DataDir::open_or_create(&path, Some(3), Role::Mds).unwrap().uuid();
        let again = DataDir::open_or_create(&path, None, Role::Mds).unwrap();
        assert_eq!((again.uuid(), again.osts()), (uuid, 3));
        assert!(message(DataDir::open(&path)).contains("in use by process"));
        drop(again);
        assert!(
            message(DataDir::open_or_create(&path, Some(4), Role::Mds))
                .contains("created with --osts 3")
        );
        assert!(message(DataDir::open_or_create(&path, None, Role::Oss)).contains("glint serve"));
    }

    #[test]
    fn others_cannot_look_in_and_what_was_open_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let mode = || std::fs::metadata(&path).unwrap().mode() & 0o7777;
        drop(DataDir::open_or_create(&path, None, Role::Mds).unwrap());
        assert_eq!(mode(), PRIVATE);
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        drop(DataDir::open(&path).unwrap());
        assert_eq!(mode(), PRIVATE);
    }

    #[test]
    fn after_a_flush_that_failed_the_next_start_knows_of_a_loss() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), None, Role::Mds).unwrap();
        data.note_served().unwrap();
        assert!(!data.is_after_loss());
        let said = data.give_up("flushing: no");
        assert!(said.starts_with("flushing: no. ") && !said.contains("--after"), "{said}");
        assert!(data.is_after_loss());
        data.note_served().unwrap();
        assert!(!data.is_after_loss());
    }

    #[test]
    fn what_is_not_ours_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        assert!(message(DataDir::open(dir.path())).contains("not a Glint data directory"));
        std::fs::write(dir.path().join("thesis.tex"), b"").unwrap();
        assert!(
            message(DataDir::open_or_create(dir.path(), None, Role::Mds)).contains("not empty")
        );
        let identity = dir.path().join(IDENTITY);
        std::fs::write(&identity, b"{\"format\": 99}").unwrap();
        assert!(message(DataDir::open(dir.path())).contains("format version 99"));
        std::fs::write(&identity, b"{\"format\": 1, \"uuid\": \"5\", \"osts\": 1}").unwrap();
        assert_eq!(DataDir::open(dir.path()).unwrap().identity.format, FORMAT_VERSION);
        assert!(
            std::fs::read_to_string(&identity)
                .unwrap()
                .contains(&format!("\"format\": {FORMAT_VERSION}"))
        );
        std::fs::write(&identity, b"{\"form").unwrap();
        assert!(message(DataDir::open(dir.path())).contains("damaged"));
    }
}

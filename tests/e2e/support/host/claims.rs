//! Numbers that tests have for themselves on this machine, ports and addresses of hosts, and turns
//! at what there is once.
//!
//! Invariant: the file of a number names the scratch directory of the test that has it or had it
//! last, and is locked while that runs. All checkouts of a user have the same files, and nobody else
//! can write, replace or link them.

use rustix::fs::OFlags;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};

/// The directory of the files, of this user alone. It does not depend on the session, as
/// XDG_RUNTIME_DIR would: claims exclude tests of all sessions.
pub fn directory() -> Result<PathBuf, String> {
    let user = rustix::process::geteuid();
    let path = if user.is_root() {
        PathBuf::from("/run/glint-e2e")
    } else {
        PathBuf::from(format!("/tmp/glint-e2e-{}", user.as_raw()))
    };
    own(&path)?;
    Ok(path)
}

/// Makes a directory that only this user may enter. Refuses one that is there and is another's, or
/// a link.
pub fn own(path: &Path) -> Result<(), String> {
    let refused = |why: String| Err(format!("{}: {why}", path.display()));
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return refused(format!("cannot be made: {error}")),
    }
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) => return refused(error.to_string()),
    };
    let (user, mode) = (rustix::process::geteuid().as_raw(), found.mode() & 0o7777);
    if !found.is_dir() {
        refused("is not a directory; remove it".to_owned())
    } else if found.uid() != user {
        refused(format!("belongs to user {}, not to user {user}; remove it", found.uid()))
    } else if mode & 0o077 != 0 {
        refused(format!("is open to others (mode {mode:o}); remove it"))
    } else {
        Ok(())
    }
}

/// A number that no other test of this machine has before this process ends, of those from `first`.
pub fn claim(what: &str, first: u16, count: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = std::process::id() as u16 % 400 * 25;
    let directory = directory().unwrap();
    loop {
        let number = first + NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(start) % count;
        let scratch = std::env::var_os("E2E_SCRATCH").map(PathBuf::from);
        if let Some(file) = try_claim(&directory, what, number, scratch.as_deref()) {
            // Locked as long as this process lives.
            std::mem::forget(file);
            return number;
        }
    }
}

/// Claims a number for the test with this scratch directory, as long as the file is open; `None` if
/// somebody has it.
pub fn try_claim(
    directory: &Path,
    what: &str,
    number: u16,
    scratch: Option<&Path>,
) -> Option<File> {
    let mut file = open(directory, &name(what, number));
    file.try_lock().ok()?;
    // What it says is of its last owner until here.
    file.set_len(0).unwrap();
    file.write_all(scratch.map_or(b"", |scratch| scratch.as_os_str().as_bytes())).unwrap();
    Some(file)
}

/// The claim on a number, if the last one who had it was a test with this scratch directory, which
/// has ended; nobody else gets it while the file is open.
pub fn left_by(directory: &Path, scratch: &Path, what: &str, number: u16) -> Option<File> {
    let path = directory.join(name(what, number));
    let mut claim = OpenOptions::new().read(true).custom_flags(NO_LINK).open(path).ok()?;
    claim.try_lock().ok()?;
    let mut owner = Vec::new();
    claim.read_to_end(&mut owner).ok()?;
    (owner == scratch.as_os_str().as_bytes()).then_some(claim)
}

/// Waits for the turn at something that this machine has once. It lasts until the file is closed.
pub fn turn(what: &str) -> File {
    let turn = open(&directory().unwrap(), what);
    turn.lock().unwrap();
    turn
}

/// Refuses to follow a link to a file.
const NO_LINK: i32 = OFlags::NOFOLLOW.bits() as i32;

fn name(what: &str, number: u16) -> String {
    format!("{what}-{number}")
}

fn open(directory: &Path, name: &str) -> File {
    let path = directory.join(name);
    let mut options = OpenOptions::new();
    let opened = options.create(true).append(true).mode(0o600).custom_flags(NO_LINK).open(&path);
    opened.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A port that is free, below those that the kernel hands out to clients: one of them would be in
/// the way when a server comes back.
pub fn free_port() -> u16 {
    loop {
        let port = claim("port", 20_000, 10_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

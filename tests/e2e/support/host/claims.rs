//! Numbers that tests have for themselves on this machine: ports, addresses of hosts.
//!
//! Invariant: the file of a number names the scratch directory of the test that has it or had it
//! last, and is locked while that runs.

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};

/// A number that no other test of this machine has before this process ends, of those from `first`.
pub fn claim(what: &str, first: u16, count: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = std::process::id() as u16 % 400 * 25;
    loop {
        let number = first + NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(start) % count;
        let scratch = std::env::var_os("E2E_SCRATCH").map(PathBuf::from);
        if let Some(file) = try_claim(what, number, scratch.as_deref()) {
            // Locked as long as this process lives.
            std::mem::forget(file);
            return number;
        }
    }
}

/// Claims a number for the test with this scratch directory, as long as the file is open; `None` if
/// somebody has it.
pub fn try_claim(what: &str, number: u16, scratch: Option<&Path>) -> Option<File> {
    let path = file(what, number);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.try_lock().ok()?;
    // What it says is of its last owner until here.
    file.set_len(0).unwrap();
    file.write_all(scratch.map_or(b"", |scratch| scratch.as_os_str().as_bytes())).unwrap();
    Some(file)
}

/// The claim on a number, if the last one who had it was a test with this scratch directory, which
/// has ended; nobody else gets it while the file is open.
pub fn left_by(scratch: &Path, what: &str, number: u16) -> Option<File> {
    let path = file(what, number);
    let claim = File::open(&path).ok()?;
    claim.try_lock().ok()?;
    (fs::read(path).ok()? == scratch.as_os_str().as_bytes()).then_some(claim)
}

/// The file that is locked by who has claimed a number.
pub fn file(what: &str, number: u16) -> PathBuf {
    Path::new("/tmp/glint-e2e-claims").join(format!("{what}-{number}"))
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

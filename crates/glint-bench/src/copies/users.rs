//! Users: threads that write with fsync and read, as fast as it goes or at a pace.

use crate::pace::Pace;
use crate::stream::forget_cached;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Threads, each with a file of its own.
pub(super) const USERS: u64 = 4;
/// Bytes of such a file.
pub(super) const USER_BYTES: u64 = 16 << 20;
/// Bytes of a call.
const CALL_BYTES: usize = 64 << 10;
/// Prime, and no divisor of the number of places in a file: all of them have their turn.
const STRIDE: u64 = 97;

/// What all users do, and what they have done.
pub(super) struct UserLoad {
    paths: Vec<PathBuf>,
    /// Calls a second of all users, as bits; 0: as fast as it goes.
    per_s: AtomicU64,
    /// Calls that have returned.
    calls: AtomicU64,
    is_over: AtomicBool,
    failure: OnceLock<String>,
}

/// Calls that had returned at some time.
#[derive(Clone, Copy)]
pub(super) struct CallCount {
    calls: u64,
    at: Instant,
}

impl UserLoad {
    /// Users of files in this directory, which are made.
    pub(super) fn new(directory: &Path) -> Result<UserLoad, String> {
        let paths = (0..USERS).map(|number| directory.join(format!("user-{number}"))).collect();
        let load = UserLoad {
            paths,
            per_s: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            failure: OnceLock::new(),
        };
        let content = vec![1_u8; USER_BYTES as usize];
        for path in &load.paths {
            std::fs::write(path, &content).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        Ok(load)
    }

    /// The files, one for each user.
    pub(super) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// One user, until all is over, or a call fails.
    pub(super) fn run(&self, path: &Path) {
        if let Err(error) = self.use_file(path) {
            let _ = self.failure.set(format!("{}: {error}", path.display()));
        }
    }

    fn use_file(&self, path: &Path) -> std::io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut buffer = vec![2; CALL_BYTES];
        let mut per_s = 0.0;
        let mut pace = Pace::new(per_s);
        for number in 0.. {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            let wanted = f64::from_bits(self.per_s.load(Ordering::Relaxed));
            if wanted != per_s {
                per_s = wanted;
                pace = Pace::new(per_s / USERS as f64);
            }
            call(&file, number, &mut buffer)?;
            self.calls.fetch_add(1, Ordering::Relaxed);
            pace.wait(1.0);
        }
        Ok(())
    }

    /// Has users make so many calls a second together from now on, if they can.
    pub(super) fn set_pace(&self, per_s: f64) {
        self.per_s.store(per_s.to_bits(), Ordering::Relaxed);
    }

    /// Has users end after their next call.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Counts calls so far. Fails if a call did.
    pub(super) fn count(&self) -> Result<CallCount, String> {
        match self.failure.get() {
            Some(failure) => Err(failure.clone()),
            None => Ok(CallCount { calls: self.calls.load(Ordering::Relaxed), at: Instant::now() }),
        }
    }
}

impl CallCount {
    /// Calls a second from the earlier count to this one.
    pub(super) fn per_s_since(self, earlier: CallCount) -> f64 {
        let time = self.at.saturating_duration_since(earlier.at);
        (self.calls - earlier.calls) as f64 / time.max(Duration::from_micros(1)).as_secs_f64()
    }
}

/// Writes and syncs, or reads what no cache of the kernel has, in turns.
fn call(file: &File, number: u64, buffer: &mut [u8]) -> std::io::Result<()> {
    let places = USER_BYTES / CALL_BYTES as u64;
    let offset = number * STRIDE % places * CALL_BYTES as u64;
    if number.is_multiple_of(2) {
        buffer[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all_at(buffer, offset)?;
        return file.sync_all();
    }
    forget_cached(file, false)?;
    file.read_exact_at(buffer, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_keep_to_a_pace_that_is_said_while_they_run() {
        let here = tempfile::tempdir().unwrap();
        let load = UserLoad::new(here.path()).unwrap();
        // Less than they could do, however slow the disk is.
        load.set_pace(8.0);
        std::thread::scope(|scope| {
            for path in load.paths() {
                let load = &load;
                scope.spawn(move || load.run(path));
            }
            let first = load.count().unwrap();
            std::thread::sleep(Duration::from_millis(500));
            let second = load.count().unwrap();
            load.end();
            // Each begins with a call that waits for nothing.
            assert!(second.per_s_since(first) <= (2.0 * 8.0) + 2.0 * USERS as f64);
        });
        assert!(load.count().unwrap().calls >= USERS);
    }

    #[test]
    fn a_call_that_fails_is_told() {
        let here = tempfile::tempdir().unwrap();
        let load = UserLoad::new(here.path()).unwrap();
        load.run(&here.path().join("absent"));
        assert!(load.count().is_err_and(|why| why.contains("absent: No such file")));
    }
}

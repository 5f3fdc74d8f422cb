//! How much users may still write.
//!
//! Invariant: below the reserve no user data is accepted, so that the journals on
//! the same disk can always be written and nothing acknowledged is lost.

use glint_proto::SpaceInfo;
use glint_proto::limits::{FILE_BYTES_MAX, reserve_data};
use rustix::fs::{Mode, OFlags, SeekFrom};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

/// The disk is asked again after this time, because others use it too.
const REFRESH_MS: u64 = 200;

/// Where the largest file ends that the file system of a directory can have: nothing says it,
/// but no descriptor can be moved past it. Where it has no files without names it is not known.
pub(crate) fn file_bytes_max(dir: BorrowedFd<'_>) -> u64 {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(dir, ".", flags, Mode::from(0o600)) else {
        return FILE_BYTES_MAX;
    };
    let (mut fits, mut ends) = (0, FILE_BYTES_MAX + 1);
    while ends - fits > 1 {
        let middle = fits + (ends - fits) / 2;
        match rustix::fs::seek(&file, SeekFrom::Start(middle)) {
            Ok(_) => fits = middle,
            Err(_) => ends = middle,
        }
    }
    fits
}

/// Space of the disk under an OST.
pub(crate) struct Space {
    budget: AtomicI64,
    refreshed_ms: AtomicU64,
    start: Instant,
}

impl Space {
    pub(crate) fn new() -> Space {
        Space {
            budget: AtomicI64::new(0),
            refreshed_ms: AtomicU64::new(u64::MAX / 2),
            start: Instant::now(),
        }
    }

    /// What the disk says now.
    pub(crate) fn info(dir: BorrowedFd<'_>) -> std::io::Result<SpaceInfo> {
        let vfs = rustix::fs::fstatvfs(dir)?;
        let total = vfs.f_blocks * vfs.f_frsize;
        let available = (vfs.f_bavail * vfs.f_frsize).saturating_sub(reserve_data(total));
        let free = vfs.f_bfree * vfs.f_frsize;
        Ok(SpaceInfo { total, free, available, file_system: vfs.f_fsid })
    }

    /// So much of what may be written is kept for somebody.
    pub(crate) fn keep(&self, bytes: u64) {
        self.budget.fetch_sub(signed(bytes), Ordering::Relaxed);
    }

    /// Takes `bytes` from what may be written, less what is `kept` for others; ENOSPC if there
    /// is not enough.
    pub(crate) fn take(&self, dir: BorrowedFd<'_>, bytes: u64, kept: u64) -> std::io::Result<()> {
        let now = self.start.elapsed().as_millis() as u64;
        let stale = now.wrapping_sub(self.refreshed_ms.load(Ordering::Relaxed)) > REFRESH_MS;
        // What is not taken is not subtracted, or sums of what was refused would run over.
        let enough = |left: i64| left.checked_sub(signed(bytes)).filter(|left| *left >= 0);
        if !stale && self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enough).is_ok()
        {
            return Ok(());
        }
        let available = signed(Space::info(dir)?.available.saturating_sub(kept));
        self.refreshed_ms.store(now, Ordering::Relaxed);
        let left = enough(available);
        self.budget.store(left.unwrap_or(available), Ordering::Relaxed);
        match left {
            Some(_) => Ok(()),
            None => Err(std::io::Error::from_raw_os_error(libc::ENOSPC)),
        }
    }
}

/// More than there is of anything counts as that.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_refused_leaves_the_rest_as_it_was() {
        let dir = std::fs::File::open(env!("CARGO_MANIFEST_DIR")).unwrap();
        let space = Space::new();
        space.take(dir.as_fd(), 1, 0).unwrap();
        let before = space.budget.load(Ordering::Relaxed);
        for bytes in [1 << 63, u64::MAX, u64::MAX / 2, 1 << 62] {
            let error = space.take(dir.as_fd(), bytes, 0).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{bytes}");
        }
        let after = space.budget.load(Ordering::Relaxed);
        assert!(after.abs_diff(before) < 1 << 30, "{before} and then {after}");
        assert!(space.take(dir.as_fd(), 1, u64::MAX).is_ok(), "what is known is used first");
    }
}

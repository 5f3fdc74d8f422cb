//! How much users may still write.
//!
//! Invariant: below the reserve no user data is accepted, so that the journals on
//! the same disk can always be written and nothing acknowledged is lost.

use glint_proto::SpaceInfo;
use glint_proto::limits::reserve_data;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

/// The disk is asked again after this time, because others use it too.
const REFRESH_MS: u64 = 200;

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
        self.budget.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    /// Takes `bytes` from what may be written, less what is `kept` for others; ENOSPC if there
    /// is not enough.
    pub(crate) fn take(&self, dir: BorrowedFd<'_>, bytes: u64, kept: u64) -> std::io::Result<()> {
        let now = self.start.elapsed().as_millis() as u64;
        let stale = now.wrapping_sub(self.refreshed_ms.load(Ordering::Relaxed)) > REFRESH_MS;
        if !stale && self.budget.fetch_sub(bytes as i64, Ordering::Relaxed) >= bytes as i64 {
            return Ok(());
        }
        let available = Space::info(dir)?.available.saturating_sub(kept) as i64;
        self.refreshed_ms.store(now, Ordering::Relaxed);
        self.budget.store(available - bytes as i64, Ordering::Relaxed);
        if available >= bytes as i64 {
            Ok(())
        } else {
            Err(std::io::Error::from_raw_os_error(libc::ENOSPC))
        }
    }
}

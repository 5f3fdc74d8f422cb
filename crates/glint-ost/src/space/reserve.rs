//! How much users may still write.
//!
//! Invariant: below the reserve no user data is accepted, so that the journals on
//! the same disk can always be written and nothing acknowledged is lost.

use crate::disk::{Disk, DiskSpace};
use glint_proto::limits::reserve_data;
use glint_proto::{SpaceInfo, clock};
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
            start: clock::now(),
        }
    }

    /// Space of the disk as it is now, less the reserve.
    pub(crate) fn info(disk: &impl Disk) -> std::io::Result<SpaceInfo> {
        let DiskSpace { total, free, available, file_system } = disk.space()?;
        let available = available.saturating_sub(reserve_data(total));
        Ok(SpaceInfo { total, free, available, file_system })
    }

    /// Takes `bytes` that are kept for a client out of those that may be written.
    pub(crate) fn keep(&self, bytes: u64) {
        self.budget.fetch_sub(signed(bytes), Ordering::Relaxed);
    }

    /// Takes `bytes` from what may be written, less what is `kept` for others; ENOSPC if there
    /// is not enough.
    pub(crate) fn take(&self, disk: &impl Disk, bytes: u64, kept: u64) -> std::io::Result<()> {
        let now = clock::since(self.start).as_millis() as u64;
        let stale = now.wrapping_sub(self.refreshed_ms.load(Ordering::Relaxed)) > REFRESH_MS;
        // Bytes of refused writes are not subtracted, or their sum would overflow.
        let enough = |left: i64| left.checked_sub(signed(bytes)).filter(|left| *left >= 0);
        if !stale && self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enough).is_ok()
        {
            return Ok(());
        }
        let available = signed(Space::info(disk)?.available.saturating_sub(kept));
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
    use crate::disk::LocalDisk;
    use std::path::Path;

    #[test]
    fn what_is_refused_leaves_the_rest_as_it_was() {
        let disk = LocalDisk::open(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
        let space = Space::new();
        space.take(&disk, 1, 0).unwrap();
        let before = space.budget.load(Ordering::Relaxed);
        for bytes in [1 << 63, u64::MAX, u64::MAX / 2, 1 << 62] {
            let error = space.take(&disk, bytes, 0).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{bytes}");
        }
        let after = space.budget.load(Ordering::Relaxed);
        assert!(after.abs_diff(before) < 1 << 30, "{before} and then {after}");
        assert!(space.take(&disk, 1, u64::MAX).is_ok(), "what is known is used first");
    }
}

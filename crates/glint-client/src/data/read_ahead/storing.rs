//! Pages that are put into the kernel, which did not ask for them.
//!
//! Invariants:
//! - Pages are put there under a lock on the data, with which they are forgotten ([`Use::Store`]).
//!   Nobody here changes the data meanwhile; if the lock is lost, they are forgotten at once.
//! - None are while the file is open to read and write: they would come over dirty ones.
//! - No thread that serves requests does it: it waits for pages that requests fill.

use crate::cache::inode::{CachedInode, InodeState};
use crate::kernel::Kernel;
use glint_lock::held::Use;
use glint_proto::lock::Range;
use std::sync::Arc;

/// A lock on the data of a file, in use to put pages of it into the kernel.
pub(crate) struct StoreLock {
    pub(crate) file: Arc<CachedInode>,
    id: u64,
    /// Stamp of the data.
    stamp: u64,
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        if let Some(rare) = self.file.lock().rare.made() {
            rare.data_locks.stored(self.id);
        }
        self.file.wake();
    }
}

impl StoreLock {
    /// Begins to use a lock on all of a file, whose state this is, if nobody may change the data.
    pub(crate) fn begin(file: &Arc<CachedInode>, state: &mut InodeState) -> Option<StoreLock> {
        if state.pins.has_shared_writers() {
            return None;
        }
        let rare = state.rare.made()?;
        if !rare.data.is_clean() {
            return None;
        }
        let id = rare.data_locks.begin(Range::ALL, false, Use::Store)?;
        rare.data.note_pages();
        Some(StoreLock { file: file.clone(), id, stamp: rare.data.stamp() })
    }

    /// Gives data to the kernel that was read while the stamp was the same. Returns whether it has
    /// it.
    pub(crate) fn store(&self, kernel: &dyn Kernel, offset: u64, data: &[u8]) -> bool {
        let is_there = kernel.store_pages(self.file.ino, offset, data);
        if self.file.lock().rare.data.stamp() == self.stamp {
            return is_there;
        }
        // The lock was lost, or is in doubt; the kernel may have forgotten all pages before these
        // came.
        kernel.forget_pages(self.file.ino, Range::of(offset, data.len() as u64));
        false
    }
}

//! Small files that were read before a program does are put into the pages of the kernel: a program
//! that reads one then opens and closes it, and sends no read.
//!
//! Invariant: a file that is open is left alone: its reads are on their way.

use crate::cache::inode::CachedInode;
use crate::client::Client;
use crate::data::prefetch::small_size;
use crate::data::read_ahead::{BlockAhead, BlockOnItsWay, StoreLock};
use crate::kernel::Kernel;
use glint_net::{Transport, host};
use glint_telemetry::Counter;
use std::sync::Arc;

/// A file that is on its way to the kernel.
struct PagesToStore {
    lock: StoreLock,
    block: Arc<BlockAhead>,
    data: Arc<Vec<u8>>,
}

impl PagesToStore {
    /// Begins with a file that was read, if it is still as it was and the kernel knows it.
    fn begin(file: &Arc<CachedInode>, block: &Arc<BlockAhead>) -> Option<PagesToStore> {
        let data = block.whole()?;
        let mut state = file.lock();
        let is_used = state.pins.is_open() || !state.pins.has_lookups();
        if is_used || small_size(&state) != Some(block.len) {
            return None;
        }
        if !state.rare.data.has_prefetched(block) {
            return None;
        }
        let lock = StoreLock::begin(file, &mut state)?;
        Some(PagesToStore { lock, block: block.clone(), data })
    }

    /// Gives the file to the kernel. Returns whether it has it and somebody has opened it meanwhile.
    fn store(&self, kernel: &dyn Kernel) -> bool {
        if !self.lock.store(kernel, 0, &self.data) {
            return false;
        }
        let mut state = self.lock.file.lock();
        let is_open = state.pins.is_open();
        state.rare.make().data.note_stored(&self.block) && is_open
    }
}

impl<T: Transport> Client<T> {
    /// Puts files into the kernel's pages that were read before anybody asked.
    pub(super) async fn store_in_kernel(&self, files: &[(Arc<CachedInode>, BlockOnItsWay)]) {
        let kernel = self.cache.kernel().filter(|kernel| kernel.takes_pages()).cloned();
        let Some(kernel) = kernel.filter(|_| self.pages_are_current()) else { return };
        let begin = |(file, BlockOnItsWay(block)): &(Arc<CachedInode>, BlockOnItsWay)| {
            PagesToStore::begin(file, block)
        };
        let files: Vec<PagesToStore> = files.iter().filter_map(begin).collect();
        if files.is_empty() {
            return;
        }
        let store = move || {
            let mut opened = Vec::new();
            for file in files {
                if file.store(&*kernel) {
                    opened.push(file.lock.file.clone());
                }
            }
            opened
        };
        for file in host::unblock(store).await {
            self.on_open_of_stored(&file);
        }
    }

    /// A file is opened that the kernel has: no read of it comes, so this is what asks for the next
    /// ones.
    pub(crate) fn on_open_of_stored(&self, file: &CachedInode) {
        self.prefetch_after(file);
        if file.lock().rare.made().is_some_and(|rare| rare.data.take_stored()) {
            glint_telemetry::count(Counter::FilesPrefetchedRead, 1);
        }
    }
}

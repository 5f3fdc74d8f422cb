//! Small reads anywhere in a file that is read through the kernel's pages: windows around them are
//! fetched where that pays ([`ReadAround`]), and put into those pages.
//!
//! [`ReadAround`]: crate::data::read_ahead::ReadAround

use crate::cache::inode::CachedInode;
use crate::calls::open_files::OpenFile;
use crate::client::Client;
use crate::data::read_ahead::around::SmallRead;
use crate::data::read_ahead::{AHEAD_LATE, BlockAhead, BlockOnItsWay, StoreLock};
use crate::kernel::Kernel;
use futures_util::future::{Either, select};
use glint_net::{Transport, host};
use glint_telemetry::Counter;
use std::pin::pin;
use std::sync::Arc;

impl<T: Transport> Client<T> {
    /// Reads a little of a file of `size` bytes for the kernel's pages, if a window around it is
    /// here or is worth to be fetched. A lock on the data is held, since the stamp was this.
    pub(crate) async fn read_around(
        &self,
        inode: &Arc<CachedInode>,
        file: &OpenFile,
        stamp: u64,
        size: u64,
        offset: u64,
        buffer: &mut [u8],
    ) -> Option<usize> {
        let kernel = self.cache.kernel().filter(|kernel| kernel.takes_pages())?;
        let read = offset..(offset + buffer.len() as u64).min(size);
        if read.is_empty() {
            return None;
        }
        let room = self.data.limits.bytes_max() as u64;
        let planned = {
            let mut state = inode.lock();
            if state.pins.has_shared_writers() || state.rare.data.stamp() != stamp {
                return None;
            }
            let around = state.rare.make().data.around(size, room);
            around.plan(&read, size, stamp, &self.data.ahead_memory)
        };
        let window = match planned {
            SmallRead::Alone => return None,
            SmallRead::Window(window) => {
                glint_telemetry::count(Counter::WindowsHit, 1);
                window
            }
            SmallRead::Fetch { window, is_kept } => {
                glint_telemetry::count(Counter::WindowsFetched, 1);
                self.fetch_window(file, window.clone()).await;
                if !is_kept {
                    let stored = store(inode.clone(), window.clone(), stamp, kernel.clone());
                    host::spawn(stored);
                }
                window
            }
        };
        let copied = window.copy(offset, buffer);
        match select(pin!(copied), pin!(host::sleep(AHEAD_LATE))).await {
            Either::Left((Some(len), _)) if len as u64 == read.end - read.start => {
                return Some(len);
            }
            Either::Left(_) => {}
            Either::Right(_) => window.give_up(),
        }
        forget(inode, &window);
        None
    }

    async fn fetch_window(&self, file: &OpenFile, window: Arc<BlockAhead>) {
        let window = BlockOnItsWay(window);
        let mut data = vec![0; window.0.len as usize];
        let result = self.read_file(file, window.0.offset, &mut data).await;
        window.0.fill(result.ok().map(|len| {
            data.truncate(len);
            data
        }));
    }
}

/// Puts a window into the kernel's pages that was read while the stamp was this.
async fn store(
    inode: Arc<CachedInode>,
    window: Arc<BlockAhead>,
    stamp: u64,
    kernel: Arc<dyn Kernel>,
) {
    let lock = {
        let mut state = inode.lock();
        match state.rare.data.stamp() == stamp {
            true => StoreLock::begin(&inode, &mut state),
            false => None,
        }
    };
    if let (Some(lock), Some(data)) = (lock, window.whole()) {
        let offset = window.offset;
        host::unblock(move || lock.store(&*kernel, offset, &data)).await;
    }
    forget(&inode, &window);
}

fn forget(inode: &CachedInode, window: &Arc<BlockAhead>) {
    if let Some(rare) = inode.lock().rare.made() {
        rare.data.forget_window(window);
    }
}

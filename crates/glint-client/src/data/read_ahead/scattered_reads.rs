//! Reads anywhere in a file that is read through the kernel's pages: windows around small ones
//! ([`ReadAround`]) and regions around large ones ([`WideReads`]) are fetched where that pays, and put
//! into those pages.
//!
//! [`ReadAround`]: crate::data::read_ahead::ReadAround
//! [`WideReads`]: crate::data::read_ahead::wide::WideReads

use crate::cache::inode::CachedInode;
use crate::calls::open_files::OpenFile;
use crate::client::Client;
use crate::data::read_ahead::around::Around;
use crate::data::read_ahead::page_bits::REGION;
use crate::data::read_ahead::together::is_large_piece;
use crate::data::read_ahead::{
    AHEAD_LATE, BlockAhead, BlockOnItsWay, PAGE, Regions, StoreLock, is_large,
};
use crate::kernel::Kernel;
use futures_util::future::{Either, select};
use glint_net::{Transport, host};
use glint_telemetry::Counter;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

impl<T: Transport> Client<T> {
    /// Reads of a file of `size` bytes for the kernel's pages, if a window around that is here or is
    /// worth to be fetched. A lock on the data is held, since the stamp was this.
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
        let is_large = is_large(&read);
        // Of several objects a region takes as many requests as what it is read in.
        if is_large && (!Regions::are_in(size) || !self.is_region_in_one_object(file, offset)) {
            return None;
        }
        let room = self.data.limits.bytes_max() as u64;
        let planned = {
            let mut state = inode.lock();
            if state.pins.has_shared_writers() || state.rare.data.stamp() != stamp {
                return None;
            }
            let (data, memory) = (&mut state.rare.make().data, &self.data.ahead_memory);
            match is_large {
                true => data.regions().around(&read, size, room, stamp, memory),
                false => data.around(size, room).plan(&read, size, stamp, memory),
            }
        };
        let window = match planned {
            Around::Alone => return None,
            Around::Window(window) => {
                glint_telemetry::count(Counter::WindowsHit, 1);
                window
            }
            Around::Fetch { window, is_kept } => {
                glint_telemetry::count(Counter::WindowsFetched, 1);
                self.fetch_window(file, window.clone()).await;
                if !is_kept {
                    let parts = parts_to_store(&window, &read);
                    let (inode, window) = (inode.clone(), window.clone());
                    host::spawn(store(inode, window, parts, stamp, kernel.clone()));
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

    fn is_region_in_one_object(&self, file: &OpenFile, offset: u64) -> bool {
        let layout = self.layout_of_open(file);
        layout.pieces(offset - offset % REGION, REGION).nth(1).is_none()
    }

    async fn fetch_window(&self, file: &OpenFile, window: Arc<BlockAhead>) {
        let (layout, window) = (self.layout_of_open(file), BlockOnItsWay(window));
        match is_large_piece(&window.0, layout) {
            true => self.fetch_pieces(file, layout, &[window]).await,
            false => self.fetch_ahead(file, &window.0).await,
        }
    }
}

/// Parts of a window that the kernel does not have from the answer to a read. Of a small read it gets
/// that twice: one part is less work than two.
fn parts_to_store(window: &BlockAhead, read: &Range<u64>) -> [Range<u64>; 2] {
    let own = match is_large(read) {
        true => read.start.next_multiple_of(PAGE)..read.end - read.end % PAGE,
        false => window.offset..window.offset,
    };
    [window.offset..own.start, own.end..window.end()]
}

/// Puts parts of a window into the kernel's pages that was read while the stamp was this.
async fn store(
    inode: Arc<CachedInode>,
    window: Arc<BlockAhead>,
    parts: [Range<u64>; 2],
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
        let store_parts = move || {
            for part in parts.into_iter().filter(|part| !part.is_empty()) {
                let within = (part.start - offset) as usize..(part.end - offset) as usize;
                lock.store(&*kernel, part.start, &data[within]);
            }
        };
        host::unblock(store_parts).await;
    }
    forget(&inode, &window);
}

fn forget(inode: &CachedInode, window: &Arc<BlockAhead>) {
    if let Some(rare) = inode.lock().rare.made() {
        rare.data.forget_window(window);
    }
}

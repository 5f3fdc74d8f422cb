//! Reads anywhere in a file that is read through the kernel's pages: windows around small ones
//! ([`ReadAround`]) and regions around large ones ([`WideReads`]) are fetched where that pays, and put
//! into those pages.
//!
//! A region takes sixteen times as long as its smallest read where the network is slow. So a read waits
//! for the region around it only if the last one came as fast as data that is read ahead should
//! ([`RegionPace`]). Else it asks for its own bytes first, and the region comes beside it, for later
//! reads.
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
    AHEAD_LATE, BlockAhead, BlockOnItsWay, PAGE, Regions, StoreLock, is_large, is_slow,
};
use crate::kernel::Kernel;
use futures_util::future::{Either, select};
use glint_net::{Transport, host};
use glint_proto::clock;
use glint_telemetry::Counter;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// How fast regions around large reads come, of all files of a client.
#[derive(Default)]
pub(crate) struct RegionPace {
    under_way: AtomicU32,
    /// The last one came soon.
    is_prompt: AtomicBool,
}

/// A region on its way, until this is dropped.
struct RegionUnderWay<'a> {
    pace: &'a RegionPace,
    begun: Instant,
    /// How many there were when it began, with it.
    together: u32,
}

impl RegionPace {
    fn begin(&self) -> RegionUnderWay<'_> {
        let together = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        RegionUnderWay { pace: self, begun: clock::now(), together }
    }

    /// Whether a read may wait for its region.
    fn is_prompt(&self) -> bool {
        self.is_prompt.load(Ordering::Relaxed)
    }
}

impl RegionUnderWay<'_> {
    /// It has come. Those that are under way at once share the network.
    fn came(&self, bytes: u64) {
        let together = self.together.max(self.pace.under_way.load(Ordering::Relaxed));
        let is_prompt = !is_slow(clock::since(self.begun) / together, bytes as usize);
        self.pace.is_prompt.store(is_prompt, Ordering::Relaxed);
    }
}

impl Drop for RegionUnderWay<'_> {
    fn drop(&mut self) {
        self.pace.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T: Transport> Client<T> {
    /// Reads of a file of `size` bytes for the kernel's pages, if a window around that is here or is
    /// worth to be fetched. A lock on the data is held, since the stamp was this.
    pub(crate) async fn read_around(
        &self,
        inode: &Arc<CachedInode>,
        file: &Arc<OpenFile>,
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
                let parts = (!is_kept).then(|| parts_to_store(&window, &read));
                let (inode, kernel) = (inode.clone(), kernel.clone());
                let stores = parts.map(|parts| store(inode, window.clone(), parts, stamp, kernel));
                let waits = !is_large || self.data.region_pace.is_prompt();
                if !waits && let Some(client) = self.me.get().and_then(Weak::upgrade) {
                    let file = file.clone();
                    host::spawn(async move {
                        client.fetch_window(&file, window).await;
                        if let Some(stores) = stores {
                            stores.await;
                        }
                    });
                    // This task goes on first: so does what it asks for.
                    return None;
                }
                self.fetch_window(file, window.clone()).await;
                if let Some(stores) = stores {
                    host::spawn(stores);
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
        let is_region = is_large(&(window.offset..window.end()));
        let region = is_region.then(|| self.data.region_pace.begin());
        let (layout, coming) = (self.layout_of_open(file), BlockOnItsWay(window.clone()));
        match is_large_piece(&window, layout) {
            true => self.fetch_pieces(file, layout, &[coming]).await,
            false => self.fetch_ahead(file, &window).await,
        }
        if let Some(region) = region.filter(|_| !window.has_failed()) {
            region.came(window.len);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::read_ahead::page_bits::REGION;
    use std::time::Duration;

    #[test]
    fn regions_are_prompt_if_the_last_one_came_fast_for_how_many_there_were() {
        let (pace, begun) = (RegionPace::default(), Instant::now());
        let after = |ms| clock::simulate(Some(begun + Duration::from_millis(ms)));
        assert!(!pace.is_prompt(), "nobody knows");
        for (ms, together, is_prompt) in
            [(2, 1, true), (34, 1, false), (34, 8, true), (272, 8, false), (8, 1, true)]
        {
            after(0);
            let regions: Vec<_> = (0..together).map(|_| pace.begin()).collect();
            after(ms);
            for region in regions {
                region.came(REGION);
            }
            assert_eq!(pace.is_prompt(), is_prompt, "{together} in {ms} ms");
        }
        assert_eq!(pace.under_way.load(Ordering::Relaxed), 0);
        clock::simulate(None);
    }
}

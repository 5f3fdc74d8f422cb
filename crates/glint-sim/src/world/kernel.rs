//! The kernel of a simulated client, as FUSE has one: it keeps pages of files and their sizes until
//! it is told to forget them, reads from pages that it has without asking, and takes pages that it
//! did not ask for.
//!
//! Invariants, those of Linux (fs/fuse/file.c, fs/fuse/inode.c, fs/fuse/dev.c):
//! - An answer is not kept that was asked for before something of the file was forgotten.
//! - A page that is here is not read again; only a store replaces it.
//! - Who writes goes around the pages, as mounts have it: they are dropped before and after.
//!
//! Simplified: it keeps no names. Forgetting does not wait for reads under way, of which nothing is
//! kept then. It is done at once, as a store is, but some time after the client has begun with it.

use crate::workload::Fs;
use glint_client::{Handle, Kernel, Open, Vfs, WriteHow};
use glint_proto::lock::Range;
use glint_proto::{FsResult, Ino};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: usize = 4096;

/// What the kernel has of a file.
#[derive(Default)]
struct KnownFile {
    /// Pages that are here, by their numbers.
    pages: BTreeMap<usize, Vec<u8>>,
    size: usize,
    /// The size may be used without asking.
    is_size_current: bool,
    /// How often pages, and attributes, were forgotten.
    pages_forgotten: u64,
    attributes_forgotten: u64,
}

impl KnownFile {
    fn forget_attributes(&mut self) {
        self.is_size_current = false;
        self.attributes_forgotten += 1;
    }

    fn forget_pages(&mut self, range: Range) {
        let page = |number: usize| Range::of((number * PAGE) as u64, PAGE as u64);
        self.pages.retain(|number, _| !page(*number).overlaps(range));
        self.pages_forgotten += 1;
        self.forget_attributes();
    }

    /// Its content, if all pages of it are here.
    fn content(&self, size: usize) -> Option<Vec<u8>> {
        let mut content = Vec::new();
        for number in 0..size.div_ceil(PAGE) {
            content.extend_from_slice(self.pages.get(&number)?);
        }
        content.truncate(size);
        Some(content)
    }
}

/// What a kernel did, counted.
#[derive(Clone, Copy, Default)]
pub(crate) struct PagesUsed {
    /// Files that were read without asking.
    pub(crate) reads: u64,
    /// Files of which pages came that nobody had asked for.
    pub(crate) stores: u64,
}

/// The kernel of a client.
#[derive(Default)]
pub(crate) struct SimulatedKernel {
    files: Mutex<BTreeMap<Ino, KnownFile>>,
    used: Mutex<PagesUsed>,
    /// It forgets no pages: see [`Lapse::PagesKept`].
    ///
    /// [`Lapse::PagesKept`]: crate::world::lapses::Lapse::PagesKept
    keeps_pages: bool,
}

impl SimulatedKernel {
    /// The kernel of this client, which has done nothing before.
    pub(crate) fn of(fs: &Fs, keeps_pages: bool) -> Arc<SimulatedKernel> {
        let kernel = Arc::new(SimulatedKernel { keeps_pages, ..SimulatedKernel::default() });
        fs.set_kernel(kernel.clone());
        kernel
    }

    pub(crate) fn used(&self) -> PagesUsed {
        *self.used.lock()
    }

    fn with<R>(&self, ino: Ino, work: impl FnOnce(&mut KnownFile) -> R) -> R {
        work(self.files.lock().entry(ino).or_default())
    }

    /// The size of a file, asked for if it may have changed.
    async fn size(&self, fs: &Fs, ino: Ino) -> FsResult<usize> {
        let (known, forgotten) = self.with(ino, |file| {
            (file.is_size_current.then_some(file.size), file.attributes_forgotten)
        });
        if let Some(size) = known {
            return Ok(size);
        }
        let found = fs.getattr(ino).await?;
        let size = found.attr.size as usize;
        self.with(ino, |file| {
            if file.attributes_forgotten == forgotten {
                file.size = size;
                file.is_size_current = !found.valid.attr.is_zero();
            }
        });
        Ok(size)
    }

    /// Reads all of a file that was just opened, as read(2) does.
    pub(crate) async fn read(&self, fs: &Fs, open: &Open) -> FsResult<Vec<u8>> {
        let ino = open.attr.ino;
        if !fs.pages_are_current() {
            // Opened without FOPEN_KEEP_CACHE.
            self.with(ino, |file| file.forget_pages(Range::ALL));
        }
        let size = self.size(fs, ino).await?;
        let (known, forgotten) = self.with(ino, |file| (file.content(size), file.pages_forgotten));
        if let Some(content) = known {
            self.used.lock().reads += 1;
            return Ok(content);
        }
        let mut data = vec![0; size.next_multiple_of(PAGE)];
        let len = fs.read(open.handle, 0, &mut data, true).await?;
        if len < size {
            data.truncate(len);
            return Ok(data);
        }
        Ok(self.with(ino, |file| {
            if file.pages_forgotten == forgotten {
                for (number, page) in data.chunks(PAGE).enumerate() {
                    file.pages.entry(number).or_insert_with(|| page.to_vec());
                }
                data = file.content(size).unwrap_or_default();
            }
            data.truncate(size);
            data
        }))
    }

    /// Writes to a file from its beginning, as pwrite(2) does.
    pub(crate) async fn write(
        &self,
        fs: &Fs,
        (ino, handle): (Ino, Handle),
        data: &[u8],
    ) -> FsResult<()> {
        let range = Range::of(0, data.len() as u64);
        self.with(ino, |file| file.forget_pages(range));
        let written = fs.write(handle, 0, data, WriteHow::default()).await;
        self.with(ino, |file| file.forget_pages(range));
        written
    }
}

impl Kernel for SimulatedKernel {
    fn forget_attributes(&self, ino: Ino) -> bool {
        self.with(ino, KnownFile::forget_attributes);
        true
    }

    fn forget_pages(&self, ino: Ino, range: Range) {
        if !self.keeps_pages {
            self.with(ino, |file| file.forget_pages(range));
        }
    }

    fn takes_pages(&self) -> bool {
        true
    }

    fn store_pages(&self, ino: Ino, offset: u64, data: &[u8]) -> bool {
        let end = offset as usize + data.len();
        self.with(ino, |file| {
            file.size = file.size.max(end);
            for (number, part) in (offset as usize / PAGE..).zip(data.chunks(PAGE)) {
                if let Some(page) = file.pages.get_mut(&number) {
                    page[..part.len()].copy_from_slice(part);
                } else if part.len() == PAGE || end == file.size {
                    let mut page = part.to_vec();
                    page.resize(PAGE, 0);
                    file.pages.insert(number, page);
                }
            }
        });
        self.used.lock().stores += 1;
        true
    }

    fn forget_name(&self, _: Ino, _: &[u8]) {}

    fn forget_unused(&self, _: &[Ino]) -> bool {
        true
    }

    fn forget_all_names(&self) -> bool {
        true
    }
}

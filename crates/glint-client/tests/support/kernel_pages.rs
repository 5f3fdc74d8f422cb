//! A kernel that keeps pages of files.

use super::{Fake, PAGE};
use glint_client::{Client, Kernel, Vfs};
use glint_proto::Ino;
use glint_proto::lock::Range;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// A kernel with pages of files, by inode and number, which it is given and reads from.
#[derive(Default)]
pub(crate) struct KernelPages(Mutex<HashMap<(Ino, u64), Vec<u8>>>);

impl Kernel for KernelPages {
    fn forget_attributes(&self, _: Ino) -> bool {
        true
    }

    fn forget_pages(&self, ino: Ino, range: Range) {
        let is_in = |page: u64| range.overlaps(Range::of(page * PAGE, PAGE));
        self.0.lock().retain(|(of, page), _| *of != ino || !is_in(*page));
    }

    fn takes_pages(&self) -> bool {
        true
    }

    fn store_pages(&self, ino: Ino, offset: u64, data: &[u8]) -> bool {
        assert_eq!(offset % PAGE, 0);
        let numbers = (offset / PAGE..).map(|page| (ino, page));
        let pages = data.chunks(PAGE as usize).map(<[u8]>::to_vec);
        self.0.lock().extend(numbers.zip(pages));
        true
    }

    fn forget_name(&self, _: Ino, _: &[u8]) {}

    fn forget_unused(&self, _: &[Ino]) -> bool {
        false
    }

    fn forget_all_names(&self) -> bool {
        true
    }
}

impl KernelPages {
    /// The kernel of a client that fetches what nobody has asked for.
    pub(crate) fn of(client: &Client<Fake>) -> Arc<KernelPages> {
        let pages = Arc::<KernelPages>::default();
        client.set_kernel(pages.clone());
        client.prefetch_files();
        pages
    }

    pub(crate) fn get(&self, ino: Ino, page: u64) -> Option<Vec<u8>> {
        self.0.lock().get(&(ino, page)).cloned()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }
}

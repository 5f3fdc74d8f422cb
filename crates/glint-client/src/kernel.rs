//! Interface to the kernel that a client serves: to have it forget.

use glint_proto::Ino;
use glint_proto::lock::Range;

/// A kernel that caches what a mount told it.
pub trait Kernel: Send + Sync + 'static {
    /// Forgets the attributes of an inode. Does not wait. Returns whether it knew the inode.
    fn forget_attributes(&self, ino: Ino) -> bool;

    /// Forgets pages of a file, after writing those that are dirty. Waits for requests under
    /// way that hold them.
    fn forget_pages(&self, ino: Ino, range: Range);

    /// Whether it takes pages that it did not ask for.
    fn takes_pages(&self) -> bool;

    /// Puts data of a file into its pages, if it knows the file: it begins with a page, and ends with
    /// one or with the file. Waits for requests under way that fill these pages. Returns whether it
    /// has all of them.
    fn store_pages(&self, ino: Ino, offset: u64, data: &[u8]) -> bool;

    /// Forgets a name. Waits for requests under way in its directory.
    fn forget_name(&self, parent: Ino, name: &[u8]);

    /// Forgets inodes that nobody uses; those that somebody does it keeps. May wait for requests
    /// under way. Returns whether it can do that.
    fn forget_unused(&self, inos: &[Ino]) -> bool;

    /// Forgets all names at once, and does not wait. Returns whether it can do that.
    fn forget_all_names(&self) -> bool;
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use parking_lot::Mutex;
    use std::time::{Duration, Instant};

    /// A kernel that notes what it is asked to forget, and forgets nothing.
    #[derive(Default)]
    pub(crate) struct TestKernel {
        /// It can forget all names at once.
        has_epochs: bool,
        names: Mutex<Vec<(Ino, Vec<u8>)>>,
        all_names: Mutex<usize>,
        unused: Mutex<Vec<Ino>>,
        attributes: Mutex<Vec<Ino>>,
    }

    impl TestKernel {
        pub(crate) fn new(has_epochs: bool) -> TestKernel {
            TestKernel { has_epochs, ..TestKernel::default() }
        }

        /// Names that it was asked to forget.
        pub(crate) fn names_forgotten(&self) -> Vec<(Ino, Vec<u8>)> {
            self.names.lock().clone()
        }

        /// How often it was asked to forget all names.
        pub(crate) fn all_names_forgotten(&self) -> usize {
            *self.all_names.lock()
        }

        /// Waits until it is asked to forget a name.
        pub(crate) fn wait_for_name(&self, parent: Ino, name: &[u8]) {
            let begin = Instant::now();
            while !self.names.lock().contains(&(parent, name.to_vec())) {
                assert!(begin.elapsed() < Duration::from_secs(60), "the kernel was not asked");
                std::thread::sleep(Duration::from_millis(1));
            }
        }

        /// Inodes whose attributes it was asked to forget.
        pub(crate) fn attributes_forgotten(&self) -> Vec<Ino> {
            self.attributes.lock().clone()
        }

        /// Inodes that it was asked to forget since this was called last.
        pub(crate) fn take_unused(&self) -> Vec<Ino> {
            std::mem::take(&mut *self.unused.lock())
        }
    }

    impl Kernel for TestKernel {
        fn forget_attributes(&self, ino: Ino) -> bool {
            self.attributes.lock().push(ino);
            true
        }

        fn forget_pages(&self, _: Ino, _: Range) {}

        fn takes_pages(&self) -> bool {
            false
        }

        fn store_pages(&self, _: Ino, _: u64, _: &[u8]) -> bool {
            false
        }

        fn forget_name(&self, parent: Ino, name: &[u8]) {
            self.names.lock().push((parent, name.to_vec()));
        }

        fn forget_unused(&self, inos: &[Ino]) -> bool {
            self.unused.lock().extend(inos);
            true
        }

        fn forget_all_names(&self) -> bool {
            *self.all_names.lock() += usize::from(self.has_epochs);
            self.has_epochs
        }
    }
}

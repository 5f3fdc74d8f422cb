//! Open files of this client.

use crate::data::read_ahead::ReadAhead;
use crate::listing::ListedTo;
use crate::listing::pages_ahead::PagesAhead;
use crate::vfs::Handle;
use glint_proto::{Errno, FsResult, Ino, Layout};
use glint_wait::Monitor;
use parking_lot::{Mutex, RwLock};
use slab::Slab;
use smallvec::SmallVec;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// An open file or directory.
pub(crate) struct OpenFile {
    pub(crate) ino: Ino,
    pub(crate) layout: Layout,
    /// Counted as a writer at the MDS.
    pub(crate) write: bool,
    pub(crate) is_dir: bool,
    /// Data was changed through this handle, so its release brings the size home. Not before that had a
    /// lock: another client may be cutting the file since before it was opened, and what the objects say
    /// until then is older than what the MDS knows.
    pub(crate) wrote: AtomicBool,
    /// Writes go to the end (O_APPEND).
    pub(crate) append: bool,
    /// A file open to read and write, whose pages may be dirtied without notice.
    pub(crate) shared: bool,
    /// The servers know of it.
    pub(crate) declared: bool,
    /// The change in the write-back log that made and opened it, if this client did; or 0.
    pub(crate) made: u64,
    /// Number of the last lost write that its program was told of.
    pub(crate) error_seen: AtomicU64,
    /// Owners that took locks of fcntl(2) through the open file.
    pub(crate) lock_owners: Mutex<SmallVec<[u64; 1]>>,
    /// Value of [`Handles::privileges_given`] when it had nothing that a write takes away, where
    /// there are no locks; or 0.
    pub(crate) plain: AtomicU64,
    /// The access time was seen to.
    pub(crate) atime_done: AtomicBool,
    /// The kernel had all of its data when it was opened: perhaps no read of it comes.
    pub(crate) in_pages: bool,
    /// Cookie of the last entry of a directory, if a page said that nothing follows it.
    pub(crate) last_entry: AtomicU64,
    /// How far programs were told of a directory.
    pub(crate) listed_to: ListedTo,
    /// Pages of a directory that come before programs ask for them.
    pub(crate) pages_ahead: Arc<PagesAhead>,
    pub(crate) ahead: Mutex<ReadAhead>,
    /// The kernel was given the object of the file by this.
    pub(crate) handed_out: AtomicBool,
    /// Calls under way that change data through it. One whose program was killed goes on.
    pub(crate) changing: Monitor<u32>,
}

/// A call that changes data through an open file, whose release waits for it: what a release says of
/// the file is what is left by all calls.
pub(crate) struct ChangingCall(Arc<OpenFile>);

impl Deref for ChangingCall {
    type Target = OpenFile;

    fn deref(&self) -> &OpenFile {
        &self.0
    }
}

impl Drop for ChangingCall {
    fn drop(&mut self) {
        self.0.changing.change(|calls| *calls -= 1);
    }
}

impl OpenFile {
    /// Whether a call changes data through it.
    pub(crate) fn is_changing(&self) -> bool {
        *self.changing.lock() > 0
    }

    /// Waits until no call changes data through it.
    pub(crate) async fn until_unchanging(&self) {
        self.changing.until(|calls| (*calls == 0).then_some(())).await;
    }

    /// Notes which entry of the directory is the last.
    pub(crate) fn note_last_entry(&self, cookie: u64) {
        self.last_entry.store(cookie, Ordering::Release);
    }

    /// Whether it is known that no entry follows this one. It is so only for who asks next: somebody
    /// who asks again wants to know what was made meanwhile.
    pub(crate) fn take_last_entry(&self, cookie: u64) -> bool {
        self.last_entry.swap(0, Ordering::AcqRel) == cookie && cookie != 0
    }
}

/// The open files of a client.
#[derive(Default)]
pub(crate) struct Handles {
    files: RwLock<Slab<Arc<OpenFile>>>,
    /// Counts changes that may have given a file set-id bits or capabilities.
    privileges_given: AtomicU64,
    /// Open files that the servers did not know of when they were opened.
    undeclared: AtomicUsize,
}

impl Handles {
    /// How many changes may have given a file what a write takes away; from 1.
    pub(crate) fn privileges_given(&self) -> u64 {
        self.privileges_given.load(Ordering::Acquire) + 1
    }

    /// A change may have.
    pub(crate) fn note_privileges_given(&self) {
        self.privileges_given.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether there may be open files that the servers do not know of.
    pub(crate) fn has_undeclared(&self) -> bool {
        self.undeclared.load(Ordering::Acquire) > 0
    }

    pub(crate) fn add(&self, file: OpenFile) -> Handle {
        self.undeclared.fetch_add(usize::from(!file.declared), Ordering::AcqRel);
        Handle(self.files.write().insert(Arc::new(file)) as u64)
    }

    pub(crate) fn get(&self, handle: Handle) -> FsResult<Arc<OpenFile>> {
        self.files.read().get(handle.0 as usize).cloned().ok_or(Errno::EBADF)
    }

    /// The file of a call that changes its data.
    pub(crate) fn get_to_change(&self, handle: Handle) -> FsResult<ChangingCall> {
        let files = self.files.read();
        let file = files.get(handle.0 as usize).ok_or(Errno::EBADF)?;
        // Whoever removes the handle after this sees it.
        *file.changing.lock() += 1;
        Ok(ChangingCall(file.clone()))
    }

    /// Forgets what was read ahead for open files, one after the other. Returns which they are.
    pub(crate) fn forget_read_ahead(&self) -> Vec<Ino> {
        let files: Vec<_> = self.files.read().iter().map(|(_, file)| file.clone()).collect();
        files.iter().for_each(|file| file.ahead.lock().forget());
        files.iter().map(|file| file.ino).collect()
    }

    /// Forgets the pages of open directories that came ahead.
    pub(crate) fn forget_pages_ahead(&self) {
        self.files.read().iter().for_each(|(_, file)| file.pages_ahead.forget());
    }

    /// Whether the kernel has the object of a file.
    pub(crate) fn is_handed_out(&self, ino: Ino) -> bool {
        let is_it = |file: &OpenFile| file.ino == ino && file.handed_out.load(Ordering::Acquire);
        self.files.read().iter().any(|(_, file)| is_it(file))
    }

    pub(crate) fn remove(&self, handle: Handle) -> FsResult<Arc<OpenFile>> {
        let file = self.files.write().try_remove(handle.0 as usize).ok_or(Errno::EBADF)?;
        self.undeclared.fetch_sub(usize::from(!file.declared), Ordering::AcqRel);
        Ok(file)
    }
}

//! Small files are asked for before they are read: their locks in one request, and their data at
//! once. Which ones of a directory, `plan.rs` says, and which directory is next, `directories.rs`;
//! how many where they are read in no order, `scattered.rs`. They come together in `next.rs`. How
//! the kernel gets them: `store.rs`.
//!
//! Invariants:
//! - Data is kept for who reads it only with the stamp that the file had when it was asked for, under
//!   a lock: it goes with the lock, and with what is written here.
//! - No call waits for it that does not hold that lock, and no lock waits for it.
//! - It takes no more memory than its limit: what was asked for first goes first.

mod directories;
mod next;
pub(crate) mod plan;
mod scattered;
mod store;

use crate::cache::inode::{CachedInode, InodeState};
use crate::client::Client;
use crate::data::prefetch::directories::DirectorySequence;
use crate::data::prefetch::plan::Next;
use crate::data::prefetch::scattered::ScatteredReads;
use crate::data::read_ahead::{BlockAhead, BlockOnItsWay, ReadAheadMemory};
use futures_util::stream::{self, StreamExt};
use glint_lock::held::Use;
use glint_net::Transport;
use glint_proto::limits::{OBJECT_READS_MAX, PREFETCHED_FILES_MAX, STRIPE_BYTES_LOG2_MIN};
use glint_proto::lock::Range;
use glint_proto::message::ObjectRead;
use glint_proto::{Attr, DirEntry, Errno, FileType, FsResult, Ino, Layout, MdsRequest};
use glint_telemetry::Counter;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// Largest file that is read before anybody asks.
const FILE_BYTES_MAX: u64 = 64 << 10;
const _: () = assert!(FILE_BYTES_MAX <= 1 << STRIPE_BYTES_LOG2_MIN, "it lies in one object");
/// Files of which it is known that they were asked for: more than memory has room for, unless they
/// are tiny.
const FILES_MAX: usize = 8192;
/// Names of a directory among which a sequence is looked for.
const NAMES_MAX: usize = 20_000;
/// Names of files that are noted, in all directories: 8 MiB; and the directories.
const NOTED_NAMES_MAX: usize = 1 << 20;
const NOTED_DIRECTORIES_MAX: usize = 4096;
/// Directories whose first file may begin a sequence, since one went on.
const GUESSES: u32 = 8;
/// Files that are locked together are read in batches of so many bytes: the first ones are here
/// before the last ones are read.
const BATCH_BYTES: u64 = 512 << 10;
const _: () = assert!(PREFETCHED_FILES_MAX <= OBJECT_READS_MAX);
/// Requests for locks at once, and batches that are read at once under those of each.
const LOCKS_MAX: usize = 2;
const READS_MAX: usize = 4;

/// Files that were asked for, and are perhaps not read yet; the oldest first.
pub(crate) struct PrefetchedFiles {
    is_on: AtomicBool,
    memory: ReadAheadMemory,
    files: Mutex<VecDeque<Weak<CachedInode>>>,
    /// Directories of which the first file may still begin a sequence.
    guesses: AtomicU32,
    noted: Mutex<NotedNames>,
    directories: Mutex<DirectorySequence>,
    scattered: Arc<Mutex<ScatteredReads>>,
}

/// Directories in which names of files are noted, each once, with how many; the first is the one that
/// was counted first.
struct NotedNames {
    directories: VecDeque<(Weak<CachedInode>, usize)>,
    /// How many in all.
    names: usize,
    /// Most names: none while memory is short, or nobody uses the client.
    names_max: usize,
}

impl Default for NotedNames {
    fn default() -> NotedNames {
        NotedNames { directories: VecDeque::new(), names: 0, names_max: NOTED_NAMES_MAX }
    }
}

impl NotedNames {
    fn pop(&mut self) -> Option<Weak<CachedInode>> {
        let (oldest, names) = self.directories.pop_front()?;
        self.names -= names;
        Some(oldest)
    }

    /// Counts the names that are noted in a directory now, instead of those that were before.
    fn count(&mut self, directory: &Arc<CachedInode>, names: usize) {
        let is_it =
            |counted: &(Weak<CachedInode>, usize)| counted.0.as_ptr() == Arc::as_ptr(directory);
        // The last one, if this is its next page.
        let at = self.directories.iter().rposition(is_it);
        if let Some((_, before)) = at.and_then(|at| self.directories.remove(at)) {
            self.names -= before;
        }
        if names > 0 {
            self.directories.push_back((Arc::downgrade(directory), names));
            self.names += names;
        }
    }
}

impl Default for PrefetchedFiles {
    fn default() -> PrefetchedFiles {
        PrefetchedFiles {
            is_on: AtomicBool::new(false),
            memory: ReadAheadMemory::for_prefetched(),
            files: Mutex::default(),
            guesses: AtomicU32::new(0),
            noted: Mutex::default(),
            directories: Mutex::default(),
            scattered: Arc::default(),
        }
    }
}

impl PrefetchedFiles {
    /// From now on small files are prefetched.
    pub(crate) fn turn_on(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// From now on none are.
    fn turn_off(&self) {
        self.is_on.store(false, Ordering::Relaxed);
    }

    /// Whether small files are prefetched.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// A sequence goes on, or the first file of a directory began one: that can be wrong some times
    /// in a row, not for ever.
    fn note_guess(&self, goes_on: bool) {
        let fewer = |guesses: u32| Some(if goes_on { GUESSES } else { guesses.saturating_sub(1) });
        let _ = self.guesses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
    }

    /// Bytes of files that nobody has read yet.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.used()
    }

    /// How many there may be as of now: none if small files are not prefetched.
    pub(crate) fn limit(&self) -> usize {
        if self.is_on() { self.memory.limit() } else { 0 }
    }

    /// After how many steps these bytes would still fit.
    pub(crate) fn steps_that_fit(&self) -> u32 {
        self.memory.steps_that_fit()
    }

    /// Halves the limit of ample memory so many times. What is more than that goes, the oldest first;
    /// all of it if nobody has used this client for long.
    pub(crate) fn set_steps(&self, steps: u32, is_idle: bool) {
        self.memory.set_steps(steps);
        self.noted.lock().names_max = if steps > 0 || is_idle { 0 } else { NOTED_NAMES_MAX };
        self.limit_noted();
        if is_idle {
            self.scattered.lock().forget();
        }
        while self.memory.is_over() || is_idle {
            let Some(oldest) = self.files.lock().pop_front() else { return };
            self.take(&oldest);
        }
    }

    /// Notes how many names of files there are in a directory, if that has changed. The caller does not
    /// hold its lock.
    fn note_names(&self, directory: &Arc<CachedInode>, names: Option<usize>) {
        if let Some(names) = names {
            self.noted.lock().count(directory, names);
            self.limit_noted();
        }
    }

    /// Forgets names of the directories that were noted first, until there are no more than there may
    /// be.
    fn limit_noted(&self) {
        loop {
            let oldest = {
                let mut noted = self.noted.lock();
                let directories = noted.directories.len();
                if noted.names <= noted.names_max && directories <= NOTED_DIRECTORIES_MAX {
                    return;
                }
                noted.pop()
            };
            let Some(directory) = oldest.and_then(|oldest| oldest.upgrade()) else { continue };
            if let Some(plan) = directory.lock().prefetch_plan() {
                plan.forget_names();
            }
        }
    }

    /// Room for a file. What was asked for long ago goes for it.
    fn room(&self, len: u64) -> Option<Arc<BlockAhead>> {
        let mut freed = 0;
        loop {
            if let Some(block) = BlockAhead::coming(0, len, &self.memory) {
                return Some(block);
            }
            // More than that would help nobody: somebody reads the rest.
            let oldest = if freed < len { self.files.lock().pop_front()? } else { return None };
            freed += self.take(&oldest);
        }
    }

    /// A file was asked for.
    fn note(&self, inode: &Arc<CachedInode>) {
        let oldest = {
            let mut files = self.files.lock();
            files.push_back(Arc::downgrade(inode));
            if files.len() > FILES_MAX { files.pop_front() } else { None }
        };
        oldest.as_ref().map(|oldest| self.take(oldest));
    }

    /// Takes what was asked for of a file and nobody has read. Returns how many bytes that are.
    fn take(&self, file: &Weak<CachedInode>) -> u64 {
        let Some(file) = file.upgrade() else { return 0 };
        let taken = file.lock().rare.made().and_then(|rare| rare.data.take_prefetched());
        let Some((_, block)) = taken else { return 0 };
        self.scattered.lock().on_dropped(file.ino);
        block.len
    }
}

impl<T: Transport> Client<T> {
    /// A program is told of these entries of a directory, the first ones if `is_begin`, and they are
    /// known; or it has looked names up there, and these are all.
    pub(crate) fn note_listing(&self, directory: Ino, is_begin: bool, entries: &[DirEntry]) {
        if !self.data.prefetched.is_on() {
            return;
        }
        let Some(directory) = self.cache.find(directory) else { return };
        let is_file = |entry: &&DirEntry| entry.dirent_type == FileType::Regular.dirent_type();
        let files = entries.iter().filter(is_file).map(|entry| entry.ino);
        let (is_first, noted) = {
            let mut state = directory.lock();
            let plan = state.rare.make().prefetch_plan.get_or_insert_default();
            (plan.list(is_begin, files), plan.count())
        };
        let prefetched = &self.data.prefetched;
        prefetched.note_names(&directory, noted);
        let begins = is_first && prefetched.directories.lock().on_listing(directory.ino);
        if begins && prefetched.guesses.load(Ordering::Relaxed) > 0 {
            prefetched.note_guess(false);
            self.prefetch_listed(&directory);
        }
    }

    /// A file is read through a handle for the first time: asks for those that are likely to be
    /// next.
    pub(crate) fn prefetch_after(&self, inode: &CachedInode) {
        let (was_prefetched, is_hit, is_new, size, parent) = {
            let state = inode.lock();
            let Some(parent) = state.parent() else { return };
            let size = state.attributes().map(|attr| attr.size);
            let Some(size) = size.filter(|size| *size <= FILE_BYTES_MAX) else { return };
            let is_new = is_unread(&state) && !state.pins.has_shared_writers();
            let was_prefetched = state.rare.data.is_prefetched();
            let is_hit = was_prefetched && !state.rare.data.is_prefetched_in_vain();
            (was_prefetched, is_hit, is_new, size, parent)
        };
        let Some(directory) = self.cache.find(parent) else { return };
        if directory.lock().rare.delegation.is_delegated() {
            return;
        }
        let prefetched = &self.data.prefetched;
        let is_scattered = {
            let mut scattered = prefetched.scattered.lock();
            if was_prefetched || is_new {
                scattered.on_read(parent, inode.ino, size, is_hit);
            }
            scattered.is_on()
        };
        let (many, is_ahead, noted) = {
            let mut state = directory.lock();
            let InodeState { rare, dentries, .. } = &mut *state;
            let plan = rare.make().prefetch_plan.get_or_insert_default();
            let may_begin = prefetched.guesses.load(Ordering::Relaxed) > 0;
            let mut noted = None;
            let many = match plan.on_read(inode.ino, was_prefetched, may_begin) {
                Next::Nothing => 0,
                Next::More(many) => {
                    prefetched.note_guess(true);
                    many
                }
                Next::Sequence => {
                    let many = plan.begin(inode.ino, dentries.iter().take(NAMES_MAX));
                    if many > 0 && plan.is_first() {
                        prefetched.note_guess(false);
                    }
                    noted = plan.count();
                    // By chance, one is near the other in some order.
                    if is_scattered && !plan.is_next_to_last() { 0 } else { many }
                }
            };
            plan.note(inode.ino);
            (many, plan.is_ahead(), noted)
        };
        prefetched.note_names(&directory, noted);
        prefetched.directories.lock().on_read(directory.ino, was_prefetched, is_ahead);
        if many > 0 {
            self.prefetch_next(&directory, many);
        }
        if is_scattered {
            self.prefetch_scattered();
        }
    }

    async fn prefetch(self: Arc<Self>, files: Vec<Arc<CachedInode>>) {
        // The locks on the next ones are asked for while these are read.
        let ask = files.chunks(PREFETCHED_FILES_MAX).map(|files| self.lock_and_fetch(files));
        stream::iter(ask).buffer_unordered(LOCKS_MAX).collect::<()>().await;
    }

    /// Reads small files under locks that one request asks for.
    async fn lock_and_fetch(&self, files: &[Arc<CachedInode>]) {
        let inos: Vec<Ino> = files.iter().map(|file| file.ino).collect();
        match self.ask_as_root(&MdsRequest::Prefetch { inos }).await {
            Ok(_) => {}
            // Not with the rights of this client.
            Err(Errno::EOPNOTSUPP) => return self.data.prefetched.turn_off(),
            // What is refused is asked for when it is read.
            Err(_) => return,
        }
        // Fewer than there are slots: others read, too.
        let fetch = batches(files).into_iter().map(|batch| self.fetch(batch));
        stream::iter(fetch).buffer_unordered(READS_MAX).collect::<()>().await;
    }

    /// Reads small files on which locks have come, in one request to each of their servers.
    async fn fetch(&self, files: &[Arc<CachedInode>]) {
        let begin = |file: &Arc<CachedInode>| {
            let (layout, block) = self.begin_fetch(file)?;
            self.data.prefetched.note(file);
            glint_telemetry::count(Counter::FilesPrefetched, 1);
            let (object, len) = (layout.object(file.ino, 0), block.0.len as u32);
            let to = self.placement.ost_of(layout, 0).into();
            let mut read = ObjectRead { to, object, offset: 0, len, capability: None };
            if self.parameters.needs_capabilities {
                read.capability = file.lock().rare.capabilities.for_request(&read.request());
            }
            Some((read, (file.clone(), block)))
        };
        let (reads, coming): (Vec<_>, Vec<_>) = files.iter().filter_map(begin).unzip();
        if reads.is_empty() {
            return;
        }
        let says = |at: usize, data: FsResult<Vec<u8>>| {
            let (_, BlockOnItsWay(block)) = &coming[at];
            match data {
                Ok(data) => block.fill(Some(data)),
                Err(_) => block.give_up(),
            }
        };
        self.transport.read_objects(reads, &says).await;
        self.store_in_kernel(&coming).await;
    }

    /// Where a file lies that may be read, and the block that is to be filled. The lock is not in use
    /// while that is read: an OST that is away must not keep it from others. Whoever loses it
    /// forgets the block.
    fn begin_fetch(&self, file: &CachedInode) -> Option<(Layout, BlockOnItsWay)> {
        let size = small_size(&file.lock())?;
        let block = self.data.prefetched.room(size)?;
        let mut state = file.lock();
        if small_size(&state) != Some(size) || !is_unread(&state) {
            return None;
        }
        let attr = state.attributes()?;
        let latest = state.rare.data.layout().filter(|latest| attr.layout.is_before(latest));
        let layout = latest.unwrap_or(attr.layout);
        let id = state.rare.make().data_locks.begin(Range::ALL, false, Use::Call)?;
        state.rare.make().data.set_prefetched(block.clone());
        let is_returned = state.rare.make().data_locks.end(id);
        drop(state);
        if is_returned {
            file.wake();
        }
        Some((layout, BlockOnItsWay(block)))
    }
}

/// Files as they are read together: so many bytes at a time.
fn batches(files: &[Arc<CachedInode>]) -> Vec<&[Arc<CachedInode>]> {
    let (mut batches, mut begin, mut bytes) = (Vec::new(), 0, 0);
    for (at, file) in files.iter().enumerate() {
        let size = small_size(&file.lock()).unwrap_or(0);
        if bytes + size > BATCH_BYTES {
            batches.push(&files[begin..at]);
            (begin, bytes) = (at, 0);
        }
        bytes += size;
    }
    batches.push(&files[begin..]);
    batches
}

/// The size of a small file that nobody writes.
fn small_size(state: &InodeState) -> Option<u64> {
    state.attributes().and_then(size_if_small)
}

/// The size of a file with these attributes, if it is small and nobody writes it.
pub(crate) fn size_if_small(attr: &Attr) -> Option<u64> {
    let is_small = (1..=FILE_BYTES_MAX).contains(&attr.size);
    (attr.is_file() && !attr.size_on_ost && is_small).then_some(attr.size)
}

/// Whether nothing of a file is here.
fn is_unread(state: &InodeState) -> bool {
    !state.rare.data.has_pages() && !state.rare.data.is_prefetched() && state.rare.data.is_clean()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_listed_again_is_counted_once() {
        let prefetched = PrefetchedFiles::default();
        let list = |directory: &Arc<CachedInode>, names: u64| {
            let mut state = directory.lock();
            let plan = state.rare.make().prefetch_plan.get_or_insert_default();
            plan.list(true, (0..names).map(Ino));
            let count = plan.count();
            drop(state);
            prefetched.note_names(directory, count);
            let noted = prefetched.noted.lock();
            (noted.names, noted.directories.len())
        };
        let [one, other] = [1, 2].map(|ino| Arc::new(CachedInode::new(Ino(ino))));
        assert_eq!(list(&one, 10_000), (10_000, 1));
        for _ in 0..1000 {
            assert_eq!(list(&other, 10_000), (20_000, 2));
            assert_eq!(list(&one, 10_000), (20_000, 2));
        }
        assert_eq!(list(&one, 1), (10_001, 2));
        assert_eq!(list(&one, 0), (10_000, 1));
        assert_eq!(list(&one, 0), (10_000, 1));
        prefetched.set_steps(1, false);
        assert_eq!(list(&other, 10), (0, 0));
    }

    #[test]
    fn names_of_files_are_noted_in_so_many_directories_and_none_when_memory_is_short() {
        let prefetched = PrefetchedFiles::default();
        let noted = |directory: &Arc<CachedInode>| {
            directory.lock().prefetch_plan().map_or(0, |plan| plan.listed())
        };
        let list = |ino: u64, names: u64| {
            let directory = Arc::new(CachedInode::new(Ino(ino)));
            for page in 0..2 {
                let files = (0..names / 2).map(Ino);
                let mut state = directory.lock();
                let plan = state.rare.make().prefetch_plan.get_or_insert_default();
                plan.list(page == 0, files);
                let count = plan.count();
                drop(state);
                prefetched.note_names(&directory, count);
            }
            directory
        };
        let first = list(1, 10_000);
        let others: Vec<_> = (2..200).map(|ino| list(ino, 10_000)).collect();
        assert_eq!(noted(&first), 0, "the oldest");
        let sum = || others.iter().map(noted).sum::<usize>();
        assert!((NOTED_NAMES_MAX - 10_000..=NOTED_NAMES_MAX).contains(&sum()), "{}", sum());
        prefetched.set_steps(1, false);
        assert_eq!(sum() + noted(&list(1000, 10)), 0);
        prefetched.set_steps(0, false);
        assert_eq!(noted(&list(1001, 10)), 10);
        let many: Vec<_> = (0..2 * NOTED_DIRECTORIES_MAX as u64).map(|ino| list(ino, 2)).collect();
        assert_eq!(many.iter().filter(|one| noted(one) > 0).count(), NOTED_DIRECTORIES_MAX);
    }
}

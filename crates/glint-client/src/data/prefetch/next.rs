//! Files that are asked for together: the next ones of a directory, and of the directories that
//! follow it.
//!
//! Invariant: locks of inodes are taken one at a time, and none while that of the sequence of
//! directories is held.

use crate::cache::inode::{CachedInode, InodeState};
use crate::client::Client;
use crate::data::prefetch::plan::{ReadOrder, WINDOW_GUESSED, marker};
use crate::data::prefetch::scattered::FilesOnTheirWay;
use crate::data::prefetch::{NAMES_MAX, is_unread, small_size};
use glint_net::{Transport, host};
use glint_proto::Ino;
use std::sync::{Arc, Weak};

/// Once they are so many bytes, no more files are asked for together: there is memory for several
/// programs that read at once.
const BYTES_MAX: u64 = 4 << 20;
/// Names that are looked at together; of those that are not to be asked for, others take the place.
const NAMES: usize = 16;
/// Names that are looked at for each file that is wanted.
const TRIES: usize = 3;
/// Directories that are gone through: most of them were read, or asked for, before.
const DIRECTORIES_MAX: usize = 256;

/// Files that are about to be asked for.
struct FilesAhead {
    files: Vec<Arc<CachedInode>>,
    /// Directories with the first of these files that it has.
    directories: Vec<(usize, Arc<CachedInode>)>,
    bytes: u64,
    /// Most files, their bytes, and names that may still be looked at.
    max: usize,
    bytes_max: u64,
    names_left: usize,
    /// A directory has files of which nothing is known yet.
    is_blocked: bool,
}

impl FilesAhead {
    fn of(max: usize) -> FilesAhead {
        FilesAhead {
            files: Vec::new(),
            directories: Vec::new(),
            bytes: 0,
            max,
            bytes_max: BYTES_MAX,
            names_left: TRIES * max,
            is_blocked: false,
        }
    }

    fn is_full(&self) -> bool {
        self.files.len() >= self.max || self.bytes >= self.bytes_max || self.names_left == 0
    }

    /// The file at this place, and its directory.
    fn at(&self, at: usize) -> Option<(&CachedInode, &CachedInode)> {
        let (_, directory) = self.directories.iter().rfind(|(begin, _)| *begin <= at)?;
        let file = self.files.get(at)?;
        Some((&**file, &**directory))
    }
}

impl<T: Transport> Client<T> {
    /// Asks for so many files that are next in a directory, and where that has fewer, in those that
    /// follow it.
    pub(super) fn prefetch_next(&self, directory: &Arc<CachedInode>, many: usize) {
        let plan = directory.lock().prefetch_plan().map(|plan| (plan.pace(), plan.is_ahead()));
        let Some(((window, order), is_ahead)) = plan else { return };
        let mut ahead = FilesAhead::of(many);
        self.take_files(directory, &mut ahead, is_ahead);
        self.follow(directory.ino, &mut ahead, order, window);
        self.ask_for_files(ahead, order, many, window);
    }

    /// A program lists a directory, perhaps to read its files: asks for the first ones.
    pub(super) fn prefetch_listed(&self, directory: &Arc<CachedInode>) {
        let order = self.data.prefetched.directories.lock().files_order();
        let mut ahead = FilesAhead::of(WINDOW_GUESSED);
        if self.begin_ahead(directory, order, WINDOW_GUESSED) {
            self.take_files(directory, &mut ahead, true);
            self.ask_for_files(ahead, order, WINDOW_GUESSED, WINDOW_GUESSED);
        }
    }

    /// Adds files of the directories that follow this one.
    fn follow(&self, first: Ino, ahead: &mut FilesAhead, order: ReadOrder, window: usize) {
        if ahead.is_full() {
            return;
        }
        let own = ahead.files.len();
        let others_max = self.data.prefetched.directories.lock().files_max();
        ahead.max = ahead.max.min(own.saturating_add(others_max));
        let mut last = first;
        for _ in 0..DIRECTORIES_MAX {
            if ahead.is_full() || ahead.is_blocked {
                break;
            }
            let Some(next) = self.data.prefetched.directories.lock().after(last) else { break };
            last = next;
            let Some(directory) = self.cache.find(next) else { continue };
            if self.begin_ahead(&directory, order, window) {
                self.take_files(&directory, ahead, true);
            }
        }
        if ahead.files.len() > own {
            self.data.prefetched.directories.lock().on_followed();
        }
    }

    /// Begins with a directory of which no file was read, or goes on with it. Returns whether it has
    /// files to ask for.
    fn begin_ahead(&self, directory: &Arc<CachedInode>, order: ReadOrder, window: usize) -> bool {
        let (begins, noted) = {
            let mut state = directory.lock();
            if state.rare.delegation.is_delegated() {
                return false;
            }
            let InodeState { rare, dentries, .. } = &mut *state;
            let plan = rare.made().and_then(|rare| rare.prefetch_plan.as_deref_mut());
            let Some(plan) = plan else { return false };
            let begins = plan.follow(order, window, dentries.iter().take(NAMES_MAX));
            (begins, if begins { plan.count() } else { None })
        };
        self.data.prefetched.note_names(directory, noted);
        begins
    }

    /// Adds the next files of a directory. Files of which nothing is known are left out. If nobody had
    /// read in the directory when it was begun (`is_ahead`), some of them are known once they are
    /// looked up: these stay next. One alone may be gone.
    fn take_files(&self, directory: &Arc<CachedInode>, ahead: &mut FilesAhead, is_ahead: bool) {
        let begin = ahead.files.len();
        while !ahead.is_full() {
            let wanted = NAMES.min(ahead.max - ahead.files.len());
            let inos = match directory.lock().prefetch_plan() {
                Some(plan) => plan.pop(wanted),
                None => break,
            };
            if inos.is_empty() {
                break;
            }
            ahead.names_left = ahead.names_left.saturating_sub(inos.len());
            let found: Vec<Option<Arc<CachedInode>>> =
                inos.iter().map(|ino| self.cache.find(*ino)).collect();
            let last_known = found.iter().rposition(|file| file.as_deref().is_some_and(is_known));
            let unknown = &inos[last_known.map_or(0, |at| at + 1)..];
            if is_ahead && unknown.len() > 1 {
                if let Some(plan) = directory.lock().prefetch_plan() {
                    plan.put_back(unknown);
                }
                ahead.is_blocked = true;
            }
            for file in found.into_iter().flatten() {
                if let Some(size) = self.size_to_prefetch(&file) {
                    ahead.bytes += size;
                    ahead.files.push(file);
                }
            }
            if ahead.is_blocked {
                break;
            }
        }
        if ahead.files.len() > begin {
            ahead.directories.push((begin, directory.clone()));
        }
    }

    /// Files are read in no order: asks for others of their directories.
    pub(super) fn prefetch_scattered(&self) {
        let prefetched = &self.data.prefetched;
        let stale = prefetched.scattered.lock().take_stale();
        for file in stale.into_iter().filter_map(|ino| self.cache.find(ino)) {
            prefetched.take(&Arc::downgrade(&file));
        }
        // What a sequence asks for together has room beside them.
        let room = (prefetched.memory.left() as u64).saturating_sub(BYTES_MAX);
        let Some(wanted) = prefetched.scattered.lock().next(room) else { return };
        let on_their_way = FilesOnTheirWay::new(&prefetched.scattered);
        let mut ahead = FilesAhead::of(wanted.files);
        ahead.bytes_max = wanted.bytes;
        for ino in wanted.directories {
            if ahead.is_full() {
                break;
            }
            let directory = self.cache.find(ino);
            let has_more =
                directory.is_some_and(|directory| self.take_scattered(&directory, &mut ahead));
            if !has_more {
                prefetched.scattered.lock().on_all_asked(ino);
            }
        }
        let sized = |file: &Arc<CachedInode>| (file.ino, small_size(&file.lock()).unwrap_or(0));
        let sizes: Vec<(Ino, u64)> = ahead.files.iter().map(sized).collect();
        prefetched.scattered.lock().on_asked(&sizes);
        let client = self.me.get().and_then(Weak::upgrade);
        let Some(client) = client.filter(|_| !sizes.is_empty()) else { return };
        host::spawn(async move {
            client.prefetch(ahead.files).await;
            drop(on_their_way);
        });
    }

    /// Adds files of a directory in any order. Returns whether it has more.
    fn take_scattered(&self, directory: &Arc<CachedInode>, ahead: &mut FilesAhead) -> bool {
        let noted = {
            let mut state = directory.lock();
            if state.rare.delegation.is_delegated() {
                return false;
            }
            let InodeState { rare, dentries, .. } = &mut *state;
            let plan = rare.make().prefetch_plan.get_or_insert_default();
            plan.scatter(dentries.iter().take(NAMES_MAX).map(|(_, ino)| ino));
            plan.count()
        };
        self.data.prefetched.note_names(directory, noted);
        self.take_files(directory, ahead, false);
        directory.lock().prefetch_plan().is_some_and(|plan| plan.has_more())
    }

    /// Asks for these files, of `wanted` in this order.
    fn ask_for_files(&self, ahead: FilesAhead, order: ReadOrder, wanted: usize, window: usize) {
        let has_all = ahead.files.len() >= wanted || ahead.bytes >= BYTES_MAX;
        let is_at_end = !has_all && !ahead.is_blocked;
        self.data.prefetched.directories.lock().on_asked(order, is_at_end);
        let Some((file, directory)) = ahead.at(marker(window, ahead.files.len())) else { return };
        let Some(client) = self.me.get().and_then(Weak::upgrade) else { return };
        if let Some(plan) = directory.lock().prefetch_plan() {
            plan.mark(file.ino);
        }
        host::spawn(client.prefetch(ahead.files));
    }

    /// The size of a file that may be asked for: it is small, nobody writes it, and nothing of it is
    /// here.
    fn size_to_prefetch(&self, file: &CachedInode) -> Option<u64> {
        // Whoever has it uses it.
        let state = file.try_lock()?;
        let size = small_size(&state)?;
        let may = is_unread(&state)
            && state.rare.data_locks.is_empty()
            && state.rare.delegation.parent().is_none()
            && (!self.parameters.needs_capabilities || state.may_read());
        may.then_some(size)
    }
}

/// Whether the attributes of a file are known, or it is in use.
fn is_known(file: &CachedInode) -> bool {
    file.try_lock().is_none_or(|state| state.attributes().is_some())
}

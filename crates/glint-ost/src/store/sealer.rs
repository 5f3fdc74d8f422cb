//! Settling and sealing of changed objects: within the commit interval they are on stable storage,
//! and once they are left alone they get their checksums.

use crate::disk::{Disk, DiskFile};
use crate::store::object::ObjectFile;
use crate::store::object_store::ObjectStore;
use glint_proto::{ObjectId, clock};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Most objects that are sealed between two flushes; each is held open.
const BATCH_MAX: usize = 256;
/// Bytes that a shutdown reads at most to seal the remaining objects.
const LAST_BYTES_MAX: u64 = 4 << 30;

struct Changed {
    since: Instant,
    object: ObjectId,
    /// Number of its changes when it was last looked at.
    changes: u64,
}

/// An object that nobody changes any more, with the number of its changes.
struct Quiet<F: DiskFile> {
    object: ObjectId,
    file: Arc<ObjectFile<F>>,
    changes: u64,
}

/// Objects that changed since they were sealed, in order of time.
#[derive(Default)]
pub(crate) struct Sealer {
    dirty: AtomicBool,
    queue: Mutex<VecDeque<Changed>>,
}

impl Sealer {
    /// Something changed that has to reach stable storage.
    pub(crate) fn touch(&self) {
        if !self.dirty.load(Ordering::Relaxed) {
            self.dirty.store(true, Ordering::Release);
        }
    }

    /// An object changes, for the first time since it was sealed or opened if `first`.
    pub(crate) fn note(&self, object: ObjectId, first: bool) {
        self.touch();
        if first {
            let since = clock::now();
            self.queue.lock().push_back(Changed { since, object, changes: 1 });
        }
    }

    /// The next object that has been waiting for `idle`.
    fn next(&self, idle: Duration) -> Option<Changed> {
        let mut queue = self.queue.lock();
        match queue.front() {
            Some(changed) if clock::since(changed.since) >= idle => queue.pop_front(),
            _ => None,
        }
    }
}

impl<D: Disk> ObjectStore<D> {
    /// Brings all changes to stable storage and seals objects that nobody changed for
    /// `idle`. To be called every commit interval, by one thread.
    pub fn settle(&self, idle: Duration) -> io::Result<()> {
        let batch = BATCH_MAX.min(self.open_files().div_ceil(2));
        loop {
            let mut quiet: Vec<Quiet<D::File>> = Vec::new();
            let mut again = Vec::new();
            while quiet.len() < batch
                && let Some(mut changed) = self.sealer.next(idle)
            {
                let Some(file) = self.file(changed.object, None)? else { continue };
                let changes = file.settled();
                if changes == changed.changes || idle.is_zero() {
                    file.keep_mtime()?;
                    quiet.push(Quiet { object: changed.object, file, changes });
                } else {
                    changed.changes = changes;
                    changed.since = clock::now();
                    again.push(changed);
                }
            }
            self.sealer.queue.lock().extend(again);
            if self.sealer.dirty.swap(false, Ordering::AcqRel) {
                // Before the flush, which so has all of it.
                let passed = self.passing().take_later();
                if let Err(error) = self.sync_all() {
                    self.sealer.dirty.store(true, Ordering::Release);
                    return Err(error);
                }
                self.drop_passed(passed);
            }
            if quiet.is_empty() {
                return Ok(());
            }
            for Quiet { object, file, changes } in quiet {
                match file.seal(changes) {
                    Ok(true) => {}
                    Ok(false) => {
                        // It changed meanwhile, which was not its first change since the last seal
                        // and so not noted; or it is sealed, and this ends here.
                        let now = file.settled();
                        if now != changes {
                            let again = Changed { since: clock::now(), object, changes: now };
                            self.sealer.queue.lock().push_back(again);
                        }
                    }
                    Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                    Err(error) => tracing::warn!(
                        %error, path = %self.path().display(),
                        "could not seal an object; it has no checksum yet"
                    ),
                }
            }
        }
    }

    /// Seals what is left before the end, unless there is too much of it: objects
    /// without checksums are read unchecked.
    pub fn settle_last(&self) -> io::Result<()> {
        let queue = self.sealer.queue.lock();
        let sizes = queue.iter().map(|c| self.stat(c.object).ok().flatten().map_or(0, |o| o.size));
        let total: u64 = sizes.sum();
        drop(queue);
        if total > LAST_BYTES_MAX { self.sync_all() } else { self.settle(Duration::ZERO) }
    }
}

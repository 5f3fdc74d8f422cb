//! Settling and sealing of changed objects: within the commit interval they are on stable storage,
//! and once they are left alone they get their checksums.
//!
//! Invariant: an object that has its checksums on the disk has no change there that came after them,
//! whatever a loss of power leaves of the rest ([`ObjectFile::change`]). So those without are all that
//! can have changed since.

use crate::disk::{Disk, DiskFile, DiskResult};
use crate::store::checksum::Sums;
use crate::store::object::{ATTRIBUTE, ATTRIBUTE_BYTES_MAX, ObjectFile};
use crate::store::object_store::{DIRECTORIES, ObjectStore, directory_name, parse_name, path_of};
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

    /// The next object that has been waiting for `idle`, and since before `noted`.
    fn next(&self, idle: Duration, noted: Option<Instant>) -> Option<Changed> {
        let is_due = |changed: &Changed| {
            clock::since(changed.since) >= idle && noted.is_none_or(|noted| changed.since < noted)
        };
        let mut queue = self.queue.lock();
        queue.front().is_some_and(is_due).then(|| queue.pop_front())?
    }
}

impl<D: Disk> ObjectStore<D> {
    /// Brings all changes to stable storage and seals objects that nobody changed for `idle`, nor
    /// since the time `noted`; without that, as before an end of the process, also what was changed
    /// just now. To be called every commit interval, by one thread.
    pub fn settle(&self, idle: Duration, noted: Option<Instant>) -> io::Result<()> {
        let batch = BATCH_MAX.min(self.open_files().div_ceil(2));
        loop {
            let mut quiet: Vec<Quiet<D::File>> = Vec::new();
            let mut again = Vec::new();
            while quiet.len() < batch
                && let Some(mut changed) = self.sealer.next(idle, noted)
            {
                let Some(file) = self.file(changed.object, None)? else { continue };
                let changes = file.settled();
                if changes == changed.changes || noted.is_none() {
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
        if total > LAST_BYTES_MAX { self.sync_all() } else { self.settle(Duration::ZERO, None) }
    }
    /// See [`unsealed_copies`].
    fn unsealed_copies(&self) -> io::Result<Vec<ObjectId>> {
        let mut found = Vec::new();
        for shard in 0..DIRECTORIES {
            let names = self.disk.names(&directory_name(shard))?;
            let objects = names.iter().filter_map(|name| name.to_str().and_then(parse_name));
            found.extend(objects.filter(|object| object.is_of_chain() && !self.is_sealed(*object)));
        }
        Ok(found)
    }

    /// Whether an object is known to be as its checksums are, or gone.
    fn is_sealed(&self, object: ObjectId) -> bool {
        let look = || -> DiskResult<bool> {
            let file = self.disk.open_to_read(&path_of(object))?;
            let mut value = [0u8; ATTRIBUTE_BYTES_MAX];
            let len = file.attribute(ATTRIBUTE, &mut value)?;
            let size = Sums::decode(&value[..len]).map(|sums| sums.size());
            Ok(size == Some(file.stat()?.size))
        };
        match look() {
            Ok(is_sealed) => is_sealed,
            Err(errno) => errno == rustix::io::Errno::NOENT,
        }
    }
}

/// Objects with copies, of each store, that have no checksums on the disk or none that this version
/// reads: all that were changed since they were sealed, also if nobody remembers that. Where disks make
/// one wait, nobody waits for that of another store.
pub fn unsealed_copies<D: Disk>(stores: &[ObjectStore<D>]) -> io::Result<Vec<Vec<ObjectId>>> {
    if !D::WAITS {
        return stores.iter().map(ObjectStore::unsealed_copies).collect();
    }
    std::thread::scope(|scope| {
        let look = |store| scope.spawn(move || ObjectStore::unsealed_copies(store));
        let looks: Vec<_> = stores.iter().map(look).collect();
        let ended = |_| io::Error::other("the thread that looks for objects has ended");
        looks.into_iter().map(|look| look.join().map_err(ended)?).collect()
    })
}

//! Settling and sealing of changed objects: within the commit interval they are on stable storage,
//! and once they are left alone they get their checksums.
//!
//! Invariant: an object that has its checksums on the disk has no change there that came after them,
//! whatever a loss of power leaves of the rest ([`ObjectFile::change`]). So those without are all that
//! can have changed since, and after a loss of power they are looked for ([`crate::search`]).

use crate::disk::{Disk, DiskFile, DiskResult};
use crate::store::checksum::Sums;
use crate::store::object::unreadable::UNREADABLE;
use crate::store::object::{ATTRIBUTE, ATTRIBUTE_BYTES_MAX, ObjectFile, is_unchanged};
use crate::store::object_store::{ObjectStore, path_of};
use glint_proto::{ObjectId, clock};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Most objects that are sealed between two flushes; each is held open.
const BATCH_MAX: usize = 256;
/// How long objects are sealed without an end, where there are many.
const TURN: Duration = Duration::from_millis(500);
/// Entries beside two for each object that are kept before those are dropped that count no more.
const ENTRIES_LEFT_MAX: usize = 1024;
/// Bytes that a shutdown reads at most to seal the remaining objects.
const LAST_BYTES_MAX: u64 = 4 << 30;

struct Changed {
    /// Number of the entry.
    number: u64,
    since: Instant,
    object: ObjectId,
    /// Number of its changes when it was last looked at.
    changes: u64,
}

/// An object that nobody changes any more, with the number of its changes.
struct Quiet<F: DiskFile> {
    entry: Changed,
    file: Arc<ObjectFile<F>>,
    changes: u64,
}

/// Objects that changed since they were sealed.
#[derive(Default)]
pub(crate) struct Sealer {
    dirty: AtomicBool,
    /// No object is sealed, and all that are queued wait.
    is_held: AtomicBool,
    queue: Mutex<SealQueue>,
}

/// They in order of time.
#[derive(Default)]
struct SealQueue {
    entries: VecDeque<Changed>,
    /// Number of the last entry of each object. One that was closed and opened again has more: those
    /// before the last one know nothing of its last changes.
    last: HashMap<ObjectId, u64>,
    numbers: u64,
}

impl SealQueue {
    fn push(&mut self, object: ObjectId, changes: u64) {
        self.numbers += 1;
        let (number, since) = (self.numbers, clock::now());
        self.last.insert(object, number);
        self.entries.push_back(Changed { number, since, object, changes });
        // While nothing is sealed nobody takes them.
        if self.entries.len() > 2 * self.last.len() + ENTRIES_LEFT_MAX {
            let last = &self.last;
            self.entries.retain(|entry| last.get(&entry.object) == Some(&entry.number));
        }
    }

    fn is_last(&self, entry: &Changed) -> bool {
        self.last.get(&entry.object) == Some(&entry.number)
    }

    /// The next object that has been waiting for `idle`, and since before `noted`.
    fn next(&mut self, idle: Duration, noted: Option<Instant>) -> Option<Changed> {
        loop {
            let front = self.entries.front()?;
            let is_due =
                clock::since(front.since) >= idle && noted.is_none_or(|noted| front.since < noted);
            if !is_due {
                return None;
            }
            let entry = self.entries.pop_front()?;
            if self.is_last(&entry) {
                return Some(entry);
            }
        }
    }

    /// An object that was taken is to wait once more, if no change has queued it meanwhile.
    fn again(&mut self, entry: &Changed, changes: u64) {
        if self.is_last(entry) {
            self.push(entry.object, changes);
        }
    }

    /// An object that was taken is done.
    fn done(&mut self, entry: &Changed) {
        if self.is_last(entry) {
            self.last.remove(&entry.object);
        }
    }
}

impl Sealer {
    /// Something changed that has to reach stable storage.
    pub(crate) fn touch(&self) {
        if !self.dirty.load(Ordering::Relaxed) {
            self.dirty.store(true, Ordering::Release);
        }
    }

    /// Has no object sealed, or has them sealed again.
    pub(crate) fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::Release);
    }

    /// Whether no object is sealed.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }

    /// An object changes; with the number of the change if it is the first one since the object was
    /// sealed or opened.
    pub(crate) fn note(&self, object: ObjectId, first: Option<u64>) {
        self.touch();
        if let Some(changes) = first {
            self.queue.lock().push(object, changes);
        }
    }
}

impl<D: Disk> ObjectStore<D> {
    /// Brings all changes to stable storage and seals objects that nobody changed for `idle`, nor
    /// since the time `noted`; without that, as before an end of the process, also what was changed
    /// just now. To be called every commit interval, by one thread. An object that fails is tried again
    /// after `idle`, and holds up no other; its error is returned.
    pub fn settle(&self, idle: Duration, noted: Option<Instant>) -> io::Result<()> {
        let mut failed = Vec::new();
        let mut settled = self.settle_others(idle, noted, &mut failed);
        if let Some((entry, error)) = failed.first() {
            let (object, objects) = (entry.object, failed.len());
            tracing::warn!(
                %error, %object, objects, path = %self.path().display(),
                "could not seal objects; they are tried again"
            );
        }
        // Not before: they would be taken again at once.
        let mut queue = self.sealer.queue.lock();
        for (entry, error) in failed {
            queue.again(&entry, entry.changes);
            settled = settled.and(Err(error));
        }
        settled
    }

    /// [`ObjectStore::settle`] but for objects that fail, which are taken from the queue into `failed`.
    fn settle_others(
        &self,
        idle: Duration,
        noted: Option<Instant>,
        failed: &mut Vec<(Changed, io::Error)>,
    ) -> io::Result<()> {
        let batch = BATCH_MAX.min(self.open_files().div_ceil(2));
        let begun = clock::now();
        loop {
            let mut quiet: Vec<Quiet<D::File>> = Vec::new();
            while !self.sealer.is_held() && quiet.len() < batch && failed.len() < BATCH_MAX {
                let next = self.sealer.queue.lock().next(idle, noted);
                let Some(entry) = next else { break };
                let file = match self.file(entry.object, None) {
                    Ok(Some(file)) => file,
                    Ok(None) => {
                        self.sealer.queue.lock().done(&entry);
                        continue;
                    }
                    Err(error) => {
                        failed.push((entry, error));
                        continue;
                    }
                };
                let changes = file.settled();
                // One that was opened again since then, and not changed: any change would have queued
                // it anew.
                let is_opened = is_unchanged(changes) && is_unchanged(entry.changes);
                if changes == entry.changes || is_opened || noted.is_none() {
                    match file.keep_mtime() {
                        Ok(()) => quiet.push(Quiet { entry, file, changes }),
                        Err(error) => failed.push((entry, error)),
                    }
                } else {
                    self.sealer.queue.lock().again(&entry, changes);
                }
            }
            if let Err(error) = self.flush_changed() {
                let mut queue = self.sealer.queue.lock();
                quiet.iter().for_each(|one| queue.again(&one.entry, one.changes));
                return Err(error);
            }
            if quiet.is_empty() {
                return Ok(());
            }
            for Quiet { entry, file, changes } in quiet {
                let sealed = file.seal(changes);
                // It changed meanwhile, which was not its first change since the last seal and so not
                // noted; or it is sealed, and this ends here.
                match file.settled() {
                    now if now != changes && matches!(sealed, Ok(false)) => {
                        self.sealer.queue.lock().again(&entry, now);
                    }
                    _ => self.sealer.queue.lock().done(&entry),
                }
                match sealed {
                    Ok(_) => {}
                    Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                    Err(error) => tracing::warn!(
                        %error, path = %self.path().display(),
                        "could not seal an object; it has no checksum yet"
                    ),
                }
            }
            // What was synced is to be said: the rest has the next interval.
            if noted.is_some() && clock::since(begun) > TURN {
                return Ok(());
            }
        }
    }

    /// Brings all changes to stable storage, if there are any.
    pub(crate) fn flush_changed(&self) -> io::Result<()> {
        if !self.sealer.dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        // Before the flush, which so has all of it.
        let passed = self.passing().take_later();
        if let Err(error) = self.sync_all() {
            self.sealer.dirty.store(true, Ordering::Release);
            return Err(error);
        }
        self.drop_passed(passed);
        Ok(())
    }

    /// Seals what is left before the end, but no more than is read soon: objects without checksums
    /// are read unchecked.
    pub fn settle_last(&self) -> io::Result<()> {
        let mut left = LAST_BYTES_MAX;
        let mut fits = |changed: &Changed| {
            let size = self.stat(changed.object).ok().flatten().map_or(0, |stat| stat.size);
            let fits = size <= left;
            left = left.saturating_sub(size);
            fits
        };
        self.sealer.queue.lock().entries.retain(&mut fits);
        self.settle(Duration::ZERO, None)
    }

    /// Whether an object is known to be as its checksums are, or gone.
    pub fn is_sealed(&self, object: ObjectId) -> bool {
        self.seal_is_on(object).unwrap_or(false)
    }

    /// Whether an object has checksums on the disk that say its size, or is gone. The error is why that
    /// is not known.
    pub(crate) fn seal_is_on(&self, object: ObjectId) -> DiskResult<bool> {
        let file = match self.disk.open_to_read(&path_of(object)) {
            Err(Errno::NOENT) => return Ok(true),
            opened => opened?,
        };
        let mut value = [0u8; ATTRIBUTE_BYTES_MAX];
        let len = match file.attribute(ATTRIBUTE, &mut value) {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(false),
            len => len?,
        };
        // What was changed of it nobody reads.
        if value[..len] == UNREADABLE {
            return Ok(true);
        }
        let size = Sums::decode(&value[..len]).map(|sums| sums.size());
        Ok(size == Some(file.stat()?.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::Ino;

    #[test]
    fn objects_that_change_again_and_again_while_nothing_is_sealed_do_not_pile_up() {
        let mut queue = SealQueue::default();
        for changes in 0..100_000 {
            queue.push(ObjectId { ino: Ino(changes % 10), stripe: 0 }, changes);
        }
        assert!(queue.entries.len() <= 20 + ENTRIES_LEFT_MAX, "{}", queue.entries.len());
        let taken = std::iter::from_fn(|| queue.next(Duration::ZERO, None));
        let taken: Vec<u64> = taken.map(|entry| entry.changes).collect();
        assert_eq!(taken, (99_990..100_000).collect::<Vec<u64>>(), "the last ones, in their order");
    }
}

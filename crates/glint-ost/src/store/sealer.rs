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
/// Pause before an object is tried again whose checksums could not be put on: each try may read all
/// of it. It is doubled each time.
const PAUSE_FIRST: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(320);
/// After this time a block of an open object that was found right is compared with its checksum
/// again when it is read: its pages may have left memory since. Not much more often, because reads
/// of a part of a block read all of it then.
pub(crate) const STALE_AFTER: Duration = Duration::from_secs(3600);

struct Changed {
    /// Number of the entry.
    number: u64,
    since: Instant,
    object: ObjectId,
    /// Number of its changes when it was last looked at.
    changes: u64,
    pause: Option<Pause>,
}

/// Time in which an object is not tried again.
#[derive(Clone, Copy)]
struct Pause {
    until: Instant,
    length: Duration,
}

impl Pause {
    /// A pause after this one, from now on.
    fn after(before: Option<Pause>) -> Pause {
        let length = before.map_or(PAUSE_FIRST, |before| PAUSE_MAX.min(before.length * 2));
        Pause { until: clock::now() + length, length }
    }
}

/// Objects that were taken from the queue and are put back in the end: no sooner, because they
/// would be taken again at once.
#[derive(Default)]
struct PutBack {
    /// Those of which not all may be on stable storage.
    failed: Vec<(Changed, io::Error)>,
    /// Those that lack nothing but their checksums.
    unsealed: Vec<(Changed, io::Error)>,
    pausing: Vec<Changed>,
}

impl PutBack {
    /// Number of objects with which something failed.
    fn failures(&self) -> usize {
        self.failed.len() + self.unsealed.len()
    }
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
    /// When blocks that were found right became stale last.
    stale_at: Mutex<Option<Instant>>,
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
    fn push(&mut self, object: ObjectId, changes: u64, pause: Option<Pause>) {
        self.numbers += 1;
        let (number, since) = (self.numbers, clock::now());
        self.last.insert(object, number);
        self.entries.push_back(Changed { number, since, object, changes, pause });
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
        self.again_after(entry, changes, None);
    }

    /// The same, after a pause.
    fn again_after(&mut self, entry: &Changed, changes: u64, pause: Option<Pause>) {
        if self.is_last(entry) {
            self.push(entry.object, changes, pause);
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
            self.queue.lock().push(object, changes, None);
        }
    }
}

impl<D: Disk> ObjectStore<D> {
    /// Brings all changes to stable storage and seals objects that nobody changed for `idle`, nor
    /// since the time `noted`; without that, as before an end of the process, also what was changed
    /// just now. To be called every commit interval, by one thread. An object that fails is tried again
    /// after `idle`, and holds up no other; its error is returned. One that is on stable storage
    /// and does not get its checksums is no error, and is tried again after a longer time.
    pub fn settle(&self, idle: Duration, noted: Option<Instant>) -> io::Result<()> {
        self.grow_stale();
        self.files.close_removed();
        let mut back = PutBack::default();
        let mut settled = self.settle_others(idle, noted, &mut back);
        if let Some((entry, error)) = back.failed.iter().chain(&back.unsealed).next() {
            let (object, objects) = (entry.object, back.failures());
            tracing::warn!(
                %error, %object, objects, path = %self.path().display(),
                "could not seal objects; they are tried again"
            );
        }
        let mut queue = self.sealer.queue.lock();
        for (entry, error) in back.failed {
            queue.again(&entry, entry.changes);
            settled = settled.and(Err(error));
        }
        for (entry, _) in back.unsealed {
            queue.again_after(&entry, entry.changes, Some(Pause::after(entry.pause)));
        }
        for entry in back.pausing {
            queue.again_after(&entry, entry.changes, entry.pause);
        }
        settled
    }

    /// Has what was found right long ago compared again when it is read.
    fn grow_stale(&self) {
        let now = clock::now();
        let is_due = {
            let mut stale_at = self.sealer.stale_at.lock();
            let before = *stale_at.get_or_insert(now);
            let is_due = now.saturating_duration_since(before) >= STALE_AFTER;
            if is_due {
                *stale_at = Some(now);
            }
            is_due
        };
        if is_due {
            self.files.each_open(ObjectFile::grow_stale);
        }
    }

    /// [`ObjectStore::settle`] but for objects that are taken from the queue to be put `back`.
    fn settle_others(
        &self,
        idle: Duration,
        noted: Option<Instant>,
        back: &mut PutBack,
    ) -> io::Result<()> {
        let batch = BATCH_MAX.min(self.open_files().div_ceil(2));
        let begun = clock::now();
        loop {
            let mut quiet: Vec<Quiet<D::File>> = Vec::new();
            while !self.sealer.is_held() && quiet.len() < batch && back.failures() < BATCH_MAX {
                let next = self.sealer.queue.lock().next(idle, noted);
                let Some(entry) = next else { break };
                // Before the end each has one more try.
                let pauses = |pause: Pause| noted.is_some() && clock::now() < pause.until;
                if entry.pause.is_some_and(pauses) {
                    back.pausing.push(entry);
                    continue;
                }
                let file = match self.file(entry.object, None) {
                    Ok(Some(file)) => file,
                    Ok(None) => {
                        self.sealer.queue.lock().done(&entry);
                        continue;
                    }
                    Err(error) => {
                        back.failed.push((entry, error));
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
                        Err(error) => back.failed.push((entry, error)),
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
                match (sealed, file.settled()) {
                    (Err(error), _) if error.raw_os_error() != Some(libc::EOPNOTSUPP) => {
                        back.unsealed.push((Changed { changes, ..entry }, error));
                    }
                    // It changed meanwhile, which was not its first change since the last seal and
                    // so not noted.
                    (Ok(false), now) if now != changes => {
                        self.sealer.queue.lock().again(&entry, now);
                    }
                    // It is sealed, or never is.
                    _ => self.sealer.queue.lock().done(&entry),
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
            let file = self.file(changed.object, None).ok().flatten();
            let bytes = file.and_then(|file| file.bytes_to_seal().ok()).unwrap_or(0);
            let fits = bytes <= left;
            left -= if fits { bytes } else { 0 };
            fits
        };
        let mut queue = self.sealer.queue.lock();
        let SealQueue { entries, last, .. } = &mut *queue;
        let is_last = |entry: &Changed| last.get(&entry.object) == Some(&entry.number);
        entries.retain(|entry| is_last(entry) && fits(entry));
        drop(queue);
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
    use crate::disk::memory::{DiskOperation, Fault, MemoryDisk};
    use crate::store::object::ReadMode;
    use glint_proto::Ino;
    use std::path::Path;

    fn object(ino: u64) -> ObjectId {
        ObjectId { ino: Ino(ino), stripe: 0 }
    }

    fn store_on(disk: &MemoryDisk) -> ObjectStore<MemoryDisk> {
        ObjectStore::on(disk.clone(), Path::new("ost"), 4, Arc::default())
    }

    #[test]
    fn an_object_that_does_not_get_its_checksums_is_tried_again() {
        let disk = MemoryDisk::default();
        let store = store_on(&disk);
        for (ino, operation) in [(1, DiskOperation::Read), (3, DiskOperation::SetAttribute)] {
            for ino in [ino, ino + 1] {
                store.write(object(ino), 0, b"data", None, false).unwrap();
            }
            disk.fail(Fault::new(operation, &path_of(object(ino)), libc::ENOSPC, 1));
            // All is on stable storage.
            store.settle(Duration::ZERO, None).unwrap();
            assert!(!store.is_sealed(object(ino)) && store.is_sealed(object(ino + 1)));
            store.settle(Duration::ZERO, None).unwrap();
            assert!(store.is_sealed(object(ino)));
        }
    }

    #[test]
    fn checksums_that_cannot_be_put_on_hold_all_the_same_and_wait_for_a_while() {
        let disk = MemoryDisk::default();
        let store = store_on(&disk);
        let path = path_of(object(1));
        store.write(object(1), 0, b"data", None, false).unwrap();
        disk.fail(Fault::new(DiskOperation::SetAttribute, &path, libc::ENOSPC, 1));
        let settle = || {
            let noted = clock::now() + Duration::from_secs(1);
            store.settle(Duration::ZERO, Some(noted)).unwrap();
            store.is_sealed(object(1))
        };
        assert!(!settle() && !settle());
        disk.open(&path).unwrap().write(b"rot!", 0).unwrap();
        let file = store.file(object(1), None).unwrap().unwrap();
        assert!(file.checked_read(0, &mut [0; 4], ReadMode::Waiting).is_err());
        assert_eq!(file.bytes_to_seal(), Ok(0));
        store.settle(Duration::ZERO, None).unwrap();
        assert!(store.is_sealed(object(1)) && store.check(object(1)).is_err());
    }

    #[test]
    fn before_the_end_large_objects_are_sealed_of_which_little_has_changed() {
        const BLOCK: u64 = 1 << 24;
        let size = LAST_BYTES_MAX + (1 << 30);
        let disk = MemoryDisk::default();
        let file = disk.create(&path_of(object(1))).unwrap();
        file.set_size(size).unwrap();
        let mut sums = vec![1, 24];
        sums.extend_from_slice(&size.to_le_bytes());
        let zeros = crc32c::crc32c(&vec![0; BLOCK as usize]);
        (0..size / BLOCK).for_each(|_| sums.extend_from_slice(&zeros.to_le_bytes()));
        sums.extend_from_slice(&crc32c::crc32c(&sums).to_le_bytes());
        file.set_attribute(ATTRIBUTE, &sums).unwrap();

        let store = store_on(&disk);
        store.write(object(1), 10, b"data", None, false).unwrap();
        // One that is too large, and one behind it.
        store.truncate(object(2), size).unwrap();
        store.write(object(3), 0, b"data", None, false).unwrap();
        store.settle_last().unwrap();
        assert!(store.is_sealed(object(1)) && store.is_sealed(object(3)));
        assert!(!store.is_sealed(object(2)));
    }

    #[test]
    fn objects_that_change_again_and_again_while_nothing_is_sealed_do_not_pile_up() {
        let mut queue = SealQueue::default();
        for changes in 0..100_000 {
            queue.push(ObjectId { ino: Ino(changes % 10), stripe: 0 }, changes, None);
        }
        assert!(queue.entries.len() <= 20 + ENTRIES_LEFT_MAX, "{}", queue.entries.len());
        let taken = std::iter::from_fn(|| queue.next(Duration::ZERO, None));
        let taken: Vec<u64> = taken.map(|entry| entry.changes).collect();
        assert_eq!(taken, (99_990..100_000).collect::<Vec<u64>>(), "the last ones, in their order");
    }
}

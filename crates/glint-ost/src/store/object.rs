//! An open object: its file, its times, and whether its checksums hold.
//!
//! Invariants:
//! - The attribute with the checksums is on an object only while nobody changes it.
//!   [`ObjectFile::change`] takes it off first; if the change overwrites what the
//!   sums cover, however long after it, it is off on stable storage before the first byte
//!   changes, so that no crash leaves new data under old sums.
//! - Sums are put on only after the data they describe is on stable storage and
//!   if nothing changed while they were computed.
//! - While they are off they are kept in memory, by [`Files`](super::files::Files) where the file
//!   is closed, with which blocks were touched ([`Sums::touch`]). Others are still compared with
//!   them when they are read, and get them again as they were. So no change makes damage beside its
//!   blocks look right.

mod handed;
mod noted;
pub(crate) mod planned;
mod sealed_size;
mod sealing;
pub(crate) mod unreadable;

use crate::disk::{DiskFile, DiskResult, Stat};
use crate::store::checksum::Sums;
use crate::store::passing::{Passing, Range};
use crate::store::written::Written;
use glint_proto::{ObjectId, Timestamp};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use unreadable::{UNREADABLE, unreadable};

pub(crate) const ATTRIBUTE: &str = "user.glint.sums";
pub(crate) const ATTRIBUTE_BYTES_MAX: usize = 4096;

/// Whether the checksums of an object hold.
enum Seal {
    /// Not looked at yet.
    Unknown,
    /// The object has no checksums, or is being changed; with those that it had.
    Open(Option<Arc<Sums>>),
    /// These checksums are off, though perhaps not on stable storage: what they cover must not
    /// change.
    Leaving(Arc<Sums>),
    Sealed(Arc<Sums>),
    /// Known not to be what was written, so that nobody reads it.
    Unreadable,
}

impl Seal {
    /// Checksums of what was not touched since they were taken.
    fn sums(&self) -> Option<&Arc<Sums>> {
        match self {
            Seal::Unknown | Seal::Open(None) | Seal::Unreadable => None,
            Seal::Open(Some(sums)) | Seal::Leaving(sums) | Seal::Sealed(sums) => Some(sums),
        }
    }

    /// Size of an object that is sealed.
    fn size(&self) -> Option<u64> {
        if let Seal::Sealed(sums) = self { Some(sums.size()) } else { None }
    }
}

/// Effect of a change on the bytes that the checksums cover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Touches {
    /// Bytes from this offset on.
    From(u64),
    /// The same, and the change notes in [`Written`] which.
    Noted(u64),
    /// All of them go, and their blocks are freed, which the file system orders after
    /// the end of the checksums by itself.
    Drops,
}

impl Touches {
    /// Whether any of the first `size` bytes get others.
    fn overwrites(self, size: u64) -> bool {
        matches!(self, Touches::From(offset) | Touches::Noted(offset) if offset < size)
    }
}

/// How an object is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadMode {
    /// As far as it is in memory: EAGAIN where nothing is.
    InMemory,
    /// From the disk, too.
    Waiting,
    /// From the disk, too, and adding nothing to what is in memory, whatever the object's size.
    AddingNone,
}

/// Size of an object that was not asked for yet.
const UNKNOWN: u64 = u64::MAX;

/// Objects that were ever opened, for the numbers of their changes.
static OPENED: AtomicU64 = AtomicU64::new(1);
/// Bits of such a number that count the changes of one open file.
const CHANGES_BITS: u32 = 32;

/// Whether a number of changes says that there was none since the object was opened.
pub(crate) fn is_unchanged(changes: u64) -> bool {
    changes & ((1 << CHANGES_BITS) - 1) == 0
}

/// An open object.
pub(crate) struct ObjectFile<F: DiskFile> {
    object: ObjectId,
    file: F,
    passing: Arc<Passing>,
    /// The size when it was last seen, or [`UNKNOWN`].
    size: AtomicU64,
    written: Written,
    seal: RwLock<Seal>,
    /// How often it was changed, from a number on that no other open file has had.
    changes: AtomicU64,
    /// Whether it was changed since it was opened or sealed: then it waits to be sealed.
    is_queued: AtomicBool,
    /// Times in nanoseconds of the last change through this open file; 0 if the file
    /// knows. The file's own clock is too coarse: it would put a write before a
    /// create that came first.
    mtime: AtomicI64,
    ctime: AtomicI64,
    /// The file does not know its modification time.
    mtime_changed: AtomicBool,
    /// Who may have the kernel change bytes of it unseen.
    stores: AtomicU32,
    /// Held while a block is compared before the object is handed to the kernel.
    comparing: Mutex<()>,
}

impl<F: DiskFile> ObjectFile<F> {
    /// An object that was there.
    pub(crate) fn new(object: ObjectId, file: F, passing: Arc<Passing>) -> ObjectFile<F> {
        ObjectFile {
            object,
            file,
            passing,
            size: AtomicU64::new(UNKNOWN),
            written: Written::default(),
            seal: RwLock::new(Seal::Unknown),
            changes: AtomicU64::new(OPENED.fetch_add(1, Ordering::Relaxed) << CHANGES_BITS),
            is_queued: AtomicBool::new(false),
            mtime: AtomicI64::new(0),
            ctime: AtomicI64::new(0),
            mtime_changed: AtomicBool::new(false),
            stores: AtomicU32::new(0),
            comparing: Mutex::new(()),
        }
    }

    /// An object that was just made, by a change from the time `mtime`.
    pub(crate) fn fresh(
        object: ObjectId,
        file: F,
        passing: Arc<Passing>,
        mtime: Timestamp,
    ) -> ObjectFile<F> {
        let mut file = ObjectFile::new(object, file, passing);
        *file.size.get_mut() = 0;
        *file.seal.get_mut() = Seal::Open(None);
        *file.mtime.get_mut() = nanos(mtime);
        *file.mtime_changed.get_mut() = true;
        file
    }

    /// The same object, which was closed while these checksums of it were off.
    pub(crate) fn keeping(mut self, sums: Option<Arc<Sums>>) -> ObjectFile<F> {
        if sums.is_some() && matches!(self.seal.get_mut(), Seal::Unknown) {
            *self.seal.get_mut() = Seal::Open(sums);
        }
        self
    }

    /// Checksums that are off, of what was not touched since.
    pub(crate) fn kept_sums(&self) -> Option<Arc<Sums>> {
        match &*self.seal.read() {
            Seal::Sealed(_) => None,
            seal => seal.sums().cloned(),
        }
    }

    pub(crate) fn file(&self) -> &F {
        &self.file
    }

    /// Checksums of what is written.
    pub(crate) fn written(&self) -> &Written {
        &self.written
    }

    /// Asks for the state of the file, and remembers the size.
    pub(crate) fn stat(&self) -> DiskResult<Stat> {
        let stat = self.file.stat()?;
        self.size.store(stat.size, Ordering::Relaxed);
        Ok(stat)
    }

    /// Remembers that the size changes to one that has to be asked for.
    pub(crate) fn forget_size(&self) {
        self.size.store(UNKNOWN, Ordering::Relaxed);
    }

    /// Size, as it was after the last change that ended.
    pub(crate) fn size(&self) -> DiskResult<u64> {
        match self.size.load(Ordering::Relaxed) {
            UNKNOWN => self.stat().map(|stat| stat.size),
            size => Ok(size),
        }
    }

    /// Returns true if the object passes through memory ([`Passing`]).
    fn passes(&self) -> DiskResult<bool> {
        Ok(self.passing.limit().is_some() && self.passing.passes(self.size()?))
    }

    /// Reads from the disk for a check or a copy: no page is added to those in memory.
    pub(crate) fn read_adding_none(&self, buffer: &mut [u8], offset: u64) -> DiskResult<usize> {
        if !self.passes()? {
            return self.passing.read_adding_none(&self.file, buffer, offset);
        }
        let n = self.file.read(buffer, offset)?;
        self.passing.drop_read(&self.file, (offset, offset + n as u64), n);
        Ok(n)
    }

    fn read_by(&self, reading: ReadMode, buffer: &mut [u8], offset: u64) -> DiskResult<usize> {
        match reading {
            // What passes is dropped behind the reader, and that waits for the disk where its queue
            // is full: not on a thread that waits for nothing.
            ReadMode::InMemory if self.passes()? => Err(Errno::AGAIN),
            ReadMode::InMemory => self.file.read_cached(buffer, offset),
            ReadMode::Waiting => self.file.read(buffer, offset),
            ReadMode::AddingNone => self.read_adding_none(buffer, offset),
        }
    }

    /// Reads, and checks what it got. What passes through memory is dropped after that.
    fn read_sealed(
        &self,
        seal: &Seal,
        reading: ReadMode,
        offset: u64,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        // Of a sealed one nothing lies behind its end.
        let len = buffer.len();
        let room = seal.size().map_or(u64::MAX, |size| size.saturating_sub(offset));
        let buffer = &mut buffer[..usize::try_from(room).map_or(len, |room| room.min(len))];
        let n = self.read_by(reading, buffer, offset)?;
        let mut range = (offset, offset.saturating_add(n as u64));
        let checked = match seal.sums() {
            Some(sums) if n == 0 && !buffer.is_empty() => {
                sums.check_end(offset).map_err(io::Error::from)
            }
            Some(sums) => {
                let read = |room: &mut [u8], at: u64| {
                    range = (range.0.min(at), range.1.max(at + room.len() as u64));
                    self.read_by(reading, room, at)
                };
                sums.check_read(read, offset, &buffer[..n])
            }
            None if matches!(seal, Seal::Unreadable) => Err(unreadable()),
            None => Ok(()),
        };
        if reading == ReadMode::Waiting && self.passes()? {
            self.passing.drop_read(&self.file, range, n);
        }
        checked.map(|()| n)
    }

    /// Changes all bytes of these `ranges` of the object, from the time `mtime` on; `sync` brings
    /// it to stable storage, if that has to be before. Returns what `work` returned and, if this is
    /// the first change since the object was sealed or opened, its number.
    pub(crate) fn change<T>(
        &self,
        touches: Touches,
        ranges: impl Iterator<Item = Range> + Clone,
        mtime: Timestamp,
        work: impl FnOnce(&F) -> io::Result<T>,
        sync: impl Fn(&F) -> io::Result<()>,
    ) -> io::Result<(io::Result<T>, Option<u64>)> {
        loop {
            let seal = self.seal.read();
            let is_off = match &*seal {
                Seal::Open(_) | Seal::Unreadable => true,
                Seal::Leaving(sums) => !touches.overwrites(sums.size()),
                Seal::Unknown | Seal::Sealed(_) => false,
            };
            if is_off {
                let number = self.changes.fetch_add(1, Ordering::AcqRel) + 1;
                // Before: nobody may see the time at which the file system does it.
                self.mtime.store(nanos(mtime), Ordering::Relaxed);
                // What was written behind was changed when its program wrote it, and that one was
                // told so.
                self.ctime.store(nanos(mtime), Ordering::Relaxed);
                if let Some(sums) = seal.sums() {
                    ranges.clone().for_each(|range| sums.touch(range));
                }
                let result = work(&self.file);
                if let (Some(sums), Ok(_)) = (seal.sums(), &result) {
                    ranges.for_each(|range| sums.overwrite(range));
                }
                if !matches!(touches, Touches::Noted(_)) {
                    self.written.forget_all();
                }
                // After: the file system has just set its own.
                self.mtime_changed.store(true, Ordering::Release);
                let dropped = touches == Touches::Drops && result.is_ok();
                if dropped && matches!(*seal, Seal::Leaving(_) | Seal::Unreadable) {
                    drop(seal);
                    self.end_unreadable(&mut self.seal.write());
                }
                let is_first = !self.is_queued.swap(true, Ordering::AcqRel);
                return Ok((result, is_first.then_some(number)));
            }
            drop(seal);
            self.unseal(touches, &sync)?;
        }
    }

    fn unseal(&self, touches: Touches, sync: impl Fn(&F) -> io::Result<()>) -> io::Result<()> {
        let mut seal = self.seal.write();
        if matches!(*seal, Seal::Unknown) {
            *seal = self.load()?;
        }
        let sums = match &*seal {
            Seal::Sealed(sums) => {
                let sums = sums.clone();
                self.restore_size(&sums)?;
                self.file.remove_attribute(ATTRIBUTE)?;
                *seal = Seal::Leaving(sums.clone());
                sums
            }
            Seal::Leaving(sums) => sums.clone(),
            Seal::Unknown | Seal::Open(_) | Seal::Unreadable => return Ok(()),
        };
        // Bytes written past the end become visible only with the new size, which the file system
        // commits after the removal of the attribute; so do those of a truncation.
        if touches.overwrites(sums.size()) {
            sync(&self.file)?;
            *seal = Seal::Open(Some(sums));
        }
        Ok(())
    }

    /// Whether its checksums were taken off, and that is perhaps not on stable storage.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(*self.seal.read(), Seal::Leaving(_))
    }

    fn load(&self) -> io::Result<Seal> {
        let mut value = [0u8; ATTRIBUTE_BYTES_MAX];
        match self.file.attribute(ATTRIBUTE, &mut value) {
            Ok(len) if value[..len] == UNREADABLE => Ok(Seal::Unreadable),
            Ok(len) => Ok(match Sums::decode(&value[..len]) {
                Some(sums) => Seal::Sealed(Arc::new(sums)),
                None => Seal::Open(None),
            }),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(Seal::Open(None)),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads from `offset` on, and checks what it got. Returns how much of `buffer` it filled.
    pub(crate) fn checked_read(
        &self,
        offset: u64,
        buffer: &mut [u8],
        reading: ReadMode,
    ) -> io::Result<usize> {
        let seal = self.known_seal()?;
        let read = self.read_sealed(&seal, reading, offset, buffer);
        drop(seal);
        match reading {
            ReadMode::InMemory => read.map_err(noted::without_waiting),
            ReadMode::Waiting | ReadMode::AddingNone => self.noting(read),
        }
    }

    /// The seal, which is looked at if it was not yet.
    fn known_seal(&self) -> io::Result<RwLockReadGuard<'_, Seal>> {
        let seal = self.seal.read();
        if !matches!(*seal, Seal::Unknown) {
            return Ok(seal);
        }
        drop(seal);
        let mut exclusive = self.seal.write();
        if matches!(*exclusive, Seal::Unknown) {
            *exclusive = self.load()?;
        }
        Ok(RwLockWriteGuard::downgrade(exclusive))
    }

    /// Reads what is in memory, checked, and waits for nothing: EAGAIN where it would have to, also
    /// for who changes the object just now. The whole disk is memory if the mode is one that waits.
    pub(crate) fn read_at_once(
        &self,
        offset: u64,
        buffer: &mut [u8],
        reading: ReadMode,
    ) -> io::Result<usize> {
        let seal = self.seal.try_read().ok_or(Errno::AGAIN)?;
        if matches!(*seal, Seal::Unknown) {
            return Err(Errno::AGAIN.into());
        }
        let read = self.read_sealed(&seal, reading, offset, buffer);
        read.map_err(noted::without_waiting)
    }

    /// Compares all data with its checksums. Returns these, if it has any.
    pub(crate) fn check(&self) -> io::Result<Option<Arc<Sums>>> {
        match self.load()? {
            Seal::Sealed(sums) => {
                if self.stat()?.size != sums.size() {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!("it should have {} bytes", sums.size()),
                    ));
                }
                sums.check_all(|room, at| self.read_adding_none(room, at)).map(|()| Some(sums))
            }
            Seal::Unreadable => Err(unreadable()),
            Seal::Open(_) | Seal::Leaving(_) | Seal::Unknown => Ok(None),
        }
    }

    /// When the object was last changed: modification, change.
    pub(crate) fn times(&self, file_mtime: Timestamp) -> (Timestamp, Timestamp) {
        let time = |nanos: i64| match nanos {
            0 => file_mtime,
            nanos => Timestamp {
                secs: nanos.div_euclid(1_000_000_000),
                nanos: nanos.rem_euclid(1_000_000_000) as u32,
            },
        };
        let mtime = time(self.mtime.load(Ordering::Relaxed));
        let ctime = time(self.ctime.load(Ordering::Relaxed));
        match self.may_change_unseen() {
            true => (mtime.max(file_mtime), ctime.max(file_mtime)),
            false => (mtime, ctime),
        }
    }

    /// Sets the modification time.
    pub(crate) fn set_mtime(&self, mtime: Timestamp) -> io::Result<()> {
        self.mtime.store(nanos(mtime), Ordering::Relaxed);
        self.mtime_changed.store(true, Ordering::Release);
        self.put_mtime()
    }

    /// Has the file know its modification time, as it is next time it is opened.
    pub(crate) fn keep_mtime(&self) -> io::Result<()> {
        self.learn_stores();
        self.put_mtime()
    }

    fn put_mtime(&self) -> io::Result<()> {
        if !self.mtime_changed.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let (mtime, _) = self.times(Timestamp::default());
        let result = self.file.set_mtime(mtime);
        if result.is_err() {
            self.mtime_changed.store(true, Ordering::Release);
        }
        Ok(result?)
    }
}

impl<F: DiskFile> Drop for ObjectFile<F> {
    fn drop(&mut self) {
        // The exact time must not be older the next time the file is opened.
        if let Err(error) = self.keep_mtime() {
            tracing::warn!(%error, "could not keep the modification time of an object; stat shows an older one");
        }
    }
}

fn nanos(time: Timestamp) -> i64 {
    time.secs.saturating_mul(1_000_000_000).saturating_add(time.nanos.into())
}

#[cfg(test)]
mod tests;

//! An open object: its file, its times, and whether its checksums hold.
//!
//! Invariants:
//! - The attribute with the checksums is on an object only while nobody changes it.
//!   [`ObjectFile::change`] takes it off first; if the change overwrites what the
//!   sums cover, however long after it, it is off on stable storage before the first byte
//!   changes, so that no crash leaves new data under old sums.
//! - Sums are put on only after the data they describe is on stable storage and
//!   if nothing changed while they were computed.

use crate::disk::DiskFile;
use crate::store::checksum::Sums;
use glint_proto::Timestamp;
use parking_lot::RwLock;
use rustix::io::Errno;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

pub(super) const ATTRIBUTE: &str = "user.glint.sums";
pub(super) const ATTRIBUTE_BYTES_MAX: usize = 4096;

/// Whether the checksums of an object hold.
enum Seal {
    /// Not looked at yet.
    Unknown,
    /// The object has no checksums, or is being changed.
    Open,
    /// Checksums are off, though perhaps not on stable storage: what they cover, bytes below this
    /// size, must not change.
    Leaving(u64),
    Sealed(Sums),
}

/// Effect of a change on the bytes that the checksums cover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Touches {
    /// Bytes from this offset on.
    From(u64),
    /// All of them go, and their blocks are freed, which the file system orders after
    /// the end of the checksums by itself.
    Drops,
}

impl Touches {
    /// Whether any of the first `size` bytes get others.
    fn overwrites(self, size: u64) -> bool {
        matches!(self, Touches::From(offset) if offset < size)
    }
}

/// An open object.
pub(crate) struct ObjectFile<F: DiskFile> {
    file: F,
    seal: RwLock<Seal>,
    changes: AtomicU64,
    /// Times in nanoseconds of the last change through this open file; 0 if the file
    /// knows. The file's own clock is too coarse: it would put a write before a
    /// create that came first.
    mtime: AtomicI64,
    ctime: AtomicI64,
    /// The file does not know its modification time.
    mtime_changed: AtomicBool,
}

impl<F: DiskFile> ObjectFile<F> {
    /// An object that was there.
    pub(crate) fn new(file: F) -> ObjectFile<F> {
        ObjectFile {
            file,
            seal: RwLock::new(Seal::Unknown),
            changes: AtomicU64::new(0),
            mtime: AtomicI64::new(0),
            ctime: AtomicI64::new(0),
            mtime_changed: AtomicBool::new(false),
        }
    }

    /// An object that was just made, by a change from the time `mtime`.
    pub(crate) fn fresh(file: F, mtime: Timestamp) -> ObjectFile<F> {
        let mut file = ObjectFile::new(file);
        *file.seal.get_mut() = Seal::Open;
        *file.mtime.get_mut() = nanos(mtime);
        *file.mtime_changed.get_mut() = true;
        file
    }

    pub(crate) fn file(&self) -> &F {
        &self.file
    }

    /// Changes the object, from the time `mtime` on; `sync` brings it to stable storage, if that
    /// has to be before. Returns what `work` returned and whether this is the first change since
    /// the object was sealed or opened.
    pub(crate) fn change<T>(
        &self,
        touches: Touches,
        mtime: Timestamp,
        work: impl FnOnce(&F) -> io::Result<T>,
        sync: impl Fn(&F) -> io::Result<()>,
    ) -> io::Result<(io::Result<T>, bool)> {
        loop {
            let seal = self.seal.read();
            let is_off = match *seal {
                Seal::Open => true,
                Seal::Leaving(size) => !touches.overwrites(size),
                Seal::Unknown | Seal::Sealed(_) => false,
            };
            if is_off {
                let before = self.changes.fetch_add(1, Ordering::AcqRel);
                // Before: nobody may see the time at which the file system does it.
                self.mtime.store(nanos(mtime), Ordering::Relaxed);
                // What was written behind was changed when its program wrote it, and that one was
                // told so.
                self.ctime.store(nanos(mtime), Ordering::Relaxed);
                let result = work(&self.file);
                // After: the file system has just set its own.
                self.mtime_changed.store(true, Ordering::Release);
                let dropped = touches == Touches::Drops && result.is_ok();
                if dropped && matches!(*seal, Seal::Leaving(_)) {
                    drop(seal);
                    let mut seal = self.seal.write();
                    if matches!(*seal, Seal::Leaving(_)) {
                        *seal = Seal::Open;
                    }
                }
                return Ok((result, before == 0));
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
        let covered = match &*seal {
            Seal::Sealed(sums) => {
                let size = sums.size();
                self.file.remove_attribute(ATTRIBUTE)?;
                self.changes.store(0, Ordering::Release);
                *seal = Seal::Leaving(size);
                size
            }
            Seal::Leaving(size) => *size,
            Seal::Unknown | Seal::Open => {
                *seal = Seal::Open;
                return Ok(());
            }
        };
        // Bytes written past the end become visible only with the new size, which the file system
        // commits after the removal of the attribute; so do those of a truncation.
        if touches.overwrites(covered) {
            sync(&self.file)?;
            *seal = Seal::Open;
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
            Ok(len) => Ok(Sums::decode(&value[..len]).map_or(Seal::Open, Seal::Sealed)),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(Seal::Open),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads by `read`, which returns how much of `buffer` it filled from `offset` on,
    /// and checks what it got.
    pub(crate) fn checked_read(
        &self,
        offset: u64,
        buffer: &mut [u8],
        read: impl FnOnce(&F, &mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut seal = self.seal.read();
        if matches!(*seal, Seal::Unknown) {
            drop(seal);
            let mut exclusive = self.seal.write();
            if matches!(*exclusive, Seal::Unknown) {
                *exclusive = self.load()?;
            }
            seal = parking_lot::RwLockWriteGuard::downgrade(exclusive);
        }
        let n = read(&self.file, buffer)?;
        if let Seal::Sealed(sums) = &*seal {
            sums.check_read(|room, at| self.file.read(room, at), offset, &buffer[..n])?;
        }
        Ok(n)
    }

    /// Reads what is in memory, checked, and waits for nothing: EAGAIN where it would have to, also
    /// for who changes the object just now.
    pub(crate) fn read_at_once(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let seal = self.seal.try_read().ok_or(Errno::AGAIN)?;
        if matches!(*seal, Seal::Unknown) {
            return Err(Errno::AGAIN.into());
        }
        let n = self.file.read_cached(buffer, offset)?;
        if let Seal::Sealed(sums) = &*seal {
            sums.check_read(|room, at| self.file.read_cached(room, at), offset, &buffer[..n])?;
        }
        Ok(n)
    }

    /// Compares all data with its checksums. Returns these, if it has any.
    pub(crate) fn check(&self) -> io::Result<Option<Sums>> {
        match self.load()? {
            Seal::Sealed(sums) => {
                if self.file.stat()?.size != sums.size() {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!("it should have {} bytes", sums.size()),
                    ));
                }
                sums.check_all(&self.file).map(|()| Some(sums))
            }
            Seal::Open | Seal::Leaving(_) | Seal::Unknown => Ok(None),
        }
    }

    /// The number of changes so far, once none is going on.
    pub(crate) fn settled(&self) -> u64 {
        let _no_writer = self.seal.write();
        self.changes.load(Ordering::Acquire)
    }

    /// Puts the checksums on, if there were no changes beyond `changes`, all of which
    /// are on stable storage. Returns whether it did.
    pub(crate) fn seal(&self, changes: u64) -> io::Result<bool> {
        let size = self.file.stat()?.size;
        let sums = Sums::compute(&self.file, size)?;
        let mut seal = self.seal.write();
        if matches!(*seal, Seal::Unknown) {
            // The object was closed since it changed, and opened again for this.
            *seal = self.load()?;
        }
        if !matches!(*seal, Seal::Open | Seal::Leaving(_))
            || self.changes.load(Ordering::Acquire) != changes
        {
            return Ok(false);
        }
        self.file.set_attribute(ATTRIBUTE, &sums.encode())?;
        self.changes.store(0, Ordering::Release);
        *seal = Seal::Sealed(sums);
        Ok(true)
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
        (time(self.mtime.load(Ordering::Relaxed)), time(self.ctime.load(Ordering::Relaxed)))
    }

    /// Sets the modification time.
    pub(crate) fn set_mtime(&self, mtime: Timestamp) -> io::Result<()> {
        self.mtime.store(nanos(mtime), Ordering::Relaxed);
        self.mtime_changed.store(true, Ordering::Release);
        self.keep_mtime()
    }

    /// Has the file know its modification time, as it is next time it is opened.
    pub(crate) fn keep_mtime(&self) -> io::Result<()> {
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
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::FileExt;

    fn object(file: &std::fs::File) -> ObjectFile<OwnedFd> {
        ObjectFile::new(file.try_clone().unwrap().into())
    }

    fn is_sealed(file: &std::fs::File) -> bool {
        rustix::fs::fgetxattr(file, ATTRIBUTE, &mut [0u8; ATTRIBUTE_BYTES_MAX][..]).is_ok()
    }

    #[test]
    fn a_change_breaks_the_seal_and_a_race_prevents_it() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("object");
        let open = || std::fs::File::options().read(true).write(true).open(&path).unwrap();
        std::fs::write(&path, vec![7u8; 200_000]).unwrap();
        let file = open();
        let one = object(&file);
        let write = |at| {
            let work = |fd: &OwnedFd| Ok(rustix::io::pwrite(fd, b"new", at)?);
            one.change(Touches::From(at), Timestamp::now(), work, |_| Ok(())).unwrap().1
        };
        assert!(write(5), "the first change is reported");
        assert!(!write(5));
        let before = one.settled();
        write(9);
        assert!(!one.seal(before).unwrap(), "it changed in the meantime");
        assert!(one.seal(one.settled()).unwrap() && is_sealed(&file));
        let again = object(&file);
        assert!(again.check().unwrap().is_some());
        file.write_all_at(b"rot", 100).unwrap();
        assert!(again.check().is_err());
        let mut buffer = [0u8; 3];
        let read = |fd: &OwnedFd, b: &mut [u8]| Ok(rustix::io::pread(fd, b, 100)?);
        assert!(again.checked_read(100, &mut buffer, read).is_err());
        assert!(write(5), "the first change after a seal is reported");
        assert!(!is_sealed(&file));
        drop(one);
        let reopened = object(&file);
        assert!(reopened.seal(reopened.settled()).unwrap() && is_sealed(&file));
        assert!(!reopened.seal(reopened.settled()).unwrap(), "it is sealed");
    }
}

//! Objects as files in a sharded directory tree of the OST's file system.
//!
//! `objects/XX/INODE.STRIPE`, where `XX` is taken from the middle of the inode
//! number: files made together lie in one directory, and all directories fill
//! evenly. Every access is relative to a directory descriptor held open, so no
//! path is walked.

use crate::error::OstError;
use crate::files::Files;
use crate::grants::Grants;
use crate::object::{ObjectFile, Touches};
use crate::sealer::Sealer;
use crate::space::Space;
use glint_proto::{ClientId, Ino, ObjectAttr, ObjectId, SpaceInfo, Timestamp};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const DIRECTORIES: usize = 256;
/// Inodes of one directory come in blocks of 64; this many blocks share a shard.
const SHARD_SHIFT: u32 = 10;

/// An object that was found on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredObject {
    /// Which.
    pub object: ObjectId,
    /// Its size.
    pub size: u64,
}

/// The store.
pub struct ObjectStore {
    grants: Arc<Grants>,
    path: PathBuf,
    directories: Vec<OwnedFd>,
    files: Files,
    space: Space,
    pub(crate) sealer: Sealer,
}

fn name_of(object: ObjectId) -> String {
    object.to_string()
}

pub(crate) fn parse_name(name: &str) -> Option<ObjectId> {
    let (ino, stripe) = name.split_once('.')?;
    let object = ObjectId {
        ino: Ino(u64::from_str_radix(ino, 16).ok()?),
        stripe: u16::from_str_radix(stripe, 16).ok()?,
    };
    (name_of(object) == name).then_some(object)
}

impl ObjectStore {
    /// Opens the store in `path`, creating its directories if absent.
    pub fn open(path: &Path, grants: Arc<Grants>) -> Result<ObjectStore, OstError> {
        let setup = |path: &Path, source: io::Error| OstError::Setup {
            path: path.display().to_string(),
            source,
        };
        let mut directories = Vec::with_capacity(DIRECTORIES);
        for index in 0..DIRECTORIES {
            let directory = path.join("objects").join(format!("{index:02x}"));
            std::fs::create_dir_all(&directory).map_err(|e| setup(&directory, e))?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let fd = rustix::fs::open(&directory, flags, Mode::empty())
                .map_err(|e| setup(&directory, e.into()))?;
            directories.push(fd);
        }
        Ok(ObjectStore {
            grants,
            path: path.to_owned(),
            directories,
            files: Files::new(),
            space: Space::new(),
            sealer: Sealer::default(),
        })
    }

    /// Directory of the store.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn directory(&self, object: ObjectId) -> &OwnedFd {
        &self.directories[(object.ino.0 >> SHARD_SHIFT) as usize % DIRECTORIES]
    }

    /// The object's file. If there is none, a change from the time `create` makes it.
    pub(crate) fn file(
        &self,
        object: ObjectId,
        create: Option<Timestamp>,
    ) -> io::Result<Option<Arc<ObjectFile>>> {
        self.files.get(object, || {
            let directory = self.directory(object);
            let name = name_of(object);
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOATIME;
            match rustix::fs::openat(directory, &name, flags, Mode::empty()) {
                Ok(fd) => Ok(Some(ObjectFile::new(fd))),
                Err(Errno::NOENT) => {
                    let Some(mtime) = create else { return Ok(None) };
                    let flags = flags | OFlags::CREATE;
                    let fd = rustix::fs::openat(directory, &name, flags, Mode::from(0o600))?;
                    Ok(Some(ObjectFile::fresh(fd, mtime)))
                }
                Err(error) => Err(error.into()),
            }
        })
    }

    pub(crate) fn need(&self, object: ObjectId, bytes: u64) -> io::Result<()> {
        self.space.take(self.directory(object).as_fd(), bytes, self.grants.total())
    }

    /// Changes an object and sees to it that the change becomes durable.
    fn change<T>(
        &self,
        object: ObjectId,
        file: &ObjectFile,
        touches: Touches,
        mtime: Timestamp,
        work: impl FnOnce(&OwnedFd) -> io::Result<T>,
    ) -> io::Result<T> {
        let (result, first) = file.change(touches, mtime, work)?;
        self.sealer.note(object, first);
        result
    }

    /// Writes all of `data`, which is from the time `mtime` if that is given; into space that
    /// was `kept` for it, or into what is free. Returns the state after it.
    pub fn write(
        &self,
        object: ObjectId,
        offset: u64,
        data: &[u8],
        mtime: Option<Timestamp>,
        kept: bool,
    ) -> io::Result<ObjectAttr> {
        if !kept {
            self.need(object, data.len() as u64)?;
        }
        let mtime = mtime.unwrap_or_else(Timestamp::now);
        let Some(file) = self.file(object, Some(mtime))? else {
            return Err(Errno::NOENT.into());
        };
        self.change(object, &file, Touches::From(offset), mtime, |fd| {
            let mut done = 0;
            while done < data.len() {
                match rustix::io::pwrite(fd, &data[done..], offset + done as u64) {
                    Ok(0) => return Err(Errno::IO.into()),
                    Ok(n) => done += n,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(())
        })?;
        state(&file)
    }

    /// Keeps space for what a client will write. Returns how much.
    pub fn reserve(&self, client: ClientId, bytes: u64) -> io::Result<u64> {
        let granted = self.grants.reserve(client, bytes, self.space()?.available);
        self.space.keep(granted);
        Ok(granted)
    }

    /// Space that is kept for clients.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Sets the size. Shrinking what does not exist is nothing to do.
    pub fn truncate(&self, object: ObjectId, size: u64) -> io::Result<()> {
        let now = Timestamp::now();
        let Some(file) = self.file(object, (size > 0).then_some(now))? else { return Ok(()) };
        let touches = if size == 0 { Touches::Drops } else { Touches::From(size) };
        self.change(object, &file, touches, now, |fd| Ok(rustix::fs::ftruncate(fd, size)?))
    }

    /// fallocate(2).
    pub fn allocate(&self, object: ObjectId, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::from_bits_retain(mode as u32);
        let frees = flags.contains(FallocateFlags::PUNCH_HOLE);
        if !frees {
            self.need(object, len)?;
        }
        let now = Timestamp::now();
        let Some(file) = self.file(object, (!frees).then_some(now))? else { return Ok(()) };
        let work = |fd: &OwnedFd| Ok(rustix::fs::fallocate(fd, flags, offset, len)?);
        self.change(object, &file, Touches::From(offset), now, work)
    }

    /// State of an object; `None` if it does not exist.
    pub fn stat(&self, object: ObjectId) -> io::Result<Option<ObjectAttr>> {
        let Some(file) = self.file(object, None)? else { return Ok(None) };
        state(&file).map(Some)
    }

    /// Sets the modification time, of an object that exists.
    pub fn set_mtime(&self, object: ObjectId, mtime: Timestamp) -> io::Result<()> {
        match self.file(object, None)? {
            Some(file) => file.set_mtime(mtime),
            None => Ok(()),
        }
    }

    /// Next data or hole at or after `offset`.
    pub fn seek(&self, object: ObjectId, offset: u64, hole: bool) -> io::Result<Option<u64>> {
        let Some(file) = self.file(object, None)? else {
            return Ok(if hole { Some(offset) } else { None });
        };
        let from = if hole {
            rustix::fs::SeekFrom::Hole(offset)
        } else {
            rustix::fs::SeekFrom::Data(offset)
        };
        match rustix::fs::seek(file.fd(), from) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Data and, for a new object, its directory entry to stable storage.
    pub fn sync(&self, object: ObjectId) -> io::Result<()> {
        let Some(file) = self.file(object, None)? else { return Ok(()) };
        rustix::fs::fsync(file.fd())?;
        if file.fresh.swap(false, Ordering::AcqRel) {
            let synced = rustix::fs::fsync(self.directory(object));
            if synced.is_err() {
                file.fresh.store(true, Ordering::Release);
            }
            synced?;
        }
        Ok(())
    }

    /// Everything to stable storage.
    pub fn sync_all(&self) -> io::Result<()> {
        // SAFETY: syncfs takes a descriptor that is open for the whole call.
        let failed = unsafe {
            use std::os::fd::AsRawFd;
            libc::syncfs(self.directories[0].as_raw_fd()) != 0
        };
        if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Removes an object if it exists.
    pub fn remove(&self, object: ObjectId) -> io::Result<()> {
        self.files.forget(object);
        match rustix::fs::unlinkat(self.directory(object), name_of(object), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {
                self.sealer.touch();
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Compares an object with its checksums. Returns whether it has any.
    pub fn check(&self, object: ObjectId) -> io::Result<bool> {
        match self.file(object, None)? {
            Some(file) => file.check(),
            None => Ok(false),
        }
    }

    /// Space of the disk.
    pub fn space(&self) -> io::Result<SpaceInfo> {
        Space::info(self.directories[0].as_fd())
    }

    /// Calls `visit` for every object; names that are not objects go to `stray`.
    pub fn walk(
        &self,
        mut visit: impl FnMut(StoredObject),
        mut stray: impl FnMut(PathBuf),
    ) -> io::Result<()> {
        for index in 0..DIRECTORIES {
            let directory = self.path.join("objects").join(format!("{index:02x}"));
            for entry in std::fs::read_dir(&directory)? {
                let entry = entry?;
                match entry.file_name().to_str().and_then(parse_name) {
                    Some(object)
                        if (object.ino.0 >> SHARD_SHIFT) as usize % DIRECTORIES == index =>
                    {
                        visit(StoredObject { object, size: entry.metadata()?.len() });
                    }
                    _ => stray(entry.path()),
                }
            }
        }
        Ok(())
    }
}

fn state(file: &ObjectFile) -> io::Result<ObjectAttr> {
    let stat = rustix::fs::fstat(file.fd())?;
    let mtime = Timestamp { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 };
    let (mtime, ctime) = file.times(mtime);
    let (size, blocks) = (stat.st_size as u64, stat.st_blocks as u64);
    Ok(ObjectAttr { size, blocks, mtime, ctime })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(ino: u64) -> ObjectId {
        ObjectId { ino: Ino(ino), stripe: 0 }
    }

    #[test]
    fn an_object_exists_from_its_first_write_to_its_removal() {
        let dir = tempfile::tempdir().unwrap();
        let store = ObjectStore::open(dir.path(), Arc::default()).unwrap();
        let id = object(0x12345);
        assert_eq!(store.stat(id).unwrap(), None);
        store.truncate(id, 0).unwrap();
        assert_eq!(store.stat(id).unwrap(), None, "a truncation to nothing makes nothing");
        store.write(id, 100, b"abc", None, false).unwrap();
        store.sync(id).unwrap();
        assert_eq!(store.stat(id).unwrap().unwrap().size, 103);
        let mut found = Vec::new();
        std::fs::write(dir.path().join("objects/00/junk"), b"").unwrap();
        let mut strays = 0;
        store.walk(|o| found.push(o), |_| strays += 1).unwrap();
        assert_eq!(found, [StoredObject { object: id, size: 103 }]);
        assert_eq!(strays, 1);
        store.remove(id).unwrap();
        assert_eq!(store.stat(id).unwrap(), None);
    }

    #[test]
    fn closing_old_files_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = ObjectStore::open(dir.path(), Arc::default()).unwrap();
        for ino in 0..4000 {
            store.write(object(ino), 0, &ino.to_le_bytes(), None, false).unwrap();
        }
        for ino in 0..4000 {
            assert_eq!(store.stat(object(ino)).unwrap().unwrap().size, 8);
        }
    }

    #[test]
    fn times_are_set_and_writes_renew_them() {
        let dir = tempfile::tempdir().unwrap();
        let store = ObjectStore::open(dir.path(), Arc::default()).unwrap();
        store.write(object(1), 0, b"x", None, false).unwrap();
        let past = Timestamp { secs: 1000, nanos: 5 };
        store.set_mtime(object(1), past).unwrap();
        assert_eq!(store.stat(object(1)).unwrap().unwrap().mtime, past);
        store.write(object(1), 0, b"y", None, false).unwrap();
        assert!(store.stat(object(1)).unwrap().unwrap().mtime > past);
    }
}

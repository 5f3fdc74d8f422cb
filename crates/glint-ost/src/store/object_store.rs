//! Objects as files in a sharded directory tree of the OST's file system.
//!
//! `objects/XX/INODE.STRIPE`, where `XX` is taken from the middle of the inode
//! number: files made together lie in one directory, and all directories fill
//! evenly.
//!
//! Invariants:
//! - Once something could not be brought to stable storage, nothing more is changed or called
//!   durable: pages that could not be written look clean afterwards, so a later flush that
//!   succeeds says nothing.
//! - An object that was synced is found again: also its directory's entry is on stable storage,
//!   whether or not its file was closed in between.

use crate::disk::{Disk, DiskFile, DiskResult, DiskTask, LocalDisk};
use crate::error::OstError;
use crate::space::grants::SpaceGrants;
use crate::space::reserve::Space;
use crate::store::checksum::Sums;
use crate::store::files::Files;
use crate::store::object::{ObjectFile, Touches};
use crate::store::passing::{ObjectCache, PassedBytes, Passing, Range};
use crate::store::scrub::{ScrubReport, ScrubStep, Scrubber};
use crate::store::sealer::Sealer;
use glint_proto::{ClientId, Ino, ObjectAttr, ObjectId, SpaceInfo, Timestamp};
use glint_telemetry::Heat;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub(crate) const DIRECTORIES: usize = 256;
/// Inodes of one directory come in blocks of 64; this many blocks share a shard.
pub(crate) const SHARD_SHIFT: u32 = 10;

/// An object that was found on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredObject {
    /// Id of the object.
    pub object: ObjectId,
    /// Size in bytes.
    pub size: u64,
}

/// Entries of a directory.
#[derive(Default)]
struct Entries {
    /// How many were made, and how many of these are on stable storage.
    made: AtomicU64,
    synced: AtomicU64,
}

/// The store.
pub struct ObjectStore<D: Disk = LocalDisk> {
    grants: Arc<SpaceGrants>,
    path: PathBuf,
    pub(crate) disk: D,
    /// Which objects are read most.
    pub(crate) heat: Heat,
    entries: Vec<Entries>,
    /// Why nothing can be called durable any more.
    failure: OnceLock<String>,
    pub(crate) files: Files<D::File>,
    space: Space,
    object_bytes_max: u64,
    pub(crate) sealer: Sealer,
    /// An object is compared with its checksums, to be handed out later.
    pub(crate) is_checking: AtomicBool,
    passing: Arc<Passing>,
    scrubber: Scrubber,
}

pub(crate) fn shard_of(object: ObjectId) -> usize {
    (object.ino.0 >> SHARD_SHIFT) as usize % DIRECTORIES
}

pub(crate) fn directory_name(shard: usize) -> String {
    format!("{shard:02x}")
}

/// Path of an object below the directory of the store.
pub(crate) fn path_of(object: ObjectId) -> String {
    format!("{:02x}/{object}", shard_of(object))
}

pub(crate) fn parse_name(name: &str) -> Option<ObjectId> {
    let (ino, stripe) = name.split_once('.')?;
    let object = ObjectId {
        ino: Ino(u64::from_str_radix(ino, 16).ok()?),
        stripe: u16::from_str_radix(stripe, 16).ok()?,
    };
    (object.to_string() == name).then_some(object)
}

impl ObjectStore {
    /// Opens the store in `path`, creating its directories if absent. It keeps up to
    /// `open_files` objects open.
    pub fn open(
        path: &Path,
        open_files: usize,
        grants: Arc<SpaceGrants>,
    ) -> Result<ObjectStore, OstError> {
        let setup = |path: &Path, source: io::Error| OstError::Setup {
            path: path.display().to_string(),
            source,
        };
        let objects = path.join("objects");
        for shard in 0..DIRECTORIES {
            let directory = objects.join(directory_name(shard));
            let mut builder = std::fs::DirBuilder::new();
            let made = builder.recursive(true).mode(0o700).create(&directory);
            made.map_err(|e| setup(&directory, e))?;
        }
        let disk = LocalDisk::open(&objects).map_err(|e| setup(&objects, e))?;
        Ok(ObjectStore::on(disk, path, open_files, grants))
    }
}

impl<D: Disk> ObjectStore<D> {
    /// The store on a disk whose directories are there, which is called `path`. It keeps all data in
    /// memory, unless that is [said](ObjectStore::keeping).
    pub fn on(disk: D, path: &Path, open_files: usize, grants: Arc<SpaceGrants>) -> ObjectStore<D> {
        ObjectStore {
            object_bytes_max: disk.file_bytes_max(),
            grants,
            path: path.to_owned(),
            disk,
            heat: Heat::default(),
            entries: (0..DIRECTORIES).map(|_| Entries::default()).collect(),
            failure: OnceLock::new(),
            files: Files::new(open_files),
            space: Space::new(),
            sealer: Sealer::default(),
            is_checking: AtomicBool::new(false),
            passing: Arc::new(Passing::new(ObjectCache::All)),
            scrubber: Scrubber::default(),
        }
    }

    /// The same store, which keeps this data of objects in memory.
    pub fn keeping(self, cache: ObjectCache) -> ObjectStore<D> {
        ObjectStore { passing: Arc::new(Passing::new(cache)), ..self }
    }

    /// Which data is not kept in memory.
    pub(crate) fn passing(&self) -> &Passing {
        &self.passing
    }

    /// Size above which objects pass through memory, if any do, and the bytes that have passed.
    pub fn passed(&self) -> (Option<u64>, PassedBytes) {
        (self.passing.limit(), self.passing.passed())
    }

    /// Returns true if an object passes through memory once it reaches up to `end`. When it begins
    /// to, what it has there is dropped later.
    pub(super) fn will_pass(
        &self,
        object: ObjectId,
        file: &ObjectFile<D::File>,
        end: u64,
    ) -> io::Result<bool> {
        if self.passing.limit().is_none() {
            return Ok(false);
        }
        let before = file.size()?;
        let passes = self.passing.passes(before.max(end));
        if passes && before > 0 && !self.passing.passes(before) {
            self.passing.drop_later(object, (0, before));
        }
        Ok(passes)
    }

    /// Drops from memory what does not stay there, all of which is on stable storage.
    pub(super) fn drop_passed(&self, passed: BTreeMap<ObjectId, Range>) {
        for (object, (from, to)) in passed {
            match self.files.known(object) {
                Some(file) => file.file().drop_cached(from, to),
                // It may be gone.
                None => {
                    if let Ok(file) = self.disk.open_to_read(&path_of(object)) {
                        file.drop_cached(from, to);
                    }
                }
            }
        }
    }

    /// See [`Disk::turn`].
    pub(crate) async fn turn(&self) {
        self.disk.turn().await;
    }

    /// See [`Disk::is_memory`].
    pub(crate) fn is_memory(&self) -> bool {
        self.disk.is_memory()
    }

    /// See [`Disk::spawn`].
    pub(crate) fn spawn(&self, task: DiskTask) {
        self.disk.spawn(task);
    }

    /// The object's file, if it is open and that can be told without waiting.
    pub(crate) fn open_file(&self, object: ObjectId) -> Option<Arc<ObjectFile<D::File>>> {
        self.files.known(object)
    }

    /// Directory of the store.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why nothing is durable any more, if that is so.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    pub(crate) fn works(&self) -> io::Result<()> {
        if self.failure.get().is_some() { Err(Errno::IO.into()) } else { Ok(()) }
    }

    /// Nothing is durable any more. The first reason is the cause.
    pub(crate) fn fails(&self, reason: String) {
        tracing::error!("{reason}");
        let _ = self.failure.set(reason);
    }

    /// The result of bringing `what` to stable storage; an error is one for good.
    pub(crate) fn flushed<T>(&self, what: &str, result: DiskResult<T>) -> io::Result<T> {
        result.map_err(|errno| {
            let (path, error) = (self.path.display(), io::Error::from(errno));
            self.fails(format!("bringing {what} in {path} to stable storage: {error}"));
            Errno::IO.into()
        })
    }

    /// Takes EROFS of a change for what it is below a store that could be written when it was
    /// opened: the file system has failed, and what it has not yet written is lost. So it is an
    /// error for good, like a flush that fails, and not the client's. Clients say again what was
    /// not durable when the server has been started again.
    fn changed<T>(&self, result: io::Result<T>) -> io::Result<T> {
        match result {
            Err(error) if error.raw_os_error() == Some(Errno::ROFS.raw_os_error()) => {
                self.flushed("changes", Err(Errno::ROFS))
            }
            result => result,
        }
    }

    /// For how many objects there is room in the cache of open ones.
    pub(crate) fn open_files(&self) -> usize {
        self.files.capacity()
    }

    /// The object's file. If there is none, a change from the time `create` makes it.
    pub(crate) fn file(
        &self,
        object: ObjectId,
        create: Option<Timestamp>,
    ) -> io::Result<Option<Arc<ObjectFile<D::File>>>> {
        let sync = |file: &D::File| self.flushed("an object", file.sync()).is_ok();
        let open = || -> io::Result<Option<ObjectFile<D::File>>> {
            let path = path_of(object);
            match self.disk.open(&path) {
                Ok(file) => Ok(Some(ObjectFile::new(object, file, self.passing.clone()))),
                Err(Errno::NOENT) => {
                    let Some(mtime) = create else { return Ok(None) };
                    let file = self.disk.create(&path)?;
                    self.entries[shard_of(object)].made.fetch_add(1, Ordering::AcqRel);
                    Ok(Some(ObjectFile::fresh(object, file, self.passing.clone(), mtime)))
                }
                Err(error) => Err(error.into()),
            }
        };
        self.changed(self.files.get(object, open, sync))
    }

    /// Takes what a change of ranges of `bytes` in all needs from what is free. On a full disk
    /// that is nothing where they have their blocks already.
    pub(crate) fn need(
        &self,
        object: ObjectId,
        bytes: u64,
        mut ranges: impl Iterator<Item = (u64, u64)>,
    ) -> io::Result<()> {
        let taken = self.space.take(&self.disk, bytes, self.grants.total());
        let Err(full) = taken else { return Ok(()) };
        match self.file(object, None)? {
            Some(file) if ranges.all(|(offset, len)| file.file().is_allocated(offset, len)) => {
                Ok(())
            }
            _ => Err(full),
        }
    }

    /// Changes ranges of an object and sees to it that the change becomes durable.
    pub(crate) fn change<T>(
        &self,
        object: ObjectId,
        file: &ObjectFile<D::File>,
        touches: Touches,
        ranges: impl Iterator<Item = Range> + Clone,
        mtime: Timestamp,
        work: impl FnOnce(&D::File) -> io::Result<T>,
    ) -> io::Result<T> {
        self.works()?;
        let sync = |file: &D::File| self.flushed("an object", file.sync());
        let (result, first) = file.change(touches, ranges, mtime, work, sync)?;
        self.sealer.note(object, first);
        self.changed(result)
    }

    /// Keeps space for what a client will write. Returns how much.
    pub fn grant(&self, client: ClientId, bytes: u64) -> io::Result<u64> {
        let available = Space::info(&self.disk)?.available;
        let granted = self.grants.grant(client, bytes, available);
        self.space.keep(granted);
        Ok(granted)
    }

    /// Offset at which the largest object ends that the file system can have.
    pub fn object_bytes_max(&self) -> u64 {
        self.object_bytes_max
    }

    /// Space that is kept for clients.
    pub fn grants(&self) -> &SpaceGrants {
        &self.grants
    }

    /// Sets the size. Shrinking what does not exist is nothing to do.
    pub fn truncate(&self, object: ObjectId, size: u64) -> io::Result<()> {
        let now = Timestamp::now();
        let Some(file) = self.file(object, (size > 0).then_some(now))? else { return Ok(()) };
        let touches = if size == 0 { Touches::Drops } else { Touches::From(size) };
        self.will_pass(object, &file, size)?;
        let behind = std::iter::once((size, u64::MAX));
        let work = |file: &D::File| Ok(file.set_size(size)?);
        let changed = self.change(object, &file, touches, behind, now, work);
        file.forget_size();
        changed
    }

    /// fallocate(2).
    pub fn allocate(&self, object: ObjectId, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::from_bits_retain(mode as u32);
        let (punch, zero) = (FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE);
        // Others move bytes.
        if !(punch | zero | FallocateFlags::KEEP_SIZE).contains(flags) {
            return Err(Errno::OPNOTSUPP.into());
        }
        let frees = flags.contains(punch);
        if !frees {
            self.need(object, len, std::iter::once((offset, len)))?;
        }
        let now = Timestamp::now();
        let Some(file) = self.file(object, (!frees).then_some(now))? else { return Ok(()) };
        let work = |file: &D::File| {
            // Behind the end there is nothing to free, and a file system refuses to.
            let end = if frees { file.stat()?.size } else { u64::MAX };
            let len = len.min(end.saturating_sub(offset));
            if len == 0 {
                return Ok(());
            }
            Ok(file.allocate(mode, offset, len)?)
        };
        // Blocks for what is there change no byte of it.
        let zeroed = if flags.intersects(punch | zero) { len } else { 0 };
        let ranges = std::iter::once((offset, offset.saturating_add(zeroed)));
        let changed = self.change(object, &file, Touches::From(offset), ranges, now, work);
        file.forget_size();
        changed
    }

    /// State of an object; `None` if it does not exist.
    pub fn stat(&self, object: ObjectId) -> io::Result<Option<ObjectAttr>> {
        let Some(file) = self.file(object, None)? else { return Ok(None) };
        file.state().map(Some)
    }

    /// Sets the modification time, of an object that exists.
    pub fn set_mtime(&self, object: ObjectId, mtime: Timestamp) -> io::Result<()> {
        match self.file(object, None)? {
            Some(file) => {
                self.works()?;
                let result = file.set_mtime(mtime);
                self.sealer.touch();
                result
            }
            None => Ok(()),
        }
    }

    /// Next data or hole at or after `offset`.
    pub fn seek(&self, object: ObjectId, offset: u64, hole: bool) -> io::Result<Option<u64>> {
        let Some(file) = self.file(object, None)? else {
            return Ok(if hole { Some(offset) } else { None });
        };
        file.seek(offset, hole)
    }

    /// Data, times and, for a new object, its directory entry to stable storage.
    pub fn sync(&self, object: ObjectId) -> io::Result<()> {
        self.works()?;
        let Some(file) = self.file(object, None)? else { return Ok(()) };
        file.keep_mtime()?;
        self.flushed("an object", file.file().sync())?;
        let shard = shard_of(object);
        let entries = &self.entries[shard];
        let made = entries.made.load(Ordering::Acquire);
        // A sync that another caller has under way counts when it is done, not before.
        if entries.synced.load(Ordering::Acquire) < made {
            let directory = self.disk.directory(&directory_name(shard))?;
            self.flushed("a directory", self.disk.sync_directory(&directory))?;
            entries.synced.fetch_max(made, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Everything to stable storage.
    pub fn sync_all(&self) -> io::Result<()> {
        self.works()?;
        let made = |entries: &Entries| entries.made.load(Ordering::Acquire);
        let made: Vec<u64> = self.entries.iter().map(made).collect();
        self.flushed("data", self.disk.sync_all())?;
        for (entries, made) in self.entries.iter().zip(made) {
            entries.synced.fetch_max(made, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Removes an object if it exists.
    pub fn remove(&self, object: ObjectId) -> io::Result<()> {
        self.works()?;
        self.files.forget(object);
        match self.disk.unlink(&path_of(object)) {
            Ok(()) | Err(Errno::NOENT) => {
                self.sealer.touch();
                Ok(())
            }
            Err(error) => self.changed(Err(error.into())),
        }
    }

    /// Compares an object with its checksums. Returns these as they are stored, if it has any: those
    /// of equal copies are equal.
    pub fn check(&self, object: ObjectId) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.file(object, None)? else { return Ok(None) };
        Ok(file.check()?.map(|sums| sums.encode()))
    }

    /// Begins to compare all objects with their checksums, unless that is under way.
    pub fn begin_scrub(&self) {
        self.scrubber.begin();
    }

    /// Ends that before its end.
    pub fn stop_scrub(&self) {
        self.scrubber.stop();
    }

    /// Compares some more. May take long, where the disk does.
    pub fn scrub(&self) -> ScrubStep {
        let note =
            |object: ObjectId, sums: &Sums, index: usize| self.note_scrubbed(object, sums, index);
        let is_damaged = |object| self.has_damage(object);
        self.scrubber.step(&self.disk, &self.passing, &self.path, note, is_damaged)
    }

    /// How far that is, and what was found.
    pub fn scrub_report(&self) -> ScrubReport {
        self.scrubber.report()
    }

    /// Space of the disk. What is kept for clients is not available to others.
    pub fn space(&self) -> io::Result<SpaceInfo> {
        let space = Space::info(&self.disk)?;
        let available = space.available.saturating_sub(self.grants.total());
        Ok(SpaceInfo { available, ..space })
    }

    /// Calls `visit` for every object; names that are not objects go to `stray`.
    pub fn walk(
        &self,
        mut visit: impl FnMut(StoredObject),
        mut stray: impl FnMut(PathBuf),
    ) -> io::Result<()> {
        for index in 0..DIRECTORIES {
            let directory = directory_name(index);
            for name in self.disk.names(&directory)? {
                match name.to_str().and_then(parse_name) {
                    Some(object) if shard_of(object) == index => {
                        visit(StoredObject { object, size: self.disk.size(&path_of(object))? });
                    }
                    _ => stray(self.path.join("objects").join(&directory).join(name)),
                }
            }
        }
        Ok(())
    }
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
        let store = ObjectStore::open(dir.path(), 64, Arc::default()).unwrap();
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
        let store = ObjectStore::open(dir.path(), 64, Arc::default()).unwrap();
        for ino in 0..4000 {
            store.write(object(ino), 0, &ino.to_le_bytes(), None, false).unwrap();
        }
        for ino in 0..4000 {
            assert_eq!(store.stat(object(ino)).unwrap().unwrap().size, 8);
        }
    }

    #[test]
    fn an_object_that_was_closed_before_its_sync_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = ObjectStore::open(dir.path(), 1, Arc::default()).unwrap();
        for ino in [1, 2] {
            store.write(object(ino), 0, b"x", None, false).unwrap();
        }
        let entries = &store.entries[shard_of(object(1))];
        let synced =
            || (entries.made.load(Ordering::Relaxed), entries.synced.load(Ordering::Relaxed));
        assert_eq!(synced(), (2, 0));
        store.sync(object(1)).unwrap();
        assert_eq!(synced(), (2, 2), "though the second one closed its file");
        store.write(object(3), 0, b"x", None, false).unwrap();
        store.sync_all().unwrap();
        assert_eq!(synced(), (3, 3));
    }

    #[test]
    fn after_a_flush_that_failed_nothing_is_changed_or_durable() {
        let dir = tempfile::tempdir().unwrap();
        let store = ObjectStore::open(dir.path(), 64, Arc::default()).unwrap();
        store.write(object(1), 0, b"x", None, false).unwrap();
        assert!(store.flushed::<()>("an object", Err(Errno::IO)).is_err());
        let is_refused = |result: io::Result<()>| {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
        };
        is_refused(store.sync(object(1)));
        is_refused(store.sync_all());
        is_refused(store.settle(std::time::Duration::ZERO, None));
        is_refused(store.write(object(1), 0, b"y", None, false).map(drop));
        is_refused(store.remove(object(1)));
        assert!(store.failure().unwrap().contains("to stable storage"));
    }

    #[test]
    fn times_are_set_and_writes_renew_them() {
        let dir = tempfile::tempdir().unwrap();
        let store = ObjectStore::open(dir.path(), 64, Arc::default()).unwrap();
        store.write(object(1), 0, b"x", None, false).unwrap();
        let past = Timestamp { secs: 1000, nanos: 5 };
        store.set_mtime(object(1), past).unwrap();
        assert_eq!(store.stat(object(1)).unwrap().unwrap().mtime, past);
        store.write(object(1), 0, b"y", None, false).unwrap();
        assert!(store.stat(object(1)).unwrap().unwrap().mtime > past);
    }

    #[test]
    fn objects_are_where_they_ever_were() {
        let object = ObjectId { ino: Ino(0x0001_0000_0003_ab05), stripe: 0x1f };
        assert_eq!(path_of(object), "ea/000100000003ab05.001f");
        assert_eq!(crate::store::object::ATTRIBUTE, "user.glint.sums");
    }
}

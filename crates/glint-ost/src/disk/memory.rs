//! A disk in memory that fails as a plan says, and forgets what was not synced.
//!
//! What POSIX promises and what [the store relies on](super) is kept, and nothing more. A sync of
//! a file is one of its data and state, not of its directory's entry. A loss of power leaves of
//! each name a prefix of its changes, of each file a prefix of the changes of its state, and of
//! its blocks what a seed says. After a sync that failed, blocks are clean though they are not on
//! the disk, as on Linux: they are read as they were written until power is lost, and no later
//! sync brings them there.
//!
//! Does not know: time (whoever has it stand still says how its requests wait), directories (there
//! is any that is named), what fallocate(2) reserves.

use super::inode::{BLOCK_BYTES, Change, Content, Inode};
use super::{Disk, DiskFile, DiskResult, DiskSpace, DiskTask, Stat};
use glint_proto::Timestamp;
use glint_proto::limits::FILE_BYTES_MAX;
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

/// A decision: a number below the given one.
pub type Decide<'a> = &'a mut dyn FnMut(u64) -> u64;

/// How long each request waits for a disk.
pub type DiskTurn = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()>>> + Send + Sync>;

/// How tasks are run that wait for a disk.
pub type RunsTasks = Arc<dyn Fn(DiskTask) + Send + Sync>;

/// Operation of a disk that can be made to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskOperation {
    /// Opening and making files.
    Open,
    /// Reading.
    Read,
    /// Reading size, times and attributes.
    State,
    /// Listing a directory, whose path ends with a slash.
    List,
    /// Writing.
    Write,
    /// Setting an attribute.
    SetAttribute,
    /// Bringing anything to stable storage.
    Sync,
}

/// Something that goes wrong.
#[derive(Clone, Debug)]
pub struct Fault {
    operation: DiskOperation,
    /// With which files: those whose path ends so. The whole disk has no path.
    path: String,
    errno: Errno,
    /// How often.
    times: u32,
}

/// A disk; clones are the same one.
#[derive(Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<DiskContents>>);

#[derive(Default)]
struct DiskContents {
    /// Names, as answered and as on stable storage, and what lies between.
    names: BTreeMap<String, u64>,
    synced_names: BTreeMap<String, u64>,
    renamed: Vec<(String, Option<u64>)>,
    files: BTreeMap<u64, Inode>,
    next_file: u64,
    faults: Vec<Fault>,
    /// Number of the process that has files open.
    process: u64,
    /// Space in bytes, if there is an end to it.
    capacity: Option<u64>,
    /// If requests wait.
    turn: Option<DiskTurn>,
    tasks: Option<RunsTasks>,
}

/// An open file.
pub struct MemoryFile {
    disk: MemoryDisk,
    file: u64,
    process: u64,
}

impl Fault {
    /// Of an operation with files whose path ends so.
    pub fn new(operation: DiskOperation, path: &str, errno: i32, times: u32) -> Fault {
        Fault { operation, path: path.to_owned(), errno: Errno::from_raw_os_error(errno), times }
    }
}

impl DiskContents {
    /// Whether an operation fails.
    fn fails(&mut self, operation: DiskOperation, path: &str) -> DiskResult<()> {
        let meant =
            |f: &&mut Fault| f.operation == operation && f.times > 0 && path.ends_with(&f.path);
        match self.faults.iter_mut().find(meant) {
            Some(fault) => {
                fault.times = if fault.times == u32::MAX { u32::MAX } else { fault.times - 1 };
                Err(fault.errno)
            }
            None => Ok(()),
        }
    }

    fn file(&mut self, file: u64) -> &mut Inode {
        self.files.entry(file).or_insert_with(|| Inode {
            path: String::new(),
            now: Content::default(),
            synced: Content::default(),
            changes: Vec::new(),
        })
    }

    fn name(&mut self, path: &str, file: Option<u64>) {
        match file {
            Some(file) => self.names.insert(path.to_owned(), file),
            None => self.names.remove(path),
        };
        self.renamed.push((path.to_owned(), file));
    }

    fn sync_names(&mut self, of: impl Fn(&str) -> bool) {
        for (path, file) in std::mem::take(&mut self.renamed) {
            if !of(&path) {
                self.renamed.push((path, file));
                continue;
            }
            match file {
                Some(file) => self.synced_names.insert(path, file),
                None => self.synced_names.remove(&path),
            };
        }
    }

    fn used(&self) -> u64 {
        let blocks = self.names.values().filter_map(|file| self.files.get(file));
        blocks.map(|file| file.now.blocks.len() as u64 * BLOCK_BYTES).sum()
    }

    fn write(&mut self, file: u64, data: &[u8], offset: u64) -> DiskResult<usize> {
        let path = self.file(file).path.clone();
        self.fails(DiskOperation::Write, &path)?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(Errno::FBIG)?;
        if data.is_empty() {
            return Ok(0);
        }
        let (first, last) = (offset / BLOCK_BYTES, (end - 1) / BLOCK_BYTES);
        if let Some(capacity) = self.capacity {
            let there = &self.file(file).now.blocks;
            let new = (first..=last).filter(|index| !there.contains_key(index)).count() as u64;
            if self.used() + new * BLOCK_BYTES > capacity {
                return Err(Errno::NOSPC);
            }
        }
        let inode = self.file(file);
        for index in first..=last {
            let start = index * BLOCK_BYTES;
            let mut block = inode.now.blocks.get(&index).copied().unwrap_or([0; _]);
            let (from, to) = (offset.max(start), end.min(start + BLOCK_BYTES));
            let part = &data[(from - offset) as usize..(to - offset) as usize];
            block[(from - start) as usize..(to - start) as usize].copy_from_slice(part);
            inode.change(Change::Block(index, block));
        }
        if end > inode.now.size {
            inode.change(Change::Grow(end));
        }
        Ok(data.len())
    }
}

impl MemoryDisk {
    /// From now on this goes wrong, too.
    pub fn fail(&self, fault: Fault) {
        self.0.lock().faults.push(fault);
    }

    /// Nothing goes wrong any more.
    pub fn heal(&self) {
        self.0.lock().faults.clear();
    }

    /// The process has ended: through files that it had open nothing is done any more.
    pub fn end_process(&self) {
        self.0.lock().process += 1;
    }

    /// The disk has room for so much, or for everything.
    pub fn limit(&self, capacity: Option<u64>) {
        self.0.lock().capacity = capacity;
    }

    /// From now on each request waits so long.
    pub fn wait(&self, turn: DiskTurn) {
        self.0.lock().turn = Some(turn);
    }

    /// From now on what may outlive its request runs so.
    pub fn run_tasks(&self, tasks: RunsTasks) {
        self.0.lock().tasks = Some(tasks);
    }

    /// Loses power: each write that was not synced is there afterwards or not, as `decide` says.
    pub fn lose_power(&self, decide: Decide<'_>) {
        let mut state = self.0.lock();
        let state = &mut *state;
        state.process += 1;
        let mut lost = BTreeSet::new();
        for (path, file) in std::mem::take(&mut state.renamed) {
            // Of each name a prefix stays.
            if lost.contains(&path) || decide(2) == 0 {
                lost.insert(path);
                continue;
            }
            match file {
                Some(file) => state.synced_names.insert(path, file),
                None => state.synced_names.remove(&path),
            };
        }
        state.names = state.synced_names.clone();
        let named: BTreeSet<u64> = state.names.values().copied().collect();
        state.files.retain(|file, _| named.contains(file));
        state.files.values_mut().for_each(|file| file.lose_power(decide));
    }

    /// A file is removed behind the server's back, for good: who has it open keeps it.
    pub fn take_away(&self, path: &str) {
        let mut state = self.0.lock();
        state.names.remove(path);
        state.synced_names.remove(path);
        state.renamed.retain(|(renamed, _)| renamed != path);
    }

    /// All names.
    pub fn paths(&self) -> Vec<String> {
        self.0.lock().names.keys().cloned().collect()
    }

    fn handle(&self, file: u64, process: u64) -> MemoryFile {
        MemoryFile { disk: self.clone(), file, process }
    }
}

impl Disk for MemoryDisk {
    type File = MemoryFile;
    type Directory = String;

    const WAITS: bool = false;

    async fn turn(&self) {
        let turn = self.0.lock().turn.clone();
        if let Some(turn) = turn {
            turn().await;
        }
    }

    fn spawn(&self, mut task: DiskTask) {
        let tasks = self.0.lock().tasks.clone();
        match tasks {
            Some(run) => run(task),
            // Where requests do not wait, it comes to its end at once.
            None => _ = task.as_mut().poll(&mut Context::from_waker(Waker::noop())),
        }
    }

    fn open(&self, path: &str) -> DiskResult<MemoryFile> {
        let mut state = self.0.lock();
        state.fails(DiskOperation::Open, path)?;
        let file = state.names.get(path).ok_or(Errno::NOENT)?;
        Ok(self.handle(*file, state.process))
    }

    fn create(&self, path: &str) -> DiskResult<MemoryFile> {
        match self.open(path) {
            Err(Errno::NOENT) => {}
            result => return result,
        }
        let mut state = self.0.lock();
        state.next_file += 1;
        let file = state.next_file;
        path.clone_into(&mut state.file(file).path);
        state.name(path, Some(file));
        Ok(self.handle(file, state.process))
    }

    fn unlink(&self, path: &str) -> DiskResult<()> {
        let mut state = self.0.lock();
        if !state.names.contains_key(path) {
            return Err(Errno::NOENT);
        }
        state.name(path, None);
        Ok(())
    }

    fn names(&self, directory: &str) -> io::Result<Vec<OsString>> {
        let mut state = self.0.lock();
        state.fails(DiskOperation::List, &format!("{directory}/"))?;
        let paths = state.names.keys().filter_map(|path| path.split_once('/'));
        Ok(paths.filter(|(parent, _)| *parent == directory).map(|(_, name)| name.into()).collect())
    }

    fn size(&self, path: &str) -> DiskResult<u64> {
        self.open(path)?.stat().map(|stat| stat.size)
    }

    fn directory(&self, directory: &str) -> DiskResult<String> {
        let path = format!("{directory}/");
        self.0.lock().fails(DiskOperation::Open, &path)?;
        Ok(path)
    }

    fn sync_directory(&self, directory: &String) -> DiskResult<()> {
        let mut state = self.0.lock();
        state.fails(DiskOperation::Sync, directory)?;
        state.sync_names(|path| path.starts_with(directory));
        Ok(())
    }

    fn sync_all(&self) -> DiskResult<()> {
        let mut state = self.0.lock();
        if let Err(errno) = state.fails(DiskOperation::Sync, "") {
            state.files.values_mut().for_each(Inode::forget_blocks);
            return Err(errno);
        }
        state.sync_names(|_| true);
        state.files.values_mut().for_each(Inode::sync);
        Ok(())
    }

    fn space(&self) -> DiskResult<DiskSpace> {
        let state = self.0.lock();
        let total = state.capacity.unwrap_or(u64::MAX / 4);
        let free = total.saturating_sub(state.used());
        Ok(DiskSpace { total, free, available: free, file_system: 0 })
    }

    fn file_bytes_max(&self) -> u64 {
        FILE_BYTES_MAX
    }
}

impl MemoryFile {
    fn state(&self) -> DiskResult<MutexGuard<'_, DiskContents>> {
        let state = self.disk.0.lock();
        if state.process == self.process { Ok(state) } else { Err(Errno::BADF) }
    }

    /// The contents of the disk, to read the state of the file.
    fn state_read(&self) -> DiskResult<MutexGuard<'_, DiskContents>> {
        let mut state = self.state()?;
        let path = state.file(self.file).path.clone();
        state.fails(DiskOperation::State, &path)?;
        Ok(state)
    }

    fn change(&self, change: Change) -> DiskResult<()> {
        self.state()?.file(self.file).change(change);
        Ok(())
    }
}

impl DiskFile for MemoryFile {
    fn read(&self, buffer: &mut [u8], offset: u64) -> DiskResult<usize> {
        let mut state = self.state()?;
        let path = state.file(self.file).path.clone();
        state.fails(DiskOperation::Read, &path)?;
        Ok(state.file(self.file).now.read(buffer, offset))
    }

    fn read_cached(&self, buffer: &mut [u8], offset: u64) -> DiskResult<usize> {
        self.read(buffer, offset)
    }

    fn write(&self, data: &[u8], offset: u64) -> DiskResult<usize> {
        self.state()?.write(self.file, data, offset)
    }

    fn set_size(&self, size: u64) -> DiskResult<()> {
        if size > FILE_BYTES_MAX {
            return Err(Errno::FBIG);
        }
        self.change(Change::Size(size))
    }

    fn allocate(&self, mode: i32, offset: u64, len: u64) -> DiskResult<()> {
        let end = offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX);
        let (end, keeps) = (end.ok_or(Errno::FBIG)?, libc::FALLOC_FL_KEEP_SIZE);
        let size = self.state()?.file(self.file).now.size;
        if mode == keeps | libc::FALLOC_FL_PUNCH_HOLE {
            return self.change(Change::Hole(offset, end));
        }
        match mode & !keeps {
            0 => {}
            libc::FALLOC_FL_ZERO_RANGE => self.change(Change::Hole(offset, end))?,
            _ => return Err(Errno::OPNOTSUPP),
        }
        if mode & keeps == 0 && end > size { self.change(Change::Grow(end)) } else { Ok(()) }
    }

    fn is_allocated(&self, offset: u64, len: u64) -> bool {
        let Some(end) = offset.checked_add(len) else { return false };
        let Ok(mut state) = self.state() else { return false };
        let blocks = &state.file(self.file).now.blocks;
        (offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)).all(|index| blocks.contains_key(&index))
    }

    fn seek(&self, offset: u64, hole: bool) -> DiskResult<u64> {
        let mut state = self.state()?;
        let content = &state.file(self.file).now;
        if offset >= content.size {
            return Err(Errno::NXIO);
        }
        let first = offset / BLOCK_BYTES;
        let found = match hole {
            true => (first..).find(|index| !content.blocks.contains_key(index)),
            false => content.blocks.range(first..).next().map(|(index, _)| *index),
        };
        let found = found.map_or(content.size, |index| offset.max(index * BLOCK_BYTES));
        match hole {
            true => Ok(found.min(content.size)),
            false if found < content.size => Ok(found),
            false => Err(Errno::NXIO),
        }
    }

    fn stat(&self) -> DiskResult<Stat> {
        let mut state = self.state_read()?;
        let content = &state.file(self.file).now;
        let blocks = (content.blocks.len() as u64 * BLOCK_BYTES).div_ceil(512);
        Ok(Stat { size: content.size, blocks, mtime: content.mtime })
    }

    fn set_mtime(&self, mtime: Timestamp) -> DiskResult<()> {
        self.change(Change::Time(mtime))
    }

    fn attribute(&self, name: &str, value: &mut [u8]) -> DiskResult<usize> {
        let mut state = self.state_read()?;
        let found = state.file(self.file).now.attributes.get(name).ok_or(Errno::NODATA)?;
        value.get_mut(..found.len()).ok_or(Errno::RANGE)?.copy_from_slice(found);
        Ok(found.len())
    }

    fn set_attribute(&self, name: &str, value: &[u8]) -> DiskResult<()> {
        let mut state = self.state()?;
        let path = state.file(self.file).path.clone();
        state.fails(DiskOperation::SetAttribute, &path)?;
        drop(state);
        self.change(Change::Attribute(name.to_owned(), Some(value.to_vec())))
    }

    fn remove_attribute(&self, name: &str) -> DiskResult<()> {
        self.change(Change::Attribute(name.to_owned(), None))
    }

    fn sync(&self) -> DiskResult<()> {
        let mut state = self.state()?;
        let path = state.file(self.file).path.clone();
        let result = state.fails(DiskOperation::Sync, &path);
        let inode = state.file(self.file);
        match result {
            Ok(()) => inode.sync(),
            Err(_) => inode.forget_blocks(),
        }
        result
    }
}

//! A file system that answers from memory and stores no data: the limit of what a
//! mount can do, against which `glint bench` compares.

use glint_client::{
    Caching, Caller, Found, FsStat, Handle, Kernel, Listing, Make, Open, Valid, Vfs, WriteHow,
};
use glint_proto::limits::FILE_BYTES_MAX;
use glint_proto::{
    Attr, DirEntry, Errno, FileType, FsResult, Ino, OpenFlags, PosixLock, RenameFlags, SetAttr,
    SetTime, Timestamp, XattrFlags,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

const CACHE_TIME: Duration = Duration::from_millis(glint_proto::limits::CACHE_MS_ALONE);

fn found(attr: Attr) -> Found {
    Found { attr, valid: Valid::timed(CACHE_TIME) }
}

struct NullInode {
    attr: Attr,
    entries: BTreeMap<Vec<u8>, Ino>,
    target: Vec<u8>,
}

struct Tree {
    nodes: HashMap<Ino, NullInode>,
    next: u64,
}

/// The file system.
pub struct NullFs {
    tree: Mutex<Tree>,
}

impl Default for NullFs {
    fn default() -> NullFs {
        let attr = Attr::new(Ino::ROOT, FileType::Directory.mode_bits() | 0o777, Timestamp::now());
        let root = NullInode { attr, entries: BTreeMap::new(), target: Vec::new() };
        let tree = Tree { nodes: HashMap::from([(Ino::ROOT, root)]), next: 2 };
        NullFs { tree: Mutex::new(tree) }
    }
}

impl Tree {
    fn node(&mut self, ino: Ino) -> FsResult<&mut NullInode> {
        self.nodes.get_mut(&ino).ok_or(Errno::ENOENT)
    }

    fn find(&mut self, parent: Ino, name: &[u8]) -> FsResult<Ino> {
        self.node(parent)?.entries.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn make(
        &mut self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        make: Make<'_>,
    ) -> FsResult<Attr> {
        let ino = Ino(self.next);
        let directory = self.node(parent)?;
        if directory.entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        directory.entries.insert(name.to_vec(), ino);
        let mut attr = Attr::new(ino, make.mode & !make.umask, Timestamp::now());
        (attr.uid, attr.gid) = (caller.cred.uid, caller.cred.gid);
        self.next += 1;
        let node = NullInode { attr, entries: BTreeMap::new(), target: make.target.to_vec() };
        let attr = node.attr.clone();
        self.nodes.insert(ino, node);
        Ok(attr)
    }

    fn remove(&mut self, parent: Ino, name: &[u8]) -> FsResult<()> {
        let ino = self.node(parent)?.entries.remove(name).ok_or(Errno::ENOENT)?;
        self.nodes.remove(&ino);
        Ok(())
    }
}

impl Vfs for NullFs {
    fn caching(&self) -> Caching {
        Caching::Alone
    }

    fn negative_time(&self) -> Duration {
        CACHE_TIME
    }

    fn set_kernel(&self, _: Arc<dyn Kernel>) {}

    fn forget(&self, _: Ino, _: u64) {}

    async fn cancel_posix_lock(&self, _: Ino, _: u64) {}

    fn is_away(&self) -> bool {
        false
    }

    async fn flush(&self, _: Handle) -> FsResult<()> {
        Ok(())
    }

    fn may_have_posix_locks(&self, _: Ino) -> bool {
        false
    }

    async fn posix_lock(&self, _: Handle, _: PosixLock) -> FsResult<Option<PosixLock>> {
        Err(Errno::ENOSYS)
    }

    async fn lookup(&self, _: &Caller, parent: Ino, name: &[u8]) -> FsResult<Found> {
        let mut tree = self.tree.lock();
        let ino = tree.find(parent, name)?;
        Ok(found(tree.node(ino)?.attr.clone()))
    }

    async fn getattr(&self, ino: Ino) -> FsResult<Found> {
        Ok(found(self.tree.lock().node(ino)?.attr.clone()))
    }

    async fn setattr(&self, _: &Caller, ino: Ino, set: &SetAttr) -> FsResult<Found> {
        let mut tree = self.tree.lock();
        let attr = &mut tree.node(ino)?.attr;
        let time = |set| match set {
            SetTime::Now => Timestamp::now(),
            SetTime::At(time) => time,
        };
        attr.mode = set.mode.map_or(attr.mode, |mode| (attr.mode & !0o7777) | mode);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.size = set.size.unwrap_or(attr.size);
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        Ok(found(attr.clone()))
    }

    async fn readlink(&self, ino: Ino) -> FsResult<Vec<u8>> {
        Ok(self.tree.lock().node(ino)?.target.clone())
    }

    async fn make(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        make: Make<'_>,
    ) -> FsResult<Found> {
        self.tree.lock().make(caller, parent, name, make).map(found)
    }

    async fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        make: Make<'_>,
        _: i32,
    ) -> FsResult<Open> {
        let mut tree = self.tree.lock();
        let attr = match tree.make(caller, parent, name, make) {
            Err(Errno::EEXIST) => {
                let ino = tree.find(parent, name)?;
                tree.node(ino)?.attr.clone()
            }
            attr => attr?,
        };
        let valid = Valid::timed(CACHE_TIME);
        Ok(Open { handle: Handle(attr.ino.0), attr, valid, created: true })
    }

    async fn tmpfile(&self, _: &Caller, _: Ino, _: u32, _: u32) -> FsResult<Open> {
        Err(Errno::EOPNOTSUPP)
    }

    async fn open(&self, _: &Caller, ino: Ino, flags: OpenFlags) -> FsResult<Open> {
        let mut tree = self.tree.lock();
        let attr = &mut tree.node(ino)?.attr;
        if flags.truncate {
            attr.size = 0;
        }
        let valid = Valid::timed(CACHE_TIME);
        Ok(Open { attr: attr.clone(), handle: Handle(ino.0), valid, created: false })
    }

    async fn release(&self, _: Handle) -> FsResult<()> {
        Ok(())
    }

    async fn read(
        &self,
        handle: Handle,
        offset: u64,
        buffer: &mut [u8],
        _: bool,
    ) -> FsResult<usize> {
        let size = self.tree.lock().node(Ino(handle.0))?.attr.size;
        let len = (size.saturating_sub(offset) as usize).min(buffer.len());
        buffer[..len].fill(0);
        Ok(len)
    }

    async fn write(&self, handle: Handle, offset: u64, data: &[u8], _: WriteHow) -> FsResult<()> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        let mut tree = self.tree.lock();
        let attr = &mut tree.node(Ino(handle.0))?.attr;
        attr.size = attr.size.max(end.ok_or(Errno::EFBIG)?);
        Ok(())
    }

    async fn fsync(&self, _: Handle) -> FsResult<()> {
        Ok(())
    }

    async fn sync(&self) -> FsResult<()> {
        Ok(())
    }

    async fn fallocate(&self, _: &Caller, _: Handle, _: i32, _: u64, _: u64) -> FsResult<()> {
        Err(Errno::EOPNOTSUPP)
    }

    async fn lseek(&self, _: Handle, _: u64, _: bool) -> FsResult<u64> {
        Err(Errno::EINVAL)
    }

    async fn copy_range(
        &self,
        _: &Caller,
        _: (Handle, u64),
        _: (Handle, u64),
        _: u64,
    ) -> FsResult<u64> {
        Err(Errno::EOPNOTSUPP)
    }

    async fn opendir(&self, _: &Caller, ino: Ino) -> FsResult<Handle> {
        Ok(Handle(ino.0))
    }

    async fn readdir(
        &self,
        _: &Caller,
        handle: Handle,
        cookie: u64,
        _: u32,
        plus: bool,
    ) -> FsResult<Listing> {
        let mut tree = self.tree.lock();
        let all: Vec<(Vec<u8>, Ino)> = tree
            .node(Ino(handle.0))?
            .entries
            .iter()
            .skip(cookie as usize)
            .take(256)
            .map(|(name, ino)| (name.clone(), *ino))
            .collect();
        let mut page = Listing::default();
        for (index, (name, ino)) in all.into_iter().enumerate() {
            let attr = tree.node(ino)?.attr.clone();
            page.valid.push(Valid::timed(CACHE_TIME));
            page.entries.push(DirEntry {
                ino,
                cookie: cookie.saturating_add(index as u64 + 1),
                dirent_type: attr.file_type().dirent_type(),
                name,
                attr: plus.then_some(attr),
            });
        }
        Ok(page)
    }

    async fn link(&self, _: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> FsResult<Found> {
        let mut tree = self.tree.lock();
        tree.node(parent)?.entries.insert(name.to_vec(), ino);
        let attr = &mut tree.node(ino)?.attr;
        attr.nlink += 1;
        Ok(found(attr.clone()))
    }

    async fn unlink(&self, _: &Caller, parent: Ino, name: &[u8]) -> FsResult<Option<Ino>> {
        self.tree.lock().remove(parent, name).map(|()| None)
    }

    async fn rmdir(&self, _: &Caller, parent: Ino, name: &[u8]) -> FsResult<()> {
        self.tree.lock().remove(parent, name)
    }

    async fn rename(
        &self,
        _: &Caller,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        _: RenameFlags,
    ) -> FsResult<Option<Ino>> {
        let mut tree = self.tree.lock();
        let ino = tree.node(parent)?.entries.remove(name).ok_or(Errno::ENOENT)?;
        if let Some(old) = tree.node(new_parent)?.entries.insert(new_name.to_vec(), ino) {
            tree.nodes.remove(&old);
        }
        Ok(None)
    }

    async fn getxattr(&self, _: &Caller, _: Ino, _: &[u8], _: usize) -> FsResult<Vec<u8>> {
        Err(Errno::ENODATA)
    }

    async fn setxattr(
        &self,
        _: &Caller,
        _: Ino,
        _: &[u8],
        _: &[u8],
        _: XattrFlags,
    ) -> FsResult<()> {
        Err(Errno::EOPNOTSUPP)
    }

    async fn listxattr(&self, _: Ino) -> FsResult<Vec<u8>> {
        Ok(Vec::new())
    }

    async fn removexattr(&self, _: &Caller, _: Ino, _: &[u8]) -> FsResult<()> {
        Err(Errno::ENODATA)
    }

    async fn statfs(&self) -> FsResult<FsStat> {
        Ok(FsStat { total: 1 << 40, free: 1 << 40, available: 1 << 40, inodes: 0 })
    }
}

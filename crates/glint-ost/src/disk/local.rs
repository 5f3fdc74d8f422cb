//! Files of a local file system. Every access is relative to one descriptor that is held open,
//! so a path has two components.

use super::lease::is_alone;
use super::{Disk, DiskFile, DiskResult, DiskSpace, Stat};
use crate::store::allocated::is_allocated;
use glint_proto::Timestamp;
use glint_proto::limits::FILE_BYTES_MAX;
use rustix::fs::{Advice, AtFlags, FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const OPEN: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC).union(OFlags::NOATIME);
const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOATIME);
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Bytes that the kernel reads ahead at once, however many are asked for, unless its defaults were
/// changed.
const READ_AHEAD_BYTES: u64 = 128 << 10;

/// RWF_DONTCACHE of linux/fs.h.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
/// The first version of Linux in which it is right: in 6.14 pages could be freed twice, and 6.15 has
/// it switched off ("Disable FOP_DONTCACHE for now due to bugs").
const DONTCACHE_SINCE: (u32, u32) = (6, 16);

/// Types of file systems whose files lie in memory: TMPFS_MAGIC and RAMFS_MAGIC of linux/magic.h. They
/// know no read that may not wait (RWF_NOWAIT). Pages of tmpfs that were swapped out are read from a
/// device all the same, in the calling thread: an OST in memory needs a host that does not swap it.
const OF_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// Whether this kernel may be asked to keep nothing of what is read or written.
fn has_dontcache() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        version(&rustix::system::uname().release().to_string_lossy()) >= Some(DONTCACHE_SINCE)
    })
}

/// The version in the name of a release, as 6.18.5-generic.
pub(super) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// A directory that is held open.
pub struct LocalDisk {
    path: PathBuf,
    directory: OwnedFd,
    is_memory: bool,
}

impl LocalDisk {
    /// Opens a directory.
    pub fn open(path: &Path) -> io::Result<LocalDisk> {
        let directory = rustix::fs::open(path, DIRECTORY, Mode::empty())?;
        // It is a slower way, and no error, if that is not known.
        let is_memory = rustix::fs::fstatfs(&directory)
            .is_ok_and(|system| OF_MEMORY.contains(&(system.f_type as u32)));
        Ok(LocalDisk { path: path.to_owned(), directory, is_memory })
    }

    /// The same, taken for a file system on a device.
    #[cfg(test)]
    pub(crate) fn on_a_device(self) -> LocalDisk {
        LocalDisk { is_memory: false, ..self }
    }
}

/// Offset at which the largest file ends that the file system of `dir` can have: no call tells it,
/// but no descriptor can be moved past it. Where the file system has no files without names it is
/// not known.
fn file_bytes_max(dir: BorrowedFd<'_>) -> u64 {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(dir, ".", flags, Mode::from(0o600)) else {
        return FILE_BYTES_MAX;
    };
    let (mut fits, mut ends) = (0, FILE_BYTES_MAX + 1);
    while ends - fits > 1 {
        let middle = fits + (ends - fits) / 2;
        match rustix::fs::seek(&file, SeekFrom::Start(middle)) {
            Ok(_) => fits = middle,
            Err(_) => ends = middle,
        }
    }
    fits
}

impl Disk for LocalDisk {
    type File = OwnedFd;
    type Directory = OwnedFd;

    const WAITS: bool = true;

    fn open(&self, path: &str) -> DiskResult<OwnedFd> {
        rustix::fs::openat(&self.directory, path, OPEN, Mode::empty())
    }

    fn open_to_read(&self, path: &str) -> DiskResult<OwnedFd> {
        rustix::fs::openat(&self.directory, path, READ, Mode::empty())
    }

    fn open_uncached(&self, path: &str) -> DiskResult<OwnedFd> {
        match rustix::fs::openat(&self.directory, path, READ | OFlags::DIRECT, Mode::empty()) {
            Err(Errno::INVAL) => self.open_to_read(path),
            opened => opened,
        }
    }

    fn create(&self, path: &str) -> DiskResult<OwnedFd> {
        let mode = Mode::from(0o600);
        rustix::fs::openat(&self.directory, path, OPEN | OFlags::CREATE, mode)
    }

    fn unlink(&self, path: &str) -> DiskResult<()> {
        rustix::fs::unlinkat(&self.directory, path, AtFlags::empty())
    }

    fn names(&self, directory: &str) -> io::Result<Vec<OsString>> {
        let entries = std::fs::read_dir(self.path.join(directory))?;
        entries.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn size(&self, path: &str) -> DiskResult<u64> {
        let stat = rustix::fs::statat(&self.directory, path, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(stat.st_size as u64)
    }

    fn directory(&self, directory: &str) -> DiskResult<OwnedFd> {
        rustix::fs::openat(&self.directory, directory, DIRECTORY, Mode::empty())
    }

    fn sync_directory(&self, directory: &OwnedFd) -> DiskResult<()> {
        rustix::fs::fsync(directory)
    }

    fn sync_all(&self) -> DiskResult<()> {
        rustix::fs::syncfs(&self.directory)
    }

    fn space(&self) -> DiskResult<DiskSpace> {
        let vfs = rustix::fs::fstatvfs(&self.directory)?;
        Ok(DiskSpace {
            total: vfs.f_blocks * vfs.f_frsize,
            free: vfs.f_bfree * vfs.f_frsize,
            available: vfs.f_bavail * vfs.f_frsize,
            file_system: vfs.f_fsid,
        })
    }

    fn file_bytes_max(&self) -> u64 {
        file_bytes_max(self.directory.as_fd())
    }

    fn is_memory(&self) -> bool {
        self.is_memory
    }
}

impl DiskFile for OwnedFd {
    fn read(&self, buffer: &mut [u8], offset: u64) -> DiskResult<usize> {
        rustix::io::pread(self, buffer, offset)
    }

    fn read_cached(&self, buffer: &mut [u8], offset: u64) -> DiskResult<usize> {
        let mut buffer = [IoSliceMut::new(buffer)];
        rustix::io::preadv2(self, &mut buffer, offset, ReadWriteFlags::NOWAIT)
    }

    fn read_passing(&self, buffer: &mut [u8], offset: u64) -> DiskResult<usize> {
        if !has_dontcache() {
            return Err(Errno::OPNOTSUPP);
        }
        rustix::io::preadv2(self, &mut [IoSliceMut::new(buffer)], offset, DONTCACHE)
    }

    fn write_passing(&self, data: &[u8], offset: u64) -> DiskResult<usize> {
        if !has_dontcache() {
            return Err(Errno::OPNOTSUPP);
        }
        rustix::io::pwritev2(self, &[IoSlice::new(data)], offset, DONTCACHE)
    }

    fn will_need(&self, from: u64, len: u64) {
        let (mut from, end) = (from, from.saturating_add(len));
        while from < end {
            let len = NonZeroU64::new(READ_AHEAD_BYTES.min(end - from));
            // It is an advice.
            let _ = rustix::fs::fadvise(self, from, len, Advice::WillNeed);
            from = from.saturating_add(READ_AHEAD_BYTES);
        }
    }

    fn drop_cached(&self, from: u64, to: u64) {
        // Without a length it is up to the end of the file.
        let len = NonZeroU64::new(to.saturating_sub(from)).filter(|_| to <= FILE_BYTES_MAX);
        if to > from {
            // It is an advice.
            let _ = rustix::fs::fadvise(self, from, len, Advice::DontNeed);
        }
    }

    fn write(&self, data: &[u8], offset: u64) -> DiskResult<usize> {
        rustix::io::pwrite(self, data, offset)
    }

    fn set_size(&self, size: u64) -> DiskResult<()> {
        rustix::fs::ftruncate(self, size)
    }

    fn allocate(&self, mode: i32, offset: u64, len: u64) -> DiskResult<()> {
        let flags = FallocateFlags::from_bits_retain(mode as u32);
        rustix::fs::fallocate(self, flags, offset, len)
    }

    fn is_allocated(&self, offset: u64, len: u64) -> bool {
        is_allocated(self, offset, len)
    }

    fn seek(&self, offset: u64, hole: bool) -> DiskResult<u64> {
        let from = if hole { SeekFrom::Hole(offset) } else { SeekFrom::Data(offset) };
        rustix::fs::seek(self, from)
    }

    fn stat(&self) -> DiskResult<Stat> {
        let stat = rustix::fs::fstat(self)?;
        let mtime = Timestamp { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 };
        Ok(Stat { size: stat.st_size as u64, blocks: stat.st_blocks as u64, mtime })
    }

    fn set_mtime(&self, mtime: Timestamp) -> DiskResult<()> {
        let last_access = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let last_modification =
            rustix::fs::Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() };
        rustix::fs::futimens(self, &rustix::fs::Timestamps { last_access, last_modification })
    }

    fn attribute(&self, name: &str, value: &mut [u8]) -> DiskResult<usize> {
        rustix::fs::fgetxattr(self, name, value)
    }

    fn set_attribute(&self, name: &str, value: &[u8]) -> DiskResult<()> {
        rustix::fs::fsetxattr(self, name, value, rustix::fs::XattrFlags::empty())
    }

    fn remove_attribute(&self, name: &str) -> DiskResult<()> {
        rustix::fs::fremovexattr(self, name)
    }

    fn sync(&self) -> DiskResult<()> {
        rustix::fs::fsync(self)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn is_alone(&self) -> bool {
        is_alone(self.as_fd())
    }
}

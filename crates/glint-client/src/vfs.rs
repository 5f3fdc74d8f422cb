//! The calls that a file system answers, by inode number. Errors are those of the
//! system calls of the same name.

use glint_proto::{
    Attr, Cred, DirPage, FsResult, Ino, OpenFlags, RenameFlags, SetAttr, XattrFlags,
};
use std::future::Future;
use std::time::Duration;

/// Who calls.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Credentials.
    pub cred: Cred,
    /// Process, to look up supplementary groups if an answer depends on them; 0 if
    /// there is none.
    pub pid: u32,
}

impl Caller {
    /// The superuser.
    pub const ROOT: Caller = Caller { cred: Cred::ROOT, pid: 0 };
}

/// Names an open file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(pub u64);

/// An open file.
#[derive(Clone, Debug)]
pub struct Open {
    /// Its attributes when it was opened.
    pub attr: Attr,
    /// Names it.
    pub handle: Handle,
}

/// What to make with a name.
#[derive(Clone, Copy, Debug)]
pub struct Make<'a> {
    /// Type and permission bits.
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
    /// Device number, for devices.
    pub rdev: u32,
    /// Target, for symbolic links.
    pub target: &'a [u8],
}

/// statfs(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FsStat {
    /// Bytes in all.
    pub total: u64,
    /// Bytes not used.
    pub free: u64,
    /// Bytes users may still write.
    pub available: u64,
    /// Inodes in use.
    pub inodes: u64,
}

/// A file system.
#[allow(missing_docs)] // Each call is documented by its man page, section 2.
pub trait Vfs: Send + Sync + 'static {
    /// How long attributes and entries may be cached.
    fn cache_time(&self) -> Duration;
    /// Whether no other client can change anything.
    fn is_alone(&self) -> bool;

    fn lookup(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
    ) -> impl Future<Output = FsResult<Attr>>;
    fn getattr(&self, ino: Ino) -> impl Future<Output = FsResult<Attr>>;
    fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        set: &SetAttr,
    ) -> impl Future<Output = FsResult<Attr>>;
    fn readlink(&self, ino: Ino) -> impl Future<Output = FsResult<Vec<u8>>>;
    fn make(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        make: Make<'_>,
    ) -> impl Future<Output = FsResult<Attr>>;
    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        make: Make<'_>,
        flags: i32,
    ) -> impl Future<Output = FsResult<Open>>;
    fn tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        mode: u32,
        umask: u32,
    ) -> impl Future<Output = FsResult<Open>>;
    fn open(
        &self,
        caller: &Caller,
        ino: Ino,
        flags: OpenFlags,
    ) -> impl Future<Output = FsResult<Open>>;
    fn release(&self, handle: Handle) -> impl Future<Output = FsResult<()>>;
    fn read(
        &self,
        handle: Handle,
        offset: u64,
        buffer: &mut [u8],
    ) -> impl Future<Output = FsResult<usize>>;
    fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        sync: bool,
    ) -> impl Future<Output = FsResult<()>>;
    fn fsync(&self, ino: Ino) -> impl Future<Output = FsResult<()>>;
    fn sync(&self) -> impl Future<Output = FsResult<()>>;
    fn fallocate(
        &self,
        handle: Handle,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> impl Future<Output = FsResult<()>>;
    fn lseek(&self, handle: Handle, offset: u64, hole: bool)
    -> impl Future<Output = FsResult<u64>>;
    fn copy_range(
        &self,
        from: (Handle, u64),
        to: (Handle, u64),
        len: u64,
    ) -> impl Future<Output = FsResult<u64>>;
    fn opendir(&self, caller: &Caller, ino: Ino) -> impl Future<Output = FsResult<Handle>>;
    fn readdir(
        &self,
        caller: &Caller,
        handle: Handle,
        cookie: u64,
        bytes_max: u32,
        plus: bool,
    ) -> impl Future<Output = FsResult<DirPage>>;
    fn link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
    ) -> impl Future<Output = FsResult<Attr>>;
    fn unlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
    ) -> impl Future<Output = FsResult<()>>;
    fn rmdir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
    ) -> impl Future<Output = FsResult<()>>;
    fn rename(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> impl Future<Output = FsResult<()>>;
    fn getxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
    ) -> impl Future<Output = FsResult<Vec<u8>>>;
    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> impl Future<Output = FsResult<()>>;
    fn listxattr(&self, ino: Ino) -> impl Future<Output = FsResult<Vec<u8>>>;
    fn removexattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
    ) -> impl Future<Output = FsResult<()>>;
    fn statfs(&self) -> impl Future<Output = FsResult<FsStat>>;
}

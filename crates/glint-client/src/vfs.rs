//! The calls that a file system answers, by inode number. Errors are those of the
//! system calls of the same name.

use crate::kernel::Kernel;
use glint_proto::{
    Attr, Cred, DirEntry, FsResult, Ino, LocalObject, OpenFlags, PosixLock, RenameFlags, SetAttr,
    XattrFlags,
};
use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

/// Caller of an operation.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Credentials.
    pub cred: Cred,
    /// Process, to look up supplementary groups if an answer depends on them; 0 if
    /// there is none.
    pub pid: u32,
}

impl Caller {
    /// Whether nothing has to be checked: the kernel did, or there are no limits to it.
    pub(crate) fn may_all(&self) -> bool {
        self.pid != 0 || self.cred.is_superuser()
    }

    /// The superuser.
    pub const ROOT: Caller = Caller { cred: Cred::ROOT, pid: 0 };
}

/// Names an open file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(pub u64);

/// For how long a caller may rely on an answer without asking again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Valid {
    /// The entry: the name leads to the inode.
    pub entry: Duration,
    /// The attributes.
    pub attr: Duration,
}

impl Valid {
    /// For ever: a lock protects it, and whoever relies on it is told.
    pub const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

    /// Under the locks that are held.
    pub fn under(entry: bool, attr: bool) -> Valid {
        let time = |held| if held { Valid::FOREVER } else { Duration::ZERO };
        Valid { entry: time(entry), attr: time(attr) }
    }

    /// Without locks, for some time.
    pub fn timed(time: Duration) -> Valid {
        Valid { entry: time, attr: time }
    }

    /// Validity without that of the attributes: they may have changed before the caller hears of
    /// them.
    pub fn without_attr(self) -> Valid {
        Valid { attr: Duration::ZERO, ..self }
    }
}

/// An inode that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Attributes of the inode.
    pub attr: Attr,
    /// For how long.
    pub valid: Valid,
}

/// A page of a directory.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Names, and inodes if they were asked for.
    pub entries: Vec<DirEntry>,
    /// For each of them.
    pub valid: Vec<Valid>,
}

/// How far a file system can be cached by who calls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caching {
    /// No other client can change anything.
    Alone,
    /// Locks protect what is cached.
    Locked,
    /// For a time.
    Timed,
}

/// An open file.
#[derive(Clone, Debug)]
pub struct Open {
    /// Attributes of the file when it was opened.
    pub attr: Attr,
    /// For how long.
    pub valid: Valid,
    /// Whether this open made the file.
    pub created: bool,
    /// Names it.
    pub handle: Handle,
}

/// Inode to make with a name.
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

/// How data is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteHow {
    /// Data is on stable storage before the call returns (O_SYNC).
    pub sync: bool,
    /// Data comes from pages of the kernel, which stay locked meanwhile.
    pub pages: bool,
    /// Who writes.
    pub writer: Writer,
}

/// Writer of data, by which set-id bits are kept or taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Writer {
    /// A member of no group: takes all.
    #[default]
    Anybody,
    /// A process without CAP_FSETID: set-group-id without the right to execute stays if it is in the
    /// group of the file.
    Process {
        /// File system user id.
        uid: u32,
        /// File system group id.
        gid: u32,
        /// See [`Caller::pid`].
        pid: u32,
    },
    /// Takes none (CAP_FSETID).
    Privileged,
}

impl Writer {
    /// A caller, of which the superuser has CAP_FSETID.
    pub fn of(caller: &Caller) -> Writer {
        let Caller { cred: Cred { uid, gid, .. }, pid } = *caller;
        if caller.cred.is_superuser() {
            Writer::Privileged
        } else {
            Writer::Process { uid, gid, pid }
        }
    }
}

/// A file system.
#[allow(missing_docs)] // Each call is documented by its man page, section 2.
pub trait Vfs: Send + Sync + 'static {
    /// The directory that is its root.
    fn root(&self) -> Ino {
        Ino::ROOT
    }
    /// How far it can be cached.
    fn caching(&self) -> Caching;
    /// How long it may be remembered that a name is free.
    fn negative_time(&self) -> Duration;
    /// There is a kernel that remembers what it is told, until it says that it forgets.
    fn set_kernel(&self, kernel: Arc<dyn Kernel>);
    /// Notes that a program calls something about files. Of who may return its locks when nobody has
    /// used it for long, each call is to be noted but those of programs that only watch.
    fn note_use(&self) {}
    /// The kernel forgets an inode that it was told of so many times.
    fn forget(&self, ino: Ino, lookups: u64);

    fn lookup(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
    ) -> impl Future<Output = FsResult<Found>>;
    fn getattr(&self, ino: Ino) -> impl Future<Output = FsResult<Found>>;
    fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        set: &SetAttr,
    ) -> impl Future<Output = FsResult<Found>>;
    fn readlink(&self, ino: Ino) -> impl Future<Output = FsResult<Vec<u8>>>;
    fn make(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        make: Make<'_>,
    ) -> impl Future<Output = FsResult<Found>>;
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
    /// Hands the object with all data of an open file to the kernel, which reads it by itself, until
    /// the file is released; `None` if that cannot be.
    fn hand_out(
        &self,
        _handle: Handle,
    ) -> impl Future<Output = FsResult<Option<Arc<dyn LocalObject>>>> {
        ready(Ok(None))
    }
    /// Notes that the kernel reads an open file by itself and, with `stores`, may change it unseen
    /// until it is released.
    fn note_passed(&self, _handle: Handle, _stores: bool) -> impl Future<Output = ()> {
        ready(())
    }
    fn release(&self, handle: Handle) -> impl Future<Output = FsResult<()>>;
    /// Reads; for `pages` of a kernel, which it keeps locked until this is done.
    fn read(
        &self,
        handle: Handle,
        offset: u64,
        buffer: &mut [u8],
        pages: bool,
    ) -> impl Future<Output = FsResult<usize>>;
    fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        how: WriteHow,
    ) -> impl Future<Output = FsResult<()>>;
    fn flush(&self, handle: Handle) -> impl Future<Output = FsResult<()>>;
    /// Whether a program of this client may hold locks of fcntl(2) on a file.
    fn may_have_posix_locks(&self, ino: Ino) -> bool;
    /// Whether pages that the kernel has of files may be used by those who open them now.
    fn pages_are_current(&self) -> bool {
        true
    }
    fn posix_lock(
        &self,
        handle: Handle,
        lock: PosixLock,
    ) -> impl Future<Output = FsResult<Option<PosixLock>>>;
    /// Nobody waits any more for the lock that was asked for with this ticket.
    fn cancel_posix_lock(&self, ino: Ino, ticket: u64) -> impl Future<Output = ()>;
    /// Whether calls may take long because a server cannot be reached.
    fn is_away(&self) -> bool;
    /// Brings data to stable storage; tells each open file once if written data of the inode is
    /// lost.
    fn fsync(&self, handle: Handle) -> impl Future<Output = FsResult<()>>;
    fn sync(&self) -> impl Future<Output = FsResult<()>>;
    fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> impl Future<Output = FsResult<()>>;
    fn lseek(&self, handle: Handle, offset: u64, hole: bool)
    -> impl Future<Output = FsResult<u64>>;
    fn copy_range(
        &self,
        caller: &Caller,
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
    ) -> impl Future<Output = FsResult<Listing>>;
    fn link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
    ) -> impl Future<Output = FsResult<Found>>;
    /// Removes a name. Returns the inode that has lost it, if a server was asked.
    fn unlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
    ) -> impl Future<Output = FsResult<Option<Ino>>>;
    fn rmdir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
    ) -> impl Future<Output = FsResult<()>>;
    /// Moves a name. Returns the inode that has lost the new one, if a server was asked.
    fn rename(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> impl Future<Output = FsResult<Option<Ino>>>;
    /// Value of an attribute, for a caller that has `room` bytes for it; 0 if it only asks for
    /// the length. A value that is too long is returned nevertheless.
    fn getxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        room: usize,
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

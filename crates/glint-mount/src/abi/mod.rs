//! The kernel's FUSE interface, version 7.42: `include/uapi/linux/fuse.h`. Names
//! are the kernel's, without the prefix.

#![allow(missing_docs)]

pub(crate) mod opcode;
pub(crate) mod reply;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) const KERNEL_VERSION: u32 = 7;
pub(crate) const KERNEL_MINOR_VERSION: u32 = 42;

macro_rules! opcodes {
    ($($name:ident = $value:literal, $in:ty;)*) => {
        /// Operation that the kernel asks for.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u32)]
        pub(crate) enum Opcode { $($name = $value),* }

        impl Opcode {
            pub(crate) fn from_u32(value: u32) -> Option<Opcode> {
                match value { $($value => Some(Opcode::$name),)* _ => None }
            }

            /// Length of the fixed part of the request, before names and data.
            pub(crate) fn in_len(self) -> usize {
                match self { $(Opcode::$name => size_of::<$in>(),)* }
            }
        }
    };
}

opcodes! {
    Lookup = 1, (); Forget = 2, ForgetIn; Getattr = 3, GetattrIn; Setattr = 4, SetattrIn;
    Readlink = 5, (); Symlink = 6, (); Mknod = 8, MknodIn; Mkdir = 9, MkdirIn; Unlink = 10, ();
    Rmdir = 11, (); Rename = 12, RenameIn; Link = 13, LinkIn; Open = 14, OpenIn; Read = 15, ReadIn;
    Write = 16, WriteIn; Statfs = 17, (); Release = 18, ReleaseIn; Fsync = 20, FsyncIn;
    Setxattr = 21, SetxattrIn; Getxattr = 22, GetxattrIn; Listxattr = 23, GetxattrIn;
    Removexattr = 24, (); Flush = 25, FlushIn; Init = 26, InitIn; Opendir = 27, OpenIn;
    Readdir = 28, ReadIn; Releasedir = 29, ReleaseIn; Fsyncdir = 30, FsyncIn; Getlk = 31, LkIn; Setlk = 32, LkIn; Setlkw = 33, LkIn;
    Access = 34, AccessIn;
    Create = 35, CreateIn; Interrupt = 36, u64; Destroy = 38, (); BatchForget = 42, BatchForgetIn;
    Fallocate = 43, FallocateIn; Readdirplus = 44, ReadIn; Rename2 = 45, Rename2In;
    Lseek = 46, LseekIn; CopyFileRange = 47, CopyFileRangeIn; Syncfs = 50, u64;
    Tmpfile = 51, CreateIn;
}

pub(crate) mod init {
    //! Capabilities, `FUSE_*` of the init request.
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(crate) const PASSTHROUGH: u64 = 1 << 37;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

pub(crate) const FATTR_MODE: u32 = 1 << 0;
pub(crate) const FATTR_UID: u32 = 1 << 1;
pub(crate) const FATTR_GID: u32 = 1 << 2;
pub(crate) const FATTR_SIZE: u32 = 1 << 3;
pub(crate) const FATTR_ATIME: u32 = 1 << 4;
pub(crate) const FATTR_MTIME: u32 = 1 << 5;
pub(crate) const FATTR_FH: u32 = 1 << 6;
pub(crate) const FATTR_ATIME_NOW: u32 = 1 << 7;
pub(crate) const FATTR_MTIME_NOW: u32 = 1 << 8;
pub(crate) const FATTR_CTIME: u32 = 1 << 10;
pub(crate) const FATTR_KILL_SUIDGID: u32 = 1 << 11;

pub(crate) const FOPEN_DIRECT_IO: u32 = 1 << 0;
pub(crate) const FOPEN_KEEP_CACHE: u32 = 1 << 1;
pub(crate) const FOPEN_NOFLUSH: u32 = 1 << 5;
pub(crate) const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
pub(crate) const FOPEN_PASSTHROUGH: u32 = 1 << 7;

pub(crate) mod notify {
    //! Codes of messages to the kernel that answer no request.
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const INVAL_ENTRY: i32 = 3;
    pub(crate) const STORE: i32 = 4;
    pub(crate) const RETRIEVE: i32 = 5;
    pub(crate) const INC_EPOCH: i32 = 8;
    pub(crate) const PRUNE: i32 = 9;
}

/// Attributes are asked for by an open file.
pub(crate) const GETATTR_FH: u32 = 1 << 0;
/// A read for a program, and not for the page cache.
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
/// Data of a write that comes from the page cache.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
pub(crate) const LK_FLOCK: u32 = 1 << 0;

pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

pub(crate) const URING_CMD_REGISTER: u32 = 1;
pub(crate) const URING_CMD_COMMIT_AND_FETCH: u32 = 2;

macro_rules! wire {
    ($($name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $type),* }
    )*};
}

wire! {
    InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    OutHeader { len: u32, error: i32, unique: u64 }
    ForgetIn { nlookup: u64 }
    BatchForgetIn { count: u32, dummy: u32 }
    ForgetOne { nodeid: u64, nlookup: u64 }
    FileLock { start: u64, end: u64, kind: u32, pid: u32 }
    LkIn { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    LkOut { lk: FileLock }
    InvalInodeOut { ino: u64, off: i64, len: i64 }
    StoreOut { nodeid: u64, offset: u64, size: u32, padding: u32 }
    RetrieveOut { unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32 }
    PruneOut { count: u32, padding: u32, spare: u64 }
    InvalEntryOut { parent: u64, namelen: u32, flags: u32 }
    GetattrIn { flags: u32, dummy: u32, fh: u64 }
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn { mode: u32, umask: u32 }
    RenameIn { newdir: u64 }
    Rename2In { newdir: u64, flags: u32, padding: u32 }
    LinkIn { oldnodeid: u64 }
    OpenIn { flags: u32, open_flags: u32 }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32 }
    SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    GetxattrIn { size: u32, padding: u32 }
    AccessIn { mask: u32, padding: u32 }
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32 }
    CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    InitIn {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }
    AttrOut {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    GetattrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: AttrOut }
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: AttrOut,
    }
    OpenOut { fh: u64, open_flags: u32, backing_id: i32 }
    WriteOut { size: u32, padding: u32 }
    GetxattrOut { size: u32, padding: u32 }
    LseekOut { offset: u64 }
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32 }
    UringEntInOut { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64 }
    UringCmdReq { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6] }
}

/// Room for the headers of one io_uring request, which the kernel fills.
pub(crate) const URING_IN_OUT_BYTES: usize = 128;
pub(crate) const URING_OP_IN_BYTES: usize = 128;
pub(crate) const URING_HEADER_BYTES: usize =
    URING_IN_OUT_BYTES + URING_OP_IN_BYTES + size_of::<UringEntInOut>();

const _: () = assert!(size_of::<InHeader>() == 40);
const _: () = assert!(size_of::<EntryOut>() == 128);
const _: () = assert!(size_of::<InitOut>() == 64);
const _: () = assert!(size_of::<InitIn>() == 64);
const _: () = assert!(size_of::<StatfsOut>() == 80);
const _: () = assert!(size_of::<SetattrIn>() == 88);
const _: () = assert!(URING_HEADER_BYTES == 288);

//! The catalogue of all messages.
//!
//! Bodies are encoded with postcard (a compact, length-checked serde format);
//! names and values are borrowed from the received bytes. Bulk data never passes
//! through an encoder: it follows the body in the frame.

#![allow(missing_docs)] // Fields say what they are; shapes are documented on the variants.

mod bulk;

pub use super::rpc::*;
use crate::chain::ChainTargets;
use crate::limits::*;
#[cfg(doc)]
use crate::lock::Bits;
use crate::lock::{DataLock, PosixLock, PosixLockHow, PosixLockMode, Range};
use crate::op::Op;
use crate::posix::ScanFilter;
use crate::{Attr, Capability, Errno, FsResult, Ino, Layout, ObjectId, SetAttr, Timestamp};
pub use bulk::Bulk;
use serde::{Deserialize, Serialize};

/// How a file is opened, the flags of open(2) that a server needs to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OpenFlags {
    /// Data may be read.
    pub read: bool,
    /// Data may be written.
    pub write: bool,
    /// Truncate to zero (O_TRUNC).
    pub truncate: bool,
    /// Opened to be executed (FMODE_EXEC): x is asked for instead of r.
    pub exec: bool,
    /// Clear set-id bits together with the truncation.
    pub kill_suidgid: bool,
    /// Writes go to the end (O_APPEND).
    pub append: bool,
}

impl OpenFlags {
    /// From the flags of open(2).
    pub fn from_posix(flags: i32) -> OpenFlags {
        const FMODE_EXEC: i32 = 0x20;
        let access = flags & libc::O_ACCMODE;
        OpenFlags {
            read: access != libc::O_WRONLY,
            write: access != libc::O_RDONLY,
            truncate: flags & libc::O_TRUNC != 0,
            exec: flags & FMODE_EXEC != 0,
            kill_suidgid: false,
            append: flags & libc::O_APPEND != 0,
        }
    }
}

/// Flags of renameat2(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RenameFlags {
    /// RENAME_NOREPLACE: EEXIST if the new name exists.
    pub no_replace: bool,
    /// RENAME_EXCHANGE: both exist and change places.
    pub exchange: bool,
}

/// Flags of setxattr(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct XattrFlags {
    /// XATTR_CREATE: EEXIST if it exists.
    pub create: bool,
    /// XATTR_REPLACE: ENODATA if it does not.
    pub replace: bool,
    /// Setting an access ACL also clears set-group-id.
    pub kill_sgid: bool,
}

/// A request to an MDS. Each is resolved, checked, executed and answered at once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MdsRequest<'a> {
    /// Find `name` in `parent`.
    Lookup {
        parent: Ino,
        #[serde(borrow)]
        name: &'a [u8],
    },
    /// Attributes of an inode.
    Getattr { ino: Ino },
    /// Change attributes.
    Setattr { ino: Ino, set: SetAttr },
    /// Make an inode of any type (the S_IFMT bits of `mode` say which) with a
    /// name, and open it if `open` is given. `target` is a symbolic link's.
    Create {
        parent: Ino,
        #[serde(borrow)]
        name: &'a [u8],
        mode: u32,
        umask: u32,
        rdev: u32,
        #[serde(borrow)]
        target: &'a [u8],
        open: Option<OpenFlags>,
        exclusive: bool,
    },
    /// Make and open a file without a name (O_TMPFILE).
    Tmpfile { parent: Ino, mode: u32, umask: u32 },
    /// One more name for an inode.
    Link {
        ino: Ino,
        parent: Ino,
        #[serde(borrow)]
        name: &'a [u8],
    },
    /// Remove a name that is not a directory's.
    Unlink {
        parent: Ino,
        #[serde(borrow)]
        name: &'a [u8],
    },
    /// Remove an empty directory.
    Rmdir {
        parent: Ino,
        #[serde(borrow)]
        name: &'a [u8],
    },
    /// renameat2(2).
    Rename {
        parent: Ino,
        #[serde(borrow)]
        name: &'a [u8],
        new_parent: Ino,
        #[serde(borrow)]
        new_name: &'a [u8],
        flags: RenameFlags,
    },
    /// Open an existing file.
    Open { ino: Ino, flags: OpenFlags },
    /// One open is gone. `wrote` brings what the objects say, if it wrote, and a number that
    /// rises with each time a client asks them; no attributes if they could not be asked.
    Release { ino: Ino, write: bool, wrote: Option<(u64, Option<ObjectAttr>)> },
    /// Entries from `cookie` on; with attributes if `plus`.
    Readdir { ino: Ino, cookie: u64, bytes_max: u32, plus: bool },
    /// Target of a symbolic link.
    Readlink { ino: Ino },
    /// Value of an extended attribute.
    Getxattr {
        ino: Ino,
        #[serde(borrow)]
        name: &'a [u8],
    },
    /// Set an extended attribute.
    Setxattr {
        ino: Ino,
        #[serde(borrow)]
        name: &'a [u8],
        #[serde(borrow)]
        value: &'a [u8],
        flags: XattrFlags,
    },
    /// Names of extended attributes, each ended by a NUL.
    Listxattr { ino: Ino },
    /// Remove an extended attribute.
    Removexattr {
        ino: Ino,
        #[serde(borrow)]
        name: &'a [u8],
    },
    /// Inode counts.
    Statfs,
    /// Everything acknowledged so far to stable storage.
    Sync,
    /// Set the layout that new files of a directory get, or of an empty file.
    SetLayout { ino: Ino, layout: Layout },
    /// After a server restart: this client has `ino` open; with the capability that allowed it to
    /// write, if it needs capabilities.
    Reopen { ino: Ino, readers: u32, writers: u32, capability: Option<Capability> },
    /// The inode was read: set atime if relatime asks for it (mount(8)).
    Touch { ino: Ino },
    /// A lock on data; answered when it is granted. With `reclaim` the client had it before
    /// the server started again, and is answered at once; with a capability as for `Reopen`.
    Lock { ino: Ino, range: Range, write: bool, reclaim: bool, capability: Option<Capability> },
    /// Opens that the client made by itself, under a lock that it is about to return.
    AddOpens { ino: Ino, readers: u32 },
    /// flock(2), fcntl(2).
    PosixLock(PosixLock),
    /// Inode numbers for what the client will make by itself, in the write-back epoch `epoch`:
    /// it begins another one when it hears that it was evicted.
    GrantInodes { count: u32, epoch: u64 },
    /// After a server restart: this client makes changes by itself.
    WritesBack { epoch: u64 },
    /// Reclaims the delegation of a directory after a server restart ([`Bits::DELEGATION`]).
    ReclaimDelegation { ino: Ino },
    /// Changes that the client has made by itself, in its order; see [`crate::deferred`].
    Batch {
        epoch: u64,
        #[serde(borrow)]
        changes: &'a [u8],
    },
    /// Objects for a new layout of a file, which its data is to be copied to, on no target that
    /// has one of the OSTs `avoid`. The answer has it as the layout of the attributes. They are
    /// removed if the session of this client ends before the switch.
    PlanLayout { ino: Ino, layout: Layout, avoid: Vec<u16> },
    /// The data of a file lies as planned from now on, and no longer where it did; for a client
    /// that holds a lock to write all of it.
    SwitchLayout { ino: Ino, from: Layout, to: Layout },
    /// A plan is given up: its objects are removed.
    DropLayout { ino: Ino, layout: Layout },
    /// The client is going to read these files: it gets, with the answer, the locks on their data
    /// that are in nobody's way.
    Prefetch { inos: Vec<Ino> },
    /// Entries of directories with attributes and without `.` and `..`, of each after a cookie, for a
    /// client that looks at everything once: no locks come with them. What `filter` does not want may
    /// be left out, but not the last entry of a page that is not the end.
    Scan { directories: Vec<(Ino, u64)>, bytes_max: u32, filter: Option<Box<ScanFilter>> },
}

impl MdsRequest<'_> {
    /// Operation of the request.
    pub fn op(&self) -> Op {
        match self {
            MdsRequest::Lookup { .. } => Op::Lookup,
            MdsRequest::Getattr { .. } => Op::Getattr,
            MdsRequest::Setattr { .. } => Op::Setattr,
            MdsRequest::Create { .. } => Op::Create,
            MdsRequest::Tmpfile { .. } => Op::Tmpfile,
            MdsRequest::Link { .. } => Op::Link,
            MdsRequest::Unlink { .. } => Op::Unlink,
            MdsRequest::Rmdir { .. } => Op::Rmdir,
            MdsRequest::Rename { .. } => Op::Rename,
            MdsRequest::Open { .. } => Op::Open,
            MdsRequest::Release { .. } => Op::Release,
            MdsRequest::Readdir { .. } => Op::Readdir,
            MdsRequest::Readlink { .. } => Op::Readlink,
            MdsRequest::Getxattr { .. } => Op::Getxattr,
            MdsRequest::Setxattr { .. } => Op::Setxattr,
            MdsRequest::Listxattr { .. } => Op::Listxattr,
            MdsRequest::Removexattr { .. } => Op::Removexattr,
            MdsRequest::Statfs => Op::Statfs,
            MdsRequest::Sync => Op::Sync,
            MdsRequest::SetLayout { .. } => Op::SetLayout,
            MdsRequest::Reopen { .. } => Op::Reopen,
            MdsRequest::Touch { .. } => Op::Touch,
            MdsRequest::Lock { .. } | MdsRequest::Prefetch { .. } => Op::Lock,
            MdsRequest::AddOpens { .. } => Op::Open,
            MdsRequest::PosixLock(_) => Op::Flock,
            MdsRequest::GrantInodes { .. } => Op::GrantInodes,
            MdsRequest::ReclaimDelegation { .. } | MdsRequest::WritesBack { .. } => Op::Lock,
            MdsRequest::Batch { .. } => Op::Batch,
            MdsRequest::PlanLayout { .. }
            | MdsRequest::SwitchLayout { .. }
            | MdsRequest::DropLayout { .. } => Op::MoveLayout,
            MdsRequest::Scan { .. } => Op::Scan,
        }
    }

    /// Whether it may wait for what other clients do, as long as these like, and executing it
    /// twice does no harm: such a request takes nobody's slot.
    pub fn is_patient(&self) -> bool {
        match self {
            MdsRequest::Lock { reclaim, .. } => !reclaim,
            MdsRequest::PosixLock(lock) => {
                lock.how == PosixLockHow::Wait && lock.mode != PosixLockMode::Unlock
            }
            _ => false,
        }
    }

    /// Whether executing it twice differs from executing it once, so that its
    /// reply is recorded.
    pub fn is_modifying(&self) -> bool {
        use MdsRequest::*;
        if let PosixLock(lock) = self {
            // A copy of one that comes late would take away, or bring back, what was granted,
            // or returned, since.
            return match lock.how {
                PosixLockHow::Try => true,
                PosixLockHow::Wait => lock.mode == PosixLockMode::Unlock,
                PosixLockHow::Test | PosixLockHow::Reclaim | PosixLockHow::Cancel => false,
            };
        }
        matches!(
            self,
            Setattr { .. }
                | Create { .. }
                | Tmpfile { .. }
                | Link { .. }
                | Unlink { .. }
                | Rmdir { .. }
                | Rename { .. }
                | Open { .. }
                | Release { .. }
                | Setxattr { .. }
                | Removexattr { .. }
                | SetLayout { .. }
                | AddOpens { .. }
                | Batch { .. }
                | PlanLayout { .. }
                | SwitchLayout { .. }
                | DropLayout { .. }
        )
    }
}

/// Answer of an MDS.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MdsReply {
    /// Done.
    Done,
    /// Done, and this inode has a name less.
    Removed { ino: Ino },
    /// An entry or an inode.
    Attr(Attr),
    /// `Create` with `open`: the inode, and whether it was made by this request.
    Opened { attr: Attr, created: bool },
    /// Entries.
    Dir(DirPage),
    /// A link target, an attribute value or a list of names.
    Bytes(Vec<u8>),
    /// `statfs`: inodes in use.
    Statfs { inodes: u64 },
    /// `lookup`, `getattr` of a file that another client writes: what that has not yet sent
    /// to the objects.
    Glimpsed { attr: Attr, size: u64, mtime: Timestamp },
    /// A lock on data.
    Locked(DataLock),
    /// A lock in the way of a lock of a program; `None` if there is none.
    Blocked(Option<PosixLock>),
    /// `count` inode numbers from `first` on, for files that are laid out over `osts` without those
    /// that are `avoided` where it can be, or over `chains`. With the seed that cookies of names are
    /// made with: who makes names by itself lists them in the order of the MDS.
    Inodes {
        first: u64,
        count: u32,
        osts: u16,
        avoided: Vec<u16>,
        chains: Vec<ChainTargets>,
        name_seed: u64,
    },
    /// `batch`: so many changes were executed, and these of them, counted from 0, failed.
    Batched { done: u32, failed: Vec<(u32, Errno)> },
    /// `scan`: pages of the first directories that were named, at least of one. Of files in them that
    /// others write, which only their objects know the size of, what is not sent yet: as `Glimpsed`.
    Scanned { pages: Vec<FsResult<DirPage>>, unsent: Vec<(Ino, u64, Timestamp)> },
}

/// A request to an OST.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OstRequest {
    /// Read; the data comes as bulk, short at the end of the object.
    Read { object: ObjectId, offset: u64, len: u32 },
    /// Write the bulk of the request, which was written at `mtime` if that is given. `kept`
    /// says that it takes of the space that is kept for the client.
    Write { object: ObjectId, offset: u64, mtime: Option<Timestamp>, kept: bool },
    /// Write `count` extents, otherwise like `Write`; see [`crate::extents`].
    WriteExtents { object: ObjectId, count: u32, mtime: Option<Timestamp>, kept: bool },
    /// Set the size of the object.
    Truncate { object: ObjectId, size: u64 },
    /// fallocate(2) on the object.
    Fallocate { object: ObjectId, mode: i32, offset: u64, len: u64 },
    /// The object's data and state to stable storage.
    Sync { object: ObjectId },
    /// Size, blocks and times.
    Stat { object: ObjectId },
    /// Next data (or, with `hole`, next hole) at or after `offset`.
    Seek { object: ObjectId, offset: u64, hole: bool },
    /// Set the modification time.
    SetTime { object: ObjectId, mtime: Timestamp },
    /// Space of the OST.
    Space,
    /// Space to keep for what this client will write.
    GrantSpace { bytes: u64 },
    /// Remember from now on which extents of the object change.
    Watch { object: ObjectId },
    /// Which have changed, from `after` on, in a round of a watch: the first is 1, and the next
    /// begins when it is asked for. ENODATA if that is not known any more; then anything may have.
    Changed { object: ObjectId, watch: u64, round: u32, after: u64 },
}

impl OstRequest {
    /// Whether it changes data.
    pub fn is_modifying(&self) -> bool {
        use OstRequest::*;
        self.is_write() || matches!(self, Truncate { .. } | Fallocate { .. } | SetTime { .. })
    }

    /// Whether it brings data.
    pub fn is_write(&self) -> bool {
        matches!(self, OstRequest::Write { .. } | OstRequest::WriteExtents { .. })
    }

    /// Whether its numbers are ones that a file can have: EINVAL or EFBIG if not.
    pub fn check(&self) -> FsResult<()> {
        let (start, len) = match *self {
            // The lengths of these requests are bounded, and end where the file does.
            OstRequest::Read { offset, .. }
            | OstRequest::Write { offset, .. }
            | OstRequest::Seek { offset, .. } => (offset, 0),
            OstRequest::Truncate { size, .. } => (size, 0),
            OstRequest::Fallocate { len: 0, .. } => return Err(Errno::EINVAL),
            OstRequest::Fallocate { offset, len, .. } => (offset, len),
            // Extents are checked when they are taken out of the bulk; what is too much is kept
            // in part.
            OstRequest::WriteExtents { .. }
            | OstRequest::GrantSpace { .. }
            | OstRequest::Sync { .. }
            | OstRequest::Stat { .. }
            | OstRequest::SetTime { .. }
            | OstRequest::Watch { .. }
            | OstRequest::Changed { .. }
            | OstRequest::Space => return Ok(()),
        };
        match start.checked_add(len) {
            Some(end) if end <= FILE_BYTES_MAX => Ok(()),
            _ => Err(Errno::EFBIG),
        }
    }

    /// Object of the request, if it is about one.
    pub fn object(&self) -> Option<ObjectId> {
        match *self {
            OstRequest::Read { object, .. }
            | OstRequest::Write { object, .. }
            | OstRequest::WriteExtents { object, .. }
            | OstRequest::Truncate { object, .. }
            | OstRequest::Fallocate { object, .. }
            | OstRequest::Sync { object }
            | OstRequest::Stat { object }
            | OstRequest::Seek { object, .. }
            | OstRequest::Watch { object }
            | OstRequest::Changed { object, .. }
            | OstRequest::SetTime { object, .. } => Some(object),
            OstRequest::Space | OstRequest::GrantSpace { .. } => None,
        }
    }

    /// Operation of the request.
    pub fn op(&self) -> Op {
        match self {
            OstRequest::Read { .. } => Op::ObjRead,
            OstRequest::Write { .. } | OstRequest::WriteExtents { .. } => Op::ObjWrite,
            OstRequest::Truncate { .. } => Op::ObjTruncate,
            OstRequest::Fallocate { .. } => Op::ObjFallocate,
            OstRequest::Sync { .. } => Op::ObjSync,
            OstRequest::Stat { .. } => Op::ObjStat,
            OstRequest::Seek { .. } => Op::ObjSeek,
            OstRequest::SetTime { .. } => Op::ObjSetTime,
            OstRequest::Space => Op::ObjSpace,
            OstRequest::GrantSpace { .. } => Op::ObjGrantSpace,
            OstRequest::Watch { .. } | OstRequest::Changed { .. } => Op::ObjWatch,
        }
    }
}

/// Answer of an OST.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OstReply {
    /// Done.
    Done,
    /// Number of bytes of bulk.
    Data(u32),
    /// State of the object after the write.
    Written(ObjectAttr),
    /// State of an object; `None` if it was never written.
    Stat(Option<ObjectAttr>),
    /// Offset found; `None` if there is none (ENXIO).
    Offset(Option<u64>),
    /// Space.
    Space(SpaceInfo),
    /// Bytes that are kept, perhaps fewer than were asked for; and the offset at which the largest
    /// object ends that the OST's file system can have.
    SpaceGranted { bytes: u64, object_bytes_max: u64 },
    /// `watch`: its number.
    Watched { watch: u64 },
    /// Extents that have changed, beginnings and ends, in their order; there are no more if the last
    /// one is empty.
    Changed { extents: [(u64, u64); CHANGED_EXTENTS_PER_REPLY] },
    /// A write of heal was made; whether users were served there meanwhile.
    Given { beside_users: bool },
    /// Of a change that the head of a chain has forwarded: done, and the object had no bytes before.
    WasEmpty,
}

/// Attributes of the data, of an object or of all objects of a file together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ObjectAttr {
    /// Bytes, of the object or of the file.
    pub size: u64,
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Last change of data.
    pub mtime: Timestamp,
    /// Last change of data or state.
    pub ctime: Timestamp,
}

impl ObjectAttr {
    /// One more object of the file; how that changes the size, its layout says.
    pub fn add(&mut self, object: &ObjectAttr) {
        self.blocks += object.blocks;
        self.mtime = self.mtime.max(object.mtime);
        self.ctime = self.ctime.max(object.ctime);
    }
}

/// Space of an OST in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SpaceInfo {
    /// In all.
    pub total: u64,
    /// Not used.
    pub free: u64,
    /// Bytes that users may still write.
    pub available: u64,
    /// Id of the file system that the OST is on, so that OSTs that share one count once.
    pub file_system: u64,
}

impl SpaceInfo {
    /// Whether new files avoid it, where they can. Not of one that has said nothing.
    pub fn is_full(&self) -> bool {
        self.available < full_below(self.total)
    }

    /// All of these; one file system under several counts once.
    pub fn sum(spaces: impl IntoIterator<Item = SpaceInfo>) -> SpaceInfo {
        let mut sum = SpaceInfo::default();
        let mut counted = Vec::new();
        for space in spaces {
            if !counted.contains(&space.file_system) {
                counted.push(space.file_system);
                sum.total += space.total;
                sum.free += space.free;
                sum.available += space.available;
            }
        }
        sum
    }
}

/// Encodes a message after what `buffer` already holds.
pub fn encode<T: Serialize>(message: &T, buffer: &mut Vec<u8>) -> Result<(), Errno> {
    let taken = std::mem::take(buffer);
    *buffer = postcard::to_extend(message, taken).map_err(|_| Errno::EPROTO)?;
    Ok(())
}

/// Decodes a message that fills `bytes`. Anything else is EPROTO.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Errno> {
    if bytes.len() > BODY_BYTES_MAX {
        return Err(Errno::EPROTO);
    }
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(Errno::EPROTO),
    }
}

/// Decodes a message that `bytes` begin with, and returns what follows.
pub fn decode_first<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8]), Errno> {
    postcard::take_from_bytes(bytes).map_err(|_| Errno::EPROTO)
}

/// Whether `name` may name an entry.
pub fn check_name(name: &[u8]) -> FsResult<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0)
    {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cred;
    use proptest::prelude::*;

    #[test]
    fn numbers_that_no_file_can_have_are_refused() {
        let object = ObjectId { ino: Ino(2), stripe: 0 };
        let fallocate =
            |offset, len| OstRequest::Fallocate { object, mode: 0, offset, len }.check();
        assert_eq!(fallocate(0, FILE_BYTES_MAX), Ok(()));
        assert_eq!(fallocate(0, 0), Err(Errno::EINVAL));
        for (offset, len) in [(0, 1 << 63), (1, FILE_BYTES_MAX), (u64::MAX, 2), (1 << 63, 1)] {
            assert_eq!(fallocate(offset, len), Err(Errno::EFBIG), "{offset} {len}");
        }
        let size = |size| OstRequest::Truncate { object, size }.check();
        assert_eq!((size(FILE_BYTES_MAX), size(1 << 63)), (Ok(()), Err(Errno::EFBIG)));
        let write = |offset| OstRequest::Write { object, offset, mtime: None, kept: false }.check();
        assert_eq!((write(FILE_BYTES_MAX), write(u64::MAX)), (Ok(()), Err(Errno::EFBIG)));
    }

    #[test]
    fn a_request_survives_the_wire() {
        let request = Request::Mds {
            cred: Cred { uid: 7, gid: 8, groups: Some(vec![1, 2]) },
            request: MdsRequest::Create {
                parent: Ino(1),
                name: b"\xff\x01name",
                mode: 0o100644,
                umask: 0o22,
                rdev: 0,
                target: b"",
                open: Some(OpenFlags { read: true, ..Default::default() }),
                exclusive: true,
            },
        };
        let mut bytes = Vec::new();
        encode(&request, &mut bytes).unwrap();
        assert_eq!(decode::<Request>(&bytes).unwrap(), request);
        assert!(bytes.len() < 64, "a create is a small message: {}", bytes.len());
    }

    proptest! {
        #[test]
        fn decoding_anything_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = decode::<Request>(&bytes);
            let _ = decode::<Reply>(&bytes);
        }
    }
}

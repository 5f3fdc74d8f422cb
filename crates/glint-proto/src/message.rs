//! The catalogue of all messages.
//!
//! Bodies are encoded with postcard (a compact, length-checked serde format);
//! names and values are borrowed from the received bytes. Bulk data never passes
//! through an encoder: it follows the body in the frame.

#![allow(missing_docs)] // Fields say what they are; shapes are documented on the variants.

use crate::limits::*;
use crate::op::Op;
use crate::{Attr, Cred, Errno, FsResult, Ino, Layout, ObjectId, RequestId, SetAttr, Timestamp};
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
    /// rises with each time a client asks them.
    Release { ino: Ino, write: bool, wrote: Option<(u64, ObjectAttr)> },
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
    /// After a server restart: this client has `ino` open.
    Reopen { ino: Ino, readers: u32, writers: u32 },
    /// The inode was read: set atime if relatime asks for it (mount(8)).
    Touch { ino: Ino },
}

impl MdsRequest<'_> {
    /// Which operation this is.
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
        }
    }

    /// Whether executing it twice differs from executing it once, so that its
    /// reply is recorded.
    pub fn is_modifying(&self) -> bool {
        use MdsRequest::*;
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
        )
    }
}

/// Answer of an MDS.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MdsReply {
    /// Done.
    Done,
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
}

/// A page of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DirPage {
    /// In the order of their cookies.
    pub entries: Vec<DirEntry>,
    /// Nothing follows.
    pub end: bool,
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirEntry {
    /// Inode.
    pub ino: Ino,
    /// Where to go on after this entry; stable while the directory changes.
    pub cookie: u64,
    /// The `d_type` of readdir(3).
    pub dirent_type: u8,
    /// Name.
    pub name: Vec<u8>,
    /// Attributes, if they were asked for and the inode is still there.
    pub attr: Option<Attr>,
}

/// A request to an OST.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OstRequest {
    /// Read; the data comes as bulk, short at the end of the object.
    Read { object: ObjectId, offset: u64, len: u32 },
    /// Write the bulk of the request.
    Write { object: ObjectId, offset: u64 },
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
}

impl OstRequest {
    /// Whether it changes data.
    pub fn is_modifying(&self) -> bool {
        use OstRequest::*;
        matches!(self, Write { .. } | Truncate { .. } | Fallocate { .. } | SetTime { .. })
    }

    /// Which operation this is.
    pub fn op(&self) -> Op {
        match self {
            OstRequest::Read { .. } => Op::ObjRead,
            OstRequest::Write { .. } => Op::ObjWrite,
            OstRequest::Truncate { .. } => Op::ObjTruncate,
            OstRequest::Fallocate { .. } => Op::ObjFallocate,
            OstRequest::Sync { .. } => Op::ObjSync,
            OstRequest::Stat { .. } => Op::ObjStat,
            OstRequest::Seek { .. } => Op::ObjSeek,
            OstRequest::SetTime { .. } => Op::ObjSetTime,
            OstRequest::Space => Op::ObjSpace,
        }
    }
}

/// Answer of an OST.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OstReply {
    /// Done.
    Done,
    /// This many bytes of bulk.
    Data(u32),
    /// State of an object; `None` if it was never written.
    Stat(Option<ObjectAttr>),
    /// Offset found; `None` if there is none (ENXIO).
    Offset(Option<u64>),
    /// Space.
    Space(SpaceInfo),
}

/// What an object, or all objects of a file together, say about the data.
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

/// Space of an OST in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SpaceInfo {
    /// In all.
    pub total: u64,
    /// Not used.
    pub free: u64,
    /// What users may still write.
    pub available: u64,
    /// Which file system it is on, so that OSTs that share one count once.
    pub file_system: u64,
}

/// Bulk data beside a request: what it sends, or where the answer goes.
#[derive(Debug)]
pub enum Bulk<'a> {
    /// None.
    None,
    /// Data of a write.
    Out(&'a [u8]),
    /// Room for the data of a read.
    In(&'a mut [u8]),
}

/// First message on a connection, from the client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Name of the client's host, shown by `glint status`.
    pub host: String,
    /// Where it is mounted, shown by `glint status`.
    pub mount_point: String,
    /// It was welcomed before, by this or an earlier run of the server.
    pub known: bool,
    /// The run whose transactions it counts.
    pub boot_verifier: u64,
}

/// What a run of a server left to the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Survived {
    /// Transactions of the MDS up to this one.
    pub mds: u64,
    /// Transactions of OSTs up to this one, and perhaps more.
    pub ost: u64,
}

impl Survived {
    /// Everything: it still runs.
    pub const ALL: Survived = Survived { mds: u64::MAX, ost: u64::MAX };
}

/// Answer to [`Hello`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// Which file system this is.
    pub fs_uuid: u128,
    /// Changes whenever the server starts.
    pub boot_verifier: u64,
    /// Number of OSTs.
    pub osts: u16,
    /// How long a client may cache attributes and entries.
    pub cache_ms: u64,
    /// What survived of the run that the client counts transactions of.
    pub survived: Survived,
    /// The client said that it is known, and is not: it was evicted. What it had open is
    /// closed, and what it still wanted to say is lost.
    pub evicted: bool,
}

/// How a request came to its server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Arrival {
    /// Which request of which client; none if the client shares the process.
    pub id: Option<RequestId>,
    /// Tells a repetition from another request under the same number: crc32c of the body.
    pub digest: u32,
    /// Time of the pass in which it is handled.
    pub now: Timestamp,
    /// What it was answered by a run of the server that lost it, if it is sent for that.
    pub replay: Option<MdsReply>,
}

/// An answer, and the transaction that has to be durable for it to last; 0 if it changed
/// nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer<R> {
    /// Number of the transaction.
    pub transaction: u64,
    /// The answer.
    pub reply: FsResult<R>,
}

impl<R> Answer<R> {
    /// An answer that changed nothing.
    pub fn unchanged(reply: FsResult<R>) -> Answer<R> {
        Answer { transaction: 0, reply }
    }
}

/// Transactions that are on stable storage, of both kinds of servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Committed {
    /// Up to this one, of the MDS.
    pub mds: u64,
    /// Up to this one, of the OSTs.
    pub ost: u64,
}

/// What a request frame carries: who asks and what.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request<'a> {
    /// Opens the conversation.
    Hello(Hello),
    /// State dump as JSON.
    Status,
    /// Statistics as JSON.
    Stats,
    /// Start the statistics again.
    ResetStats,
    /// The client lives; with `commit` everything answered so far to stable storage.
    Ping { commit: bool },
    /// A request that an earlier run of the server answered with `reply` and lost.
    Replay {
        cred: Cred,
        #[serde(borrow)]
        request: MdsRequest<'a>,
        reply: MdsReply,
    },
    /// The client has replayed what it had to.
    Recovered,
    /// The client ends: what it did is made durable, and it is forgotten.
    Bye,
    /// For the MDS.
    Mds {
        /// Caller.
        cred: Cred,
        /// What to do.
        #[serde(borrow)]
        request: MdsRequest<'a>,
    },
    /// For one OST.
    Ost {
        /// Index of the OST.
        ost: u16,
        /// What to do.
        request: OstRequest,
    },
}

impl Request<'_> {
    /// Which operation this is.
    pub fn op(&self) -> Op {
        match self {
            Request::Hello(_) => Op::Hello,
            Request::Status => Op::Status,
            Request::Stats | Request::ResetStats => Op::Stats,
            Request::Ping { .. } | Request::Bye => Op::Ping,
            Request::Replay { .. } | Request::Recovered => Op::Recovery,
            Request::Mds { request, .. } => request.op(),
            Request::Ost { request, .. } => request.op(),
        }
    }
}

/// What a reply frame carries.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Request::Hello`].
    Welcome(Welcome),
    /// To [`Request::Status`] and [`Request::Stats`].
    Json(String),
    /// From the MDS.
    Mds {
        /// See [`Answer`].
        transaction: u64,
        /// The answer.
        reply: FsResult<MdsReply>,
    },
    /// From an OST.
    Ost {
        /// See [`Answer`].
        transaction: u64,
        /// The answer.
        reply: FsResult<OstReply>,
    },
    /// To [`Request::Ping`], [`Request::Recovered`] and [`Request::Bye`].
    Pong(Committed),
    /// The server has too much to do; ask again after this time.
    Busy {
        /// In milliseconds.
        retry_ms: u32,
    },
    /// The request could not be taken; the reason is for people.
    Refused(String),
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
    use proptest::prelude::*;

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

//! File attributes, as stat(2) knows them.

use crate::{Ino, Layout};
use serde::{Deserialize, Serialize};

/// mount(8): with relatime an atime is renewed at least daily.
const RELATIME_SECS: i64 = 24 * 3600;

/// Time since the epoch. `nanos` is below 1 000 000 000 also before 1970; no other is decoded,
/// because none can be stored.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(try_from = "(i64, u32)")]
pub struct Timestamp {
    /// Seconds.
    pub secs: i64,
    /// Nanoseconds within the second.
    pub nanos: u32,
}

impl TryFrom<(i64, u32)> for Timestamp {
    type Error = &'static str;

    fn try_from((secs, nanos): (i64, u32)) -> Result<Timestamp, &'static str> {
        if nanos < 1_000_000_000 { Ok(Timestamp { secs, nanos }) } else { Err("not a time") }
    }
}

impl Timestamp {
    /// The wall clock.
    pub fn now() -> Timestamp {
        let date = crate::clock::date();
        Timestamp { secs: date.as_secs() as i64, nanos: date.subsec_nanos() }
    }

    /// The next later time.
    pub fn next(self) -> Timestamp {
        match self.nanos {
            0..999_999_999 => Timestamp { nanos: self.nanos + 1, ..self },
            _ => Timestamp { secs: self.secs.saturating_add(1), nanos: 0 },
        }
    }
}

/// Type of an inode: the S_IFMT bits of a mode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum FileType {
    Fifo,
    CharDevice,
    Directory,
    BlockDevice,
    Regular,
    Symlink,
    Socket,
}

impl FileType {
    /// From the S_IFMT bits of a mode; `None` if they name no type.
    pub fn from_mode(mode: u32) -> Option<FileType> {
        Some(match mode & libc::S_IFMT {
            libc::S_IFIFO => FileType::Fifo,
            libc::S_IFCHR => FileType::CharDevice,
            libc::S_IFDIR => FileType::Directory,
            libc::S_IFBLK => FileType::BlockDevice,
            libc::S_IFREG => FileType::Regular,
            libc::S_IFLNK => FileType::Symlink,
            libc::S_IFSOCK => FileType::Socket,
            _ => return None,
        })
    }

    /// The S_IFMT bits.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileType::Fifo => libc::S_IFIFO,
            FileType::CharDevice => libc::S_IFCHR,
            FileType::Directory => libc::S_IFDIR,
            FileType::BlockDevice => libc::S_IFBLK,
            FileType::Regular => libc::S_IFREG,
            FileType::Symlink => libc::S_IFLNK,
            FileType::Socket => libc::S_IFSOCK,
        }
    }

    /// The `d_type` of readdir(3), also the type byte of an entry on disk.
    pub fn dirent_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }

    /// Inverse of [`FileType::dirent_type`].
    pub fn from_dirent_type(byte: u8) -> Option<FileType> {
        FileType::from_mode((byte as u32) << 12)
    }
}

/// Attributes of an inode, apart from its names and its data.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "EncodedAttr", try_from = "EncodedAttr")]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Type and permission bits.
    pub mode: u32,
    /// Links; 0 while an unlinked file is still open.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for devices.
    pub rdev: u32,
    /// Size in bytes. Not authoritative while `size_on_ost`.
    pub size: u64,
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of data or entries.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// The objects know size, blocks and mtime better than the inode: the file
    /// is, or was when a writer vanished, open for writing.
    pub size_on_ost: bool,
    /// It has no extended attributes, and with that no ACLs and no file capabilities. If not, it
    /// may have some.
    pub has_no_xattrs: bool,
    /// Layout of the data; for a directory, what new files in it get.
    pub layout: Layout,
}

/// [`Attr`] as it is encoded.
#[derive(Serialize, Deserialize)]
struct EncodedAttr {
    ino: Ino,
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    rdev: u32,
    size: u64,
    blocks: u64,
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
    flags: u8,
    layout: Layout,
}

impl EncodedAttr {
    const SIZE_ON_OST: u8 = 1;
    const NO_XATTRS: u8 = 2;
}

impl From<Attr> for EncodedAttr {
    fn from(attr: Attr) -> EncodedAttr {
        let Attr { ino, mode, nlink, uid, gid, rdev, size, blocks, .. } = attr;
        let Attr { atime, mtime, ctime, size_on_ost, has_no_xattrs, layout, .. } = attr;
        let flags = if size_on_ost { EncodedAttr::SIZE_ON_OST } else { 0 }
            | if has_no_xattrs { EncodedAttr::NO_XATTRS } else { 0 };
        #[rustfmt::skip]
        let encoded = EncodedAttr {
            ino, mode, nlink, uid, gid, rdev, size, blocks, atime, mtime, ctime, flags, layout,
        };
        encoded
    }
}

impl TryFrom<EncodedAttr> for Attr {
    type Error = &'static str;

    fn try_from(encoded: EncodedAttr) -> Result<Attr, &'static str> {
        let EncodedAttr { ino, mode, nlink, uid, gid, rdev, size, blocks, .. } = encoded;
        let EncodedAttr { atime, mtime, ctime, flags, layout, .. } = encoded;
        if flags & !(EncodedAttr::SIZE_ON_OST | EncodedAttr::NO_XATTRS) != 0 {
            return Err("unknown flags of attributes");
        }
        let size_on_ost = flags & EncodedAttr::SIZE_ON_OST != 0;
        let has_no_xattrs = flags & EncodedAttr::NO_XATTRS != 0;
        #[rustfmt::skip]
        let attr = Attr {
            ino, mode, nlink, uid, gid, rdev, size, blocks, atime, mtime, ctime, size_on_ost,
            has_no_xattrs, layout,
        };
        Ok(attr)
    }
}

impl Attr {
    /// An inode of the superuser with one name, no data, no extended attributes and these times.
    pub fn new(ino: Ino, mode: u32, now: Timestamp) -> Attr {
        Attr {
            ino,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            size_on_ost: false,
            has_no_xattrs: true,
            layout: Layout::default(),
        }
    }

    /// It changes now. Changes may be made in another order than that in which they began, or by who has
    /// a clock that is behind: who has seen its ctime does not see it go back, and sees each change.
    /// (Programs set no ctime.)
    pub fn change_at(&mut self, now: Timestamp) {
        self.ctime = if now < self.ctime { self.ctime.next() } else { now };
    }

    /// Type of the inode. Records with no valid type are refused when decoded.
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode).unwrap_or(FileType::Regular)
    }

    /// Whether reading the inode at `now` renews its access time: relatime, as mount(8)
    /// describes it.
    pub fn needs_atime(&self, now: Timestamp) -> bool {
        self.atime <= self.mtime
            || self.atime <= self.ctime
            || now.secs.saturating_sub(self.atime.secs) >= RELATIME_SECS
    }

    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    /// Whether a write may take set-id bits from it.
    pub fn has_set_id(&self) -> bool {
        self.is_file() && self.mode & (libc::S_ISUID | libc::S_ISGID) != 0
    }

    /// Whether this is a regular file.
    pub fn is_file(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// A time to set: utimensat(2)'s UTIME_NOW or a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SetTime {
    /// The server's clock.
    Now,
    /// A given time.
    At(Timestamp),
}

/// Attributes to change; `None` leaves one alone.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncate or extend to this size.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Inode change time (only a kernel that caches writes sends it).
    pub ctime: Option<Timestamp>,
    /// Clear set-user-id and set-group-id, as a write by another user must.
    pub kill_suidgid: bool,
    /// Remove file capabilities, as every change of data must (capabilities(7)).
    pub kill_capability: bool,
}

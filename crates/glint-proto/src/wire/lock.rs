//! The vocabulary of locks: what of an inode is locked, ranges of its data, and what
//! servers and clients tell each other about it.

use crate::{Capability, Ino, Layout, Timestamp};
use serde::{Deserialize, Serialize};
use std::ops::{BitAnd, BitOr, BitOrAssign, Not};

/// Parts of an inode that a client may cache, each a lock of its own (the inode bits of Lustre).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Bits(pub u8);

impl Bits {
    /// Nothing.
    pub const NONE: Bits = Bits(0);
    /// Names known for the inode lead to it.
    pub const ENTRY: Bits = Bits(1);
    /// Attributes, extended ones and link target among them.
    pub const ATTR: Bits = Bits(2);
    /// The names that are not in a directory.
    pub const NEGATIVE: Bits = Bits(4);
    /// The inode can be opened for reading without asking.
    pub const OPEN: Bits = Bits(8);
    /// A write has nothing to take from the file: no set-id bits, no capabilities.
    pub const PLAIN: Bits = Bits(32);
    /// Nobody else writes the data of the file: no other client has a lock to write any of it, nor is
    /// given one before this is returned. Comes with [`Bits::ATTR`].
    pub const UNWRITTEN: Bits = Bits(64);
    /// Bits that many clients may hold.
    pub const SHARED: Bits = Bits(111);
    /// Nobody else looks at the directory or changes it, so that the holder of this bit changes
    /// it by itself and tells the servers later. Only one client holds it, and then nobody else
    /// holds anything of the directory.
    pub const DELEGATION: Bits = Bits(16);
    /// All of them.
    pub const ALL: Bits = Bits(127);
    /// How many there are.
    pub const COUNT: usize = 7;

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all of `other` are among these.
    pub fn contains(self, other: Bits) -> bool {
        self & other == other
    }
}

impl BitOr for Bits {
    type Output = Bits;
    fn bitor(self, other: Bits) -> Bits {
        Bits(self.0 | other.0)
    }
}

impl BitOrAssign for Bits {
    fn bitor_assign(&mut self, other: Bits) {
        self.0 |= other.0;
    }
}

impl BitAnd for Bits {
    type Output = Bits;
    fn bitand(self, other: Bits) -> Bits {
        Bits(self.0 & other.0)
    }
}

impl Not for Bits {
    type Output = Bits;
    fn not(self) -> Bits {
        Bits(!self.0 & Bits::ALL.0)
    }
}

/// Bytes `start..end` of a file; `u64::MAX` is beyond any end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// After the last byte.
    pub end: u64,
}

impl Range {
    /// The whole file, however long it gets.
    pub const ALL: Range = Range { start: 0, end: u64::MAX };

    /// `len` bytes from `start` on.
    pub fn of(start: u64, len: u64) -> Range {
        Range { start, end: start.saturating_add(len) }
    }

    /// Whether both have bytes in common.
    pub fn overlaps(self, other: Range) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether all of `other` is in this one.
    pub fn contains(self, other: Range) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

/// A lock on data: the number that names it, its range, and whether it is exclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DataLock {
    /// Names the lock.
    pub number: u64,
    /// Bytes that the lock covers.
    pub range: Range,
    /// To write, which excludes all others.
    pub write: bool,
}

impl DataLock {
    /// Whether this one gives whatever another one of the same client gives.
    pub fn covers(self, other: DataLock) -> bool {
        self.range.contains(other.range) && (self.write || !other.write)
    }

    /// Joins the lock with an older one of the same client: what the two give is one lock under the
    /// newer number, unless they lie apart or give different things.
    pub fn joined(self, older: DataLock) -> Option<DataLock> {
        let touches = self.range.start <= older.range.end && older.range.start <= self.range.end;
        if self.write == older.write && touches {
            let start = self.range.start.min(older.range.start);
            let end = self.range.end.max(older.range.end);
            return Some(DataLock { range: Range { start, end }, ..self });
        }
        match (self.covers(older), older.covers(self)) {
            (true, _) => Some(self),
            (_, true) => Some(DataLock { number: self.number, ..older }),
            _ => None,
        }
    }
}

/// What comes with an answer, though nobody asked for it: a lock, a capability, or what keeps true
/// what is known under a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Grant {
    /// Bits of an inode. A recall with a higher number ends the grant.
    Bits {
        /// Inode.
        ino: Ino,
        /// Bits.
        bits: Bits,
        /// Of this grant.
        number: u64,
    },
    /// Data of an inode.
    Data {
        /// Inode.
        ino: Ino,
        /// The lock.
        lock: DataLock,
    },
    /// Capability, without which OSTs refuse requests of some sessions.
    Capability {
        /// On objects of which inode.
        ino: Ino,
        /// Capability.
        capability: Capability,
    },
    /// Where the data of an inode lies, of which the client has a lock from now on: comes with
    /// each lock on data that has moved once.
    Layout {
        /// Inode.
        ino: Ino,
        /// Where the data lies.
        layout: Layout,
    },
    /// What the request has made of a directory whose entries it has changed. All other attributes
    /// are what they were.
    Changed {
        /// Inode.
        ino: Ino,
        /// Its links.
        nlink: u32,
        /// Time of the change, its mtime and ctime.
        time: Timestamp,
    },
}

/// Question of a server to a client that holds locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Recall {
    /// Return these bits: all that were granted under a number below this one.
    Bits {
        /// Inode.
        ino: Ino,
        /// Bits.
        bits: Bits,
        /// Of this recall.
        number: u64,
    },
    /// Write what is dirty, forget what is cached, and return this lock.
    Data {
        /// Inode.
        ino: Ino,
        /// The lock.
        number: u64,
    },
    /// Say how large the file is for you.
    Glimpse {
        /// Inode.
        ino: Ino,
        /// Names the question.
        number: u64,
    },
}

/// Lock that a client returns, or its answer to a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Return {
    /// Bits of an inode that were granted under a number below this one.
    Bits {
        /// Inode.
        ino: Ino,
        /// Bits.
        bits: Bits,
        /// See [`Recall::Bits`].
        number: u64,
    },
    /// A lock on data.
    Data {
        /// Inode.
        ino: Ino,
        /// The lock.
        number: u64,
    },
    /// Answer to [`Recall::Glimpse`]: what this client has written, if it has.
    Glimpse {
        /// Inode.
        ino: Ino,
        /// Names the question.
        number: u64,
        /// Size and time of the last write.
        seen: Option<(u64, Timestamp)>,
    },
}

/// A lock that a program takes, gives up, or asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PosixLock {
    /// On which inode.
    pub ino: Ino,
    /// As the client's kernel names it.
    pub owner: u64,
    /// Process.
    pub pid: u32,
    /// Of the file.
    pub range: Range,
    /// To read, to write, or none.
    pub mode: PosixLockMode,
    /// flock(2), not fcntl(2).
    pub flock: bool,
    /// Wait for it (F_SETLKW), take it or not (F_SETLK), or only ask (F_GETLK).
    pub how: PosixLockHow,
    /// Names a request that waits, among those of its client.
    pub ticket: u64,
}

/// F_RDLCK, F_WRLCK, F_UNLCK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum PosixLockMode {
    Read,
    Write,
    Unlock,
}

/// F_SETLKW, F_SETLK, F_GETLK; what was held before the server started again; and that nobody
/// waits any more for the request with this ticket, which is answered EINTR.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum PosixLockHow {
    Wait,
    Try,
    Test,
    Reclaim,
    Cancel,
}

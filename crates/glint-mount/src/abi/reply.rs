//! Writing replies into the buffer that the kernel reads.

use crate::abi::{AttrOut, Dirent, EntryOut, GetattrOut, OpenOut, StatfsOut};
use glint_client::{FsStat, Handle, Valid};
use glint_proto::limits::FUSE_IO_BYTES_MAX;
use glint_proto::{Attr, DirEntry, Errno, FsResult, Ino};
use std::time::Duration;
use zerocopy::{Immutable, IntoBytes};

/// Outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The reply is in the first so many bytes of the buffer.
    Done(usize),
    /// A reply without content: this inode has lost a name.
    Unlinked(Ino),
    /// An error.
    Failed(Errno),
    /// The kernel expects no reply.
    NoReply,
}

impl From<FsResult<usize>> for Outcome {
    fn from(result: FsResult<usize>) -> Outcome {
        match result {
            Ok(len) => Outcome::Done(len),
            Err(errno) => Outcome::Failed(errno),
        }
    }
}

/// Puts a structure at the start of the buffer.
pub(crate) fn put(buffer: &mut [u8], value: &(impl IntoBytes + Immutable)) -> FsResult<usize> {
    put_at(buffer, 0, value.as_bytes())
}

pub(crate) fn put_at(buffer: &mut [u8], at: usize, bytes: &[u8]) -> FsResult<usize> {
    let end = at + bytes.len();
    buffer.get_mut(at..end).ok_or(Errno::ERANGE)?.copy_from_slice(bytes);
    Ok(end)
}

fn attr_out(attr: &Attr) -> AttrOut {
    AttrOut {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.secs as u64,
        mtime: attr.mtime.secs as u64,
        ctime: attr.ctime.secs as u64,
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.layout.stripe_bytes() as u32,
        flags: 0,
    }
}

pub(crate) fn entry_out(attr: &Attr, valid: Valid) -> EntryOut {
    EntryOut {
        nodeid: attr.ino.0,
        generation: 0,
        entry_valid: valid.entry.as_secs(),
        attr_valid: valid.attr.as_secs(),
        entry_valid_nsec: valid.entry.subsec_nanos(),
        attr_valid_nsec: valid.attr.subsec_nanos(),
        attr: attr_out(attr),
    }
}

/// A name that does not exist, which the kernel may remember.
pub(crate) fn negative_entry(cache: Duration) -> EntryOut {
    EntryOut {
        entry_valid: cache.as_secs(),
        entry_valid_nsec: cache.subsec_nanos(),
        ..EntryOut::default()
    }
}

pub(crate) fn getattr_out(attr: &Attr, cache: Duration) -> GetattrOut {
    GetattrOut {
        attr_valid: cache.as_secs(),
        attr_valid_nsec: cache.subsec_nanos(),
        dummy: 0,
        attr: attr_out(attr),
    }
}

/// Block size that statfs reports.
const STATFS_BLOCK: u64 = 4096;

pub(crate) fn statfs_out(stat: &FsStat) -> StatfsOut {
    // There is no table of inodes that could fill up: as many may be made as
    // there is room for their records.
    let free_inodes = stat.available / 512;
    StatfsOut {
        blocks: stat.total / STATFS_BLOCK,
        bfree: stat.free / STATFS_BLOCK,
        bavail: stat.available / STATFS_BLOCK,
        files: stat.inodes + free_inodes,
        ffree: free_inodes,
        bsize: FUSE_IO_BYTES_MAX as u32,
        namelen: glint_proto::limits::NAME_BYTES_MAX as u32,
        frsize: STATFS_BLOCK as u32,
        ..StatfsOut::default()
    }
}

pub(crate) fn open_out(handle: Handle, open_flags: u32) -> OpenOut {
    OpenOut { fh: handle.0, open_flags, backing_id: 0 }
}

/// Entries of a directory as the kernel wants them; stops when the buffer is full. Returns how
/// many bytes and entries that are.
pub(crate) fn put_entries(
    buffer: &mut [u8],
    entries: &[DirEntry],
    plus: bool,
    valid: impl Fn(usize) -> Valid,
) -> (usize, usize) {
    let head = if plus { size_of::<EntryOut>() } else { 0 };
    let (mut at, mut last_start) = (0, (0, 0));
    for (index, entry) in entries.iter().enumerate() {
        let len = (head + size_of::<Dirent>() + entry.name.len()).next_multiple_of(8);
        let Some(room) = buffer.get_mut(at..at + len) else {
            // Names that share a cookie must not be parted: the next page begins
            // after the cookie.
            let parted = index > 0 && entries[index - 1].cookie == entry.cookie;
            return if parted { last_start } else { (at, index) };
        };
        if index == 0 || entries[index - 1].cookie != entry.cookie {
            last_start = (at, index);
        }
        room.fill(0);
        if plus {
            // Without attributes (".", "..", or gone meanwhile) nodeid 0 says that
            // this is not a lookup.
            let out = match &entry.attr {
                Some(attr) => entry_out(attr, valid(index)),
                None => EntryOut::default(),
            };
            room[..head].copy_from_slice(out.as_bytes());
        }
        let dirent = Dirent {
            ino: entry.ino.0,
            off: entry.cookie,
            namelen: entry.name.len() as u32,
            kind: entry.dirent_type.into(),
        };
        let name_at = head + size_of::<Dirent>();
        room[head..name_at].copy_from_slice(dirent.as_bytes());
        room[name_at..name_at + entry.name.len()].copy_from_slice(&entry.name);
        at += len;
    }
    (at, entries.len())
}

/// How the kernel calls the root.
pub(crate) const ROOT_NODE: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::Ino;

    fn entry(cookie: u64, name: &str) -> DirEntry {
        let name = name.as_bytes().to_vec();
        DirEntry { ino: Ino(9), cookie, dirent_type: 8, name, attr: None }
    }

    #[test]
    fn a_full_buffer_stops_between_entries() {
        let entries = [entry(1, "a"), entry(2, "bb"), entry(3, "ccc")];
        let mut buffer = [0; 70];
        assert_eq!(put_entries(&mut buffer, &entries, false, |_| Valid::default()), (64, 2));
    }

    #[test]
    fn names_with_one_cookie_stay_together() {
        let entries = [entry(1, "a"), entry(2, "b"), entry(2, "c")];
        let mut buffer = [0; 70];
        assert_eq!(put_entries(&mut buffer, &entries, false, |_| Valid::default()), (32, 1));
    }
}

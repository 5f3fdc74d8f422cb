//! What a client did by itself in directories that it has for itself, to be executed by the
//! servers later, in its order: the content of [`MdsRequest::Batch`].
//!
//! The client has chosen inode numbers and times, so there is nothing that the servers could
//! answer but that something failed. Changes are encoded one after the other when they are
//! made, and decoded one by one: a batch is never a structure in memory, and cannot nest.

#![allow(missing_docs)] // Fields are those of the requests of the same names.

use crate::limits::BATCH_BYTES_MAX;
use crate::message::{MdsRequest, ObjectAttr, OpenFlags, RenameFlags, decode_first, encode};
use crate::{Cred, Errno, FsResult, Ino, Placement, SetAttr, Timestamp};
use serde::{Deserialize, Serialize};

/// One change: who made it, when, and what.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Deferred<'a> {
    pub uid: u32,
    pub gid: u32,
    pub time: Timestamp,
    #[serde(borrow)]
    pub change: Change<'a>,
}

/// What was done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change<'a> {
    /// A new inode with its first name, laid out where its client chose; open to write or to read, if it
    /// is open.
    Create {
        ino: Ino,
        placement: Placement,
        parent: Ino,
        #[serde(borrow)]
        name: &'a [u8],
        mode: u32,
        rdev: u32,
        #[serde(borrow)]
        target: &'a [u8],
        open: Option<OpenFlags>,
    },
    Setattr {
        ino: Ino,
        set: SetAttr,
    },
    Unlink {
        parent: Ino,
        #[serde(borrow)]
        name: &'a [u8],
    },
    Rmdir {
        parent: Ino,
        #[serde(borrow)]
        name: &'a [u8],
    },
    Rename {
        parent: Ino,
        #[serde(borrow)]
        name: &'a [u8],
        new_parent: Ino,
        #[serde(borrow)]
        new_name: &'a [u8],
    },
    Release {
        ino: Ino,
        write: bool,
        wrote: Option<(u64, Option<ObjectAttr>)>,
    },
}

impl<'a> Change<'a> {
    /// The request that does the same.
    pub fn request(&self) -> MdsRequest<'a> {
        match *self {
            Change::Create { parent, name, mode, rdev, target, open, .. } => MdsRequest::Create {
                parent,
                name,
                mode,
                umask: 0,
                rdev,
                target,
                open,
                exclusive: true,
            },
            Change::Setattr { ino, ref set } => MdsRequest::Setattr { ino, set: set.clone() },
            Change::Unlink { parent, name } => MdsRequest::Unlink { parent, name },
            Change::Rmdir { parent, name } => MdsRequest::Rmdir { parent, name },
            Change::Rename { parent, name, new_parent, new_name } => MdsRequest::Rename {
                parent,
                name,
                new_parent,
                new_name,
                flags: RenameFlags::default(),
            },
            Change::Release { ino, write, wrote } => MdsRequest::Release { ino, write, wrote },
        }
    }

    /// The file that it opens or closes: which, whether to write, and whether it opens it.
    pub fn opening(&self) -> Option<(Ino, bool, bool)> {
        match *self {
            Change::Create { ino, open: Some(flags), .. } => Some((ino, flags.write, true)),
            Change::Release { ino, write, .. } => Some((ino, write, false)),
            _ => None,
        }
    }

    /// The inode that it makes, and where that is laid out.
    pub fn made(&self) -> Option<(Ino, Placement)> {
        match self {
            Change::Create { ino, placement, .. } => Some((*ino, *placement)),
            _ => None,
        }
    }
}

impl Deferred<'_> {
    /// Appends it to a batch.
    pub fn encode(&self, batch: &mut Vec<u8>) -> FsResult<()> {
        encode(self, batch)
    }

    /// Who made it.
    pub fn cred(&self) -> Cred {
        Cred { uid: self.uid, gid: self.gid, groups: None }
    }
}

/// The changes of a batch, in order. Ends after the first that cannot be decoded.
pub fn changes(mut batch: &[u8]) -> impl Iterator<Item = FsResult<Deferred<'_>>> {
    let too_long = batch.len() > BATCH_BYTES_MAX;
    std::iter::from_fn(move || {
        if batch.is_empty() {
            return None;
        }
        let first = if too_long { Err(Errno::EPROTO) } else { decode_first(batch) };
        match first {
            Ok((change, rest)) => {
                batch = rest;
                Some(Ok(change))
            }
            Err(errno) => {
                batch = &[];
                Some(Err(errno))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_out_in_their_order_up_to_what_is_damaged() {
        let change = |n: u8| Deferred {
            uid: 1,
            gid: 2,
            time: Timestamp { secs: 3, nanos: 4 },
            change: Change::Create {
                ino: Ino(u64::from(n)),
                placement: Placement { first: 0, osts: 1 },
                parent: Ino(1),
                name: b"name",
                mode: 0o100644,
                rdev: 0,
                target: b"",
                open: Some(OpenFlags { write: true, ..OpenFlags::default() }),
            },
        };
        let mut batch = Vec::new();
        for n in 0..3 {
            change(n).encode(&mut batch).unwrap();
        }
        assert!(batch.len() < 3 * 40, "a change is small: {}", batch.len());
        let all: Vec<_> = changes(&batch).map(Result::unwrap).collect();
        assert_eq!(all, [change(0), change(1), change(2)]);
        batch.truncate(batch.len() - 1);
        let left: Vec<_> = changes(&batch).collect();
        assert!(left.len() == 3 && left[2] == Err(Errno::EPROTO));
        let long = vec![0; BATCH_BYTES_MAX + 1];
        assert_eq!(changes(&long).collect::<Vec<_>>(), [Err(Errno::EPROTO)]);
    }
}

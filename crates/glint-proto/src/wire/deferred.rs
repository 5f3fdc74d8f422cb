//! Changes that a client made under a delegation, to be executed by the MDS later, in their order:
//! the content of [`MdsRequest::Batch`]. Each is the request that would have been sent, with a
//! stamp.
//!
//! The client has chosen inode numbers and times, so there is nothing that the servers could
//! answer but that something failed. Changes are encoded one after the other when they are
//! made, and decoded one by one: a batch is never a structure in memory, and cannot nest.

use crate::limits::BATCH_BYTES_MAX;
use crate::message::{MdsRequest, decode_first, encode};
use crate::{Cred, Errno, FsResult, Ino, Placement, RenameFlags, Timestamp};
use serde::{Deserialize, Serialize};

/// One change: a request, and what its client decided that a server decides otherwise.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Deferred<'a> {
    /// User and group of who made it.
    pub uid: u32,
    /// See [`Deferred::uid`].
    pub gid: u32,
    /// When it was made.
    pub time: Timestamp,
    /// The inode that it makes, and where that is laid out.
    pub made: Option<(Ino, Placement)>,
    /// Request that was executed.
    #[serde(borrow)]
    pub request: MdsRequest<'a>,
}

impl Deferred<'_> {
    /// Appends it to a batch.
    pub fn encode(&self, batch: &mut Vec<u8>) -> FsResult<()> {
        encode(self, batch)
    }

    /// Credentials of the caller that made the change.
    pub fn cred(&self) -> Cred {
        Cred { uid: self.uid, gid: self.gid, groups: None }
    }

    /// The file that it opens or closes: which, whether to write, and whether it opens it.
    pub fn opening(&self) -> Option<(Ino, bool, bool)> {
        match self.request {
            MdsRequest::Create { open: Some(flags), .. } => {
                self.made.map(|(ino, _)| (ino, flags.write, true))
            }
            MdsRequest::Release { ino, write, .. } => Some((ino, write, false)),
            _ => None,
        }
    }

    /// Whether it only says that an inode was read, which may be lost.
    pub fn is_access(&self) -> bool {
        matches!(self.request, MdsRequest::Touch { .. })
    }

    /// Whether a client may make such a change by itself.
    fn is_allowed(&self) -> bool {
        match self.request {
            // A name is new, and the umask has been taken away.
            MdsRequest::Create { umask: 0, exclusive: true, .. } => self.made.is_some(),
            MdsRequest::Setattr { .. }
            | MdsRequest::Unlink { .. }
            | MdsRequest::Rmdir { .. }
            | MdsRequest::Release { .. }
            | MdsRequest::Touch { .. } => self.made.is_none(),
            MdsRequest::Rename { flags, .. } => {
                flags == RenameFlags::default() && self.made.is_none()
            }
            _ => false,
        }
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
            Ok((change, rest)) if Deferred::is_allowed(&change) => {
                batch = rest;
                Some(Ok(change))
            }
            other => {
                batch = &[];
                Some(Err(other.err().unwrap_or(Errno::EPROTO)))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenFlags;

    #[test]
    fn changes_come_out_in_their_order_up_to_what_is_damaged() {
        let change = |n: u8| Deferred {
            uid: 1,
            gid: 2,
            time: Timestamp { secs: 3, nanos: 4 },
            made: Some((Ino(u64::from(n)), Placement { first: 0, osts: 1 })),
            request: MdsRequest::Create {
                parent: Ino(1),
                name: b"name",
                mode: 0o100644,
                umask: 0,
                rdev: 0,
                target: b"",
                open: Some(OpenFlags { write: true, ..OpenFlags::default() }),
                exclusive: true,
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
        // Requests that no client executes by itself are no changes, and neither is a batch in a
        // batch.
        for request in [
            MdsRequest::Batch { epoch: 1, changes: &[] },
            MdsRequest::Readlink { ino: Ino(1) },
            MdsRequest::Rename {
                parent: Ino(1),
                name: b"a",
                new_parent: Ino(1),
                new_name: b"b",
                flags: RenameFlags { exchange: true, ..RenameFlags::default() },
            },
        ] {
            let mut batch = Vec::new();
            Deferred { made: None, request, ..change(1) }.encode(&mut batch).unwrap();
            assert_eq!(changes(&batch).collect::<Vec<_>>(), [Err(Errno::EPROTO)]);
        }
        let long = vec![0; BATCH_BYTES_MAX + 1];
        assert_eq!(changes(&long).collect::<Vec<_>>(), [Err(Errno::EPROTO)]);
    }
}

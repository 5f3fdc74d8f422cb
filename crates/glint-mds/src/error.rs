//! Errors of the MDS, their errnos, and the reasons for which an operation ends early.

use crate::store::record::RecordError;
use glint_kv::KvError;
use glint_proto::lock::Bits;
use glint_proto::{ClientId, Errno, Ino, MdsReply};

/// Error of the MDS that is not an answer to a caller.
#[derive(Debug, thiserror::Error)]
pub enum MdsError {
    /// The engine failed.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// A record does not decode.
    #[error("inode {ino}: {source}; run `glint fsck`")]
    Record {
        /// Inode.
        ino: Ino,
        /// Defect of its record.
        source: RecordError,
    },
    /// There is no root inode although the file system was initialised.
    #[error("the root inode is missing; run `glint fsck --repair`")]
    NoRoot,
    /// The table of chains does not decode.
    #[error("the table of chains is damaged; run `glint fsck`")]
    Chains,
    /// The system has no random numbers to make a key of.
    #[error("no random numbers")]
    NoSecret,
}

/// A lock that an operation needs and another client holds: nobody but `holder` may have `bits` of
/// `ino`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conflict {
    pub(crate) holder: ClientId,
    pub(crate) ino: Ino,
    pub(crate) bits: Bits,
}

/// Why an operation ends without having done anything.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stop {
    /// The caller is told.
    Refused(Errno),
    /// The operation begins again when the conflict is over; no caller hears of it.
    Conflict(Conflict),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Refused(errno)
    }
}

/// Answer of an operation that may meet a conflict. What cannot meet one returns an [`FsResult`];
/// [`execute_claiming`](crate::service::Mds::execute_claiming) makes one of the other.
///
/// [`FsResult`]: glint_proto::FsResult
pub(crate) type OpResult = Result<MdsReply, Stop>;

/// The one table from internal errors to errno. What a caller cannot act on is
/// logged here, with its context, because the errno loses it.
pub(crate) fn errno(error: impl Into<MdsError>) -> Errno {
    let error = error.into();
    match &error {
        MdsError::Kv(KvError::Conflict) => Errno::EAGAIN,
        MdsError::Kv(KvError::Io { source, .. })
            if source.raw_os_error() == Some(Errno::ENOSPC.0) =>
        {
            tracing::error!(%error, "the metadata engine failed");
            Errno::ENOSPC
        }
        _ => {
            tracing::error!(%error, "the metadata engine failed");
            Errno::EIO
        }
    }
}

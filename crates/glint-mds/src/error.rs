//! What can go wrong in the MDS, and its errno.

use crate::store::record::RecordError;
use glint_kv::KvError;
use glint_proto::{Errno, Ino};

/// Error of the MDS that is not an answer to a caller.
#[derive(Debug, thiserror::Error)]
pub enum MdsError {
    /// The engine failed.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// A record does not decode.
    #[error("inode {ino}: {source}; run `glint fsck`")]
    Record {
        /// Which inode.
        ino: Ino,
        /// What is wrong with it.
        source: RecordError,
    },
    /// There is no root inode although the file system was initialised.
    #[error("the root inode is missing; run `glint fsck --repair`")]
    NoRoot,
    /// The system has no random numbers to make a key of.
    #[error("no random numbers")]
    NoSecret,
}

/// An operation ends without having done anything, to begin again; no caller sees it.
pub(crate) const RESTART: Errno = Errno(512);

/// The one table from internal errors to errno. What a caller cannot act on is
/// logged here, with its context, because the errno loses it.
pub(crate) fn errno(error: impl Into<MdsError>) -> Errno {
    let error = error.into();
    match &error {
        MdsError::Kv(KvError::Conflict) => Errno::EAGAIN,
        MdsError::Kv(KvError::Io { source, .. })
            if source.raw_os_error() == Some(Errno::ENOSPC.0) =>
        {
            tracing::error!(%error, "metadata engine");
            Errno::ENOSPC
        }
        _ => {
            tracing::error!(%error, "metadata engine");
            Errno::EIO
        }
    }
}

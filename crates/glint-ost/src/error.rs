//! Errors of an OST, and their errnos.

use glint_proto::{Errno, ObjectId};

/// Error of an OST.
#[derive(Debug, thiserror::Error)]
pub enum OstError {
    /// The operating system refused to set up the store.
    #[error("{path}: {source}")]
    Setup {
        /// Path that was set up.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// An object could not be read or written.
    #[error("object {object} in {path}: {source}")]
    Object {
        /// Object that was accessed.
        object: ObjectId,
        /// Directory of the store.
        path: String,
        /// Why.
        source: std::io::Error,
    },
}

impl OstError {
    /// The one table from errors of the OST to errno. Damage is logged here, with
    /// its context, because the errno loses it; a full disk is the caller's affair.
    pub fn errno(&self) -> Errno {
        let (OstError::Setup { source, .. } | OstError::Object { source, .. }) = self;
        let errno = Errno::from_io(source);
        if matches!(errno, Errno::EIO | Errno::EBADMSG) {
            tracing::error!("{self}");
        }
        errno
    }
}

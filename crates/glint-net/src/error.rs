//! Errors of connections.

use glint_proto::frame::FrameError;

/// Error of a connection or a listener.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The peer sent something that is not a valid frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// Step that failed.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A file of an identity cannot be used.
    #[error("certificate {}: {reason}", path.display())]
    Certificate {
        /// Path of the file.
        path: std::path::PathBuf,
        /// Why not.
        reason: String,
    },
    /// The connection ended.
    #[error("the peer closed the connection")]
    Closed,
    /// The server does not take this client.
    #[error("the server refused: {0}")]
    Refused(String),
}

impl NetError {
    /// Whether an answer did not come in time, on a connection that did not end.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, NetError::Io { source, .. } if source.kind() == std::io::ErrorKind::TimedOut)
    }

    /// Reason that the peer is told.
    pub(crate) fn reason(&self) -> String {
        match self {
            NetError::Refused(reason) => reason.clone(),
            other => other.to_string(),
        }
    }
}

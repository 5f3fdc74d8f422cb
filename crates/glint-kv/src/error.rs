//! Errors of engines.

/// Error of an engine.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// A precondition did not hold; read again and retry.
    #[error("a precondition of the transaction no longer holds")]
    Conflict,
    /// The engine's files are damaged.
    #[error("metadata in {path} is damaged: {reason}; restore the data directory from a copy")]
    Corrupt {
        /// File or directory.
        path: String,
        /// Contradiction that the engine found.
        reason: String,
    },
    /// Another process has it open.
    #[error("{path} is in use by another process")]
    Locked {
        /// Directory.
        path: String,
    },
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// File or directory.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// An earlier write failed half way; the engine takes no more writes.
    #[error("an earlier journal write in {path} failed; restart to recover")]
    Poisoned {
        /// Directory.
        path: String,
    },
}

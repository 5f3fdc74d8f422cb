//! Records that a server keeps beside its engine and its objects, from run to run.

use glint_mds::{EmptiedError, MdsError};
use glint_proto::oss::ReplacedOst;
use glint_proto::{Errno, SpaceInfo};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Another server of OSTs, as the one with the MDS remembers it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OssIdentity {
    /// UUID of its data directory, in hexadecimal.
    pub uuid: String,
    /// Number of its first OST.
    pub first_ost: u16,
    /// How many it has.
    pub osts: u16,
    /// Address at which clients reach it.
    pub address: String,
    /// Name in its certificate, since it has shown one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Label of all that it fails together with, if one was given.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failure_domain: String,
    /// OSTs of it that an administrator has given up, until it is heard of again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given_up: Vec<u16>,
}

/// How the runs of an OSS ended.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct OssRuns {
    /// Boot verifier of the last run.
    pub current: u64,
    /// Changes of it that are surely durable.
    pub durable: u64,
    /// Boot verifiers of those before, and how many of their changes survived.
    pub ended: Vec<(u64, u64)>,
}

/// Why something could not be stored, or not be read again.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// The operating system refused.
    #[error("data directory {path}: {source}")]
    Io {
        /// Path of the record.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A stored record does not parse.
    #[error("{path} is damaged: {reason}")]
    Damaged {
        /// File of the record.
        path: String,
        /// Reason why it does not parse.
        reason: String,
    },
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The MDS does not.
    #[error(transparent)]
    Mds(#[from] MdsError),
    /// The table of chains cannot be stored.
    #[error("storing the table of chains: {0}")]
    Chains(Errno),
    /// The records cannot be read.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// An OST was put in the place of one that is still needed.
    #[error(transparent)]
    Emptied(#[from] EmptiedError),
}

/// Store of what a server remembers: its data directory, or the memory of a simulation.
///
/// Whatever is stored is there after any end of the process and any loss of power, whole; what
/// could not be stored is as it was before.
pub trait Records: LogStore {
    /// Name of the store for people.
    fn name(&self) -> String;

    /// UUID of the file system; of an OSS, that of its directory.
    fn uuid(&self) -> u128;

    /// Number of OSTs here.
    fn osts(&self) -> u16;

    /// Space of the file system that the tables of an MDS are on; `None` if it cannot be told, or is
    /// that of the first OST.
    fn table_space(&self) -> Option<SpaceInfo> {
        None
    }

    /// Whether what was not synced may be lost since it was last noted to be served.
    fn is_after_loss(&self) -> bool;

    /// The server serves, and what was lost has been done again.
    fn note_served(&self) -> Result<(), RecordsError>;

    /// The other servers of OSTs, as they were at the start.
    fn osses(&self) -> Vec<OssIdentity>;

    /// Stores the other servers of OSTs.
    fn store_osses(&self, osses: Vec<OssIdentity>) -> Result<(), RecordsError>;

    /// The file system that an OSS has joined; 0 if none.
    fn file_system(&self) -> u128;

    /// An OSS has joined a file system.
    fn store_file_system(&self, uuid: u128) -> Result<(), RecordsError>;

    /// OSTs here that were put in the place of others, until the MDS knows.
    fn replaced(&self) -> Result<Vec<ReplacedOst>, RecordsError>;

    /// The MDS knows of them.
    fn forget_replaced(&self) -> Result<(), RecordsError>;

    /// When the last pass ended that compared all data with its checksums, since the epoch; `None`
    /// if none did.
    fn scrubbed(&self) -> Option<Duration>;

    /// Stores that a pass of a scrub has ended.
    fn store_scrubbed(&self, date: Duration) -> Result<(), RecordsError>;

    /// What was read most, as it was kept last; nothing if it never was, or is not kept at all. It is
    /// a hint, and no promise holds for it.
    fn hot(&self, _: HotPart) -> Result<Option<Vec<u8>>, RecordsError> {
        Ok(None)
    }

    /// Keeps what is read most, if such hints are kept. A simulation keeps none: which reads are
    /// counted depends on the threads that read.
    fn store_hot(&self, _: HotPart, _: &[u8]) -> Result<(), RecordsError> {
        Ok(())
    }

    /// How the runs of an OSS ended so far.
    fn runs(&self) -> Result<OssRuns, RecordsError>;

    /// Stores the runs of an OSS.
    fn store_runs(&self, runs: &OssRuns) -> Result<(), RecordsError>;
}

/// Logs that a server appends to.
pub trait LogStore: Send + Sync + 'static {
    /// Content of a log; nothing if there is none.
    fn read_log(&self, log: ServerLog) -> Result<Vec<u8>, RecordsError>;

    /// Appends to a log. What is appended survives the end of the process, and a loss of power once
    /// [`sync_log`](LogStore::sync_log) has returned. A part of it may be in the log if that fails.
    fn append_to_log(&self, log: ServerLog, bytes: &[u8]) -> Result<(), RecordsError>;

    /// Brings what was appended before to stable storage.
    fn sync_log(&self, log: ServerLog) -> Result<(), RecordsError>;

    /// Puts another content in the place of a log, at once and durably, and drops its draft.
    fn replace_log(&self, log: ServerLog, bytes: &[u8]) -> Result<(), RecordsError>;

    /// Begins a draft of a log, with this content, beside it.
    fn draft_log(&self, log: ServerLog, bytes: &[u8]) -> Result<(), RecordsError>;

    /// Appends to the draft of a log; what is appended to the log from now on goes to both. Nobody
    /// appends to the log meanwhile.
    fn join_draft(&self, log: ServerLog, bytes: &[u8]) -> Result<(), RecordsError>;

    /// Puts the draft in the place of a log, durably, while others append: each record is in the file
    /// that a loss of power leaves as the log before anything that happens after it was appended. If it
    /// fails nobody knows which one is the log.
    fn adopt_draft(&self, log: ServerLog) -> Result<(), RecordsError>;
}

/// Part of a server that remembers what is read most.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HotPart {
    /// Tables of the engine.
    Tables,
    /// Objects of an OST, which has this number among those of its server.
    Ost(u16),
}

impl std::fmt::Display for HotPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HotPart::Tables => f.write_str("tables"),
            HotPart::Ost(ost) => write!(f, "ost{ost}"),
        }
    }
}

/// A log of a server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ServerLog {
    /// Objects of chains that were changed not long ago.
    Recent,
    /// Objects that absent members of chains lack changes of.
    Pending,
}

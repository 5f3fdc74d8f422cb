//! Records of a server, in memory that outlives its processes.

use glint_proto::oss::ReplacedOst;
use glint_server::{LogStore, OssIdentity, OssRuns, Records, RecordsError, ServerLog};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;

/// Records of a server.
pub(crate) struct MemoryRecords {
    uuid: u128,
    osts: u16,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    lost: bool,
    osses: Vec<OssIdentity>,
    file_system: u128,
    runs: OssRuns,
    scrubbed: Option<Duration>,
    logs: HashMap<ServerLog, KeptLog>,
}

/// A log, and how much of it was synced. Its draft becomes the log before anything else happens: no
/// simulated thread does it meanwhile.
#[derive(Default)]
struct KeptLog {
    bytes: Vec<u8>,
    synced: usize,
    draft: Vec<u8>,
}

impl MemoryRecords {
    /// Of a server that has so many OSTs and remembers nothing.
    pub(crate) fn new(uuid: u128, osts: u16) -> MemoryRecords {
        MemoryRecords { uuid, osts, kept: Mutex::default() }
    }

    /// Loses any part of each log's end that was not synced: of so many bytes `stays` says how many are
    /// left.
    pub(crate) fn lose(&self, mut stays: impl FnMut(u64) -> u64) {
        let mut kept = self.kept.lock();
        kept.lost = true;
        for log in [ServerLog::Recent, ServerLog::Pending] {
            let Some(log) = kept.logs.get_mut(&log) else { continue };
            let unsynced = log.bytes.len() - log.synced;
            log.bytes.truncate(log.synced + stays(unsynced as u64) as usize);
            // It is on the disk, and outlives the next loss, too.
            log.synced = log.bytes.len();
        }
    }
}

impl Records for MemoryRecords {
    fn name(&self) -> String {
        format!("simulated {}", self.uuid)
    }

    fn uuid(&self) -> u128 {
        self.uuid
    }

    fn osts(&self) -> u16 {
        self.osts
    }

    fn is_after_loss(&self) -> bool {
        self.kept.lock().lost
    }

    fn note_served(&self) -> Result<(), RecordsError> {
        self.kept.lock().lost = false;
        Ok(())
    }

    fn osses(&self) -> Vec<OssIdentity> {
        self.kept.lock().osses.clone()
    }

    fn store_osses(&self, osses: Vec<OssIdentity>) -> Result<(), RecordsError> {
        self.kept.lock().osses = osses;
        Ok(())
    }

    fn file_system(&self) -> u128 {
        self.kept.lock().file_system
    }

    fn store_file_system(&self, uuid: u128) -> Result<(), RecordsError> {
        self.kept.lock().file_system = uuid;
        Ok(())
    }

    fn replaced(&self) -> Result<Vec<ReplacedOst>, RecordsError> {
        Ok(Vec::new())
    }

    fn forget_replaced(&self) -> Result<(), RecordsError> {
        Ok(())
    }

    fn scrubbed(&self) -> Option<Duration> {
        self.kept.lock().scrubbed
    }

    fn store_scrubbed(&self, date: Duration) -> Result<(), RecordsError> {
        self.kept.lock().scrubbed = Some(date);
        Ok(())
    }

    fn runs(&self) -> Result<OssRuns, RecordsError> {
        Ok(self.kept.lock().runs.clone())
    }

    fn store_runs(&self, runs: &OssRuns) -> Result<(), RecordsError> {
        self.kept.lock().runs = runs.clone();
        Ok(())
    }
}

impl LogStore for MemoryRecords {
    fn read_log(&self, log: ServerLog) -> Result<Vec<u8>, RecordsError> {
        Ok(self.kept.lock().logs.entry(log).or_default().bytes.clone())
    }

    fn append_to_log(&self, log: ServerLog, bytes: &[u8]) -> Result<(), RecordsError> {
        self.kept.lock().logs.entry(log).or_default().bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn sync_log(&self, log: ServerLog) -> Result<(), RecordsError> {
        let mut kept = self.kept.lock();
        let log = kept.logs.entry(log).or_default();
        log.synced = log.bytes.len();
        Ok(())
    }

    fn replace_log(&self, log: ServerLog, bytes: &[u8]) -> Result<(), RecordsError> {
        let replaced = KeptLog { bytes: bytes.to_vec(), synced: bytes.len(), draft: Vec::new() };
        self.kept.lock().logs.insert(log, replaced);
        Ok(())
    }

    fn draft_log(&self, log: ServerLog, bytes: &[u8]) -> Result<(), RecordsError> {
        self.kept.lock().logs.entry(log).or_default().draft = bytes.to_vec();
        Ok(())
    }

    fn join_draft(&self, log: ServerLog, bytes: &[u8]) -> Result<(), RecordsError> {
        self.kept.lock().logs.entry(log).or_default().draft.extend_from_slice(bytes);
        Ok(())
    }

    fn adopt_draft(&self, log: ServerLog) -> Result<(), RecordsError> {
        let draft = std::mem::take(&mut self.kept.lock().logs.entry(log).or_default().draft);
        self.replace_log(log, &draft)
    }
}

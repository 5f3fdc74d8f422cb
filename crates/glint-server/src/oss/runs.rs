//! How the runs of an OSS ended: what of a run that a client knows is on stable storage.
//!
//! Invariant: a run is recorded, durably, before it answers anybody; and objects are gone for
//! good only after it is recorded that no write from before that is to be done again.

use crate::data_dir::{DataDir, DataDirError, store_json};
use glint_proto::message::Survived;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

const FILE: &str = "runs.json";
/// Runs that are remembered. A client that missed more of them is evicted.
const RUNS: usize = 128;

/// What is stored.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Record {
    /// Boot verifier of the last run.
    current: u64,
    /// Changes of it that are surely durable.
    durable: u64,
    /// Boot verifiers of those before, and how many of their changes survived.
    ended: Vec<(u64, u64)>,
}

/// This run and those before it.
pub struct Runs {
    record: Mutex<Record>,
}

impl Runs {
    /// Begins a run. `survived` if the host kept running since the last one.
    pub fn begin(data: &DataDir, boot_verifier: u64, survived: bool) -> Result<Runs, DataDirError> {
        let path = data.path().join(FILE);
        let mut record: Record = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| DataDirError::Damaged {
                path: path.display().to_string(),
                reason: error.to_string(),
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Record::default(),
            Err(source) => {
                return Err(DataDirError::Io { path: path.display().to_string(), source });
            }
        };
        if record.current != 0 {
            let changes = if survived { u64::MAX } else { record.durable };
            record.ended.push((record.current, changes));
            let many = record.ended.len();
            record.ended.drain(..many.saturating_sub(RUNS));
        }
        (record.current, record.durable) = (boot_verifier, 0);
        store_json(data.path(), FILE, &record)?;
        Ok(Runs { record: Mutex::new(record) })
    }

    /// Changes of this run up to this one are durable, and not to be done again.
    pub fn durable(&self, data: &DataDir, changes: u64) -> Result<(), DataDirError> {
        let mut record = self.record.lock();
        record.durable = record.durable.max(changes);
        store_json(data.path(), FILE, &*record)
    }

    /// What survived of a run; `None` if nobody knows any more.
    pub fn survived(&self, boot_verifier: u64) -> Option<Survived> {
        let record = self.record.lock();
        if boot_verifier == 0 || boot_verifier == record.current {
            return Some(Survived::ALL);
        }
        let ended = record.ended.iter().find(|(verifier, _)| *verifier == boot_verifier);
        ended.map(|(_, changes)| Survived { mds: u64::MAX, ost: *changes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_dir::Role;

    #[test]
    fn what_a_loss_of_power_leaves_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), None, Role::Oss).unwrap();
        Runs::begin(&data, 5, true).unwrap().durable(&data, 77).unwrap();
        let runs = Runs::begin(&data, 6, false).unwrap();
        assert_eq!(runs.survived(5).unwrap().ost, 77);
        assert_eq!(runs.survived(6), Some(Survived::ALL));
        let runs = Runs::begin(&data, 7, true).unwrap();
        assert_eq!((runs.survived(5).unwrap().ost, runs.survived(6).unwrap().ost), (77, u64::MAX));
        assert!(runs.survived(99).is_none());
        std::fs::write(dir.path().join(FILE), b"{").unwrap();
        let error = Runs::begin(&data, 8, true).err().unwrap().to_string();
        assert!(error.contains("runs.json is damaged"), "{error}");
    }
}

//! How the runs of an OSS ended: what of a run that a client knows is on stable storage.
//!
//! Invariant: a run is recorded, durably, before it answers anybody; and objects are gone for
//! good only after it is recorded that no write from before that is to be done again.

use crate::records::{OssRuns, Records, RecordsError};
use glint_proto::limits::RUNS_MAX;
use glint_proto::message::Survived;
use parking_lot::Mutex;

/// The current run and those before it.
pub(super) struct BootHistory {
    record: Mutex<OssRuns>,
}

impl BootHistory {
    /// Begins a run. `survived` if the host kept running since the last one.
    pub(super) fn begin(
        records: &dyn Records,
        boot_verifier: u64,
        survived: bool,
    ) -> Result<BootHistory, RecordsError> {
        let mut record = records.runs()?;
        if record.current != 0 {
            let changes = if survived { u64::MAX } else { record.durable };
            record.ended.push((record.current, changes));
            let many = record.ended.len();
            record.ended.drain(..many.saturating_sub(RUNS_MAX));
        }
        (record.current, record.durable) = (boot_verifier, 0);
        records.store_runs(&record)?;
        Ok(BootHistory { record: Mutex::new(record) })
    }

    /// Changes of this run up to this one are durable, and not to be done again.
    pub(super) fn durable(&self, records: &dyn Records, changes: u64) -> Result<(), RecordsError> {
        let mut record = self.record.lock();
        record.durable = record.durable.max(changes);
        records.store_runs(&record)
    }

    /// Changes of a run that survived; `None` if the run is not remembered any more.
    pub(super) fn survived(&self, boot_verifier: u64) -> Option<Survived> {
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
    use crate::process::data_dir::{DataDir, Role};

    #[test]
    fn what_a_loss_of_power_leaves_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), None, Role::Oss).unwrap();
        BootHistory::begin(&data, 5, true).unwrap().durable(&data, 77).unwrap();
        let boot_history = BootHistory::begin(&data, 6, false).unwrap();
        assert_eq!(boot_history.survived(5).unwrap().ost, 77);
        assert_eq!(boot_history.survived(6), Some(Survived::ALL));
        let boot_history = BootHistory::begin(&data, 7, true).unwrap();
        assert_eq!(
            (boot_history.survived(5).unwrap().ost, boot_history.survived(6).unwrap().ost),
            (77, u64::MAX)
        );
        assert!(boot_history.survived(99).is_none());
    }

    /// Somebody starts it again and again while a client waits to connect. One that was last heard
    /// of in a run that nobody remembers is told that it was evicted.
    #[test]
    fn so_many_runs_are_remembered_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), None, Role::Oss).unwrap();
        let ended: Vec<(u64, u64)> = (1..=RUNS_MAX as u64).map(|boot| (boot, 70 + boot)).collect();
        let current = RUNS_MAX as u64 + 1;
        data.store_runs(&OssRuns { current, durable: 77, ended }).unwrap();
        let boot_history = BootHistory::begin(&data, current + 1, false).unwrap();
        let survived = |boot| boot_history.survived(boot).map(|survived| survived.ost);
        assert_eq!(survived(1), None, "the oldest");
        assert_eq!([survived(2), survived(3)], [Some(72), Some(73)]);
        assert_eq!([survived(current), survived(current + 1)], [Some(77), Some(u64::MAX)]);
    }
}

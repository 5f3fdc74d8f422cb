//! The logs of changed objects of servers that are stopped, for a check of their copies.
//!
//! Invariant: what is read changes nothing; what is noted is on stable storage, behind all that was
//! noted before, also where a crash has left a part of a record at the end of the log.

use super::record::{RECORD_BYTES, decode, encode};
use super::sets::TouchedSets;
use super::{UNSEALED, UNSEARCHED, unsearched};
use crate::records::{LogStore, RecordsError, ServerLog};
use glint_proto::ObjectId;
use glint_proto::chain::Touched;
use std::collections::BTreeSet;

/// Everything that the logs of some servers name.
#[derive(Default)]
pub struct StoppedLogs {
    pending: TouchedSets,
    recent: TouchedSets,
}

impl StoppedLogs {
    /// Adds the logs of a server.
    pub fn read(&mut self, records: &dyn LogStore) -> Result<(), RecordsError> {
        for (log, sets) in
            [(ServerLog::Pending, &mut self.pending), (ServerLog::Recent, &mut self.recent)]
        {
            let bytes = records.read_log(log)?;
            for (key, touched) in bytes.chunks_exact(RECORD_BYTES).filter_map(decode) {
                sets.restore(key, touched);
            }
        }
        Ok(())
    }

    /// Extents of an object of a chain that a member lacks.
    pub fn pending(&self, target: u16, ost: u16, object: ObjectId) -> Vec<(u64, u64)> {
        self.pending.extents_of((target, ost), object)
    }

    /// Whether an object of a chain was begun while members lagged behind, of which one may have more
    /// of it than those that serve.
    pub fn is_begun(&self, target: u16, object: ObjectId) -> bool {
        self.pending.is_begun(target, object) == Some(true)
    }

    /// Extents of an object of a chain that were changed not long ago, so that copies may differ
    /// there until a head has made them equal.
    pub fn recent(&self, target: u16, object: ObjectId) -> Vec<(u64, u64)> {
        let mut extents = self.recent.extents_of((target, 0), object);
        for key in self.recent.keys().filter(|(target, _)| *target == UNSEALED) {
            extents.extend(self.recent.extents_of(key, object));
        }
        extents
    }
}

/// Notes at a server that members of chains, each as target and OST, lack all of these objects.
pub fn note_missing(
    records: &dyn LogStore,
    missing: &[(u16, u16, ObjectId)],
) -> Result<(), RecordsError> {
    let mut bytes = records.read_log(ServerLog::Pending)?;
    bytes.truncate(bytes.len() / RECORD_BYTES * RECORD_BYTES);
    for (target, ost, object) in missing {
        bytes.extend_from_slice(&encode((*target, *ost), Touched::whole(*object)));
    }
    records.replace_log(ServerLog::Pending, &bytes)
}

/// Notes at a server, if power was lost, that all of its OSTs are to be searched for objects without
/// checksums. Returns those that are, since then or an earlier run.
pub(crate) fn note_searches(
    logs: &(impl LogStore + ?Sized),
    osts: u16,
    after_loss: bool,
) -> Result<BTreeSet<u16>, RecordsError> {
    let mut bytes = logs.read_log(ServerLog::Recent)?;
    bytes.truncate(bytes.len() / RECORD_BYTES * RECORD_BYTES);
    let mut due = searches(&bytes);
    let new: Vec<u16> = (0..osts).filter(|index| after_loss && !due.contains(index)).collect();
    if !new.is_empty() {
        for index in &new {
            bytes.extend_from_slice(&encode(unsearched(*index), Touched::EVERYTHING));
        }
        logs.replace_log(ServerLog::Recent, &bytes)?;
    }
    due.extend(new);
    Ok(due)
}

/// OSTs of a server that its next run searches, whether or not power was lost.
pub fn awaited_searches(logs: &dyn LogStore) -> Result<BTreeSet<u16>, RecordsError> {
    Ok(searches(&logs.read_log(ServerLog::Recent)?))
}

fn searches(log: &[u8]) -> BTreeSet<u16> {
    let keys = log.chunks_exact(RECORD_BYTES).filter_map(decode).map(|(key, _)| key);
    keys.filter(|(target, _)| *target == UNSEARCHED).map(|(_, index)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::data_dir::{DataDir, Role};
    use crate::replication::touched::{TouchedLog, UNNUMBERED, cut_alone, written_alone};
    use futures_lite::future::block_on;
    use glint_proto::Ino;
    use std::sync::Arc;

    #[test]
    fn what_stands_for_no_chain_is_the_target_of_none() {
        assert!(glint_proto::chain::ChainId::of_target(UNSEARCHED).is_none());
    }

    #[test]
    fn what_is_noted_is_found_by_a_check_and_by_the_next_run() {
        let dir = tempfile::tempdir().unwrap();
        let data = Arc::new(DataDir::open_or_create(dir.path(), None, Role::Oss).unwrap());
        let object = |ino| ObjectId { ino: Ino(ino), stripe: 0 };
        let log = TouchedLog::load(data.clone(), ServerLog::Pending).unwrap();
        let part = Touched { object: object(7), start: 5, end: 9 };
        block_on(log.touch((1, 2), part, UNNUMBERED)).unwrap();
        block_on(log.touch((1, 3), Touched::EVERYTHING, UNNUMBERED)).unwrap();
        block_on(log.touch(written_alone(1), part, UNNUMBERED)).unwrap();
        let recent = TouchedLog::load(data.clone(), ServerLog::Recent).unwrap();
        let changed = Touched { object: object(8), start: 1, end: 2 };
        block_on(recent.touch((1, 0), changed, UNNUMBERED)).unwrap();
        // A crash amid a record.
        data.append_to_log(ServerLog::Pending, &[1, 2, 3]).unwrap();
        note_missing(&*data, &[(1, 2, object(9))]).unwrap();

        let mut logs = StoppedLogs::default();
        logs.read(&*data).unwrap();
        let all = [(0, u64::MAX)];
        assert_eq!(logs.pending(1, 2, object(7)), [(5, 9)]);
        assert_eq!(logs.pending(1, 2, object(9)), all);
        assert_eq!(logs.pending(1, 2, object(8)), []);
        assert_eq!(logs.pending(1, 3, object(8)), all);
        assert!(logs.is_begun(1, object(7)) && !logs.is_begun(1, object(9)));
        assert_eq!(logs.recent(1, object(8)), [(1, 2)]);
        assert_eq!(logs.recent(1, object(7)), []);
        let next = TouchedLog::load(data, ServerLog::Pending).unwrap();
        assert_eq!(next.list((1, 2)), [part, Touched::whole(object(9))]);
    }

    /// While there are other records, which keep the log from being written anew by itself.
    #[test]
    fn what_was_begun_while_members_lagged_behind_is_over_for_later_runs_too() {
        let dir = tempfile::tempdir().unwrap();
        let data = Arc::new(DataDir::open_or_create(dir.path(), None, Role::Oss).unwrap());
        let log = TouchedLog::load(data.clone(), ServerLog::Pending).unwrap();
        let object = ObjectId { ino: Ino(7), stripe: 0 };
        let part = |start| Touched { object, start, end: start + 1 };
        block_on(log.touch((2, 3), part(0), UNNUMBERED)).unwrap();
        block_on(log.touch(written_alone(1), part(0), UNNUMBERED)).unwrap();
        log.forget_key(written_alone(1));
        log.forget_key(cut_alone(1));
        block_on(log.touch((1, 2), part(5), UNNUMBERED)).unwrap();
        let next = TouchedLog::load(data, ServerLog::Pending).unwrap();
        assert_eq!(next.is_begun(1, object), Some(false));
        assert_eq!(next.list((2, 3)), [part(0)]);
        assert_eq!(next.list((1, 2)), [part(5)]);
    }
}

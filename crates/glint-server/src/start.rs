//! The start of the OSTs of a server.
//!
//! Invariants:
//! - What a process before this one has left in the caches of the kernel is brought to stable storage
//!   after the logs of which objects it changed. (Logs and data may be on different disks.)
//! - After a loss of power, which may have left a change and not the note of it, all objects with copies
//!   that were changed since they were sealed are noted.

use crate::records::{LogStore, ServerLog};
use crate::replication::note_unsealed;
use crate::settings::Settings;
use glint_ost::disk::Disk;
use glint_ost::{ObjectStore, OstSet, SpaceGrants, unsealed_copies};
use glint_proto::clock;
use std::sync::Arc;

/// Starts OSTs whose server keeps its logs in `logs`, perhaps after a loss of power: an error says why
/// they cannot be relied on.
pub fn start_osts<D: Disk>(
    logs: &(impl LogStore + ?Sized),
    stores: Vec<ObjectStore<D>>,
    grants: Arc<SpaceGrants>,
    settings: &Settings,
    after_loss: bool,
) -> Result<OstSet<D>, String> {
    for log in [ServerLog::Recent, ServerLog::Pending] {
        logs.sync_log(log).map_err(|error| error.to_string())?;
    }
    if after_loss || settings.after_power_loss {
        let begun = clock::now();
        tracing::info!("power was lost: looking for copies that were changed before");
        let found = unsealed_copies(&stores)
            .map_err(|error| format!("looking for objects that were changed: {error}"))?;
        note_unsealed(logs, &found).map_err(|error| error.to_string())?;
        let (objects, time) = (found.iter().map(Vec::len).sum::<usize>(), clock::since(begun));
        tracing::info!(objects, ?time, "looked for copies that were changed before power was lost");
    }
    OstSet::start(stores, grants, settings.ost_bandwidth, settings.commit_sync)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::data_dir::{DataDir, Role};
    use crate::records::RecordsError;
    use glint_ost::disk::memory::MemoryDisk;
    use glint_proto::{Ino, ObjectId};
    use std::path::Path;

    /// Logs on a disk that fails.
    struct Failing;

    impl LogStore for Failing {
        fn read_log(&self, _: ServerLog) -> Result<Vec<u8>, RecordsError> {
            Ok(Vec::new())
        }

        fn append_to_log(&self, _: ServerLog, _: &[u8]) -> Result<(), RecordsError> {
            Ok(())
        }

        fn sync_log(&self, _: ServerLog) -> Result<(), RecordsError> {
            let source = std::io::Error::from_raw_os_error(libc::EIO);
            Err(RecordsError::Io { path: "recent.log".into(), source })
        }

        fn replace_log(&self, _: ServerLog, _: &[u8]) -> Result<(), RecordsError> {
            Ok(())
        }

        fn draft_log(&self, _: ServerLog, _: &[u8]) -> Result<(), RecordsError> {
            Ok(())
        }

        fn join_draft(&self, _: ServerLog, _: &[u8]) -> Result<(), RecordsError> {
            Ok(())
        }

        fn adopt_draft(&self, _: ServerLog) -> Result<(), RecordsError> {
            Ok(())
        }
    }

    #[test]
    fn objects_of_a_run_before_are_durable_only_after_the_log_that_names_them() {
        let disk = MemoryDisk::default();
        let store = ObjectStore::on(disk.clone(), Path::new("ost"), 64, Arc::default());
        let object = ObjectId { ino: Ino(7), stripe: 0 };
        store.write(object, 0, b"data", None, false).unwrap();
        let started =
            start_osts(&Failing, vec![store], Arc::default(), &Settings::default(), false);
        assert!(started.err().unwrap().contains("recent.log"));
        disk.lose_power(&mut |_| 0);
        assert!(disk.paths().is_empty(), "{:?}", disk.paths());
    }
    #[test]
    fn after_a_loss_of_power_unsealed_copies_are_noted_once() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), None, Role::Oss).unwrap();
        let disk = MemoryDisk::default();
        let store = || ObjectStore::on(disk.clone(), Path::new("ost"), 64, Arc::default());
        let object = ObjectId { ino: Ino(7), stripe: ObjectId::OF_CHAINS };
        store().write(object, 0, b"data", None, false).unwrap();
        let start = |after_loss| {
            let stores = vec![store()];
            start_osts(&data, stores, Arc::default(), &Settings::default(), after_loss).unwrap();
            data.read_log(ServerLog::Recent).unwrap().len()
        };
        assert_eq!(start(false), 0);
        let noted = start(true);
        assert!(noted > 0);
        assert_eq!(start(true), noted);
        // They may be sealed before anybody knows of their chains.
        let sealed = store();
        sealed.write(object, 0, b"more", None, false).unwrap();
        sealed.settle_last().unwrap();
        assert_eq!(start(true), noted);
    }
}

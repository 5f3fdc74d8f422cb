//! The start of the OSTs of a server.
//!
//! Invariants:
//! - What a process before this one has left in the caches of the kernel is brought to stable storage
//!   after the logs of which objects it changed. (Logs and data may be on different disks.)
//! - After a loss of power, which may have left a change and not the note of it, all OSTs are searched for
//!   copies that were changed since they were sealed, while they serve. Until an OST was, its log says
//!   that it is to be, from before anything else is done: the next run does it if this one ends, whether
//!   or not power was lost again.

use crate::records::{LogStore, ServerLog};
use crate::replication::note_searches;
use crate::settings::Settings;
use glint_ost::disk::Disk;
use glint_ost::{ObjectStore, OstSet, SpaceGrants};
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
    let (count, after_loss) = (stores.len() as u16, after_loss || settings.after_power_loss);
    let due = note_searches(logs, count, after_loss).map_err(|error| error.to_string())?;
    if !due.is_empty() {
        tracing::info!(osts = ?due, "power was lost: looking for copies that were changed before");
    }
    let osts = OstSet::start(stores, grants, settings.ost_bandwidth, settings.commit_sync)?;
    due.into_iter().for_each(|index| osts.await_search(index));
    Ok(osts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::data_dir::{DataDir, Role};
    use crate::records::{Records, RecordsError};
    use crate::replication::Replication;
    use futures_lite::future::block_on;
    use glint_ost::disk::memory::{DiskOperation, Fault, MemoryDisk};
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
    fn after_a_loss_of_power_all_osts_await_their_search_until_they_were_searched() {
        let dir = tempfile::tempdir().unwrap();
        let data: Arc<dyn Records> =
            Arc::new(DataDir::open_or_create(dir.path(), None, Role::Oss).unwrap());
        let disks = [MemoryDisk::default(), MemoryDisk::default()];
        let store =
            |disk: &MemoryDisk| ObjectStore::on(disk.clone(), Path::new("ost"), 64, Arc::default());
        let object = ObjectId { ino: Ino(7), stripe: ObjectId::OF_CHAINS };
        store(&disks[0]).write(object, 0, b"data", None, false).unwrap();
        let start = |after_loss| {
            let stores = disks.iter().map(store).collect();
            start_osts(&*data, stores, Arc::default(), &Settings::default(), after_loss).unwrap()
        };
        let awaits = |osts: &OstSet<MemoryDisk>| [0, 1].map(|index| osts.awaits_search(index));
        let in_log = || data.read_log(ServerLog::Recent).unwrap().len();
        assert_eq!((awaits(&start(false)), in_log()), ([false; 2], 0));
        assert_eq!(awaits(&start(true)), [true; 2]);
        // That run was killed before it had searched anything.
        let noted = in_log();
        assert_eq!((awaits(&start(true)), in_log()), ([true; 2], noted));
        disks[1].fail(Fault::new(DiskOperation::List, "07/", libc::EIO, 1));
        let osts = start(false);
        block_on(Replication::load(&data, false, None).unwrap().search(&osts));
        assert_eq!(awaits(&osts), [false, true], "one of them has failed");
        // The object may be sealed now, and nobody knows of its chain.
        osts.settle_last().unwrap();
        let next = start(false);
        assert_eq!(awaits(&next), [false, true]);
        let replication = Replication::load(&data, false, None).unwrap();
        assert_eq!(replication.found_on(0), [object]);
        block_on(replication.search(&next));
        assert_eq!((awaits(&next), awaits(&start(false))), ([false; 2], [false; 2]));
    }
}

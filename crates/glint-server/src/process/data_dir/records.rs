//! Records of a server, in its data directory.

mod hot;

use super::ost_identity::OstIdentities;
use super::{BOOT, DataDir, DataDirIdentity, boot_id, damaged, io_error, store, store_json};
use crate::records::{HotPart, OssIdentity, OssRuns, Records, RecordsError};
use glint_proto::SpaceInfo;
use glint_proto::oss::ReplacedOst;
use rustix::fs::statvfs;
use std::io::ErrorKind;
use std::time::Duration;

/// How the runs of an OSS ended.
const RUNS: &str = "runs.json";
/// End of the last scrub, in seconds since the epoch.
const SCRUBBED: &str = "scrubbed.json";

impl DataDir {
    /// The boot_id of the host when it was last served, or [`super::LOST`]; `None` if it never was.
    fn last_served(&self) -> Option<String> {
        std::fs::read_to_string(self.path.join(BOOT)).ok()
    }
}

impl Records for DataDir {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn uuid(&self) -> u128 {
        u128::from_str_radix(&self.identity.uuid, 16).unwrap_or(0)
    }

    fn osts(&self) -> u16 {
        self.identity.osts
    }

    fn table_space(&self) -> Option<SpaceInfo> {
        // Before the first start there is none.
        let vfs = statvfs(self.mds()).or_else(|_| statvfs(self.path.as_path())).ok()?;
        Some(SpaceInfo {
            total: vfs.f_blocks * vfs.f_frsize,
            free: vfs.f_bfree * vfs.f_frsize,
            available: vfs.f_bavail * vfs.f_frsize,
            file_system: vfs.f_fsid,
        })
    }

    /// Whether the host was started again since then, or a flush failed.
    fn is_after_loss(&self) -> bool {
        self.last_served().is_some_and(|last| last != boot_id())
    }

    fn note_served(&self) -> Result<(), RecordsError> {
        if self.last_served().is_some_and(|last| last == boot_id()) {
            return Ok(());
        }
        self.store_boot(&boot_id())
    }

    fn osses(&self) -> Vec<OssIdentity> {
        self.identity.osses.clone()
    }

    fn store_osses(&self, osses: Vec<OssIdentity>) -> Result<(), RecordsError> {
        store(&self.path, &DataDirIdentity { osses, ..self.identity.clone() })
    }

    fn file_system(&self) -> u128 {
        let joined = self.identity.file_system.as_deref();
        joined.and_then(|uuid| u128::from_str_radix(uuid, 16).ok()).unwrap_or(0)
    }

    fn store_file_system(&self, uuid: u128) -> Result<(), RecordsError> {
        let file_system = Some(format!("{uuid:032x}"));
        store(&self.path, &DataDirIdentity { file_system, ..self.identity.clone() })
    }

    fn replaced(&self) -> Result<Vec<ReplacedOst>, RecordsError> {
        Ok(OstIdentities::load(&self.path)?.replaced)
    }

    fn forget_replaced(&self) -> Result<(), RecordsError> {
        OstIdentities::load(&self.path)?.forget_replaced(&self.path)
    }

    fn scrubbed(&self) -> Option<Duration> {
        // Without it a pass begins at once, which harms nobody.
        let text = std::fs::read_to_string(self.path.join(SCRUBBED)).ok()?;
        text.trim().parse().ok().map(Duration::from_secs)
    }

    fn store_scrubbed(&self, date: Duration) -> Result<(), RecordsError> {
        store_json(&self.path, SCRUBBED, &date.as_secs())
    }

    fn hot(&self, part: HotPart) -> Result<Option<Vec<u8>>, RecordsError> {
        self.read_hot(part)
    }

    fn store_hot(&self, part: HotPart, bytes: &[u8]) -> Result<(), RecordsError> {
        self.write_hot(part, bytes)
    }

    fn runs(&self) -> Result<OssRuns, RecordsError> {
        let path = self.path.join(RUNS);
        match std::fs::read(&path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map_err(|error| damaged(&path, error.to_string()))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(OssRuns::default()),
            Err(error) => Err(io_error(&path)(error)),
        }
    }

    fn store_runs(&self, runs: &OssRuns) -> Result<(), RecordsError> {
        store_json(&self.path, RUNS, runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::data_dir::Role;

    #[test]
    fn damaged_runs_are_told_and_not_taken_for_none() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), None, Role::Oss).unwrap();
        let runs = OssRuns { current: 5, durable: 77, ended: vec![(4, 3)] };
        assert_eq!(data.runs().unwrap(), OssRuns::default());
        data.store_runs(&runs).unwrap();
        assert_eq!(data.runs().unwrap(), runs);
        std::fs::write(dir.path().join(RUNS), b"{").unwrap();
        let error = data.runs().unwrap_err().to_string();
        assert!(error.contains("runs.json is damaged"), "{error}");
    }
}

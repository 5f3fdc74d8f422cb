//! What a server remembers, in its data directory.

use super::data_dir::{DataDir, DataDirError, store_json};
use crate::records::{OssIdentity, OssRuns, Records};
use std::io::ErrorKind;
use std::time::Duration;

/// How the runs of an OSS ended.
const RUNS: &str = "runs.json";
/// End of the last scrub, in seconds since the epoch.
const SCRUBBED: &str = "scrubbed.json";

impl Records for DataDir {
    fn name(&self) -> String {
        self.path().display().to_string()
    }

    fn uuid(&self) -> u128 {
        DataDir::uuid(self)
    }

    fn osts(&self) -> u16 {
        DataDir::osts(self)
    }

    fn is_after_loss(&self) -> bool {
        DataDir::is_after_loss(self)
    }

    fn note_served(&self) -> Result<(), DataDirError> {
        DataDir::note_served(self)
    }

    fn osses(&self) -> Vec<OssIdentity> {
        DataDir::osses(self).to_vec()
    }

    fn store_osses(&self, osses: Vec<OssIdentity>) -> Result<(), DataDirError> {
        DataDir::store_osses(self, osses)
    }

    fn file_system(&self) -> u128 {
        DataDir::file_system(self)
    }

    fn store_file_system(&self, uuid: u128) -> Result<(), DataDirError> {
        DataDir::store_file_system(self, uuid)
    }

    fn scrubbed(&self) -> Option<Duration> {
        // Without it a pass begins at once, which harms nobody.
        let text = std::fs::read_to_string(self.path().join(SCRUBBED)).ok()?;
        text.trim().parse().ok().map(Duration::from_secs)
    }

    fn store_scrubbed(&self, date: Duration) -> Result<(), DataDirError> {
        store_json(self.path(), SCRUBBED, &date.as_secs())
    }

    fn runs(&self) -> Result<OssRuns, DataDirError> {
        let path = self.path().join(RUNS);
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| DataDirError::Damaged {
                path: path.display().to_string(),
                reason: error.to_string(),
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(OssRuns::default()),
            Err(source) => Err(DataDirError::Io { path: path.display().to_string(), source }),
        }
    }

    fn store_runs(&self, runs: &OssRuns) -> Result<(), DataDirError> {
        store_json(self.path(), RUNS, runs)
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

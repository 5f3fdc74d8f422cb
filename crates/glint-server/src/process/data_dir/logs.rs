//! Logs of a server, in its data directory.
//!
//! Invariants:
//! - What was appended is in the file that is the log after the end of the process.
//! - No file is written as a log whose name another one has.
//! - While a draft takes the place of its log, what is appended goes to both, until the draft is the log
//!   after a loss of power, too.

use super::{DataDir, io_error, store_bytes};
use crate::records::{LogStore, RecordsError, ServerLog};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::Arc;

/// Files of a log that was appended to.
pub(super) struct OpenLog {
    log: ServerLog,
    file: Arc<File>,
    draft: Option<Draft>,
}

/// A file that takes the place of a log.
#[derive(Clone)]
struct Draft {
    file: Arc<File>,
    /// Whether what is appended to the log goes here, too.
    is_joined: bool,
}

fn name_of(log: ServerLog) -> &'static str {
    match log {
        ServerLog::Recent => "recent.log",
        ServerLog::Pending => "pending.log",
    }
}

impl DataDir {
    fn log_path(&self, log: ServerLog) -> PathBuf {
        self.path.join(name_of(log))
    }

    fn draft_path(&self, log: ServerLog) -> PathBuf {
        self.path.join(format!("{}.draft", name_of(log)))
    }

    /// Does something with the files of a log, which is opened if it is not yet.
    fn with_log<R>(
        &self,
        log: ServerLog,
        work: impl FnOnce(&mut OpenLog) -> R,
    ) -> Result<R, RecordsError> {
        let mut logs = self.logs.lock();
        if let Some(open) = logs.iter_mut().find(|open| open.log == log) {
            return Ok(work(open));
        }
        let path = self.log_path(log);
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = Arc::new(file.map_err(io_error(&path))?);
        // The name is durable before anything that is appended is said to be.
        self.sync_names()?;
        let mut open = OpenLog { log, file, draft: None };
        let done = work(&mut open);
        logs.push(open);
        Ok(done)
    }

    fn sync_names(&self) -> Result<(), RecordsError> {
        File::open(&self.path).and_then(|dir| dir.sync_all()).map_err(io_error(&self.path))
    }

    /// The joined draft of a log.
    fn joined(&self, log: ServerLog) -> Result<Arc<File>, RecordsError> {
        let draft = self.with_log(log, |open| open.draft.clone())?;
        let joined = draft.filter(|draft| draft.is_joined).map(|draft| draft.file);
        // The log was replaced, or the draft could not be appended to.
        joined.ok_or_else(|| io_error(&self.draft_path(log))(ErrorKind::NotFound.into()))
    }

    /// Does something with a log whose draft this still is. The log may have been replaced meanwhile.
    fn with_draft(
        &self,
        log: ServerLog,
        file: &Arc<File>,
        work: impl FnOnce(&mut OpenLog) -> std::io::Result<()>,
    ) -> Result<(), RecordsError> {
        self.with_log(log, |open| {
            let is_it = |draft: &Draft| Arc::ptr_eq(&draft.file, file);
            match open.draft.as_ref().is_some_and(is_it) {
                true => work(open),
                false => Err(ErrorKind::NotFound.into()),
            }
        })?
        .map_err(io_error(&self.draft_path(log)))
    }

    /// Gives a draft the name of its log.
    fn rename_draft(&self, log: ServerLog, file: &Arc<File>) -> Result<(), RecordsError> {
        let (draft, path) = (self.draft_path(log), self.log_path(log));
        self.with_draft(log, file, |_| std::fs::rename(draft, path))
    }

    /// From now on a draft is the log, and what it was taken from is not written any more.
    fn leave_old_log(&self, log: ServerLog, file: &Arc<File>) -> Result<(), RecordsError> {
        // Where the log was replaced since, the draft has lost its name.
        self.with_draft(log, file, |open| {
            open.draft = None;
            open.file = file.clone();
            Ok(())
        })
    }
}

impl LogStore for DataDir {
    fn read_log(&self, log: ServerLog) -> Result<Vec<u8>, RecordsError> {
        let path = self.log_path(log);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(io_error(&path)(error)),
        }
    }

    fn append_to_log(&self, log: ServerLog, bytes: &[u8]) -> Result<(), RecordsError> {
        let (file, draft) = self.with_log(log, |open| (open.file.clone(), open.draft.clone()))?;
        (&*file).write_all(bytes).map_err(io_error(&self.log_path(log)))?;
        if let Some(draft) = draft.filter(|draft| draft.is_joined) {
            (&*draft.file).write_all(bytes).map_err(io_error(&self.draft_path(log)))?;
        }
        Ok(())
    }

    fn sync_log(&self, log: ServerLog) -> Result<(), RecordsError> {
        let file = self.with_log(log, |open| open.file.clone())?;
        file.sync_data().map_err(io_error(&self.log_path(log)))
    }

    fn replace_log(&self, log: ServerLog, bytes: &[u8]) -> Result<(), RecordsError> {
        // Locked until the file is exchanged: who syncs meanwhile would open the old one again.
        let mut logs = self.logs.lock();
        logs.retain(|open| open.log != log);
        store_bytes(&self.path, name_of(log), bytes)
    }

    fn draft_log(&self, log: ServerLog, bytes: &[u8]) -> Result<(), RecordsError> {
        let path = self.draft_path(log);
        let mut file = File::create(&path).map_err(io_error(&path))?;
        file.write_all(bytes).map_err(io_error(&path))?;
        let draft = Draft { file: Arc::new(file), is_joined: false };
        self.with_log(log, |open| open.draft = Some(draft))
    }

    fn join_draft(&self, log: ServerLog, bytes: &[u8]) -> Result<(), RecordsError> {
        let path = self.draft_path(log);
        self.with_log(log, |open| -> std::io::Result<()> {
            let draft = open.draft.as_mut().ok_or(ErrorKind::NotFound)?;
            (&*draft.file).write_all(bytes)?;
            draft.is_joined = true;
            Ok(())
        })?
        .map_err(io_error(&path))
    }

    fn adopt_draft(&self, log: ServerLog) -> Result<(), RecordsError> {
        let file = self.joined(log)?;
        file.sync_data().map_err(io_error(&self.draft_path(log)))?;
        self.rename_draft(log, &file)?;
        self.sync_names()?;
        self.leave_old_log(log, &file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::data_dir::Role;
    use std::path::Path;

    const LOG: ServerLog = ServerLog::Recent;

    /// Appends a record.
    fn append(data: &DataDir, record: u8) {
        data.append_to_log(LOG, &[record]).unwrap();
    }

    /// What is the log after the end of the process, in the order of records.
    fn left(dir: &Path) -> Vec<u8> {
        let mut bytes = std::fs::read(dir.join("recent.log")).unwrap();
        bytes.sort_unstable();
        bytes
    }

    #[test]
    fn whichever_file_is_the_log_after_a_crash_has_all_records() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), None, Role::Oss).unwrap();
        (1..=3).for_each(|record| append(&data, record));
        // It is the log after a loss of power, until the exchange of names is on stable storage.
        let old = dir.path().join("old");
        std::fs::hard_link(dir.path().join("recent.log"), &old).unwrap();
        data.draft_log(LOG, &[2, 3]).unwrap();
        append(&data, 4);
        assert_eq!(left(dir.path()), [1, 2, 3, 4]);
        data.join_draft(LOG, &[4]).unwrap();
        append(&data, 5);
        assert_eq!(left(dir.path()), [1, 2, 3, 4, 5]);
        // Steps of `adopt_draft`.
        let file = data.joined(LOG).unwrap();
        file.sync_data().unwrap();
        append(&data, 6);
        assert_eq!(left(dir.path()), [1, 2, 3, 4, 5, 6]);
        data.rename_draft(LOG, &file).unwrap();
        append(&data, 7);
        assert_eq!(left(dir.path()), [2, 3, 4, 5, 6, 7]);
        assert_eq!(std::fs::read(&old).unwrap(), [1, 2, 3, 4, 5, 6, 7]);
        data.sync_names().unwrap();
        append(&data, 8);
        assert_eq!(std::fs::read(&old).unwrap(), [1, 2, 3, 4, 5, 6, 7, 8]);
        data.leave_old_log(LOG, &file).unwrap();
        append(&data, 9);
        data.sync_log(LOG).unwrap();
        assert_eq!(left(dir.path()), [2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(std::fs::read(&old).unwrap().len(), 8);
        // And all of them at once.
        data.draft_log(LOG, &[]).unwrap();
        data.join_draft(LOG, &[8, 9]).unwrap();
        data.adopt_draft(LOG).unwrap();
        append(&data, 10);
        assert_eq!(left(dir.path()), [8, 9, 10]);
    }

    #[test]
    fn a_draft_that_was_not_joined_or_of_a_log_that_was_replaced_is_not_adopted() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), None, Role::Oss).unwrap();
        append(&data, 1);
        assert!(data.join_draft(LOG, &[]).is_err());
        data.draft_log(LOG, &[]).unwrap();
        assert!(data.adopt_draft(LOG).is_err());
        data.join_draft(LOG, &[]).unwrap();
        let file = data.joined(LOG).unwrap();
        data.replace_log(LOG, &[1, 2]).unwrap();
        assert!(data.adopt_draft(LOG).is_err());
        assert!(data.rename_draft(LOG, &file).is_err());
        append(&data, 3);
        assert_eq!(left(dir.path()), [1, 2, 3]);
    }

    #[test]
    fn a_log_that_is_replaced_while_its_draft_is_adopted_has_what_is_appended() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), None, Role::Oss).unwrap();
        append(&data, 1);
        data.draft_log(LOG, &[]).unwrap();
        data.join_draft(LOG, &[]).unwrap();
        // Steps of `adopt_draft`, and who writes the log anew comes between them.
        let file = data.joined(LOG).unwrap();
        data.rename_draft(LOG, &file).unwrap();
        data.replace_log(LOG, &[1, 2]).unwrap();
        assert!(data.leave_old_log(LOG, &file).is_err());
        append(&data, 3);
        assert_eq!(left(dir.path()), [1, 2, 3]);
    }
}

//! The log of changed objects as those threads know it that write it.
//!
//! Invariants:
//! - One thread at a time writes, and all that was noted by then: the one that makes the change which
//!   came first, before it makes it. So noting a change costs no hand-over of its own.
//! - Who comes meanwhile is called when that is over, and keeps no thread that long.
//! - After an append or a sync that failed, all entries are written anew before any is said to be there.

use super::record::{RECORD_BYTES, encode};
use super::sets::TouchedSets;
use crate::records::{LogStore, RecordsError, ServerLog};
use glint_net::host;
use glint_ost::{CallKind, DiskWatch, GoOn};
use glint_proto::Errno;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The log.
pub(super) struct LogFile {
    records: Arc<dyn LogStore>,
    log: ServerLog,
    pub(super) state: Mutex<LogState>,
    /// Records on stable storage.
    synced: AtomicU64,
    pub(super) watch: DiskWatch,
}

/// What is in the log, and what is to be.
pub(super) struct LogState {
    pub(super) sets: TouchedSets,
    /// Records that were ever noted, those of them that are in the log, and the bytes of the rest.
    pub(super) noted: u64,
    pub(super) written: u64,
    pub(super) unwritten: Vec<u8>,
    /// Records in the log.
    pub(super) in_log: usize,
    /// How often it was found that the log may lack entries, ends in a part of a record, or is too long:
    /// then it is written anew; and how often of these it was.
    pub(super) due_anew: u64,
    done_anew: u64,
    /// Whether somebody has the turn to write, and who goes on with what when that is over.
    is_being_written: bool,
    waiting: Vec<(u64, GoOn)>,
}

impl LogState {
    /// Of a log that has these entries in so many records, and is written anew first if `is_due_anew`.
    pub(super) fn new(sets: TouchedSets, in_log: usize, is_due_anew: bool) -> LogState {
        let written = in_log as u64;
        LogState {
            sets,
            noted: written,
            written,
            unwritten: Vec::new(),
            in_log,
            due_anew: u64::from(is_due_anew),
            done_anew: 0,
            is_being_written: false,
            waiting: Vec::new(),
        }
    }

    fn is_due_anew(&self) -> bool {
        self.due_anew > self.done_anew
    }

    /// Whether records up to this one are in the log.
    pub(super) fn is_written(&self, upto: u64) -> bool {
        !self.is_due_anew() && self.written >= upto
    }
}

/// The turn to write, until it is dropped.
struct WriteTurn(Arc<LogFile>);

impl WriteTurn {
    fn write(self) -> io::Result<()> {
        self.0.write().map_err(|error| io::Error::from_raw_os_error(failed(&error).0))
    }
}

impl Drop for WriteTurn {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.0.state.lock();
            state.is_being_written = false;
            std::mem::take(&mut state.waiting)
        };
        for (upto, go_on) in waiting {
            self.0.clone().once_written(upto, go_on);
        }
    }
}

/// Errno for who could not note a change.
pub(super) fn failed(error: &RecordsError) -> Errno {
    tracing::error!(%error, "could not note which objects are being changed");
    Errno::EIO
}

impl LogFile {
    /// Where nothing is known to be on stable storage: an earlier process may have ended before it
    /// synced what is there.
    pub(super) fn new(records: Arc<dyn LogStore>, log: ServerLog, state: LogState) -> LogFile {
        let (synced, watch) = Default::default();
        LogFile { records, log, state: Mutex::new(state), synced, watch }
    }

    /// Has somebody go on once records up to this one are in the log: at once if they are; with the
    /// turn to write, if nobody has it; or when who has it is done. The turn is used at once.
    pub(super) fn once_written(self: Arc<Self>, upto: u64, go_on: GoOn) {
        {
            let mut state = self.state.lock();
            if state.is_written(upto) {
                drop(state);
                return go_on(None);
            }
            if state.is_being_written {
                return state.waiting.push((upto, go_on));
            }
            state.is_being_written = true;
        }
        let turn = WriteTurn(self);
        if host::is_simulated() {
            let written = turn.write();
            return go_on(Some(Box::new(move || written)));
        }
        go_on(Some(Box::new(move || turn.write())));
    }

    /// Writes everything that was noted and is not in the log. May take long.
    pub(super) fn write(&self) -> Result<(), RecordsError> {
        let (bytes, upto, is_anew, due_anew) = {
            let mut state = self.state.lock();
            let mut bytes = std::mem::take(&mut state.unwritten);
            let is_anew = state.is_due_anew();
            if is_anew {
                bytes.clear();
                state.sets.for_each(|key, entry| bytes.extend_from_slice(&encode(key, entry)));
            }
            (bytes, state.noted, is_anew, state.due_anew)
        };
        if bytes.is_empty() && !is_anew {
            return Ok(());
        }
        let written = {
            let kind = if is_anew { CallKind::Flush } else { CallKind::Short };
            let _call = self.watch.begin(kind);
            match is_anew {
                true => self.records.replace_log(self.log, &bytes),
                false => self.records.append_to_log(self.log, &bytes),
            }
        };
        let mut state = self.state.lock();
        if let Err(error) = written {
            state.due_anew += 1;
            return Err(error);
        }
        if is_anew {
            state.done_anew = due_anew;
        }
        let before = if is_anew { 0 } else { state.in_log };
        state.in_log = before + bytes.len() / RECORD_BYTES;
        state.written = upto;
        if is_anew {
            self.synced.fetch_max(upto, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Whether records up to this one are on stable storage.
    pub(super) fn is_synced(&self, upto: u64) -> bool {
        self.synced.load(Ordering::Acquire) >= upto
    }

    /// Brings what is in the log to stable storage. May take long.
    pub(super) fn sync(&self) -> Result<(), RecordsError> {
        let upto = self.state.lock().written;
        let _call = self.watch.begin(CallKind::Flush);
        match self.records.sync_log(self.log) {
            Ok(()) => {
                self.synced.fetch_max(upto, Ordering::AcqRel);
                Ok(())
            }
            // The kernel reports a failed writeback once, and may have dropped the pages.
            Err(error) => {
                self.state.lock().due_anew += 1;
                Err(error)
            }
        }
    }
}

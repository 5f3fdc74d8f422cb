//! The log of changed objects as those threads know it that write it.
//!
//! Invariants:
//! - One thread at a time writes, and all that was noted by then: the one that makes the change which
//!   came first, before it makes it. So noting a change costs no hand-over of its own.
//! - Who comes meanwhile is called when that is over, and keeps no thread that long.
//! - After an append or a sync that failed, all entries are written anew before any is said to be there.
//! - A log that is only too long is written anew beside itself, as a draft that takes its place: nobody
//!   who notes a change waits for that.

use super::record::{RECORD_BYTES, encode};
use super::sets::TouchedSets;
use crate::records::{LogStore, RecordsError, ServerLog};
use glint_net::host;
use glint_ost::{CallKind, DiskWatch, GoOn};
use glint_proto::Errno;
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

/// The log.
pub(super) struct LogFile {
    records: Arc<dyn LogStore>,
    log: ServerLog,
    pub(super) state: Mutex<LogState>,
    /// Records on stable storage.
    synced: AtomicU64,
    pub(super) watch: DiskWatch,
}

/// A shorter log that is to take the place of this one.
struct Draft {
    stage: DraftStage,
    /// Records in it, or to be.
    records: usize,
}

/// How much of a log its draft has.
enum DraftStage {
    /// Not what was appended to the log meanwhile.
    Begun(Vec<u8>),
    /// Neither, and the next one who writes joins it.
    Joins(Vec<u8>),
    /// All, and what is appended goes to both.
    Joined,
}

/// What the log is given.
enum Write {
    Nothing,
    /// More records, and to the draft these.
    Append(Vec<u8>, Option<Vec<u8>>),
    /// Other records, since it was found so often that it may lack some.
    Anew(Vec<u8>, u64),
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
    /// How often it was found that the log may lack entries, ends in a part of a record, or has more than
    /// counts: then it is written anew; and how often of these it was.
    pub(super) due_anew: u64,
    done_anew: u64,
    /// It is to become shorter though it is not long: the next process would do again what is over.
    pub(super) is_due_short: bool,
    draft: Option<Draft>,
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
            is_due_short: false,
            draft: None,
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

    /// Records of all entries.
    fn all(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.sets.for_each(|key, entry| bytes.extend_from_slice(&encode(key, entry)));
        bytes
    }

    /// Takes what the log is to be given.
    fn take(&mut self) -> Write {
        let bytes = std::mem::take(&mut self.unwritten);
        if self.is_due_anew() {
            self.draft = None;
            return Write::Anew(self.all(), self.due_anew);
        }
        let mut joins = None;
        if let Some(draft) = &mut self.draft {
            draft.records += bytes.len() / RECORD_BYTES;
            match &mut draft.stage {
                DraftStage::Begun(rest) => rest.extend_from_slice(&bytes),
                DraftStage::Joins(rest) => {
                    rest.extend_from_slice(&bytes);
                    joins = Some(std::mem::take(rest));
                }
                DraftStage::Joined => {}
            }
        }
        match bytes.is_empty() && joins.is_none() {
            true => Write::Nothing,
            false => Write::Append(bytes, joins),
        }
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
        let (write, upto) = {
            let mut state = self.state.lock();
            (state.take(), state.noted)
        };
        let written = match &write {
            Write::Nothing => return Ok(()),
            Write::Append(bytes, joins) => self.append(bytes, joins.as_deref()),
            Write::Anew(bytes, _) => {
                let _call = self.watch.begin(CallKind::Flush);
                self.records.replace_log(self.log, bytes)
            }
        };
        let mut state = self.state.lock();
        if let Err(error) = written {
            state.due_anew += 1;
            return Err(error);
        }
        match write {
            Write::Nothing => {}
            Write::Append(bytes, _) => state.in_log += bytes.len() / RECORD_BYTES,
            Write::Anew(bytes, due_anew) => {
                state.done_anew = due_anew;
                state.in_log = bytes.len() / RECORD_BYTES;
                self.synced.fetch_max(upto, Ordering::AcqRel);
            }
        }
        state.written = upto;
        Ok(())
    }

    /// Appends to the log, and brings its draft up to that with `joins`, if it is there.
    fn append(&self, bytes: &[u8], joins: Option<&[u8]>) -> Result<(), RecordsError> {
        let _call = self.watch.begin(CallKind::Short);
        if !bytes.is_empty() {
            self.records.append_to_log(self.log, bytes)?;
        }
        if let Some(rest) = joins {
            let joined = self.records.join_draft(self.log, rest);
            let mut state = self.state.lock();
            if let Err(error) = joined {
                tracing::warn!(%error, "the log of changed objects stays long");
                state.draft = None;
            } else if let Some(draft) = &mut state.draft {
                draft.stage = DraftStage::Joined;
            }
        }
        Ok(())
    }

    /// Writes a log anew that has more than counts, beside itself. May take long. Nobody syncs it
    /// meanwhile.
    pub(super) fn shrink(self: Arc<Self>) -> Result<(), RecordsError> {
        let _call = self.watch.begin(CallKind::Flush);
        let bytes = {
            let mut state = self.state.lock();
            if state.is_due_anew() {
                return Ok(());
            }
            let bytes = state.all();
            let records = bytes.len() / RECORD_BYTES;
            state.draft = Some(Draft { stage: DraftStage::Begun(Vec::new()), records });
            bytes
        };
        if let Err(error) = self.records.draft_log(self.log, &bytes) {
            self.state.lock().draft = None;
            return Err(error);
        }
        let Some(upto) = self.join_draft() else { return Ok(()) };
        let adopted = self.records.adopt_draft(self.log);
        let mut state = self.state.lock();
        let draft = state.draft.take();
        match adopted {
            Ok(()) => {
                state.in_log = draft.map_or(state.in_log, |draft| draft.records);
                self.synced.fetch_max(upto, Ordering::AcqRel);
                Ok(())
            }
            // Nobody knows which one is the log.
            Err(error) => {
                state.due_anew += 1;
                Err(error)
            }
        }
    }

    /// Joins the draft with the log. Returns how many records it has: nothing if it was given up.
    fn join_draft(self: &Arc<Self>) -> Option<u64> {
        if let Some(draft) = &mut self.state.lock().draft
            && let DraftStage::Begun(rest) = &mut draft.stage
        {
            draft.stage = DraftStage::Joins(std::mem::take(rest));
        }
        // More than there ever are: whoever waits for them has a turn to write, after others.
        let (says, turn) = mpsc::channel();
        self.clone().once_written(u64::MAX, Box::new(move |first| _ = says.send(first)));
        if let Ok(Some(first)) = turn.recv() {
            // It fails for who notes a change, too.
            first().ok()?;
        }
        let state = self.state.lock();
        let draft = state.draft.as_ref()?;
        matches!(draft.stage, DraftStage::Joined).then_some(state.written)
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

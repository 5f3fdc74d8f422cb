//! Objects that were changed, in a log: those whose copies may differ after a crash, and those that
//! absent members lack.
//!
//! Invariants:
//! - The log has every entry before the change that it is for is made ([`TouchedLog::touch`]); on
//!   stable storage once [`TouchedLog::sync`] has returned. After an append or a sync that failed, all
//!   entries are written anew before any is said to be there.
//! - Nobody waits for the disk of the log on the thread that asks, nor for a lock that is held
//!   meanwhile: entries are known at once, and written by a thread of their own, those of many in one
//!   append.
//! - An entry says which extents of its object were changed, and covers all changes since it came. A
//!   later change that its newer extents cover is not written to the log.
//! - [`TouchedLog::remove`] keeps entries that were noted again since they were listed, and
//!   [`TouchedLog::advance`] everything that was.
//! - The log of pending changes has no more than [`PENDING_ENTRIES_MAX`] entries. With one more, the
//!   key that has most lacks everything: all objects of its chain, one after the other.
//!
//! (The first is called an activity log elsewhere, the second an index of pending heals: GlusterFS
//! keeps it as links in a directory, one for each file.)

mod extents;
mod record;
mod sets;

use crate::records::{LogStore, RecordsError, ServerLog};
use glint_net::host;
use glint_ost::{CallKind, DiskWatch};
use glint_proto::chain::{ChainId, Touched};
use glint_proto::limits::PENDING_ENTRIES_MAX;
use glint_proto::{Errno, FsResult, ObjectId};
use glint_telemetry::{Layer, Span};
use parking_lot::{Mutex, MutexGuard};
use record::{RECORD_BYTES, decode, encode};
pub(super) use sets::TouchedCount;
use sets::TouchedSets;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Chain and, of pending changes, the member that lacks them.
pub(super) type Key = (u16, u16);
/// Version of the row and number of a change. Version 0 has changes that no head has numbered, in
/// the order in which they were noted.
pub(super) type Tag = (u32, u64);
/// Stands for the next number of version 0.
pub(super) const UNNUMBERED: Tag = (0, 0);

/// Records of a log before it is written anew, if most are of no more use.
const RECORDS_MAX: usize = 1 << 14;

/// Objects that were changed.
pub(super) struct TouchedLog {
    file: Arc<LogFile>,
    /// Held while something is written to the log, and while it is synced; also by the thread that
    /// does it when nobody waits for that any more.
    writing: Arc<futures_util::lock::Mutex<()>>,
    syncing: Arc<futures_util::lock::Mutex<()>>,
}

/// The log, as threads know it that wait for its disk.
struct LogFile {
    records: Arc<dyn LogStore>,
    log: ServerLog,
    state: Mutex<LogState>,
    /// Records on stable storage.
    synced: AtomicU64,
    watch: DiskWatch,
}

#[derive(Default)]
struct LogState {
    sets: TouchedSets,
    /// Records that were ever noted, those of them that are in the log, and the bytes of the rest.
    noted: u64,
    written: u64,
    unwritten: Vec<u8>,
    /// Records in the log.
    in_log: usize,
    /// How often it was found that the log may lack entries, ends in a part of a record, or is too long:
    /// then it is written anew; and how often of these it was.
    due_anew: u64,
    done_anew: u64,
}

impl LogState {
    fn is_due_anew(&self) -> bool {
        self.due_anew > self.done_anew
    }

    fn is_written(&self, upto: u64) -> bool {
        !self.is_due_anew() && self.written >= upto
    }
}

impl LogFile {
    /// Writes everything that was noted and is not in the log. May take long.
    fn write(&self) -> Result<(), RecordsError> {
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

    /// Brings what is in the log to stable storage. May take long.
    fn sync(&self) -> Result<(), RecordsError> {
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

/// Does something that waits for a disk on another thread: to its end, whoever waits for it.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    if host::is_simulated() { work() } else { blocking::unblock(work).await }
}

/// Selects changes that are stable when the head of a chain, at row `version`, says so of its changes
/// up to number `upto`.
///
/// The head goes on counting when its row changes, so a change by an older row may have a larger
/// number and not be stable. (Another head makes older changes equal before it counts.) Changes of
/// earlier runs, of which the head may know nothing, are not selected.
pub(super) fn is_stable(version: u32, upto: u64) -> impl Fn(Tag) -> bool {
    move |(row, number)| row > UNNUMBERED.0 && row <= version && number <= upto
}

impl TouchedLog {
    /// Reads a log. What a crash has left half written at its end was not acknowledged.
    pub(super) fn load(
        records: Arc<dyn LogStore>,
        log: ServerLog,
    ) -> Result<TouchedLog, RecordsError> {
        let bytes = records.read_log(log)?;
        let entries_max = (log == ServerLog::Pending).then_some(PENDING_ENTRIES_MAX);
        let (mut sets, mut in_log) = (TouchedSets::bounded(entries_max), 0);
        for record in bytes.chunks_exact(RECORD_BYTES) {
            let Some((key, touched)) = decode(record) else {
                tracing::warn!(?log, "a record in a log of changed objects is damaged");
                continue;
            };
            sets.restore(key, touched);
            in_log += 1;
        }
        // Records of a log that is longer than what this version keeps.
        let mut is_over = false;
        while sets.bound().is_some() {
            is_over = true;
        }
        let whole = in_log * RECORD_BYTES == bytes.len();
        // An earlier process may have ended before it synced them.
        let written = in_log as u64;
        let is_due_anew = !whole || is_over;
        let (due_anew, done_anew) = (u64::from(is_due_anew), 0);
        let unwritten = Vec::new();
        let noted = written;
        let state = LogState { sets, noted, written, unwritten, in_log, due_anew, done_anew };
        let file = LogFile {
            records,
            log,
            state: Mutex::new(state),
            synced: AtomicU64::new(0),
            watch: DiskWatch::default(),
        };
        if is_due_anew {
            file.write()?;
        }
        let (writing, syncing) = Default::default();
        Ok(TouchedLog { file: Arc::new(file), writing, syncing })
    }

    /// Disk of the log, to be watched.
    pub(super) fn watch(&self) -> &DiskWatch {
        &self.file.watch
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.file.state.lock()
    }

    /// A part of an object is about to be changed.
    pub(super) async fn touch(&self, key: Key, touched: Touched, tag: Tag) -> FsResult<()> {
        self.touch_all(key, std::iter::once(touched), tag).await
    }

    /// These parts of objects are about to be changed.
    pub(super) async fn touch_all(
        &self,
        key: Key,
        touched: impl Iterator<Item = Touched>,
        tag: Tag,
    ) -> FsResult<()> {
        let mut touched = touched.peekable();
        // Syncs and grants of space change nothing: they are neither timed nor counted here.
        if touched.peek().is_none() {
            return Ok(());
        }
        let _span = Span::part(Layer::Index);
        self.note(key, touched, tag);
        self.write().await.map(drop)
    }

    /// Notes parts of objects, to be written with the next that are touched, or synced.
    pub(super) fn note(&self, key: Key, touched: impl Iterator<Item = Touched>, tag: Tag) {
        let mut state = self.state();
        let state = &mut *state;
        for touched in touched {
            if let Some(entry) = state.sets.insert(key, touched, tag) {
                state.unwritten.extend_from_slice(&encode(key, entry));
                state.noted += 1;
            }
        }
        if let Some(key) = state.sets.bound() {
            tracing::warn!(
                chain = ChainId::of_target(key.0).map(tracing::field::display),
                ost = key.1,
                "a member lacks more changes than are remembered: it will be given everything"
            );
            state.due_anew += 1;
        }
    }

    /// Waits until everything that was noted so far is in the log. Returns how much that is.
    async fn write(&self) -> FsResult<u64> {
        let mine = {
            let state = self.state();
            if state.is_written(state.noted) {
                return Ok(state.noted);
            }
            state.noted
        };
        let writing = self.writing.clone().lock_owned().await;
        // Others may have been written together with it.
        if self.state().is_written(mine) {
            return Ok(mine);
        }
        let file = self.file.clone();
        let written = apart(move || {
            let written = file.write();
            drop(writing);
            written
        });
        written.await.map(|()| mine).map_err(failed)
    }

    /// [`TouchedLog::sync`] as a part of a request, which is timed.
    pub(super) async fn sync_for_request(&self) -> FsResult<()> {
        let _span = Span::part(Layer::Index);
        self.sync().await
    }

    /// Waits until all entries so far are on stable storage.
    pub(super) async fn sync(&self) -> FsResult<()> {
        let mine = self.write().await?;
        if self.file.synced.load(Ordering::Acquire) >= mine {
            return Ok(());
        }
        let syncing = self.syncing.clone().lock_owned().await;
        // Others may have been synced together with it.
        if self.file.synced.load(Ordering::Acquire) >= mine {
            return Ok(());
        }
        let file = self.file.clone();
        let synced = apart(move || {
            let synced = file.sync();
            drop(syncing);
            synced
        });
        synced.await.map_err(failed)
    }

    /// Parts of objects of a key, in the order of objects, [`Touched::EVERYTHING`] first.
    pub(super) fn list(&self, key: Key) -> Vec<Touched> {
        self.list_until_now(key).0
    }

    /// Parts of the next objects of a key after this one: not many more than `most`, those of an
    /// object together.
    pub(super) fn page(&self, key: Key, after: Option<ObjectId>, most: usize) -> Vec<Touched> {
        self.state().sets.page(key, after, most)
    }

    /// Parts of objects of a key, and the tag of the last change without a number so far.
    pub(super) fn list_until_now(&self, key: Key) -> (Vec<Touched>, Tag) {
        let state = self.state();
        (state.sets.list(key), state.sets.now())
    }

    /// Whether a key has no entries.
    pub(super) fn is_empty(&self, key: Key) -> bool {
        self.state().sets.is_empty(key)
    }

    /// Object after which a key lacks all of its chain, if it does, and the tag of the last change
    /// without a number so far.
    pub(super) fn rest(&self, key: Key) -> Option<(ObjectId, Tag)> {
        let state = self.state();
        Some((state.sets.rest(key)?, state.sets.now()))
    }

    /// A key that lacks all objects after one of them lacks those up to `last` no more, or none if
    /// there is no last one; unless something of it was noted after `upto`: then it is as before.
    pub(super) async fn advance(
        &self,
        key: Key,
        last: Option<ObjectId>,
        upto: Tag,
    ) -> FsResult<()> {
        {
            let mut state = self.state();
            if !state.sets.advance(key, last, upto) {
                return Ok(());
            }
            // So that the next process does not look at everything again.
            state.due_anew += 1;
        }
        self.write().await.map(drop)
    }

    /// How much each key has.
    pub(super) fn counts(&self) -> Vec<TouchedCount> {
        self.state().sets.counts()
    }

    /// Forgets extents of which the last change `is_over`. Extents that are left are apart from those
    /// that come: one that is changed all the time is forgotten, too, up to what came last.
    pub(super) fn forget(&self, key: Key, is_over: impl Fn(Tag) -> bool) {
        self.state().sets.forget(key, is_over);
    }

    /// Forgets objects in all keys: there are no such objects any more.
    pub(super) fn forget_objects(&self, objects: impl Iterator<Item = ObjectId>) {
        self.state().sets.forget_objects(objects);
    }

    /// Forgets entries of these objects, unless they were noted again after `upto`.
    pub(super) fn remove(&self, key: Key, objects: &HashSet<ObjectId>, upto: Tag) {
        self.state().sets.remove(key, objects, upto);
    }

    /// Writes the log anew if that makes it much smaller.
    pub(super) async fn shrink(&self) -> FsResult<()> {
        {
            let mut state = self.state();
            let (live, in_log) = (state.sets.records(), state.in_log);
            if in_log > RECORDS_MAX && in_log > 4 * live || live == 0 && in_log > 0 {
                state.due_anew += 1;
            }
        }
        self.write().await.map(drop)
    }
}

fn failed(error: RecordsError) -> Errno {
    tracing::error!(%error, "could not note which objects are being changed");
    Errno::EIO
}

#[cfg(test)]
mod tests;

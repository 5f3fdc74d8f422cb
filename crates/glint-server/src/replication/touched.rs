//! Objects that were changed, in a log: those whose copies may differ after a crash, and those that
//! absent members lack.
//!
//! Invariants:
//! - The log has every entry before the change that it is for is made; on stable storage once
//!   [`TouchedLog::sync`] has returned. After an append or a sync that failed, all entries are written
//!   anew before any is said to be there.
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
pub(super) mod stopped;

use crate::records::{LogStore, RecordsError, ServerLog};
use glint_proto::chain::{ChainId, Touched};
use glint_proto::limits::PENDING_ENTRIES_MAX;
use glint_proto::{Errno, FsResult, ObjectId};
use glint_telemetry::{Layer, Span};
use parking_lot::Mutex;
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
    records: Arc<dyn LogStore>,
    log: ServerLog,
    state: Mutex<LogState>,
    /// Held while the log is synced.
    syncing: futures_util::lock::Mutex<()>,
    /// Records on stable storage.
    synced: AtomicU64,
}

#[derive(Default)]
struct LogState {
    sets: TouchedSets,
    /// Records that were ever appended.
    appended: u64,
    /// Records in the log.
    in_log: usize,
    /// The log may lack entries, and end in a part of a record.
    is_broken: bool,
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
        let state = LogState { sets, appended: in_log as u64, in_log, is_broken: false };
        let loaded = TouchedLog {
            records,
            log,
            state: Mutex::new(state),
            syncing: Default::default(),
            synced: AtomicU64::new(0),
        };
        if !whole || is_over {
            loaded.write_all(&mut loaded.state.lock())?;
        }
        Ok(loaded)
    }

    /// A part of an object is about to be changed.
    pub(super) fn touch(&self, key: Key, touched: Touched, tag: Tag) -> FsResult<()> {
        self.touch_all(key, std::iter::once(touched), tag)
    }

    /// These parts of objects are about to be changed.
    pub(super) fn touch_all(
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
        let mut state = self.state.lock();
        let mut bytes = Vec::new();
        for touched in touched {
            if let Some(entry) = state.sets.insert(key, touched, tag) {
                bytes.extend_from_slice(&encode(key, entry));
            }
        }
        if let Some(key) = state.sets.bound() {
            tracing::warn!(
                chain = ChainId::of_target(key.0).map(tracing::field::display),
                ost = key.1,
                "a member lacks more changes than are remembered: it will be given everything"
            );
            state.is_broken = true;
        }
        if state.is_broken {
            return self.write_all(&mut state).map_err(failed);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.records.append_to_log(self.log, &bytes) {
            state.is_broken = true;
            return Err(failed(error));
        }
        let count = bytes.len() / RECORD_BYTES;
        state.appended += count as u64;
        state.in_log += count;
        Ok(())
    }

    /// Writes the log anew if it may lack something.
    fn mend(&self) -> FsResult<()> {
        let mut state = self.state.lock();
        if state.is_broken { self.write_all(&mut state).map_err(failed) } else { Ok(()) }
    }

    /// [`TouchedLog::sync`] as a part of a request, which is timed.
    pub(super) async fn sync_for_request(&self) -> FsResult<()> {
        let _span = Span::part(Layer::Index);
        self.sync().await
    }

    /// Waits until all entries so far are on stable storage.
    pub(super) async fn sync(&self) -> FsResult<()> {
        self.mend()?;
        let mine = self.state.lock().appended;
        if self.synced.load(Ordering::Acquire) >= mine {
            return Ok(());
        }
        let _syncing = self.syncing.lock().await;
        // Others may have been synced together with it.
        if self.synced.load(Ordering::Acquire) >= mine {
            return Ok(());
        }
        let upto = self.state.lock().appended;
        let (records, log) = (self.records.clone(), self.log);
        let sync = move || records.sync_log(log);
        let done = match glint_net::host::is_simulated() {
            true => sync(),
            false => blocking::unblock(sync).await,
        };
        self.on_synced(upto, done)
    }

    fn on_synced(&self, upto: u64, done: Result<(), RecordsError>) -> FsResult<()> {
        match done {
            Ok(()) => {
                self.synced.fetch_max(upto, Ordering::AcqRel);
                Ok(())
            }
            // The kernel reports a failed writeback once, and may have dropped the pages.
            Err(error) => {
                self.state.lock().is_broken = true;
                Err(failed(error))
            }
        }
    }

    /// Brings all entries so far to stable storage, on this thread.
    pub(super) fn sync_here(&self) -> FsResult<()> {
        self.mend()?;
        let upto = self.state.lock().appended;
        if self.synced.load(Ordering::Acquire) < upto {
            let done = self.records.sync_log(self.log);
            return self.on_synced(upto, done);
        }
        Ok(())
    }

    /// Parts of objects of a key, in the order of objects, [`Touched::EVERYTHING`] first.
    pub(super) fn list(&self, key: Key) -> Vec<Touched> {
        self.list_until_now(key).0
    }

    /// Parts of the next objects of a key after this one: not many more than `most`, those of an
    /// object together.
    pub(super) fn page(&self, key: Key, after: Option<ObjectId>, most: usize) -> Vec<Touched> {
        self.state.lock().sets.page(key, after, most)
    }

    /// Parts of objects of a key, and the tag of the last change without a number so far.
    pub(super) fn list_until_now(&self, key: Key) -> (Vec<Touched>, Tag) {
        let state = self.state.lock();
        (state.sets.list(key), state.sets.now())
    }

    /// Whether a key has no entries.
    pub(super) fn is_empty(&self, key: Key) -> bool {
        self.state.lock().sets.is_empty(key)
    }

    /// Object after which a key lacks all of its chain, if it does, and the tag of the last change
    /// without a number so far.
    pub(super) fn rest(&self, key: Key) -> Option<(ObjectId, Tag)> {
        let state = self.state.lock();
        Some((state.sets.rest(key)?, state.sets.now()))
    }

    /// A key that lacks all objects after one of them lacks those up to `last` no more, or none if
    /// there is no last one; unless something of it was noted after `upto`: then it is as before.
    pub(super) fn advance(&self, key: Key, last: Option<ObjectId>, upto: Tag) -> FsResult<()> {
        let mut state = self.state.lock();
        match state.sets.advance(key, last, upto) {
            // So that the next process does not look at everything again.
            true => self.write_all(&mut state).map_err(failed),
            false => Ok(()),
        }
    }

    /// How much each key has.
    pub(super) fn counts(&self) -> Vec<TouchedCount> {
        self.state.lock().sets.counts()
    }

    /// Forgets extents of which the last change `is_over`. Extents that are left are apart from those
    /// that come: one that is changed all the time is forgotten, too, up to what came last.
    pub(super) fn forget(&self, key: Key, is_over: impl Fn(Tag) -> bool) {
        self.state.lock().sets.forget(key, is_over);
    }

    /// Forgets objects in all keys: there are no such objects any more.
    pub(super) fn forget_objects(&self, objects: impl Iterator<Item = ObjectId>) {
        self.state.lock().sets.forget_objects(objects);
    }

    /// Forgets entries of these objects, unless they were noted again after `upto`.
    pub(super) fn remove(&self, key: Key, objects: &HashSet<ObjectId>, upto: Tag) {
        self.state.lock().sets.remove(key, objects, upto);
    }

    /// Writes the log anew if that makes it much smaller. May take long.
    pub(super) fn shrink(&self) -> Result<(), RecordsError> {
        let (live, in_log, is_broken) = {
            let state = self.state.lock();
            (state.sets.records(), state.in_log, state.is_broken)
        };
        let is_worth_it = in_log > RECORDS_MAX && in_log > 4 * live || live == 0 && in_log > 0;
        if is_worth_it || is_broken { self.write_all(&mut self.state.lock()) } else { Ok(()) }
    }

    fn write_all(&self, state: &mut LogState) -> Result<(), RecordsError> {
        let mut bytes = Vec::new();
        state.sets.for_each(|key, entry| bytes.extend_from_slice(&encode(key, entry)));
        self.records.replace_log(self.log, &bytes)?;
        state.in_log = bytes.len() / RECORD_BYTES;
        state.is_broken = false;
        self.synced.fetch_max(state.appended, Ordering::AcqRel);
        Ok(())
    }
}

fn failed(error: RecordsError) -> Errno {
    tracing::error!(%error, "could not note which objects are being changed");
    Errno::EIO
}

#[cfg(test)]
mod tests;

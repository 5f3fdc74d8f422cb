//! Objects that were changed, in a log: those whose copies may differ after a crash, and those that
//! absent members lack.
//!
//! Invariants:
//! - The log has every entry before the change that it is for is made: the change comes
//!   [after](TouchedLog::before_change) what was noted before. It is on stable storage once
//!   [`TouchedLog::sync`] has returned.
//! - Nobody waits for the disk of the log on the thread that asks, nor for a lock that is held
//!   meanwhile: entries are known at once, and written by the thread that makes the change, those of
//!   many changes in one append ([`log_file`]).
//! - An entry says which extents of its object were changed, and covers all changes since it came. A
//!   later change that its newer extents cover is not written to the log.
//! - [`TouchedLog::remove`] keeps entries that were noted again since they were listed, and
//!   [`TouchedLog::advance`] everything that was.
//! - The log of pending changes has no more than [`PENDING_ENTRIES_MAX`] entries. With one more, a chain
//!   forgets which objects were begun while members lagged behind, if one knows of any. Else the key
//!   that has most lacks everything: all objects of its chain, one after the other.
//!
//! (The first is called an activity log elsewhere, the second an index of pending heals: GlusterFS
//! keeps it as links in a directory, one for each file.)

mod extents;
mod log_file;
mod record;
mod sets;
pub(super) mod stopped;

use crate::records::{LogStore, RecordsError, ServerLog};
use futures_channel::oneshot;
use futures_util::lock::{self, OwnedMutexGuard};
use glint_net::host;
use glint_ost::{DiskWatch, First, GoOn};
use glint_proto::chain::{ChainId, Touched};
use glint_proto::limits::{OST_COUNT_MAX, PENDING_ENTRIES_MAX};
use glint_proto::{Errno, FsResult, ObjectId};
use glint_telemetry::{Counter, Layer, Span};
use log_file::{LogFile, LogState, failed};
use parking_lot::MutexGuard;
use record::{RECORD_BYTES, decode, encode};
pub(super) use sets::TouchedCount;
use sets::TouchedSets;
use std::collections::HashSet;
use std::sync::Arc;

/// Chain and, of pending changes, the member that lacks them.
pub(super) type Key = (u16, u16);
/// Version of the row and number of a change. Version 0 has changes that no head has numbered, in
/// the order in which they were noted.
pub(super) type Tag = (u32, u64);
/// Stands for the next number of version 0.
pub(super) const UNNUMBERED: Tag = (0, 0);

/// Stands for the chain, which is not known, of objects that were found without checksums after a loss
/// of power ([`unsealed`](super::takeover::unsealed)); beside it is the index of their OST.
const UNSEALED: u16 = u16::MAX;

/// Key of objects that were found so on an OST here.
pub(super) fn unsealed(index: u16) -> Key {
    (UNSEALED, index)
}

/// Stands for the chains of an OST that is to be searched for such objects; beside it is its index. (The
/// number is of no chain: none has no copies.)
const UNSEARCHED: u16 = 1 << 15;

/// Key of [`Touched::EVERYTHING`] until an OST here was searched, and what was found is noted.
pub(super) fn unsearched(index: u16) -> Key {
    (UNSEARCHED, index)
}

/// Stand for a member, in the keys of [`written_alone`], [`cut_alone`] and [`taken_alone`]: no OST has
/// these numbers.
const WRITTEN_ALONE: u16 = 1 << 15;
const CUT_ALONE: u16 = WRITTEN_ALONE + 1;
const TAKEN_ALONE: u16 = WRITTEN_ALONE + 2;
const _: () = assert!(OST_COUNT_MAX <= WRITTEN_ALONE);

/// Key of what was written to objects of a chain that were [begun](super::heal) while members lag behind:
/// beside it extents may have what is a hole here.
pub(super) fn written_alone(target: u16) -> Key {
    (target, WRITTEN_ALONE)
}

/// Key of what was cut from these objects, or freed in them, and of what nobody has newer.
pub(super) fn cut_alone(target: u16) -> Key {
    (target, CUT_ALONE)
}

/// Key of objects of a chain that its head had lost, and takes from members that are [synced](super::heal).
pub(super) fn taken_alone(target: u16) -> Key {
    (target, TAKEN_ALONE)
}

/// Records of a log before it is written anew, if most are of no more use.
const RECORDS_MAX: usize = 1 << 14;

/// Objects that were changed.
pub(super) struct TouchedLog {
    file: Arc<LogFile>,
    /// Held while the log is synced, or a shorter one takes its place; also by the thread that does it
    /// when nobody waits for that any more.
    syncing: Arc<lock::Mutex<()>>,
}

/// Has a change begin once what was noted before is in the log.
pub(super) type AfterNotes = Box<dyn FnOnce(GoOn) + Send>;

/// Does something that waits for a disk on another thread: to its end, whoever waits for it.
fn apart(work: impl FnOnce() + Send + 'static) {
    if host::is_simulated() {
        return work();
    }
    glint_telemetry::count(Counter::HandOvers, 1);
    blocking::unblock(work).detach();
}

/// Changes that are stable, as the head of a chain said it at row `version` of its changes up to number
/// `upto`; none by rows before `since`.
///
/// The head goes on counting when its row changes, so a change by an older row may have a larger
/// number and not be stable. (Another head finds older changes to be in doubt before it counts.) Changes
/// of earlier runs, of which the head may know nothing, are not among them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Stable {
    pub(super) version: u32,
    pub(super) upto: u64,
    pub(super) since: u32,
}

impl Stable {
    pub(super) fn has(self, (row, number): Tag) -> bool {
        let rows = self.since.max(UNNUMBERED.0 + 1)..=self.version;
        rows.contains(&row) && number <= self.upto
    }
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
        let is_due_anew = in_log * RECORD_BYTES != bytes.len() || is_over;
        let file = LogFile::new(records, log, LogState::new(sets, in_log, is_due_anew));
        if is_due_anew {
            file.write()?;
        }
        Ok(TouchedLog { file: Arc::new(file), syncing: Arc::default() })
    }

    /// Disk of the log, to be watched.
    pub(super) fn watch(&self) -> &DiskWatch {
        &self.file.watch
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.file.state.lock()
    }

    /// Notes that these parts of objects are about to be changed, as a part of a request, which is
    /// timed.
    pub(super) fn note_for_request(
        &self,
        key: Key,
        touched: impl Iterator<Item = Touched>,
        tag: Tag,
    ) {
        let mut touched = touched.peekable();
        // Syncs and grants of space change nothing: they are neither timed nor counted here.
        if touched.peek().is_some() {
            let _span = Span::part(Layer::Index);
            self.note(key, touched, tag);
        }
    }

    /// Notes that a part of an object is about to be changed, and waits until that is in the log.
    pub(super) async fn touch(&self, key: Key, touched: Touched, tag: Tag) -> FsResult<()> {
        self.touch_all(key, std::iter::once(touched), tag).await
    }

    /// Notes that these parts of objects are about to be changed, and waits until that is in the log.
    pub(super) async fn touch_all(
        &self,
        key: Key,
        touched: impl Iterator<Item = Touched>,
        tag: Tag,
    ) -> FsResult<()> {
        self.note_for_request(key, touched, tag);
        self.write().await.map(drop)
    }

    /// What a change of this kind, which was noted, has to come after, if anything is not in the log.
    pub(super) fn before_change(&self, op: u8) -> Option<AfterNotes> {
        let upto = {
            let state = self.state();
            (!state.is_written(state.noted)).then_some(state.noted)?
        };
        let file = self.file.clone();
        let timed = move |first: First| -> First {
            Box::new(move || {
                let _span = Span::start(Layer::IndexWrite, op);
                first()
            })
        };
        Some(Box::new(move |go_on| {
            file.once_written(upto, Box::new(move |first| go_on(first.map(timed))));
        }))
    }

    /// Notes parts of objects, to be written before the next change is made, or synced.
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
            let chain = ChainId::of_target(key.0).map(tracing::field::display);
            match key.1 < WRITTEN_ALONE {
                true => tracing::warn!(
                    chain,
                    ost = key.1,
                    "a member lacks more changes than are remembered: it will be given everything"
                ),
                false => tracing::warn!(
                    chain,
                    "more objects were begun while members lagged behind than are remembered"
                ),
            }
            state.due_anew += 1;
        }
    }

    /// Waits until everything that was noted so far is in the log. Returns how much that is.
    async fn write(&self) -> FsResult<u64> {
        let upto = {
            let state = self.state();
            if state.is_written(state.noted) {
                return Ok(state.noted);
            }
            state.noted
        };
        let (says, written) = oneshot::channel();
        // Whoever asked may have gone when it is answered.
        let go_on = move |first: Option<First>| match first {
            Some(first) => apart(move || _ = says.send(first())),
            None => _ = says.send(Ok(())),
        };
        self.file.clone().once_written(upto, Box::new(go_on));
        match written.await {
            Ok(written) => written.map(|()| upto).map_err(|error| Errno::from_io(&error)),
            // There was no thread for it.
            Err(_) => Err(Errno::EIO),
        }
    }

    /// [`TouchedLog::sync`] as a part of a request, which is timed.
    pub(super) async fn sync_for_request(&self) -> FsResult<()> {
        let _span = Span::part(Layer::Index);
        self.sync().await
    }

    /// Waits until all entries so far are on stable storage.
    pub(super) async fn sync(&self) -> FsResult<()> {
        let mine = self.write().await?;
        if self.file.is_synced(mine) {
            return Ok(());
        }
        let syncing = self.syncing.clone().lock_owned().await;
        // Others may have been synced together with it.
        if self.file.is_synced(mine) {
            return Ok(());
        }
        self.flush(syncing, |file| file.sync()).await
    }

    /// Does something about what is on stable storage, and waits until it is done.
    async fn flush(
        &self,
        syncing: OwnedMutexGuard<()>,
        work: impl FnOnce(Arc<LogFile>) -> Result<(), RecordsError> + Send + 'static,
    ) -> FsResult<()> {
        let (says, done) = oneshot::channel();
        let file = self.file.clone();
        apart(move || {
            let result = work(file);
            drop(syncing);
            // Whoever asked may have gone.
            let _ = says.send(result);
        });
        match done.await {
            Ok(result) => result.map_err(|error| failed(&error)),
            // There was no thread for it.
            Err(_) => Err(Errno::EIO),
        }
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

    /// Parts of one object of a key: all of it if the key has everything from some point on.
    pub(super) fn parts_of(&self, key: Key, object: ObjectId) -> Vec<Touched> {
        let extents = self.state().sets.extents_of(key, object);
        extents.into_iter().map(|(start, end)| Touched { object, start, end }).collect()
    }

    /// Whether an object of a chain was begun while members lagged behind; `None` if there were more of
    /// them than are remembered.
    pub(super) fn is_begun(&self, target: u16, object: ObjectId) -> Option<bool> {
        self.state().sets.is_begun(target, object)
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

    /// Forgets a key for good: no later process finds it in the log, which is written anew before
    /// anything else comes to that.
    pub(super) fn forget_key(&self, key: Key) {
        let mut state = self.state();
        if !state.sets.is_empty(key) {
            state.sets.forget(key, |_| true);
            state.due_anew += 1;
        }
    }

    /// Forgets keys of a chain for good, as [`TouchedLog::forget_key`] does: of these members.
    pub(super) fn forget_members(&self, target: u16, is_meant: impl Fn(u16) -> bool) {
        let keys: Vec<Key> = self.state().sets.keys().collect();
        let its = keys.into_iter().filter(|(of, member)| *of == target && is_meant(*member));
        its.for_each(|key| self.forget_key(key));
    }

    /// Forgets objects in all keys: there are no such objects any more.
    pub(super) fn forget_objects(&self, objects: impl Iterator<Item = ObjectId>) {
        self.state().sets.forget_objects(objects);
    }

    /// Forgets entries of these objects, unless they were noted again after `upto`.
    pub(super) fn remove(&self, key: Key, objects: &HashSet<ObjectId>, upto: Tag) {
        self.state().sets.remove(key, objects, upto);
    }

    #[cfg(test)]
    pub(super) fn records_in_log(&self) -> usize {
        self.state().in_log
    }

    /// Has the log written anew though that makes it a little smaller only.
    pub(super) fn shrink_soon(&self) {
        self.state().is_due_short = true;
    }

    /// Writes the log anew if that makes it much smaller.
    pub(super) async fn shrink(&self) -> FsResult<()> {
        // Also what is to be written, or written anew, for which nobody waits.
        self.write().await?;
        let is_long = {
            let mut state = self.state();
            let (live, in_log) = (state.sets.records(), state.in_log);
            let is_due = std::mem::take(&mut state.is_due_short) && in_log > live;
            is_due || in_log > RECORDS_MAX && in_log > 4 * live || live == 0 && in_log > 0
        };
        if !is_long {
            return Ok(());
        }
        let syncing = self.syncing.clone().lock_owned().await;
        self.flush(syncing, LogFile::shrink).await
    }
}

#[cfg(test)]
mod tests;

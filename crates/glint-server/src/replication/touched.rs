//! Objects that were changed, in a log: those whose copies may differ after a crash, and those that
//! absent members lack.
//!
//! Invariants:
//! - The log has every entry before the change that it is for is made; on stable storage once
//!   [`TouchedLog::sync`] has returned. After an append or a sync that failed, all entries are written
//!   anew before any is said to be there.
//! - An entry covers all changes of its object since it came. A later change that it covers is not
//!   written to the log.
//! - [`TouchedLog::remove`] keeps entries that were noted again since they were listed, and
//!   [`TouchedLog::advance`] everything that was.
//! - The log of pending changes has no more than [`PENDING_ENTRIES_MAX`] entries. With one more, the
//!   key that has most lacks everything: all objects of its chain, one after the other.
//!
//! (The first is called an activity log elsewhere, the second an index of pending heals: GlusterFS
//! keeps it as links in a directory, one for each file.)

use crate::records::{LogStore, RecordsError, ServerLog};
use glint_proto::chain::{ChainId, Touched};
use glint_proto::limits::PENDING_ENTRIES_MAX;
use glint_proto::{Errno, FsResult, Ino, ObjectId};
use glint_telemetry::{Layer, Span};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Chain and, of pending changes, the member that lacks them.
pub(super) type Key = (u16, u16);
/// Version of the row and number of a change. Version 0 has changes that no head has numbered, in
/// the order in which they were noted.
pub(super) type Tag = (u32, u64);
/// Stands for the next number of version 0.
pub(super) const UNNUMBERED: Tag = (0, 0);

/// An entry that grows is taken as long as this, so that a stream costs few of them.
const GROWTH: u64 = 64 << 20;
const RECORD_BYTES: usize = 36;
/// Records of a log before it is written anew, if most are of no more use.
const RECORDS_MAX: usize = 1 << 14;

/// Objects that were changed.
pub(super) struct TouchedLog {
    records: Arc<dyn LogStore>,
    log: ServerLog,
    state: Mutex<TouchedSets>,
    /// Held while the log is synced.
    syncing: futures_util::lock::Mutex<()>,
    /// Records on stable storage.
    synced: AtomicU64,
}

#[derive(Default)]
struct TouchedSets {
    sets: BTreeMap<Key, TouchedSet>,
    /// Entries of all sets together, and how many there may be.
    entries: usize,
    entries_max: Option<usize>,
    /// Changes without a number that were ever noted.
    unnumbered: u64,
    /// Records that were ever appended.
    appended: u64,
    /// Records in the log.
    in_log: usize,
    /// The log may lack entries, and end in a part of a record.
    is_broken: bool,
}

#[derive(Default)]
struct TouchedSet {
    objects: BTreeMap<ObjectId, TouchedRange>,
    /// Beside them: all objects of the chain from some point on.
    rest: Option<Rest>,
}

/// All objects of a chain after one of them.
#[derive(Clone, Copy)]
struct Rest {
    after: ObjectId,
    /// Of the last change that it covers.
    tag: Tag,
}

#[derive(Clone, Copy)]
struct TouchedRange {
    start: u64,
    end: u64,
    /// Of the last change.
    tag: Tag,
}

/// How much a key has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TouchedCount {
    pub(super) key: Key,
    pub(super) objects: usize,
    /// Without those of which the end is not known.
    pub(super) bytes: u64,
    /// All objects of the chain beside them, or most.
    pub(super) everything: bool,
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

fn entry((object, range): (&ObjectId, &TouchedRange)) -> Touched {
    Touched { object: *object, start: range.start, end: range.end }
}

fn encode(key: Key, touched: Touched) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    let parts: [&[u8]; 6] = [
        &key.0.to_le_bytes(),
        &key.1.to_le_bytes(),
        &u32::from(touched.object.stripe).to_le_bytes(),
        &touched.object.ino.0.to_le_bytes(),
        &touched.start.to_le_bytes(),
        &touched.end.to_le_bytes(),
    ];
    record[..RECORD_BYTES - 4].copy_from_slice(&parts.concat());
    let crc = crc32c::crc32c(&record[..RECORD_BYTES - 4]);
    record[RECORD_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    record
}

fn decode(record: &[u8]) -> Option<(Key, Touched)> {
    let (content, crc) = record.split_last_chunk::<4>()?;
    if crc32c::crc32c(content) != u32::from_le_bytes(*crc) {
        return None;
    }
    let u16_at = |at: usize| Some(u16::from_le_bytes(content.get(at..at + 2)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(content.get(at..at + 8)?.try_into().ok()?));
    let object = ObjectId { ino: Ino(u64_at(8)?), stripe: u16_at(4)? };
    Some(((u16_at(0)?, u16_at(2)?), Touched { object, start: u64_at(16)?, end: u64_at(24)? }))
}

impl TouchedLog {
    /// Reads a log. What a crash has left half written at its end was not acknowledged.
    pub(super) fn load(
        records: Arc<dyn LogStore>,
        log: ServerLog,
    ) -> Result<TouchedLog, RecordsError> {
        let bytes = records.read_log(log)?;
        let entries_max = (log == ServerLog::Pending).then_some(PENDING_ENTRIES_MAX);
        let mut state = TouchedSets { entries_max, ..TouchedSets::default() };
        for record in bytes.chunks_exact(RECORD_BYTES) {
            let Some((key, touched)) = decode(record) else {
                tracing::warn!(?log, "a record in a log of changed objects is damaged");
                continue;
            };
            state.insert(key, touched, UNNUMBERED);
            state.in_log += 1;
        }
        // Records of a log that is longer than what this version keeps.
        let mut is_over = false;
        while state.bound().is_some() {
            is_over = true;
        }
        // An earlier process may have ended before it synced them.
        state.appended = state.in_log as u64;
        let whole = state.in_log * RECORD_BYTES == bytes.len();
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

    /// An object is about to be changed.
    pub(super) fn touch(&self, key: Key, touched: Touched, tag: Tag) -> FsResult<()> {
        let _span = Span::part(Layer::Index);
        let mut state = self.state.lock();
        let entry = state.insert(key, touched, tag);
        if let Some(key) = state.bound() {
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
        let Some(entry) = entry else { return Ok(()) };
        if let Err(error) = self.records.append_to_log(self.log, &encode(key, entry)) {
            state.is_broken = true;
            return Err(failed(error));
        }
        state.appended += 1;
        state.in_log += 1;
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

    /// Entries of a key, [`Touched::EVERYTHING`] among them.
    pub(super) fn list(&self, key: Key) -> Vec<Touched> {
        self.list_until_now(key).0
    }

    /// Entries of a key after an object, in the order of objects, no more than `most`.
    pub(super) fn page(&self, key: Key, after: Option<ObjectId>, most: usize) -> Vec<Touched> {
        let state = self.state.lock();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let set = state.sets.get(&key);
        let entries = set.into_iter().flat_map(|set| set.objects.range((from, Bound::Unbounded)));
        entries.take(most).map(entry).collect()
    }

    /// Entries of a key, and the tag of the last change without a number so far.
    pub(super) fn list_until_now(&self, key: Key) -> (Vec<Touched>, Tag) {
        let state = self.state.lock();
        let entries = state.sets.get(&key).into_iter().flat_map(TouchedSet::entries);
        (entries.collect(), state.now())
    }

    /// Whether a key has no entries.
    pub(super) fn is_empty(&self, key: Key) -> bool {
        !self.state.lock().sets.contains_key(&key)
    }

    /// Object after which a key lacks all of its chain, if it does, and the tag of the last change
    /// without a number so far.
    pub(super) fn rest(&self, key: Key) -> Option<(ObjectId, Tag)> {
        let state = self.state.lock();
        let rest = state.sets.get(&key)?.rest?;
        Some((rest.after, state.now()))
    }

    /// A key that lacks all objects after one of them lacks those up to `last` no more, or none if
    /// there is no last one; unless something of it was noted after `upto`: then it is as before.
    pub(super) fn advance(&self, key: Key, last: Option<ObjectId>, upto: Tag) -> FsResult<()> {
        let mut state = self.state.lock();
        let Some(set) = state.sets.get_mut(&key) else { return Ok(()) };
        let Some(rest) = set.rest.as_mut().filter(|rest| rest.tag <= upto) else { return Ok(()) };
        if let Some(last) = last {
            rest.after = last.max(rest.after);
            return Ok(());
        }
        set.rest = None;
        state.drop_empty(key);
        // So that the next process does not look at everything again.
        self.write_all(&mut state).map_err(failed)
    }

    /// How much each key has.
    pub(super) fn counts(&self) -> Vec<TouchedCount> {
        let known = |range: &TouchedRange| match range.end {
            u64::MAX => 0,
            end => end.saturating_sub(range.start),
        };
        let sets = &self.state.lock().sets;
        let count = |(key, set): (&Key, &TouchedSet)| TouchedCount {
            key: *key,
            objects: set.objects.len(),
            bytes: set.objects.values().map(known).sum(),
            everything: set.rest.is_some(),
        };
        sets.iter().map(count).collect()
    }

    /// Forgets entries whose last change `is_over`.
    pub(super) fn forget(&self, key: Key, is_over: impl Fn(Tag) -> bool) {
        let mut state = self.state.lock();
        let Some(set) = state.sets.get_mut(&key) else { return };
        let before = set.objects.len();
        set.objects.retain(|_, entry| !is_over(entry.tag));
        let left = set.objects.len();
        set.rest.take_if(|rest| is_over(rest.tag));
        state.entries -= before - left;
        state.drop_empty(key);
    }

    /// Forgets objects in all keys: there are no such objects any more.
    pub(super) fn forget_objects(&self, objects: impl Iterator<Item = ObjectId>) {
        let mut state = self.state.lock();
        if state.entries == 0 {
            return;
        }
        let mut gone = 0;
        for object in objects {
            let sets = state.sets.values_mut();
            gone += sets.filter_map(|set| set.objects.remove(&object)).count();
        }
        state.entries -= gone;
        state.sets.retain(|_, set| !set.is_empty());
    }

    /// Forgets entries of these objects, unless they were noted again after `upto`.
    pub(super) fn remove(&self, key: Key, objects: &HashSet<ObjectId>, upto: Tag) {
        let mut state = self.state.lock();
        let Some(set) = state.sets.get_mut(&key) else { return };
        let mut gone = 0;
        for object in objects {
            if set.objects.get(object).is_some_and(|entry| entry.tag <= upto) {
                set.objects.remove(object);
                gone += 1;
            }
        }
        state.entries -= gone;
        state.drop_empty(key);
    }

    /// Writes the log anew if that makes it much smaller. May take long.
    pub(super) fn shrink(&self) -> Result<(), RecordsError> {
        let (live, in_log, is_broken) = {
            let state = self.state.lock();
            let rests = state.sets.values().filter(|set| set.rest.is_some()).count();
            (state.entries + rests, state.in_log, state.is_broken)
        };
        let is_worth_it = in_log > RECORDS_MAX && in_log > 4 * live || live == 0 && in_log > 0;
        if is_worth_it || is_broken { self.write_all(&mut self.state.lock()) } else { Ok(()) }
    }

    fn write_all(&self, state: &mut TouchedSets) -> Result<(), RecordsError> {
        let mut bytes = Vec::new();
        for (key, set) in &state.sets {
            set.entries().for_each(|entry| bytes.extend_from_slice(&encode(*key, entry)));
        }
        self.records.replace_log(self.log, &bytes)?;
        state.in_log = bytes.len() / RECORD_BYTES;
        state.is_broken = false;
        self.synced.fetch_max(state.appended, Ordering::AcqRel);
        Ok(())
    }
}

impl TouchedSet {
    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.rest.is_none()
    }

    fn entries(&self) -> impl Iterator<Item = Touched> {
        let rest = self.rest.map(|_| Touched::EVERYTHING);
        rest.into_iter().chain(self.objects.iter().map(entry))
    }
}

impl TouchedSets {
    /// Tag of the last change without a number.
    fn now(&self) -> Tag {
        (UNNUMBERED.0, self.unnumbered)
    }

    fn drop_empty(&mut self, key: Key) {
        if self.sets.get(&key).is_some_and(TouchedSet::is_empty) {
            self.sets.remove(&key);
        }
    }

    /// Keeps the sets bounded. Returns the key that lacks everything from now on, if one does.
    fn bound(&mut self) -> Option<Key> {
        self.entries_max.filter(|max| self.entries > *max)?;
        let (key, _) = self.sets.iter().max_by_key(|(_, set)| set.objects.len())?;
        let key = *key;
        self.insert(key, Touched::EVERYTHING, UNNUMBERED);
        Some(key)
    }

    /// Adds to a set. Returns the entry as it is then, if the log does not have it so.
    fn insert(&mut self, key: Key, touched: Touched, tag: Tag) -> Option<Touched> {
        let Touched { object, start, end } = touched;
        let tag = match tag {
            UNNUMBERED => {
                self.unnumbered += 1;
                (UNNUMBERED.0, self.unnumbered)
            }
            tag => tag,
        };
        let set = self.sets.entry(key).or_default();
        if touched == Touched::EVERYTHING {
            let is_known = set.rest.is_some_and(|rest| rest.after == object);
            set.rest = Some(Rest { after: object, tag });
            self.entries -= std::mem::take(&mut set.objects).len();
            return (!is_known).then_some(touched);
        }
        if let Some(rest) = set.rest.as_mut().filter(|rest| rest.after < object) {
            rest.tag = rest.tag.max(tag);
            return None;
        }
        let grown = match set.objects.get_mut(&object) {
            Some(entry) => {
                entry.tag = entry.tag.max(tag);
                if entry.start <= start && end <= entry.end {
                    return None;
                }
                let end = if end > entry.end { end.saturating_add(GROWTH) } else { entry.end };
                (entry.start, entry.end) = (entry.start.min(start), end);
                *entry
            }
            None => {
                self.entries += 1;
                *set.objects.entry(object).or_insert(TouchedRange { start, end, tag })
            }
        };
        Some(Touched { object, start: grown.start, end: grown.end })
    }
}

fn failed(error: RecordsError) -> Errno {
    tracing::error!(%error, "could not note which objects are being changed");
    Errno::EIO
}

#[cfg(test)]
mod tests;

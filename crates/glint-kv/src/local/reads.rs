//! Reading: the newest writes, and the tables under them.
//!
//! A read of the tables that finds its blocks in memory is made where it is asked for, and allocates
//! nothing for that. One that may wait for the disk is handed over to a thread, while reads do wait
//! for it ([`Pace`]), and its task is parked: a worker goes on with other requests.

use super::pace::{Mark, Pace};
use super::readers::{Readers, times_slept};
use super::{Engine, LocalKv, NewestWrites};
use crate::overlay::{Overlay, Recent, merge};
use crate::{Keyspace, KvError};
use fjall::{Slice, Snapshot};
use glint_telemetry::heat::position;
use std::time::Instant;

/// Pairs of a keyspace from one key to before another, so many at most.
type Range<'a> = (Keyspace, &'a [u8], &'a [u8], usize);

/// Pairs that a scan shows: how many, and the last key.
type Shown = (usize, Option<Slice>);

/// Where a read is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// By the thread that asks for it.
    Here,
    /// By a thread that it was handed over to.
    There,
}

impl NewestWrites {
    /// Value written to a key recently.
    pub(super) fn recent(&self, keyspace: Keyspace, key: &[u8]) -> Option<&Option<Slice>> {
        let frozen = || self.frozen.as_ref().and_then(|frozen| frozen.get(keyspace, key));
        self.active.get(keyspace, key).or_else(frozen)
    }

    /// Recent writes in a range, as far as `limit` live ones reach; and where the range
    /// ends if they are more.
    fn recent_range(
        &self,
        keyspace: Keyspace,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> (Vec<Recent>, Option<Slice>) {
        let empty = Overlay::default();
        let frozen = self.frozen.as_deref().unwrap_or(&empty);
        let all = merge(self.active.range(keyspace, from, to), frozen.range(keyspace, from, to));
        let (mut found, mut live) = (Vec::new(), 0);
        for (key, value) in all {
            if live == limit {
                return (found, Some(key));
            }
            live += usize::from(value.is_some());
            found.push((key, value));
        }
        (found, None)
    }
}

impl Engine {
    /// Counts a key that was found. What others ask for and is not there says nothing about what to
    /// load, and numbers of clients are no neighbours: each would be a cell of its own.
    fn note_read(&self, keyspace: Keyspace, key: &[u8]) {
        if keyspace.is_by_inode() {
            self.heat.on_reads(keyspace as u8, 1, || (position(key), position(key)));
        }
    }

    /// Reads the tables, and notes how long that took if it missed the cache, or may have.
    fn timed<R>(
        &self,
        keyspace: Keyspace,
        place: Place,
        rows: impl FnOnce(&R) -> usize,
        read: impl FnOnce() -> R,
    ) -> R {
        #[cfg(test)]
        let _disk = (place == Place::There).then(|| self.disk.read());
        // Those that were handed over, and those that are slow here, say whether they have slept: asking
        // for that each time would cost each read two calls of the system.
        let asked = (place == Place::There || self.pace.is_late()).then(times_slept);
        let (before, began) = (self.tables.missed(keyspace), Instant::now());
        let result = read();
        // With those of others meanwhile, which wait for the same disk.
        let missed = self.tables.missed(keyspace).saturating_sub(before);
        let slept = || asked.map(|before| times_slept() > before);
        match place {
            Place::There => {
                self.pace.note(missed, rows(&result), began.elapsed(), slept());
            }
            Place::Here if missed > 0 => {
                let time = began.elapsed();
                self.pace.note_here(missed, rows(&result), time, slept());
            }
            Place::Here => {}
        }
        result
    }

    /// Shows pairs, as [`crate::Kv::scan_each`] does.
    fn scan(
        &self,
        (keyspace, from, to, limit): Range<'_>,
        visit: impl FnMut(&Slice, &Slice),
    ) -> Result<Shown, KvError> {
        // Recent writes and tables are read at one moment.
        let state = self.state.read();
        let (recent, end) = state.recent_range(keyspace, from, to, limit);
        let to = end.as_deref().unwrap_or(to);
        let moment = self.tables.moment();
        drop(state);
        let stored = self.tables.range(&moment, keyspace, from, to);
        show_merged(recent, stored, limit, visit)
    }
}

/// Shows the newest of each key, at most so many.
fn show_merged(
    recent: Vec<Recent>,
    stored: impl Iterator<Item = Result<(Slice, Slice), KvError>>,
    limit: usize,
    mut visit: impl FnMut(&Slice, &Slice),
) -> Result<Shown, KvError> {
    let (mut recent, mut stored) = (recent.into_iter().peekable(), stored.peekable());
    let (mut shown, mut last) = (0, None);
    while shown < limit {
        let from_tables = match (recent.peek(), stored.peek()) {
            (None, None) => break,
            (_, Some(Err(_))) | (None, Some(_)) => true,
            (Some((new, _)), Some(Ok((old, _)))) => {
                let is_older = old < new;
                if old == new {
                    stored.next();
                }
                is_older
            }
            (Some(_), None) => false,
        };
        if from_tables {
            if let Some(pair) = stored.next() {
                let (key, value) = pair?;
                visit(&key, &value);
                (shown, last) = (shown + 1, Some(key));
            }
        } else if let Some((key, Some(value))) = recent.next() {
            visit(&key, &value);
            (shown, last) = (shown + 1, Some(key));
        }
    }
    Ok((shown, last))
}

/// Identifies one key.
fn mark(keyspace: Keyspace, key: &[u8]) -> Mark {
    Mark::new((keyspace as u8, key))
}

/// Identifies the first pairs of a range.
fn range_mark((keyspace, from, to, limit): Range<'_>) -> Mark {
    Mark::new((keyspace as u8, from, to, limit))
}

impl LocalKv {
    /// The threads that make a read, if it may wait for the disk; `marks` identify what is read.
    fn readers_for<'a>(&self, marks: impl Iterator<Item = Mark> + 'a) -> Option<&Readers> {
        let readers = self.readers.as_ref()?;
        let pace: &Pace = &self.shared.pace;
        // What is known stays so while it is read.
        let is_known = |mark| pace.knows(mark).then(|| pace.learn(mark)).is_some();
        (pace.is_slow() && !{ marks }.all(is_known)).then_some(readers)
    }

    /// Value of a key.
    pub(super) async fn find(
        &self,
        keyspace: Keyspace,
        key: &[u8],
    ) -> Result<Option<Slice>, KvError> {
        let found = self.look_for(keyspace, key).await?;
        if found.is_some() {
            self.shared.note_read(keyspace, key);
        }
        Ok(found)
    }

    async fn look_for(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Slice>, KvError> {
        let recent = self.shared.state.read().recent(keyspace, key).cloned();
        if let Some(value) = recent {
            return Ok(value);
        }
        let moment = || self.shared.tables.moment();
        if let Some(readers) = self.readers_for([mark(keyspace, key)].into_iter())
            && let Some(found) =
                self.find_there(readers, keyspace, vec![key.to_vec()], moment()).await
        {
            return found.map(|mut found| found.pop().flatten());
        }
        let shared = &self.shared;
        shared.timed(keyspace, Place::Here, |_| 0, || shared.tables.get(keyspace, key))
    }

    /// Values of keys.
    pub(super) async fn find_all(
        &self,
        keyspace: Keyspace,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Slice>>, KvError> {
        let found = self.look_for_all(keyspace, keys).await?;
        for (key, _) in keys.iter().zip(&found).filter(|(_, found)| found.is_some()) {
            self.shared.note_read(keyspace, key);
        }
        Ok(found)
    }

    async fn look_for_all(
        &self,
        keyspace: Keyspace,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Slice>>, KvError> {
        // All of them at one moment: a batch is there as a whole, or not yet.
        let (recent, moment) = {
            let state = self.shared.state.read();
            let recent = keys.iter().map(|key| state.recent(keyspace, key).cloned());
            let recent: Vec<Option<Option<Slice>>> = recent.collect();
            if recent.iter().all(Option::is_some) {
                return Ok(recent.into_iter().map(Option::flatten).collect());
            }
            (recent, self.shared.tables.moment())
        };
        let old = || keys.iter().zip(&recent).filter(|(_, recent)| recent.is_none());
        if let Some(readers) = self.readers_for(old().map(|(key, _)| mark(keyspace, key))) {
            let owned = old().map(|(key, _)| key.to_vec()).collect();
            if let Some(stored) = self.find_there(readers, keyspace, owned, moment.clone()).await {
                let mut stored = stored?.into_iter();
                let newest = |recent: Option<_>| recent.unwrap_or_else(|| stored.next().flatten());
                return Ok(recent.into_iter().map(newest).collect());
            }
        }
        let shared = &self.shared;
        let get = |(key, recent): (&&[u8], Option<_>)| {
            recent.map_or_else(|| shared.tables.get_at(&moment, keyspace, key), Ok)
        };
        let all = keys.iter().zip(recent);
        shared.timed(keyspace, Place::Here, |_| keys.len(), || all.map(get).collect())
    }

    /// Values in the tables, from a thread that reads them.
    async fn find_there(
        &self,
        readers: &Readers,
        keyspace: Keyspace,
        keys: Vec<Vec<u8>>,
        moment: Snapshot,
    ) -> Option<Result<Vec<Option<Slice>>, KvError>> {
        let engine = self.shared.clone();
        let read = move || {
            let get = |key: &Vec<u8>| engine.tables.get_at(&moment, keyspace, key);
            let all = || keys.iter().map(get).collect();
            let found = engine.timed(keyspace, Place::There, |_| keys.len(), all);
            keys.iter().for_each(|key| engine.pace.learn(mark(keyspace, key)));
            found
        };
        readers.run(read).await
    }

    /// Shows pairs, as [`crate::Kv::scan_each`] does.
    pub(super) async fn show(
        &self,
        range @ (keyspace, from, _, limit): Range<'_>,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), KvError> {
        let there = match self.readers_for([range_mark(range)].into_iter()) {
            Some(readers) => self.scan_there(readers, range).await,
            None => None,
        };
        let rows = |shown: &Result<Shown, _>| shown.as_ref().map_or(0, |shown| shown.0);
        let visits = |key: &Slice, value: &Slice| visit(key, value);
        let shared = &self.shared;
        let (shown, last) = match there {
            Some(pairs) => show_merged(Vec::new(), pairs?.into_iter().map(Ok), limit, visits)?,
            None => shared.timed(keyspace, Place::Here, rows, || shared.scan(range, visits))?,
        };
        if shown > 0 && keyspace.is_by_inode() {
            let ends = || (position(from), position(last.as_deref().unwrap_or(from)));
            shared.heat.on_reads(keyspace as u8, shown, ends);
        }
        Ok(())
    }

    /// The pairs of a range, from a thread that reads the tables.
    async fn scan_there(
        &self,
        readers: &Readers,
        (keyspace, from, to, limit): Range<'_>,
    ) -> Option<Result<Vec<(Slice, Slice)>, KvError>> {
        let (engine, from, to) = (self.shared.clone(), from.to_vec(), to.to_vec());
        let read = move || {
            let mut pairs = Vec::new();
            let keep = |key: &Slice, value: &Slice| pairs.push((key.clone(), value.clone()));
            let rows = |shown: &Result<Shown, _>| shown.as_ref().map_or(0, |shown| shown.0);
            let scan = || engine.scan((keyspace, &from, &to, limit), keep);
            let scanned = engine.timed(keyspace, Place::There, rows, scan);
            engine.pace.learn(range_mark((keyspace, &from, &to, limit)));
            scanned.map(|_| pairs)
        };
        readers.run(read).await
    }
}

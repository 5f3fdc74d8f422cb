//! The journal: a ring of segments into which every batch is copied before its commit
//! returns.
//!
//! ```text
//! segment   header (64 bytes), records
//! header    magic u32 | version u32 | run u64 | first u64 | crc32c u32 | zeros
//! record    length u32 | crc32c u32 | number u64 | durable u64 | batch | zeros up to a multiple of 8
//! ```
//! Little-endian. Numbers rise by one from record to record, over all segments. `run` is
//! drawn at random at each start and is part of every checksum, so that what an earlier run
//! left in a segment is never taken for a record of this one. `durable` is the last record
//! that was on stable storage when this one was written; version 1 has none.
//!
//! Invariants:
//! - What is read back is a prefix of what was appended: reading stops at the first record
//!   that is damaged, has another number or belongs to another run.
//! - A record that was on stable storage is never taken for the end: if a later one says that
//!   it was, the damage is an error.
//! - A segment is written over, or cut to another length, only when the tables hold all of its
//!   records on stable storage.

use crate::segment::{Pages, Segment};
use crate::{Batch, KvError};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Segments of the ring.
const SEGMENTS: usize = 3;
const HEADER_BYTES: usize = 64;
const RECORD_BYTES: usize = 24;
/// Bytes of a record's header before version 2.
const RECORD_BYTES_OLD: usize = 16;
const MAGIC: u32 = u32::from_le_bytes(*b"GLJL");
const VERSION: u32 = 2;
const VERSION_OLD: u32 = 1;
/// Pages made ready ahead of the writer.
const AHEAD_BYTES: usize = 1 << 20;

struct Place {
    segment: Segment,
    /// Number of its last record.
    last: u64,
    /// Written since it was flushed.
    dirty: bool,
}

/// The journal. One writer.
pub(crate) struct Journal {
    places: Vec<Place>,
    active: usize,
    at: usize,
    run: u64,
    next: u64,
    /// The tables hold all records up to this one on stable storage.
    settled: u64,
}

/// Why a batch was not appended.
#[derive(Debug)]
pub(crate) enum NoRoom {
    /// Until the tables are on stable storage.
    Yet,
    /// Longer than a segment.
    Ever,
}

fn path_of(directory: &Path, index: usize) -> PathBuf {
    directory.join(format!("journal-{index}"))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

fn header(version: u32, run: u64, first: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..8].copy_from_slice(&version.to_le_bytes());
    bytes[8..16].copy_from_slice(&run.to_le_bytes());
    bytes[16..24].copy_from_slice(&first.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..24]);
    bytes[24..28].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn checksum(run: u64, number: u64, durable: Option<u64>, batch: &[u8]) -> u32 {
    let mut crc = crc32c::crc32c(&run.to_le_bytes());
    for field in std::iter::once(number).chain(durable) {
        crc = crc32c::crc32c_append(crc, &field.to_le_bytes());
    }
    crc32c::crc32c_append(crc, batch)
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// A segment as an earlier run left it.
struct Old {
    segment: Segment,
    path: PathBuf,
    version: u32,
    run: u64,
    first: u64,
}

/// A record that was found.
struct Found<'a> {
    batch: &'a [u8],
    durable: Option<u64>,
    end: usize,
}

impl Old {
    /// `None` if there is no segment with a header.
    fn open(path: PathBuf) -> io::Result<Option<Old>> {
        let Some(segment) = Segment::left(&path, HEADER_BYTES)? else { return Ok(None) };
        let bytes = segment.bytes();
        let (Some(run), Some(first)) = (u64_at(bytes, 8), u64_at(bytes, 16)) else {
            return Ok(None);
        };
        let is = |version: &u32| bytes[..HEADER_BYTES] == header(*version, run, first);
        let version = [VERSION, VERSION_OLD].into_iter().find(is);
        Ok(version.map(|version| Old { segment, path, version, run, first }))
    }

    /// Record `number`, if it is at `at`.
    fn record(&self, at: usize, number: u64) -> Option<Found<'_>> {
        let bytes = self.segment.bytes();
        let len = u32_at(bytes, at)? as usize;
        if len == 0 || u64_at(bytes, at + 8)? != number {
            return None;
        }
        let (durable, start) = match self.version {
            VERSION_OLD => (None, at + RECORD_BYTES_OLD),
            _ => (Some(u64_at(bytes, at + 16)?), at + RECORD_BYTES),
        };
        let batch = bytes.get(start..start.checked_add(len)?)?;
        let right = u32_at(bytes, at + 4)? == checksum(self.run, number, durable, batch);
        right.then(|| Found { batch, durable, end: start + padded(len) })
    }

    /// A record from `at` on that says that record `lost`, which comes before it, was durable.
    fn witness(&self, at: usize, lost: u64) -> Option<u64> {
        let bytes = self.segment.bytes();
        let behind = lost.saturating_add(1)..self.first.max(lost) + (bytes.len() / 8) as u64;
        (at..bytes.len()).step_by(8).find_map(|at| {
            let number = u64_at(bytes, at + 8).filter(|number| behind.contains(number))?;
            let durable = self.record(at, number)?.durable?;
            (durable >= lost).then_some(number)
        })
    }
}

/// Segments that an earlier run left.
pub(crate) struct OldJournal {
    directory: PathBuf,
    last: u64,
}

impl OldJournal {
    /// Reads the journal in `directory`: batches after number `after` are given to `visit`.
    /// Nothing is changed.
    pub(crate) fn read(
        directory: &Path,
        after: u64,
        mut visit: impl FnMut(Batch),
    ) -> Result<OldJournal, KvError> {
        let mut found = Vec::new();
        for index in 0..SEGMENTS {
            let path = path_of(directory, index);
            let error = |source| KvError::Io { path: path.display().to_string(), source };
            found.extend(Old::open(path.clone()).map_err(error)?);
        }
        found.sort_unstable_by_key(|old| old.first);
        // Records that the tables have may reach into any segment.
        let start = found.partition_point(|old| old.first <= after + 1).saturating_sub(1);
        let mut last = after;
        let mut chain: Option<(u64, u64)> = None;
        // Where no record follows any more.
        let mut ends = HEADER_BYTES;
        let mut segments = found.iter().skip(start).peekable();
        let mut ended_in = None;
        while let Some(old) = segments.peek() {
            let follows = match chain {
                Some(end) => end == (old.run, old.first),
                None => old.first <= after + 1,
            };
            if !follows {
                break;
            }
            let (mut number, mut at) = (old.first, HEADER_BYTES);
            while let Some(record) = old.record(at, number) {
                if number > after {
                    visit(Batch::from_encoded(record.batch.to_vec()));
                    last = number;
                }
                (number, at) = (number + 1, record.end);
            }
            chain = Some((old.run, number));
            (ended_in, ends) = (segments.next(), at);
        }
        let here = ended_in.map(|old| (old, ends));
        let later = segments.filter(|old| ended_in.is_none_or(|end| end.run == old.run));
        for (old, at) in here.into_iter().chain(later.map(|old| (old, HEADER_BYTES))) {
            if let Some(witness) = old.witness(at, last + 1) {
                let reason = format!(
                    "record {} was on stable storage when {witness} was written, and is not there",
                    last + 1
                );
                return Err(KvError::Corrupt { path: old.path.display().to_string(), reason });
            }
        }
        Ok(OldJournal { directory: directory.to_owned(), last })
    }

    /// Number of the last record.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Starts a new run after the old one, with segments of `bytes` bytes. The tables must hold all
    /// that was found on stable storage.
    pub(crate) fn begin(self, bytes: usize, run: u64) -> io::Result<Journal> {
        let mut places = Vec::new();
        for index in 0..SEGMENTS {
            let mut segment = Segment::open(&path_of(&self.directory, index), bytes)?;
            // Lost records may lie in any segment; they must not be found again.
            segment.write(0, &[&[0; HEADER_BYTES]]);
            segment.file().sync_data()?;
            places.push(Place { segment, last: 0, dirty: false });
        }
        File::open(&self.directory)?.sync_all()?;
        let (next, settled) = (self.last + 1, self.last);
        let mut journal = Journal { places, active: 0, at: 0, run, next, settled };
        journal.enter(0);
        Ok(journal)
    }
}

impl Journal {
    fn enter(&mut self, index: usize) {
        self.active = index;
        self.at = HEADER_BYTES;
        let place = &mut self.places[index];
        place.segment.write(0, &[&header(VERSION, self.run, self.next), &[0; RECORD_BYTES]]);
        place.dirty = true;
    }

    /// Appends a batch, when all up to `durable` are on stable storage. Returns its number.
    pub(crate) fn append(&mut self, batch: &Batch, durable: u64) -> Result<u64, NoRoom> {
        let batch = batch.encoded();
        let need = RECORD_BYTES + padded(batch.len());
        let len = self.places[self.active].segment.len();
        if need > len - HEADER_BYTES {
            return Err(NoRoom::Ever);
        }
        if need > len - self.at {
            let next = (self.active + 1) % self.places.len();
            if self.places[next].last > self.settled {
                return Err(NoRoom::Yet);
            }
            self.enter(next);
        }
        let number = self.next;
        let place = &mut self.places[self.active];
        let parts: [&[u8]; 5] = [
            &(batch.len() as u32).to_le_bytes(),
            &checksum(self.run, number, Some(durable), batch).to_le_bytes(),
            &number.to_le_bytes(),
            &durable.to_le_bytes(),
            batch,
        ];
        place.segment.write(self.at, &parts);
        (place.last, place.dirty) = (number, true);
        self.at += need;
        self.next += 1;
        Ok(number)
    }

    /// Number of the last record.
    pub(crate) fn last(&self) -> u64 {
        self.next - 1
    }

    /// Whether a segment waits for the tables to reach stable storage.
    pub(crate) fn wants_tables(&self) -> bool {
        let left =
            |(index, place): (usize, &Place)| index != self.active && place.last > self.settled;
        self.places.iter().enumerate().any(left)
    }

    /// The tables hold everything up to `number` on stable storage.
    pub(crate) fn settle(&mut self, number: u64) {
        self.settled = number;
    }

    /// Files to flush for everything appended so far to be on stable storage. Older
    /// segments first.
    pub(crate) fn take_dirty(&mut self) -> Vec<Arc<File>> {
        let mut dirty: Vec<&mut Place> = self.places.iter_mut().filter(|p| p.dirty).collect();
        dirty.sort_unstable_by_key(|place| place.last);
        let files = dirty.iter().map(|place| place.segment.file()).collect();
        dirty.into_iter().for_each(|place| place.dirty = false);
        files
    }

    #[cfg(test)]
    pub(crate) fn refuse_flushes(&mut self) {
        self.places.iter_mut().for_each(|place| place.segment.refuse_flushes());
    }

    /// The pages that come next.
    pub(crate) fn ahead(&self) -> (Pages, usize, usize) {
        let page = self.at & !4095;
        (self.places[self.active].segment.pages(), page, AHEAD_BYTES)
    }
}

#[cfg(test)]
mod tests;

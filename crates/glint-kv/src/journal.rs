//! The journal: a ring of segments into which every batch is copied before its commit
//! returns.
//!
//! ```text
//! segment   header (64 bytes), records
//! header    magic u32 | version u32 | run u64 | first u64 | crc32c u32 | zeros
//! record    length u32 | crc32c u32 | number u64 | batch | zeros up to a multiple of 8
//! ```
//! Little-endian. Numbers rise by one from record to record, over all segments. `run` is
//! drawn at random at each start and is part of every checksum, so that what an earlier run
//! left in a segment is never taken for a record of this one.
//!
//! Invariants:
//! - What is read back is a prefix of what was appended: reading stops at the first record
//!   that is damaged, has another number or belongs to another run.
//! - A segment is written over only when the tables hold all of its records on stable
//!   storage.

use crate::Batch;
use crate::segment::{Pages, Segment};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Segments of the ring.
const SEGMENTS: usize = 3;
const HEADER_BYTES: usize = 64;
const RECORD_BYTES: usize = 16;
const MAGIC: u32 = u32::from_le_bytes(*b"GLJL");
const VERSION: u32 = 1;
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

fn header(run: u64, first: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    bytes[8..16].copy_from_slice(&run.to_le_bytes());
    bytes[16..24].copy_from_slice(&first.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..24]);
    bytes[24..28].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Run and first number, if a segment begins with a header.
fn parse_header(bytes: &[u8]) -> Option<(u64, u64)> {
    let (run, first) = (u64_at(bytes, 8)?, u64_at(bytes, 16)?);
    (bytes.get(..HEADER_BYTES)? == header(run, first)).then_some((run, first))
}

fn checksum(run: u64, number: u64, batch: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&run.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &number.to_le_bytes());
    crc32c::crc32c_append(crc, batch)
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// The batch of record `number` at `at`, and where the next record begins.
fn read_record(bytes: &[u8], at: usize, run: u64, number: u64) -> Option<(&[u8], usize)> {
    let len = u32_at(bytes, at)? as usize;
    if len == 0 || u64_at(bytes, at + 8)? != number {
        return None;
    }
    let start = at + RECORD_BYTES;
    let batch = bytes.get(start..start.checked_add(len)?)?;
    (u32_at(bytes, at + 4)? == checksum(run, number, batch)).then(|| (batch, start + padded(len)))
}

/// Calls `visit` for all records above `after`, in order. Returns the last number.
fn read_all(segments: &[Segment], after: u64, visit: &mut impl FnMut(Batch)) -> u64 {
    let mut found: Vec<(u64, u64, &Segment)> = segments
        .iter()
        .filter_map(|segment| parse_header(segment.bytes()).map(|(run, n)| (n, run, segment)))
        .collect();
    found.sort_unstable_by_key(|(first, ..)| *first);
    // What the tables know may reach into any segment.
    let start = found.partition_point(|(first, ..)| *first <= after + 1).saturating_sub(1);
    let mut last = after;
    let mut chain: Option<(u64, u64)> = None;
    for (first, run, segment) in found.into_iter().skip(start) {
        let follows = match chain {
            Some(end) => end == (run, first),
            None => first <= after + 1,
        };
        if !follows {
            break;
        }
        let (mut number, mut at) = (first, HEADER_BYTES);
        while let Some((batch, end)) = read_record(segment.bytes(), at, run, number) {
            if number > after {
                visit(Batch::from_encoded(batch.to_vec()));
                last = number;
            }
            (number, at) = (number + 1, end);
        }
        chain = Some((run, number));
    }
    last
}

impl Journal {
    /// Opens the journal in `directory` with segments of `bytes` bytes. Batches after
    /// number `after` are given to `visit`; the tables must hold them on stable storage
    /// before [`Journal::begin`].
    pub(crate) fn open(
        directory: &Path,
        bytes: usize,
        after: u64,
        mut visit: impl FnMut(Batch),
    ) -> io::Result<Journal> {
        let mut old = Vec::new();
        for index in 0..SEGMENTS {
            let path = path_of(directory, index);
            if let Some(len) = Segment::len_of(&path).filter(|len| *len >= HEADER_BYTES) {
                old.push(Segment::open(&path, len)?);
            }
        }
        let last = read_all(&old, after, &mut visit);
        drop(old);
        let mut places = Vec::new();
        for index in 0..SEGMENTS {
            let segment = Segment::open(&path_of(directory, index), bytes)?;
            places.push(Place { segment, last: 0, dirty: false });
        }
        File::open(directory)?.sync_all()?;
        Ok(Journal { places, active: 0, at: 0, run: 0, next: last + 1, settled: last })
    }

    /// Starts a new run after the last record that was found.
    pub(crate) fn begin(&mut self, run: u64) -> io::Result<()> {
        // What was lost may lie in any segment; it must not be found again.
        for place in &mut self.places {
            place.segment.write(0, &[&[0; HEADER_BYTES]]);
            place.segment.file().sync_data()?;
        }
        self.run = run;
        self.enter(0);
        Ok(())
    }

    fn enter(&mut self, index: usize) {
        self.active = index;
        self.at = HEADER_BYTES;
        let place = &mut self.places[index];
        place.segment.write(0, &[&header(self.run, self.next), &[0; RECORD_BYTES]]);
        place.dirty = true;
    }

    /// Appends a batch and returns its number.
    pub(crate) fn append(&mut self, batch: &Batch) -> Result<u64, NoRoom> {
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
        let parts: [&[u8]; 4] = [
            &(batch.len() as u32).to_le_bytes(),
            &checksum(self.run, number, batch).to_le_bytes(),
            &number.to_le_bytes(),
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

    /// The pages that come next.
    pub(crate) fn ahead(&self) -> (Pages, usize, usize) {
        let page = self.at & !4095;
        (self.places[self.active].segment.pages(), page, AHEAD_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Keyspace;
    use proptest::prelude::*;

    const BYTES: usize = 4096;

    fn batch(n: u64, len: usize) -> Batch {
        let mut batch = Batch::new();
        batch.put(Keyspace::Meta, &n.to_be_bytes(), &vec![n as u8; len]);
        batch
    }

    fn open(directory: &Path, after: u64) -> (Journal, Vec<u64>) {
        let mut found = Vec::new();
        let journal = Journal::open(directory, BYTES, after, |batch| {
            let write = batch.writes().next().unwrap();
            found.push(u64::from_be_bytes(write.key.try_into().unwrap()));
        });
        (journal.unwrap(), found)
    }

    #[test]
    fn everything_after_the_tables_comes_back_over_segments_and_runs() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, found) = open(dir.path(), 0);
        assert!(found.is_empty());
        journal.begin(7).unwrap();
        let mut settled = 0;
        for n in 1..=400 {
            let number = loop {
                match journal.append(&batch(n, n as usize % 100)) {
                    Ok(number) => break number,
                    Err(NoRoom::Yet) => {
                        assert!(journal.wants_tables());
                        settled = n - 1;
                        journal.settle(settled);
                    }
                    Err(NoRoom::Ever) => panic!("it fits"),
                }
            };
            assert_eq!(number, n);
        }
        assert!(settled > 0);
        drop(journal);
        let (mut journal, found) = open(dir.path(), settled);
        assert_eq!(found, (settled + 1..=400).collect::<Vec<_>>());
        journal.begin(8).unwrap();
        assert_eq!(journal.append(&batch(401, 5)).unwrap(), 401);
        drop(journal);
        assert_eq!(open(dir.path(), 400).1, [401], "and nothing of the last run");
    }

    #[test]
    fn a_batch_longer_than_a_segment_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(dir.path(), 0);
        journal.begin(1).unwrap();
        assert!(matches!(journal.append(&batch(1, BYTES)), Err(NoRoom::Ever)));
        assert_eq!(journal.append(&batch(1, 1)).unwrap(), 1);
    }

    proptest! {
        /// Whatever a loss of power leaves of the segments, what is read back is a prefix.
        #[test]
        fn damage_leaves_a_prefix(
            sizes in proptest::collection::vec(0usize..300, 1..40),
            page in 0usize..SEGMENTS,
            at in 0usize..BYTES,
            len in 1usize..600,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let (mut journal, _) = open(dir.path(), 0);
            journal.begin(3).unwrap();
            let mut written = 0;
            for size in sizes {
                if journal.append(&batch(written + 1, size)).is_err() {
                    break;
                }
                written += 1;
            }
            let end = (at + len).min(BYTES);
            journal.places[page].segment.write(at, &[&vec![0u8; end - at]]);
            drop(journal);
            let (mut journal, found) = open(dir.path(), 0);
            prop_assert_eq!(&found, &(1..=found.len() as u64).collect::<Vec<_>>());
            prop_assert!(found.len() as u64 <= written);
            // And a new run is not confused by what is left.
            journal.begin(4).unwrap();
            let next = found.len() as u64 + 1;
            prop_assert_eq!(journal.append(&batch(next, 9)).unwrap(), next);
            drop(journal);
            prop_assert_eq!(open(dir.path(), next - 1).1, [next]);
        }
    }
}

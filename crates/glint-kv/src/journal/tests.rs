//! Tests of the journal.

use super::*;
use crate::Keyspace;
use proptest::prelude::*;

const BYTES: usize = 4096;

fn batch(n: u64, len: usize) -> Batch {
    let mut batch = Batch::new();
    batch.put(Keyspace::Meta, &n.to_be_bytes(), &vec![n as u8; len]);
    batch
}

fn read(directory: &Path, after: u64) -> Result<(OldJournal, Vec<u64>), KvError> {
    let mut found = Vec::new();
    let left = OldJournal::read(directory, after, |batch| {
        let write = batch.writes().next().unwrap();
        found.push(u64::from_be_bytes(write.key.try_into().unwrap()));
    })?;
    Ok((left, found))
}

fn open(directory: &Path, after: u64) -> (OldJournal, Vec<u64>) {
    read(directory, after).unwrap()
}

#[test]
fn everything_after_the_tables_comes_back_over_segments_and_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (left, found) = open(dir.path(), 0);
    assert!(found.is_empty());
    let mut journal = left.begin(BYTES, 7).unwrap();
    let mut settled = 0;
    for n in 1..=400 {
        let number = loop {
            match journal.append(&batch(n, n as usize % 100), 0) {
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
    let (left, found) = open(dir.path(), settled);
    assert_eq!(found, (settled + 1..=400).collect::<Vec<_>>());
    let mut journal = left.begin(BYTES, 8).unwrap();
    assert_eq!(journal.append(&batch(401, 5), 0).unwrap(), 401);
    drop(journal);
    assert_eq!(open(dir.path(), 400).1, [401], "and nothing of the last run");
}

#[test]
fn a_batch_longer_than_a_segment_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path(), 0).0.begin(BYTES, 1).unwrap();
    assert!(matches!(journal.append(&batch(1, BYTES), 0), Err(NoRoom::Ever)));
    assert_eq!(journal.append(&batch(1, 1), 0).unwrap(), 1);
}

#[test]
fn segments_become_shorter_only_when_their_records_are_in_the_tables() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path(), 0).0.begin(BYTES, 1).unwrap();
    for n in 1..=30 {
        journal.append(&batch(n, 100), 0).unwrap();
    }
    drop(journal);
    // The tables could not be written: this start ends here, and the next reads the same.
    for _ in 0..2 {
        let (left, found) = open(dir.path(), 0);
        assert_eq!((left.last(), found.len()), (30, 30));
    }
    let journal = open(dir.path(), 0).0.begin(BYTES / 2, 2).unwrap();
    assert_eq!(journal.last(), 30);
    assert!(open(dir.path(), 30).1.is_empty());
}

/// Damages one record; says what is found.
fn with_damage(at: impl Fn(&mut Journal) -> (usize, usize)) -> Result<Vec<u64>, KvError> {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path(), 0).0.begin(BYTES, 1).unwrap();
    let (place, at) = at(&mut journal);
    journal.places[place].segment.write(at, &[&[0xff; 4]]);
    drop(journal);
    read(dir.path(), 0).map(|(_, found)| found)
}

#[test]
fn a_damaged_record_that_was_durable_is_an_error_and_not_the_end() {
    let appended = |journal: &mut Journal, durable: u64| {
        let at = journal.at;
        journal.append(&batch(journal.next, 10), durable).unwrap();
        at
    };
    let found = with_damage(|journal| {
        let at = [0, 1, 1, 1].map(|durable| appended(journal, durable));
        (0, at[1] + 30)
    });
    assert_eq!(found.unwrap(), [1], "nobody was told that the second one was durable");
    let found = with_damage(|journal| {
        let at = [0, 1, 1, 2].map(|durable| appended(journal, durable));
        (0, at[1] + 30)
    });
    let error = found.unwrap_err().to_string();
    assert!(error.contains("record 2 was on stable storage when 4"), "{error}");
    // Witnesses in the next segment, and a header that is gone.
    for damaged in [HEADER_BYTES + 30, 8] {
        let found = with_damage(|journal| {
            while journal.active == 0 {
                appended(journal, journal.last());
            }
            (0, damaged)
        });
        let error = found.unwrap_err().to_string();
        assert!(error.contains("record 1 was on stable storage"), "{error}");
    }
}

#[test]
fn what_version_1_left_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = header(VERSION_OLD, 9, 1).to_vec();
    for n in 1..=3u64 {
        let batch = batch(n, n as usize);
        let batch = batch.encoded();
        bytes.extend((batch.len() as u32).to_le_bytes());
        bytes.extend(checksum(9, n, None, batch).to_le_bytes());
        bytes.extend(n.to_le_bytes());
        bytes.extend(batch);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    std::fs::write(path_of(dir.path(), 1), bytes).unwrap();
    assert_eq!(open(dir.path(), 0).1, [1, 2, 3]);
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
        let mut journal = open(dir.path(), 0).0.begin(BYTES, 3).unwrap();
        let mut written = 0;
        for size in sizes {
            if journal.append(&batch(written + 1, size), 0).is_err() {
                break;
            }
            written += 1;
        }
        let end = (at + len).min(BYTES);
        journal.places[page].segment.write(at, &[&vec![0u8; end - at]]);
        drop(journal);
        let (left, found) = open(dir.path(), 0);
        prop_assert_eq!(&found, &(1..=found.len() as u64).collect::<Vec<_>>());
        prop_assert!(found.len() as u64 <= written);
        // A new run is not confused by the segments that are left.
        let mut journal = left.begin(BYTES, 4).unwrap();
        let next = found.len() as u64 + 1;
        prop_assert_eq!(journal.append(&batch(next, 9), 0).unwrap(), next);
        drop(journal);
        prop_assert_eq!(open(dir.path(), next - 1).1, [next]);
    }
}

/// The bytes of a segment: a journal of today must be read by every later version.
#[test]
fn a_header_and_a_record_are_written_as_ever() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path(), 0).0.begin(BYTES, 7).unwrap();
    let mut batch = Batch::new();
    for (keyspace, key) in Keyspace::ALL.into_iter().zip(b'a'..) {
        batch.put(keyspace, &[key], &[key, 0xff]);
    }
    batch.delete(Keyspace::Entry, b"gone");
    journal.append(&batch, 0).unwrap();
    let bytes = std::fs::read(path_of(dir.path(), 0)).unwrap();
    let (header, record) = bytes.split_at(HEADER_BYTES);
    assert_eq!(
        hex(&header[..32]),
        "474c4a4c02000000070000000000000001000000000000001170aa2600000000"
    );
    assert!(header[32..].iter().all(|byte| *byte == 0));
    assert_eq!(
        hex(&record[..120]),
        "51000000bc3452e0010000000000000000000000000000000001000200000061\
         61ff010100020000006262ff020100020000006363ff030100020000006464ff\
         040100020000006565ff050100020000006666ff060100020000006767ff0004\
         00ffffffff676f6e65000000000000000000000000000000"
    );
}

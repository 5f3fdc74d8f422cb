//! Tests of open objects.

use super::*;
use crate::disk::Disk;
use crate::disk::memory::{DiskOperation, Fault, MemoryDisk};
use crate::store::object_store::{ObjectStore, path_of};
use crate::store::passing::ObjectCache;
use crate::store::scrub::ScrubStep;
use crate::store::sealer::STALE_AFTER;
use glint_proto::{Ino, ObjectId, clock};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

fn object(file: &std::fs::File) -> ObjectFile<OwnedFd> {
    let passing = Arc::new(Passing::new(ObjectCache::All));
    ObjectFile::new(OBJECT, file.try_clone().unwrap().into(), passing)
}

fn is_sealed(file: &std::fs::File) -> bool {
    rustix::fs::fgetxattr(file, ATTRIBUTE, &mut [0u8; ATTRIBUTE_BYTES_MAX][..]).is_ok()
}

#[test]
fn a_change_breaks_the_seal_and_a_race_prevents_it() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = dir.path().join("object");
    let open = || std::fs::File::options().read(true).write(true).open(&path).unwrap();
    std::fs::write(&path, vec![7u8; 200_000]).unwrap();
    let file = open();
    let one = object(&file);
    let write = |at: u64| {
        let work = |fd: &OwnedFd| Ok(rustix::io::pwrite(fd, b"new", at)?);
        let ranges = std::iter::once((at, at + 3));
        one.change(Touches::From(at), ranges, Timestamp::now(), work, |_| Ok(())).unwrap().1
    };
    assert!(write(5).is_some(), "the first change is reported");
    assert!(write(5).is_none());
    let before = one.settled();
    write(9);
    assert!(!one.seal(before).unwrap(), "it changed in the meantime");
    assert!(one.seal(one.settled()).unwrap() && is_sealed(&file));
    let again = object(&file);
    assert!(again.check().unwrap().is_some());
    file.write_all_at(b"rot", 100).unwrap();
    assert!(again.check().is_err());
    let mut buffer = [0u8; 3];
    assert!(again.checked_read(100, &mut buffer, ReadMode::Waiting).is_err());
    assert!(write(5).is_some(), "the first change after a seal is reported");
    assert!(!is_sealed(&file));
    drop(one);
    let reopened = object(&file);
    assert!(reopened.seal(reopened.settled()).unwrap() && is_sealed(&file));
    assert!(!reopened.seal(reopened.settled()).unwrap(), "it is sealed");
}

pub(super) const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };
const LEN: usize = 300_000;
/// A byte in the second block.
pub(super) const FLIPPED: u64 = 100_000;

pub(super) fn store_on(disk: &MemoryDisk) -> ObjectStore<MemoryDisk> {
    ObjectStore::on(disk.clone(), Path::new("ost"), 4, Arc::default())
}

/// A store that was just opened, with an object that was sealed before, and then damaged.
pub(super) fn damaged() -> (MemoryDisk, ObjectStore<MemoryDisk>) {
    let disk = MemoryDisk::default();
    let store = store_on(&disk);
    store.write(OBJECT, 0, &[7; LEN], None, false).unwrap();
    settle(&store);
    assert!(store.check(OBJECT).unwrap().is_some());
    let file = disk.open(&path_of(OBJECT)).unwrap();
    file.write(&[6], FLIPPED).unwrap();
    let store = store_on(&disk);
    (disk, store)
}

fn settle(store: &ObjectStore<MemoryDisk>) {
    store.settle(Duration::ZERO, None).unwrap();
}

/// Whether a byte is read, and not called damaged.
pub(super) fn is_read(store: &ObjectStore<MemoryDisk>, at: u64) -> bool {
    let file = store.file(OBJECT, None).unwrap().unwrap();
    match file.checked_read(at, &mut [0], ReadMode::Waiting) {
        Ok(n) => n == 1,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
            false
        }
    }
}

#[test]
fn damage_below_an_object_that_stays_open_is_found_by_reads_later() {
    let begun = clock::now();
    clock::simulate(Some(begun));
    let disk = MemoryDisk::default();
    let store = store_on(&disk);
    store.write(OBJECT, 0, &[7; LEN], None, false).unwrap();
    settle(&store);
    assert!(is_read(&store, FLIPPED));
    disk.open(&path_of(OBJECT)).unwrap().write(&[6], FLIPPED).unwrap();
    let is_found_after = |time: Duration| {
        clock::simulate(Some(begun + time));
        settle(&store);
        !is_read(&store, FLIPPED)
    };
    assert!(!is_found_after(STALE_AFTER / 2), "it was compared not long ago");
    assert!(is_found_after(STALE_AFTER));
    clock::simulate(None);
}

#[test]
fn damage_that_was_found_is_known_after_a_loss_of_power() {
    for is_scrubbed in [false, true] {
        let (disk, store) = damaged();
        disk.sync_all().unwrap();
        if is_scrubbed {
            store.begin_scrub();
            while store.scrub() != ScrubStep::Ended {}
        } else {
            assert!(!is_read(&store, FLIPPED));
        }
        disk.lose_power(&mut |_| 0);
        let store = store_on(&disk);
        store.write(OBJECT, FLIPPED, &[7], None, false).unwrap();
        assert!(!is_read(&store, FLIPPED), "{is_scrubbed}");
    }
}

type ChangeOfObject = fn(&ObjectStore<MemoryDisk>) -> io::Result<()>;

#[test]
fn damage_beside_a_change_is_not_read_and_not_sealed_as_right() {
    let changes: [ChangeOfObject; 5] = [
        |store| store.write(OBJECT, LEN as u64, &[8; 10], None, false).map(drop),
        |store| store.write(OBJECT, 200_000, &[8; 10], None, false).map(drop),
        |store| store.truncate(OBJECT, 250_000),
        |store| store.allocate(OBJECT, libc::FALLOC_FL_PUNCH_HOLE | 1, 200_000, 10_000),
        |store| store.allocate(OBJECT, 0, 0, 400_000),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        for is_known in [false, true] {
            let (disk, store) = damaged();
            assert!(!is_known || !is_read(&store, FLIPPED));
            for _ in 0..3 {
                change(&store).unwrap();
                assert!(!is_read(&store, FLIPPED), "{n}");
                assert!(is_read(&store, 10) && is_read(&store, 210_005), "{n}");
                settle(&store);
                assert!(store.is_sealed(OBJECT) && !is_read(&store, FLIPPED), "{n}");
            }
            let again = store_on(&disk);
            assert!(again.check(OBJECT).is_err() && !is_read(&again, FLIPPED), "{n}");
            assert!(is_read(&again, 10) && is_read(&again, 210_005), "{n}");
            // It is the one damaged block.
            again.write(OBJECT, 1 << 16, &[7; 1 << 16], None, false).unwrap();
            assert!(is_read(&again, FLIPPED));
            settle(&again);
            assert!(store_on(&disk).check(OBJECT).unwrap().is_some(), "{n}");
        }
    }
}

#[test]
fn known_damage_stays_until_all_of_its_block_is_overwritten() {
    let (disk, store) = damaged();
    assert!(!is_read(&store, FLIPPED));
    store.write(OBJECT, 70_000, &[8; 10], None, false).unwrap();
    assert!(!is_read(&store, FLIPPED) && !is_read(&store, 70_000));
    settle(&store);
    assert!(!is_read(&store, FLIPPED));
    // Its seal says that it is damaged.
    let store = store_on(&disk);
    for _ in 0..2 {
        store.write(OBJECT, 70_000, &[9; 10], None, false).unwrap();
        assert!(!is_read(&store, FLIPPED));
        settle(&store);
        assert!(store.check(OBJECT).is_err());
    }
    store.write(OBJECT, 65_536, &[8; 30_000], None, false).unwrap();
    assert!(!is_read(&store, FLIPPED) && !is_read(&store, 70_000));
    store.allocate(OBJECT, libc::FALLOC_FL_PUNCH_HOLE | 1, 95_536, 100_000).unwrap();
    assert!(is_read(&store, FLIPPED) && is_read(&store, 70_000));
    settle(&store);
    assert!(store_on(&disk).check(OBJECT).unwrap().is_some());
}

#[test]
fn damage_that_was_found_is_known_when_the_object_is_opened_again() {
    let scrub = |store: &ObjectStore<MemoryDisk>| {
        store.begin_scrub();
        while store.scrub() != ScrubStep::Ended {}
        assert_eq!(store.scrub_report().damaged, 1);
    };
    let is_found_again = |disk: &MemoryDisk, store: &ObjectStore<MemoryDisk>| {
        store.write(OBJECT, 70_000, &[8; 10], None, false).unwrap();
        assert!(!is_read(store, FLIPPED) && is_read(store, 10));
        settle(store);
        assert!(!is_read(&store_on(disk), FLIPPED) && store.check(OBJECT).is_err());
    };
    let (disk, store) = damaged();
    assert!(!is_read(&store, FLIPPED));
    is_found_again(&disk, &store_on(&disk));
    // By a scrub, and who has it open knows it, too.
    for is_open in [true, false] {
        let (disk, store) = damaged();
        assert!(is_read(&store, 10));
        scrub(&store);
        is_found_again(&disk, &if is_open { store } else { store_on(&disk) });
    }
    // Somebody reads it between the two readings of a scrub.
    let (disk, store) = damaged();
    store.begin_scrub();
    while store.scrub_report().bytes < 131_072 {
        store.scrub();
    }
    assert!(!is_read(&store, FLIPPED));
    while store.scrub() != ScrubStep::Ended {}
    assert_eq!(store.scrub_report().damaged, 1);
    is_found_again(&disk, &store_on(&disk));
}

#[test]
fn damage_that_cannot_be_noted_is_an_error_all_the_same() {
    let (disk, store) = damaged();
    let path = path_of(OBJECT);
    disk.fail(Fault::new(DiskOperation::SetAttribute, &path, libc::EROFS, u32::MAX));
    assert!(!is_read(&store, FLIPPED) && !is_read(&store, FLIPPED) && is_read(&store, 10));
    assert!(store_on(&disk).file(OBJECT, None).unwrap().unwrap().check_next(true).unwrap());
    disk.heal();
    // Who reads what is in memory does not wait for a sync: it is noted by who waits.
    let file = store.file(OBJECT, None).unwrap().unwrap();
    for at_once in [
        file.read_at_once(FLIPPED, &mut [0], ReadMode::InMemory),
        file.checked_read(FLIPPED, &mut [0], ReadMode::InMemory),
    ] {
        assert_eq!(at_once.unwrap_err().raw_os_error(), Some(libc::EAGAIN));
    }
    assert!(!is_read(&store, FLIPPED));
    let store = store_on(&disk);
    store.write(OBJECT, 70_000, &[8; 10], None, false).unwrap();
    assert!(!is_read(&store, FLIPPED));
}

#[test]
fn known_damage_ends_where_it_is_cut_off() {
    for (size, is_gone) in [(0, true), (100, true), (65_536, true), (110_000, false)] {
        let (disk, store) = damaged();
        assert!(!is_read(&store, FLIPPED));
        store.truncate(OBJECT, size).unwrap();
        store.truncate(OBJECT, LEN as u64).unwrap();
        assert_eq!(is_read(&store, FLIPPED), is_gone, "{size}");
        settle(&store);
        assert_eq!(is_read(&store, FLIPPED), is_gone, "{size}");
        assert_eq!(store_on(&disk).check(OBJECT).is_ok(), is_gone, "{size}");
    }
    let (disk, store) = damaged();
    assert!(!is_read(&store, FLIPPED));
    store.truncate(OBJECT, 110_000).unwrap();
    store.write(OBJECT, 65_536, &[8; 110_000 - 65_536], None, false).unwrap();
    assert!(is_read(&store, FLIPPED));
    settle(&store);
    assert!(store_on(&disk).check(OBJECT).unwrap().is_some());
}

#[test]
fn a_lost_tail_is_not_read_and_not_sealed_as_right() {
    const BLOCK: usize = 1 << 16;
    let is_refused = |store: &ObjectStore<MemoryDisk>, at: usize| {
        let file = store.file(OBJECT, None).unwrap().unwrap();
        file.checked_read(at as u64, &mut [0], ReadMode::Waiting).is_err()
    };
    for is_known in [false, true] {
        let (disk, store) = damaged();
        store.write(OBJECT, 0, &[7; LEN], None, false).unwrap();
        settle(&store);
        assert!(store.check(OBJECT).unwrap().is_some());
        // A byte of the fourth block of five is the last one.
        disk.open(&path_of(OBJECT)).unwrap().set_size(3 * BLOCK as u64 + 1).unwrap();
        let store = store_on(&disk);
        for at in [3 * BLOCK, 3 * BLOCK + 1, LEN - 1] {
            assert!(!is_known || is_refused(&store, at), "{at}");
        }
        assert!(is_read(&store, 10) && !is_refused(&store, LEN));
        store.write(OBJECT, 0, &[8; 10], None, false).unwrap();
        settle(&store);
        for store in [&store, &store_on(&disk)] {
            assert!(is_refused(store, 3 * BLOCK + 1) && is_refused(store, LEN - 1));
            assert!(is_read(store, 10) && store.check(OBJECT).is_err());
        }
        // There are zeros where it was.
        let store = store_on(&disk);
        store.write(OBJECT, LEN as u64 - 10, &[7; 10], None, false).unwrap();
        for _ in 0..2 {
            assert!(is_refused(&store, 3 * BLOCK) && is_read(&store, 10));
            settle(&store);
        }
        store.write(OBJECT, 3 * BLOCK as u64, &[7; LEN - 3 * BLOCK], None, false).unwrap();
        settle(&store);
        assert!(store_on(&disk).check(OBJECT).unwrap().is_some());
        // What is cut off is not lost.
        store.truncate(OBJECT, BLOCK as u64 + 1).unwrap();
        assert!(!is_refused(&store, BLOCK + 1) && !is_refused(&store, LEN - 1));
        settle(&store);
        assert!(store.check(OBJECT).unwrap().is_some() && !is_refused(&store, LEN - 1));
    }
}

#[test]
fn what_somebody_else_does_to_the_size_of_an_object_is_not_taken_up() {
    let size = LEN as u64;
    let append: ChangeOfObject = |store| {
        let end = store.stat(OBJECT)?.unwrap().size;
        store.write(OBJECT, end, &[8; 10], None, false).map(drop)
    };
    let write_behind: ChangeOfObject =
        |store| store.write(OBJECT, 600_000, &[8; 10], None, false).map(drop);
    let grow: ChangeOfObject = |store| store.truncate(OBJECT, 600_000);
    let changes: [(u64, ChangeOfObject); 3] =
        [(size, append), (600_000, write_behind), (600_000, grow)];
    for other_size in [250_000, 500_000] {
        for (n, (end, change)) in changes.into_iter().enumerate() {
            let (disk, store) = damaged();
            store.write(OBJECT, 0, &[7; LEN], None, false).unwrap();
            settle(&store);
            let file = disk.open(&path_of(OBJECT)).unwrap();
            if other_size > size {
                file.write(&vec![9; (other_size - size) as usize], size).unwrap();
            } else {
                file.set_size(other_size).unwrap();
            }
            let store = store_on(&disk);
            let is_short = other_size < size;
            let state = |store: &ObjectStore<MemoryDisk>| store.stat(OBJECT).unwrap().unwrap();
            assert_eq!(state(&store).size, size, "{n}");
            assert_eq!(store.seek(OBJECT, 260_000, true).unwrap(), Some(size), "{n}");
            assert_eq!(store.seek(OBJECT, 260_000, false).unwrap(), Some(260_000), "{n}");
            assert_eq!(store.seek(OBJECT, size, false).unwrap(), None, "{n}");
            let damage_found = |store: &ObjectStore<MemoryDisk>| {
                store.begin_scrub();
                while store.scrub() != ScrubStep::Ended {}
                store.scrub_report().damaged
            };
            assert_eq!(damage_found(&store), 1, "{n}");
            assert!(!is_read(&store, size) && is_read(&store, 10), "{n}");
            change(&store).unwrap();
            settle(&store);
            for store in [&store, &store_on(&disk)] {
                assert_eq!(state(store).size, if n == 2 { end } else { end + 10 }, "{n}");
                assert_eq!(is_read(store, 270_000), !is_short, "{n}");
                assert_eq!(damage_found(store), u64::from(is_short), "{n}");
                assert_eq!(store.seek(OBJECT, 270_000, false).unwrap(), Some(270_000), "{n}");
                let file = store.file(OBJECT, None).unwrap().unwrap();
                let mut behind = vec![1; end.saturating_sub(330_000) as usize];
                let read = file.checked_read(330_000, &mut behind, ReadMode::Waiting);
                assert_eq!(read.unwrap(), behind.len(), "{n}");
                assert!(behind.iter().all(|byte| *byte == 0), "{n}");
            }
            if is_short {
                // Up to the end of the block in which the object ended.
                let to = state(&store).size.min(327_680);
                let lost = vec![7; (to - 196_608) as usize];
                store.write(OBJECT, 196_608, &lost, None, false).unwrap();
                assert!(is_read(&store, 270_000), "{n}");
                settle(&store);
            }
            assert!(store_on(&disk).check(OBJECT).unwrap().is_some(), "{n}");
        }
    }
}

#[test]
fn what_is_marked_stays_so_over_changes_and_keeps_no_checksum_from_before() {
    let (disk, store) = damaged();
    assert!(!is_read(&store, FLIPPED) && is_read(&store, 10));
    // It is marked while its checksums are off.
    store.write(OBJECT, 200_000, &[8; 10], None, false).unwrap();
    store.mark(OBJECT, true).unwrap();
    for store in [&store, &store_on(&disk)] {
        store.write(OBJECT, 0, &[8; LEN], None, false).unwrap();
        assert!(!is_read(store, 10) && !is_read(store, FLIPPED));
        store.truncate(OBJECT, 250_000).unwrap();
        settle(store);
        assert!(!is_read(store, 10) && !is_read(&store_on(&disk), 10));
    }
    store.mark(OBJECT, false).unwrap();
    assert!(is_read(&store, 10) && is_read(&store, FLIPPED));
    settle(&store);
    let value = store_on(&disk).check(OBJECT).unwrap().unwrap();
    assert_eq!(value[0], 1, "no block is damaged");
}

#[test]
fn bytes_that_change_unseen_leave_no_checksum() {
    let (disk, store) = damaged();
    let file = store.file(OBJECT, None).unwrap().unwrap();
    file.begin_stores(|_| Ok(())).unwrap();
    assert!(is_read(&store, 10) && is_read(&store, 250_000));
    assert_eq!(file.unchecked_bytes().unwrap(), 0);
    disk.open(&path_of(OBJECT)).unwrap().write(&[9; 10], 200_000).unwrap();
    let changes = file.end_stores();
    assert!(is_read(&store, 200_000) && file.seal(changes).unwrap());
    assert!(store.check(OBJECT).unwrap().is_some());
}

#[test]
fn modes_that_move_bytes_are_refused() {
    let (_, store) = damaged();
    for mode in [libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE] {
        let refused = store.allocate(OBJECT, mode, 0, 4096).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
    }
    assert!(store.is_sealed(OBJECT));
}

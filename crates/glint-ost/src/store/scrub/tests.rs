//! Tests of scrubbing.

use super::{Progress, Scrubber};
use crate::disk::memory::{DiskOperation, Fault, MemoryDisk};
use crate::disk::{Disk, DiskFile};
use crate::store::object::ATTRIBUTE;
use crate::store::object_store::path_of;
use crate::store::passing::Passing;
use crate::{ObjectStore, ScrubReport, ScrubStep};
use glint_proto::limits::{SCRUB_DAMAGE_KEPT_MAX, SCRUB_LOG_LINES_MAX};
use glint_proto::{Ino, ObjectId};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

fn object(ino: u64) -> ObjectId {
    ObjectId { ino: Ino(ino), stripe: 0 }
}

const EIO: i32 = Errno::IO.raw_os_error();
/// Number of times that a fault which stays is there.
const ALWAYS: u32 = u32::MAX;

fn store_on(disk: &MemoryDisk) -> ObjectStore<MemoryDisk> {
    ObjectStore::on(disk.clone(), Path::new("ost"), 64, Arc::default())
}

fn damaged(report: &ScrubReport) -> Vec<u64> {
    report.damage.iter().map(|damage| damage.object.ino.0).collect()
}

/// A whole pass, and what it read.
fn scrub<D: Disk>(store: &ObjectStore<D>) -> (u64, ScrubReport) {
    store.begin_scrub();
    let mut bytes = 0;
    loop {
        match store.scrub() {
            ScrubStep::Read(more) => bytes += more,
            ScrubStep::Ended => return (bytes, store.scrub_report()),
            ScrubStep::Idle => panic!("it has ended before its end"),
        }
    }
}

/// Sealed objects of many sizes, in three directories.
fn filled<D: Disk>(store: &ObjectStore<D>) -> u64 {
    let mut all = 0;
    for (ino, len) in [(1, 1usize), (2, 65_536), (1025, 70_001), (2050, 3 << 20)] {
        let data: Vec<u8> = (0..len).map(|i| ((i * 31) >> 4) as u8).collect();
        store.write(object(ino), 0, &data, None, false).unwrap();
        all += len as u64;
    }
    store.settle(Duration::ZERO, None).unwrap();
    all
}

#[test]
fn damage_is_found_in_any_byte_and_forgotten_when_it_is_gone() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let store = ObjectStore::open(dir.path(), 64, Arc::default()).unwrap();
    let all = filled(&store);
    let (bytes, report) = scrub(&store);
    assert_eq!((bytes, report.bytes, report.objects, report.damaged), (all, all, 4, 0));
    assert!(!report.is_running && report.done == 1.0 && report.finished.is_some());

    let path = |ino| dir.path().join("objects").join(path_of(object(ino)));
    for (ino, at) in [(1025, 70_000), (2050, 2_500_000)] {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().read(true).write(true).open(path(ino)).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 8], at).unwrap();
    }
    std::fs::File::options().write(true).open(path(2)).unwrap().set_len(65_000).unwrap();
    let (_, report) = scrub(&store);
    let told: Vec<(u64, &str)> =
        report.damage.iter().map(|d| (d.object.ino.0, d.reason.as_str())).collect();
    let sums = |from, to| format!("bytes {from}..{to} do not match their checksum");
    let (a, b) = (sums(65536, 70_001), sums(2_490_368, 2_555_904));
    assert_eq!(told, [(2, "it has 65000 bytes, and had 65536"), (1025, &a), (2050, &b)]);
    assert_eq!(report.damaged, 3);

    // One is removed, one written anew, and that one has no checksums yet.
    store.remove(object(2)).unwrap();
    store.truncate(object(1025), 0).unwrap();
    let (_, report) = scrub(&store);
    assert_eq!((report.objects, report.unsealed, report.damaged), (2, 1, 1));
    assert_eq!(report.damage[0].object, object(2050));
}

#[test]
fn a_disk_that_gives_an_error_is_damage_and_a_pass_can_be_stopped() {
    let disk = MemoryDisk::default();
    let store = store_on(&disk);
    filled(&store);
    disk.fail(Fault::new(DiskOperation::Read, &path_of(object(1025)), EIO, 1));
    let (_, report) = scrub(&store);
    assert_eq!(report.damage[0].object, object(1025));
    assert_eq!(scrub(&store).1.damaged, 0, "it was an error that passes");

    store.begin_scrub();
    assert!(matches!(store.scrub(), ScrubStep::Read(_)));
    store.begin_scrub();
    assert!(store.scrub_report().done > 0.0, "it was under way already");
    store.stop_scrub();
    assert_eq!(store.scrub(), ScrubStep::Idle);
    assert!(!store.scrub_report().is_running);
}

#[test]
fn damage_is_not_forgotten_while_its_object_is_changed_beside_it() {
    let disk = MemoryDisk::default();
    let store = store_on(&disk);
    filled(&store);
    disk.open(&path_of(object(2050))).unwrap().write(&[0xee; 9], 2_500_000).unwrap();
    disk.fail(Fault::new(DiskOperation::Read, &path_of(object(1025)), EIO, 1));
    let (_, first) = scrub(&store);
    assert_eq!(damaged(&first), [1025, 2050]);
    for ino in [1025, 2050] {
        store.write(object(ino), 0, b"more", None, false).unwrap();
    }
    let (_, report) = scrub(&store);
    assert_eq!((report.unsealed, report.damage), (2, first.damage), "no repair begins anew");
    // All of its block is written, and the other object is compared.
    store.write(object(2050), 2_490_368, &[7; 65_536], None, false).unwrap();
    assert_eq!(damaged(&scrub(&store).1), [1025]);
    store.settle(Duration::ZERO, None).unwrap();
    assert_eq!(scrub(&store).1.damaged, 0);
}

/// Objects that change while they are read are never called damaged.
#[test]
fn what_is_written_meanwhile_is_not_damage() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let store = Arc::new(ObjectStore::open(dir.path(), 64, Arc::default()).unwrap());
    let (ends, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    filled(&store);
    let (writing, end, written) = (store.clone(), ends.clone(), rounds.clone());
    let writer = std::thread::spawn(move || {
        while !end.load(Ordering::Acquire) {
            let round = written.load(Ordering::Relaxed) + 1;
            for (ino, len) in [(1, 1), (2, 65_528), (1025, 65_528), (2050, 3 << 20)] {
                // The large one is read in many steps: what changes is ahead of them.
                let at = (len / 2).max(round * 70_919 % len);
                writing.write(object(ino), at, &round.to_le_bytes(), None, false).unwrap();
            }
            writing.settle(Duration::ZERO, None).unwrap();
            written.store(round, Ordering::Relaxed);
        }
    });
    let (mut passes, mut sealed) = (0, 0);
    // How much either does meanwhile is the machine's business.
    while passes < 300 || sealed <= 100 || rounds.load(Ordering::Relaxed) <= 10 {
        let (_, report) = scrub(&store);
        assert_eq!(report.damage, []);
        sealed += report.objects;
        passes += 1;
    }
    ends.store(true, Ordering::Release);
    writer.join().unwrap();
}

#[test]
fn a_pass_after_one_that_was_stopped_is_whole_and_keeps_what_that_one_found() {
    let disk = MemoryDisk::default();
    let store = store_on(&disk);
    filled(&store);
    disk.fail(Fault::new(DiskOperation::Read, &path_of(object(1)), EIO, ALWAYS));
    store.begin_scrub();
    while store.scrub_report().objects < 2 {
        assert!(matches!(store.scrub(), ScrubStep::Read(_)));
    }
    store.stop_scrub();
    assert_eq!(damaged(&store.scrub_report()), [1]);
    // No step in between: the stopped pass is still in memory.
    let (_, report) = scrub(&store);
    assert_eq!((report.objects, report.damaged), (4, 1), "{report:?}");
    assert_eq!(damaged(&report), [1]);
}

#[test]
fn a_directory_that_cannot_be_listed_is_counted_and_left_behind() {
    let disk = MemoryDisk::default();
    let store = store_on(&disk);
    filled(&store);
    disk.fail(Fault::new(DiskOperation::Read, &path_of(object(1)), EIO, 1));
    assert_eq!(damaged(&scrub(&store).1), [1]);
    disk.fail(Fault::new(DiskOperation::List, "00/", EIO, ALWAYS));
    for _ in 0..2 {
        let (_, report) = scrub(&store);
        assert_eq!((report.objects, report.not_compared), (2, 1), "{report:?}");
        assert_eq!(damaged(&report), [1], "nobody has seen it right");
    }
    disk.heal();
    let (_, report) = scrub(&store);
    assert_eq!((report.objects, report.not_compared, report.damaged), (4, 0, 0));
}

#[test]
fn an_error_that_says_nothing_about_an_object_is_no_damage() {
    let disk = MemoryDisk::default();
    let store = store_on(&disk);
    filled(&store);
    let fail = |operation, ino, errno: Errno| {
        disk.fail(Fault::new(operation, &path_of(object(ino)), errno.raw_os_error(), ALWAYS));
    };
    fail(DiskOperation::Open, 1, Errno::ROFS);
    fail(DiskOperation::Open, 2, Errno::MFILE);
    fail(DiskOperation::State, 1025, Errno::NOMEM);
    fail(DiskOperation::Read, 2050, Errno::INVAL);
    let (_, report) = scrub(&store);
    assert_eq!((report.objects, report.not_compared, report.damaged), (0, 4, 0), "{report:?}");

    disk.heal();
    fail(DiskOperation::Open, 1, Errno::UCLEAN);
    fail(DiskOperation::State, 2, Errno::IO);
    fail(DiskOperation::Read, 2050, Errno::BADMSG);
    let (_, report) = scrub(&store);
    assert_eq!((report.objects, report.not_compared), (4, 0), "{report:?}");
    assert_eq!(damaged(&report), [1, 2, 2050]);
    disk.heal();
    fail(DiskOperation::Open, 1, Errno::ROFS);
    let (_, report) = scrub(&store);
    assert_eq!((report.not_compared, damaged(&report)), (1, vec![1]), "it was not looked at again");
}

#[test]
fn what_is_kept_and_logged_of_a_pass_is_bounded_and_its_damage_counted() {
    const BEYOND: usize = 20;
    let disk = MemoryDisk::default();
    let store = store_on(&disk);
    let objects = (SCRUB_DAMAGE_KEPT_MAX + BEYOND) as u64;
    for ino in 1..=objects {
        store.write(object(ino), 0, b"x", None, false).unwrap();
    }
    store.settle(Duration::ZERO, None).unwrap();
    disk.fail(Fault::new(DiskOperation::Read, "", EIO, ALWAYS));
    for _ in 0..2 {
        let (_, report) = scrub(&store);
        assert_eq!((report.objects, report.damaged), (objects, objects));
        assert_eq!(report.damage.len(), SCRUB_DAMAGE_KEPT_MAX);
    }
    store.begin_scrub();
    store.stop_scrub();
    assert_eq!(store.scrub_report().damaged, objects, "a pass that saw nothing forgets nothing");
    disk.heal();
    assert_eq!(scrub(&store).1.damaged, 0);

    let mut progress = Progress::default();
    let written = (0..objects).filter(|_| progress.logs(Path::new("ost"))).count();
    assert_eq!(written as u64, SCRUB_LOG_LINES_MAX);
}

/// Blocks of large objects take many reads; this one takes three.
#[test]
fn an_object_that_is_changed_and_changed_back_during_a_block_is_right() {
    const MIB: usize = 1 << 20;
    let disk = MemoryDisk::default();
    let file = disk.create(&path_of(object(1))).unwrap();
    file.write(&vec![7; 3 * MIB], 0).unwrap();
    let mut sums = vec![1, 22];
    sums.extend_from_slice(&(3 * MIB as u64).to_le_bytes());
    sums.extend_from_slice(&crc32c::crc32c(&vec![7; 3 * MIB]).to_le_bytes());
    sums.extend_from_slice(&crc32c::crc32c(&sums).to_le_bytes());
    file.set_attribute(ATTRIBUTE, &sums).unwrap();

    let (scrubber, path) = (Scrubber::default(), Path::new("ost"));
    let passing = Passing::new(crate::store::passing::ObjectCache::All);
    let next = || scrubber.step(&disk, &passing, path, |_, _, _| (), |_| false);
    let step = || assert_eq!(next(), ScrubStep::Read(MIB as u64));
    let to_end = || {
        while next() != ScrubStep::Ended {}
        scrubber.report()
    };
    scrubber.begin();
    step();
    file.remove_attribute(ATTRIBUTE).unwrap();
    file.write(&[8], MIB as u64).unwrap();
    step();
    file.write(&[7], MIB as u64).unwrap();
    file.set_attribute(ATTRIBUTE, &sums).unwrap();
    let report = to_end();
    assert_eq!((report.objects, report.damaged), (1, 0), "{report:?}");

    file.write(&[8], MIB as u64).unwrap();
    scrubber.begin();
    assert_eq!(to_end().damaged, 1, "bytes that stay wrong are damage");
}

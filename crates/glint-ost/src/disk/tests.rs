//! Tests of the disk in memory, and of the store on it.

use super::memory::{DiskOperation, Fault, MemoryDisk};
use super::{Disk, DiskFile, LocalDisk};
use crate::store::object::ReadMode;
use crate::{Apart, ObjectStore, Ost, SpaceGrants, Way};
use futures_lite::future::{block_on, poll_once};
use glint_proto::{Bulk, ClientId, Errno as Error, Ino, ObjectId, OstReply, OstRequest, clock};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const OBJECT: ObjectId = ObjectId { ino: Ino(1), stripe: 0 };
const SEEDS: u64 = 200;

/// Decisions of a seed (xorshift).
fn dice(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |limit| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) % limit
    }
}

fn store(disk: &MemoryDisk) -> ObjectStore<MemoryDisk> {
    ObjectStore::on(disk.clone(), Path::new("ost"), 64, Arc::<SpaceGrants>::default())
}

fn fault(operation: DiskOperation, path: &str, errno: Errno) -> Fault {
    Fault::new(operation, path, errno.raw_os_error(), 1)
}

fn read(store: &ObjectStore<MemoryDisk>) -> std::io::Result<Vec<u8>> {
    read_of(store, OBJECT)
}

fn read_of(store: &ObjectStore<MemoryDisk>, object: ObjectId) -> std::io::Result<Vec<u8>> {
    let Some(file) = store.file(object, None)? else { return Ok(Vec::new()) };
    let mut data = vec![0; 4096];
    let n = file.checked_read(0, &mut data, ReadMode::Waiting)?;
    data.truncate(n);
    Ok(data)
}

#[test]
fn a_loss_of_power_leaves_what_was_synced_and_anything_of_the_rest() {
    let (mut sizes, mut torn) = (std::collections::BTreeSet::new(), false);
    for seed in 0..SEEDS {
        let disk = MemoryDisk::default();
        let file = disk.create("00/a").unwrap();
        file.write(&[1; 300], 0).unwrap();
        file.sync().unwrap();
        disk.sync_directory(&disk.directory("00").unwrap()).unwrap();
        disk.create("00/b").unwrap().write(b"b", 0).unwrap();
        file.write(&[2; 300], 0).unwrap();
        file.write(&[3; 300], 300).unwrap();
        disk.lose_power(&mut dice(seed));
        let size = disk.size("00/a").unwrap();
        assert!(size == 300 || size == 600);
        sizes.insert((size, disk.paths().len()));
        let mut data = vec![9; 300];
        disk.open("00/a").unwrap().read(&mut data, 0).unwrap();
        assert!(data.iter().all(|byte| [1, 2].contains(byte)));
        torn |= data[0] != data[299];
    }
    assert!(sizes.len() == 4 && torn, "{sizes:?}");
}

#[test]
fn a_name_that_was_not_synced_takes_its_file_with_it() {
    let mut found = [0; 2];
    for seed in 0..SEEDS {
        let disk = MemoryDisk::default();
        let file = disk.create("00/a").unwrap();
        file.write(b"a", 0).unwrap();
        file.sync().unwrap();
        disk.lose_power(&mut dice(seed));
        found[disk.paths().len()] += 1;
    }
    assert!(found[0] > 0 && found[1] > 0);
}

#[test]
fn blocks_that_a_sync_could_not_write_never_come_to_the_disk() {
    let disk = MemoryDisk::default();
    let file = disk.create("00/a").unwrap();
    disk.sync_all().unwrap();
    disk.fail(fault(DiskOperation::Sync, "a", Errno::IO));
    file.write(b"lost", 0).unwrap();
    assert_eq!(file.sync(), Err(Errno::IO));
    file.sync().unwrap();
    let mut data = [9; 4];
    file.read(&mut data, 0).unwrap();
    assert_eq!(&data, b"lost", "as long as there is power");
    disk.lose_power(&mut dice(1));
    disk.open("00/a").unwrap().read(&mut data, 0).unwrap();
    assert_eq!(data, [0; 4]);
}

#[test]
fn a_disk_that_is_full_says_so_and_keeps_what_it_has() {
    let disk = MemoryDisk::default();
    disk.limit(Some(1024));
    let file = disk.create("00/a").unwrap();
    file.write(&[1; 1024], 0).unwrap();
    assert_eq!(file.write(&[2; 1], 1024), Err(Errno::NOSPC));
    file.write(&[2; 1024], 0).unwrap();
    assert!(file.is_allocated(0, 1024) && !file.is_allocated(1000, 100));
    disk.unlink("00/a").unwrap();
    disk.create("00/b").unwrap().write(&[1; 1024], 0).unwrap();
    assert_eq!(disk.space().unwrap().free, 0);
}

#[test]
fn holes_are_found_and_made() {
    let disk = MemoryDisk::default();
    let file = disk.create("00/a").unwrap();
    file.write(&[1; 512], 1024).unwrap();
    assert_eq!(file.seek(0, true), Ok(0));
    assert_eq!(file.seek(0, false), Ok(1024));
    assert_eq!(file.seek(1100, true), Ok(1536));
    assert_eq!(file.seek(1536, false), Err(Errno::NXIO));
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    file.allocate(punch, 1100, 500).unwrap();
    let mut data = [9; 600];
    assert_eq!(file.read(&mut data, 1000), Ok(536));
    let ones = data.iter().filter(|byte| **byte == 1).count();
    assert_eq!((ones, data[100], data[535]), (76, 0, 0));
}

/// An object that has its checksums, on stable storage.
fn sealed(disk: &MemoryDisk) -> ObjectStore<MemoryDisk> {
    let store = store(disk);
    store.write(OBJECT, 0, &[1; 300], None, false).unwrap();
    store.settle(Duration::ZERO, None).unwrap();
    store.sync_all().unwrap();
    assert!(store.check(OBJECT).unwrap().is_some());
    store
}

#[test]
fn old_checksums_do_not_lie_over_new_data_whatever_is_changed_before_power_is_lost() {
    for seed in 0..SEEDS {
        let disk = MemoryDisk::default();
        let store = sealed(&disk);
        store.write(OBJECT, 300, &[2; 100], None, false).unwrap();
        store.write(OBJECT, 0, &[3; 100], None, false).unwrap();
        disk.lose_power(&mut dice(seed));
        let data = read(&self::store(&disk)).unwrap_or_else(|error| panic!("{seed}: {error}"));
        assert!(data.len() >= 300 && data[100..300].iter().all(|byte| *byte == 1));
    }
}

#[test]
fn a_truncation_to_nothing_needs_no_flush_before_it() {
    for seed in 0..SEEDS {
        let disk = MemoryDisk::default();
        let store = sealed(&disk);
        disk.fail(fault(DiskOperation::Sync, "", Errno::IO));
        store.write(OBJECT, 300, &[2; 100], None, false).unwrap();
        store.truncate(OBJECT, 0).unwrap();
        store.write(OBJECT, 0, &[3; 100], None, false).unwrap();
        disk.lose_power(&mut dice(seed));
        read(&self::store(&disk)).unwrap_or_else(|error| panic!("{seed}: {error}"));
    }
}

#[test]
fn a_flush_that_fails_while_checksums_are_taken_off_is_one_for_good() {
    let disk = MemoryDisk::default();
    let store = sealed(&disk);
    store.write(OBJECT, 300, &[2; 100], None, false).unwrap();
    disk.fail(fault(DiskOperation::Sync, &OBJECT.to_string(), Errno::IO));
    store.write(OBJECT, 0, &[3; 100], None, false).unwrap_err();
    assert!(store.failure().is_some());
    store.sync_all().unwrap_err();
}

#[test]
fn what_was_synced_is_found_again_though_its_file_was_closed() {
    for seed in 0..SEEDS {
        let disk = MemoryDisk::default();
        let store = store(&disk);
        let other = ObjectId { ino: Ino(2), stripe: 0 };
        store.write(OBJECT, 0, b"x", None, false).unwrap();
        store.write(other, 0, b"y", None, false).unwrap();
        store.sync(OBJECT).unwrap();
        disk.lose_power(&mut dice(seed));
        assert_eq!(read(&self::store(&disk)).unwrap(), b"x");
    }
}

/// A file system that found damage in itself is read-only, and is then read all the more.
#[test]
fn files_that_are_only_read_are_opened_where_nothing_can_be_written() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    std::fs::write(dir.path().join("a"), b"x").unwrap();
    let disk = LocalDisk::open(dir.path()).unwrap();
    for file in [disk.open_to_read("a").unwrap(), disk.open_uncached("a").unwrap()] {
        let flags = rustix::fs::fcntl_getfl(&file).unwrap();
        assert_eq!(flags & OFlags::RWMODE, OFlags::RDONLY);
    }
}

/// Clients must hear of it as of a server that ends, not as of an error of their write.
#[test]
fn a_file_system_that_goes_read_only_is_a_failure_of_the_disk() {
    for operation in [DiskOperation::Open, DiskOperation::Write] {
        let disk = MemoryDisk::default();
        let store = store(&disk);
        store.write(OBJECT, 0, b"before", None, false).unwrap();
        disk.fail(fault(operation, "", Errno::ROFS));
        // One that is not open yet, and one that is.
        let ino = if operation == DiskOperation::Open { Ino(77) } else { OBJECT.ino };
        let refused = store.write(ObjectId { ino, stripe: 0 }, 0, b"x", None, false).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EIO), "{operation:?}");
        assert!(store.failure().is_some_and(|why| why.contains("Read-only")), "{operation:?}");
    }
}

#[test]
fn no_descriptors_for_a_moment_is_no_failure_of_the_disk() {
    let disk = MemoryDisk::default();
    let store = store(&disk);
    store.write(OBJECT, 0, b"x", None, false).unwrap();
    disk.fail(fault(DiskOperation::Open, "/", Errno::MFILE));
    store.sync(OBJECT).unwrap_err();
    assert!(store.failure().is_none());
    store.sync(OBJECT).unwrap();
}

#[test]
fn space_is_still_kept_for_a_write_that_failed() {
    let disk = MemoryDisk::default();
    disk.limit(Some(10_000));
    let ost = Ost::new(store(&disk));
    let ask = |client, request, bulk: &[u8]| {
        let bulk = if bulk.is_empty() { Bulk::None } else { Bulk::Out(bulk) };
        futures_lite::future::block_on(ost.handle(ClientId(client), request, bulk, Way::InPlace))
    };
    let write = |ino, kept| {
        let object = ObjectId { ino: Ino(ino), stripe: 0 };
        OstRequest::Write { object, offset: 0, mtime: None, kept }
    };
    let kept = ask(1, OstRequest::GrantSpace { bytes: 300 }, &[]).unwrap();
    assert!(matches!(kept, OstReply::SpaceGranted { bytes: 300, .. }), "{kept:?}");
    let others = (2..100).take_while(|ino| ask(2, write(*ino, false), &[2; 100]).is_ok()).count();
    assert!(others > 1 && others < 98);
    for _ in 0..3 {
        disk.fail(fault(DiskOperation::Write, "", Errno::IO));
        assert_eq!(ask(1, write(1, true), &[1; 300]).unwrap_err(), Error::EIO);
    }
    ask(1, write(1, true), &[1; 300]).unwrap();
    assert_eq!(ask(1, write(1, true), &[1; 300]).map(drop), Ok(()), "it has its blocks");
}

#[test]
fn a_lone_request_wakes_nobody_and_one_apart_is_executed_whoever_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let ost = Ost::new(ObjectStore::open(dir.path(), 64, Arc::default()).unwrap());
    let write = OstRequest::Write { object: OBJECT, offset: 0, mtime: None, kept: false };
    let read = OstRequest::Read { object: OBJECT, offset: 0, len: 5 };
    let mut room = [0; 5];
    let (client, in_memory) = (ClientId(1), Bulk::In(&mut room));
    block_on(ost.handle(client, write, Bulk::Out(b"place"), Way::InPlace)).unwrap();
    block_on(ost.handle(client, OstRequest::Stat { object: OBJECT }, Bulk::None, Way::InPlace))
        .unwrap();
    assert_eq!(ost.threads(), 0);
    // What is in memory is read without a thread also where nobody may wait.
    assert_eq!(
        block_on(ost.handle(client, read, in_memory, Way::Apart(Apart::default()))),
        Ok(OstReply::Data(5))
    );
    assert_eq!((&room, ost.threads()), (b"place", 0));
    for round in 0..100 {
        let (kept, done) = std::sync::mpsc::channel::<()>();
        let way = Way::Apart(Apart { kept: Some(Box::new(kept)), ..Apart::default() });
        let apart = ost.handle(client, write, Bulk::Out(b"apart"), way);
        let _ = block_on(poll_once(std::pin::pin!(apart)));
        if round % 2 == 0 {
            assert!(done.recv().is_err(), "it is kept until the change is made");
            let mut room = [0; 5];
            block_on(ost.handle(client, read, Bulk::In(&mut room), Way::InPlace)).unwrap();
            assert_eq!(&room, b"apart");
        }
        // After the change, whoever waits for that.
        block_on(ost.remove(OBJECT, None)).unwrap();
        assert_eq!(ost.store().stat(OBJECT).unwrap(), None);
    }
    assert!(ost.threads() > 0);
}

#[test]
fn versions_of_kernels_are_compared_by_their_numbers() {
    use super::local::version;
    assert_eq!(version("6.18.5-generic"), Some((6, 18)));
    assert_eq!(version("7.0-rc1"), Some((7, 0)));
    assert_eq!(version("unknown"), None);
    assert!(version("6.9.1") < Some((6, 16)) && version("unknown") < Some((6, 16)));
}

#[test]
fn copies_that_were_changed_since_they_were_sealed_are_found_after_any_loss_of_power() {
    let copy = |ino| ObjectId { ino: Ino(ino), stripe: ObjectId::OF_CHAINS };
    let all = [copy(1), copy(2), copy(3), ObjectId { stripe: 0, ..copy(4) }];
    for seed in 0..SEEDS {
        let disk = MemoryDisk::default();
        let store = store(&disk);
        for object in all {
            store.write(object, 0, &[1; 300], None, false).unwrap();
        }
        assert_eq!(store.unsealed_copies().unwrap(), all[..3], "{seed}");
        store.settle(Duration::ZERO, None).unwrap();
        store.sync_all().unwrap();
        assert_eq!(store.unsealed_copies().unwrap(), []);
        store.write(all[1], 0, &[2; 10], None, false).unwrap();
        store.write(all[2], 300, &[3; 10], None, false).unwrap();
        disk.lose_power(&mut dice(seed));
        let found = self::store(&disk).unsealed_copies().unwrap();
        let store = self::store(&disk);
        for object in &all[..3] {
            let is_as_sealed = read_of(&store, *object).unwrap() == [1; 300];
            assert!(is_as_sealed || found.contains(object), "{seed}: {object}");
        }
        assert!(!found.contains(&all[0]) && !found.contains(&all[3]), "{seed}");
    }
}

/// A store that keeps one object open, and has more than one.
fn store_of_one(disk: &MemoryDisk) -> ObjectStore<MemoryDisk> {
    ObjectStore::on(disk.clone(), Path::new("ost"), 1, Arc::default())
}

#[test]
fn what_was_changed_after_it_was_noted_is_not_sealed() {
    let other = ObjectId { ino: Ino(99), stripe: 0 };
    for is_closed in [false, true] {
        let disk = MemoryDisk::default();
        let store = store_of_one(&disk);
        let write = |object, byte| store.write(object, 0, &[byte; 300], None, false).unwrap();
        let is_sealed = || store.check(OBJECT).unwrap().is_some();
        let settle = |noted| store.settle(Duration::ZERO, Some(noted)).unwrap();
        write(OBJECT, 1);
        let noted = clock::now();
        std::thread::sleep(Duration::from_millis(1));
        if is_closed {
            write(other, 1);
        }
        write(OBJECT, 2);
        settle(noted);
        assert!(!is_sealed(), "{is_closed}");
        // It is once it is noted, also if it was closed in between.
        for _ in 0..3 {
            if is_closed {
                write(other, 2);
            }
            settle(clock::now() + Duration::from_secs(1));
        }
        assert!(is_sealed(), "{is_closed}");
        write(OBJECT, 3);
        settle(noted);
        assert!(!is_sealed());
    }
}

#[test]
fn an_object_that_cannot_be_opened_holds_up_no_other_and_is_sealed_later() {
    let other = ObjectId { ino: Ino(99), stripe: 0 };
    let disk = MemoryDisk::default();
    let store = store_of_one(&disk);
    for object in [OBJECT, other] {
        store.write(object, 0, &[1; 300], None, false).unwrap();
    }
    disk.fail(fault(DiskOperation::Open, &OBJECT.to_string(), Errno::IO));
    let settle = || store.settle(Duration::ZERO, None);
    assert_eq!(settle().unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(store.check(other).unwrap().is_some());
    disk.heal();
    settle().unwrap();
    assert!(store.check(OBJECT).unwrap().is_some());
}

#[test]
fn a_file_that_was_taken_away_does_not_come_back_with_a_loss_of_power() {
    for decision in [0, 1] {
        let disk = MemoryDisk::default();
        disk.create("00/a").unwrap();
        disk.sync_all().unwrap();
        let open = disk.create("00/b").unwrap();
        ["00/a", "00/b"].into_iter().for_each(|path| disk.take_away(path));
        assert_eq!(open.write(b"b", 0), Ok(1));
        assert!(disk.paths().is_empty());
        disk.lose_power(&mut |_| decision);
        assert!(disk.paths().is_empty());
    }
}

//! Tests of reads of objects.

use super::*;
use crate::ObjectStore;
use crate::disk::{DiskFile, LocalDisk};
use crate::store::object_store::path_of;
use futures_lite::future::block_on;
use glint_proto::{Bulk, ClientId, Ino, OstReply, OstRequest};
use glint_telemetry::counted_here;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

const OBJECT: ObjectId = ObjectId { ino: Ino(1), stripe: 0 };

fn open(path: &Path) -> Ost {
    Ost::new(ObjectStore::open(path, 64, Arc::default()).unwrap())
}

/// Drops the object from memory.
fn cool(ost: &Ost) {
    ost.store().sync(OBJECT).unwrap();
    ost.store().file(OBJECT, None).unwrap().unwrap().file().drop_cached(0, u64::MAX);
}

/// Reads of an object on a real disk none of which is in memory.
#[test]
fn cold_reads_are_made_by_the_ring_of_the_caller_and_without_one_by_threads() {
    // Temporary files lie in memory on some systems.
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let data: Vec<u8> = (0..300_000_u32).map(|at| (at / 7) as u8).collect();
    let has_ring = || ReadPlace::take(&Arc::default()).is_some();
    let read = async |ost: &Ost, offset: u64, len: u32, is_lent: bool| {
        cool(ost);
        let read = OstRequest::Read { object: OBJECT, offset, len };
        let mut room = vec![0; len as usize];
        let bulk = if is_lent { Bulk::Lent(&mut room) } else { Bulk::In(&mut room) };
        let done = ost.handle(ClientId(1), read, bulk, Way::InPlace).await;
        done.map(|reply| match reply {
            OstReply::Data(len) => room[..len as usize].to_vec(),
            reply => panic!("{reply:?}"),
        })
    };
    let read_all = async |ost: &Ost| {
        for (offset, len) in [(0, 5), (290_000, 20_000), (100_000, 10), (0, 300_000)] {
            for is_lent in [false, true] {
                let copied = counted_here(Counter::BytesCopied);
                let expected = &data[offset..data.len().min(offset + len)];
                let found = read(ost, offset as u64, len as u32, is_lent).await.unwrap();
                assert!(found == expected, "{offset} {len} {is_lent}");
                if has_ring() && is_lent && len == data.len() {
                    assert_eq!(counted_here(Counter::BytesCopied), copied);
                }
            }
        }
    };
    let runtime = compio_runtime::Runtime::new().unwrap();
    let ost = open(dir.path());
    ost.store().write(OBJECT, 0, &data, None, false).unwrap();
    for seals in [false, true] {
        if seals {
            ost.store().settle(Duration::ZERO, None).unwrap();
        }
        let before = counted_here(Counter::HandOvers);
        let is_by_ring = runtime.block_on(async {
            read_all(&ost).await;
            has_ring()
        });
        assert_eq!(counted_here(Counter::HandOvers) == before, is_by_ring, "{seals}");
    }
    let before = counted_here(Counter::HandOvers);
    block_on(read_all(&ost));
    assert!(counted_here(Counter::HandOvers) > before, "they are cold");
    // Damage that the ring finds is found once more by a thread that can note it.
    let path = dir.path().join("objects").join(path_of(OBJECT));
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&[!data[100_000]], 100_000).unwrap();
    let ost = open(dir.path());
    runtime.block_on(async {
        assert!(read(&ost, 70_000, 10, true).await.is_err());
        assert_eq!(read(&ost, 10, 10, true).await.unwrap(), data[10..20]);
    });
    assert!(ost.store().file(OBJECT, None).unwrap().unwrap().has_damage().unwrap());
}

/// A memory file system knows no read that may not wait, and none of it waits.
#[test]
fn on_a_memory_file_system_no_read_wakes_a_thread() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    let ost = open(dir.path());
    if !ost.store().is_memory() {
        return;
    }
    ost.store().write(OBJECT, 0, b"memory", None, false).unwrap();
    let read = OstRequest::Read { object: OBJECT, offset: 0, len: 6 };
    for way in [Way::InPlace, Way::Apart(Apart::default())] {
        let mut room = [0; 6];
        block_on(ost.handle(ClientId(1), read, Bulk::In(&mut room), way)).unwrap();
        assert_eq!((&room, ost.threads()), (b"memory", 0));
    }
}

/// A file system that knows no read that may not wait would have threads of the kernel wait, of which a
/// ring has few for all disks.
#[test]
fn where_no_read_can_be_kept_from_waiting_threads_of_the_disk_read() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    drop(open(dir.path()));
    let disk = LocalDisk::open(&dir.path().join("objects")).unwrap().on_a_device();
    let ost = Ost::new(ObjectStore::on(disk, dir.path(), 64, Arc::default()));
    ost.store().write(OBJECT, 0, b"memory", None, false).unwrap();
    let file = ost.store().file(OBJECT, None).unwrap().unwrap();
    if file.file().read_cached(&mut [0], 0) != Err(Errno::OPNOTSUPP) {
        return;
    }
    let before = counted_here(Counter::HandOvers);
    let mut output = [0; 6];
    let read = OstRequest::Read { object: OBJECT, offset: 0, len: 6 };
    compio_runtime::Runtime::new().unwrap().block_on(async {
        ost.handle(ClientId(1), read, Bulk::In(&mut output), Way::InPlace).await.unwrap();
    });
    assert_eq!((&output, counted_here(Counter::HandOvers)), (b"memory", before + 1));
}

/// Buffers that are used again hold what another client has read or written.
#[test]
fn a_read_brings_nothing_of_what_its_buffer_held_before() {
    const LEN: usize = 1 << 20;
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let ost = open(dir.path());
    ost.store().write(OBJECT, 0, &[1; 100_000], None, false).unwrap();
    ost.store().settle(Duration::ZERO, None).unwrap();
    let missing = ObjectId { ino: Ino(2), stripe: 0 };
    let read = async |object: ObjectId, offset: u64, is_lent: bool| {
        cool(&ost);
        drop([LEN, LEN / 8].map(|len| ost.buffers.copy(&vec![0xee; len])));
        let mut output = vec![0; LEN];
        let read = OstRequest::Read { object, offset, len: LEN as u32 };
        let bulk = if is_lent { Bulk::Lent(&mut output) } else { Bulk::In(&mut output) };
        let done = ost.handle(ClientId(1), read, bulk, Way::InPlace).await;
        assert!(!output.contains(&0xee), "{object} {offset} {is_lent}");
        done.map(|reply| match reply {
            OstReply::Data(len) => output[..len as usize].to_vec(),
            reply => panic!("{reply:?}"),
        })
    };
    let read_all = async || {
        for is_lent in [false, true] {
            for (offset, len) in [(0, 100_000), (99_000, 1000), (100_000, 0), (200_000, 0)] {
                assert_eq!(
                    read(OBJECT, offset, is_lent).await.unwrap(),
                    vec![1u8; len],
                    "{offset}"
                );
            }
            assert!(read(missing, 0, is_lent).await.unwrap().is_empty());
        }
    };
    let runtime = compio_runtime::Runtime::new().unwrap();
    runtime.block_on(read_all());
    block_on(read_all());
    // Of damage nothing is brought.
    let path = dir.path().join("objects").join(path_of(OBJECT));
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&[2], 70_000).unwrap();
    ost.store().file(OBJECT, None).unwrap().unwrap().grow_stale();
    for is_lent in [false, true] {
        assert!(runtime.block_on(read(OBJECT, 0, is_lent)).is_err());
        assert!(block_on(read(OBJECT, 0, is_lent)).is_err());
    }
}

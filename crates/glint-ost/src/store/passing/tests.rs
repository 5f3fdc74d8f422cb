//! Tests of what passes through memory.

use super::{DiskFile, DiskResult, FreeMemory, ObjectCache, Passing, STREAM_BYTES_MIN};
use crate::disk::memory::MemoryDisk;
use crate::disk::{Disk, Stat};
use crate::{ObjectStore, PassedBytes};
use glint_proto::{Ino, ObjectId, Timestamp};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: usize = 1 << 20;
const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };

/// A call that was made with a file, with offset and length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    Write(u64, usize),
    WritePassing(u64, usize),
    Read(u64, usize),
    ReadPassing(u64, usize),
    Drop(u64, u64),
}

/// A file that tells what is done with it, and refuses what may be refused with an errno.
#[derive(Default)]
struct Recorder {
    calls: Mutex<Vec<Call>>,
    refusal: Option<Errno>,
    /// Errno of everything else.
    failure: Option<Errno>,
}

impl Recorder {
    fn note(&self, call: Call, failure: Option<Errno>, len: usize) -> DiskResult<usize> {
        self.calls.lock().push(call);
        failure.map_or(Ok(len), Err)
    }

    fn take(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock())
    }
}

impl DiskFile for Recorder {
    fn read(&self, buffer: &mut [u8], offset: u64) -> DiskResult<usize> {
        self.note(Call::Read(offset, buffer.len()), self.failure, buffer.len())
    }

    fn read_passing(&self, buffer: &mut [u8], offset: u64) -> DiskResult<usize> {
        self.note(Call::ReadPassing(offset, buffer.len()), self.refusal, buffer.len())
    }

    fn write(&self, data: &[u8], offset: u64) -> DiskResult<usize> {
        self.note(Call::Write(offset, data.len()), self.failure, data.len())
    }

    fn write_passing(&self, data: &[u8], offset: u64) -> DiskResult<usize> {
        self.note(Call::WritePassing(offset, data.len()), self.refusal, data.len())
    }

    fn drop_cached(&self, from: u64, to: u64) {
        self.calls.lock().push(Call::Drop(from, to));
    }

    fn read_cached(&self, _: &mut [u8], _: u64) -> DiskResult<usize> {
        Err(Errno::AGAIN)
    }

    fn set_size(&self, _: u64) -> DiskResult<()> {
        Err(Errno::NOSYS)
    }

    fn allocate(&self, _: i32, _: u64, _: u64) -> DiskResult<()> {
        Err(Errno::NOSYS)
    }

    fn is_allocated(&self, _: u64, _: u64) -> bool {
        false
    }

    fn seek(&self, _: u64, _: bool) -> DiskResult<u64> {
        Err(Errno::NOSYS)
    }

    fn stat(&self) -> DiskResult<Stat> {
        Err(Errno::NOSYS)
    }

    fn set_mtime(&self, _: Timestamp) -> DiskResult<()> {
        Err(Errno::NOSYS)
    }

    fn attribute(&self, _: &str, _: &mut [u8]) -> DiskResult<usize> {
        Err(Errno::NODATA)
    }

    fn set_attribute(&self, _: &str, _: &[u8]) -> DiskResult<()> {
        Err(Errno::NOSYS)
    }

    fn remove_attribute(&self, _: &str) -> DiskResult<()> {
        Err(Errno::NODATA)
    }

    fn sync(&self) -> DiskResult<()> {
        Ok(())
    }
}

/// Writes all of some zeros, as a store does.
fn write(passing: &Passing, file: &Recorder, mut offset: u64, len: usize) {
    let zeros = vec![0; len];
    let mut data = &zeros[..];
    while !data.is_empty() {
        let n = passing.write(file, OBJECT, data, offset).unwrap();
        (offset, data) = (offset + n as u64, &data[n..]);
    }
}

#[test]
fn whole_pages_of_streams_pass_and_the_rest_is_dropped_later() {
    let (passing, file) = (Passing::new(ObjectCache::UpTo(0)), Recorder::default());
    write(&passing, &file, 0, MIB);
    assert_eq!(file.take(), [Call::WritePassing(0, MIB)]);
    assert!(passing.take_later().is_empty());
    write(&passing, &file, 100, MIB);
    let whole = MIB - 4096;
    let parts = [Call::Write(100, 3996), Call::WritePassing(4096, whole)];
    assert_eq!(file.take(), [&parts[..], &[Call::Write(MIB as u64, 100)]].concat());
    write(&passing, &file, 4096, STREAM_BYTES_MIN - 1);
    assert_eq!(file.take(), [Call::Write(4096, STREAM_BYTES_MIN - 1)]);
    let later = passing.take_later();
    assert_eq!(later, BTreeMap::from([(OBJECT, (100, MIB as u64 + 100))]));
    let written = (2 * MIB + STREAM_BYTES_MIN - 1) as u64;
    assert_eq!(passing.passed(), PassedBytes { read: 0, written });
}

#[test]
fn what_is_refused_once_is_not_tried_again() {
    for refusal in [Errno::OPNOTSUPP, Errno::INVAL] {
        let passing = Passing::new(ObjectCache::UpTo(0));
        let file = Recorder { refusal: Some(refusal), ..Recorder::default() };
        write(&passing, &file, 0, MIB);
        assert_eq!(file.take(), [Call::WritePassing(0, MIB), Call::Write(0, MIB)]);
        write(&passing, &file, MIB as u64, MIB);
        assert_eq!(file.take(), [Call::Write(MIB as u64, MIB)]);
        assert_eq!(passing.read_adding_none(&file, &mut [0; 5], 9), Ok(5));
        assert_eq!(file.take(), [Call::Read(9, 5)], "nor by reads");
        let later = BTreeMap::from([(OBJECT, (0, 2 * MIB as u64))]);
        assert_eq!(passing.take_later(), later, "it is dropped all the same");
    }
}

#[test]
fn arguments_that_are_wrong_are_no_refusal() {
    let passing = Passing::new(ObjectCache::UpTo(0));
    let invalid = Some(Errno::INVAL);
    let file = Recorder { refusal: invalid, failure: invalid, ..Recorder::default() };
    assert_eq!(passing.write(&file, OBJECT, &vec![0; MIB], 0), Err(Errno::INVAL));
    assert_eq!(passing.read_adding_none(&file, &mut [0; 5], 0), Err(Errno::INVAL));
    file.take();
    let file = Recorder::default();
    write(&passing, &file, 0, MIB);
    assert_eq!(file.take(), [Call::WritePassing(0, MIB)]);
    let full = Recorder { refusal: Some(Errno::NOSPC), ..Recorder::default() };
    assert_eq!(passing.write(&full, OBJECT, &vec![0; MIB], 0), Err(Errno::NOSPC));
    assert_eq!(full.take(), [Call::WritePassing(0, MIB)], "it is not made twice");
}

#[test]
fn what_is_read_is_dropped_with_the_folio_in_which_it_begins() {
    let (passing, file) = (Passing::new(ObjectCache::UpTo(0)), Recorder::default());
    passing.drop_read(&file, (5 * MIB as u64 + 7, 6 * MIB as u64), 3);
    passing.drop_read(&file, (9, 9), 0);
    assert_eq!(file.take(), [Call::Drop(4 * MIB as u64, 6 * MIB as u64)]);
    assert_eq!(passing.passed(), PassedBytes { read: 3, written: 0 });
}

#[test]
fn large_objects_stay_while_memory_is_free() {
    static IS_FREE: AtomicBool = AtomicBool::new(true);
    let memory = |every| FreeMemory::new(every, || IS_FREE.load(Ordering::Relaxed));
    let with =
        |every| Passing { memory: Some(memory(every)), ..Passing::new(ObjectCache::UpTo(9)) };
    let (always, seldom) = (with(Duration::ZERO), with(Duration::MAX));
    for is_free in [true, false, true] {
        IS_FREE.store(is_free, Ordering::Relaxed);
        assert_eq!(always.passes(10), !is_free);
        assert!(!always.passes(9), "it is small");
        assert!(!seldom.passes(10), "nobody looks again");
    }
    assert_eq!(Passing::new(ObjectCache::UpToIfShort(9)).limit(), Some(9));
}

fn store(cache: ObjectCache) -> ObjectStore<MemoryDisk> {
    let store = ObjectStore::on(MemoryDisk::default(), Path::new("ost"), 4, Arc::default());
    store.keeping(cache)
}

fn write_to<D: Disk>(store: &ObjectStore<D>, offset: usize, len: usize) {
    store.write(OBJECT, offset as u64, &vec![1; len], None, false).unwrap();
}

fn read_from<D: Disk>(store: &ObjectStore<D>, len: usize) -> usize {
    let file = store.file(OBJECT, None).unwrap().unwrap();
    let reading = crate::store::object::ReadMode::Waiting;
    file.checked_read(0, &mut vec![0; len], reading).unwrap()
}

#[test]
fn streams_that_nobody_reads_soon_pass_whatever_the_limit() {
    let store = store(ObjectCache::All);
    for (at, len, passed) in [(0, MIB, MIB), (MIB, MIB - 1, MIB), (2 * MIB, 2 * MIB, 3 * MIB)] {
        store.write_adding_none(OBJECT, at as u64, &vec![1; len], None, false).unwrap();
        assert_eq!(store.passed().1.written, passed as u64, "of {len} bytes more");
    }
    write_to(&store, 0, MIB);
    assert_eq!(store.passed().1.written, 3 * MIB as u64, "others stay");
    assert_eq!(read_from(&store, MIB), MIB);
}

#[test]
fn the_limit_is_about_the_size_at_the_time_of_the_call() {
    let store = store(ObjectCache::UpTo(MIB as u64));
    let passed = || {
        let (_, PassedBytes { read, written }) = store.passed();
        (read as usize, written as usize)
    };
    write_to(&store, 0, MIB);
    read_from(&store, MIB);
    assert_eq!(passed(), (0, 0));
    assert!(store.passing().take_later().is_empty());
    write_to(&store, MIB, 1);
    let later = BTreeMap::from([(OBJECT, (0, MIB as u64 + 1))]);
    assert_eq!(store.passing().take_later(), later, "also what it had before");
    write_to(&store, 0, 10);
    read_from(&store, 100);
    assert_eq!(passed(), (100, 11));
    store.truncate(OBJECT, MIB as u64).unwrap();
    write_to(&store, 0, 10);
    read_from(&store, 100);
    assert_eq!(passed(), (100, 11), "it is small again");
    store.truncate(OBJECT, 2 * MIB as u64).unwrap();
    read_from(&store, 100);
    assert_eq!(passed(), (200, 11));
    store.settle(Duration::ZERO, None).unwrap();
    assert!(store.passing().take_later().is_empty());
}

#[test]
fn a_limit_of_zero_keeps_nothing_and_none_keeps_all() {
    for (cache, limit, bytes) in [(ObjectCache::UpTo(0), Some(0), 10), (ObjectCache::All, None, 0)]
    {
        let store = store(cache);
        write_to(&store, 0, 10);
        read_from(&store, 10);
        assert_eq!(store.passed(), (limit, PassedBytes { read: bytes, written: bytes }));
    }
}

#[test]
fn what_passes_is_read_as_it_was_written() {
    // On the disk of the build, and where RWF_DONTCACHE is refused.
    for dir in [env!("CARGO_MANIFEST_DIR"), "/dev/shm"] {
        let Ok(dir) = tempfile::tempdir_in(dir) else { continue };
        let store = ObjectStore::open(dir.path(), 64, Arc::default()).unwrap();
        let store = store.keeping(ObjectCache::UpTo(100_000));
        let data: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
        let mut at = 0;
        for len in [50_000, 1, 99_999, 1_000_000, 70_000, 4096, 1_775_904].into_iter() {
            store.write(OBJECT, at as u64, &data[at..at + len], None, false).unwrap();
            at += len;
        }
        assert_eq!(at, data.len());
        for _ in 0..2 {
            let file = store.file(OBJECT, None).unwrap().unwrap();
            let mut read = vec![0; data.len()];
            let reading = crate::store::object::ReadMode::Waiting;
            assert_eq!(file.checked_read(0, &mut read, reading).unwrap(), data.len());
            assert!(read == data);
            // The second time it is sealed, and only on the disk.
            store.settle(Duration::ZERO, None).unwrap();
        }
        let passed = store.passed().1;
        assert_eq!((passed.written, passed.read >= 6_000_000), (2_949_999, true), "{passed:?}");
    }
}

#[test]
fn a_stream_is_sealed_without_reading_it() {
    let store = store(ObjectCache::UpTo(2 * MIB as u64));
    for at in 0..8 {
        write_to(&store, at * MIB, MIB);
    }
    write_to(&store, 8 * MIB, 5);
    store.settle(Duration::ZERO, None).unwrap();
    let PassedBytes { read, .. } = store.passed().1;
    assert_eq!(read, 5, "only the end");
    assert!(store.check(OBJECT).unwrap().is_some(), "it is sealed, and right");
    write_to(&store, 3 * MIB, MIB);
    store.settle(Duration::ZERO, None).unwrap();
    assert!(store.check(OBJECT).unwrap().is_some(), "the rest is read again");
    store.allocate(OBJECT, libc::FALLOC_FL_PUNCH_HOLE | 1, 0, 100).unwrap();
    store.settle(Duration::ZERO, None).unwrap();
    assert!(store.check(OBJECT).unwrap().is_some());
}

#[test]
fn what_many_write_at_once_is_sealed_right() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let store = ObjectStore::open(dir.path(), 64, Arc::default()).unwrap();
    let store = store.keeping(ObjectCache::UpTo(3 * MIB as u64));
    for round in 0..10 {
        std::thread::scope(|scope| {
            for who in 0..4usize {
                let store = &store;
                scope.spawn(move || {
                    let mut dice = (round * 4 + who + 1) as u64;
                    for _ in 0..20 {
                        dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                        let below = |limit: u64, shift: u32| (dice >> shift) % limit;
                        let len = [200_000, 70_000, MIB, 10][below(4, 60) as usize];
                        let (offset, value) = (below(128, 33) * 32_768, below(256, 20) as u8);
                        match below(12, 45) {
                            0 => store.truncate(OBJECT, offset).unwrap(),
                            1 => {
                                let hole = libc::FALLOC_FL_PUNCH_HOLE | 1;
                                store.allocate(OBJECT, hole, offset, len as u64).unwrap();
                            }
                            _ => {
                                let data = vec![value; len];
                                store.write(OBJECT, offset, &data, None, false).unwrap();
                            }
                        }
                    }
                });
            }
            // Seals come between, and are broken again.
            for _ in 0..5 {
                store.settle(Duration::ZERO, None).unwrap();
            }
        });
        store.settle(Duration::ZERO, None).unwrap();
        assert!(store.check(OBJECT).unwrap().is_some(), "round {round}");
    }
}

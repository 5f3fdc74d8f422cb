//! Tests of the behaviour of every engine, run against each of them.

use crate::local::{LocalKv, Options};
use crate::memory::MemoryKv;
use crate::{Batch, CacheUse, Keyspace, Kv, KvError, Precondition};
use futures_lite::future::{block_on, poll_once};
use std::cell::Cell;
use std::time::Duration;

thread_local! {
    /// Reads are handed over to threads.
    static HANDS_OVER: Cell<bool> = const { Cell::new(false) };
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match HANDS_OVER.get() {
        true => block_on(future),
        false => block_on(poll_once(future)).expect("it answers reads and commits at once"),
    }
}

const OPTIONS: Options = Options {
    journal_bytes: 64 << 20,
    cache_bytes: 1 << 20,
    memtable_bytes: 1 << 20,
    segment_bytes: 1 << 20,
    open_tables: 64,
    commit_interval: Duration::from_millis(50),
    readers: 0,
};

fn open(path: &std::path::Path) -> LocalKv {
    if HANDS_OVER.get() {
        let kv = LocalKv::open(path, Options { readers: 3, ..OPTIONS }).unwrap();
        kv.hand_over_reads();
        return kv;
    }
    LocalKv::open(path, OPTIONS).unwrap()
}

fn reads_what_was_committed(kv: &impl Kv) {
    let mut batch = Batch::new();
    for i in 0u8..10 {
        batch.put(Keyspace::Entry, &[i], &[i, i]);
    }
    batch.put(Keyspace::Inode, &[3], b"other keyspace");
    batch.delete(Keyspace::Entry, &[5]);
    now(kv.commit(batch, &[])).unwrap();
    assert_eq!(now(kv.get(Keyspace::Entry, &[4])).unwrap().unwrap().as_ref(), &[4, 4]);
    assert!(now(kv.get(Keyspace::Entry, &[5])).unwrap().is_none());
    let keys: Vec<_> = now(kv.scan(Keyspace::Entry, &[3], &[8], 3)).unwrap();
    let keys: Vec<u8> = keys.into_iter().map(|(key, _)| key[0]).collect();
    assert_eq!(keys, [3, 4, 6]);
    assert!(now(kv.scan(Keyspace::Entry, &[8], &[3], 3)).unwrap().is_empty());
    let many = now(kv.multi_get(Keyspace::Entry, &[&[1], &[5], &[9]])).unwrap();
    let many: Vec<_> = many.iter().map(|v| v.as_ref().map(|v| v.as_ref()[0])).collect();
    assert_eq!(many, [Some(1), None, Some(9)]);
}

/// Keys and values that a scan shows, one by one.
fn shown(kv: &impl Kv, from: &[u8], to: &[u8], limit: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut shown = Vec::new();
    let keep = |key: &[u8], value: &[u8]| shown.push((key.to_vec(), value.to_vec()));
    now(kv.scan_each(Keyspace::Entry, from, to, limit, keep)).unwrap();
    shown
}

/// After [`reads_what_was_committed`].
fn shows_what_it_scans_once_and_in_order(kv: &impl Kv) {
    let pairs = |keys: &[u8]| keys.iter().map(|i| (vec![*i], vec![*i, *i])).collect::<Vec<_>>();
    assert_eq!(shown(kv, &[0], &[10], 100), pairs(&[0, 1, 2, 3, 4, 6, 7, 8, 9]));
    assert_eq!(shown(kv, &[4], &[9], 3), pairs(&[4, 6, 7]), "no more than the limit");
    assert_eq!(shown(kv, &[4], &[7], 3), pairs(&[4, 6]), "not the last key");
    for (from, to, limit) in [(0, 10, 0), (5, 6, 9), (7, 7, 9), (8, 3, 9), (10, 20, 9)] {
        assert_eq!(shown(kv, &[from], &[to], limit), [], "{from}..{to}, {limit}");
    }
}

fn preconditions_hold_or_nothing_happens(kv: &impl Kv) {
    let put = |value: &[u8]| {
        let mut batch = Batch::new();
        batch.put(Keyspace::Meta, b"k", value);
        batch.put(Keyspace::Meta, value, b"");
        batch
    };
    let expect = |expect: Option<&[u8]>| {
        [Precondition {
            keyspace: Keyspace::Meta,
            key: b"k".to_vec(),
            expect: expect.map(<[u8]>::to_vec),
        }]
    };
    now(kv.commit(put(b"one"), &expect(None))).unwrap();
    assert!(matches!(now(kv.commit(put(b"two"), &expect(None))), Err(KvError::Conflict)));
    assert!(now(kv.get(Keyspace::Meta, b"two")).unwrap().is_none());
    now(kv.commit(put(b"two"), &expect(Some(b"one")))).unwrap();
    assert_eq!(now(kv.get(Keyspace::Meta, b"k")).unwrap().unwrap().as_ref(), b"two");
}

#[test]
fn memory() {
    let kv = std::sync::Arc::new(MemoryKv::default());
    reads_what_was_committed(&kv);
    shows_what_it_scans_once_and_in_order(&kv);
    preconditions_hold_or_nothing_happens(&MemoryKv::default());
}

#[test]
fn local_where_reads_are_handed_over() {
    HANDS_OVER.set(true);
    local();
    recent_and_old_writes_are_one();
}

#[test]
fn local() {
    let dir = tempfile::tempdir().unwrap();
    let kv = open(dir.path());
    reads_what_was_committed(&kv);
    shows_what_it_scans_once_and_in_order(&kv);
    preconditions_hold_or_nothing_happens(&kv);
    block_on(kv.sync()).unwrap();
    drop(kv);
    // All of it is in the tables now.
    let kv = open(dir.path());
    shows_what_it_scans_once_and_in_order(&kv);
    assert_eq!(now(kv.get(Keyspace::Meta, b"k")).unwrap().unwrap().as_ref(), b"two");
}

#[test]
fn after_a_flush_that_failed_nothing_is_called_durable() {
    let dir = tempfile::tempdir().unwrap();
    let kv = open(dir.path());
    let put = |key: &[u8]| {
        let mut batch = Batch::new();
        batch.put(Keyspace::Meta, key, b"value");
        now(kv.commit(batch, &[]))
    };
    put(b"flushed").unwrap();
    block_on(kv.sync()).unwrap();
    let durable = kv.durable();
    kv.refuse_flushes();
    put(b"lost").unwrap();
    assert!(matches!(block_on(kv.sync()), Err(KvError::Poisoned { .. })));
    // Nothing is left to flush, and so no flush would fail now.
    std::thread::sleep(Duration::from_millis(150));
    assert!(matches!(block_on(kv.sync()), Err(KvError::Poisoned { .. })));
    assert!(matches!(put(b"refused"), Err(KvError::Poisoned { .. })));
    assert_eq!(kv.durable(), durable);
    assert!(kv.failure().unwrap().contains("flushing the journal"));
}

#[test]
fn lost_power_takes_only_what_was_not_synced() {
    let kv = MemoryKv::default();
    reads_what_was_committed(&kv);
    now(kv.sync()).unwrap();
    preconditions_hold_or_nothing_happens(&kv);
    kv.lose_power();
    assert!(now(kv.get(Keyspace::Meta, b"k")).unwrap().is_none());
    assert!(now(kv.get(Keyspace::Entry, &[4])).unwrap().is_some());
}

/// The engine and a map in memory, through the same random operations.
#[test]
fn recent_and_old_writes_are_one() {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};
    let dir = tempfile::tempdir().unwrap();
    let kv = std::cell::RefCell::new(Some(open(dir.path())));
    let model = MemoryKv::default();
    let operation = (0u8..40, 0u8..3, 1usize..20, 0u8..120);
    let mut runner = TestRunner::new(Config { cases: 3000, ..Config::default() });
    runner
        .run(&operation, |(key, keyspace, many, what)| {
            let keyspace = Keyspace::ALL[keyspace as usize];
            if what == 0 {
                // All recent writes become old ones.
                drop(kv.take());
                kv.replace(Some(open(dir.path())));
            }
            let kv = kv.borrow();
            let kv = kv.as_ref().unwrap();
            let mut batch = Batch::new();
            for i in 0..many as u8 {
                match (key ^ i) % 3 {
                    0 => batch.delete(keyspace, &[key + i]),
                    _ => batch.put(keyspace, &[key + i], &[what, i]),
                }
            }
            now(kv.commit(batch.clone(), &[])).unwrap();
            now(model.commit(batch, &[])).unwrap();
            let (from, to) = ([key / 2], [key + what]);
            prop_assert_eq!(
                now(kv.scan(keyspace, &from, &to, many)).unwrap(),
                now(model.scan(keyspace, &from, &to, many)).unwrap()
            );
            let got = now(kv.get(keyspace, &[what])).unwrap().map(|v| v.to_vec());
            prop_assert_eq!(got, now(model.get(keyspace, &[what])).unwrap());
            Ok(())
        })
        .unwrap();
}

/// Fills a table with keys, and closes the engine.
fn fill(path: &std::path::Path, keys: u64) {
    let kv = open(path);
    for some in 0..10 {
        let mut batch = Batch::new();
        for i in some * keys / 10..(some + 1) * keys / 10 {
            batch.put(Keyspace::Inode, &i.to_be_bytes(), &[7; 100]);
        }
        // There may be no room before the batches before it are in the tables.
        block_on(kv.commit(batch, &[])).unwrap();
    }
}

#[test]
fn one_pass_over_everything_leaves_what_is_used_in_the_cache() {
    const KEYS: u64 = 80_000;
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), KEYS);
    let kv = LocalKv::open(dir.path(), OPTIONS).unwrap();
    // Some 30 blocks, of some 250 that there is room for, are read again and again.
    let misses_of_used = || {
        let before = kv.cache().unwrap().misses;
        for key in (0..1000u64).chain(0..1000) {
            now(kv.get(Keyspace::Inode, &key.to_be_bytes())).unwrap().unwrap();
        }
        kv.cache().unwrap().misses - before
    };
    let cold = misses_of_used();
    assert!(cold >= 20, "{cold}");
    assert_eq!(misses_of_used(), 0);
    // Eight times what has room is read once.
    let (from, to) = (0u64.to_be_bytes(), KEYS.to_be_bytes());
    assert_eq!(now(kv.scan(Keyspace::Inode, &from, &to, usize::MAX)).unwrap().len() as u64, KEYS);
    let seen = kv.cache().unwrap();
    assert!(seen.size <= seen.limit && seen.evicted > 4 << 20, "{seen:?}");
    let scanned = misses_of_used();
    assert!(scanned <= cold / 10, "{scanned} of {cold}");
}

#[test]
fn what_is_read_is_hot_and_what_is_loaded_is_not() {
    const KEYS: u64 = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let open = || LocalKv::open(dir.path(), Options { cache_bytes: 16 << 20, ..OPTIONS }).unwrap();
    fill(dir.path(), KEYS);
    let kv = open();
    let (from, to) = (0u64.to_be_bytes(), (KEYS - 1000).to_be_bytes());
    let mut loaded = crate::Loaded { next: Some(from.to_vec()), ..Default::default() };
    while let Some(from) = loaded.next.take() {
        let more = now(kv.load(Keyspace::Inode, &from, &to, 300)).unwrap();
        assert!(more.keys == 300 || more.next.is_none());
        loaded.keys += more.keys;
        loaded.bytes += more.bytes;
        loaded.next = more.next;
    }
    assert_eq!((loaded.keys, loaded.bytes), (KEYS - 1000, (KEYS - 1000) * 108));
    let heat = kv.heat().unwrap();
    // Nor is what is not there, or belongs to no inode.
    for number in 0..1000u64 {
        let absent = (u64::MAX / 2 + number * 0x1234_5678_9abc).to_be_bytes();
        assert_eq!(now(kv.get(Keyspace::Inode, &absent)).unwrap(), None);
        assert_eq!(now(kv.multi_get(Keyspace::Reply, &[&absent])).unwrap(), [None]);
    }
    assert_eq!(heat.ranges(), []);
    // All of it is in the cache now.
    let CacheUse { misses, evicted, .. } = kv.cache().unwrap();
    assert_eq!(evicted, 0);
    let keys = now(kv.scan(Keyspace::Inode, &from, &to, usize::MAX)).unwrap();
    now(kv.get(Keyspace::Inode, &keys[3000].0)).unwrap().unwrap();
    assert_eq!(kv.cache().unwrap().misses, misses);
    let ranges = heat.ranges();
    assert!(ranges.iter().all(|range| range.table == Keyspace::Inode as u8), "{ranges:?}");
    let ends = (ranges.iter().map(|r| r.first).min(), ranges.iter().map(|r| r.last).max());
    assert!(ends.0 == Some(0) && (KEYS - 1001..KEYS).contains(&ends.1.unwrap()), "{ends:?}");
}

/// Batches change the first and the last key of a range, and go on to the tables meanwhile.
#[test]
fn what_is_read_together_is_of_one_moment() {
    const KEYS: u64 = 2000;
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), KEYS);
    let kv = LocalKv::open(dir.path(), Options { readers: 2, ..OPTIONS }).unwrap();
    let (first, last) = (0u64.to_be_bytes(), (KEYS - 1).to_be_bytes());
    let write = |round: u64| {
        let mut batch = Batch::new();
        for key in [&first, &last] {
            batch.put(Keyspace::Inode, key, &round.to_be_bytes());
        }
        // So that they fill what is kept before the tables.
        batch.put(Keyspace::Entry, &round.to_be_bytes(), &[7; 5000]);
        block_on(kv.commit(batch, &[])).unwrap();
    };
    write(0);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (1..3000).for_each(write);
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let mut turn = 0;
        while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
            turn += 1;
            if turn == 50 {
                kv.hand_over_reads();
            }
            let to = KEYS.to_be_bytes();
            let pairs = block_on(kv.scan(Keyspace::Inode, &first, &to, usize::MAX)).unwrap();
            assert_eq!(pairs.len() as u64, KEYS);
            assert_eq!(pairs[0].1, pairs[pairs.len() - 1].1, "a scan");
            let both = block_on(kv.multi_get(Keyspace::Inode, &[&first, &last])).unwrap();
            assert!(both[0].is_some() && both[0] == both[1], "values of keys");
        }
    });
}

/// Keys of inodes that [`filled`] has in its tables.
const INODES: u64 = 2000;

/// An engine that hands reads over, with inodes in its tables.
fn filled(dir: &std::path::Path, readers: usize) -> LocalKv {
    let kv = open(dir);
    let mut batch = Batch::new();
    (0..INODES).for_each(|i| batch.put(Keyspace::Inode, &i.to_be_bytes(), &i.to_be_bytes()));
    now(kv.commit(batch, &[])).unwrap();
    drop(kv);
    let kv = LocalKv::open(dir, Options { readers, ..OPTIONS }).unwrap();
    kv.hand_over_reads();
    kv
}

/// A worker is one thread with many tasks: one that waits for the disk keeps none that finds in memory
/// what it reads.
#[test]
fn a_read_that_waits_for_the_disk_keeps_no_other_task_of_its_thread() {
    let dir = tempfile::tempdir().unwrap();
    let kv = filled(dir.path(), 2);
    let key = |i: u64| i.to_be_bytes();
    let get = async |i: u64| {
        let value = kv.get(Keyspace::Inode, &key(i)).await.unwrap().unwrap();
        assert_eq!(value.as_ref(), key(i));
    };
    // From now on it is in the cache.
    block_on(get(7));
    let disk = kv.stop_disk();
    let mut waits = std::pin::pin!(get(1000));
    assert!(block_on(poll_once(waits.as_mut())).is_none());
    let (from, to) = (key(500), key(600));
    let mut scans = std::pin::pin!(kv.scan(Keyspace::Inode, &from, &to, 1000));
    assert!(block_on(poll_once(scans.as_mut())).is_none());
    for _ in 0..1000 {
        block_on(poll_once(get(7))).expect("it is in memory");
    }
    let mut batch = Batch::new();
    batch.put(Keyspace::Inode, &key(INODES), &key(INODES));
    block_on(poll_once(kv.commit(batch, &[]))).expect("a commit is memory").unwrap();
    block_on(poll_once(get(INODES))).expect("it was written just now");
    // All threads wait for the disk: others wait for them, and are not lost.
    let mut waits_too = std::pin::pin!(kv.multi_get(Keyspace::Inode, &[]));
    block_on(poll_once(waits_too.as_mut())).expect("nothing is asked for").unwrap();
    let mut third = std::pin::pin!(get(1500));
    assert!(block_on(poll_once(third.as_mut())).is_none());
    // One that nobody waits for any more harms nobody.
    assert!(block_on(poll_once(get(1600))).is_none());
    drop(disk);
    block_on(waits);
    block_on(third);
    assert_eq!(block_on(scans).unwrap().len(), 100);
}

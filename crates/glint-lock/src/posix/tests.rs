//! Tests of the table of locks of programs.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

const INO: Ino = Ino(9);

fn lock(number: u64, start: u64, end: u64, write: bool) -> Lock {
    let owner = LockOwner { client: ClientId(1 + number % 2), number };
    Lock { owner, pid: number as u32, range: Range { start, end }, write }
}

#[test]
fn ranges_are_cut_and_joined_as_fcntl_does() {
    let mut table = PosixLockTable::default();
    let granted = &mut Vec::new();
    let mut set = |lock| table.lock(INO, Kind::Posix, lock, false, granted);
    assert_eq!(set(lock(1, 0, 100, true)), LockOutcome::Granted);
    assert_eq!(set(lock(1, 40, 60, false)), LockOutcome::Granted);
    assert_eq!(set(lock(2, 45, 50, false)), LockOutcome::Granted, "both read there");
    assert_eq!(set(lock(2, 39, 50, false)), LockOutcome::Busy);
    assert_eq!(table.len(), 4);
    table.unlock(INO, Kind::Posix, lock(2, 0, 0, false).owner, Range::ALL, granted);
    assert_eq!(
        table.lock(INO, Kind::Posix, lock(1, 40, 60, true), false, granted),
        LockOutcome::Granted
    );
    assert_eq!(table.len(), 1, "neighbours are one again");
    let found = table.test(INO, Kind::Posix, &lock(2, 10, 20, false)).unwrap();
    assert_eq!((found.pid, found.range), (1, Range { start: 0, end: 100 }));
    assert!(table.test(INO, Kind::Flock, &lock(2, 10, 20, true)).is_none());
    table.evict(ClientId(2), granted);
    assert!(table.is_empty());
}

#[test]
fn who_comes_later_does_not_overtake() {
    let mut table = PosixLockTable::default();
    let granted = &mut Vec::new();
    let mut ask = |lock, wait| table.lock(INO, Kind::Posix, lock, wait, granted);
    assert_eq!(ask(lock(1, 0, 10, false), false), LockOutcome::Granted);
    let LockOutcome::Waits(writer) = ask(lock(2, 0, 5, true), true) else { panic!("1 reads") };
    assert_eq!(ask(lock(4, 0, 1, false), false), LockOutcome::Granted, "it does not wait");
    assert_eq!(ask(lock(3, 5, 9, false), true), LockOutcome::Granted, "another range");
    let LockOutcome::Waits(reader) = ask(lock(3, 0, 5, false), true) else { panic!("2 waits") };
    assert_eq!(ask(lock(1, 2, 8, false), false), LockOutcome::Granted, "2 waits for 1");
    assert_eq!(table.waits_for(INO, Kind::Posix, reader, 9), [lock(2, 0, 0, true).owner]);
    for holder in [1, 4] {
        let owner = lock(holder, 0, 0, true).owner;
        table.unlock(INO, Kind::Posix, owner, Range::ALL, granted);
    }
    assert_eq!(*granted, [writer]);
    table.unlock(INO, Kind::Posix, lock(2, 0, 0, true).owner, Range::ALL, granted);
    assert_eq!(*granted, [writer, reader]);
}

#[test]
fn many_ranges_cost_what_one_costs_and_have_a_bound() {
    const MANY: u64 = 100_000;
    let mut table = PosixLockTable::with_limit(MANY as usize);
    let granted = &mut Vec::new();
    let mut set =
        |n: u64| table.lock(INO, Kind::Posix, lock(1, 2 * n, 2 * n + 1, true), false, granted);
    for n in 0..MANY {
        assert_eq!(set(n), LockOutcome::Granted);
    }
    assert_eq!(set(1 << 40), LockOutcome::TooMany);
    table.unlock(INO, Kind::Posix, lock(1, 0, 0, true).owner, Range::ALL, granted);
    assert!(table.is_empty() && table.counts.is_empty());
}

#[test]
fn who_takes_less_than_it_had_lets_others_in() {
    let mut table = PosixLockTable::default();
    let granted = &mut Vec::new();
    let mut ask = |lock, wait| table.lock(INO, Kind::Posix, lock, wait, granted);
    assert_eq!(ask(lock(1, 0, 10, true), false), LockOutcome::Granted);
    assert_eq!(ask(lock(2, 10, 20, true), false), LockOutcome::Granted);
    let LockOutcome::Waits(first) = ask(lock(1, 0, 20, false), true) else { panic!("2 writes") };
    let LockOutcome::Waits(second) = ask(lock(3, 0, 10, false), true) else { panic!("1 writes") };
    table.unlock(INO, Kind::Posix, lock(2, 0, 0, true).owner, Range::ALL, granted);
    assert_eq!(*granted, [first, second], "1 only reads now");
}

#[test]
fn many_that_wait_cost_each_other_little() {
    const MANY: u64 = 20_000;
    for write in [false, true] {
        let mut table = PosixLockTable::default();
        let granted = &mut Vec::new();
        let of = |n: u64, write| {
            let owner = LockOwner { client: ClientId(n % 8), number: n };
            Lock { owner, pid: 0, range: Range::ALL, write }
        };
        // Readers, whom writers wait for, and behind these everybody else.
        for n in 0..100 {
            table.lock(INO, Kind::Posix, of(n, false), true, granted);
        }
        let tickets: Vec<u64> = (100..MANY)
            .map(|n| {
                let asks = of(n, write || n == 100);
                match table.lock(INO, Kind::Posix, asks, true, granted) {
                    LockOutcome::Waits(ticket) => ticket,
                    outcome => panic!("{outcome:?}"),
                }
            })
            .collect();
        let start = std::time::Instant::now();
        // Half of them wait no more, those in front first; some close what they never had.
        for ticket in tickets[1..].iter().take(MANY as usize / 2) {
            table.forget(INO, Kind::Posix, *ticket, granted);
            table.unlock(INO, Kind::Posix, of(MANY + ticket, true).owner, Range::ALL, granted);
        }
        assert!(granted.is_empty());
        for client in 0..8 {
            table.evict(ClientId(client), granted);
        }
        assert!(table.is_empty() && table.counts.is_empty());
        assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    }
}

proptest! {
    #[test]
    fn owners_exclude_each_other_and_all_are_served(
        steps in proptest::collection::vec((0u8..4, 0u64..4, 0u64..8, 1u64..5, any::<bool>()), 0..100)
    ) {
        let mut table = PosixLockTable::default();
        let mut waiting = HashSet::new();
        let mut granted = Vec::new();
        for (step, owner, start, len, write) in steps {
            let asks = lock(owner, start, start + len, write);
            match step {
                0 | 1 => if let LockOutcome::Waits(ticket) =
                    table.lock(INO, Kind::Posix, asks, true, &mut granted) {
                    waiting.insert(ticket);
                },
                2 => table.unlock(INO, Kind::Posix, asks.owner, asks.range, &mut granted),
                _ => { table.lock(INO, Kind::Posix, asks, false, &mut granted); }
            }
            for ticket in granted.drain(..) {
                prop_assert!(waiting.remove(&ticket));
            }
            let Some(file) = table.files.get(&(INO, Kind::Posix)) else { continue };
            assert!(!file.held.is_empty() || !file.waiting.is_empty());
            // Nobody waits for nothing.
            for (ticket, lock) in &file.waiting {
                let mut earlier = file.waiting.range(..ticket);
                let waits = !file.is_free(lock) || earlier.any(|(_, one)| conflicts(one, lock));
                prop_assert!(waits, "{lock:?} waits");
            }
            let held: Vec<Lock> = table.held().map(|(_, _, lock)| lock).collect();
            for (i, a) in held.iter().enumerate() {
                for b in &held[..i] {
                    prop_assert!(!conflicts(a, b));
                    prop_assert!(a.owner != b.owner || !a.range.overlaps(b.range));
                }
            }
        }
        // The holders release their locks, again and again.
        for round in 0..4 * (waiting.len() as u64 + 1) {
            let owner = lock(round % 4, 0, 0, true).owner;
            table.unlock(INO, Kind::Posix, owner, Range::ALL, &mut granted);
            for ticket in granted.drain(..) { waiting.remove(&ticket); }
        }
        prop_assert!(waiting.is_empty(), "{waiting:?} still wait");
        let counted: usize = table.counts.values().sum();
        prop_assert_eq!(counted, table.len());
    }
}

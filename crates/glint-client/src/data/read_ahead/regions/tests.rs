//! Which regions are asked for, of files that are read in many ways.

use super::*;
use crate::data::read_ahead::memory;
use std::collections::HashSet;

const MIB: u64 = 1 << 20;
/// Bytes of the odd transfers of IOR.
const ODD: u64 = 47_008;

/// A file that is read, and the requests for it.
struct Reads {
    regions: Regions,
    size: u64,
    window: u64,
    memory: ReadAheadMemory,
    requests: u64,
    bytes: u64,
    largest: usize,
    /// Blocks of 1 MiB that the kernel has.
    kernel: HashSet<u64>,
}

impl Reads {
    fn of(size: u64) -> Reads {
        let (regions, memory) = (Regions::default(), ReadAheadMemory::default());
        let (window, kernel) = (0, HashSet::new());
        Reads { regions, size, window, memory, requests: 0, bytes: 0, largest: 0, kernel }
    }

    /// Reads a block in no order, unless the kernel has it.
    fn read_block(&mut self, block: u64) {
        if !self.kernel.insert(block) {
            return;
        }
        let (read, size) = (block * MIB..(block + 1) * MIB, self.size);
        let plan = self.regions.plan(&read, size, 0, 1, &self.memory);
        assert!(plan.fetch.is_empty() && !plan.is_in_sequence);
        let around = match plan.here.is_empty() {
            true => self.regions.around(&read, size, size, 1, &self.memory),
            false => return,
        };
        self.requests += 1;
        self.bytes += match around {
            Around::Window(_) => panic!("it was looked for"),
            Around::Alone => MIB,
            Around::Fetch { window, is_kept } => {
                if !is_kept {
                    self.kernel.extend(window.offset / MIB..window.end() / MIB);
                    self.regions.forget_window(&window);
                }
                window.len
            }
        };
    }

    /// Reads; returns whether that was asked for before, or with what is asked for now, and what is
    /// asked for in advance.
    fn read(&mut self, offset: u64, len: u64) -> (bool, Vec<(u64, u64)>) {
        let read = offset..offset + len;
        let plan = self.regions.plan(&read, self.size, self.window, 1, &self.memory);
        let fetched: Vec<_> = plan.fetch.iter().map(|one| (one.offset, one.end())).collect();
        let is_here = !plan.here.is_empty();
        let alone = (!is_here).then_some((offset, (offset + len).min(self.size)));
        for &(start, end) in fetched.iter().chain(&alone) {
            assert!(end - start <= REGION && end <= self.size);
            self.requests += 1;
            self.bytes += end - start;
        }
        self.largest = self.largest.max(self.memory.used());
        (is_here, fetched)
    }

    /// Reads all by so many readers by turns, each in pieces of so many bytes.
    fn strided(&mut self, readers: u64, piece: u64) {
        for call in 0..self.size / piece / readers * readers {
            self.read(call * piece, piece);
        }
    }
}

fn any(random: &mut u64, below: u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005);
    *random = random.wrapping_add(1_442_695_040_888_963_407);
    (*random >> 24) % below
}

#[test]
fn what_is_read_in_order_is_one_request_for_each_region() {
    for window in [0, 2 * REGION, 4 * REGION] {
        let mut file = Reads::of(64 * MIB);
        file.window = window;
        file.strided(1, MIB);
        // The first MiB, the rest of the first region, and 15 others.
        assert_eq!((file.requests, file.bytes), (17, 64 * MIB));
        assert!(file.largest as u64 <= window.max(REGION) + REGION, "{}", file.largest);
        file.regions = Regions::default();
        assert_eq!(file.memory.used(), 0);
    }
}

#[test]
fn the_next_region_comes_before_anybody_asks_for_it() {
    let mut file = Reads::of(64 * MIB);
    assert_eq!(file.read(0, MIB), (false, vec![]));
    assert_eq!(file.read(MIB, MIB), (true, vec![(MIB, REGION)]));
    assert_eq!(file.read(2 * MIB, MIB), (true, vec![]));
    assert_eq!(file.read(3 * MIB, MIB), (true, vec![]));
    assert_eq!(file.read(4 * MIB, MIB), (true, vec![(REGION, 2 * REGION)]));
    assert_eq!(file.read(5 * MIB, MIB), (true, vec![(2 * REGION, 3 * REGION)]));
    for n in 6..9 {
        assert_eq!(file.read(n * MIB, MIB), (true, vec![]));
    }
    assert_eq!(file.read(9 * MIB, MIB), (true, vec![(3 * REGION, 4 * REGION)]));
}

#[test]
fn who_wants_little_does_not_wait_for_much() {
    let (mut file, small) = (Reads::of(64 * MIB), 128 << 10);
    for n in 0..7 {
        assert_eq!(file.read(n * small, small), (false, vec![]));
    }
    assert_eq!(file.read(7 * small, small), (false, vec![(8 * small, REGION)]));
    for n in 8..32 {
        assert_eq!(file.read(n * small, small), (true, vec![]));
    }
    let next = REGION + small;
    assert_eq!(file.read(REGION, small), (false, vec![(next, 2 * REGION)]));
}

#[test]
fn many_readers_of_a_part_each_have_their_regions() {
    let mut file = Reads::of(512 * MIB);
    for call in 0..64 {
        for reader in 0..8 {
            file.read((reader * 64 + call) * MIB, MIB);
        }
    }
    assert_eq!((file.requests, file.bytes), (8 * 17, 512 * MIB));
    assert!(file.largest <= memory::MAX / 2, "{}", file.largest);
}

#[test]
fn many_readers_by_turns_are_one_sequence() {
    let mut file = Reads::of(512 * MIB);
    file.strided(8, MIB);
    assert_eq!((file.requests, file.bytes), (129, 512 * MIB));
    let mut file = Reads::of(512 * MIB);
    file.strided(8, ODD);
    assert!(10 * file.requests <= 11 * 128, "{} requests", file.requests);
    assert!(100 * file.bytes <= 101 * file.size, "{} bytes", file.bytes);
}

#[test]
fn many_readers_in_any_order_take_one_request_for_each_region() {
    let (mut file, mut random) = (Reads::of(512 * MIB), 1);
    let orders = [0, 1, 2, 3, 4, 5, 6, 7].map(|part| {
        let mut order: Vec<u64> = (64 * part..64 * part + 64).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, any(&mut random, at as u64 + 1) as usize);
        }
        order
    });
    for call in 0..64 {
        orders.iter().for_each(|order| file.read_block(order[call]));
    }
    // The first eight reads are alone.
    assert_eq!((file.requests, file.bytes), (8 + 128, (8 + 512) * MIB));
}

#[test]
fn readers_by_turns_need_not_keep_in_step() {
    let (mut file, mut random) = (Reads::of(512 * MIB), 1);
    let mut calls = [0; 8];
    let most = file.size / ODD / 8;
    while let Some(slowest) = calls.iter().copied().filter(|calls| *calls < most).min() {
        let reader = any(&mut random, 8) as usize;
        if calls[reader] < most && calls[reader] < slowest + 8 {
            file.read((calls[reader] * 8 + reader as u64) * ODD, ODD);
            calls[reader] += 1;
        }
    }
    assert!(10 * file.requests <= 13 * 128, "{} requests", file.requests);
    assert!(100 * file.bytes <= 102 * file.size, "{} bytes", file.bytes);
}

#[test]
fn a_part_of_a_file_here_and_there_is_not_taken_for_more_for_long() {
    let (mut file, mut random) = (Reads::of(16 << 30), 1);
    for _ in 0..2000 {
        let at = any(&mut random, (16 << 10) / 2) * 2 * MIB;
        file.read(at, MIB);
        file.read(at + MIB, MIB);
    }
    assert!(10 * file.bytes <= 11 * 2000 * 2 * MIB, "{} bytes", file.bytes);
    // It is, once so much is read that it pays.
    file.requests = 0;
    for call in 0..512 {
        file.read((8 << 30) + call * MIB, MIB);
    }
    assert!(file.requests < 64 + 128 + 8, "{} requests", file.requests);
}

#[test]
fn what_is_read_again_is_asked_for_again() {
    let mut file = Reads::of(64 * MIB);
    file.strided(1, MIB);
    file.strided(1, MIB);
    assert_eq!((file.requests, file.bytes), (2 * 17, 2 * 64 * MIB));
    assert_eq!(file.read(0, MIB), (false, vec![]));
    (1..5).for_each(|n| drop(file.read(n * MIB, MIB)));
    assert_eq!(file.read(5 * MIB, MIB), (true, vec![(2 * REGION, 3 * REGION)]), "in advance");
}

#[test]
fn large_reads_anywhere_take_no_more_than_two_requests() {
    let (mut file, mut random) = (Reads::of(16 << 30), 1);
    for _ in 0..200 {
        // As the kernel asks for 4 MiB.
        let at = any(&mut random, (16 << 10) / 8) * 8 * MIB;
        (0..4).for_each(|n| drop(file.read(at + n * MIB, MIB)));
    }
    assert!(file.requests <= 400, "{} requests", file.requests);
    assert!(file.bytes <= 200 * REGION, "{} bytes", file.bytes);
}

#[test]
fn strides_and_small_reads_are_no_sequences() {
    let mut file = Reads::of(1 << 30);
    (0..64).for_each(|n| drop(file.read(n * 8 * MIB, MIB)));
    assert_eq!((file.requests, file.bytes), (64, 64 * MIB));
    let (mut file, mut random) = (Reads::of(1 << 30), 1);
    for _ in 0..2000 {
        let page = any(&mut random, (1 << 30) / PAGE);
        file.read(page * PAGE, PAGE);
    }
    assert_eq!((file.requests, file.bytes), (2000, 2000 * PAGE));
    assert!(file.regions.regions.len() <= REGIONS_MAX);
}

#[test]
fn nothing_is_asked_for_behind_the_end_or_after_a_change() {
    let mut file = Reads::of(3 * MIB + 100);
    (0..4).for_each(|n| drop(file.read(n * MIB, MIB)));
    assert_eq!((file.requests, file.bytes), (2, 3 * MIB + 100));
    assert_eq!(file.memory.used(), 0, "all was read");
    let mut file = Reads::of(64 * MIB);
    (0..3).for_each(|n| drop(file.read(n * MIB, MIB)));
    let read = 3 * MIB..4 * MIB;
    let plan = file.regions.plan(&read, file.size, 0, 2, &file.memory);
    assert!(plan.here.is_empty() && plan.fetch.is_empty() && !plan.is_in_sequence);
    assert_eq!(file.memory.used(), 0);
}

#[test]
fn any_reads_in_any_order_are_planned() {
    let (mut file, mut random) = (Reads::of(64 * MIB + 5), 1);
    for n in 0..20_000u64 {
        let len = [1, 100, PAGE, 10_000, MIB, 2 * REGION][n as usize % 6];
        let at = any(&mut random, [MIB, 8 * MIB, 70 * MIB][n as usize / 7 % 3]);
        file.window = n % 5 * REGION;
        let plan =
            file.regions.plan(&(at..at + len), file.size, file.window, n / 999, &file.memory);
        for block in plan.here {
            assert!(block.offset < at + len && at < block.end());
        }
        assert!(file.regions.blocks.len() <= BLOCKS_MAX);
    }
    assert!(file.memory.used() <= memory::MAX);
}

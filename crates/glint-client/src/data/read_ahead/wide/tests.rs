//! Tests of regions around large reads.

use super::*;
use crate::data::read_ahead::memory;
use glint_proto::clock;
use std::collections::HashSet;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// A file that is read in blocks of 1 MiB, and a kernel with pages of it.
struct Reads {
    wide: WideReads,
    size: u64,
    room: u64,
    memory: ReadAheadMemory,
    kernel: HashSet<u64>,
    random: u64,
    reads: u64,
    requests: u64,
    bytes: u64,
}

impl Reads {
    fn of(size: u64, room: u64) -> Reads {
        let (wide, memory) = (WideReads::default(), ReadAheadMemory::default());
        let (kernel, random) = (HashSet::new(), 1);
        Reads { wide, size, room, memory, kernel, random, reads: 0, requests: 0, bytes: 0 }
    }

    fn any(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = self.random.wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 24) % below
    }

    /// Blocks in any order, each once.
    fn order(&mut self, blocks: Range<u64>) -> Vec<u64> {
        let mut order: Vec<u64> = blocks.collect();
        for at in (1..order.len()).rev() {
            let with = self.any(at as u64 + 1) as usize;
            order.swap(at, with);
        }
        order
    }

    fn read(&mut self, block: u64) {
        self.reads += 1;
        if !self.kernel.insert(block) {
            return;
        }
        let read = block * MIB..(block + 1) * MIB;
        let bytes = match self.wide.plan(&read, self.size, self.room, &self.memory) {
            Around::Window(window) => {
                assert!(window.offset <= read.start && read.end <= window.end());
                return;
            }
            Around::Alone => MIB,
            Around::Fetch { window, is_kept } => {
                assert!(window.offset <= read.start && read.end <= window.end());
                if is_kept {
                    assert!(self.memory.used() <= memory::MAX / 4);
                } else {
                    self.kernel.extend(window.offset / MIB..window.end().div_ceil(MIB));
                    self.wide.forget(&window);
                }
                window.len
            }
        };
        (self.requests, self.bytes) = (self.requests + 1, self.bytes + bytes);
    }
}

/// As IOR does it: each of eight reads a part of the file, and all of them at once.
#[test]
fn a_file_that_is_read_in_blocks_in_any_order_is_one_request_for_each_region() {
    for seed in 1..20 {
        let mut file = Reads::of(512 * MIB, 1 << 30);
        file.random = seed;
        let orders = [0, 1, 2, 3, 4, 5, 6, 7].map(|part| file.order(64 * part..64 * part + 64));
        for call in 0..64 {
            orders.iter().for_each(|order| file.read(order[call]));
            let most = 2 * file.reads * MIB + 512 * MIB / SHARE;
            assert!(file.bytes <= most, "{} bytes", file.bytes);
        }
        assert!(file.requests <= 140 && file.bytes <= 524 * MIB, "{} of {seed}", file.requests);
        if seed == 1 {
            // Those that were alone, and each region.
            assert_eq!((file.requests, file.bytes), (ALONE + 128, (ALONE + 512) * MIB));
        }
    }
}

#[test]
fn a_few_blocks_of_a_file_cost_a_part_of_it() {
    let mut file = Reads::of(1 << 30, 1 << 30);
    for _ in 0..100 {
        let block = file.any(1024);
        file.read(block);
        let most = 2 * file.reads * MIB + SHARES.end * PAGE;
        assert!(file.bytes <= most, "{} bytes", file.bytes);
    }
}

#[test]
fn a_large_database_is_read_block_by_block_until_a_part_of_it_is_read_whole() {
    let mut file = Reads::of(16 << 30, 1 << 30);
    for _ in 0..4000 {
        let block = file.any(16 << 10);
        file.read(block);
    }
    assert!(10 * file.bytes <= 11 * 4000 * MIB, "{} bytes", file.bytes);
    let mut requests = Vec::new();
    for _ in 0..4 {
        file.kernel.clear();
        file.requests = 0;
        for block in file.order(0..512) {
            file.read(block);
        }
        requests.push(file.requests);
    }
    assert!(requests[0] > 256 && requests[3] <= 140, "{requests:?}");
}

/// Parts of it are read whole, and then blocks anywhere, again and again.
#[test]
fn a_file_that_is_read_in_another_way_costs_what_was_saved_up_and_no_more() {
    let mut file = Reads::of(100 << 30, 1 << 30);
    for part in 0..256 {
        for block in file.order(64 * part..64 * part + 64) {
            file.read(block);
        }
    }
    assert!(file.requests < 5000, "regions pay: {}", file.requests);
    for of in [100 << 10, 16 << 10] {
        let before = file.bytes;
        for _ in 0..4096 {
            file.kernel.clear();
            let block = file.any(of);
            file.read(block);
        }
        let bytes = file.bytes - before;
        let most = (4096 + 4096 / 8) * MIB + 2 * EARNED * PAGE;
        assert!(bytes <= most, "{} MiB of {}", bytes / MIB, of);
    }
}

/// As loaders of data do that take a few samples of a file at once.
#[test]
fn a_file_that_is_opened_again_and_again_has_no_new_allowance() {
    let mut file = Reads::of(512 * MIB, 1 << 30);
    for _ in 0..60 {
        for _ in 0..20 {
            let block = file.any(512);
            file.read(block);
        }
        file.wide.on_close();
        file.kernel.clear();
    }
    assert!(10 * file.bytes <= 14 * file.reads * MIB, "{} MiB", file.bytes / MIB);
    let mut large = Reads::of(16 << 30, 1 << 30);
    for _ in 0..30 {
        let block = large.any(16 << 10);
        large.read(block);
    }
    assert_eq!(large.bytes, 30 * MIB, "it has earned nothing yet");
}

/// Another client writes to it between any four reads.
#[test]
fn regions_that_go_before_a_later_read_do_not_pay() {
    let mut file = Reads::of(512 * MIB, 1 << 30);
    for _ in 0..4096 {
        for _ in 0..4 {
            let block = file.any(512);
            file.read(block);
        }
        file.wide.forget_all();
        file.kernel.clear();
    }
    assert!(10 * file.bytes <= 12 * file.reads * MIB, "{} bytes", file.bytes);
}

#[test]
fn programs_that_begin_to_read_in_order_have_no_regions() {
    let mut file = Reads::of(512 * MIB, 1 << 30);
    for call in 0..1000 {
        if call % 16 < ALONE {
            file.read(call % 64 * 8 + call / 64 % 8);
        } else {
            file.wide.note_sequence();
        }
    }
    assert_eq!(file.bytes, file.requests * MIB);
}

/// A file that nobody reads any more, and another one.
#[test]
fn regions_that_are_kept_leave_memory_to_others_and_their_places_some_time_later() {
    let now = Instant::now();
    clock::simulate(Some(now));
    let (mut idle, mut file) = (Reads::of(512 * MIB, 1 << 30), Reads::of(512 * MIB, 1 << 30));
    file.memory = idle.memory.clone();
    let kept = |file: &Reads| {
        let kept = file.wide.windows.iter().filter(|one| one.is_kept && one.block().is_some());
        kept.count() as u64
    };
    let places = memory::MAX as u64 / 4 / REGION;
    (0..100).for_each(|n| idle.read(n * 37 % 512));
    assert!(kept(&idle) == places && !idle.memory.is_half_used(), "{}", kept(&idle));
    // Not so many that regions of which nothing is known use up what was given in advance.
    (0..40).for_each(|n| file.read(n * 37 % 512));
    assert_eq!((kept(&file), kept(&idle)), (0, places));
    assert!(file.wide.allowance.fetched > ONE_OF && file.wide.allowance.has(PAGES, 0));
    clock::simulate(Some(now + Duration::from_secs(10)));
    file.kernel.clear();
    file.order(0..256)[..100].iter().for_each(|block| file.read(*block));
    assert!(kept(&file) > 0 && kept(&idle) < places, "they have gone to a file that is read");
    let other = BlockAhead::coming(0, memory::MAX as u64 / 2, &file.memory).unwrap();
    assert!(file.wide.allowance.has(8 * PAGES, 0), "it would have regions");
    let before = (file.bytes, file.requests);
    file.kernel.clear();
    (0..8).for_each(|n| file.read(256 + n * 37 % 256));
    let (bytes, requests) = (file.bytes - before.0, file.requests - before.1);
    assert_eq!(bytes, requests * MIB, "half is for what is read in order");
    drop((idle, other));
    file.wide.forget_all();
    assert_eq!(file.memory.used(), 0);
    clock::simulate(None);
}

#[test]
fn a_region_that_does_not_come_is_forgotten_and_the_last_one_is_short() {
    let (mut wide, memory) = (WideReads::default(), ReadAheadMemory::default());
    let size = 9 * REGION + 3 * MIB;
    let mut plan = |at: u64| wide.plan(&(at..at + MIB), size, size, &memory);
    (0..ALONE).for_each(|n| assert!(matches!(plan(n * REGION), Around::Alone)));
    assert!(matches!(plan(9 * REGION - MIB / 2), Around::Alone), "of two regions");
    let Around::Fetch { window, is_kept } = plan(9 * REGION + MIB) else { panic!() };
    assert_eq!((window.offset, window.len, is_kept), (9 * REGION, 3 * MIB, true));
    assert!(matches!(plan(9 * REGION), Around::Window(_)), "on its way");
    window.give_up();
    assert!(matches!(plan(9 * REGION), Around::Fetch { .. }));
    let read = 9 * REGION..9 * REGION + 3 * MIB;
    wide.forget_all();
    assert!(matches!(wide.plan(&read, size, size, &memory), Around::Alone), "all of it");
    drop((wide, window));
    assert_eq!(memory.used(), 0);
}

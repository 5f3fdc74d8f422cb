//! Which keys of a server are read most, as ranges: what the next run loads first.
//!
//! A key counts by its first eight bytes, as a number, its *position*: those of an inode and of what
//! belongs to it are one number, and inodes that were made together are neighbours. The positions of
//! a table are divided into cells of equal width, 1 024 to begin with, and each cell that was read
//! has a count. Counts are halved by [`Heat::age`], so what is not read any more is forgotten.
//!
//! Invariants:
//! - One read of [`SAMPLE`] on a thread takes the lock and may allocate. The others are an addition
//!   to a number of their thread.
//! - There are [`CELLS_MAX`] cells at most, some 200 KiB: with one more, all become twice as wide.
//!   They become narrower again when there are few.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One read of so many is counted. A prime: a request reads its tables in a fixed order, and each of
/// them must have its turn.
pub const SAMPLE: u32 = 61;
/// Most cells.
pub const CELLS_MAX: usize = 4096;
/// Bits of a position within a cell, fewest and most.
const SHIFT_MIN: u32 = 10;
const SHIFT_MAX: u32 = 63;
/// Most cells that a scan adds to.
const SCAN_CELLS_MAX: u64 = 64;
/// Most cells in one range of [`Heat::ranges`].
const RANGE_CELLS_MAX: u64 = 16;

const MAGIC: &[u8; 4] = b"GLHT";
const VERSION: u8 = 1;
/// Bytes before the cells, and those of one.
const HEAD_BYTES: usize = 10;
const CELL_BYTES: usize = 13;
/// Longest encoding.
pub const HEAT_BYTES_MAX: usize = HEAD_BYTES + CELLS_MAX * CELL_BYTES;

thread_local! {
    static READS: Cell<u32> = const { Cell::new(0) };
}

/// Position of a key.
pub fn position(key: &[u8]) -> u64 {
    let mut first = [0; 8];
    let len = key.len().min(8);
    first[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(first)
}

/// Positions of a table, from the first to the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HotRange {
    /// Number of the table.
    pub table: u8,
    /// First position.
    pub first: u64,
    /// Last position.
    pub last: u64,
}

/// Why an encoding is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotHeat(&'static str);

impl std::fmt::Display for NotHeat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for NotHeat {}

/// How often keys are read.
#[derive(Default)]
pub struct Heat(Mutex<Cells>);

struct Cells {
    shift: u32,
    /// Counts of cells, by their tables and numbers.
    counts: BTreeMap<(u8, u64), u32>,
    /// Whether any was counted since that was asked for.
    has_changed: bool,
}

impl Default for Cells {
    fn default() -> Cells {
        Cells { shift: SHIFT_MIN, counts: BTreeMap::new(), has_changed: false }
    }
}

impl Heat {
    fn cells(&self) -> MutexGuard<'_, Cells> {
        // No count is worth more than going on.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that so many keys of a table were read, at these positions, the first and the last one.
    pub fn on_reads(&self, table: u8, keys: usize, positions: impl FnOnce() -> (u64, u64)) {
        let keys = u32::try_from(keys.max(1)).unwrap_or(u32::MAX);
        let reads = READS.get().saturating_add(keys);
        READS.set(reads % SAMPLE);
        if reads >= SAMPLE {
            let (first, last) = positions();
            self.cells().add(table, first, last, reads / SAMPLE);
        }
    }

    /// Halves all counts.
    pub fn age(&self) {
        self.cells().age();
    }

    /// Whether anything was counted since the last call.
    pub fn take_change(&self) -> bool {
        std::mem::take(&mut self.cells().has_changed)
    }

    /// Ranges that were read: in classes, each with less than half the counts of the one before,
    /// and in each class by their positions, so that neighbours follow each other.
    pub fn ranges(&self) -> Vec<HotRange> {
        let [mut hotter, colder] = self.halves();
        hotter.extend(colder);
        hotter
    }

    /// The same in two parts: the first classes, up to the one with which they have half of all
    /// counts, and the others.
    pub fn halves(&self) -> [Vec<HotRange>; 2] {
        let cells = self.cells();
        let class = |count: u32| Reverse(count.checked_ilog2());
        let mut sorted: Vec<_> = cells
            .counts
            .iter()
            .map(|(&(table, cell), &count)| (class(count), table, cell))
            .collect();
        sorted.sort_unstable();
        let mut of_classes = BTreeMap::<_, u64>::new();
        for &count in cells.counts.values() {
            *of_classes.entry(class(count)).or_default() += u64::from(count);
        }
        let (all, mut sum) = (of_classes.values().sum::<u64>(), 0);
        let has_half = of_classes.iter().find(|(_, counts)| {
            sum += **counts;
            2 * sum >= all
        });
        let last = has_half.map(|(class, _)| *class);
        let (hotter, colder) = sorted.split_at(sorted.partition_point(|cell| Some(cell.0) <= last));
        let is_next = |a: &(_, u8, u64), b: &(_, u8, u64)| {
            (a.0, a.1, a.2 + 1) == *b && b.2 % RANGE_CELLS_MAX != 0
        };
        let range = |cells_of_it: &[(Reverse<Option<u32>>, u8, u64)]| {
            let (first, last) = (cells_of_it[0], cells_of_it[cells_of_it.len() - 1]);
            let within = (1 << cells.shift) - 1;
            let (from, to) = (first.2 << cells.shift, (last.2 << cells.shift) | within);
            HotRange { table: first.1, first: from, last: to }
        };
        [hotter, colder].map(|part| part.chunk_by(is_next).map(range).collect())
    }

    /// The counts, to be kept.
    ///
    /// ```text
    /// "GLHT" | version 1 | bits of a position within a cell 1 | cells 4 |
    /// for each cell, in their order: table 1 | number 8 | count 4
    /// ```
    pub fn encode(&self) -> Vec<u8> {
        let cells = self.cells();
        let mut bytes = Vec::with_capacity(HEAD_BYTES + cells.counts.len() * CELL_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[VERSION, cells.shift as u8]);
        bytes.extend_from_slice(&(cells.counts.len() as u32).to_be_bytes());
        for ((table, cell), count) in &cells.counts {
            bytes.push(*table);
            bytes.extend_from_slice(&cell.to_be_bytes());
            bytes.extend_from_slice(&count.to_be_bytes());
        }
        bytes
    }

    /// Takes counts that were kept in the place of its own.
    pub fn restore(&self, bytes: &[u8]) -> Result<(), NotHeat> {
        let (shift, counts) = decode(bytes).map_err(NotHeat)?;
        *self.cells() = Cells { shift, counts, has_changed: false };
        Ok(())
    }
}

type Decoded = (u32, BTreeMap<(u8, u64), u32>);

fn decode(bytes: &[u8]) -> Result<Decoded, &'static str> {
    let (head, rest) = bytes.split_at_checked(HEAD_BYTES).ok_or("it is too short")?;
    let [m0, m1, m2, m3, version, shift, c0, c1, c2, c3] = *head else {
        return Err("it is too short");
    };
    if (&[m0, m1, m2, m3], version) != (MAGIC, VERSION) {
        return Err("it has another format");
    }
    let (shift, count) = (u32::from(shift), u32::from_be_bytes([c0, c1, c2, c3]) as usize);
    if !(SHIFT_MIN..=SHIFT_MAX).contains(&shift) {
        return Err("its cells have no width");
    }
    // The length is what is there, and bounded before anything is allocated.
    if count > CELLS_MAX || rest.len() != count * CELL_BYTES {
        return Err("it has another length than it says");
    }
    let mut counts = BTreeMap::new();
    for row in rest.chunks_exact(CELL_BYTES) {
        let [table, a, b, c, d, e, f, g, h, i, j, k, l] = *row else { continue };
        let (cell, count) =
            (u64::from_be_bytes([a, b, c, d, e, f, g, h]), u32::from_be_bytes([i, j, k, l]));
        let is_after = counts.last_key_value().is_none_or(|(last, _)| *last < (table, cell));
        if !is_after || count == 0 || cell > u64::MAX >> shift {
            return Err("its cells are in disorder");
        }
        counts.insert((table, cell), count);
    }
    Ok((shift, counts))
}

impl Cells {
    fn add(&mut self, table: u8, first: u64, last: u64, reads: u32) {
        self.has_changed = true;
        let (first, last) = (first >> self.shift, last >> self.shift);
        let cells = last.saturating_sub(first).saturating_add(1);
        let mut add = |cell, reads| {
            let count = self.counts.entry((table, cell)).or_default();
            *count = count.saturating_add(reads);
        };
        if cells <= SCAN_CELLS_MAX {
            // Neighbours are about as full as each other.
            let each = (reads / cells as u32).max(1);
            (first..=last).for_each(|cell| add(cell, each));
        } else {
            // What lies between is not known.
            [first, last].into_iter().for_each(|cell| add(cell, reads / 2 + 1));
        }
        while self.counts.len() > CELLS_MAX && self.shift < SHIFT_MAX {
            self.widen();
        }
    }

    fn widen(&mut self) {
        self.shift += 1;
        for ((table, cell), count) in std::mem::take(&mut self.counts) {
            let sum = self.counts.entry((table, cell >> 1)).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    fn age(&mut self) {
        self.counts.retain(|_, count| {
            *count /= 2;
            *count > 0
        });
        if self.shift > SHIFT_MIN && self.counts.len() <= CELLS_MAX / 8 {
            self.shift -= 1;
            let halves = |((table, cell), count): ((u8, u64), u32)| {
                let half = count.div_ceil(2);
                [((table, cell << 1), half), ((table, (cell << 1) | 1), half)]
            };
            self.counts = std::mem::take(&mut self.counts).into_iter().flat_map(halves).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: u64 = 1 << SHIFT_MIN;

    fn read(heat: &Heat, table: u8, position: u64, times: u32) {
        for _ in 0..times * SAMPLE {
            heat.on_reads(table, 1, || (position, position));
        }
    }

    #[test]
    fn a_position_is_the_first_eight_bytes_of_a_key() {
        assert_eq!(position(&[]), 0);
        assert_eq!(position(&[1]), 1 << 56);
        assert_eq!(position(&7u64.to_be_bytes()), 7);
        assert_eq!(position(&[0, 0, 0, 0, 0, 0, 1, 2, 99, 99]), 258);
    }

    #[test]
    fn one_read_of_many_is_counted_and_a_scan_by_its_keys() {
        let heat = Heat::default();
        READS.set(0);
        for read in 1..SAMPLE {
            heat.on_reads(0, 1, || panic!("read {read} is not counted"));
        }
        assert!(!heat.take_change());
        heat.on_reads(0, 1, || (5, 5));
        assert!(heat.take_change() && !heat.take_change());
        heat.on_reads(1, 10 * SAMPLE as usize, || (CELL, 2 * CELL));
        let counts = heat.cells().counts.clone();
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), [((0, 0), 1), ((1, 1), 5), ((1, 2), 5)]);
        // Tables that are read by turns both have theirs.
        let heat = Heat::default();
        for _ in 0..10 * SAMPLE {
            [0, 1].into_iter().for_each(|table| heat.on_reads(table, 1, || (0, 0)));
        }
        assert_eq!(heat.cells().counts.values().copied().collect::<Vec<_>>(), [10, 10]);
    }

    #[test]
    fn the_hottest_come_first_and_neighbours_are_one_range() {
        let heat = Heat::default();
        read(&heat, 1, 0, 2);
        read(&heat, 1, CELL, 3);
        read(&heat, 0, 5 * CELL, 1);
        read(&heat, 0, 9 * CELL, 100);
        let range = |table, first, last| HotRange { table, first, last };
        let expected = [
            range(0, 9 * CELL, 10 * CELL - 1),
            range(1, 0, 2 * CELL - 1),
            range(0, 5 * CELL, 6 * CELL - 1),
        ];
        assert_eq!(heat.ranges(), expected);
        assert_eq!(heat.halves(), [vec![expected[0]], expected[1..].to_vec()]);
        read(&heat, 2, 0, 97);
        let halves = heat.halves().map(|half| half.len());
        assert_eq!(halves, [2, 2], "a class is in one half");
        assert_eq!(Heat::default().halves(), [vec![], vec![]]);
        let heat = Heat::default();
        read(&heat, 1, 0, 2);
        read(&heat, 1, CELL, 3);
        read(&heat, 0, 9 * CELL, 100);
        read(&heat, 0, 5 * CELL, 1);
        heat.age();
        assert_eq!(heat.ranges(), expected[..2], "what was read once is forgotten");
        for _ in 0..7 {
            heat.age();
        }
        assert_eq!(heat.ranges(), []);
        read(&heat, 3, u64::MAX, 1);
        assert_eq!(heat.ranges(), [range(3, u64::MAX - (CELL - 1), u64::MAX)]);
    }

    #[test]
    fn there_are_never_more_cells_than_there_may_be() {
        let heat = Heat::default();
        for at in 0..3 * CELLS_MAX as u64 {
            heat.cells().add(0, at * CELL, at * CELL, 1);
        }
        let len = heat.cells().counts.len();
        assert!(len <= CELLS_MAX && len > CELLS_MAX / 4, "{len}");
        assert_eq!(heat.cells().shift, SHIFT_MIN + 2);
        let covered: u64 = heat.ranges().iter().map(|range| range.last - range.first + 1).sum();
        assert_eq!(covered, 3 * CELLS_MAX as u64 * CELL);
        heat.cells().add(0, 0, u64::MAX, 1000);
        assert!(heat.cells().counts.len() <= len + 1, "what lies between is not known");
        // All is forgotten but what is read still.
        for _ in 0..12 {
            heat.age();
            heat.cells().add(0, 0, 0, 100);
        }
        assert_eq!(heat.cells().shift, SHIFT_MIN);
        assert_eq!(heat.ranges().first().map(|range| range.first), Some(0));
        // Whatever the positions are.
        let heat = Heat::default();
        let mut at = 1u64;
        for _ in 0..4 * CELLS_MAX {
            at = at.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
            heat.cells().add(at as u8, at, at, 1);
            assert!(heat.cells().counts.len() <= CELLS_MAX);
        }
        assert!(heat.encode().len() <= HEAT_BYTES_MAX);
    }

    #[test]
    fn what_was_kept_is_restored_and_nothing_else_is() {
        let heat = Heat::default();
        read(&heat, 1, 77, 2);
        read(&heat, 4, u64::MAX, 300);
        let bytes = heat.encode();
        let other = Heat::default();
        read(&other, 0, 1, 1);
        other.restore(&bytes).unwrap();
        assert_eq!((other.ranges(), other.encode()), (heat.ranges(), bytes.clone()));
        for len in 0..bytes.len() {
            assert!(other.restore(&bytes[..len]).is_err(), "{len}");
        }
        for (at, value) in [(0, 0), (4, 2), (5, 9), (5, 64), (6, 1), (9, 3), (10, 9), (11, 255)] {
            let mut wrong = bytes.clone();
            wrong[at] = value;
            assert!(other.restore(&wrong).is_err(), "{at}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(other.restore(&longer).is_err());
        // Any damage is an error or other counts, and never a panic.
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut wrong = bytes.clone();
                wrong[at] ^= 1 << bit;
                let _ = other.restore(&wrong);
                other.ranges();
                other.age();
            }
        }
        other.restore(&Heat::default().encode()).unwrap();
        assert_eq!(other.ranges(), []);
    }
}

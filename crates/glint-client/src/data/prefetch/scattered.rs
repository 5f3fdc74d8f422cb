//! Small files that are read in no order, as a data loader reads a shuffled list: how many others
//! of their directories to ask for. No I/O.
//!
//! Who reads all files of a tree reads each that was fetched, but late: a few of them are hit by
//! chance. So at first as many bytes are asked for as were read, in directories where two files
//! were, and each hit doubles that. Who reads all of 2 000 files reads some 80 of them alone before
//! the rest is on its way.
//!
//! Invariants:
//! - What is fetched and not read yet is no more than was read, doubled with each hit; and what was
//!   fetched in vain is taken off that. So in the long run no more is fetched in vain than is read.
//! - It is asked for only where there is memory that nothing else that was fetched takes.

use glint_proto::Ino;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Files that were read alone, less those that sequences have brought, from which on files are read
/// in no order; and at most.
const SCORE: u32 = 8;
const SCORE_MAX: u32 = 4 * SCORE;
/// Directories in which such files were read.
const DIRECTORIES_MAX: usize = 1024;
/// Files that are asked for and not read: before one of them is, and at most.
const UNPROVEN_FILES_MAX: usize = 256;
const FILES_MAX: usize = 4096;
/// Bytes below which asking for more does not pay: before one was read, and later.
const UNPROVEN_BYTES_MIN: u64 = 128 << 10;
const BYTES_MIN: u64 = 256 << 10;
/// A file counts as so many bytes, at least: it costs that much to ask for.
const FILE_COST: u64 = 4096;
/// Bytes that were read and not answered for by others in vain.
const CREDIT_MAX: u64 = 32 << 20;
const DOUBLINGS_MAX: u32 = 8;
/// Doublings from which on one file that was read is enough to ask for others of its directory.
const PROVEN: u32 = 2;
/// So many files are read alone in a directory while its names become known; later they are looked
/// for ever more rarely.
const NAMES_COME: u32 = 8;
/// After so many files in a row that were read alone nobody reads what was asked for.
const MISSES_MAX: u32 = 512;

/// A directory in which files are read in no order.
struct TouchedDirectory {
    ino: Ino,
    /// Files that were read alone.
    reads: u32,
    /// All that were known were asked for.
    is_done: bool,
}

/// A file that was asked for, and is not read yet.
struct AskedFile {
    cost: u64,
    /// It was asked for after so many others had come.
    round: u64,
}

/// Files that are to be asked for.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct FilesWanted {
    pub(crate) directories: Vec<Ino>,
    /// Most of them, and their bytes.
    pub(crate) files: usize,
    pub(crate) bytes: u64,
}

/// What was read in no order, and what was asked for because of that.
#[derive(Default)]
pub(crate) struct ScatteredReads {
    score: u32,
    /// The one that was read in last comes last.
    directories: VecDeque<TouchedDirectory>,
    /// Files that were asked for and not read yet, and what all of them cost.
    ahead: BTreeMap<Ino, AskedFile>,
    ahead_cost: u64,
    /// Times at which files were asked for and have come.
    rounds: u64,
    /// What files cost that were read, less those that were fetched in vain.
    credit: u64,
    doublings: u32,
    /// Files that were read alone since one was read that was asked for.
    misses: u32,
    is_asking: bool,
}

fn cost(size: u64) -> u64 {
    size.max(FILE_COST)
}

impl ScatteredReads {
    /// A small file is read for the first time. It was prefetched, in an order or in none, and is
    /// here or on its way; or nothing of it is.
    pub(crate) fn on_read(&mut self, directory: Ino, ino: Ino, size: u64, was_prefetched: bool) {
        let asked = self.forget_file(ino);
        if was_prefetched && asked.is_none() {
            self.score = self.score.saturating_sub(1);
            return;
        }
        // It went with its lock, or did not come, and is no hit. What is overtaken on its way is
        // neither.
        if let Some(asked) = asked.filter(|asked| !was_prefetched && self.has_come(asked)) {
            self.charge(asked.cost);
        }
        self.score = (self.score + 1).min(SCORE_MAX);
        self.credit = (self.credit + cost(size)).min(CREDIT_MAX);
        if was_prefetched {
            self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
            self.misses = 0;
        } else {
            self.misses += 1;
            self.touch(directory);
        }
    }

    /// A file is read alone in a directory.
    fn touch(&mut self, ino: Ino) {
        let at = self.directories.iter().position(|known| known.ino == ino);
        let known = at.and_then(|at| self.directories.remove(at));
        let mut touched = known.unwrap_or(TouchedDirectory { ino, reads: 0, is_done: false });
        touched.reads = touched.reads.saturating_add(1);
        // There are names that were not known: most come with the first ones that are looked up.
        touched.is_done &= touched.reads > NAMES_COME && !touched.reads.is_power_of_two();
        self.directories.push_back(touched);
        if self.directories.len() > DIRECTORIES_MAX {
            self.directories.pop_front();
        }
    }

    /// Whether files are read in no order.
    pub(crate) fn is_on(&self) -> bool {
        self.score >= SCORE
    }

    /// What to ask for now, if there is memory for so many bytes. Until that was asked for, and has
    /// come ([`FilesOnTheirWay`]), nothing else is.
    pub(crate) fn next(&mut self, room: u64) -> Option<FilesWanted> {
        if self.is_asking || !self.is_on() {
            return None;
        }
        let (bytes_min, files_max) = match self.doublings {
            0 => (UNPROVEN_BYTES_MIN, UNPROVEN_FILES_MAX),
            _ => (BYTES_MIN, FILES_MAX),
        };
        let bytes = (self.credit << self.doublings).saturating_sub(self.ahead_cost).min(room);
        let left = files_max.saturating_sub(self.ahead.len());
        if bytes < bytes_min || left == 0 {
            return None;
        }
        let reads_min = if self.doublings < PROVEN { 2 } else { 1 };
        let has_more = |known: &&TouchedDirectory| known.reads >= reads_min && !known.is_done;
        let directories: Vec<Ino> =
            self.directories.iter().filter(has_more).map(|known| known.ino).collect();
        if directories.is_empty() {
            return None;
        }
        self.is_asking = true;
        let files = left.min((bytes / FILE_COST) as usize);
        Some(FilesWanted { directories, files, bytes })
    }

    /// All files of a directory that are known were asked for.
    pub(crate) fn on_all_asked(&mut self, directory: Ino) {
        // It was read in lately.
        if let Some(known) = self.directories.iter_mut().rfind(|known| known.ino == directory) {
            known.is_done = true;
        }
    }

    /// These files are asked for, with their sizes.
    pub(crate) fn on_asked(&mut self, files: &[(Ino, u64)]) {
        for (ino, size) in files {
            self.forget_file(*ino);
            let asked = AskedFile { cost: cost(*size), round: self.rounds };
            self.ahead_cost += asked.cost;
            self.ahead.insert(*ino, asked);
        }
    }

    /// What was asked for has come.
    fn on_come(&mut self) {
        self.is_asking = false;
        self.rounds += 1;
    }

    /// A file that was fetched is dropped, and nobody has read it.
    pub(crate) fn on_dropped(&mut self, ino: Ino) {
        if let Some(asked) = self.forget_file(ino) {
            self.charge(asked.cost);
        }
    }

    /// A file was fetched in vain.
    fn charge(&mut self, cost: u64) {
        self.credit = self.credit.saturating_sub(cost);
        self.doublings = self.doublings.saturating_sub(1);
    }

    /// Whether a file has come, if it is to.
    fn has_come(&self, asked: &AskedFile) -> bool {
        !self.is_asking || asked.round < self.rounds
    }

    /// Takes all files that were asked for, once so many others were read that nobody reads them
    /// any more: they take memory.
    pub(crate) fn take_stale(&mut self) -> Vec<Ino> {
        if self.misses < MISSES_MAX || self.is_asking {
            return Vec::new();
        }
        self.credit = self.credit.saturating_sub(self.ahead_cost);
        (self.misses, self.doublings, self.ahead_cost) = (0, 0, 0);
        std::mem::take(&mut self.ahead).into_keys().collect()
    }

    /// Forgets all: nobody has used this client for long.
    pub(crate) fn forget(&mut self) {
        let (rounds, is_asking) = (self.rounds, self.is_asking);
        *self = ScatteredReads { rounds, is_asking, ..ScatteredReads::default() };
    }

    /// Takes a file away, if it was asked for.
    fn forget_file(&mut self, ino: Ino) -> Option<AskedFile> {
        let asked = self.ahead.remove(&ino)?;
        self.ahead_cost -= asked.cost;
        Some(asked)
    }
}

/// Files that were asked for. When this is dropped, they have come, or nobody waits for them any
/// more.
pub(super) struct FilesOnTheirWay(Arc<Mutex<ScatteredReads>>);

impl FilesOnTheirWay {
    /// Files that are about to be asked for because of these reads.
    pub(super) fn new(of: &Arc<Mutex<ScatteredReads>>) -> FilesOnTheirWay {
        FilesOnTheirWay(of.clone())
    }
}

impl Drop for FilesOnTheirWay {
    fn drop(&mut self) {
        self.0.lock().on_come();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::future::pending;

    const SIZE: u64 = 16 << 10;
    /// Memory for what is fetched.
    const ROOM: u64 = 28 << 20;

    /// A program that reads files of a tree, each once: `per` in each directory.
    struct TreeReads {
        scattered: ScatteredReads,
        per: u64,
        /// What is here, and was read.
        here: HashSet<u64>,
        read: HashSet<u64>,
        alone: u64,
        /// Times at which something was asked for.
        asked: u64,
    }

    impl TreeReads {
        fn of(per: u64) -> TreeReads {
            let (here, read) = (HashSet::new(), HashSet::new());
            let scattered = ScatteredReads::default();
            TreeReads { scattered, per, here, read, alone: 0, asked: 0 }
        }

        fn room(&self) -> u64 {
            ROOM.saturating_sub(self.here.len() as u64 * SIZE)
        }

        fn read(&mut self, file: u64) {
            let was_prefetched = self.here.remove(&file);
            self.alone += u64::from(!was_prefetched);
            self.read.insert(file);
            self.scattered.on_read(Ino(file / self.per), Ino(file), SIZE, was_prefetched);
            for ino in self.scattered.take_stale() {
                self.here.remove(&ino.0);
            }
            let Some(wanted) = self.scattered.next(self.room()) else { return };
            assert_eq!(self.scattered.next(ROOM), None, "one after the other");
            let mut files = Vec::new();
            for directory in wanted.directories {
                let first = directory.0 * self.per;
                let mut new = (first..first + self.per)
                    .filter(|file| !self.read.contains(file) && !self.here.contains(file));
                let left = wanted.files.min((wanted.bytes / SIZE) as usize) - files.len();
                files.extend(new.by_ref().take(left).map(|file| (Ino(file), SIZE)));
                if new.next().is_none() {
                    self.scattered.on_all_asked(directory);
                }
            }
            self.asked += u64::from(!files.is_empty());
            self.here.extend(files.iter().map(|(ino, _)| ino.0));
            self.scattered.on_asked(&files);
            self.scattered.on_come();
        }
    }

    /// All numbers below a limit, in an order that looks random.
    fn shuffled(count: u64) -> Vec<u64> {
        let mut numbers: Vec<u64> = (0..count).collect();
        let mut random = 1_u64;
        for at in (1..count).rev() {
            random = random.wrapping_mul(6_364_136_223_846_793_005);
            random = random.wrapping_add(1_442_695_040_888_963_407);
            numbers.swap(at as usize, ((random >> 33) % (at + 1)) as usize);
        }
        numbers
    }

    #[test]
    fn who_reads_all_of_a_tree_in_any_order_reads_few_files_alone() {
        for (directories, per, alone_max) in [(20, 100, 200), (1, 1000, 200), (100, 10, 300)] {
            let mut reads = TreeReads::of(per);
            shuffled(directories * per).into_iter().for_each(|file| reads.read(file));
            assert!(reads.alone <= alone_max, "{directories}: {} alone", reads.alone);
            assert!(reads.asked <= 150, "{directories}: asked {} times", reads.asked);
            assert!(reads.here.is_empty() && reads.scattered.ahead.is_empty());
            assert_eq!(reads.scattered.ahead_cost, 0);
        }
    }

    #[test]
    fn a_tree_that_is_larger_than_memory_is_fetched_as_far_as_there_is_room() {
        let mut reads = TreeReads::of(100);
        for file in shuffled(4000) {
            reads.read(file);
            assert!(reads.here.len() as u64 * SIZE <= ROOM);
        }
        assert!(reads.alone <= 1600, "{} alone", reads.alone);
    }

    #[test]
    fn one_file_in_each_directory_has_nothing_fetched() {
        let mut reads = TreeReads::of(10);
        (0..2000).for_each(|directory| reads.read(10 * directory + 3));
        assert_eq!((reads.alone, reads.asked), (2000, 0));
    }

    #[test]
    fn before_a_hit_no_more_is_fetched_than_was_read() {
        let mut reads = TreeReads::of(1_000_000);
        // Files that are fetched are the first ones.
        for file in 0..200 {
            reads.read(500_000 + file * 7);
            assert!(reads.here.len() as u64 <= file + 1);
        }
        assert!(reads.asked > 0);
        for file in 200..500 {
            reads.read(500_000 + file * 7);
            assert!(reads.here.len() <= UNPROVEN_FILES_MAX);
        }
        // Nobody has read them for so long.
        (500..600).for_each(|file| reads.read(500_000 + file * 7));
        assert!(reads.scattered.credit <= (600 - UNPROVEN_FILES_MAX as u64) * SIZE);
    }

    #[test]
    fn what_is_dropped_has_less_fetched() {
        let mut scattered = ScatteredReads::default();
        (0..64).for_each(|file| scattered.on_read(Ino(1), Ino(100 + file), SIZE, false));
        let wanted = scattered.next(ROOM).unwrap();
        assert_eq!((wanted.directories, wanted.bytes), (vec![Ino(1)], 64 * SIZE));
        let files: Vec<(Ino, u64)> = (0..64).map(|file| (Ino(1000 + file), SIZE)).collect();
        scattered.on_asked(&files);
        scattered.on_come();
        assert_eq!(scattered.next(ROOM), None, "as much as was read");
        (0..3).for_each(|file| scattered.on_read(Ino(1), Ino(1000 + file), SIZE, true));
        assert_eq!(scattered.next(ROOM).map(|wanted| wanted.bytes), Some((67 * 8 - 61) * SIZE));
        scattered.on_come();
        (3..64).for_each(|file| scattered.on_dropped(Ino(1000 + file)));
        assert_eq!(scattered.next(ROOM), None);
        assert_eq!((scattered.credit, scattered.doublings), (6 * SIZE, 0));
    }

    /// Another client writes to files after they were fetched, or nothing came of them.
    #[test]
    fn what_is_gone_when_it_is_read_was_fetched_in_vain() {
        let mut scattered = ScatteredReads::default();
        (0..64).for_each(|file| scattered.on_read(Ino(1), Ino(100 + file), SIZE, false));
        let ask = |scattered: &mut ScatteredReads, first: u64| {
            assert!(scattered.next(ROOM).is_some());
            let files: Vec<(Ino, u64)> =
                (first..first + 32).map(|file| (Ino(file), SIZE)).collect();
            scattered.on_asked(&files);
        };
        ask(&mut scattered, 1000);
        scattered.on_come();
        (0..3).for_each(|file| scattered.on_read(Ino(1), Ino(1000 + file), SIZE, true));
        assert_eq!((scattered.credit, scattered.doublings), (67 * SIZE, 3));
        scattered.on_read(Ino(1), Ino(1003), SIZE, false);
        assert_eq!((scattered.credit, scattered.doublings), (67 * SIZE, 2));
        ask(&mut scattered, 2000);
        scattered.on_read(Ino(1), Ino(1004), SIZE, false);
        assert_eq!((scattered.credit, scattered.doublings), (67 * SIZE, 1));
        scattered.on_read(Ino(1), Ino(2000), SIZE, false);
        assert_eq!((scattered.credit, scattered.doublings), (68 * SIZE, 1), "it is on its way");
        scattered.on_come();
        scattered.on_read(Ino(1), Ino(2001), SIZE, false);
        assert_eq!((scattered.credit, scattered.doublings), (68 * SIZE, 0));
    }

    #[test]
    fn others_are_asked_for_after_a_task_that_does_not_come_to_its_end() {
        let scattered = Arc::new(Mutex::new(ScatteredReads::default()));
        let next = || scattered.lock().next(ROOM);
        for file in 0..64 {
            scattered.lock().on_read(Ino(1), Ino(100 + file), SIZE, false);
        }
        assert!(next().is_some());
        let on_their_way = FilesOnTheirWay::new(&scattered);
        let task = async move {
            pending::<()>().await;
            drop(on_their_way);
        };
        assert_eq!(next(), None);
        drop(task);
        assert!(next().is_some());
    }

    #[test]
    fn sequences_end_it() {
        let mut scattered = ScatteredReads::default();
        (0..100).for_each(|file| scattered.on_read(Ino(1), Ino(100 + file), SIZE, false));
        assert!(scattered.is_on());
        (0..100).for_each(|file| scattered.on_read(Ino(1), Ino(1000 + file), SIZE, true));
        assert!(!scattered.is_on());
        // Two files of each directory, before a sequence brings the others.
        for directory in 0..100 {
            let ino = |file: u64| Ino(10_000 + 10 * directory + file);
            (0..10).for_each(|n| scattered.on_read(Ino(directory), ino(n), SIZE, n >= 2));
            assert!(!scattered.is_on());
        }
    }
}

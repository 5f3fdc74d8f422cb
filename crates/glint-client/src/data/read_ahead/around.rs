//! Small reads anywhere in a file: whether to fetch a window around one, because others will follow
//! there. No I/O.
//!
//! A request costs some 50 us, 64 KiB in place of 4 some 25 us more, and as much to put them into
//! the kernel's pages, where later reads cost nothing. So a window pays from one later read on.
//! The kernel does not tell of those: a few windows are kept here instead, and their reads counted.
//! After a trial of so many misses that says how it goes on:
//! - A file for which there is room has windows fetched from the beginning, until as many were as
//!   it has: all of it costs little more than reading it once from one end to the other.
//! - Any other has to earn it. Of its misses 1 in 16 has a window fetched, a few in all, which are
//!   kept for some time; if they did not pay, 1 in 64, in trials four times as long, and so on. So
//!   it becomes known whether they pay sooner or later, and random reads of a large database fetch
//!   a few percent more than they ask for.
//! - Once they do, each miss has one, and each trial is as long as the one that they paid in.
//!
//! Invariant: as what is read ahead, a window is used only while the stamp is what it was before
//! the window was fetched.

use crate::data::read_ahead::{BlockAhead, PAGE, ReadAheadMemory};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a window.
const WINDOW: u64 = 64 << 10;
/// Windows that are kept in a trial.
const KEPT: u64 = 16;
/// One of so many windows is kept where each miss has one.
const ONE_OF: u64 = 8;
/// One of so many misses has a window, at first and at last, where they do not pay.
const EVERY: Range<u64> = 16..1024;

const _: () = assert!(WINDOW / PAGE <= 64, "a bit for each page");

/// A part of a file that was fetched because of a read in it, or is on its way.
struct Window {
    block: Arc<BlockAhead>,
    is_kept: bool,
    /// Pages that were read, by bits.
    pages: u64,
    /// Reads of others of its pages than were read before.
    hits: u64,
}

impl Window {
    fn has(&self, read: &Range<u64>) -> bool {
        self.block.offset <= read.start && read.end <= self.block.end()
    }

    fn on_read(&mut self, read: &Range<u64>) {
        let page = |at: u64| (at - self.block.offset) / PAGE;
        let (first, last) = (page(read.start), page(read.end - 1));
        let pages = (u64::MAX >> (63 - (last - first))) << first;
        self.hits += u64::from(self.pages != 0 && pages & !self.pages != 0);
        self.pages |= pages;
    }
}

/// Where a small read comes from.
pub(crate) enum Around {
    /// It is asked for alone.
    Alone,
    /// A window that is here, or on its way.
    Window(Arc<BlockAhead>),
    /// A window that is to be fetched, and kept or given to the kernel.
    Fetch { window: Arc<BlockAhead>, is_kept: bool },
}

/// Small reads of a file, and the windows around them.
pub(crate) struct ReadAround {
    stamp: u64,
    windows: Vec<Window>,
    /// Windows that were kept in this trial until the data changed, and their hits.
    gone: (u64, u64),
    /// One of so many misses has a window.
    every: u64,
    /// Misses in this trial, and in a whole one.
    misses: u64,
    trial: u64,
}

impl ReadAround {
    /// A file of `size` bytes, where there is room for so many.
    pub(crate) fn new(size: u64, room: u64) -> ReadAround {
        let (every, trial) = match size <= room {
            true => (1, (size / WINDOW).max(KEPT * ONE_OF)),
            false => (EVERY.start, 2 * KEPT * EVERY.start),
        };
        ReadAround { stamp: 0, windows: Vec::new(), gone: (0, 0), every, misses: 0, trial }
    }

    /// A program reads a little, within a file of `size` bytes.
    pub(crate) fn plan(
        &mut self,
        read: &Range<u64>,
        size: u64,
        stamp: u64,
        memory: &ReadAheadMemory,
    ) -> Around {
        if self.stamp != stamp {
            // Where data changes all the time, that is why they do not pay.
            self.gone = self.tally();
            self.windows.clear();
            self.stamp = stamp;
        }
        if let Some(window) = self.windows.iter_mut().find(|window| window.has(read)) {
            window.on_read(read);
            return Around::Window(window.block.clone());
        }
        self.judge();
        self.misses += 1;
        let one_of = if self.every == 1 { ONE_OF } else { self.every };
        // Those of files that nobody reads any more stay: the rest is for what is read ahead.
        let is_kept =
            self.misses.is_multiple_of(one_of) && self.tally().0 < KEPT && !memory.is_half_used();
        let start = read.start - read.start % WINDOW;
        let end = (start + WINDOW).min(size);
        if (self.every > 1 && !is_kept) || read.end > end {
            return Around::Alone;
        }
        let Some(block) = BlockAhead::coming(start, end - start, memory) else {
            return Around::Alone;
        };
        let mut window = Window { block: block.clone(), is_kept, pages: 0, hits: 0 };
        window.on_read(read);
        self.windows.push(window);
        Around::Fetch { window: block, is_kept }
    }

    /// Forgets a window: the kernel has it, or it did not come.
    pub(crate) fn forget(&mut self, window: &Arc<BlockAhead>) {
        self.windows.retain(|known| !Arc::ptr_eq(&known.block, window));
    }

    fn kept(&self) -> impl Iterator<Item = &Window> {
        self.windows.iter().filter(|window| window.is_kept)
    }

    /// Windows that were kept in this trial, and their hits.
    fn tally(&self) -> (u64, u64) {
        self.kept().fold(self.gone, |(kept, hits), one| (kept + 1, hits + one.hits))
    }

    /// Ends the trial if it is over, or half of it has shown that windows do not pay.
    fn judge(&mut self) {
        let (kept, hits) = self.tally();
        let is_on = self.every == 1;
        let is_vain = is_on && hits == 0 && kept == KEPT && self.misses >= self.trial / 2;
        if self.misses < self.trial && !is_vain {
            return;
        }
        (self.misses, self.gone) = (0, (0, 0));
        self.windows.retain(|window| !window.is_kept);
        self.every = match is_on {
            // It begins with a later read for each, and ends where only every other has one.
            true if 2 * hits >= kept => 1,
            false if kept > 0 && hits >= kept => 1,
            true => EVERY.start,
            false => (4 * self.every).min(EVERY.end),
        };
        if self.every > 1 {
            self.trial = 2 * KEPT * self.every;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::read_ahead::memory;
    use std::collections::HashSet;

    const ROOM: u64 = 1 << 30;
    const HUGE: u64 = 100 << 30;

    /// A file that is read a page at a time, and a kernel with pages of it.
    struct Reads {
        around: ReadAround,
        size: u64,
        memory: ReadAheadMemory,
        kernel: HashSet<u64>,
        random: u64,
        reads: u64,
        requests: u64,
        bytes: u64,
        stamp: u64,
    }

    impl Reads {
        fn of(size: u64) -> Reads {
            let (memory, kernel) = (ReadAheadMemory::default(), HashSet::new());
            let around = ReadAround::new(size, ROOM);
            let (random, reads, requests, bytes, stamp) = (1, 0, 0, 0, 1);
            Reads { around, size, memory, kernel, random, reads, requests, bytes, stamp }
        }

        fn is_on(&self) -> bool {
            self.around.every == 1
        }

        fn read(&mut self, page: u64) {
            self.reads += 1;
            if !self.kernel.insert(page) {
                return;
            }
            let read = page * PAGE..(page + 1) * PAGE;
            let bytes = match self.around.plan(&read, self.size, self.stamp, &self.memory) {
                Around::Window(window) => {
                    assert!(window.offset <= read.start && read.end <= window.end());
                    return;
                }
                Around::Alone => PAGE,
                Around::Fetch { window, is_kept } => {
                    assert!(window.offset <= read.start && read.end <= window.end());
                    if !is_kept {
                        self.kernel.extend(window.offset / PAGE..window.end().div_ceil(PAGE));
                        self.around.forget(&window);
                    }
                    window.len
                }
            };
            (self.requests, self.bytes) = (self.requests + 1, self.bytes + bytes);
            assert!(self.around.windows.len() <= KEPT as usize);
        }

        /// Reads some pages out of so many, in any order.
        fn read_any(&mut self, reads: u64, pages: Range<u64>) {
            for _ in 0..reads {
                self.random = self.random.wrapping_mul(6_364_136_223_846_793_005);
                self.random = self.random.wrapping_add(1_442_695_040_888_963_407);
                self.read(pages.start + (self.random >> 24) % (pages.end - pages.start));
            }
        }
    }

    #[test]
    fn a_quarter_of_a_file_for_which_there_is_room_takes_a_request_for_four_reads() {
        for size in [4 << 20, 64 << 20, 512 << 20] {
            let mut file = Reads::of(size);
            file.read_any(size / PAGE / 4, 0..size / PAGE);
            assert!(10 * file.requests <= 3 * file.reads, "{} of {}", file.requests, file.reads);
            assert!(file.is_on());
        }
    }

    #[test]
    fn a_large_database_is_read_block_by_block() {
        let mut file = Reads::of(HUGE);
        file.read_any(100_000, 0..HUGE / PAGE);
        assert!(100 * file.bytes <= 103 * file.reads * PAGE, "{} bytes", file.bytes);
        assert!(file.around.every == EVERY.end);
    }

    #[test]
    fn blocks_that_are_read_again_and_again_have_no_windows() {
        let mut file = Reads::of(HUGE);
        for n in 0..100_000 {
            // The kernel keeps nothing.
            file.kernel.clear();
            file.read(n * 617 % 1000 * 1000);
        }
        assert!(100 * file.bytes <= 103 * file.reads * PAGE && !file.is_on());
    }

    #[test]
    fn one_block_of_each_window_is_found_out() {
        let mut file = Reads::of(512 << 20);
        for n in 0..8192 {
            file.read(n * 4815 % 8192 * (WINDOW / PAGE));
        }
        assert!(file.bytes < 300 << 20 && !file.is_on(), "{} bytes", file.bytes);
    }

    #[test]
    fn windows_that_are_kept_leave_half_of_the_memory_to_others() {
        let pages = (64 << 20) / PAGE;
        let mut file = Reads::of(64 << 20);
        let other = BlockAhead::coming(0, memory::MAX as u64 / 2, &file.memory);
        file.read_any(1000, 0..pages);
        assert!(file.is_on() && file.around.windows.is_empty(), "the kernel has all");
        drop(other);
        file.read_any(200, 0..pages);
        assert!(file.around.kept().count() > 0);
    }

    /// Another client writes to it between any four reads.
    #[test]
    fn windows_that_go_before_a_later_read_do_not_pay() {
        let mut file = Reads::of(512 << 20);
        for _ in 0..4096 {
            file.read_any(4, 0..file.size / PAGE);
            file.stamp += 1;
            file.kernel.clear();
        }
        assert!(!file.is_on());
        let before = (file.reads, file.bytes);
        for _ in 0..4096 {
            file.read_any(4, 0..file.size / PAGE);
            file.stamp += 1;
            file.kernel.clear();
        }
        let (reads, bytes) = (file.reads - before.0, file.bytes - before.1);
        assert!(10 * bytes <= 12 * reads * PAGE, "{bytes} bytes");
    }

    #[test]
    fn a_part_of_a_large_file_earns_windows_until_reads_go_elsewhere() {
        let mut file = Reads::of(HUGE);
        let pages = (64 << 20) / PAGE;
        file.read_any(2 * pages, 1 << 20..(1 << 20) + pages);
        assert!(file.is_on() && 4 * file.requests < file.reads, "{} requests", file.requests);
        file.read_any(5000, 0..HUGE / PAGE);
        assert!(!file.is_on());
    }

    #[test]
    fn windows_end_with_the_stamp_and_with_the_file() {
        let (mut around, memory) =
            (ReadAround::new(WINDOW + 100, ROOM), ReadAheadMemory::default());
        let mut read = |read: Range<u64>, stamp| around.plan(&read, WINDOW + 100, stamp, &memory);
        let Around::Fetch { window, .. } = read(WINDOW + 10..WINDOW + 20, 1) else { panic!() };
        assert_eq!((window.offset, window.len), (WINDOW, 100));
        assert!(matches!(read(WINDOW..WINDOW + 100, 1), Around::Window(_)), "on its way");
        assert!(matches!(read(WINDOW..WINDOW + 100, 2), Around::Fetch { .. }));
        assert!(matches!(read(WINDOW - 10..WINDOW + 10, 2), Around::Alone), "of two windows");
        drop((around, window));
        assert_eq!(memory.used(), 0);
    }
}

//! Small files of one directory that are read one after the other: which are likely to be next. No
//! I/O.
//!
//! Two files that were read begin a sequence: in the order of names, of inode numbers, or of the
//! directory's last listing, whichever has them nearest to each other. While sequences elsewhere go
//! on, one file does, if an order begins with it. A few of those that follow are asked for, and twice
//! as many when the first of these is read, so that the reader does not catch up with them; once they
//! are many, when half of them were read. A guess that was wrong makes the next one rarer: what is
//! asked for in vain is a small part.
//!
//! Files may be asked for before any of their directory is read, where a sequence goes on from
//! another directory: in the order of that one (`directories.rs`).

use glint_proto::Ino;
use std::collections::VecDeque;

/// Files that are asked for when a sequence begins, and at most.
const WINDOW_MIN: usize = 4;
const WINDOW_MAX: usize = 128;
/// Files that are asked for when a directory's first file begins one, or before that.
pub(crate) const WINDOW_GUESSED: usize = 16;
/// Doublings of the files that are read in vain before another sequence is looked for.
const ATTEMPTS_MAX: u32 = 10;
/// Files of a listing that are noted.
const LISTED_MAX: usize = 20_000;

/// Order in which the files of a directory are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ReadOrder {
    /// As a program was told of them.
    #[default]
    Listed,
    ByName,
    ByNumber,
    NamesBackwards,
}

/// What was read in a directory, and what is likely to be next.
#[derive(Default)]
pub(crate) struct PrefetchPlan {
    /// What was read last.
    last: Option<Ino>,
    /// Files, as a program was told of them.
    listed: Vec<Ino>,
    /// In this order they are read, perhaps.
    queue: VecDeque<Ino>,
    order: ReadOrder,
    /// A program was told of files since one was read.
    is_listed: bool,
    /// The queue began before any of these was read.
    is_ahead: bool,
    /// The next ones in the queue are not known yet.
    is_waiting: bool,
    /// The file with which the queue began came right after the one before it.
    is_next_to_last: bool,
    /// Names of files here were counted among those of all directories.
    is_counted: bool,
    /// When this one is read, more are asked for.
    marker: Option<Ino>,
    window: usize,
    /// Sequences that were looked for since one went on.
    attempts: u32,
    /// Files that nobody had prefetched since.
    surprises: u32,
}

/// What is to be done when a file is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    Nothing,
    /// Ask for so many more.
    More(usize),
    /// Look for a sequence that begins with it.
    Sequence,
}

impl PrefetchPlan {
    /// A program lists the directory, and these files come next; all over again if `is_begin`.
    /// Returns whether they are the first ones.
    pub(crate) fn list(&mut self, is_begin: bool, files: impl Iterator<Item = Ino>) -> bool {
        if is_begin {
            self.listed.clear();
            self.is_ahead = false;
        }
        let before = self.listed.len();
        self.listed.extend(files.take(LISTED_MAX - before));
        let new = &self.listed[before..];
        match (self.is_ahead, self.order) {
            (true, ReadOrder::Listed) => self.queue.extend(new),
            (true, ReadOrder::ByNumber) => {
                self.queue.extend(new);
                self.queue.make_contiguous().sort_unstable();
            }
            _ => {}
        }
        let is_first = before == 0 && !new.is_empty();
        self.is_listed |= is_first;
        is_first
    }

    /// Counts the names of files here: in the last listing, and in the order in which they are read.
    /// `None` if there are none, as before.
    pub(crate) fn count(&mut self) -> Option<usize> {
        let names = self.listed.len() + self.queue.len();
        let was_counted = std::mem::replace(&mut self.is_counted, names > 0);
        (names > 0 || was_counted).then_some(names)
    }

    /// Forgets what was listed, and the order in which files are read: that takes memory. They are
    /// not counted any more.
    pub(crate) fn forget_names(&mut self) {
        (self.listed, self.queue, self.marker) = Default::default();
        (self.is_counted, self.is_listed, self.is_ahead) = Default::default();
        self.is_waiting = false;
    }

    /// A file is read for the first time; it was prefetched or not. Whether the first one of a
    /// directory `may_begin` a sequence.
    pub(crate) fn on_read(&mut self, ino: Ino, was_prefetched: bool, may_begin: bool) -> Next {
        self.is_listed = false;
        if was_prefetched && self.marker == Some(ino) {
            self.marker = None;
            (self.attempts, self.surprises) = (0, 0);
            self.window = (2 * self.window).min(WINDOW_MAX);
            return Next::More(self.window);
        }
        let is_next = self.queue.front() == Some(&ino);
        if self.is_waiting && (was_prefetched || is_next) {
            self.is_waiting = false;
            if is_next {
                self.queue.pop_front();
            }
            return Next::More(self.window);
        }
        if was_prefetched {
            return Next::Nothing;
        }
        self.surprises += 1;
        match (self.is_first() && may_begin)
            || self.surprises > 1 << self.attempts.min(ATTEMPTS_MAX)
        {
            true => Next::Sequence,
            false => Next::Nothing,
        }
    }

    /// Whether nothing was read before.
    pub(crate) fn is_first(&self) -> bool {
        self.last.is_none()
    }

    /// Notes what was read last.
    pub(crate) fn note(&mut self, ino: Ino) {
        self.last = Some(ino);
    }

    /// Begins a sequence: `files` are all that could be in it, with the one that is being read.
    /// Returns how many are to be asked for.
    pub(crate) fn begin<'a>(
        &mut self,
        ino: Ino,
        files: impl Iterator<Item = (&'a [u8], Ino)>,
    ) -> usize {
        let mut files: Vec<(&[u8], Ino)> = files.collect();
        files.sort_unstable();
        let by_name: Vec<Ino> = files.iter().map(|(_, ino)| *ino).collect();
        let backwards = by_name.iter().rev().copied().collect();
        let mut by_number = by_name.clone();
        by_number.sort_unstable();

        let last = self.last;
        let place = |order: &[Ino], of: Ino| order.iter().position(|ino| *ino == of);
        // How far it is from the last one to this one; from the beginning, if this is the first.
        let step = |order: &Vec<Ino>| {
            let before = last.map_or(Some(0), |last| Some(place(order, last)? + 1))?;
            place(order, ino)?.checked_sub(before)
        };
        // Of two that are alike the one that is known of other directories before they are read.
        let listed = Some(self.listed.clone()).filter(|listed| step(listed).is_some());
        let others = [
            (ReadOrder::ByName, by_name),
            (ReadOrder::ByNumber, by_number),
            (ReadOrder::NamesBackwards, backwards),
        ];
        let orders = listed.map(|listed| (ReadOrder::Listed, listed)).into_iter().chain(others);
        let nearest = orders.min_by_key(|(_, order)| step(order).unwrap_or(usize::MAX));
        let Some((kind, mut order)) = nearest else { return 0 };
        if last.is_none() && step(&order) != Some(0) {
            return 0;
        }
        self.is_next_to_last = step(&order) == Some(0);
        // Those before it come last: whoever reads in another order reads them, too.
        if let Some(at) = place(&order, ino) {
            order.rotate_left(at);
            order.remove(0);
        }
        self.queue = order.into();
        (self.order, self.is_ahead, self.is_waiting) = (kind, false, false);
        self.marker = None;
        (self.attempts, self.surprises) = (self.attempts + 1, 0);
        self.window = if last.is_none() { WINDOW_GUESSED } else { WINDOW_MIN };
        self.window
    }

    /// A sequence goes on here from another directory, where it was in this order and asked for so
    /// many files: begins with all files of this one, if a program was told of them and none was read
    /// since. `files` are all whose names are known. Returns whether there is something to ask for.
    pub(crate) fn follow<'a>(
        &mut self,
        order: ReadOrder,
        window: usize,
        files: impl Iterator<Item = (&'a [u8], Ino)>,
    ) -> bool {
        if self.is_listed {
            let mut queue = match order {
                ReadOrder::Listed | ReadOrder::ByNumber => self.listed.clone(),
                ReadOrder::ByName | ReadOrder::NamesBackwards => {
                    let mut files: Vec<(&[u8], Ino)> = files.collect();
                    files.sort_unstable();
                    files.into_iter().map(|(_, ino)| ino).collect()
                }
            };
            match order {
                ReadOrder::Listed | ReadOrder::ByName => {}
                ReadOrder::ByNumber => queue.sort_unstable(),
                ReadOrder::NamesBackwards => queue.reverse(),
            }
            self.queue = queue.into();
            (self.order, self.is_ahead, self.is_listed) = (order, true, false);
            (self.attempts, self.surprises, self.marker) = (0, 0, None);
            self.is_waiting = false;
        }
        if !self.is_ahead || self.queue.is_empty() {
            return false;
        }
        self.window = window;
        true
    }

    /// Whether the sequence began with two files that come one right after the other, or the first.
    pub(crate) fn is_next_to_last(&self) -> bool {
        self.is_next_to_last
    }

    /// Files are read in no order: has all of them be asked for, unless some are to be already.
    pub(crate) fn scatter(&mut self, files: impl Iterator<Item = Ino>) {
        if self.queue.is_empty() {
            self.queue = files.collect();
            (self.is_ahead, self.is_waiting, self.marker) = (false, false, None);
        }
    }

    /// Whether there are files to ask for.
    pub(crate) fn has_more(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether files were asked for before any was read.
    pub(crate) fn is_ahead(&self) -> bool {
        self.is_ahead
    }

    /// How many files are asked for together now, and in which order they are read.
    pub(crate) fn pace(&self) -> (usize, ReadOrder) {
        (self.window, self.order)
    }

    /// How many files are noted as a program was told of them.
    #[cfg(test)]
    pub(crate) fn listed(&self) -> usize {
        self.listed.len()
    }

    /// The next ones in the sequence.
    pub(crate) fn pop(&mut self, many: usize) -> Vec<Ino> {
        let next = self.queue.drain(..many.min(self.queue.len())).collect();
        if self.queue.is_empty() {
            self.queue = VecDeque::new();
        }
        next
    }

    /// Takes these back, which are not known yet. More are asked for as soon as one is read that is
    /// in the order.
    pub(crate) fn put_back(&mut self, files: &[Ino]) {
        files.iter().rev().for_each(|ino| self.queue.push_front(*ino));
        self.is_waiting = true;
    }

    /// When this one is read, more are to be asked for.
    pub(crate) fn mark(&mut self, ino: Ino) {
        self.marker = Some(ino);
    }
}

/// Which of `count` files that are asked for together is read when more are: as many as are ahead
/// then are read while those come.
pub(crate) fn marker(window: usize, count: usize) -> usize {
    if window < WINDOW_MAX { 0 } else { count / 2 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Reads these files, with inode numbers; returns how many of them were prefetched, and how many
    /// were in vain.
    fn read_with(
        mut plan: PrefetchPlan,
        files: &[(Vec<u8>, Ino)],
        order: impl Iterator<Item = usize>,
        may_begin: bool,
    ) -> (usize, usize) {
        let (mut asked, mut here, mut hits) = (HashSet::new(), HashSet::new(), 0);
        for at in order {
            let ino = files[at].1;
            let prefetched = asked.remove(&ino);
            hits += usize::from(prefetched);
            let many = match plan.on_read(ino, prefetched, may_begin) {
                Next::Nothing => 0,
                Next::More(many) => many,
                Next::Sequence => {
                    plan.begin(ino, files.iter().map(|(name, ino)| (name.as_slice(), *ino)))
                }
            };
            plan.note(ino);
            here.insert(ino);
            let new: Vec<Ino> =
                plan.pop(many).into_iter().filter(|ino| !here.contains(ino)).collect();
            if let Some(ino) = new.get(marker(plan.pace().0, new.len())) {
                plan.mark(*ino);
            }
            asked.extend(new);
        }
        (hits, asked.len())
    }

    fn read(files: &[(Vec<u8>, Ino)], order: impl Iterator<Item = usize>) -> (usize, usize) {
        read_with(PrefetchPlan::default(), files, order, false)
    }

    /// Names and numbers in different orders.
    fn files(count: u64) -> Vec<(Vec<u8>, Ino)> {
        let name = |n: u64| format!("{:05}", n * 7919 % 10_007).into_bytes();
        (0..count).map(|n| (name(n), Ino(n + 100))).collect()
    }

    /// A directory that was listed in pages, in this order.
    fn listed(files: &[(Vec<u8>, Ino)], order: &[usize]) -> PrefetchPlan {
        let mut plan = PrefetchPlan::default();
        plan.list(true, [Ino(1), Ino(2)].into_iter());
        for (page, order) in order.chunks(37).enumerate() {
            plan.list(page == 0, order.iter().map(|at| files[*at].1));
        }
        plan
    }

    #[test]
    fn what_is_read_in_order_is_prefetched() {
        let files = files(1000);
        let mut by_name: Vec<usize> = (0..1000).collect();
        by_name.sort_by_key(|at| &files[*at].0);
        let orders: [(&str, Vec<usize>); 3] = [
            ("in the order of inode numbers", (0..1000).collect()),
            ("of names", by_name.clone()),
            ("backwards", by_name.into_iter().rev().collect()),
        ];
        for (order, files_read) in orders {
            let (hits, vain) = read(&files, files_read.into_iter());
            assert!(hits == 998 && vain == 0, "{order}: {hits} of 1000, {vain} in vain");
        }
    }

    #[test]
    fn what_is_read_as_it_was_listed_is_prefetched() {
        let files = files(1000);
        let order: Vec<usize> = (0..1000).map(|n| n * 377 % 1000).collect();
        assert!(read(&files, order.iter().copied()).0 < 500, "an order that nobody can guess");
        let (hits, vain) = read_with(listed(&files, &order), &files, order.into_iter(), false);
        assert_eq!((hits, vain), (998, 0));
    }

    #[test]
    fn the_first_file_of_an_order_may_begin_a_sequence() {
        let files = files(30);
        let order: Vec<usize> = (0..30).map(|n| (n * 7 + 11) % 30).collect();
        let plan = || listed(&files, &order);
        let in_order = || order.iter().copied();
        assert_eq!(read_with(plan(), &files, in_order(), true), (29, 0));
        assert_eq!(read_with(plan(), &files, in_order(), false), (28, 0));
        // Another one says nothing.
        assert_eq!(read_with(plan(), &files, in_order().skip(3).take(1), true), (0, 0));
        assert_eq!(read_with(plan(), &files, in_order().take(1), true), (0, 16));
    }

    /// Files of a directory that follows another one, in so many requests for four.
    fn followed(plan: &mut PrefetchPlan, order: ReadOrder, requests: usize) -> Vec<u64> {
        let names = [(&b"a"[..], Ino(3)), (&b"b"[..], Ino(1)), (&b"c"[..], Ino(2))];
        let mut ask = || -> Vec<u64> {
            match plan.follow(order, 4, names.into_iter()) {
                true => plan.pop(4).into_iter().map(|ino| ino.0).collect(),
                false => Vec::new(),
            }
        };
        (0..requests).flat_map(|_| ask()).collect()
    }

    #[test]
    fn a_sequence_goes_on_in_a_directory_that_was_listed_and_not_read_since() {
        let plan = || {
            let mut plan = PrefetchPlan::default();
            assert!(plan.list(true, [2, 3, 1].map(Ino).into_iter()));
            plan
        };
        for (order, expected) in [
            (ReadOrder::Listed, [2, 3, 1]),
            (ReadOrder::ByNumber, [1, 2, 3]),
            (ReadOrder::ByName, [3, 1, 2]),
            (ReadOrder::NamesBackwards, [2, 1, 3]),
        ] {
            let mut plan = plan();
            assert_eq!(followed(&mut plan, order, 3), expected, "{order:?}");
            plan.list(true, [2, 3, 1].map(Ino).into_iter());
            assert_eq!(followed(&mut plan, order, 1), expected, "listed again, {order:?}");
        }
        assert_eq!(followed(&mut PrefetchPlan::default(), ReadOrder::ByName, 1), [0_u64; 0]);
        let mut read = plan();
        read.on_read(Ino(1), false, false);
        assert_eq!(followed(&mut read, ReadOrder::Listed, 1), [0_u64; 0]);
    }

    #[test]
    fn what_is_listed_later_follows_as_well() {
        for (order, expected) in [
            (ReadOrder::Listed, [2, 3, 1, 5, 7, 6, 4]),
            (ReadOrder::ByNumber, [1, 2, 3, 5, 4, 6, 7]),
        ] {
            let mut plan = PrefetchPlan::default();
            plan.list(true, [2, 3, 1, 5].map(Ino).into_iter());
            let mut files = followed(&mut plan, order, 1);
            assert!(!plan.list(false, [7, 6, 4].map(Ino).into_iter()));
            files.extend(followed(&mut plan, order, 2));
            assert_eq!(files, expected, "{order:?}");
        }
    }

    #[test]
    fn files_that_are_not_known_yet_stay_next() {
        let mut plan = PrefetchPlan::default();
        plan.list(true, [2, 3, 1].map(Ino).into_iter());
        assert!(plan.follow(ReadOrder::Listed, 2, std::iter::empty()));
        let files = plan.pop(2);
        plan.put_back(&files);
        assert_eq!(plan.on_read(Ino(1), false, false), Next::Nothing, "another one");
        assert_eq!(plan.on_read(Ino(2), false, false), Next::More(2));
        assert_eq!(plan.pop(3), [3, 1].map(Ino));
        plan.put_back(&[Ino(3), Ino(1)]);
        assert_eq!(plan.on_read(Ino(2), true, false), Next::More(2));
        assert_eq!(plan.on_read(Ino(2), true, false), Next::Nothing, "asked for");
    }

    #[test]
    fn more_are_asked_for_while_a_window_is_ahead() {
        assert_eq!([4, 64].map(|window| marker(window, window)), [0, 0]);
        assert_eq!(marker(WINDOW_MAX, WINDOW_MAX), WINDOW_MAX / 2);
    }

    #[test]
    fn no_more_files_of_a_listing_are_noted_than_its_limit() {
        let mut plan = PrefetchPlan::default();
        plan.list(true, (0..15_000).map(Ino));
        plan.list(false, (15_000..30_000).map(Ino));
        assert_eq!(plan.listed.len(), LISTED_MAX);
        plan.list(true, std::iter::empty());
        assert!(plan.listed.is_empty());
    }

    #[test]
    fn another_order_costs_little() {
        let files = files(200);
        let (hits, vain) = read(&files, (0..200).map(|n| n * 77 % 200));
        assert!(hits > 20 && vain <= 40, "{hits}, {vain} in vain");
    }

    #[test]
    fn little_is_asked_for_in_vain() {
        let files = files(10_000);
        let one_of = |n: usize| n * n * 31 % 10_000;
        let (_, vain) = read(&files, (1..100).map(one_of));
        assert!(vain <= 40, "{vain}");
        assert_eq!(read(&files, 5..6), (0, 0), "one file is no sequence");
    }
}

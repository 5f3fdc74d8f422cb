//! Small files of one directory that are read one after the other: which are likely to be next. No
//! I/O.
//!
//! Two files that were read begin a sequence, in the order of names or of inode numbers. A few of
//! those that follow are asked for, and twice as many when half of these were read. A guess that was
//! wrong makes the next one rarer: what is asked for in vain is a small part.

use glint_proto::Ino;
use std::collections::VecDeque;

/// Files that are asked for when a sequence begins, and at most.
const WINDOW_MIN: usize = 4;
const WINDOW_MAX: usize = 64;
/// Doublings of the files that are read in vain before another sequence is looked for.
const ATTEMPTS_MAX: u32 = 10;

/// What was read in a directory, and what is likely to be next.
#[derive(Default)]
pub(crate) struct PrefetchPlan {
    last: Option<(Box<[u8]>, Ino)>,
    /// In this order they are read, perhaps.
    queue: VecDeque<Ino>,
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
    /// Look for a new sequence, and ask for its first ones.
    Sequence(usize),
}

impl PrefetchPlan {
    /// A file is read for the first time; it was prefetched or not.
    pub(crate) fn on_read(&mut self, ino: Ino, was_prefetched: bool) -> Next {
        if was_prefetched {
            if self.marker != Some(ino) {
                return Next::Nothing;
            }
            (self.attempts, self.surprises) = (0, 0);
            self.window = (2 * self.window).min(WINDOW_MAX);
            return Next::More(self.window);
        }
        self.surprises += 1;
        if self.surprises <= 1 << self.attempts.min(ATTEMPTS_MAX) {
            return Next::Nothing;
        }
        (self.attempts, self.surprises) = (self.attempts + 1, 0);
        self.window = WINDOW_MIN;
        Next::Sequence(self.window)
    }

    /// Notes what was read last.
    pub(crate) fn note(&mut self, name: &[u8], ino: Ino) {
        self.last = Some((name.into(), ino));
    }

    /// Begins a sequence: `files` are all that could be in it, the last one is being read. They are
    /// ordered as those two were that were read last.
    pub(crate) fn begin<'a>(
        &mut self,
        (name, ino): (&[u8], Ino),
        files: impl Iterator<Item = (&'a [u8], Ino)>,
    ) {
        let mut files: Vec<(&[u8], Ino)> = files.filter(|(_, other)| *other != ino).collect();
        let (by_name, by_number) = match &self.last {
            Some((last_name, last)) => (**last_name < *name, *last < ino),
            None => (true, true),
        };
        files.sort_unstable();
        let follows = |(other, number): &(&[u8], Ino)| match (by_name, by_number) {
            (true, _) => *other > name,
            (false, true) => *number > ino,
            (false, false) => *other < name,
        };
        if !by_name && by_number {
            files.sort_unstable_by_key(|(_, number)| *number);
        } else if !by_name {
            files.reverse();
        }
        // Those before it come last: whoever reads in another order reads them, too.
        let (after, before): (Vec<_>, Vec<_>) = files.into_iter().partition(follows);
        self.queue = after.into_iter().chain(before).map(|(_, ino)| ino).collect();
    }

    /// The next ones in the sequence.
    pub(crate) fn pop(&mut self, many: usize) -> Vec<Ino> {
        let next = self.queue.drain(..many.min(self.queue.len())).collect();
        if self.queue.is_empty() {
            self.queue = VecDeque::new();
        }
        next
    }

    /// These are asked for now.
    pub(crate) fn asked(&mut self, files: &[Ino]) {
        self.marker = files.get(files.len() / 2).copied();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads these files, with inode numbers; returns how many of them were prefetched, and how many
    /// were in vain.
    fn read(files: &[(Vec<u8>, Ino)], order: impl Iterator<Item = usize>) -> (usize, usize) {
        let mut plan = PrefetchPlan::default();
        let (mut asked, mut hits) = (std::collections::HashSet::new(), 0);
        for at in order {
            let (name, ino) = (&files[at].0, files[at].1);
            let prefetched = asked.remove(&ino);
            hits += usize::from(prefetched);
            let many = match plan.on_read(ino, prefetched) {
                Next::Nothing => 0,
                Next::More(many) => many,
                Next::Sequence(many) => {
                    let all = files.iter().map(|(name, ino)| (name.as_slice(), *ino));
                    plan.begin((name, ino), all);
                    many
                }
            };
            plan.note(name, ino);
            let new = plan.pop(many);
            if many > 0 {
                plan.asked(&new);
            }
            asked.extend(new);
        }
        (hits, asked.len())
    }

    /// Names and numbers in different orders.
    fn files(count: u64) -> Vec<(Vec<u8>, Ino)> {
        let name = |n: u64| format!("{:05}", n * 7919 % 10_007).into_bytes();
        (0..count).map(|n| (name(n), Ino(n + 100))).collect()
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
            // The first two say little of the order.
            let (hits, vain) = read(&files, files_read.into_iter());
            assert!(hits >= 970 && vain <= 32, "{order}: {hits} of 1000, {vain} in vain");
        }
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

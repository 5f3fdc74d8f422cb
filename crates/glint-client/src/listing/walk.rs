//! Programs that walk trees, as the directories that they list say it, and which directories come
//! next.
//!
//! A walk is a stack of directories: each was found in the one before, and has subdirectories that
//! are listed after it, in the order of its listing or of their names. The next ones are those of
//! the deepest directory, then of the one before, and so on. A walk asks for so many of them ahead:
//! two once the first subdirectory of a directory is listed first, and twice as many with each one
//! that was of use. Who leaves out, or does not descend into, what was asked for gets half as many,
//! and at none he has to list some in order before there are two again: each time twice as many.
//! Walks that have some ahead at once share the room for them alike, or each would push out those
//! that the others come to next.

use glint_proto::Ino;
use std::collections::VecDeque;

/// Walks that are told apart; more make the one forgotten that went on longest ago.
const WALKS_MAX: usize = 4;
/// Directories on the way to where a walk is.
const LEVELS_MAX: usize = 64;
/// Subdirectories of those of one walk: 1 MiB.
const SUBDIRECTORIES_MAX: usize = 16 << 10;
/// Directories that a walk asks for ahead, at first and at most.
const WINDOW_MIN: usize = 2;
pub(super) const WINDOW_MAX: usize = 16;
/// Most often that what has to be listed in order is doubled.
const MISSES_MAX: u32 = 6;
/// How often the order of names is tried in a directory.
const TRIES: u8 = 3;

/// A subdirectory that a walk may come to.
struct WalkedDirectory {
    ino: Ino,
    name: Box<[u8]>,
    was_asked: bool,
    was_listed: bool,
}

impl WalkedDirectory {
    /// It was asked for ahead, and nobody has listed it.
    fn is_unused(&self) -> bool {
        self.was_asked && !self.was_listed
    }
}

/// A directory that was listed, and its subdirectories.
struct WalkLevel {
    directory: Ino,
    subdirectories: Vec<WalkedDirectory>,
    /// The walk is here: it has passed those before.
    next: usize,
    is_by_name: bool,
    tries: u8,
}

impl WalkLevel {
    fn new(directory: Ino, is_by_name: bool) -> WalkLevel {
        let subdirectories = Vec::new();
        WalkLevel { directory, subdirectories, next: 0, is_by_name, tries: TRIES }
    }

    /// Where a subdirectory is that was not listed yet.
    fn find(&self, ino: Ino) -> Option<usize> {
        let is_it = |one: &WalkedDirectory| one.ino == ino && !one.was_listed;
        let (passed, coming) = self.subdirectories.split_at(self.next);
        let coming = coming.iter().position(is_it).map(|at| at + self.next);
        coming.or_else(|| passed.iter().position(is_it))
    }

    /// The subdirectories that come next.
    fn coming(&mut self) -> impl Iterator<Item = &mut WalkedDirectory> {
        self.subdirectories[self.next..].iter_mut().filter(|one| !one.was_listed)
    }

    fn is_next(&self, ino: Ino) -> bool {
        let mut coming = self.subdirectories[self.next..].iter();
        coming.find(|one| !one.was_listed).is_some_and(|next| next.ino == ino)
    }

    fn sort(&mut self) {
        self.is_by_name = true;
        self.subdirectories.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        // They are listed in this order, so none before these was.
        let unlisted = self.subdirectories.iter().position(|one| !one.was_listed);
        self.next = unlisted.unwrap_or(self.subdirectories.len());
    }

    /// A subdirectory is listed that was found here. Returns whether it was the next one, and
    /// whether any were left out that were asked for.
    fn go(&mut self, mut at: usize) -> (bool, bool) {
        let ino = self.subdirectories[at].ino;
        if !self.is_by_name && self.tries > 0 && !self.is_next(ino) {
            self.tries -= 1;
            let unlisted = self.subdirectories.iter().filter(|one| !one.was_listed);
            let first = unlisted.min_by(|a, b| a.name.cmp(&b.name));
            if first.is_some_and(|first| first.ino == ino) {
                self.sort();
                at = self.next;
            }
        }
        let is_next = self.is_next(ino);
        let left_out = self.subdirectories.get(self.next..at).unwrap_or_default();
        let leaves_out = left_out.iter().any(WalkedDirectory::is_unused);
        self.subdirectories[at].was_listed = true;
        self.next = self.next.max(at + 1);
        (is_next, leaves_out)
    }

    fn has_unused(&self) -> bool {
        self.subdirectories.iter().any(WalkedDirectory::is_unused)
    }
}

/// A program that walks a tree.
struct TreeWalk {
    /// From where it began.
    levels: Vec<WalkLevel>,
    /// Directories that it asks for ahead.
    window: usize,
    /// Directories that were listed in order since there was no window.
    in_order: u32,
    /// It asks for nothing in directories that are deeper.
    depth_max: usize,
}

impl TreeWalk {
    fn new(directory: Ino) -> TreeWalk {
        let levels = vec![WalkLevel::new(directory, false)];
        TreeWalk { levels, window: 0, in_order: 0, depth_max: usize::MAX }
    }

    /// In which directory this one was found that was not listed yet, and where.
    fn find(&self, ino: Ino) -> Option<(usize, usize)> {
        let mut levels = self.levels.iter().enumerate().rev();
        levels.find_map(|(depth, level)| Some((depth, level.find(ino)?)))
    }

    /// Which of the directories on the way this is.
    fn depth_of(&self, directory: Ino) -> Option<usize> {
        self.levels.iter().position(|level| level.directory == directory)
    }

    fn has_unused(&self) -> bool {
        self.levels.iter().any(WalkLevel::has_unused)
    }

    /// Whether any of the next directories were asked for.
    fn is_ahead(&self) -> bool {
        let next = |level: &WalkLevel| {
            let mut next = level.subdirectories[level.next..].iter().take(WINDOW_MAX);
            next.any(WalkedDirectory::is_unused)
        };
        self.levels.iter().any(next)
    }

    /// Leaves all directories but so many of the first ones. Returns whether any were left out that
    /// were asked for.
    fn leave(&mut self, levels: usize) -> bool {
        self.levels.drain(levels.min(self.levels.len())..).any(|level| level.has_unused())
    }

    /// More subdirectories of the directory at this depth are known.
    fn add(&mut self, depth: usize, found: Vec<(Ino, Box<[u8]>)>) {
        let known: usize = self.levels.iter().map(|level| level.subdirectories.len()).sum();
        let level = &mut self.levels[depth];
        let added = found.into_iter().take(SUBDIRECTORIES_MAX.saturating_sub(known));
        level.subdirectories.extend(added.map(|(ino, name)| WalkedDirectory {
            ino,
            name,
            was_asked: false,
            was_listed: false,
        }));
        if level.is_by_name {
            level.sort();
        }
    }

    /// The directories that are to be asked for, so that no more than `most` are ahead; only those
    /// that may be.
    fn ask(&mut self, most: usize, may_ask: impl Fn(Ino) -> bool) -> Vec<Ino> {
        let depth_max = self.depth_max;
        let levels = self.levels.iter_mut().enumerate().rev();
        let next = levels.filter(|(depth, _)| *depth <= depth_max);
        let next = next.flat_map(|(_, level)| level.coming()).take(self.window.min(most));
        let is_new = |one: &&mut WalkedDirectory| !one.was_asked && may_ask(one.ino);
        let new = next.filter(is_new).map(|one| {
            one.was_asked = true;
            one.ino
        });
        new.collect()
    }
}

/// A page of a directory that a program is told of.
#[derive(Clone, Copy)]
pub(super) struct WalkStep {
    pub(super) directory: Ino,
    /// It is the first one.
    pub(super) is_begin: bool,
    /// It had come ahead.
    pub(super) was_ahead: bool,
    /// Directories that may be asked for ahead, of all walks.
    pub(super) window_max: usize,
}

/// The walks of a client; the one that went on last is the last.
#[derive(Default)]
pub(super) struct TreeWalks {
    walks: VecDeque<TreeWalk>,
    /// How often directories were asked for in vain since the last one that was of use.
    misses: u32,
}

impl TreeWalks {
    /// A program lists a directory, in which it has found these others. Returns which ones are to
    /// be asked for before it lists them, of those that may be by now.
    pub(super) fn go(
        &mut self,
        step: WalkStep,
        found: Vec<(Ino, Box<[u8]>)>,
        may_ask: impl Fn(Ino) -> bool,
    ) -> Vec<Ino> {
        if step.is_begin {
            self.begin(step.directory, step.was_ahead);
        }
        let mut walks = self.walks.iter().enumerate().rev();
        let Some((at, depth)) =
            walks.find_map(|(at, walk)| walk.depth_of(step.directory).map(|depth| (at, depth)))
        else {
            return Vec::new();
        };
        let is_other = |(other, walk): &(usize, &TreeWalk)| *other != at && walk.is_ahead();
        let share = step.window_max / (1 + self.walks.iter().enumerate().filter(is_other).count());
        let walk = &mut self.walks[at];
        walk.add(depth, found);
        walk.ask(share.min(WINDOW_MAX), may_ask)
    }

    /// Forgets all of them.
    pub(super) fn forget(&mut self) {
        self.walks.clear();
    }

    fn begin(&mut self, directory: Ino, was_ahead: bool) {
        let mut walks = self.walks.iter().enumerate().rev();
        let found = walks.find_map(|(at, walk)| Some((at, walk.find(directory)?)));
        if let Some((at, (depth, place))) = found
            && let Some(mut walk) = self.walks.remove(at)
        {
            self.go_on(&mut walk, depth, place, was_ahead);
            if walk.levels.len() < LEVELS_MAX {
                let is_by_name = walk.levels[depth].is_by_name;
                walk.levels.push(WalkLevel::new(directory, is_by_name));
            }
            self.walks.push_back(walk);
            return;
        }
        // It is listed again, and so are perhaps those in it.
        let again = |walk: &TreeWalk| walk.depth_of(directory).is_some();
        let walk = self.walks.iter().rposition(again).and_then(|at| self.walks.remove(at));
        let walk = walk.and_then(|mut walk| {
            let depth = walk.depth_of(directory)?;
            self.note_missed(walk.leave(depth));
            walk.levels.push(WalkLevel::new(directory, false));
            // Perhaps this is all that is wanted.
            (walk.window, walk.in_order) = (0, 0);
            Some(walk)
        });
        if walk.is_none() && self.walks.len() >= WALKS_MAX {
            let is_missed = self.walks.pop_front().is_some_and(|walk| walk.has_unused());
            self.note_missed(is_missed);
        }
        self.walks.push_back(walk.unwrap_or_else(|| TreeWalk::new(directory)));
    }

    /// A walk goes on with a subdirectory of a directory at this depth.
    fn go_on(&mut self, walk: &mut TreeWalk, depth: usize, place: usize, was_ahead: bool) {
        let turns_back = walk.leave(depth + 1);
        let level = &mut walk.levels[depth];
        let was_asked = level.subdirectories[place].was_asked;
        let (is_next, leaves_out) = level.go(place);
        if turns_back {
            walk.depth_max = depth;
        } else if depth > walk.depth_max {
            walk.depth_max = usize::MAX;
        }
        match (was_ahead, walk.window) {
            (true, window) => {
                walk.window = (2 * window).clamp(WINDOW_MIN, WINDOW_MAX);
                self.misses = 0;
            }
            (false, 0) => {
                walk.in_order = if is_next { walk.in_order + 1 } else { 0 };
                if walk.in_order >= 1 << self.misses.min(MISSES_MAX) {
                    (walk.window, walk.in_order) = (WINDOW_MIN, 0);
                }
            }
            (false, _) => {}
        }
        let is_missed = turns_back || leaves_out || (was_asked && !was_ahead);
        if is_missed {
            walk.window /= 2;
        }
        self.note_missed(is_missed);
    }

    fn note_missed(&mut self, is_missed: bool) {
        self.misses = self.misses.saturating_add(u32::from(is_missed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Subdirectories of each directory of a tree: so many at each depth, named backwards.
    struct Wide {
        many: u64,
        depth: u32,
    }

    impl Wide {
        fn subdirectories(&self, directory: u64) -> Vec<u64> {
            let is_leaf = directory >= self.many.pow(self.depth);
            let many = if is_leaf { 0 } else { self.many };
            (0..many).map(|n| directory * self.many + n).collect()
        }
    }

    /// A program that walks, and what came for it.
    struct Walker {
        tree: Wide,
        walks: TreeWalks,
        /// What came and was not listed, the oldest first, and how many may be there.
        asked: Vec<u64>,
        room: usize,
        requests: usize,
        waits: usize,
        listed: usize,
    }

    impl Walker {
        fn new(many: u64, depth: u32) -> Walker {
            let (tree, walks) = (Wide { many, depth }, TreeWalks::default());
            let (asked, room) = (Vec::new(), WALKS_MAX * WINDOW_MAX);
            Walker { tree, walks, asked, room, requests: 0, waits: 0, listed: 0 }
        }

        /// Lists a directory. Returns those in it.
        fn list(&mut self, directory: u64) -> Vec<u64> {
            let asked = self.asked.iter().position(|asked| *asked == directory);
            let was_ahead = asked.map(|at| self.asked.remove(at)).is_some();
            self.listed += 1;
            self.waits += usize::from(!was_ahead);
            self.requests += usize::from(!was_ahead);
            let inside = self.tree.subdirectories(directory);
            let name = |ino: u64| Box::<[u8]>::from((u64::MAX - ino).to_be_bytes().as_slice());
            let found = inside.iter().map(|ino| (Ino(*ino), name(*ino))).collect();
            let (directory, window_max) = (Ino(directory), self.room);
            let step = WalkStep { directory, is_begin: true, was_ahead, window_max };
            for ino in self.walks.go(step, found, |_| true) {
                self.requests += 1;
                assert!(!self.asked.contains(&ino.0), "{ino} is asked for twice");
                self.asked.push(ino.0);
            }
            self.asked.drain(..self.asked.len().saturating_sub(self.room));
            inside
        }

        fn descend(&mut self, directory: u64, is_by_name: bool) {
            let mut inside = self.list(directory);
            if is_by_name {
                inside.reverse();
            }
            inside.into_iter().for_each(|one| self.descend(one, is_by_name));
        }
    }

    #[test]
    fn who_walks_a_whole_tree_waits_for_the_first_directories_only() {
        for (many, depth) in [(200, 1), (7, 3), (2, 8)] {
            for is_by_name in [false, true] {
                let mut walker = Walker::new(many, depth);
                walker.descend(1, is_by_name);
                assert_eq!(walker.requests, walker.listed, "no more than without");
                assert!(walker.waits <= 4, "{} of {}", walker.waits, walker.listed);
                assert!(walker.asked.is_empty());
            }
        }
    }

    #[test]
    fn who_goes_no_further_costs_few_requests() {
        let mut walker = Walker::new(100, 1);
        let inside = walker.list(1);
        assert_eq!(walker.asked.len(), 0, "one directory is no walk");
        walker.list(inside[0]);
        assert_eq!(walker.asked, inside[1..3]);
        for at in [90, 50, 70, 60] {
            walker.list(inside[at]);
        }
        assert_eq!((walker.requests, walker.waits), (9, 6));
    }

    #[test]
    fn who_looks_at_the_first_directory_of_each_tree_is_soon_known() {
        let mut walker = Walker::new(1000, 2);
        for tree in walker.tree.subdirectories(1) {
            let inside = walker.list(tree);
            walker.list(inside[0]);
        }
        assert_eq!(walker.requests - walker.listed, 2 * WALKS_MAX);
    }

    /// Only the first two levels are listed.
    #[test]
    fn who_does_not_descend_gets_no_deeper_directories() {
        let mut walker = Walker::new(50, 2);
        for one in walker.list(1) {
            walker.list(one);
        }
        assert!(walker.waits < 8, "{}", walker.waits);
        assert!(walker.requests <= walker.listed + 2, "{}", walker.requests);
    }

    #[test]
    fn two_walks_at_once_are_told_apart() {
        let mut walker = Walker::new(100, 1);
        let of = |walker: &mut Walker, tree: u64| walker.list(tree).into_iter();
        let (one, other) = (of(&mut walker, 2), of(&mut walker, 3));
        for (a, b) in one.zip(other) {
            walker.list(a);
            walker.list(b);
        }
        assert!(walker.waits <= 6, "{}", walker.waits);
        assert_eq!(walker.requests, walker.listed);
    }

    #[test]
    fn walks_at_once_leave_each_other_room() {
        let mut walker = Walker { room: WINDOW_MAX, ..Walker::new(100, 1) };
        let trees: Vec<_> = (0..WALKS_MAX as u64).map(|tree| walker.list(2 + tree)).collect();
        for at in 0..100 {
            trees.iter().for_each(|tree| _ = walker.list(tree[at]));
        }
        assert_eq!(walker.waits, 2 * WALKS_MAX, "for the first and the second listing of each");
        assert_eq!(walker.requests, walker.listed);
    }

    #[test]
    fn a_tree_that_is_walked_again_is_a_walk() {
        let mut walker = Walker::new(100, 1);
        walker.descend(1, false);
        let waits = walker.waits;
        walker.descend(1, false);
        assert_eq!((walker.waits, walker.requests), (2 * waits, walker.listed));
    }

    #[test]
    fn what_is_noted_is_limited() {
        let mut walks = TreeWalks::default();
        for tree in 0..20 {
            let found = (0..20_000).map(|n| (Ino(1000 + tree * 100_000 + n), Box::from(&b"d"[..])));
            let directory = Ino(tree);
            let step = WalkStep { directory, is_begin: true, was_ahead: false, window_max: 9 };
            walks.go(step, found.collect(), |_| true);
        }
        let levels = walks.walks.iter().flat_map(|walk| &walk.levels);
        let noted: usize = levels.map(|level| level.subdirectories.len()).sum();
        assert_eq!(noted, WALKS_MAX * SUBDIRECTORIES_MAX);
    }
}

//! Directories in which programs look names up, one after the other in the order of their own names,
//! as git(1) does with the paths of its index: which are next. No I/O.
//!
//! They are known from pages that came because of lookups. Once two were begun that follow each other,
//! the next one is asked for ahead; after so many in a row as many, up to four. So who goes on
//! elsewhere has cost no more requests than he made before.

use glint_proto::Ino;
use std::collections::{HashMap, VecDeque};

/// Directories that are known, in all: 1 MiB. Those in the directory that came first are forgotten.
const SUBDIRECTORIES_MAX: usize = 16 << 10;
/// Directories that are asked for ahead of one.
const WINDOW_MAX: usize = 4;
/// After so many lookups in a row elsewhere nobody goes on with what came ahead.
const ELSEWHERE_MAX: u32 = 1 << 16;

/// Whether names are looked up in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Looked {
    NotYet,
    /// It is ahead: it was asked for because of that, if `was_asked`, or was here.
    Ahead {
        was_asked: bool,
    },
    /// It is, and has answered one lookup.
    AheadOnce {
        was_asked: bool,
    },
    Begun,
}

/// A program goes on with a directory that came ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GoesOn {
    /// It was asked for because of lookups.
    pub(super) was_asked: bool,
}

/// A directory in another one.
pub(super) struct FoundDirectory {
    pub(super) ino: Ino,
    pub(super) name: Box<[u8]>,
    /// Names are looked up in it.
    pub(super) is_begun: bool,
}

/// Directories by their names, and how far programs are that look names up in them.
#[derive(Default)]
pub(super) struct LookupOrder {
    /// In each directory those in it, in the order of their names.
    subdirectories: HashMap<Ino, Vec<(Ino, Looked)>>,
    /// The directories that have some, in the order in which they came.
    parents: VecDeque<Ino>,
    /// In which directory one is, and at which place.
    places: HashMap<Ino, (Ino, usize)>,
    /// How many have come, or are on their way, in which nobody goes on yet.
    ahead: usize,
    /// Lookups that were answered elsewhere, in a row.
    elsewhere: u32,
    known: usize,
}

impl LookupOrder {
    /// All subdirectories of a directory are known.
    pub(super) fn add(&mut self, parent: Ino, mut found: Vec<FoundDirectory>) {
        self.remove(parent);
        if found.is_empty() || found.len() > SUBDIRECTORIES_MAX {
            return;
        }
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        for (at, one) in found.iter().enumerate() {
            self.places.insert(one.ino, (parent, at));
        }
        let looked = |is_begun: bool| if is_begun { Looked::Begun } else { Looked::NotYet };
        let all: Vec<_> = found.into_iter().map(|one| (one.ino, looked(one.is_begun))).collect();
        self.known += all.len();
        self.subdirectories.insert(parent, all);
        self.parents.push_back(parent);
        while self.known > SUBDIRECTORIES_MAX {
            let Some(oldest) = self.parents.front().copied() else { return };
            self.remove(oldest);
        }
    }

    /// Forgets the subdirectories of a directory.
    fn remove(&mut self, parent: Ino) {
        let Some(all) = self.subdirectories.remove(&parent) else { return };
        self.parents.retain(|other| *other != parent);
        self.known -= all.len();
        for (ino, looked) in all {
            self.ahead -= usize::from(is_ahead(looked));
            // It may have been moved to another one.
            if self.places.get(&ino).is_some_and(|(of, _)| *of == parent) {
                self.places.remove(&ino);
            }
        }
    }

    /// Names are looked up in a directory. Returns the next ones that are to be asked for, so that no
    /// more than `most` are ahead of it.
    pub(super) fn begin(&mut self, directory: Ino, most: usize) -> Vec<Ino> {
        let Some((parent, at)) = self.places.get(&directory).copied() else { return Vec::new() };
        let Some(all) = self.subdirectories.get_mut(&parent) else { return Vec::new() };
        let before = std::mem::replace(&mut all[at].1, Looked::Begun);
        if before == Looked::Begun {
            return Vec::new();
        }
        self.ahead -= usize::from(is_ahead(before));
        let latest = all[..at].iter().rev().take(WINDOW_MAX.min(most));
        let window = latest.take_while(|(_, looked)| *looked == Looked::Begun).count();
        let next = all[at + 1..].iter_mut().take(window);
        let new = next.filter(|(_, looked)| *looked == Looked::NotYet).map(|one| {
            one.1 = Looked::Ahead { was_asked: false };
            one.0
        });
        let new: Vec<Ino> = new.collect();
        self.ahead += new.len();
        new
    }

    fn looked(&mut self, directory: Ino) -> Option<&mut Looked> {
        let (parent, at) = self.places.get(&directory).copied()?;
        Some(&mut self.subdirectories.get_mut(&parent)?[at].1)
    }

    /// A directory that is ahead is asked for.
    pub(super) fn note_asked(&mut self, directory: Ino) {
        if let Some(looked) = self.looked(directory)
            && is_ahead(*looked)
        {
            *looked = Looked::Ahead { was_asked: true };
        }
    }

    /// A lookup in a directory was answered without asking. Returns whether the program goes on with
    /// one that came ahead: this is the second. It is to begin then.
    pub(super) fn on_answered(&mut self, directory: Ino) -> Option<GoesOn> {
        let (next, goes_on) = match self.looked(directory).copied() {
            Some(Looked::Ahead { was_asked }) => (Looked::AheadOnce { was_asked }, None),
            // Once: others look names up there, too.
            Some(Looked::AheadOnce { was_asked }) => (Looked::NotYet, Some(GoesOn { was_asked })),
            Some(Looked::NotYet | Looked::Begun) | None => {
                self.elsewhere += 1;
                if self.elsewhere > ELSEWHERE_MAX {
                    self.leave();
                }
                return None;
            }
        };
        self.elsewhere = 0;
        self.ahead -= usize::from(goes_on.is_some());
        if let Some(looked) = self.looked(directory) {
            *looked = next;
        }
        goes_on
    }

    /// Nobody goes on with what came ahead. It is not asked for again.
    fn leave(&mut self) {
        for (_, looked) in self.subdirectories.values_mut().flatten() {
            if is_ahead(*looked) {
                *looked = Looked::Begun;
            }
        }
        (self.ahead, self.elsewhere) = (0, 0);
    }

    /// Whether directories were asked for in which nobody goes on yet.
    pub(super) fn has_ahead(&self) -> bool {
        self.ahead > 0
    }
}

fn is_ahead(looked: Looked) -> bool {
    matches!(looked, Looked::Ahead { .. } | Looked::AheadOnce { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Subdirectories with these inode numbers, by names in the same order.
    fn found(numbers: impl Iterator<Item = u64>) -> Vec<FoundDirectory> {
        let one = |number: u64| {
            let name = Box::<[u8]>::from(number.to_be_bytes().as_slice());
            FoundDirectory { ino: Ino(number), name, is_begun: false }
        };
        numbers.map(one).collect()
    }

    fn order_of(numbers: impl Iterator<Item = u64>) -> LookupOrder {
        let mut order = LookupOrder::default();
        order.add(Ino(1), found(numbers));
        order
    }

    /// Looks names up in directories, in this order; of those that came ahead two in each. Returns how
    /// many came ahead in time, and how many in vain.
    fn look(order: &mut LookupOrder, directories: impl Iterator<Item = u64>) -> (usize, usize) {
        let (mut asked, mut in_time) = (Vec::new(), 0);
        for directory in directories.map(Ino) {
            let before = asked.len();
            asked.retain(|one| *one != directory);
            in_time += before - asked.len();
            if asked.len() < before {
                let answered = [(); 3].map(|()| order.on_answered(directory));
                assert_eq!(answered, [None, Some(GoesOn { was_asked: true }), None]);
            }
            let next = order.begin(directory, usize::MAX);
            next.iter().for_each(|one| order.note_asked(*one));
            asked.extend(next);
            assert_eq!(order.has_ahead(), !asked.is_empty());
        }
        (in_time, asked.len())
    }

    #[test]
    fn directories_in_the_order_of_names_come_ahead_from_the_third_on() {
        let mut order = order_of((100..200).rev());
        assert_eq!(look(&mut order, 100..200), (98, 0));
        assert_eq!(look(&mut order, 100..200), (0, 0), "each begins once");
        let mut begun = LookupOrder::default();
        let mut all = found(100..110);
        all[4].is_begun = true;
        begun.add(Ino(1), all);
        assert_eq!(begun.begin(Ino(105), 9), [Ino(106)], "the one before was begun by then");
    }

    #[test]
    fn several_programs_go_on_each_where_it_is() {
        let mut order = order_of(0..400);
        let turns = (0..100).flat_map(|n| [n, 100 + n, 200 + n, 300 + n]);
        let (in_time, in_vain) = look(&mut order, turns);
        assert!(in_time >= 392 && in_vain == 0, "{in_time}, {in_vain} in vain");
    }

    #[test]
    fn who_goes_on_elsewhere_has_cost_few_requests() {
        let mut order = order_of(0..1000);
        assert_eq!(look(&mut order, [7, 900, 3, 500].into_iter()), (0, 0));
        assert_eq!(look(&mut order, [40, 41].into_iter()), (0, 1));
        let mut order = order_of(0..1000);
        assert_eq!(look(&mut order, 10..20), (8, WINDOW_MAX));
        assert!(order.begin(Ino(500), 9).is_empty());
        assert!(order.begin(Ino(501), 0).is_empty(), "none may be ahead");
        assert!(order.begin(Ino(5000), 9).is_empty(), "nothing is known of it");
    }

    /// A directory that was here, or was asked for because of a walk.
    #[test]
    fn what_was_not_asked_for_because_of_lookups_is_gone_on_with_all_the_same() {
        let mut order = order_of(0..10);
        order.begin(Ino(0), 9);
        assert_eq!(order.begin(Ino(1), 9), [Ino(2)]);
        let answered = [(); 3].map(|()| order.on_answered(Ino(2)));
        assert_eq!(answered, [None, Some(GoesOn { was_asked: false }), None]);
        assert_eq!(order.begin(Ino(2), 9), [Ino(3), Ino(4)]);
    }

    #[test]
    fn what_came_ahead_is_left_after_many_lookups_elsewhere() {
        let mut order = order_of(0..10);
        order.begin(Ino(0), 9);
        assert_eq!(order.begin(Ino(1), 9), [Ino(2)]);
        (0..ELSEWHERE_MAX).for_each(|_| assert_eq!(order.on_answered(Ino(1)), None));
        assert_eq!((order.on_answered(Ino(2)), order.has_ahead()), (None, true));
        (0..=ELSEWHERE_MAX).for_each(|_| assert_eq!(order.on_answered(Ino(77)), None));
        assert!(!order.has_ahead());
        assert_eq!([(); 2].map(|()| order.on_answered(Ino(2))), [None; 2]);
        assert_eq!(order.begin(Ino(3), 9), [Ino(4), Ino(5), Ino(6)], "three were begun");
    }

    #[test]
    fn what_is_known_is_limited() {
        let mut order = LookupOrder::default();
        for parent in 1..=100 {
            order.add(Ino(parent), found(1000 * parent..1000 * parent + 900));
            order.begin(Ino(1000 * parent), 9);
            order.begin(Ino(1000 * parent + 1), 9);
        }
        let kept = SUBDIRECTORIES_MAX / 900;
        assert_eq!((order.parents.len(), order.subdirectories.len()), (kept, kept));
        assert_eq!((order.places.len(), order.known), (900 * kept, 900 * kept));
        assert_eq!(order.ahead, kept);
        // One that was moved is where it was found last.
        order.add(Ino(7), found(100_000..100_001));
        order.add(Ino(100), Vec::new());
        assert_eq!(order.places.get(&Ino(100_000)), Some(&(Ino(7), 0)));
        order.add(Ino(8), found(0..2 * SUBDIRECTORIES_MAX as u64));
        assert_eq!(order.subdirectories.len(), kept, "too many to be known");
    }
}

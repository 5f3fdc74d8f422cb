//! Names of one directory that lead to inodes, in parts: of a directory with a million of them no step
//! takes long, neither of growing, nor of shrinking, nor of a walk over all.
//!
//! Invariants:
//! - A part is found by its name alone, the same in each table.
//! - A walk comes to each name that is in the table from its beginning to its end; also if the table
//!   is divided or made one again meanwhile, because then it begins anew.
//! - Names that are gone take no room.

use crate::cache::inode::names::CachedName;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::num::NonZeroU64;

/// Names that are divided into [`PARTS`], when there are more. As many inodes as a client may know
/// have some thousand names in each.
const UNDIVIDED_MAX: usize = 4096;
const PARTS: usize = 256;
/// Names that are one part again: far fewer, so that moving them is a part of what it cost to take
/// the others out.
const DIVIDED_MIN: usize = UNDIVIDED_MAX / 8;
/// A part is made smaller when no more than this part of its room is in use.
const SPARSE_PART: usize = 8;

type Part = HashMap<CachedName, NonZeroU64>;

/// Names, and their inodes.
#[derive(Default)]
pub(super) struct NameTable {
    /// All of them, while they are few.
    few: Part,
    /// Else [`PARTS`] of them; or none.
    many: Vec<Part>,
    len: usize,
}

/// A walk over the names of a directory, in steps between which they may change.
#[derive(Default)]
pub(crate) struct NameWalk {
    /// Parts that the table has, and the next of them.
    parts: usize,
    next: usize,
}

impl NameTable {
    fn part_of(name: &[u8]) -> usize {
        // Not a random one: a seed of the simulation is always the same run.
        let mut hasher = DefaultHasher::new();
        hasher.write(name);
        (hasher.finish() % PARTS as u64) as usize
    }

    fn part(&self, name: &[u8]) -> &Part {
        if self.many.is_empty() { &self.few } else { &self.many[NameTable::part_of(name)] }
    }

    fn part_mut(&mut self, name: &[u8]) -> &mut Part {
        if self.many.is_empty() { &mut self.few } else { &mut self.many[NameTable::part_of(name)] }
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.few).chain(&self.many)
    }

    /// How many names there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The inode of a name.
    pub(super) fn get(&self, name: &[u8]) -> Option<NonZeroU64> {
        self.part(name).get(name).copied()
    }

    /// All names, and their inodes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], NonZeroU64)> {
        self.parts().flatten().map(|(name, child)| (&**name, *child))
    }

    /// Takes the next step of a walk. Returns the names of a part; `None` at the end.
    pub(super) fn walk(
        &self,
        walk: &mut NameWalk,
    ) -> Option<impl Iterator<Item = (&CachedName, NonZeroU64)>> {
        let parts = 1 + self.many.len();
        if walk.parts != parts {
            *walk = NameWalk { parts, next: 0 };
        }
        let part = self.parts().nth(walk.next)?;
        walk.next += 1;
        Some(part.iter().map(|(name, child)| (name, *child)))
    }

    /// A name leads to this inode.
    pub(super) fn insert(&mut self, name: &[u8], child: NonZeroU64) {
        if self.part_mut(name).insert(name.into(), child).is_none() {
            self.len += 1;
            if self.many.is_empty() && self.len > UNDIVIDED_MAX {
                self.divide();
            }
        }
    }

    /// Takes a name out. Returns its inode.
    pub(super) fn remove(&mut self, name: &[u8]) -> Option<NonZeroU64> {
        let part = self.part_mut(name);
        let child = part.remove(name)?;
        if is_sparse(part.len(), part.capacity()) {
            // There is room for as many again, so what it costs to move them is a part of what it cost
            // to take the others out.
            part.shrink_to(2 * part.len());
        }
        self.len -= 1;
        if !self.many.is_empty() && self.len <= DIVIDED_MIN {
            self.unite();
        }
        Some(child)
    }

    fn divide(&mut self) {
        self.many.resize_with(PARTS, Part::default);
        for (name, child) in std::mem::take(&mut self.few) {
            self.many[NameTable::part_of(&name)].insert(name, child);
        }
    }

    fn unite(&mut self) {
        for part in std::mem::take(&mut self.many) {
            self.few.extend(part);
        }
    }

    /// How many names there is room for.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.parts().map(HashMap::capacity).sum()
    }
}

/// Whether so many names have much more room than they need.
pub(super) fn is_sparse(len: usize, capacity: usize) -> bool {
    len == 0 || SPARSE_PART * len <= capacity
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn name(number: usize) -> Vec<u8> {
        format!("file-{number}").into_bytes()
    }

    fn child(number: usize) -> NonZeroU64 {
        NonZeroU64::new(number as u64 + 1).unwrap()
    }

    fn table(names: usize) -> NameTable {
        let mut table = NameTable::default();
        (0..names).for_each(|number| table.insert(&name(number), child(number)));
        table
    }

    /// Names that are in a table all the time are walked over, whatever happens to others; returns the
    /// most names of a step.
    fn walk(table: &mut NameTable, kept: usize, mut between: impl FnMut(&mut NameTable)) -> usize {
        let (mut walk, mut seen) = (NameWalk::default(), HashSet::new());
        let mut most: usize = 0;
        let step = |table: &NameTable, walk: &mut NameWalk| -> Option<Vec<Vec<u8>>> {
            let some = table.walk(walk)?;
            Some(some.map(|(name, _)| name.to_vec()).collect())
        };
        while let Some(some) = step(table, &mut walk) {
            most = most.max(some.len());
            seen.extend(some);
            between(table);
        }
        assert!((0..kept).all(|number| seen.contains(&name(number))));
        most
    }

    #[test]
    fn names_are_found_however_many_there_are() {
        const NAMES: usize = 20_000;
        let mut table = table(NAMES);
        assert!(table.len() == NAMES && table.many.len() == PARTS && table.few.is_empty());
        assert!((0..NAMES).all(|number| table.get(&name(number)) == Some(child(number))));
        assert_eq!(table.iter().count(), NAMES);
        table.insert(&name(7), child(8));
        assert_eq!((table.len(), table.get(&name(7))), (NAMES, Some(child(8))));
        (100..NAMES).for_each(|number| {
            assert_eq!(table.remove(&name(number)), Some(child(number)));
            assert_eq!(table.remove(&name(number)), None);
        });
        assert!(table.len() == 100 && table.many.is_empty());
        assert!(table.room() <= 2 * DIVIDED_MIN, "{}", table.room());
        assert_eq!(table.get(&name(99)), Some(child(99)));
        (0..100).for_each(|number| _ = table.remove(&name(number)));
        assert!(table.is_empty() && table.room() == 0);
    }

    #[test]
    fn no_step_of_a_walk_has_many_names() {
        assert_eq!(walk(&mut table(0), 0, |_| {}), 0);
        assert_eq!(walk(&mut table(UNDIVIDED_MAX), UNDIVIDED_MAX, |_| {}), UNDIVIDED_MAX);
        let names = 256 * PARTS;
        let most = walk(&mut table(names), names, |_| {});
        assert!(most <= 2 * 256, "{most}");
    }

    #[test]
    fn a_walk_comes_to_each_name_while_others_go_and_come() {
        let kept = DIVIDED_MIN / 2;
        let (mut steps, mut large) = (0, table(2 * UNDIVIDED_MAX));
        walk(&mut large, kept, |table| {
            steps += 1;
            if steps == PARTS / 2 {
                (kept..2 * UNDIVIDED_MAX).for_each(|number| _ = table.remove(&name(number)));
                assert!(table.many.is_empty());
            }
        });
        let (mut steps, mut small) = (0, table(kept));
        walk(&mut small, kept, |table| {
            steps += 1;
            if steps == 1 {
                (kept..2 * UNDIVIDED_MAX).for_each(|n| table.insert(&name(n), child(n)));
                assert_eq!(table.many.len(), PARTS);
            }
        });
        assert!(steps > PARTS);
    }
}

//! Names that lead to an inode, so that its directories forget them with it.
//!
//! Invariant: each name is here once, from before its directory learns it until that has forgotten it
//! or the inode is known by none. A directory may know less than its inodes do.

use glint_proto::Ino;
use smallvec::SmallVec;
use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// A name, and the directory that has it.
pub(crate) type Name = (Ino, CachedName);

/// Longest name that is kept in place: with it a [`CachedName`] is no larger than a `Vec`.
const SHORT_BYTES_MAX: usize = 22;

/// The bytes of a name. An inode and its directory have one each: most names are short, and take
/// no memory elsewhere.
#[derive(Clone)]
pub(crate) struct CachedName(Bytes);

#[derive(Clone)]
enum Bytes {
    Short { len: u8, bytes: [u8; SHORT_BYTES_MAX] },
    Long(Box<[u8]>),
}

impl From<&[u8]> for CachedName {
    fn from(name: &[u8]) -> CachedName {
        if name.len() > SHORT_BYTES_MAX {
            return CachedName(Bytes::Long(name.into()));
        }
        let mut bytes = [0; SHORT_BYTES_MAX];
        bytes[..name.len()].copy_from_slice(name);
        CachedName(Bytes::Short { len: name.len() as u8, bytes })
    }
}

impl Deref for CachedName {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Short { len, bytes } => &bytes[..usize::from(*len)],
            Bytes::Long(bytes) => bytes,
        }
    }
}

impl Borrow<[u8]> for CachedName {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl PartialEq for CachedName {
    fn eq(&self, other: &CachedName) -> bool {
        **self == **other
    }
}

impl Eq for CachedName {}

impl Hash for CachedName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // As its bytes, by which it is found.
        (**self).hash(state);
    }
}

/// More names than these are found by their directories.
const FEW_NAMES_MAX: usize = 16;

/// Names that lead to one inode.
#[derive(Default)]
pub(crate) enum InodeNames {
    #[default]
    None,
    One(Name),
    /// In a box, so that the others take no room for a list.
    Few(Box<SmallVec<[Name; 2]>>),
    /// A file may have tens of thousands, and each use of one of them looks here.
    #[allow(clippy::box_collection, reason = "inodes with one name are no larger for it")]
    Many(Box<HashMap<Ino, HashSet<CachedName>>>),
}

impl InodeNames {
    fn few(&self) -> &[Name] {
        match self {
            InodeNames::None | InodeNames::Many(_) => &[],
            InodeNames::One(name) => std::slice::from_ref(name),
            InodeNames::Few(names) => names,
        }
    }

    /// A name leads to the inode, perhaps among others. Whether it was not known.
    pub(crate) fn add(&mut self, parent: Ino, name: &[u8]) -> bool {
        if let InodeNames::Many(names) = self {
            let there = names.entry(parent).or_default();
            return !there.contains(name) && there.insert(name.into());
        }
        if self.few().iter().any(|(p, n)| *p == parent && **n == *name) {
            return false;
        }
        let name = (parent, name.into());
        *self = match std::mem::take(self) {
            InodeNames::One(first) => InodeNames::Few(Box::new(SmallVec::from([first, name]))),
            InodeNames::Few(mut names) if names.len() < FEW_NAMES_MAX => {
                names.push(name);
                InodeNames::Few(names)
            }
            InodeNames::Few(names) => {
                let mut many: HashMap<_, HashSet<_>> = HashMap::new();
                for (parent, name) in names.into_iter().chain([name]) {
                    many.entry(parent).or_default().insert(name);
                }
                InodeNames::Many(Box::new(many))
            }
            // `Many` has returned above.
            InodeNames::None | InodeNames::Many(_) => InodeNames::One(name),
        };
        true
    }

    /// Whether a name is one of them.
    pub(crate) fn contains(&self, parent: Ino, name: &[u8]) -> bool {
        match self {
            InodeNames::Many(names) => names.get(&parent).is_some_and(|there| there.contains(name)),
            _ => self.few().iter().any(|(p, n)| *p == parent && **n == *name),
        }
    }

    /// A name leads to the inode, and no other one does.
    pub(crate) fn set_only(&mut self, parent: Ino, name: &[u8]) {
        *self = InodeNames::One((parent, name.into()));
    }

    /// A name does not lead to the inode any more.
    pub(crate) fn remove(&mut self, parent: Ino, name: &[u8]) {
        match self {
            InodeNames::One((p, n)) if *p == parent && **n == *name => *self = InodeNames::None,
            InodeNames::Few(names) => {
                names.retain(|(p, n)| *p != parent || **n != *name);
                if names.len() < 2 {
                    *self = names.pop().map_or(InodeNames::None, InodeNames::One);
                }
            }
            InodeNames::Many(names) => {
                let Some(there) = names.get_mut(&parent) else { return };
                there.remove(name);
                if there.is_empty() {
                    names.remove(&parent);
                }
                // Half of those that there are room for before there are many again.
                let few = FEW_NAMES_MAX / 2;
                if names.len() <= few && names.values().map(HashSet::len).sum::<usize>() <= few {
                    let few: SmallVec<[Name; 2]> = self.take().into_iter().collect();
                    *self = InodeNames::Few(Box::new(few));
                }
            }
            InodeNames::None | InodeNames::One(_) => {}
        }
    }

    /// A directory that has one of them.
    pub(crate) fn parent(&self) -> Option<Ino> {
        match self {
            InodeNames::Many(names) => names.keys().next().copied(),
            _ => self.few().first().map(|(parent, _)| *parent),
        }
    }

    /// None is known any more. Returns those that were.
    pub(crate) fn take(&mut self) -> SmallVec<[Name; 1]> {
        match std::mem::take(self) {
            InodeNames::None => SmallVec::new(),
            InodeNames::One(name) => SmallVec::from_iter([name]),
            InodeNames::Few(names) => names.into_iter().collect(),
            InodeNames::Many(names) => {
                let of_directory =
                    |(parent, names): (_, HashSet<_>)| names.into_iter().map(move |n| (parent, n));
                names.into_iter().flat_map(of_directory).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::hash::BuildHasher;

    /// What is left of the names, in order.
    fn taken(names: &mut InodeNames) -> Vec<(Ino, Vec<u8>)> {
        let taken = names.take().into_iter().map(|(parent, name)| (parent, name.to_vec()));
        let mut taken: Vec<_> = taken.collect();
        taken.sort_unstable();
        taken
    }

    #[test]
    fn a_name_is_its_bytes_however_long_it_is() {
        let hasher = std::hash::RandomState::new();
        for len in [0, 1, SHORT_BYTES_MAX, SHORT_BYTES_MAX + 1, 255] {
            let bytes = vec![b'n'; len];
            let name = CachedName::from(&*bytes);
            assert_eq!(*name, *bytes);
            assert_eq!(hasher.hash_one(&name), hasher.hash_one(&*bytes));
            assert!(
                name == name.clone() && name != CachedName::from(&[&bytes[..], b"n"].concat()[..])
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn each_name_is_known_once(
            steps in proptest::collection::vec((0u8..40, 0u64..3, 0u8..12), 0..120)
        ) {
            let (mut names, mut model) = (InodeNames::default(), BTreeSet::new());
            for (step, parent, name) in steps {
                let (parent, name) = (Ino(parent), [name]);
                let is_there = model.contains(&(parent, name.to_vec()));
                prop_assert_eq!(names.contains(parent, &name), is_there);
                match step {
                    0..20 => {
                        let is_new = model.insert((parent, name.to_vec()));
                        prop_assert_eq!(names.add(parent, &name), is_new);
                    }
                    20..38 => {
                        names.remove(parent, &name);
                        model.remove(&(parent, name.to_vec()));
                    }
                    38 => {
                        names.set_only(parent, &name);
                        model = [(parent, name.to_vec())].into();
                    }
                    _ => {
                        let model = std::mem::take(&mut model);
                        prop_assert_eq!(taken(&mut names), model.into_iter().collect::<Vec<_>>());
                    }
                }
                let parent = names.parent();
                prop_assert_eq!(parent.is_some(), !model.is_empty());
                prop_assert!(parent.is_none_or(|p| model.iter().any(|(q, _)| *q == p)));
            }
            prop_assert_eq!(taken(&mut names), model.into_iter().collect::<Vec<_>>());
        }
    }
}

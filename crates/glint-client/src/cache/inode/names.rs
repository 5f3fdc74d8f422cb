//! Names that lead to an inode, so that its directories forget them with it.
//!
//! Invariant: each name is here once, from before its directory learns it until that has forgotten it
//! or the inode is known by none. A directory may know less than its inodes do.

use glint_proto::Ino;
use smallvec::SmallVec;
use std::borrow::Borrow;
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

/// Names that lead to one inode.
#[derive(Default)]
pub(crate) enum InodeNames {
    #[default]
    None,
    One(Name),
    /// In a box, so that the others take no room for a list.
    Many(Box<SmallVec<[Name; 2]>>),
}

impl InodeNames {
    fn as_slice(&self) -> &[Name] {
        match self {
            InodeNames::None => &[],
            InodeNames::One(name) => std::slice::from_ref(name),
            InodeNames::Many(names) => names,
        }
    }

    /// A name leads to the inode, perhaps among others. Whether it was not known.
    pub(crate) fn add(&mut self, parent: Ino, name: &[u8]) -> bool {
        if self.as_slice().iter().any(|(p, n)| *p == parent && **n == *name) {
            return false;
        }
        let name = (parent, name.into());
        *self = match std::mem::take(self) {
            InodeNames::None => InodeNames::One(name),
            InodeNames::One(first) => InodeNames::Many(Box::new(SmallVec::from([first, name]))),
            InodeNames::Many(mut names) => {
                names.push(name);
                InodeNames::Many(names)
            }
        };
        true
    }

    /// How many of them are in a directory.
    pub(crate) fn count_in(&self, parent: Ino) -> usize {
        self.as_slice().iter().filter(|(p, _)| *p == parent).count()
    }

    /// A name leads to the inode, and no other one does.
    pub(crate) fn set_only(&mut self, parent: Ino, name: &[u8]) {
        *self = InodeNames::One((parent, name.into()));
    }

    /// A name does not lead to the inode any more.
    pub(crate) fn remove(&mut self, parent: Ino, name: &[u8]) {
        match self {
            InodeNames::One((p, n)) if *p == parent && **n == *name => *self = InodeNames::None,
            InodeNames::Many(names) => {
                names.retain(|(p, n)| *p != parent || **n != *name);
                if names.len() < 2 {
                    *self = names.pop().map_or(InodeNames::None, InodeNames::One);
                }
            }
            _ => {}
        }
    }

    /// One of them.
    pub(crate) fn first(&self) -> Option<&Name> {
        self.as_slice().first()
    }

    /// None is known any more. Returns those that were.
    pub(crate) fn take(&mut self) -> SmallVec<[Name; 1]> {
        match std::mem::take(self) {
            InodeNames::None => SmallVec::new(),
            InodeNames::One(name) => SmallVec::from_iter([name]),
            InodeNames::Many(names) => names.into_iter().collect(),
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
            steps in proptest::collection::vec((0u8..7, 0u64..3, 0u8..3), 0..60)
        ) {
            let (mut names, mut model) = (InodeNames::default(), BTreeSet::new());
            for (step, parent, name) in steps {
                let (parent, name) = (Ino(parent), [name]);
                match step {
                    0..3 => {
                        names.add(parent, &name);
                        model.insert((parent, name.to_vec()));
                    }
                    3..5 => {
                        names.remove(parent, &name);
                        model.remove(&(parent, name.to_vec()));
                    }
                    5 => {
                        names.set_only(parent, &name);
                        model = [(parent, name.to_vec())].into();
                    }
                    _ => {
                        let model = std::mem::take(&mut model);
                        prop_assert_eq!(taken(&mut names), model.into_iter().collect::<Vec<_>>());
                    }
                }
            }
            prop_assert_eq!(taken(&mut names), model.into_iter().collect::<Vec<_>>());
        }
    }
}

//! Names that lead to an inode, so that its directories forget them with it.
//!
//! Invariant: each name is here once, from when its directory learns it until that forgets it or the
//! inode is known by none. A directory may have forgotten more than its inodes know.

use glint_proto::Ino;
use smallvec::SmallVec;

/// A name, and the directory that has it.
pub(crate) type Name = (Ino, Box<[u8]>);

/// Names that lead to one inode.
#[derive(Default)]
pub(crate) struct InodeNames(SmallVec<[Name; 1]>);

impl InodeNames {
    /// A name leads to the inode, perhaps among others.
    pub(crate) fn add(&mut self, parent: Ino, name: &[u8]) {
        if !self.0.iter().any(|(p, n)| *p == parent && **n == *name) {
            self.0.push((parent, name.into()));
        }
    }

    /// A name leads to the inode, and no other one does.
    pub(crate) fn set_only(&mut self, parent: Ino, name: &[u8]) {
        self.0.clear();
        self.0.push((parent, name.into()));
    }

    /// A name does not lead to the inode any more.
    pub(crate) fn remove(&mut self, parent: Ino, name: &[u8]) {
        self.0.retain(|(p, n)| *p != parent || **n != *name);
    }

    /// One of them.
    pub(crate) fn first(&self) -> Option<&Name> {
        self.0.first()
    }

    /// None is known any more. Returns those that were.
    pub(crate) fn take(&mut self) -> SmallVec<[Name; 1]> {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

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
                        model.insert((parent, Box::from(name.as_slice())));
                    }
                    3..5 => {
                        names.remove(parent, &name);
                        model.remove(&(parent, Box::from(name.as_slice())));
                    }
                    5 => {
                        names.set_only(parent, &name);
                        model = [(parent, Box::from(name.as_slice()))].into();
                    }
                    _ => {
                        let mut taken = names.take().into_vec();
                        taken.sort_unstable();
                        prop_assert_eq!(taken, std::mem::take(&mut model).into_iter().collect::<Vec<_>>());
                    }
                }
            }
            let mut taken = names.take().into_vec();
            taken.sort_unstable();
            prop_assert_eq!(taken, model.into_iter().collect::<Vec<Name>>());
        }
    }
}

//! What the cache says of a listing that came before a program asked for it: whether the directory is
//! still so, and which attributes its entries have by now.

use crate::cache::Cache;
use crate::cache::inode::InodeState;
use crate::vfs::{Found, Valid};
use glint_proto::lock::Bits;
use glint_proto::{DirEntry, Ino};

/// Whether an entry is no name of the directory: it leads to itself, or to its parent.
pub(super) fn is_dots(entry: &DirEntry) -> bool {
    matches!(entry.name.as_slice(), b"." | b"..")
}

/// Whether a name of this directory leads to an inode, if one is known: others cannot change it.
fn keeps_names(state: &InodeState, directory: Ino) -> bool {
    state.has(Bits::ENTRY) || state.rare.delegation.parent() == Some(directory)
}

impl Cache {
    /// Whether a directory may be listed ahead. Its attributes are known then: no other client has
    /// it for itself, and would have to give it back. What this one changes by itself it would have
    /// to tell before.
    pub(super) fn is_to_list(&self, directory: Ino) -> bool {
        self.find(directory).is_some_and(|inode| {
            let state = inode.lock();
            state.attributes().is_some() && !state.rare.delegation.is_delegated()
        })
    }

    /// Whether a directory has these entries and no others, and nobody else can change that.
    pub(super) fn has_all(&self, directory: Ino, entries: &[DirEntry]) -> bool {
        let names = || entries.iter().filter(|entry| !is_dots(entry));
        // Before the directory: a name that leads elsewhere is lost here first, and there before
        // the lock is given back.
        let is_kept = |entry: &DirEntry| {
            let inode = self.find(entry.ino);
            inode.is_some_and(|inode| keeps_names(&inode.lock(), directory))
        };
        if !names().all(is_kept) {
            return false;
        }
        let Some(inode) = self.find(directory) else { return false };
        let state = inode.lock();
        let is_protected = state.has(Bits::NEGATIVE) || state.rare.delegation.is_delegated();
        if !is_protected || !state.dentries.is_complete() {
            return false;
        }
        let parent = entries.iter().find(|entry| entry.name == b"..").map(|entry| entry.ino);
        let has_parent =
            |parent: Ino| keeps_names(&state, parent) && state.parent() == Some(parent);
        parent.is_none_or(has_parent)
            && names().all(|entry| state.dentries.get(&entry.name) == Some(entry.ino))
            && state.dentries.iter().count() == names().count()
    }

    /// Adds the attributes to an entry of a directory, if they are known, as an answer to the
    /// kernel.
    pub(super) fn add_attributes(&self, directory: Ino, entry: &mut DirEntry) -> Valid {
        if is_dots(entry) {
            return Valid::default();
        }
        let Some(inode) = self.find(entry.ino) else { return Valid::default() };
        let mut state = inode.lock();
        // Others may have changed it meanwhile: it is looked up then.
        if !keeps_names(&state, directory) || !state.has_name(directory, &entry.name) {
            return Valid::default();
        }
        let Some(attr) = state.attributes().cloned() else { return Valid::default() };
        let Found { attr, valid } = self.found(&mut state, attr);
        entry.attr = Some(attr);
        valid
    }
}

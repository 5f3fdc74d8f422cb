//! What the cache says of a listing that came before a program asked for it: whether the directory
//! is still so, and which attributes its entries have by now.

use crate::cache::Cache;
use crate::cache::attrs::Tick;
use crate::cache::in_flight::Asked;
use crate::cache::inode::InodeState;
use crate::listing::kept::ListedPart;
use crate::vfs::{Found, Valid};
use glint_proto::lock::Bits;
use glint_proto::{DirEntry, Ino};

/// Whether an entry is no name of the directory: it leads to itself, or to its parent.
pub(super) fn is_dots(entry: &DirEntry) -> bool {
    matches!(entry.name.as_slice(), b"." | b"..")
}

/// Whether a name of this directory leads to an inode, if one is known: others cannot change it.
pub(super) fn keeps_names(state: &InodeState, directory: Ino) -> bool {
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

    /// When a directory was as the answer to what was asked has said it, if it is so now: no name
    /// was made or lost since.
    pub(super) fn is_as_said(&self, directory: Ino, asked: &Asked) -> Option<Tick> {
        let inode = self.find(directory)?;
        let state = inode.lock();
        let is_so = state.is_protected(directory, asked) && state.dentries.is_as_said(asked.at);
        is_so.then(Tick::ask)
    }

    /// Whether a directory has these entries and no others, or no others among those of a page, and
    /// nobody else can change that.
    pub(super) fn has_all(&self, directory: Ino, entries: &[DirEntry], part: ListedPart) -> bool {
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
        let (dentries, is_locked) = (&state.dentries, state.has(Bits::NEGATIVE));
        let has_no_other = match part {
            ListedPart::All => {
                let is_protected = is_locked || state.rare.delegation.is_delegated();
                let is_complete = is_protected && dentries.is_complete();
                is_complete && dentries.iter().count() == names().count()
            }
            // Names that follow may be known, too.
            ListedPart::Page(then) => {
                is_locked && dentries.is_protected_since(then) && dentries.is_as_said(then)
            }
        };
        if !has_no_other {
            return false;
        }
        let parent = entries.iter().find(|entry| entry.name == b"..").map(|entry| entry.ino);
        let has_parent =
            |parent: Ino| keeps_names(&state, parent) && state.parent() == Some(parent);
        parent.is_none_or(has_parent)
            && names().all(|entry| dentries.get(&entry.name) == Some(entry.ino))
    }

    /// A page has come with all entries of a directory, and was learned, for a program. All names are
    /// known from now on if these are, and nobody could make another one meanwhile. Of a delegated
    /// directory that is known anyway, or it has an access list.
    pub(crate) fn note_all_names(&self, directory: Ino, entries: &[DirEntry], asked: &Asked) {
        let Some(inode) = self.find(directory) else { return };
        let mut state = inode.lock();
        let is_known =
            |entry: &DirEntry| is_dots(entry) || state.child(&entry.name) == Some(entry.ino);
        let are_all = state.is_protected(directory, asked)
            && state.dentries.has_learned_all(asked.at)
            && !state.rare.delegation.is_delegated()
            && entries.iter().all(is_known);
        if are_all {
            state.dentries.set_complete(true);
        }
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

//! Pages of directories, learned for names that are going to be looked up.
//!
//! Invariant: a directory is complete only if one page had all of its names, each of them is known
//! under its lock, and nobody could make another one since it was asked for.

use crate::cache::Cache;
use crate::cache::attrs::Tick;
use glint_proto::lock::Bits;
use glint_proto::{DirPage, Ino};

impl Cache {
    /// Learns the entries after `cookie` of a directory, as the servers said them in answer to what
    /// was asked then. The kernel is not told of them, so nobody but `idle.rs` forgets them.
    pub(crate) fn learn_page(&self, parent: Ino, cookie: u64, page: &DirPage, asked: Tick) {
        let mut is_all = cookie == 0 && page.end;
        for entry in &page.entries {
            if matches!(entry.name.as_slice(), b"." | b"..") {
                continue;
            }
            let Some(attr) = &entry.attr else {
                // Another client has it for itself.
                is_all = false;
                continue;
            };
            let inode = self.inode(attr.ino);
            let named = (parent, entry.name.as_slice());
            let (state, held) = self.learn_entry(&inode, named, attr, asked, !attr.size_on_ost);
            drop(state);
            is_all &= held;
            self.note_idle(&inode);
        }
        let directory = self.inode(parent);
        let mut state = directory.lock();
        let next = page.entries.last().filter(|_| !page.end);
        state.dentries.note_page(next.map(|last| last.cookie));
        if is_all && state.has(Bits::NEGATIVE) && state.dentries.may_learn(asked) {
            state.dentries.set_complete(true);
        }
    }
}

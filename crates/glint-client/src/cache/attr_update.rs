//! What a client changes of inodes, from the request to its answer.

use crate::cache::inode::{CachedInode, InodeState};
use glint_proto::lock::Bits;
use glint_proto::{Attr, Ino, Timestamp};
use std::sync::Arc;

/// A change of inodes by this client. Until it ends nothing is known of their attributes.
pub(crate) struct AttrUpdate {
    inodes: Vec<UpdatedInode>,
}

struct UpdatedInode {
    inode: Arc<CachedInode>,
    /// How many changes there were before, and what was known then.
    changes: u64,
    before: Option<Attr>,
}

impl UpdatedInode {
    /// Its state, if nothing else has happened meanwhile and the attributes may be kept.
    fn undisturbed(&self) -> Option<parking_lot::MutexGuard<'_, InodeState>> {
        let state = self.inode.lock();
        let alone = state.changing == 1 && state.changes == self.changes;
        (alone && state.bits.has(Bits::ATTR)).then_some(state)
    }
}

impl AttrUpdate {
    /// A change of these begins.
    pub(crate) fn begin(inodes: impl Iterator<Item = Arc<CachedInode>>) -> AttrUpdate {
        let begin = |inode: Arc<CachedInode>| {
            let mut state = inode.lock();
            state.changing += 1;
            let (changes, before) = (state.changes, state.attr.take());
            drop(state);
            UpdatedInode { inode, changes, before }
        };
        AttrUpdate { inodes: inodes.map(begin).collect() }
    }

    /// The servers said what the attributes of one of them are now.
    pub(crate) fn learn(&self, attr: &Attr) {
        let updated = self.inodes.iter().find(|updated| updated.inode.ino == attr.ino);
        if let Some(mut state) = updated.and_then(UpdatedInode::undisturbed) {
            state.attr = Some(attr.clone());
        }
    }

    /// A name was made in a directory at this time.
    pub(crate) fn made_in(&self, directory: Ino, time: Timestamp, is_dir: bool) {
        let updated = self.inodes.iter().find(|updated| updated.inode.ino == directory);
        if let Some(updated) = updated
            && let Some(before) = &updated.before
            && let Some(mut state) = updated.undisturbed()
        {
            let nlink = before.nlink + u32::from(is_dir);
            state.attr = Some(Attr { mtime: time, ctime: time, nlink, ..before.clone() });
        }
    }
}

impl Drop for AttrUpdate {
    fn drop(&mut self) {
        for updated in &self.inodes {
            let mut state = updated.inode.lock();
            state.changing -= 1;
            state.changes += 1;
            if state.changing > 0 {
                state.attr = None;
            }
            drop(state);
            updated.inode.wake();
        }
    }
}

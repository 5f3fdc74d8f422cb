//! Updates of inodes by this client, from the request to its answer.

use crate::cache::attrs::{Before, Tick};
use crate::cache::in_flight::Asked;
use crate::cache::inode::CachedInode;
use glint_proto::{Attr, Ino};
use std::sync::Arc;

/// An update of inodes by this client. Until it ends nothing is known of their attributes.
pub(crate) struct AttrUpdate {
    inodes: Vec<UpdatedInode>,
}

struct UpdatedInode {
    inode: Arc<CachedInode>,
    before: Before,
}

impl AttrUpdate {
    /// An update of these begins.
    pub(crate) fn begin(inodes: impl Iterator<Item = Arc<CachedInode>>) -> AttrUpdate {
        let begin = |inode: Arc<CachedInode>| {
            let before = inode.lock().begin_update();
            UpdatedInode { inode, before }
        };
        AttrUpdate { inodes: inodes.map(begin).collect() }
    }

    fn of(&self, ino: Ino) -> Option<&UpdatedInode> {
        self.inodes.iter().find(|updated| updated.inode.ino == ino)
    }

    /// The servers said what the attributes of one of them are now.
    pub(crate) fn learn(&self, attr: &Attr) {
        if let Some(UpdatedInode { inode, before }) = self.of(attr.ino) {
            inode.lock().finish_update(before, attr);
        }
    }

    /// The answer said what an inode is like since its extended attributes were changed, which may
    /// have changed its mode. Of a file that is written this client knows the rest better.
    pub(crate) fn learn_xattrs(&self, said: &Attr) {
        if let Some(UpdatedInode { inode, before }) = self.of(said.ino) {
            let mut state = inode.lock();
            state.finish_update_with(before, |attr| {
                (attr.mode, attr.has_no_xattrs) = (said.mode, said.has_no_xattrs);
                attr.ctime = attr.ctime.max(said.ctime);
            });
            // Data may have been sent meanwhile.
            state.learn_blocks();
        }
    }

    /// The answer said what the request has made of the directories whose entries it has changed.
    pub(crate) fn learn_changed(&self, asked: &Asked) {
        for changed in asked.changed() {
            if let Some(UpdatedInode { inode, before }) = self.of(changed.ino) {
                inode.lock().finish_update_with(before, |attr| {
                    attr.nlink = changed.nlink;
                    (attr.mtime, attr.ctime) = (changed.time, changed.time);
                });
            }
        }
    }
}

impl Drop for AttrUpdate {
    fn drop(&mut self) {
        let now = Tick::now();
        for updated in &self.inodes {
            updated.inode.lock().end_update(now);
            updated.inode.wake();
        }
    }
}

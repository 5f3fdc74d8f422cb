//! Updates of inodes by this client, from the request to its answer.

use crate::cache::attrs::{Before, Tick};
use crate::cache::inode::CachedInode;
use glint_proto::posix::entry_added;
use glint_proto::{Attr, Ino, Timestamp};
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

    /// A name was made in a directory at this time.
    pub(crate) fn made_in(&self, directory: Ino, time: Timestamp, is_dir: bool) {
        if let Some(UpdatedInode { inode, before }) = self.of(directory) {
            inode.lock().finish_update_with(before, |attr| entry_added(attr, is_dir, time));
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

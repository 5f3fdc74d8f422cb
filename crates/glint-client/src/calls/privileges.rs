//! What a change of data takes from a file: set-id bits, file capabilities, and a modification time
//! that a program has set.
//!
//! Invariants:
//! - When a change of data returns, nobody runs the file with what it took away: neither the servers
//!   nor the kernel have it any more.
//! - No data of a file changes while its inode knows the time ([`Attr::mtime_set`]): nobody would see
//!   the change by it.
//!
//! [`Bits::PLAIN`] says that a file has nothing to take; a client without locks is alone, and
//! counts its own changes that may give a file such things.

use crate::cache::inode::CachedInode;
use crate::calls::open_files::OpenFile;
use crate::client::Client;
use crate::vfs::{Caller, Handle, WriteHow, Writer};
use glint_lock::held::Use;
use glint_net::Transport;
use glint_proto::lock::{Bits, Range};
use glint_proto::posix::XATTR_CAPABILITY;
use glint_proto::{Attr, Cred, FsResult, Ino, SetAttr, Timestamp};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Id of no user and no group.
const NOBODY: u32 = u32::MAX;

impl<T: Transport> Client<T> {
    /// Takes from a file what it must not keep when its data changes.
    pub(crate) async fn take_privileges(
        &self,
        inode: Option<&Arc<CachedInode>>,
        file: &OpenFile,
        how: WriteHow,
    ) -> FsResult<()> {
        let counted = self.handles.privileges_given();
        // Nothing says who wrote to a page. A store takes no set-id bits.
        let writer = if how.pages { Writer::Privileged } else { how.writer };
        let (plain, announces) = match inode {
            Some(inode) => {
                let state = inode.lock();
                (how.pages || state.is_plain(), state.data.must_announce())
            }
            // A time that is set while the file is open its objects know.
            None => match file.plain.load(Ordering::Acquire) {
                0 => (false, false),
                then => (how.pages || then == counted, false),
            },
        };
        let is_announced = match inode.filter(|_| announces) {
            Some(inode) => self.announce(inode, file, how.pages).await?,
            None => true,
        };
        if plain && is_announced {
            return Ok(());
        }
        let caller = |uid, gid, groups, pid| Caller { cred: Cred { uid, gid, groups }, pid };
        let (kill_suidgid, caller) = match writer {
            Writer::Privileged => (false, Caller::ROOT),
            Writer::Process { uid, gid, pid } => (true, caller(uid, gid, None, pid)),
            Writer::Anybody => (true, caller(NOBODY, NOBODY, Some(Vec::new()), 0)),
        };
        let set = SetAttr { kill_suidgid, kill_capability: true, ..SetAttr::default() };
        let found = Client::setattr(self, &caller, file.ino, &set).await?;
        if !found.attr.has_set_id() {
            file.plain.store(counted, Ordering::Release);
        }
        if !how.pages {
            self.forget_mode(file.ino);
        }
        Ok(())
    }

    /// Has the servers hear that data of a file changes whose time was set. False if that is left to
    /// the setattr that takes privileges.
    ///
    /// The objects get a time first: they are believed as soon as the servers have heard, and what
    /// they had before is older than the time that was set.
    async fn announce(
        &self,
        inode: &Arc<CachedInode>,
        file: &OpenFile,
        pages: bool,
    ) -> FsResult<bool> {
        // Those of a file that is open since it was made have none from before that one, unless the
        // server has started again meanwhile.
        if file.made > 0 && self.announce_locally(inode) {
            return Ok(true);
        }
        let purpose = if pages { Use::Bring } else { Use::Call };
        let guard = self.lock_data(inode, Range::ALL, true, purpose).await?;
        let layout = self.layout_of_open(file);
        self.set_objects_time(file.ino, layout, Timestamp::now(), &|| guard.is_held()).await?;
        drop(guard);
        Ok(self.announce_locally(inode))
    }

    /// The kernel has to ask for the mode of a file, which is open, before it uses it again.
    pub(crate) fn forget_mode(&self, ino: Ino) {
        if let Some(kernel) = self.cache.kernel() {
            // The call waits for nothing: pages stay, and the inode is in use by who calls.
            kernel.forget_attributes(ino);
        }
    }

    /// A file was made and opened by this client, when so many changes had been counted.
    pub(crate) fn note_created(&self, handle: Handle, attr: &Attr, counted: u64) {
        if !self.has_locks()
            && !attr.has_set_id()
            && let Ok(file) = self.handles.get(handle)
        {
            file.plain.store(counted, Ordering::Release);
        }
    }

    /// Notes that this client has set a mode, or an extended attribute.
    pub(crate) fn note_privileges_given(&self, mode: Option<u32>, xattr: &[u8]) {
        let set_id = mode.is_some_and(|mode| mode & (libc::S_ISUID | libc::S_ISGID) != 0);
        if set_id || xattr == XATTR_CAPABILITY {
            self.handles.note_privileges_given();
        }
    }
}

impl crate::cache::inode::InodeState {
    /// True if a write has nothing to take from it. A mode that was set here counts before the
    /// servers have recalled PLAIN.
    fn is_plain(&self) -> bool {
        match self.attributes().map(Attr::has_set_id) {
            Some(true) => false,
            Some(false) => self.has(Bits::PLAIN) || self.delegation.has_no_xattrs(),
            None => self.has(Bits::PLAIN),
        }
    }
}

//! Set-id bits and file capabilities: what a change of data takes from a file.
//!
//! Invariant: when a change of data returns, nobody runs the file with what it took away:
//! neither the servers nor the kernel have it any more.
//!
//! [`Bits::PLAIN`] says that a file has nothing to take; a client without locks is alone, and
//! counts its own changes that may give a file such things.

use crate::cache::inode::CachedInode;
use crate::calls::open_files::OpenFile;
use crate::client::Client;
use crate::vfs::{Caller, Handle, Writer};
use glint_net::Transport;
use glint_proto::lock::Bits;
use glint_proto::posix::XATTR_CAPABILITY;
use glint_proto::{Attr, Cred, FsResult, Ino, SetAttr};
use std::sync::atomic::Ordering;

/// Id of no user and no group.
const NOBODY: u32 = u32::MAX;

impl<T: Transport> Client<T> {
    /// Takes from a file what it must not keep when `writer` changes its data.
    pub(crate) async fn take_privileges(
        &self,
        inode: Option<&CachedInode>,
        file: &OpenFile,
        writer: Writer,
    ) -> FsResult<()> {
        let counted = self.handles.privileges_given();
        let plain = match inode {
            Some(inode) => inode.lock().is_plain(),
            None => file.plain.load(Ordering::Acquire) == counted,
        };
        if plain {
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
        self.forget_mode(file.ino);
        Ok(())
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
            Some(false) => self.has(Bits::PLAIN) || self.rare.delegation.has_no_xattrs(),
            None => self.has(Bits::PLAIN),
        }
    }
}

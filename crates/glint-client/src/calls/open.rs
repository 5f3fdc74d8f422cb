//! Opening files: what it does before a handle is there, and after it failed.
//!
//! Invariant: an open that the MDS has counted has a handle, or the MDS hears that it is not.

use crate::cache::attrs::Tick;
use crate::calls::open_files::OpenFile;
use crate::client::Client;
use crate::vfs::{Caller, Found, Handle, Open, Valid};
use glint_net::{MdsRequests, Transport};
use glint_proto::lock::Bits;
use glint_proto::{Attr, FsResult, Ino, MdsRequest, OpenFlags};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// An open that the MDS counts. Unless it gets a handle, it is taken back: also when its call is
/// dropped, and then by somebody else.
struct CountedOpen<'a, T: Transport> {
    client: &'a Client<T>,
    ino: Ino,
    flags: OpenFlags,
    has_handle: bool,
}

impl<T: Transport> CountedOpen<'_, T> {
    fn release(&self) -> MdsRequest<'static> {
        let wrote = self.flags.truncate.then(|| (self.client.data.next_glimpse(), None));
        MdsRequest::Release { ino: self.ino, write: self.flags.write, wrote }
    }
}

impl<T: Transport> Drop for CountedOpen<'_, T> {
    fn drop(&mut self) {
        if !self.has_handle {
            self.client.locks.inbox.take_open_back(self.release());
        }
    }
}

impl<T: Transport> Client<T> {
    pub(crate) fn add_handle(&self, attr: &Attr, flags: OpenFlags, declared: bool) -> Handle {
        self.add_open(attr, flags, declared, 0)
    }

    /// The same for a file that this client has made by itself with the change `made`.
    pub(crate) fn add_open(
        &self,
        attr: &Attr,
        flags: OpenFlags,
        declared: bool,
        made: u64,
    ) -> Handle {
        let shared = attr.is_file() && flags.read && flags.write;
        let mut error_seen = 0;
        if let Some(inode) = self.inode(attr.ino) {
            let mut state = inode.lock();
            state.pins.open(shared);
            error_seen = state.data.told_to_new(flags.truncate);
            if attr.is_file() {
                state.data.set_layout(Some(attr.layout));
            }
        }
        self.handles.add(OpenFile {
            ino: attr.ino,
            layout: attr.layout,
            write: flags.write,
            is_dir: attr.is_dir(),
            append: flags.append,
            shared,
            declared,
            made,
            error_seen: AtomicU64::new(error_seen),
            lock_owners: Mutex::default(),
            plain: AtomicU64::new(0),
            wrote: AtomicBool::new(flags.truncate),
            atime_done: AtomicBool::new(self.terms.noatime),
            ahead: Mutex::default(),
        })
    }

    /// An open that the MDS has granted: truncates if that was asked for. If it fails, the MDS
    /// hears that the file is not open.
    pub(crate) async fn opened(&self, attr: Attr, flags: OpenFlags, asked: Tick) -> FsResult<Open> {
        let mut counted = CountedOpen { client: self, ino: attr.ino, flags, has_handle: false };
        let opened = self.finish_open(attr, flags, asked).await;
        counted.has_handle = true;
        if opened.is_err() {
            self.take_open_back(counted.release()).await;
        }
        opened
    }

    /// The MDS hears that a file which it counts as open is not.
    pub(crate) async fn take_open_back(&self, release: MdsRequest<'static>) {
        if let Err(errno) = self.transport.mds().post(&Caller::ROOT.cred, &release).await {
            tracing::warn!(?release, %errno, "taking an open back");
        }
    }

    async fn finish_open(&self, attr: Attr, flags: OpenFlags, asked: Tick) -> FsResult<Open> {
        if flags.truncate && attr.is_file() {
            self.cut(attr.ino, attr.layout, 0).await?;
        }
        // The objects may not have yet what this client wrote before.
        let attr = self.with_unsent(attr, None).await?;
        let handle = self.add_handle(&attr, flags, true);
        if flags.read
            && flags.write
            && let Some(inode) = self.inode(attr.ino)
        {
            self.forget_clean_pages(&inode).await;
        }
        let Found { attr, valid } = self.learn_attr(attr, asked);
        Ok(Open { attr, handle, valid, created: false })
    }

    /// Opens to read what may be opened without asking.
    pub(crate) fn open_locally(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Option<Open> {
        if !self.has_locks() || !caller.may_all() || flags.write || flags.truncate {
            return None;
        }
        let attr = {
            let inode = self.cache.find(ino)?;
            let mut state = inode.lock();
            if !state.bits.has(Bits::OPEN) {
                return None;
            }
            if self.terms.needs_capabilities && !state.may_read() {
                return None;
            }
            let attr = state.attributes()?.clone();
            if !attr.is_file() && !attr.is_dir() {
                return None;
            }
            state.pins.open_undeclared();
            attr
        };
        let handle = self.add_handle(&attr, flags, false);
        Some(Open { attr, handle, valid: Valid::under(false, true), created: false })
    }
}

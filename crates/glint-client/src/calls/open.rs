//! Opening files and closing them: what is done before a handle is there, after that failed, and
//! when the handle is gone.
//!
//! Invariant: an open that the MDS has counted has a handle, or the MDS hears that it is not.

pub(crate) mod exclusion;

use crate::cache::in_flight::Asked;
use crate::cache::inode::CachedInode;
use crate::calls::open_files::OpenFile;
use crate::client::Client;
use crate::listing::ListedTo;
use crate::vfs::{Caller, Found, Handle, Open, Valid};
use glint_net::{MdsRequests, Transport};
use glint_proto::lock::Bits;
use glint_proto::{Attr, FsResult, Ino, MdsRequest, ObjectAttr, OpenFlags};
use glint_wait::Monitor;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// An open that the MDS counts. Unless it gets a handle, it is undone: also when its call is
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
            self.client.locks.inbox.undo_open(self.release());
        }
    }
}

impl<T: Transport> Client<T> {
    pub(crate) fn add_handle(&self, attr: &Attr, flags: OpenFlags, declared: bool) -> Handle {
        self.add_open(attr, flags, declared, 0)
    }

    /// Adds an open of a file that this client has made by itself with the change `made`.
    pub(crate) fn add_open(
        &self,
        attr: &Attr,
        flags: OpenFlags,
        declared: bool,
        made: u64,
    ) -> Handle {
        let shared = attr.is_file() && flags.read && flags.write;
        let (mut error_seen, mut in_pages) = (0, false);
        if let Some(inode) = self.inode(attr.ino) {
            let mut state = inode.lock();
            state.pins.open(shared);
            error_seen = state.rare.data.told_to_new(flags.truncate);
            if attr.is_file() {
                state.rare.make().data.set_layout(Some(attr.layout));
                inode.next_ask.note_use();
            }
            in_pages = flags.read && state.rare.data.is_stored();
            drop(state);
            if in_pages {
                self.on_open_of_stored(&inode);
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
            atime_done: AtomicBool::new(self.parameters.noatime),
            in_pages,
            last_entry: AtomicU64::new(0),
            listed_to: ListedTo::default(),
            pages_ahead: Arc::default(),
            ahead: Mutex::default(),
            handed_out: AtomicBool::new(false),
            changing: Monitor::default(),
        })
    }

    /// An open that the MDS has granted: truncates if that was asked for. If it fails, the MDS
    /// hears that the file is not open.
    pub(crate) async fn opened(
        &self,
        attr: Attr,
        flags: OpenFlags,
        asked: &Asked,
    ) -> FsResult<Open> {
        let mut counted = CountedOpen { client: self, ino: attr.ino, flags, has_handle: false };
        let opened = self.finish_open(attr, flags, asked).await;
        counted.has_handle = true;
        if opened.is_err() {
            self.undo_open(counted.release()).await;
        }
        opened
    }

    /// The MDS hears that a file which it counts as open is not.
    pub(crate) async fn undo_open(&self, release: MdsRequest<'static>) {
        if let Err(errno) = self.transport.mds().post(&Caller::ROOT.cred, &release).await {
            tracing::warn!(
                ?release, %errno,
                "could not undo an open; the server counts the file as open until this client \
                ends"
            );
        }
    }

    /// Tells the MDS of opens that it does not know: as many as [`Pins::begin_declaring`] said. Those
    /// that others began to tell it of are known when this returns, too.
    ///
    /// [`Pins::begin_declaring`]: crate::cache::pins::Pins::begin_declaring
    pub(crate) async fn declare_opens(&self, inode: &CachedInode, opens: u32) {
        if opens > 0 {
            let request = MdsRequest::AddOpens { ino: inode.ino, readers: opens };
            if let Err(errno) = self.ask_as_root(&request).await {
                tracing::warn!(
                    ino = %inode.ino, %errno,
                    "could not tell the MDS that a file is open; it may end with its last name"
                );
            }
            inode.lock().pins.end_declaring();
            inode.wake();
        }
        inode.until(|state| (!state.pins.is_declaring()).then_some(())).await;
    }

    async fn finish_open(&self, attr: Attr, flags: OpenFlags, asked: &Asked) -> FsResult<Open> {
        // Until its attributes are learned it is not forgotten.
        let inode = self.inode(attr.ino);
        if flags.truncate && attr.is_file() {
            self.cut(attr.ino, attr.layout, 0).await?;
        }
        // The objects may not have yet what this client wrote before.
        let attr = self.with_unsent(attr, None).await?;
        let handle = self.add_handle(&attr, flags, true);
        if flags.read
            && flags.write
            && let Some(inode) = &inode
        {
            self.forget_clean_pages(inode).await;
        }
        let Found { attr, valid } = self.learn_attr(attr, asked);
        if flags.write
            && let Some(inode) = &inode
        {
            inode.lock().opened_to_write();
        }
        Ok(Open { attr, handle, valid, created: false })
    }

    /// Opens to read what may be opened without asking.
    pub(crate) fn open_locally(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Option<Open> {
        if !self.has_locks() || !caller.may_all() || flags.write || flags.truncate {
            return None;
        }
        if self.is_suspended() {
            return None;
        }
        let attr = {
            let inode = self.cache.find(ino)?;
            let mut state = inode.lock();
            if !state.has(Bits::OPEN) {
                return None;
            }
            if self.parameters.needs_capabilities && !state.may_read() {
                return None;
            }
            let attr = state.attributes()?.clone();
            // Without a name it lasts as long as the MDS knows that it is open.
            if attr.nlink == 0 || (!attr.is_file() && !attr.is_dir()) {
                return None;
            }
            state.pins.open_undeclared();
            attr
        };
        let handle = self.add_handle(&attr, flags, false);
        Some(Open { attr, handle, valid: Valid::under(false, true), created: false })
    }

    /// The last use of a handle: says what was written through it.
    pub(crate) async fn release(&self, handle: Handle) -> FsResult<()> {
        let file = self.handles.remove(handle)?;
        if file.is_changing() {
            // Seldom, and apart from the state of each close.
            Box::pin(file.until_unchanging()).await;
        }
        let inode = self.inode(file.ino);
        self.end_posix_locks(&file).await;
        if let Some(inode) = inode.as_ref().filter(|_| file.in_pages) {
            self.touch_at_close(&file, inode).await;
        }
        if let Some(inode) = &inode {
            {
                let mut state = inode.lock();
                state.pins.close(file.shared);
                if !state.pins.is_open()
                    && let Some(rare) = state.rare.made()
                {
                    rare.data.forget_around();
                }
            }
            if !file.declared && inode.until(|state| state.pins.close_undeclared()).await {
                self.cache.note_idle(inode);
                return Ok(());
            }
        }
        if file.made > 0 {
            return self.release_locally(file);
        }
        let mut closing = None;
        let wrote = match file.wrote.load(Ordering::Acquire) && !file.is_dir {
            true => {
                if let Some(inode) = &inode {
                    self.flush_closed(inode).await;
                }
                closing = Some(self.begin_close(file.ino, inode.as_deref()).await);
                self.say_written(inode.as_deref(), &file).await
            }
            false => None,
        };
        let request = MdsRequest::Release { ino: file.ino, write: file.write, wrote };
        let result = self.transport.mds().post(&Caller::ROOT.cred, &request).await;
        drop(closing);
        if let Some(inode) = &inode {
            self.cache.note_idle(inode);
        }
        result
    }

    /// Attributes that a close reports of a file that was written.
    pub(crate) async fn say_written(
        &self,
        inode: Option<&CachedInode>,
        file: &OpenFile,
    ) -> Option<(u64, Option<ObjectAttr>)> {
        let number = self.data.next_glimpse();
        let layout = self.layout_of_open(file);
        let known = inode.and_then(|inode| self.written(inode, layout));
        let objects = match known {
            Some(objects) => Ok(Some(objects)),
            None => self.glimpse(file.ino, layout).await,
        };
        match objects {
            Ok(objects) => {
                if let (Some(inode), Some(objects)) = (inode, objects) {
                    let mut state = inode.lock();
                    let clean = state.rare.data.is_clean();
                    if let Some(attr) = state.attributes_mut().filter(|_| clean) {
                        attr.blocks = objects.blocks;
                    }
                }
                objects.map(|objects| (number, Some(objects)))
            }
            Err(errno) => {
                // The file is closed nevertheless, and its objects are asked by whoever needs
                // to know.
                tracing::warn!(
                    ino = %file.ino, %errno,
                    "could not ask the objects of a closed file; whoever needs its size asks them"
                );
                Some((number, None))
            }
        }
    }
}

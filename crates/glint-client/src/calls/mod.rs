//! The calls of a file system. Each is the same four steps, and their names say which:
//!
//! 1. *try locally*: what ends in `_locally` answers if the cache and its locks, or a delegation,
//!    allow that, and says `None` if not;
//! 2. *flush* what is in the way: `lock_data` and `flush_inode` for data, `flush_before` for
//!    changes in the write-back log, which is a part of the next step;
//! 3. *ask*: [`Client::ask`] is the one way to the MDS;
//! 4. *learn*: what begins with `learn_`, and the end of an update, which says what it has made of
//!    the attributes.
//!
//! Calls that change attributes or names are updates from before they ask until they have learned all
//! of it ([`Client::begin_update`]): in between others may have seen what is not known here. Others
//! note when they ask and what they hold then ([`Asked`]).

pub(crate) mod attributes;
mod data;
pub(crate) mod groups;
mod handed_out;
mod names;
pub(crate) mod open;
pub(crate) mod open_files;
mod privileges;
pub(crate) mod scan;
pub(crate) mod snapshots;
pub(crate) mod virtual_xattr;

use crate::cache::attr_update::AttrUpdate;
use crate::cache::in_flight::Asked;
use crate::client::{Client, said_attr};
use crate::kernel::Kernel;
use crate::listing::ListedPage;
use crate::vfs::{
    Caching, Caller, Found, FsStat, Handle, Listing, Make, Open, Valid, Vfs, WriteHow,
};
use glint_net::Transport;
use glint_proto::limits::NAME_BYTES_MAX;
use glint_proto::{
    Errno, FsResult, Ino, LocalObject, MdsReply, MdsRequest, OpenFlags, PosixLock, RenameFlags,
    SetAttr, XattrFlags,
};
use std::sync::Arc;
use std::time::Duration;

impl<T: Transport> Vfs for Client<T> {
    fn root(&self) -> Ino {
        self.parameters.root
    }

    fn caching(&self) -> Caching {
        match (self.has_locks(), self.parameters.is_alone()) {
            (true, _) => Caching::Locked,
            (false, true) => Caching::Alone,
            (false, false) => Caching::Timed,
        }
    }

    fn negative_time(&self) -> Duration {
        // Under locks this client remembers it: the kernel could not be told in time.
        if self.has_locks() { Duration::ZERO } else { self.parameters.cache_time }
    }

    fn set_kernel(&self, kernel: Arc<dyn Kernel>) {
        self.cache.set_kernel(kernel, self.root());
    }

    fn note_use(&self) {
        self.memory.note_use();
    }

    fn forget(&self, ino: Ino, lookups: u64) {
        if self.has_locks() {
            self.cache.forget(ino, lookups);
        }
    }

    async fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<Found> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if name == b"." {
            return self.lookup_number(parent).await;
        }
        if let Some(known) = self.lookup_locally(caller, parent, name) {
            return known;
        }
        if let Some(known) = self.lookup_when_listed(caller, parent, name).await {
            return known;
        }
        if let Some(known) = self.lookup_by_page(caller, parent, name).await {
            return known;
        }
        self.lookup_alone(caller, parent, name).await
    }

    async fn getattr(&self, ino: Ino) -> FsResult<Found> {
        if let Some(known) = self.getattr_locally(ino) {
            return Ok(known);
        }
        let mut asked = Asked::about([ino]);
        let request = MdsRequest::Getattr { ino };
        let attr = self.ask_attr(&Caller::ROOT, &request, &mut asked).await?;
        Ok(self.learn_attr(attr, &asked))
    }

    async fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> FsResult<Found> {
        Client::setattr(self, caller, ino, set).await
    }

    async fn readlink(&self, ino: Ino) -> FsResult<Vec<u8>> {
        self.ask_bytes(&Caller::ROOT, &MdsRequest::Readlink { ino }).await
    }

    async fn make(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        make: Make<'_>,
    ) -> FsResult<Found> {
        if let Some(found) = self.make_locally(caller, parent, name, make, None).await {
            return Ok(found);
        }
        let Make { mode, umask, rdev, target } = make;
        if mode & libc::S_IFMT == libc::S_IFDIR {
            self.prepare_delegation().await;
        }
        let request = MdsRequest::Create {
            parent,
            name,
            mode,
            umask,
            rdev,
            target,
            open: None,
            exclusive: true,
        };
        let (update, mut asked) = (self.begin_update(&[parent]), Asked::now());
        let attr = self.ask_attr(caller, &request, &mut asked).await?;
        if let Some(update) = &update {
            update.learn_changed(&asked);
        }
        Ok(self.learn_made(parent, name, attr, &asked))
    }

    async fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        make: Make<'_>,
        flags: i32,
    ) -> FsResult<Open> {
        let mut open = OpenFlags::from_posix(flags);
        open.kill_suidgid = open.truncate && !caller.cred.is_superuser();
        let counted = self.handles.privileges_given();
        if let Some(found) = self.make_locally(caller, parent, name, make, Some(open)).await {
            return Ok(self.opened_locally(found, open));
        }
        let request = MdsRequest::Create {
            parent,
            name,
            mode: make.mode,
            umask: make.umask,
            rdev: 0,
            target: b"",
            open: Some(open),
            exclusive: flags & libc::O_EXCL != 0,
        };
        let (update, mut asked) = (self.begin_update(&[parent]), Asked::now());
        match self.ask_to_learn(caller, &request, &mut asked).await? {
            MdsReply::Opened { attr, created: true } => {
                if let Some(update) = &update {
                    update.learn_changed(&asked);
                }
                let handle = self.add_handle(&attr, OpenFlags { truncate: false, ..open }, true);
                self.note_created(handle, &attr, counted);
                let Found { attr, valid } = self.learn_made(parent, name, attr, &asked);
                Ok(Open { attr, handle, valid, created: true })
            }
            MdsReply::Opened { attr, created: false } => {
                drop(update);
                // Nobody knew which inode it is: what was known of it is older.
                let update = if open.truncate { self.begin_update(&[attr.ino]) } else { None };
                let opened = self.opened(attr, open, &asked).await?;
                drop(update);
                let found = self.learn_name(parent, name, opened.attr, &asked, false);
                Ok(Open { attr: found.attr, valid: found.valid.without_attr(), ..opened })
            }
            _ => Err(Errno::EPROTO),
        }
    }

    async fn tmpfile(&self, caller: &Caller, parent: Ino, mode: u32, umask: u32) -> FsResult<Open> {
        let counted = self.handles.privileges_given();
        let (request, mut asked) = (MdsRequest::Tmpfile { parent, mode, umask }, Asked::now());
        match self.ask_to_learn(caller, &request, &mut asked).await? {
            MdsReply::Opened { attr, .. } => {
                let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
                let handle = self.add_handle(&attr, flags, true);
                self.note_created(handle, &attr, counted);
                let Found { attr, valid } = self.learn_name(parent, b"", attr, &asked, true);
                let valid = Valid { entry: Duration::ZERO, ..valid };
                Ok(Open { attr, handle, valid, created: true })
            }
            _ => Err(Errno::EPROTO),
        }
    }

    async fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> FsResult<Open> {
        if let Some(open) = self.open_locally(caller, ino, flags) {
            return Ok(open);
        }
        let update = if flags.truncate { self.begin_update(&[ino]) } else { None };
        let (request, mut asked) = (MdsRequest::Open { ino, flags }, Asked::about([ino]));
        match self.ask_to_learn(caller, &request, &mut asked).await? {
            MdsReply::Attr(attr) => {
                let opened = self.opened(attr, flags, &asked).await;
                drop(update);
                if flags.truncate && flags.kill_suidgid {
                    self.forget_mode(ino);
                }
                opened
            }
            _ => Err(Errno::EPROTO),
        }
    }

    async fn hand_out(&self, handle: Handle) -> FsResult<Option<Arc<dyn LocalObject>>> {
        Client::hand_out(self, handle).await
    }

    async fn note_passed(&self, handle: Handle, stores: bool) {
        Client::note_passed(self, handle, stores).await;
    }

    async fn release(&self, handle: Handle) -> FsResult<()> {
        Client::release(self, handle).await
    }

    async fn flush(&self, handle: Handle) -> FsResult<()> {
        let file = self.handles.get(handle)?;
        match self.inode(file.ino) {
            Some(inode) if file.write => self.error_of(&inode, &file),
            _ => Ok(()),
        }
    }

    fn may_have_posix_locks(&self, ino: Ino) -> bool {
        self.cache.find(ino).is_some_and(|inode| inode.lock().may_have_posix_locks())
    }

    fn pages_are_current(&self) -> bool {
        Client::pages_are_current(self)
    }

    async fn posix_lock(&self, handle: Handle, lock: PosixLock) -> FsResult<Option<PosixLock>> {
        let file = self.handles.get(handle)?;
        self.posix_lock_of(&file, lock).await
    }

    async fn cancel_posix_lock(&self, ino: Ino, ticket: u64) {
        Client::cancel_posix_lock(self, ino, ticket).await;
    }

    fn is_away(&self) -> bool {
        self.transport.is_away()
    }

    async fn read(
        &self,
        handle: Handle,
        offset: u64,
        buffer: &mut [u8],
        pages: bool,
    ) -> FsResult<usize> {
        Client::read(self, handle, offset, buffer, pages).await
    }

    async fn write(&self, handle: Handle, offset: u64, data: &[u8], how: WriteHow) -> FsResult<()> {
        Client::write(self, handle, offset, data, how).await
    }

    async fn fsync(&self, handle: Handle) -> FsResult<()> {
        self.sync_file(handle).await
    }

    async fn sync(&self) -> FsResult<()> {
        self.sync_all().await
    }

    async fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> FsResult<()> {
        Client::fallocate(self, caller, handle, mode, offset, len).await
    }

    async fn lseek(&self, handle: Handle, offset: u64, hole: bool) -> FsResult<u64> {
        self.seek(handle, offset, hole).await
    }

    async fn copy_range(
        &self,
        caller: &Caller,
        from: (Handle, u64),
        to: (Handle, u64),
        len: u64,
    ) -> FsResult<u64> {
        Client::copy_range(self, caller, from, to, len).await
    }

    async fn opendir(&self, caller: &Caller, ino: Ino) -> FsResult<Handle> {
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        if let Some(open) = self.open_locally(caller, ino, flags) {
            return Ok(open.handle);
        }
        match self.ask(caller, &MdsRequest::Open { ino, flags }).await? {
            MdsReply::Attr(attr) => Ok(self.add_handle(&attr, flags, true)),
            _ => Err(Errno::EPROTO),
        }
    }

    async fn readdir(
        &self,
        caller: &Caller,
        handle: Handle,
        cookie: u64,
        bytes_max: u32,
        plus: bool,
    ) -> FsResult<Listing> {
        let file = self.handles.get(handle)?;
        self.touch(&file).await;
        if file.take_last_entry(cookie) {
            file.pages_ahead.forget();
            return Ok(Listing::default());
        }
        let is_begin = cookie == 0;
        let came_ahead = match (plus, is_begin) {
            (true, true) => self.take_listed(caller, &file, bytes_max).await,
            (true, false) => self.take_next_page(caller, &file, cookie, bytes_max).await,
            (false, _) => None,
        };
        let known =
            came_ahead.or_else(|| self.list_from_memory(caller, &file, (cookie, bytes_max), plus));
        if let Some(listing) = known {
            return Ok(listing);
        }
        let request = MdsRequest::Readdir { ino: file.ino, cookie, bytes_max, plus };
        let mut asked = Asked::now();
        let MdsReply::Dir(page) = self.ask_to_learn(caller, &request, &mut asked).await? else {
            return Err(Errno::EPROTO);
        };
        if !plus && self.has_locks() {
            self.cache.inode(file.ino).lock().dentries.pages().note_listed();
        }
        let told = ListedPage { is_begin, is_end: page.end, was_ahead: false };
        let mut listing = Listing { valid: Vec::new(), entries: page.entries };
        for entry in &mut listing.entries {
            let mut valid = Valid::default();
            let attr = match entry.attr.take() {
                // Unsent data of the writer is asked for when the file is looked at.
                Some(attr) if attr.size_on_ost && self.has_locks() => Some(attr),
                // Who looks at the file hears why an OST does not say its size; its name is told.
                Some(attr) => self.complete(attr).await.ok(),
                None => None,
            };
            if let Some(attr) = attr {
                let learns = !attr.size_on_ost;
                let found = self.learn_name(file.ino, &entry.name, attr, &asked, learns);
                (entry.attr, valid) = (Some(found.attr), found.valid);
            }
            listing.valid.push(valid);
        }
        self.note_told(caller, &file, told, &listing.entries);
        if plus && told.is_begin && told.is_end && self.has_locks() {
            self.cache.note_all_names(file.ino, &listing.entries, &asked);
        }
        if plus {
            self.go_on_ahead(caller, &file, (cookie, bytes_max), told, &listing.entries, &asked);
        }
        Ok(listing)
    }

    async fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> FsResult<Found> {
        let request = MdsRequest::Link { ino, parent, name };
        if self.log.is_busy() {
            // What this brings is held before the update begins.
            self.flush_before(&request).await;
        }
        let update = self.begin_update(&[ino, parent]);
        if let Some(inode) = self.inode(ino) {
            // The inode will be seen elsewhere.
            if let Some(rare) = inode.lock().rare.made() {
                rare.delegation.leave();
            }
        }
        let mut asked = Asked::about([ino]);
        let reply = self.ask_to_learn(caller, &request, &mut asked).await?;
        let (attr, others) = said_attr(reply)?;
        // The name is there, even if the objects cannot be asked.
        let whole = self.with_unsent(attr, others).await;
        let attr = whole.inspect_err(|_| self.cache.doubt_name(parent, name))?;
        if let Some(update) = &update {
            update.learn(&attr);
            update.learn_changed(&asked);
        }
        let found = match self.has_locks() {
            true => self.cache.learn_made(parent, name, &attr, &asked, false),
            false => self.learn_name(parent, name, attr, &asked, false),
        };
        Ok(Found { valid: found.valid.without_attr(), ..found })
    }

    async fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<Option<Ino>> {
        self.remove(caller, parent, name, &MdsRequest::Unlink { parent, name }).await
    }

    async fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<()> {
        self.remove(caller, parent, name, &MdsRequest::Rmdir { parent, name }).await.map(drop)
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> FsResult<Option<Ino>> {
        Client::rename(self, caller, from, to, flags).await
    }

    async fn getxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        room: usize,
    ) -> FsResult<Vec<u8>> {
        if let Some(value) = self.virtual_xattr(caller, ino, name, room).await {
            return value;
        }
        if self.has_no_xattrs(ino) {
            return Err(Errno::ENODATA);
        }
        self.ask_bytes(caller, &MdsRequest::Getxattr { ino, name }).await
    }

    async fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> FsResult<()> {
        if let Some(result) = self.set_virtual_xattr(caller, ino, name, value).await {
            return result;
        }
        let update = self.begin_update(&[ino]);
        if let Some(inode) = self.inode(ino) {
            inode.lock().gets_xattr();
        }
        let reply = self.ask(caller, &MdsRequest::Setxattr { ino, name, value, flags }).await;
        self.note_privileges_given(None, name);
        learn_xattrs(update, reply?)
    }

    async fn listxattr(&self, ino: Ino) -> FsResult<Vec<u8>> {
        if self.has_no_xattrs(ino) {
            return Ok(Vec::new());
        }
        self.ask_bytes(&Caller::ROOT, &MdsRequest::Listxattr { ino }).await
    }

    async fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> FsResult<()> {
        let update = self.begin_update(&[ino]);
        let reply = self.ask(caller, &MdsRequest::Removexattr { ino, name }).await?;
        learn_xattrs(update, reply)
    }

    async fn statfs(&self) -> FsResult<FsStat> {
        Client::statfs(self).await
    }
}

/// Learns the answer to a change of extended attributes.
fn learn_xattrs(update: Option<AttrUpdate>, reply: MdsReply) -> FsResult<()> {
    let MdsReply::Attr(attr) = reply else { return Err(Errno::EPROTO) };
    if let Some(update) = update {
        update.learn_xattrs(&attr);
    }
    Ok(())
}

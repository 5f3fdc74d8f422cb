//! Operations that this client executes itself, in directories delegated to it ([`Bits::DELEGATION`]) and
//! on inodes that it made there. The servers are told later.
//!
//! Invariants:
//! - Nobody else can have seen what is changed here: before another client gets anything of the
//!   directory its delegation is recalled, and that waits until the servers know everything.
//! - A change is made and put into the write-back log under the locks of its inodes, so changes are
//!   sent in the order in which they became visible here. The first of these locks is waited
//!   for, the others are only tried: so it does not matter in which order others take them.
//! - Only what the servers would do in the same way is done here: the rules are those of
//!   [`glint_proto::posix`], and here is decided only whether all that they depend on is known.
//!   Everything else is asked of the servers, after they have been told what is in the way: see
//!   `flush_before.rs`.

use crate::cache::inode::{CachedInode, InodeState};
use crate::calls::open_files::OpenFile;
use crate::client::Client;
use crate::vfs::{Caller, Found, Make, Open, Valid};
use futures_util::future::{Either, select};
use glint_net::{Transport, host};
use glint_proto::deferred::Deferred;
use glint_proto::lock::Bits;
use glint_proto::message::check_name;
use glint_proto::posix::{
    Needs, New, Renaming, apply_setattr, check_new, entry_added, entry_removed, may_add_entry,
    may_change_entries, may_rename, may_replace, may_rmdir, may_unlink, new_inode, permit_setattr,
    renamed,
};
use glint_proto::{
    Attr, Cred, Errno, FileType, FsResult, Ino, MdsReply, MdsRequest, OpenFlags, Placement,
    RenameFlags, SetAttr, Timestamp,
};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Inode numbers that are asked for at once.
const NUMBERS: u32 = 1 << 12;
/// How long a flush of the whole log waits for the data of a closed file.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

impl InodeState {
    /// The attributes of this directory, if `caller` may change its entries and all of them are
    /// known here.
    fn takes_changes_of(&self, caller: &Caller) -> Option<&Attr> {
        let may_have_default_acl =
            |attr: &Attr| !attr.has_no_xattrs && self.rare.delegation.may_have_default_acl();
        let is_known = |attr: &Attr| {
            // Access lists and groups say nothing of the superuser, nor of the owner.
            let is_decided = caller.cred.is_superuser() || caller.cred.uid == attr.uid;
            is_decided && caller.may_all() && attr.mode & libc::S_ISGID == 0
        };
        self.attributes()
            .filter(|_| self.rare.delegation.is_delegated() && self.dentries.is_complete())
            .filter(|attr| is_known(attr) && !may_have_default_acl(attr))
            .filter(|attr| may_change_entries(attr, None, &caller.cred).is_ok())
    }

    /// The attributes of this inode, if all of it is known here: it has one name, in a directory
    /// that it was made in, nobody uses it, and of a directory all entries are known.
    fn is_known_alone(&self, parent: Ino) -> Option<&Attr> {
        let attr = self.attributes().filter(|_| self.rare.delegation.parent() == Some(parent))?;
        let is_known = match attr.is_dir() {
            true => self.rare.delegation.is_delegated() && self.dentries.is_complete(),
            false => attr.nlink == 1 && !self.pins.is_closing() && self.rare.data.is_clean(),
        };
        (is_known && !self.pins.is_open()).then_some(attr)
    }
}

impl<T: Transport> Client<T> {
    fn may_defer(&self) -> bool {
        self.log.is_on() && self.has_locks() && !self.is_suspended()
    }

    fn push(
        &self,
        caller: &Caller,
        time: Timestamp,
        made: Option<(Ino, Placement)>,
        request: MdsRequest<'_>,
    ) -> FsResult<u64> {
        let (uid, gid) = (caller.cred.uid, caller.cred.gid);
        self.log.push(&Deferred { uid, gid, time, made, request })
    }

    /// A number for a new inode.
    async fn number(&self) -> Option<Ino> {
        loop {
            if let Some(ino) = self.log.number() {
                return Some(ino);
            }
            if !self.ask_for_numbers().await {
                return None;
            }
        }
    }

    /// Asks for inode numbers; the servers know then that this client makes changes by itself.
    async fn ask_for_numbers(&self) -> bool {
        let request = MdsRequest::GrantInodes { count: NUMBERS, epoch: self.log.epoch() };
        match self.ask_as_root(&request).await {
            Ok(MdsReply::Inodes { first, count, osts, avoided, chains, name_seed }) => {
                self.placement.note(osts, avoided, chains);
                self.name_order.note(name_seed);
                self.log.add_numbers(first..first + u64::from(count));
                true
            }
            Err(Errno::EOPNOTSUPP) => {
                self.log.turn_off();
                false
            }
            _ => false,
        }
    }

    /// Before a directory is made, so that its delegation is granted with it.
    pub(crate) async fn prepare_delegation(&self) {
        if self.may_defer() && !self.log.has_numbers() {
            self.ask_for_numbers().await;
        }
    }

    /// Makes an inode with a name. `None` if the servers have to be asked.
    pub(crate) async fn make_locally(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        make: Make<'_>,
        open: Option<OpenFlags>,
    ) -> Option<Found> {
        if !self.may_defer() {
            return None;
        }
        let directory = self.cache.find(parent)?;
        let kind = FileType::from_mode(make.mode)?;
        let is_dir = kind == FileType::Directory;
        let takes = |state: &InodeState| {
            let may = |directory| may_add_entry(directory, is_dir).is_ok();
            state.takes_changes_of(caller).is_some_and(may) && state.child(name).is_none()
        };
        let Make { mode, umask, rdev, target } = make;
        let new = New { kind, mode, umask, rdev, target };
        if !takes(&directory.lock())
            || check_name(name).is_err()
            || check_new(&new, &caller.cred).is_err()
        {
            return None;
        }
        self.log.room().await;
        let ino = self.number().await?;
        let now = Timestamp::now();
        let inode = self.cache.inode(ino);
        let mut state = directory.lock();
        if !takes(&state) {
            drop(state);
            self.cache.note_idle(&inode);
            return None;
        }
        let made = state.attributes().and_then(|directory| {
            let osts = self.placement.targets(directory.layout.replicas);
            let layout = self.placement.layout(directory.layout, ino, is_dir, osts)?;
            // The directory has no default ACL, or its delegation would not have been granted.
            let made = new_inode((ino, layout), &new, (directory, None), &caller.cred, now);
            (osts > 0).then_some((made.attr, osts))
        });
        let Some((attr, osts)) = made else {
            drop(state);
            self.cache.note_idle(&inode);
            return None;
        };
        let attr = Attr { size_on_ost: open.is_some_and(|flags| flags.write), ..attr };
        let placement = Placement { first: attr.layout.first_ost, osts };
        let request = MdsRequest::Create {
            parent,
            name,
            mode: attr.mode,
            umask: 0,
            rdev,
            target,
            open,
            exclusive: true,
        };
        let number = self.push(caller, now, Some((ino, placement)), request).ok()?;
        let found = {
            let mut child = inode.lock();
            child.on_local_create(parent, name, attr.clone(), number);
            if let Some(flags) = open {
                child.rare.make().data.set_layout(Some(attr.layout));
                child.rare.make().data_locks.expect(flags.write);
            }
            self.cache.found(&mut child, attr)
        };
        state.dentries.insert(name, ino);
        state.dentries.note_made();
        state.rare.make().delegation.note_change(number);
        if let Some(directory) = state.attributes_mut() {
            entry_added(directory, is_dir, now);
        }
        drop(state);
        if is_dir {
            self.log.note_delegated(ino);
        }
        Some(found)
    }

    /// A file that was made here is open.
    pub(crate) fn opened_locally(&self, found: Found, flags: OpenFlags) -> Open {
        let Found { attr, valid } = found;
        let made =
            self.cache.find(attr.ino).map_or(0, |inode| inode.lock().rare.delegation.creation());
        let flags = OpenFlags { truncate: false, ..flags };
        let handle = self.add_open(&attr, flags, true, made);
        Open { attr, handle, valid, created: true }
    }

    /// Sets attributes of an inode that was made here. `None` if the servers have to be asked.
    pub(crate) fn setattr_locally(
        &self,
        caller: &Caller,
        ino: Ino,
        set: &SetAttr,
    ) -> Option<Found> {
        if !self.may_defer() || set.size.is_some() || set.kill_capability {
            return None;
        }
        let inode = self.cache.find(ino)?;
        let mut state = inode.lock();
        state.rare.delegation.parent()?;
        let attr = state.attributes()?;
        // The log carries no groups: a right that needs one is asked for, with all of them.
        let cred = Cred { groups: None, ..caller.cred.clone() };
        if permit_setattr(attr, &cred, set) != Ok(Needs::Nothing) {
            return None;
        }
        // Objects that were written have a time of their own until the file is closed: a time that
        // the MDS heard before that close would be taken for the older one.
        let sent = state.rare.data.has_objects() || state.rare.data.dirty().has_in_flight();
        if set.mtime.is_some() && attr.is_file() && sent {
            return None;
        }
        let now = Timestamp::now();
        let mut changed = attr.clone();
        // Capabilities and access lists are with the servers alone. They change when this is
        // executed, and reading one flushes the log before.
        apply_setattr(&mut changed, set, &cred, now);
        if changed.has_set_id() && state.has(Bits::PLAIN) {
            // Writes rely on PLAIN until the servers have recalled it.
            return None;
        }
        let request = MdsRequest::Setattr { ino, set: set.clone() };
        let number = self.push(caller, now, None, request).ok()?;
        state.rare.make().delegation.note_change(number);
        state.attributes_mut()?.clone_from(&changed);
        if set.mtime.is_some() {
            state.rare.make().data.set_mtime(changed.mtime);
        }
        Some(Found { attr: changed, valid: Valid::under(false, true) })
    }

    /// Notes that an inode was read just now, if that is due. `false` if the servers have to be
    /// asked. Of any inode: access times are not exact, and one that was overtaken by a change
    /// counts for nothing.
    pub(crate) fn touch_locally(&self, ino: Ino) -> bool {
        let Some(inode) = self.cache.find(ino) else { return false };
        let may_defer = self.may_defer();
        let mut state = inode.lock();
        let now = Timestamp::now();
        match state.attributes() {
            Some(attr) if !attr.needs_atime(now) || now < attr.ctime => return true,
            Some(_) if may_defer && self.log.has_room() => {}
            _ => return false,
        }
        match self.push(&Caller::ROOT, now, None, MdsRequest::Touch { ino }) {
            Ok(number) => state.on_local_access(now, number),
            Err(_) => return false,
        }
        true
    }

    /// The inode of a name in a directory, and whether that takes changes.
    fn child_locally(
        &self,
        caller: &Caller,
        parent: &CachedInode,
        name: &[u8],
    ) -> Option<Arc<CachedInode>> {
        let child = {
            let state = parent.lock();
            state.takes_changes_of(caller)?;
            state.child(name)?
        };
        self.cache.find(child)
    }

    /// Removes a name that was made here: of a file, or of an empty directory.
    pub(crate) fn remove_locally(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        request: &MdsRequest<'_>,
    ) -> Option<()> {
        if !self.may_defer() {
            return None;
        }
        let is_dir = matches!(request, MdsRequest::Rmdir { .. });
        let directory = self.cache.find(parent)?;
        let inode = self.child_locally(caller, &directory, name)?;
        let mut state = directory.lock();
        if state.child(name) != Some(inode.ino) {
            return None;
        }
        let mut child = inode.try_lock()?;
        let (at, removed) = (state.takes_changes_of(caller)?, child.is_known_alone(parent)?);
        let may = match is_dir {
            true => may_rmdir(at, removed, child.dentries.is_empty(), &caller.cred),
            false => may_unlink(at, removed, &caller.cred),
        };
        may.ok()?;
        let request = match is_dir {
            true => MdsRequest::Rmdir { parent, name },
            false => MdsRequest::Unlink { parent, name },
        };
        let now = Timestamp::now();
        let number = self.push(caller, now, None, request).ok()?;
        if let (Some(at), Some(removed)) = (state.attributes_mut(), child.attributes_mut()) {
            entry_removed(at, removed, now);
        }
        child.on_local_remove(number);
        drop(child);
        state.dentries.remove(name);
        state.rare.make().delegation.note_change(number);
        Some(())
    }

    /// Renames what was made here, between directories delegated to this client.
    pub(crate) fn rename_locally(
        &self,
        caller: &Caller,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Option<()> {
        if !self.may_defer() || flags.exchange || check_name(new_name).is_err() {
            return None;
        }
        let (from, to) = (self.cache.find(parent)?, self.cache.find(new_parent)?);
        let same = parent == new_parent;
        let source = self.child_locally(caller, &from, name)?;
        let known = to.lock().child(new_name);
        let target = match known {
            Some(ino) if ino == source.ino => return None,
            Some(ino) => Some(self.cache.find(ino)?),
            None => None,
        };
        let target_ino = target.as_ref().map(|inode| inode.ino);
        if source.ino == new_parent || target_ino == Some(parent) {
            return None;
        }
        let mut from_state = from.lock();
        let mut to_state = if same { None } else { Some(to.try_lock()?) };
        let to_now = to_state.as_ref().unwrap_or(&from_state).child(new_name);
        if from_state.child(name) != Some(source.ino) || to_now != known {
            return None;
        }
        let mut moved = source.try_lock()?;
        let mut replaced = match &target {
            Some(target) => Some(target.try_lock()?),
            None => None,
        };
        {
            let at = from_state.takes_changes_of(caller)?;
            let to_at = to_state.as_ref().unwrap_or(&from_state).takes_changes_of(caller)?;
            let moved_attr = moved.attributes()?;
            // A directory could become its own ancestor, and nothing of it is known further up.
            if moved.rare.delegation.parent() != Some(parent)
                || (moved_attr.is_dir() && (!same || target.is_some()))
            {
                return None;
            }
            let over = match &replaced {
                Some(replaced) => Some(replaced.is_known_alone(new_parent)?),
                None => None,
            };
            may_rename((at, moved_attr), (to_at, over), flags, &caller.cred).ok()?;
            if let (Some(over), Some(replaced)) = (over, &replaced) {
                may_replace(moved_attr, over, replaced.dentries.is_empty()).ok()?;
            }
        }
        let now = Timestamp::now();
        let flags = RenameFlags::default();
        let request = MdsRequest::Rename { parent, name, new_parent, new_name, flags };
        let number = self.push(caller, now, None, request).ok()?;
        if let (Some(at), Some(moved_attr)) = (from_state.attributes_mut(), moved.attributes_mut())
        {
            let to = to_state.as_mut().and_then(|state| state.attributes_mut());
            let target = replaced.as_mut().and_then(|state| state.attributes_mut());
            renamed(Renaming { from: at, to, source: moved_attr, target }, false, now);
        }
        if let Some(replaced) = &mut replaced {
            replaced.on_local_remove(number);
        }
        moved.on_local_rename(new_parent, new_name, number);
        from_state.dentries.remove(name);
        from_state.rare.make().delegation.note_change(number);
        let to_state = to_state.as_mut().unwrap_or(&mut from_state);
        to_state.dentries.insert(new_name, source.ino);
        to_state.dentries.note_made();
        to_state.rare.make().delegation.note_change(number);
        Some(())
    }

    /// A file that was made here is closed. Its data goes before its end does.
    pub(crate) fn release_locally(&self, file: Arc<OpenFile>) -> FsResult<()> {
        let Some(inode) = self.inode(file.ino) else { return Ok(()) };
        if file.wrote.load(Ordering::Acquire) {
            inode.lock().pins.begin_close();
            self.log.close(file);
            return Ok(());
        }
        let request = MdsRequest::Release { ino: file.ino, write: file.write, wrote: None };
        let mut state = inode.lock();
        if let Some(attr) = state.attributes_mut().filter(|_| file.write) {
            attr.size_on_ost = false;
        }
        let pushed = self.push(&Caller::ROOT, Timestamp::now(), None, request);
        if let Ok(number) = pushed {
            state.rare.make().delegation.note_change(number);
        }
        drop(state);
        self.cache.note_idle(&inode);
        pushed.map(drop)
    }

    /// Writes what is still here of a file that was closed, and says that it was.
    pub(crate) async fn finish_closed(&self, file: &OpenFile) {
        let inode = self.cache.inode(file.ino);
        let is_stuck = {
            let mut flushed = pin!(async {
                self.flush_closed(&inode).await;
                inode.until(|state| (!state.pins.is_setting()).then_some(())).await;
            });
            match select(&mut flushed, pin!(host::sleep(CLOSE_PATIENCE))).await {
                Either::Left(_) => false,
                Either::Right(_) => {
                    self.log.note_stuck();
                    flushed.await;
                    true
                }
            }
        };
        let mut wrote = self.say_written(Some(&inode), file).await;
        let mut state = inode.lock();
        if let Some((_, Some(objects))) = &mut wrote
            && let Some(times) = state.last_times()
        {
            // Times of the objects are older than a utimensat(2) that is in the write-back log
            // before this.
            (objects.mtime, objects.ctime) = times;
        }
        let request = MdsRequest::Release { ino: file.ino, write: file.write, wrote };
        match self.push(&Caller::ROOT, Timestamp::now(), None, request) {
            Ok(number) => state.rare.make().delegation.note_change(number),
            Err(errno) => state.rare.make().data.lose(errno),
        }
        state.pins.end_close();
        drop(state);
        inode.wake();
        self.log.note_closed(is_stuck);
        self.cache.note_idle(&inode);
    }
}

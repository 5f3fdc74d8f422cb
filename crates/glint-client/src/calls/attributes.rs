//! The calls on attributes: what of a file they lock and flush before they are changed, and who knows
//! them.

use crate::cache::inode::CachedInode;
use crate::calls::open_files::OpenFile;
use crate::client::Client;
use crate::locks::data_locks::DataLockGuard;
use crate::vfs::{Caller, Found, FsStat, Valid};
use futures_util::future::{try_join_all, try_join3};
use glint_lock::held::Use;
use glint_net::{MdsSession, Transport};
use glint_proto::lock::Range;
use glint_proto::{
    Bulk, Errno, FsResult, Ino, MdsReply, MdsRequest, OstReply, OstRequest, SetAttr, SpaceInfo,
    clock,
};
use parking_lot::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// For how long statfs(2) says the same without asking: monitors and file managers ask often.
const FS_STAT_TIME: Duration = Duration::from_secs(1);

/// What statfs(2) said last, and when the servers were asked for it.
#[derive(Default)]
pub(crate) struct LastFsStat(Mutex<Option<(Instant, FsStat)>>);

impl LastFsStat {
    /// What it says, unless the servers have to be asked.
    fn get(&self) -> Option<FsStat> {
        let (asked, stat) = (*self.0.lock())?;
        (clock::since(asked) < FS_STAT_TIME).then_some(stat)
    }

    fn set(&self, asked: Instant, stat: FsStat) {
        *self.0.lock() = Some((asked, stat));
    }
}

impl<T: Transport> Client<T> {
    /// The attributes, if they are known.
    pub(crate) fn getattr_locally(&self, ino: Ino) -> Option<Found> {
        if self.is_suspended() { None } else { self.cache.attributes(ino) }
    }

    /// Sets attributes: of a size the data follows, of times the objects.
    pub(crate) async fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        set: &SetAttr,
    ) -> FsResult<Found> {
        if let Some(found) = self.setattr_locally(caller, ino, set) {
            return Ok(found);
        }
        if let Some(size) = set.size {
            self.check_size(ino, size).await?;
        }
        let inode = self.inode(ino);
        // Objects that the data is just leaving get no size and no time.
        let _inside = match set.size.is_some() || set.mtime.is_some() {
            true => Some(self.data.gate.enter(ino).await),
            false => None,
        };
        // Nobody reads or writes while a size is set, and nobody else has unsent data that is
        // older than a time that is set.
        let mut guard = None;
        let is_held =
            |guard: &Option<DataLockGuard>| guard.as_ref().is_none_or(DataLockGuard::is_held);
        if let Some(inode) = &inode {
            let dates = set.mtime.is_some() && inode.lock().objects_have_times();
            if set.size.is_some() || dates {
                // The kernel writes no pages back while it sets a size.
                let purpose = if set.size.is_some() { Use::Bring } else { Use::Call };
                guard = Some(self.lock_data(inode, Range::ALL, true, purpose).await?);
            }
            if set.size.is_some() {
                self.flush_inode(inode).await?;
            }
        }
        let _setting = match set.size.is_some() || set.mtime.is_some() {
            true => Some(self.begin_setting(ino, inode.as_deref()).await),
            false => None,
        };
        let update = inode.as_ref().map(|_| self.cache.begin_update(&[ino]));
        let request = MdsRequest::Setattr { ino, set: set.clone() };
        let reply = self.ask(caller, &request).await;
        self.note_privileges_given(set.mode, b"");
        let MdsReply::Attr(mut attr) = reply? else { return Err(Errno::EPROTO) };
        if let Some(size) = set.size {
            let cut = self.truncate_objects(ino, attr.layout, size, &|| is_held(&guard)).await;
            if let Some(inode) = &inode {
                inode.lock().rare.make().data.change();
            }
            cut?;
        }
        let (mtime, ctime) = (attr.mtime, attr.ctime);
        if let Some(inode) = &inode {
            let mut state = inode.lock();
            if set.mtime.is_some() || set.size.is_some() {
                state.rare.make().data.set_mtime(mtime);
            }
        }
        if set.mtime.is_some() && attr.is_file() && attr.size_on_ost {
            // While the file is being written the objects are asked for the time,
            // so they must know what was set; and last, whatever is on its way to them.
            if let Some(inode) = &inode {
                if guard.is_none() {
                    guard = Some(self.lock_data(inode, Range::ALL, true, Use::Call).await?);
                }
                inode.until(|state| (!state.rare.data.dirty().has_in_flight()).then_some(())).await;
            }
            self.set_object_times(&attr, &|| is_held(&guard)).await?;
            attr = self.with_unsent(attr, None).await?;
            (attr.mtime, attr.ctime) = (mtime, ctime);
        } else {
            attr = self.with_unsent(attr, None).await?;
        }
        drop(guard);
        match (&inode, update) {
            (Some(inode), Some(update)) => {
                update.learn(&attr);
                drop(update);
                let valid = Valid::under(false, inode.lock().attributes().is_some());
                Ok(Found { attr, valid: valid.without_attr() })
            }
            _ => Ok(Found { attr, valid: Valid::timed(self.parameters.cache_time) }),
        }
    }

    /// Sets the access time, if that is due. It travels with the next changes, as with the option
    /// lazytime of mount(8), where this client knows what is due.
    pub(crate) async fn touch(&self, file: &OpenFile) {
        if file.atime_done.swap(true, Ordering::Relaxed) || self.touch_locally(file.ino) {
            return;
        }
        // A read does not fail because its time could not be noted.
        let update = self.begin_update(&[file.ino]);
        match self.ask_as_root(&MdsRequest::Touch { ino: file.ino }).await {
            Ok(MdsReply::Attr(attr)) if !attr.size_on_ost => {
                if let Some(update) = update {
                    update.learn(&attr);
                }
            }
            Ok(_) => {}
            Err(errno) => tracing::debug!(ino = %file.ino, %errno, "access time not set"),
        }
    }

    /// Sets the access time of a file that is closed and may have been read without a word, if that is
    /// due. The kernel does not know that it has changed.
    pub(crate) async fn touch_at_close(&self, file: &OpenFile, inode: &CachedInode) {
        let atime = || inode.lock().attributes().map(|attr| attr.atime);
        let before = atime();
        self.touch(file).await;
        if atime() != before
            && let Some(kernel) = self.cache.kernel()
        {
            kernel.forget_attributes(file.ino);
        }
    }

    /// statfs(2).
    pub(crate) async fn statfs(&self) -> FsResult<FsStat> {
        if let Some(stat) = self.last_fs_stat.get() {
            return Ok(stat);
        }
        let asked = clock::now();
        let inodes = async {
            match self.ask(&Caller::ROOT, &MdsRequest::Statfs).await? {
                MdsReply::Statfs { inodes } => Ok(inodes),
                _ => Err(Errno::EPROTO),
            }
        };
        let own = try_join_all(self.placement.own().map(|ost| self.space_of(ost)));
        // The others may be out of reach; the MDS knows what they said last.
        let osses = self.transport.mds().osses();
        let (inodes, mut spaces, osses) = try_join3(inodes, own, osses).await?;
        spaces.extend(osses.into_iter().flat_map(|oss| oss.space));
        let SpaceInfo { total, free, available, .. } = SpaceInfo::sum(spaces);
        let stat = FsStat { inodes, total, free, available };
        self.last_fs_stat.set(asked, stat);
        Ok(stat)
    }

    async fn space_of(&self, ost: u16) -> FsResult<SpaceInfo> {
        match self.ask_ost(ost, OstRequest::Space, Bulk::None, &|| true).await? {
            OstReply::Space(space) => Ok(space),
            _ => Err(Errno::EPROTO),
        }
    }
}

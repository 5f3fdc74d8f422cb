//! The client of one file system, on any transport.

use crate::groups::supplementary_groups;
use crate::handles::{Handles, OpenFile};
use crate::vfs::{Caller, FsStat, Handle, Make, Open, Vfs};
use crate::virtual_xattr::{LAYOUT, STATS, STATUS, format_layout, parse_layout};
use glint_net::Transport;
use glint_proto::limits::{CACHE_MS_SHARED, FILE_BYTES_MAX, FUSE_IO_BYTES_MAX};
use glint_proto::{
    Attr, Bulk, DirPage, Errno, FsResult, Ino, Layout, MdsReply, MdsRequest, OpenFlags, OstReply,
    OstRequest, RenameFlags, SetAttr, XattrFlags,
};
use glint_telemetry::{Counter, Layer, Span};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A client core.
pub struct Client<T> {
    pub(crate) transport: T,
    pub(crate) osts: u16,
    handles: Handles,
    cache_time: Duration,
    noatime: bool,
    /// Counts what was asked of objects for closes.
    glimpses: AtomicU64,
}

impl<T: Transport> Client<T> {
    /// A client on `transport`. With `noatime` reading never changes an inode.
    pub fn new(transport: T, noatime: bool) -> Client<T> {
        let welcome = transport.welcome();
        Client {
            transport,
            osts: welcome.osts,
            handles: Handles::default(),
            cache_time: Duration::from_millis(welcome.cache_ms),
            noatime,
            glimpses: AtomicU64::new(1),
        }
    }

    /// The transport.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// Asks the MDS; once more with supplementary groups if it refuses without.
    async fn mds(&self, caller: &Caller, request: &MdsRequest<'_>) -> FsResult<MdsReply> {
        let _span = Span::start(Layer::Client, request.op() as u8);
        let cred = &caller.cred;
        match self.transport.mds(cred, request).await {
            Err(Errno::EACCES | Errno::EPERM)
                if caller.pid != 0 && cred.groups.is_none() && !cred.is_superuser() =>
            {
                let mut cred = cred.clone();
                cred.groups = Some(supplementary_groups(caller.pid));
                self.transport.mds(&cred, request).await
            }
            reply => reply,
        }
    }

    async fn mds_attr(&self, caller: &Caller, request: &MdsRequest<'_>) -> FsResult<Attr> {
        match self.mds(caller, request).await? {
            MdsReply::Attr(attr) => self.complete(attr).await,
            _ => Err(Errno::EPROTO),
        }
    }

    async fn mds_bytes(&self, caller: &Caller, request: &MdsRequest<'_>) -> FsResult<Vec<u8>> {
        match self.mds(caller, request).await? {
            MdsReply::Bytes(bytes) => Ok(bytes),
            _ => Err(Errno::EPROTO),
        }
    }

    fn add_handle(&self, attr: &Attr, flags: OpenFlags) -> Handle {
        self.handles.add(OpenFile {
            ino: attr.ino,
            layout: attr.layout,
            write: flags.write,
            is_dir: attr.is_dir(),
            wrote: AtomicBool::new(flags.truncate),
            touched: AtomicBool::new(self.noatime),
        })
    }

    /// An open that the MDS has granted: truncates if that was asked for.
    async fn opened(&self, attr: Attr, flags: OpenFlags) -> FsResult<Open> {
        if flags.truncate && attr.is_file() {
            self.truncate_objects(attr.ino, attr.layout, 0).await?;
        }
        let attr = self.complete(attr).await?;
        let handle = self.add_handle(&attr, flags);
        Ok(Open { attr, handle })
    }

    async fn size_of(&self, ino: Ino) -> FsResult<u64> {
        Ok(self.getattr(ino).await?.size)
    }

    async fn touch(&self, file: &OpenFile) {
        if !file.touched.swap(true, Ordering::Relaxed) {
            // A read does not fail because its time could not be noted.
            let request = MdsRequest::Touch { ino: file.ino };
            if let Err(errno) = self.mds(&Caller::ROOT, &request).await {
                tracing::debug!(ino = %file.ino, %errno, "access time not set");
            }
        }
    }

    async fn layout_of(&self, ino: Ino) -> FsResult<Layout> {
        match self.mds(&Caller::ROOT, &MdsRequest::Getattr { ino }).await? {
            MdsReply::Attr(attr) => Ok(attr.layout),
            _ => Err(Errno::EPROTO),
        }
    }
}

impl<T: Transport> Vfs for Client<T> {
    fn cache_time(&self) -> Duration {
        self.cache_time
    }

    fn is_alone(&self) -> bool {
        self.cache_time > Duration::from_millis(CACHE_MS_SHARED)
    }

    async fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        self.mds_attr(caller, &MdsRequest::Lookup { parent, name }).await
    }

    async fn getattr(&self, ino: Ino) -> FsResult<Attr> {
        self.mds_attr(&Caller::ROOT, &MdsRequest::Getattr { ino }).await
    }

    async fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> FsResult<Attr> {
        let request = MdsRequest::Setattr { ino, set: set.clone() };
        let MdsReply::Attr(attr) = self.mds(caller, &request).await? else {
            return Err(Errno::EPROTO);
        };
        if let Some(size) = set.size {
            self.truncate_objects(ino, attr.layout, size).await?;
        }
        if set.mtime.is_some() && attr.is_file() {
            // While the file is being written the objects are asked for the time,
            // so they must know what was set.
            self.set_object_times(&attr).await?;
            let ctime = attr.ctime;
            let mut attr = self.complete(attr).await?;
            attr.ctime = ctime;
            return Ok(attr);
        }
        self.complete(attr).await
    }

    async fn readlink(&self, ino: Ino) -> FsResult<Vec<u8>> {
        self.mds_bytes(&Caller::ROOT, &MdsRequest::Readlink { ino }).await
    }

    async fn make(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        make: Make<'_>,
    ) -> FsResult<Attr> {
        let Make { mode, umask, rdev, target } = make;
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
        self.mds_attr(caller, &request).await
    }

    async fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        make: Make<'_>,
        flags: i32,
    ) -> FsResult<Open> {
        let open = OpenFlags::from_posix(flags);
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
        match self.mds(caller, &request).await? {
            MdsReply::Opened { attr, created: true } => {
                let handle = self.add_handle(&attr, OpenFlags { truncate: false, ..open });
                Ok(Open { attr, handle })
            }
            MdsReply::Opened { attr, created: false } => self.opened(attr, open).await,
            _ => Err(Errno::EPROTO),
        }
    }

    async fn tmpfile(&self, caller: &Caller, parent: Ino, mode: u32, umask: u32) -> FsResult<Open> {
        match self.mds(caller, &MdsRequest::Tmpfile { parent, mode, umask }).await? {
            MdsReply::Opened { attr, .. } => {
                let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
                let handle = self.add_handle(&attr, flags);
                Ok(Open { attr, handle })
            }
            _ => Err(Errno::EPROTO),
        }
    }

    async fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> FsResult<Open> {
        match self.mds(caller, &MdsRequest::Open { ino, flags }).await? {
            MdsReply::Attr(attr) => self.opened(attr, flags).await,
            _ => Err(Errno::EPROTO),
        }
    }

    async fn release(&self, handle: Handle) -> FsResult<()> {
        let file = self.handles.remove(handle)?;
        let wrote = match file.wrote.load(Ordering::Acquire) && !file.is_dir {
            true => {
                let number = self.glimpses.fetch_add(1, Ordering::AcqRel);
                self.glimpse(file.ino, file.layout).await?.map(|objects| (number, objects))
            }
            false => None,
        };
        let request = MdsRequest::Release { ino: file.ino, write: file.write, wrote };
        self.transport.mds_soon(&Caller::ROOT.cred, &request).await
    }

    async fn read(&self, handle: Handle, offset: u64, buffer: &mut [u8]) -> FsResult<usize> {
        let file = self.handles.get(handle)?;
        self.touch(&file).await;
        let n = self.read_file(&file, offset, buffer).await?;
        glint_telemetry::count(Counter::BytesRead, n as u64);
        Ok(n)
    }

    async fn write(&self, handle: Handle, offset: u64, data: &[u8], sync: bool) -> FsResult<()> {
        let file = self.handles.get(handle)?;
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(Errno::EFBIG);
        }
        file.wrote.store(true, Ordering::Release);
        self.write_file(&file, offset, data).await?;
        glint_telemetry::count(Counter::BytesWritten, data.len() as u64);
        if sync {
            self.fsync(file.ino).await?;
        }
        Ok(())
    }

    async fn fsync(&self, ino: Ino) -> FsResult<()> {
        let MdsReply::Attr(attr) = self.mds(&Caller::ROOT, &MdsRequest::Getattr { ino }).await?
        else {
            return Err(Errno::EPROTO);
        };
        let metadata = self.mds(&Caller::ROOT, &MdsRequest::Sync);
        if !attr.is_file() {
            return metadata.await.map(drop);
        }
        let data = self.sync_objects(ino, attr.layout);
        futures_util::future::try_join(data, metadata).await.map(drop)
    }

    async fn sync(&self) -> FsResult<()> {
        self.mds(&Caller::ROOT, &MdsRequest::Sync).await.map(drop)
    }

    async fn fallocate(&self, handle: Handle, mode: i32, offset: u64, len: u64) -> FsResult<()> {
        let file = self.handles.get(handle)?;
        let known =
            libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        if mode & !known != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if offset.checked_add(len).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(Errno::EFBIG);
        }
        file.wrote.store(true, Ordering::Release);
        self.allocate_file(&file, mode, offset, len).await
    }

    async fn lseek(&self, handle: Handle, offset: u64, hole: bool) -> FsResult<u64> {
        let file = self.handles.get(handle)?;
        let size = self.size_of(file.ino).await?;
        self.seek_file(&file, offset, size, hole).await
    }

    async fn copy_range(
        &self,
        (from, mut from_offset): (Handle, u64),
        (to, mut to_offset): (Handle, u64),
        len: u64,
    ) -> FsResult<u64> {
        let mut buffer = vec![0u8; (len as usize).min(FUSE_IO_BYTES_MAX)];
        let mut done = 0;
        while done < len {
            let want = ((len - done) as usize).min(buffer.len());
            let n = self.read(from, from_offset, &mut buffer[..want]).await?;
            if n == 0 {
                break;
            }
            match self.write(to, to_offset, &buffer[..n], false).await {
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
                Ok(()) => {}
            }
            (from_offset, to_offset) = (from_offset + n as u64, to_offset + n as u64);
            done += n as u64;
        }
        Ok(done)
    }

    async fn opendir(&self, caller: &Caller, ino: Ino) -> FsResult<Handle> {
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        match self.mds(caller, &MdsRequest::Open { ino, flags }).await? {
            MdsReply::Attr(attr) => Ok(self.add_handle(&attr, flags)),
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
    ) -> FsResult<DirPage> {
        let file = self.handles.get(handle)?;
        self.touch(&file).await;
        let request = MdsRequest::Readdir { ino: file.ino, cookie, bytes_max, plus };
        let MdsReply::Dir(mut page) = self.mds(caller, &request).await? else {
            return Err(Errno::EPROTO);
        };
        for entry in &mut page.entries {
            if let Some(attr) = entry.attr.take() {
                entry.attr = Some(self.complete(attr).await?);
            }
        }
        Ok(page)
    }

    async fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        self.mds_attr(caller, &MdsRequest::Link { ino, parent, name }).await
    }

    async fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<()> {
        self.mds(caller, &MdsRequest::Unlink { parent, name }).await.map(drop)
    }

    async fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<()> {
        self.mds(caller, &MdsRequest::Rmdir { parent, name }).await.map(drop)
    }

    async fn rename(
        &self,
        caller: &Caller,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        flags: RenameFlags,
    ) -> FsResult<()> {
        let request = MdsRequest::Rename { parent, name, new_parent, new_name, flags };
        self.mds(caller, &request).await.map(drop)
    }

    async fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
        match name {
            LAYOUT => Ok(format_layout(self.layout_of(ino).await?)),
            STATUS => Ok(self.transport.status().await?.into_bytes()),
            STATS => Ok(self.transport.stats().await?.into_bytes()),
            _ => self.mds_bytes(caller, &MdsRequest::Getxattr { ino, name }).await,
        }
    }

    async fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> FsResult<()> {
        if name == STATS {
            // The only thing that can be done to statistics.
            return match (value, caller.cred.is_superuser()) {
                (b"reset", true) => self.transport.reset_stats().await,
                (b"reset", false) => Err(Errno::EPERM),
                _ => Err(Errno::EINVAL),
            };
        }
        if name == LAYOUT {
            let layout = parse_layout(value, self.layout_of(ino).await?)?;
            return self.mds(caller, &MdsRequest::SetLayout { ino, layout }).await.map(drop);
        }
        self.mds(caller, &MdsRequest::Setxattr { ino, name, value, flags }).await.map(drop)
    }

    async fn listxattr(&self, ino: Ino) -> FsResult<Vec<u8>> {
        self.mds_bytes(&Caller::ROOT, &MdsRequest::Listxattr { ino }).await
    }

    async fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> FsResult<()> {
        self.mds(caller, &MdsRequest::Removexattr { ino, name }).await.map(drop)
    }

    async fn statfs(&self) -> FsResult<FsStat> {
        let MdsReply::Statfs { inodes } = self.mds(&Caller::ROOT, &MdsRequest::Statfs).await?
        else {
            return Err(Errno::EPROTO);
        };
        let mut stat = FsStat { inodes, ..FsStat::default() };
        let mut counted = Vec::new();
        for ost in 0..self.osts {
            match self.transport.ost(ost, OstRequest::Space, Bulk::None).await? {
                OstReply::Space(space) if counted.contains(&space.file_system) => {}
                OstReply::Space(space) => {
                    counted.push(space.file_system);
                    stat.total += space.total;
                    stat.free += space.free;
                    stat.available += space.available;
                }
                _ => return Err(Errno::EPROTO),
            }
        }
        Ok(stat)
    }
}

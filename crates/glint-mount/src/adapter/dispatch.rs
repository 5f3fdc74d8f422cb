//! A kernel request becomes a call of the file system. The same for both
//! transports: fixed part, then a buffer that holds names and data and takes the
//! reply.

use crate::abi::opcode::op_of;
use crate::abi::reply::*;
use crate::abi::*;
use crate::adapter::pages::Pages;
use crate::adapter::passthrough::Passthrough;
use crate::mountpoint::MountOptions;
use crate::transport::waiting::Threads;
use glint_client::{Caching, Caller, Handle, Kernel, Make, Vfs};
use glint_proto::lock::Range;
use glint_proto::{
    Cred, Errno, FileType, FsResult, Ino, OpenFlags, RenameFlags, SetAttr, SetTime, Timestamp,
    XattrFlags,
};
use glint_telemetry::{Layer, Span, traced};
use rustix::mount::MountFlags;
use std::cell::Cell;
use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use zerocopy::FromBytes;

/// A request as a transport delivers it.
pub(crate) struct Request<'a> {
    pub(crate) header: InHeader,
    /// Fixed part; at least as long as the opcode's.
    pub(crate) fixed: &'a [u8],
    /// Names and data in its first `len` bytes; takes the reply.
    pub(crate) buffer: &'a mut [u8],
    pub(crate) len: usize,
}

/// The label of SELinux. A kernel that has SELinux answers for it by itself, so only others ask.
const LABEL: &[u8] = b"security.selinux";

/// A mounted file system.
pub(crate) struct Adapter<F> {
    pub(crate) fs: Arc<F>,
    pub(crate) caching: Caching,
    pub(crate) direct_io: bool,
    /// Every write is on stable storage before it returns.
    pub(crate) sync: bool,
    pub(crate) threads: Threads,
    /// Requests that wait for locks of programs.
    pub(crate) lock_waiters: AtomicUsize,
    pub(crate) pages: Arc<Pages>,
    pub(crate) kernel: Option<Arc<dyn Kernel>>,
    /// Set before the first request, if files are passed through.
    pub(crate) passthrough: OnceLock<Passthrough>,
}

pub(crate) fn parse<T: FromBytes>(fixed: &[u8]) -> FsResult<T> {
    T::read_from_prefix(fixed).map(|(value, _)| value).map_err(|_| Errno::EPROTO)
}

/// The name at the start of `bytes`, ended by a NUL, and what follows.
pub(crate) fn name(bytes: &[u8]) -> FsResult<(&[u8], &[u8])> {
    let end = bytes.iter().position(|b| *b == 0).ok_or(Errno::EPROTO)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

impl<F: Vfs> Adapter<F> {
    /// With `direct_io`, data never stays in the kernel's page cache.
    pub(crate) fn new(
        fs: Arc<F>,
        options: &MountOptions,
        pages: Arc<Pages>,
        kernel: Option<Arc<dyn Kernel>>,
    ) -> Adapter<F> {
        Adapter {
            caching: fs.caching(),
            direct_io: options.direct_io,
            sync: options.flags.contains(MountFlags::SYNCHRONOUS),
            threads: Threads::default(),
            lock_waiters: AtomicUsize::new(0),
            pages,
            passthrough: OnceLock::new(),
            kernel,
            fs,
        }
    }

    /// How far the kernel may cache.
    pub(crate) fn caching(&self) -> Caching {
        self.caching
    }

    /// The inode that a node id stands for.
    pub(crate) fn ino(&self, nodeid: u64) -> Ino {
        if nodeid == ROOT_NODE { self.fs.root() } else { Ino(nodeid) }
    }

    /// Executes a request. The reply is in its buffer afterwards.
    pub(crate) async fn dispatch(&self, request: Request<'_>) -> Outcome {
        let Some(opcode) = Opcode::from_u32(request.header.opcode) else {
            return Outcome::Failed(Errno::ENOSYS);
        };
        if request.fixed.len() < opcode.in_len() || request.len > request.buffer.len() {
            return Outcome::Failed(Errno::EPROTO);
        }
        match opcode {
            Opcode::Forget => {
                if let Ok(arg) = parse::<ForgetIn>(request.fixed) {
                    self.fs.forget(self.ino(request.header.nodeid), arg.nlookup);
                }
                return Outcome::NoReply;
            }
            Opcode::BatchForget => {
                let mut rest = &request.buffer[..request.len];
                while let Ok((one, after)) = ForgetOne::read_from_prefix(rest) {
                    self.fs.forget(self.ino(one.nodeid), one.nlookup);
                    rest = after;
                }
                return Outcome::NoReply;
            }
            Opcode::Interrupt => {
                if let Ok(unique) = parse::<u64>(request.fixed) {
                    self.threads.interrupt(unique);
                }
                return Outcome::NoReply;
            }
            Opcode::Destroy => return Outcome::Done(0),
            _ if is_use(opcode, request.header.nodeid) => self.fs.note_use(),
            _ => {}
        }
        let (header, unlinked) = (request.header, Cell::new(None));
        self.hear(opcode, header.nodeid, request.fixed);
        let call = Call {
            adapter: self,
            fs: &*self.fs,
            caller: Caller {
                cred: Cred { uid: header.uid, gid: header.gid, groups: None },
                pid: header.pid,
            },
            ino: self.ino(header.nodeid),
            unique: header.unique,
            fixed: request.fixed,
            buffer: request.buffer,
            len: request.len,
            unlinked: &unlinked,
        };
        let op = op_of(opcode) as u8;
        let whole = async {
            let _span = Span::start(Layer::Mount, op);
            call.execute(opcode).await
        };
        match (traced(pin!(whole)).await, unlinked.get()) {
            (Ok(_), Some(ino)) => Outcome::Unlinked(ino),
            (result, _) => result.into(),
        }
    }
}

/// Returns true if a request shows that somebody uses the mount. Programs that watch file systems do
/// not, as `df` and `glint status`: they open a directory and look at the root.
fn is_use(opcode: Opcode, nodeid: u64) -> bool {
    match opcode {
        Opcode::Statfs | Opcode::Getxattr | Opcode::Listxattr => false,
        // Who lists it is seen by READDIR.
        Opcode::Opendir | Opcode::Releasedir => false,
        Opcode::Getattr => nodeid != ROOT_NODE,
        _ => true,
    }
}

/// One request on its way.
pub(crate) struct Call<'a, F> {
    pub(crate) adapter: &'a Adapter<F>,
    pub(crate) fs: &'a F,
    pub(crate) caller: Caller,
    pub(crate) ino: Ino,
    pub(crate) unique: u64,
    pub(crate) fixed: &'a [u8],
    pub(crate) buffer: &'a mut [u8],
    pub(crate) len: usize,
    /// The inode that has lost a name, if it has.
    unlinked: &'a Cell<Option<Ino>>,
}

impl<F: Vfs> Call<'_, F> {
    async fn execute(self, opcode: Opcode) -> FsResult<usize> {
        match opcode {
            Opcode::Lookup => self.lookup().await,
            Opcode::Getattr => self.getattr().await,
            Opcode::Setattr => self.setattr().await,
            Opcode::Readlink => self.readlink().await,
            Opcode::Symlink => self.symlink().await,
            Opcode::Mknod => self.mknod().await,
            Opcode::Mkdir => self.mkdir().await,
            Opcode::Create => self.create().await,
            Opcode::Tmpfile => self.tmpfile().await,
            Opcode::Unlink => self.unlink().await,
            Opcode::Rmdir => self.rmdir().await,
            Opcode::Rename => {
                let newdir = parse::<RenameIn>(self.fixed)?.newdir;
                self.rename(newdir, 0).await
            }
            Opcode::Rename2 => {
                let arg: Rename2In = parse(self.fixed)?;
                self.rename(arg.newdir, arg.flags).await
            }
            Opcode::Link => self.link().await,
            Opcode::Open => self.open().await,
            Opcode::Opendir => self.opendir().await,
            Opcode::Read => self.read().await,
            Opcode::Write => self.write().await,
            Opcode::Readdir => self.readdir(false).await,
            Opcode::Readdirplus => self.readdir(true).await,
            Opcode::Release | Opcode::Releasedir => self.release().await,
            Opcode::Fsync | Opcode::Fsyncdir => {
                let arg: FsyncIn = parse(self.fixed)?;
                self.fs.fsync(Handle(arg.fh)).await.map(|()| 0)
            }
            Opcode::Syncfs => self.fs.sync().await.map(|()| 0),
            Opcode::Flush => self.flush().await,
            Opcode::Getlk | Opcode::Setlk | Opcode::Setlkw => self.posix_lock(opcode).await,
            Opcode::Statfs => self.statfs().await,
            Opcode::Getxattr => self.getxattr().await,
            Opcode::Listxattr => self.listxattr().await,
            Opcode::Setxattr => self.setxattr().await,
            Opcode::Removexattr => {
                let (name, _) = name(&self.buffer[..self.len])?;
                self.fs.removexattr(&self.caller, self.ino, name).await.map(|()| 0)
            }
            Opcode::Fallocate => self.fallocate().await,
            Opcode::Lseek => self.lseek().await,
            Opcode::CopyFileRange => self.copy_range().await,
            // Permissions are checked by the kernel and by the MDS.
            Opcode::Access => Err(Errno::ENOSYS),
            Opcode::Forget
            | Opcode::BatchForget
            | Opcode::Interrupt
            | Opcode::Destroy
            | Opcode::Init => Err(Errno::EPROTO),
        }
    }

    async fn lookup(self) -> FsResult<usize> {
        let (name, _) = name(&self.buffer[..self.len])?;
        match self.fs.lookup(&self.caller, self.ino, name).await {
            // ".." may lead to the root, which the kernel calls by another number.
            Ok(found) if found.attr.ino == self.fs.root() => {
                let out = entry_out(&found.attr, found.valid);
                put(self.buffer, &EntryOut { nodeid: ROOT_NODE, ..out })
            }
            Ok(found) => {
                let valid = self.adapter.valid(found.attr.ino, found.valid);
                put(self.buffer, &entry_out(&found.attr, valid))
            }
            Err(Errno::ENOENT) => match self.fs.negative_time() {
                Duration::ZERO => Err(Errno::ENOENT),
                time => put(self.buffer, &negative_entry(time)),
            },
            Err(errno) => Err(errno),
        }
    }

    async fn getattr(self) -> FsResult<usize> {
        let found = self.fs.getattr(self.ino).await?;
        let valid = self.adapter.valid(self.ino, found.valid);
        put(self.buffer, &getattr_out(&found.attr, valid.attr))
    }

    async fn setattr(self) -> FsResult<usize> {
        let arg: SetattrIn = parse(self.fixed)?;
        let has = |bit| arg.valid & bit != 0;
        let time = |set: u32, now: u32, secs: u64, nanos: u32| match (has(set), has(now)) {
            (_, true) => Some(SetTime::Now),
            (true, false) => Some(SetTime::At(Timestamp { secs: secs as i64, nanos })),
            _ => None,
        };
        let set = SetAttr {
            mode: has(FATTR_MODE).then_some(arg.mode & 0o7777),
            uid: has(FATTR_UID).then_some(arg.uid),
            gid: has(FATTR_GID).then_some(arg.gid),
            size: has(FATTR_SIZE).then_some(arg.size),
            atime: time(FATTR_ATIME, FATTR_ATIME_NOW, arg.atime, arg.atimensec),
            mtime: time(FATTR_MTIME, FATTR_MTIME_NOW, arg.mtime, arg.mtimensec),
            ctime: has(FATTR_CTIME)
                .then_some(Timestamp { secs: arg.ctime as i64, nanos: arg.ctimensec }),
            kill_suidgid: has(FATTR_KILL_SUIDGID),
            kill_capability: false,
        };
        let found = self.fs.setattr(&self.caller, self.ino, &set).await?;
        let valid = self.adapter.valid(self.ino, found.valid);
        put(self.buffer, &getattr_out(&found.attr, valid.attr))
    }

    async fn readlink(self) -> FsResult<usize> {
        let target = self.fs.readlink(self.ino).await?;
        put_at(self.buffer, 0, &target)
    }

    async fn make(self, name_len: usize, make: Make<'_>) -> FsResult<usize> {
        let name = &self.buffer[..name_len];
        let found = self.fs.make(&self.caller, self.ino, name, make).await?;
        put(self.buffer, &entry_out(&found.attr, found.valid))
    }

    async fn symlink(self) -> FsResult<usize> {
        let (name, rest) = name(&self.buffer[..self.len])?;
        let (target, _) = crate::adapter::dispatch::name(rest)?;
        let mode = FileType::Symlink.mode_bits() | 0o777;
        let make = Make { mode, umask: 0, rdev: 0, target };
        let found = self.fs.make(&self.caller, self.ino, name, make).await?;
        put(self.buffer, &entry_out(&found.attr, found.valid))
    }

    async fn mknod(self) -> FsResult<usize> {
        let arg: MknodIn = parse(self.fixed)?;
        let name_len = name(&self.buffer[..self.len])?.0.len();
        let make = Make { mode: arg.mode, umask: arg.umask, rdev: arg.rdev, target: b"" };
        self.make(name_len, make).await
    }

    async fn mkdir(self) -> FsResult<usize> {
        let arg: MkdirIn = parse(self.fixed)?;
        let name_len = name(&self.buffer[..self.len])?.0.len();
        let mode = FileType::Directory.mode_bits() | (arg.mode & 0o7777);
        self.make(name_len, Make { mode, umask: arg.umask, rdev: 0, target: b"" }).await
    }

    async fn create(self) -> FsResult<usize> {
        let arg: CreateIn = parse(self.fixed)?;
        let (name, _) = name(&self.buffer[..self.len])?;
        let mode = FileType::Regular.mode_bits() | (arg.mode & 0o7777);
        let make = Make { mode, umask: arg.umask, rdev: 0, target: b"" };
        let open = self.fs.create(&self.caller, self.ino, name, make, arg.flags as i32).await?;
        let out = self.opened(&open, arg.flags).await?;
        let at = put(self.buffer, &entry_out(&open.attr, open.valid))?;
        put_at(self.buffer, at, zerocopy::IntoBytes::as_bytes(&out))
    }

    async fn tmpfile(self) -> FsResult<usize> {
        let arg: CreateIn = parse(self.fixed)?;
        let open = self.fs.tmpfile(&self.caller, self.ino, arg.mode & 0o7777, arg.umask).await?;
        let out = self.opened(&open, arg.flags).await?;
        let at = put(self.buffer, &entry_out(&open.attr, open.valid))?;
        put_at(self.buffer, at, zerocopy::IntoBytes::as_bytes(&out))
    }

    async fn unlink(self) -> FsResult<usize> {
        let (name, _) = name(&self.buffer[..self.len])?;
        self.unlinked.set(self.fs.unlink(&self.caller, self.ino, name).await?);
        Ok(0)
    }

    async fn rmdir(self) -> FsResult<usize> {
        let (name, _) = name(&self.buffer[..self.len])?;
        self.fs.rmdir(&self.caller, self.ino, name).await.map(|()| 0)
    }

    async fn rename(self, new_parent: u64, flags: u32) -> FsResult<usize> {
        let (from, rest) = name(&self.buffer[..self.len])?;
        let (to, _) = name(rest)?;
        if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) != 0 {
            return Err(Errno::EINVAL);
        }
        let flags = RenameFlags {
            no_replace: flags & libc::RENAME_NOREPLACE != 0,
            exchange: flags & libc::RENAME_EXCHANGE != 0,
        };
        let (from, to) = ((self.ino, from), (self.adapter.ino(new_parent), to));
        self.unlinked.set(self.fs.rename(&self.caller, from, to, flags).await?);
        Ok(0)
    }

    async fn link(self) -> FsResult<usize> {
        let arg: LinkIn = parse(self.fixed)?;
        let (name, _) = name(&self.buffer[..self.len])?;
        let found =
            self.fs.link(&self.caller, self.adapter.ino(arg.oldnodeid), self.ino, name).await?;
        put(self.buffer, &entry_out(&found.attr, found.valid))
    }

    async fn open(self) -> FsResult<usize> {
        let arg: OpenIn = parse(self.fixed)?;
        let mut flags = OpenFlags::from_posix(arg.flags as i32);
        flags.kill_suidgid = arg.open_flags & OPEN_KILL_SUIDGID != 0;
        let open = match flags.truncate {
            true => {
                // Apart: in the state of each request it would be kept twice.
                let mut open = Box::pin(self.fs.open(&self.caller, self.ino, flags));
                self.around_pages(Range::ALL, Range::ALL, open.as_mut()).await?
            }
            false => self.fs.open(&self.caller, self.ino, flags).await?,
        };
        let out = self.opened(&open, arg.flags).await?;
        put(self.buffer, &out)
    }

    async fn opendir(self) -> FsResult<usize> {
        let handle = self.fs.opendir(&self.caller, self.ino).await?;
        put(self.buffer, &open_out(handle, 0))
    }

    async fn readdir(self, plus: bool) -> FsResult<usize> {
        let arg: ReadIn = parse(self.fixed)?;
        let size = (arg.size as usize).min(self.buffer.len());
        let handle = Handle(arg.fh);
        let page = self.fs.readdir(&self.caller, handle, arg.offset, size as u32, plus).await?;
        let valid = |index: usize| {
            let valid = page.valid.get(index).copied().unwrap_or_default();
            self.adapter.valid(page.entries[index].ino, valid)
        };
        let (len, put) = put_entries(&mut self.buffer[..size], &page.entries, plus, valid);
        // Entries that did not fit are unknown to the kernel, which will not forget them.
        for entry in &page.entries[put..] {
            if let Some(attr) = &entry.attr {
                self.fs.forget(attr.ino, 1);
            }
        }
        Ok(len)
    }

    async fn statfs(self) -> FsResult<usize> {
        let stat = self.fs.statfs().await?;
        put(self.buffer, &statfs_out(&stat))
    }

    /// A value or, if the caller only asks, its length.
    fn put_sized(buffer: &mut [u8], room: u32, value: &[u8]) -> FsResult<usize> {
        if room == 0 {
            return put(buffer, &GetxattrOut { size: value.len() as u32, padding: 0 });
        }
        if value.len() > room as usize {
            return Err(Errno::ERANGE);
        }
        put_at(buffer, 0, value)
    }

    async fn getxattr(self) -> FsResult<usize> {
        let arg: GetxattrIn = parse(self.fixed)?;
        let (name, _) = name(&self.buffer[..self.len])?;
        let room = arg.size as usize;
        let value = self.fs.getxattr(&self.caller, self.ino, name, room).await;
        // `ls -l` asks for the label of each file unless it hears, once for a file system, that there
        // are no labels; ENODATA would cost it a call for each. NFS without labels answers this, too.
        let value = value.map_err(|error| match error {
            Errno::ENODATA if name == LABEL => Errno::EOPNOTSUPP,
            error => error,
        })?;
        Self::put_sized(self.buffer, arg.size, &value)
    }

    async fn listxattr(self) -> FsResult<usize> {
        let arg: GetxattrIn = parse(self.fixed)?;
        let names = self.fs.listxattr(self.ino).await?;
        Self::put_sized(self.buffer, arg.size, &names)
    }

    async fn setxattr(self) -> FsResult<usize> {
        let arg: SetxattrIn = parse(self.fixed)?;
        let (name, rest) = name(&self.buffer[..self.len])?;
        let value = rest.get(..arg.size as usize).ok_or(Errno::EPROTO)?;
        let flags = XattrFlags {
            create: arg.flags as i32 & libc::XATTR_CREATE != 0,
            replace: arg.flags as i32 & libc::XATTR_REPLACE != 0,
            kill_sgid: arg.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0,
        };
        let done = self.fs.setxattr(&self.caller, self.ino, name, value, flags).await;
        done.map(|()| 0).map_err(as_setxattr_says)
    }
}

/// An error as setxattr(2) can say it: Linux makes EOPNOTSUPP of EAGAIN.
fn as_setxattr_says(error: Errno) -> Errno {
    if error == Errno::EAGAIN { Errno::EBUSY } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_client::Client;
    use glint_net::Remote;

    fn size<'a, F: Vfs + 'a, R: Future>(_: impl FnOnce(&'a Adapter<F>, Request<'a>) -> R) -> usize {
        size_of::<R>()
    }

    #[test]
    fn who_watches_a_file_system_does_not_use_it() {
        for opcode in [Opcode::Getattr, Opcode::Opendir, Opcode::Statfs, Opcode::Releasedir] {
            assert!(!is_use(opcode, ROOT_NODE), "{opcode:?}, as df does");
        }
        for opcode in [Opcode::Lookup, Opcode::Readdir, Opcode::Readdirplus, Opcode::Open] {
            assert!(is_use(opcode, ROOT_NODE), "{opcode:?}");
        }
        assert!(is_use(Opcode::Getattr, 7));
    }

    #[test]
    fn who_is_to_try_again_hears_that_from_setxattr() {
        let said = [Errno::EAGAIN, Errno::EOPNOTSUPP].map(as_setxattr_says);
        assert_eq!(said, [Errno::EBUSY, Errno::EOPNOTSUPP]);
    }

    /// Each level that takes a future and awaits it doubles its size, and what is large is moved
    /// and zeroed with each request.
    #[test]
    fn the_future_of_a_request_is_small() {
        let bytes = size::<Client<Remote>, _>(Adapter::dispatch);
        assert!(bytes <= 6 << 10, "{bytes} bytes");
    }
}

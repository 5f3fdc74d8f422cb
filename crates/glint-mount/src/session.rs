//! The life of a mount: negotiation with the kernel, transports, end.

use crate::abi::{
    InHeader, InitIn, InitOut, KERNEL_MINOR_VERSION, KERNEL_VERSION, Opcode, OutHeader, init,
};
use crate::adapter::dispatch::Adapter;
use crate::adapter::pages::Pages;
use crate::error::MountError;
use crate::mountpoint::{self, MountOptions};
use crate::transport::devfuse::{self, Pace};
use crate::transport::notify::Notifier;
use crate::transport::uring;
use glint_client::{Caching, Kernel, Vfs};
use glint_proto::limits::FUSE_IO_BYTES_MAX;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Oldest protocol that has everything Glint relies on (FUSE_SETXATTR_EXT).
const MINOR_MIN: u32 = 33;
/// Requests the kernel may have in flight for read-ahead and writing back. Pages that are read
/// may wait for other clients, and pages that are written back must not wait for those.
const BACKGROUND_MAX: u16 = 4096;

/// File systems on top of each other, with this one: the one with the objects has none below it.
const STACK_DEPTH_MAX: u32 = 1;

/// How requests reach this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransportKind {
    /// io_uring if the kernel offers it, else /dev/fuse.
    Auto,
    /// FUSE over io_uring.
    Uring,
    /// Reads and writes of /dev/fuse.
    DevFuse,
}

/// A file system that is mounted.
pub struct Mount {
    path: PathBuf,
    /// The kernel's number of it, where mounts are listed.
    device: Option<String>,
    transport: TransportKind,
    threads: Vec<JoinHandle<()>>,
    fd: Arc<OwnedFd>,
}

/// How long a mount may take to end after it was unmounted, and how often that is looked at.
const ELSEWHERE_MAX: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(2);

impl Mount {
    /// Mounts `fs` at `path`, which [`mountpoint::prepare`] has accepted.
    pub fn new<F: Vfs>(
        fs: Arc<F>,
        path: &Path,
        options: &MountOptions,
        wanted: TransportKind,
    ) -> Result<Mount, MountError> {
        if wanted == TransportKind::Uring && !uring::is_enabled() {
            return Err(MountError::NoUring);
        }
        let fd = Arc::new(mountpoint::mount(path, options)?);
        let pages = Arc::<Pages>::default();
        // Others are read around the pages, or from the object.
        let is_read_by_pages = !options.direct_io && !options.passthrough;
        let stored = is_read_by_pages.then(|| pages.clone());
        let kernel: Arc<dyn Kernel> = Arc::new(Notifier::new(fd.clone(), fs.root(), stored));
        fs.set_kernel(kernel.clone());
        let adapter = Arc::new(Adapter::new(fs, options, pages, Some(kernel)));
        let mount = Mount::serve(adapter, path, fd, wanted, options.passthrough);
        match mount {
            Ok(_) => mountpoint::set_read_ahead(path),
            // Nobody would answer: do not leave a dead mount behind.
            Err(_) => drop(mountpoint::unmount(path, true)),
        }
        mount
    }

    fn serve<F: Vfs>(
        adapter: Arc<Adapter<F>>,
        path: &Path,
        fd: Arc<OwnedFd>,
        wanted: TransportKind,
        passthrough: bool,
    ) -> Result<Mount, MountError> {
        let mut optional = 0;
        if wanted != TransportKind::DevFuse {
            optional |= init::OVER_IO_URING;
        }
        if passthrough {
            optional |= init::PASSTHROUGH;
        }
        let flags = negotiate(&fd, adapter.caching(), optional)?;
        let uring = flags & init::OVER_IO_URING != 0;
        if wanted == TransportKind::Uring && !uring {
            return Err(MountError::NoUring);
        }
        if flags & init::PASSTHROUGH != 0 {
            adapter.pass_through(fd.clone());
        } else if passthrough {
            tracing::warn!(
                "this kernel reads no files by itself (Linux 6.9, CONFIG_FUSE_PASSTHROUGH): they \
                 are read as without passthrough=on"
            );
        }
        let mut threads = Vec::new();
        let pace = if uring { Pace::Lazy } else { Pace::Eager };
        threads.push(devfuse::start(&fd, &adapter, pace)?);
        if uring {
            threads.extend(uring::start(&fd, &adapter)?);
        }
        let transport = if uring { TransportKind::Uring } else { TransportKind::DevFuse };
        let device = mountpoint::mounted_at(path).map(|mount| mount.device);
        Ok(Mount { path: path.to_owned(), device, transport, threads, fd })
    }

    /// The transport in use.
    pub fn transport(&self) -> TransportKind {
        self.transport
    }

    /// Mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Paths at which it is mounted: others than its own where a directory above was renamed, or
    /// somebody has bound or moved it; none if it was detached. As soon as the kernel has ended it,
    /// another file system may have its number.
    fn places(&self) -> impl Iterator<Item = PathBuf> {
        let mounts = mountpoint::mounts().into_iter();
        let own = self.device.as_ref().filter(|_| !is_ended(&self.fd));
        mounts.filter(move |mount| Some(&mount.device) == own).map(|mount| mount.path)
    }

    /// Paths at which nothing else covers it, so that unmounting there means it.
    fn open_places(&self) -> Vec<PathBuf> {
        let is_on_top = |path: &PathBuf| {
            let top = mountpoint::mounted_at(path).map(|mount| mount.device);
            top.is_some() && top == self.device
        };
        self.places().filter(is_on_top).collect()
    }

    /// Whether it is mounted somewhere: somebody may have detached it, and mounted another file
    /// system at its path.
    pub fn is_attached(&self) -> bool {
        self.places().next().is_some()
    }

    /// Unmounts. If files are still open the mount point is detached and they get
    /// ENOTCONN when this process ends; that is reported as `false`.
    pub fn unmount(&self) -> std::io::Result<bool> {
        if self.is_finished() {
            return Ok(true);
        }
        let mut ended = true;
        for path in self.open_places() {
            ended &= match mountpoint::unmount(&path, false) {
                Ok(()) => true,
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                    mountpoint::unmount(&path, true)?;
                    false
                }
                // Somebody else unmounted it already.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => true,
                Err(e) => return Err(e),
            };
        }
        Ok(ended && !self.is_attached())
    }

    /// Ends the mount for all who use it: every call fails from now on. One that was detached ends
    /// with this process.
    pub fn abort(&self) {
        for path in self.open_places() {
            if let Err(error) = mountpoint::abort(&path) {
                tracing::debug!(%error, "ending a mount by force");
            }
        }
    }

    /// Whether the file system was unmounted and all its threads have ended.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits until it has ended after it was unmounted here. Whoever has it in a mount namespace of
    /// their own gets errors when this process ends: they are not waited for.
    pub fn wait(self) {
        let unmounted = Instant::now();
        while !self.is_finished() {
            if unmounted.elapsed() > ELSEWHERE_MAX {
                tracing::warn!(
                    path = %self.path.display(),
                    "another mount namespace, such as that of a container, still has the mount; \
                     its users will get errors"
                );
                return;
            }
            std::thread::sleep(LOOK);
        }
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a FUSE thread panicked");
            }
        }
        drop(self.fd);
    }
}

/// Whether the kernel has ended the connection, which it does before it gives the number of the file
/// system to another one (fuse_kill_sb_anon, fuse_dev_poll).
fn is_ended(connection: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(connection, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&now)).is_err()
        || polled.iter().any(|fd| fd.revents().contains(PollFlags::ERR))
}

/// Answers the kernel's FUSE_INIT; `optional` are flags that are wanted if it has them. Returns the
/// flags that hold.
fn negotiate(fd: &OwnedFd, caching: Caching, optional: u64) -> Result<u64, MountError> {
    let mut buffer = vec![0u8; 64 << 10];
    let len =
        rustix::io::read(fd, &mut buffer).map_err(|e| MountError::io("reading FUSE_INIT", e))?;
    let malformed = || MountError::io("FUSE_INIT", std::io::Error::from_raw_os_error(libc::EPROTO));
    let (header, rest) = InHeader::read_from_prefix(&buffer[..len]).map_err(|_| malformed())?;
    if Opcode::from_u32(header.opcode) != Some(Opcode::Init) {
        return Err(malformed());
    }
    let (asked, _) = InitIn::read_from_prefix(rest).map_err(|_| malformed())?;
    if asked.major != KERNEL_VERSION || asked.minor < MINOR_MIN {
        return Err(MountError::Version(asked.major, asked.minor));
    }
    let offered = u64::from(asked.flags) | u64::from(asked.flags2) << 32;
    let mut flags = init::ASYNC_READ
        | init::ATOMIC_O_TRUNC
        | init::EXPORT_SUPPORT
        | init::BIG_WRITES
        | init::DONT_MASK
        | init::DO_READDIRPLUS
        | init::READDIRPLUS_AUTO
        | init::ASYNC_DIO
        | init::PARALLEL_DIROPS
        | init::POSIX_ACL
        | init::MAX_PAGES
        | init::CACHE_SYMLINKS
        | init::HANDLE_KILLPRIV_V2
        | init::SETXATTR_EXT
        | init::INIT_EXT
        | init::DIRECT_IO_ALLOW_MMAP
        | optional;
    match caching {
        Caching::Alone => {}
        // Locks of programs hold on all mounts.
        Caching::Locked => flags |= init::POSIX_LOCKS | init::FLOCK_LOCKS,
        // Somebody else may write: pages go when size or mtime changed.
        Caching::Timed => flags |= init::AUTO_INVAL_DATA,
    }
    flags &= offered;
    let out = InitOut {
        major: KERNEL_VERSION,
        minor: KERNEL_MINOR_VERSION.min(asked.minor),
        max_readahead: asked.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: BACKGROUND_MAX,
        congestion_threshold: BACKGROUND_MAX * 3 / 4,
        max_write: FUSE_IO_BYTES_MAX as u32,
        time_gran: 1,
        max_pages: (FUSE_IO_BYTES_MAX / 4096) as u16,
        max_stack_depth: if flags & init::PASSTHROUGH != 0 { STACK_DEPTH_MAX } else { 0 },
        ..InitOut::default()
    };
    let len = (size_of::<OutHeader>() + size_of::<InitOut>()) as u32;
    let header = OutHeader { len, error: 0, unique: header.unique };
    let reply = [header.as_bytes(), out.as_bytes()].concat();
    rustix::io::write(fd, &reply).map_err(|e| MountError::io("answering FUSE_INIT", e))?;
    Ok(flags)
}

/// Tells how to make mounts faster, if they could be.
pub fn uring_hint() -> Option<&'static str> {
    let possible = Path::new("/sys/module/fuse/parameters/enable_uring").exists();
    (possible && !uring::is_enabled()).then_some(
        "FUSE over io_uring is off; for about twice the speed: \
         echo Y > /sys/module/fuse/parameters/enable_uring",
    )
}

//! Objects that the kernel has to read by itself: how it is given one, and made to forget it.
//!
//! Safety argument of this module: the two commands read a structure of this layout, which is
//! borrowed for the call, and keep no address of it; both descriptors are open for the whole call.

use glint_proto::LocalObject;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// FUSE_DEV_IOC_BACKING_OPEN of linux/fuse.h: _IOW(229, 1, struct fuse_backing_map).
const BACKING_OPEN: libc::Ioctl = 0x4010_e501;
/// FUSE_DEV_IOC_BACKING_CLOSE: _IOW(229, 2, uint32_t).
const BACKING_CLOSE: libc::Ioctl = 0x4004_e502;

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

const _: () = assert!(size_of::<BackingMap>() == 16);

/// An object that the kernel knows by a number, until this is dropped. Files that are open with it
/// go on.
pub(crate) struct Backing {
    object: Arc<dyn LocalObject>,
    device: Arc<OwnedFd>,
    id: i32,
}

impl Backing {
    /// Gives the object to the kernel of a mount.
    pub(crate) fn register(
        device: &Arc<OwnedFd>,
        object: Arc<dyn LocalObject>,
    ) -> io::Result<Backing> {
        let file = object.descriptor().ok_or(io::ErrorKind::Unsupported)?;
        let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: see the module's argument.
        let id = unsafe { libc::ioctl(device.as_raw_fd(), BACKING_OPEN, &raw const map) };
        if id <= 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Backing { object, device: device.clone(), id })
    }

    /// How replies call it.
    pub(crate) fn id(&self) -> i32 {
        self.id
    }

    /// The object.
    pub(crate) fn object(&self) -> &Arc<dyn LocalObject> {
        &self.object
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        let id = self.id as u32;
        // SAFETY: see the module's argument. A mount that has ended has forgotten it.
        unsafe { libc::ioctl(self.device.as_raw_fd(), BACKING_CLOSE, &raw const id) };
    }
}

//! Files of a mount that are opened by their inode numbers, whatever their names are.

use crate::target::resolve;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Type of a handle that has an inode number and a generation: FILEID_INO64_GEN in
/// include/linux/exportfs.h.
const INO64_GEN: i32 = 0x81;
const HANDLE_BYTES: usize = 12;

/// A handle as open_by_handle_at(2) takes it, with room for its bytes behind it.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    data: [u8; HANDLE_BYTES],
}

/// A mount whose files are opened.
pub(crate) struct ByNumber {
    mount: File,
}

impl ByNumber {
    /// Files of the mount at `mount`.
    pub(crate) fn new(mount: &Path) -> io::Result<ByNumber> {
        Ok(ByNumber { mount: File::open(resolve(mount))? })
    }

    /// Opens a file, only to name it (O_PATH). ESTALE if there is none; EPERM for all but root.
    pub(crate) fn open(&self, ino: u64) -> io::Result<OwnedFd> {
        // As fuse_encode_fh in fs/fuse/inode.c: the number, upper half first, and its generation.
        let mut data = [0; HANDLE_BYTES];
        for (place, word) in data.chunks_exact_mut(4).zip([(ino >> 32) as u32, ino as u32, 0]) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let mut handle = Handle { bytes: HANDLE_BYTES as u32, kind: INO64_GEN, data };
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        // SAFETY: the handle is what the kernel's structure is, as long as it says, and outlives the
        // call, which only reads it; the descriptor of the mount is open.
        let fd = unsafe {
            let handle = (&raw mut handle).cast();
            libc::open_by_handle_at(self.mount.as_raw_fd(), handle, flags)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just returned it, and nobody else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

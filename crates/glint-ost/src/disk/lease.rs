//! Whether a file of the operating system is in others' hands, as leases tell it.
//!
//! Safety argument of this module: fcntl(2) with these commands takes numbers and no memory, and
//! the descriptor is borrowed, so it is open for the whole call.

use std::os::fd::{AsRawFd, BorrowedFd};

/// F_SETSIG of asm-generic/fcntl.h, which the crate does not have for every C library.
const F_SETSIG: libc::c_int = 10;

/// Whether nobody else has the file open or mapped: only then the kernel gives a lease to write it.
/// The lease is given back at once. Who opens the file in between waits for that, and the kernel
/// says so by a signal.
pub(super) fn is_alone(file: BorrowedFd<'_>) -> bool {
    let set = |command, value: libc::c_int| {
        // SAFETY: see the module's argument.
        unsafe { libc::fcntl(file.as_raw_fd(), command, value) == 0 }
    };
    // One that is ignored unless somebody asks for it: SIGIO would end this process.
    if !set(F_SETSIG, libc::SIGURG) || !set(libc::F_SETLEASE, libc::F_WRLCK) {
        return false;
    }
    // Another thread that asks at the same time may have given it back.
    set(libc::F_SETLEASE, libc::F_UNLCK);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    #[test]
    fn others_who_read_or_write_a_file_are_seen() {
        // Memory file systems of some containers have no leases.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("object");
        let open =
            || File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let ours = open().unwrap();
        assert!(is_alone(ours.as_fd()));
        let again = ours.try_clone().unwrap();
        assert!(is_alone(again.as_fd()), "another descriptor of the same open file");
        let reader = File::open(&path).unwrap();
        assert!(!is_alone(ours.as_fd()));
        drop(reader);
        assert!(is_alone(ours.as_fd()));
        let writer = open().unwrap();
        assert!(!is_alone(ours.as_fd()));
        drop(writer);
        assert!(is_alone(ours.as_fd()));
    }
}

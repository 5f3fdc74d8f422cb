//! Whether a range of a file has its blocks, so that it can be written on a disk that is full.

use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};

/// FS_IOC_FIEMAP of linux/fiemap.h: _IOWR('f', 11, struct fiemap).
const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660b_u32 as libc::Ioctl;
/// An extent that other files have, too: a write gives it new blocks.
const EXTENT_SHARED: u32 = 0x2000;
/// File systems that write blocks where they are: ext4 and XFS (statfs(2)).
const IN_PLACE: [u64; 2] = [0xef53, 0x5846_5342];
/// Extents that are asked for at once.
const EXTENTS: usize = 32;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` with room for extents.
#[repr(C)]
#[derive(Default)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

/// The extents of a file in a range, or those that come first.
fn extents(fd: &OwnedFd, start: u64, length: u64) -> Result<Vec<Extent>, Errno> {
    let mut map = Map { start, length, extent_count: EXTENTS as u32, ..Map::default() };
    // SAFETY: the kernel reads and writes a structure of this layout, with room for as many
    // extents as it says, and the descriptor is open for the whole call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FIEMAP, &raw mut map) };
    if result != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(map.extents[..(map.mapped_extents as usize).min(EXTENTS)].to_vec())
}

/// Whether all of a range has blocks of its own, written to or not; `false` where nobody knows.
pub(crate) fn is_allocated(fd: &OwnedFd, offset: u64, len: u64) -> bool {
    let is_in_place = |fs: rustix::fs::StatFs| IN_PLACE.contains(&(fs.f_type as u64));
    if !rustix::fs::fstatfs(fd).is_ok_and(is_in_place) {
        return false;
    }
    let Some(end) = offset.checked_add(len) else { return false };
    let mut at = offset;
    while at < end {
        let Ok(found) = extents(fd, at, end - at) else { return false };
        let before = at;
        for extent in found {
            if extent.logical > at || extent.flags & EXTENT_SHARED != 0 {
                return false;
            }
            at = at.max(extent.logical.saturating_add(extent.length));
        }
        if at == before {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn written_and_preallocated_ranges_are_and_holes_are_not() {
        // On the disk of the build, whatever that is: a file system in memory cannot say.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = std::fs::File::create(dir.path().join("f")).unwrap();
        for block in (0..200u64).step_by(2) {
            file.write_all_at(&[7; 4096], block * 4096).unwrap();
        }
        file.write_all_at(&[7; 65536], 1 << 20).unwrap();
        let flags = rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, flags, 2 << 20, 1 << 20).unwrap();
        let fd = OwnedFd::from(file);
        let type_of_disk = rustix::fs::fstatfs(&fd).unwrap().f_type as u64;
        if !IN_PLACE.contains(&type_of_disk) {
            assert!(!is_allocated(&fd, 0, 1));
            return;
        }
        assert!(is_allocated(&fd, 0, 4096) && is_allocated(&fd, (1 << 20) + 5, 60_000));
        assert!(is_allocated(&fd, 2 << 20, 1 << 20));
        assert!(!is_allocated(&fd, 0, 4097));
        assert!(!is_allocated(&fd, (3 << 20) - 1, 2));
        assert!(!is_allocated(&fd, 16 << 20, 1));
        assert!(!is_allocated(&fd, u64::MAX - 1, 10));
    }
}

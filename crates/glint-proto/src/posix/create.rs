//! Attributes of a new inode: open(2), mkdir(2), mknod(2), symlink(2), umask(2), acl(5).

use super::acl::Acl;
use crate::limits::SYMLINK_BYTES_MAX;
use crate::{Attr, Cred, Errno, FileType, FsResult, Ino, Layout, Timestamp};

/// A request to make an inode.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// Type of the inode, and permission bits before the umask.
    pub kind: FileType,
    /// See [`New::kind`].
    pub mode: u32,
    /// Bits that the creator takes away, unless the directory has a default ACL.
    pub umask: u32,
    /// Number of a device.
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: &'a [u8],
}

/// The inode that is made.
pub struct NewInode {
    /// Attributes of the inode.
    pub attr: Attr,
    /// Access ACL of the inode, if that says more than the mode.
    pub acl: Option<Acl>,
}

/// Whether `cred` may have such an inode made: EPERM for devices, ENOENT and ENAMETOOLONG for
/// targets of links, EINVAL for a target of anything else.
pub fn check_new(new: &New<'_>, cred: &Cred) -> FsResult<()> {
    match new.kind {
        FileType::Symlink if new.target.is_empty() => Err(Errno::ENOENT),
        FileType::Symlink if new.target.len() > SYMLINK_BYTES_MAX => Err(Errno::ENAMETOOLONG),
        FileType::CharDevice | FileType::BlockDevice if !cred.is_superuser() => Err(Errno::EPERM),
        FileType::Symlink => Ok(()),
        _ if !new.target.is_empty() => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// A new inode with one name in a directory that has this default ACL, if it has one.
pub fn new_inode(
    (ino, layout): (Ino, Layout),
    new: &New<'_>,
    (directory, default): (&Attr, Option<&Acl>),
    cred: &Cred,
    now: Timestamp,
) -> NewInode {
    let is_dir = new.kind == FileType::Directory;
    let of_group = directory.mode & libc::S_ISGID != 0;
    let mut mode = new.kind.mode_bits() | (new.mode & 0o7777);
    if is_dir && of_group {
        mode |= libc::S_ISGID;
    }
    let mut acl = None;
    match default {
        _ if new.kind == FileType::Symlink => mode |= 0o777,
        Some(default) => {
            let (inherited, list) = default.inherit(mode);
            mode = inherited;
            acl = (!list.is_trivial()).then_some(list);
        }
        None => mode &= !(new.umask & 0o777),
    }
    let attr = Attr {
        nlink: if is_dir { 2 } else { 1 },
        uid: cred.uid,
        gid: if of_group { directory.gid } else { cred.gid },
        rdev: new.rdev,
        size: if new.kind == FileType::Symlink { new.target.len() as u64 } else { 0 },
        layout,
        ..Attr::new(ino, mode, now)
    };
    NewInode { attr, acl }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp { secs: 5, nanos: 6 };

    /// Attributes with this mode.
    pub(crate) fn attr(mode: u32) -> Attr {
        Attr::new(Ino(9), mode, NOW)
    }

    fn made(kind: FileType, mode: u32, directory: u32) -> (u32, u32, u32) {
        let new = New { kind, mode, umask: 0o027, rdev: 0, target: b"to" };
        let directory = Attr { gid: 50, ..attr(directory) };
        let cred = Cred { uid: 3, gid: 4, groups: None };
        let at = (Ino(9), Layout::default());
        let NewInode { attr, acl } = new_inode(at, &new, (&directory, None), &cred, NOW);
        assert!(acl.is_none() && attr.uid == 3);
        (attr.mode, attr.gid, attr.nlink)
    }

    #[test]
    fn umask_type_and_directory_decide_mode_and_group() {
        use FileType::{Directory, Fifo, Regular, Symlink};
        for (kind, mode, directory, made_as) in [
            (Regular, 0o666, 0o040755, (0o100640, 4, 1)),
            (Regular, 0o4777, 0o040755, (0o104750, 4, 1)),
            (Regular, 0o666, 0o042755, (0o100640, 50, 1)),
            (Directory, 0o777, 0o040755, (0o040750, 4, 2)),
            (Directory, 0o1777, 0o042755, (0o043750, 50, 2)),
            (Symlink, 0, 0o042755, (0o120777, 50, 1)),
            (Fifo, 0o666, 0o040755, (0o010640, 4, 1)),
        ] {
            assert_eq!(made(kind, mode, directory), made_as, "{kind:?} {mode:o} in {directory:o}");
        }
    }

    #[test]
    fn a_link_is_as_long_as_its_target_and_nothing_else_is() {
        let size = |kind| {
            let new = New { kind, mode: 0, umask: 0, rdev: 0, target: b"to" };
            let at = (Ino(9), Layout::default());
            new_inode(at, &new, (&attr(0o040755), None), &Cred::ROOT, NOW).attr.size
        };
        assert_eq!((size(FileType::Symlink), size(FileType::Regular)), (2, 0));
    }

    #[test]
    fn devices_are_the_superusers_and_links_lead_somewhere() {
        let check = |kind, target: &[u8], uid| {
            let new = New { kind, mode: 0, umask: 0, rdev: 0, target };
            check_new(&new, &Cred { uid, gid: 0, groups: None })
        };
        assert_eq!(check(FileType::CharDevice, b"", 1), Err(Errno::EPERM));
        assert_eq!(check(FileType::BlockDevice, b"", 0), Ok(()));
        assert_eq!(check(FileType::Fifo, b"", 1), Ok(()));
        assert_eq!(check(FileType::Symlink, b"", 1), Err(Errno::ENOENT));
        assert_eq!(check(FileType::Symlink, &[b'x'; 1 << 16], 1), Err(Errno::ENAMETOOLONG));
        assert_eq!(check(FileType::Symlink, b"x", 1), Ok(()));
        assert_eq!(check(FileType::Regular, b"x", 0), Err(Errno::EINVAL), "nothing is kept of it");
    }
}

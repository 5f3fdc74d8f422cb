//! Permission checks: path_resolution(7), acl(5).

use super::acl::Acl;
use crate::{Attr, Cred, Errno, FsResult};

/// Permission to read.
pub const READ: u32 = 4;
/// Permission to write.
pub const WRITE: u32 = 2;
/// Permission to execute, or to search a directory.
pub const EXEC: u32 = 1;

fn mode_permits(attr: &Attr, cred: &Cred, want: u32) -> bool {
    let bits = if cred.uid == attr.uid {
        attr.mode >> 6
    } else if cred.is_member(attr.gid) {
        attr.mode >> 3
    } else {
        attr.mode
    };
    bits & want == want
}

/// EACCES unless `cred` may do all of `want` (a mask of [`READ`], [`WRITE`], [`EXEC`]) to an inode
/// with this access ACL, if it has one.
pub fn permit(attr: &Attr, acl: Option<&Acl>, cred: &Cred, want: u32) -> FsResult<()> {
    let permitted = if cred.is_superuser() {
        // Execution needs some x bit, of files; directories are searchable.
        want & EXEC == 0 || attr.is_dir() || attr.mode & 0o111 != 0
    } else {
        match acl {
            Some(acl) => acl.permits(cred, attr.uid, attr.gid, want),
            None => mode_permits(attr, cred, want),
        }
    };
    if permitted { Ok(()) } else { Err(Errno::EACCES) }
}

/// EPERM unless `cred` owns the inode.
pub fn permit_owner(attr: &Attr, cred: &Cred) -> FsResult<()> {
    if cred.is_superuser() || cred.uid == attr.uid { Ok(()) } else { Err(Errno::EPERM) }
}

/// EPERM if the directory is sticky and `cred` owns neither it nor the entry.
pub(super) fn permit_sticky(directory: &Attr, entry: &Attr, cred: &Cred) -> FsResult<()> {
    let restricted = directory.mode & libc::S_ISVTX != 0
        && !cred.is_superuser()
        && cred.uid != directory.uid
        && cred.uid != entry.uid;
    if restricted { Err(Errno::EPERM) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::posix::create::tests::attr;

    fn cred(uid: u32, gid: u32) -> Cred {
        Cred { uid, gid, groups: Some(vec![7]) }
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let file = Attr { uid: 1, gid: 2, ..attr(0o100475) };
        for (who, want, may) in [
            (cred(1, 9), READ, true),
            (cred(1, 2), WRITE, false),
            (cred(5, 2), READ | WRITE | EXEC, true),
            (cred(5, 9), READ | EXEC, true),
            (cred(5, 9), WRITE, false),
            (cred(0, 0), READ | WRITE | EXEC, true),
        ] {
            assert_eq!(permit(&file, None, &who, want).is_ok(), may, "{who:?} {want}");
        }
        let by_group = Attr { gid: 7, ..file };
        assert!(permit(&by_group, None, &cred(5, 9), WRITE).is_ok(), "a supplementary group");
    }

    #[test]
    fn the_superuser_executes_only_what_anybody_may() {
        let run = |mode| permit(&attr(mode), None, &Cred::ROOT, EXEC);
        assert_eq!(run(0o100644), Err(Errno::EACCES));
        assert_eq!((run(0o100001), run(0o040000)), (Ok(()), Ok(())));
    }

    #[test]
    fn in_a_sticky_directory_owners_remove() {
        let sticky = Attr { uid: 1, ..attr(0o041777) };
        let entry = Attr { uid: 2, ..attr(0o100666) };
        let may = |uid| permit_sticky(&sticky, &entry, &cred(uid, 0)).is_ok();
        assert_eq!([0, 1, 2, 3].map(may), [true, true, true, false]);
        let open = Attr { mode: 0o040777, ..sticky.clone() };
        assert!(permit_sticky(&open, &entry, &cred(3, 0)).is_ok());
        assert_eq!(permit_owner(&entry, &cred(1, 0)), Err(Errno::EPERM));
    }
}

//! Extended attributes: names, rights, and how many there may be.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{ANN, ROOT, Tree, planted};
use glint_proto::limits::{
    XATTR_COUNT_MAX, XATTR_LIST_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
    XATTR_VALUES_BYTES_MAX,
};
use glint_proto::{Cred, Errno, FsResult, MdsReply, MdsRequest, XattrFlags};

fn set_xattr(tree: &Tree, who: &Cred, path: &str, name: &[u8], value: &[u8]) -> FsResult<()> {
    let (ino, flags) = (tree.ino(path), XattrFlags::default());
    tree.ask(who, &MdsRequest::Setxattr { ino, name, value, flags }).map(drop)
}

#[test]
fn attributes_have_names_owners_and_sizes() {
    let (name, value) = ([b'u'; XATTR_NAME_BYTES_MAX + 1], [0; XATTR_VALUE_BYTES_MAX + 1]);
    for (who, path, name, value, result) in [
        (&ROOT, "file", b"user.a".as_slice(), b"1".as_slice(), Ok(())),
        (&ROOT, "dir", b"user.a", b"", Ok(())),
        (&ROOT, "symlink", b"user.a", b"", Err(Errno::EPERM)),
        (&ROOT, "symlink", b"trusted.a", b"", Ok(())),
        (&ANN, "open/ann", b"trusted.a", b"", Err(Errno::EPERM)),
        (&ANN, "open/ann", b"security.a", b"", Err(Errno::EPERM)),
        (&ROOT, "file", b"other.a", b"", Err(Errno::EOPNOTSUPP)),
        (&ROOT, "file", b"", b"", Err(Errno::ERANGE)),
        (&ROOT, "file", &name, b"", Err(Errno::ERANGE)),
        (&ROOT, "file", b"user.a", &value, Err(Errno::E2BIG)),
        (&ROOT, "file", b"user.a", &value[1..], Ok(())),
        (&ANN, "file", b"system.posix_acl_access", b"", Err(Errno::EPERM)),
        (&ROOT, "file", b"system.posix_acl_access", b"", Err(Errno::EINVAL)),
        (&ROOT, "file", b"system.posix_acl_access", &[1, 0, 0, 0], Err(Errno::EOPNOTSUPP)),
        (&ROOT, "file", b"system.posix_acl_default", &[2, 0, 0, 0], Err(Errno::EACCES)),
    ] {
        let tree = planted();
        let what = format!("{} of {path} by {}", name.escape_ascii(), who.uid);
        assert_eq!(set_xattr(&tree, who, path, name, value), result, "{what}");
        let ino = tree.ino(path);
        let stored = tree.ask(&ROOT, &MdsRequest::Getxattr { ino, name });
        let expected = result.map(|()| MdsReply::Bytes(value.to_vec())).or(Err(Errno::ENODATA));
        assert_eq!(stored, expected, "{what}");
    }
}

#[test]
fn attributes_say_whether_there_are_extended_ones() {
    let tree = planted();
    let has_none = |path| tree.find(path).unwrap().has_no_xattrs;
    // Owner, group and others as the mode says them: nothing that is kept.
    let acl = |more: &[u8]| {
        let entry = |tag: u16, permissions: u16, id: u32| {
            [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let plain = [entry(1, 6, !0), entry(4, 4, !0), entry(32, 4, !0)].concat();
        let named = [entry(1, 6, !0), entry(2, 6, 77), entry(4, 4, !0), entry(16, 6, !0)].concat();
        let entries = if more.is_empty() { plain } else { [named, entry(32, 4, !0)].concat() };
        [&[2, 0, 0, 0][..], &entries].concat()
    };
    assert!(has_none("file") && has_none("dir"));
    set_xattr(&tree, &ROOT, "file", b"system.posix_acl_access", &acl(b"")).unwrap();
    assert!(has_none("file"));
    set_xattr(&tree, &ROOT, "file", b"system.posix_acl_access", &acl(b"more")).unwrap();
    set_xattr(&tree, &ROOT, "dir", b"user.a", b"").unwrap();
    assert!(!has_none("file") && !has_none("dir"));
}

/// The kernel removes capabilities as the owner who changes the group of a file, and as anybody who
/// truncates or preallocates one.
#[test]
fn who_may_write_removes_capabilities_and_nothing_else_of_the_kind() {
    let tree = planted();
    for (name, path, result) in [
        (b"security.capability".as_slice(), "open/ann", Ok(())),
        (b"security.capability", "open/bob", Err(Errno::EPERM)),
        (b"security.capability", "sticky/bob", Ok(())),
        (b"security.other", "open/ann", Err(Errno::EPERM)),
        (b"security.other", "sticky/bob", Err(Errno::EPERM)),
    ] {
        set_xattr(&tree, &ROOT, path, name, b"1").unwrap();
        let ino = tree.ino(path);
        let removed = tree.ask(&ANN, &MdsRequest::Removexattr { ino, name });
        assert_eq!(removed.map(drop), result, "{path}");
    }
}

#[test]
fn an_attribute_is_made_replaced_or_removed_as_asked() {
    let tree = planted();
    let (ino, name) = (tree.ino("file"), b"user.a".as_slice());
    // The answer says what the inode is like then.
    let change = |request: &MdsRequest<'_>| -> FsResult<()> {
        let said = tree.ask(&ROOT, request)?;
        assert_eq!(tree.ask(&ROOT, &MdsRequest::Getattr { ino }), Ok(said));
        Ok(())
    };
    let set = |create, replace| {
        let flags = XattrFlags { create, replace, kill_sgid: false };
        change(&MdsRequest::Setxattr { ino, name, value: b"1", flags })
    };
    let remove = || change(&MdsRequest::Removexattr { ino, name });
    let list = || tree.ask(&ROOT, &MdsRequest::Listxattr { ino });
    assert_eq!((remove(), set(false, true)), (Err(Errno::ENODATA), Err(Errno::ENODATA)));
    assert_eq!(list(), Ok(MdsReply::Bytes(Vec::new())));
    assert_eq!((set(true, false), set(true, false)), (Ok(()), Err(Errno::EEXIST)));
    assert_eq!(list(), Ok(MdsReply::Bytes(b"user.a\0".to_vec())));
    assert_eq!((set(false, true), remove()), (Ok(()), Ok(())));
    assert_eq!(remove(), Err(Errno::ENODATA));
}

/// Attributes that fit in one inode, each with a name and a value of these lengths.
fn fitting(name_bytes: usize, value_bytes: usize) -> usize {
    let tree = planted();
    let value = vec![0; value_bytes];
    for count in 0.. {
        let name = format!("user.{count:0digits$}", digits = name_bytes - 5);
        match set_xattr(&tree, &ROOT, "file", name.as_bytes(), &value) {
            Ok(()) => {}
            Err(Errno::ENOSPC) => {
                let ino = tree.ino("file");
                let list = tree.ask(&ROOT, &MdsRequest::Listxattr { ino });
                let Ok(MdsReply::Bytes(names)) = list else { panic!("{list:?}") };
                assert_eq!(names.len(), count * (name_bytes + 1));
                let first = format!("user.{:0digits$}", 0, digits = name_bytes - 5);
                let again = set_xattr(&tree, &ROOT, "file", first.as_bytes(), &value);
                assert_eq!(again, Ok(()), "one that is there is replaced");
                tree.must_be_sound();
                return count;
            }
            other => panic!("{other:?}"),
        }
    }
    unreachable!()
}

#[test]
fn attributes_of_an_inode_are_bounded_in_number_names_and_values() {
    assert_eq!(fitting(16, 1), XATTR_COUNT_MAX);
    assert_eq!(fitting(255, 1), XATTR_LIST_BYTES_MAX / 256);
    assert_eq!(fitting(16, XATTR_VALUE_BYTES_MAX), XATTR_VALUES_BYTES_MAX / XATTR_VALUE_BYTES_MAX);
}

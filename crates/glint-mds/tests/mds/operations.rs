//! Operations on the namespace, one by one: what each refuses, with which errno, and what it does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{ANN, BOB, ROOT, Tree, planted};
use glint_proto::limits::{FILE_BYTES_MAX, NAME_BYTES_MAX, SYMLINK_BYTES_MAX};
use glint_proto::{
    Attr, Cred, Errno, FileType, FsResult, Ino, Layout, MdsReply, MdsRequest, ObjectAttr,
    OpenFlags, RenameFlags, SetAttr, SetTime, Timestamp,
};
use std::time::Duration;

fn long_name() -> String {
    "n".repeat(NAME_BYTES_MAX + 1)
}

#[test]
fn rename_moves_replaces_exchanges_or_says_why_not() {
    let plain = RenameFlags::default();
    let no_replace = RenameFlags { no_replace: true, ..plain };
    let exchange = RenameFlags { exchange: true, ..plain };
    let both = RenameFlags { no_replace: true, exchange: true };
    let too_long = long_name();
    for (who, from, to, flags, result) in [
        (&ROOT, "file", "new", plain, Ok(())),
        (&ROOT, "file", "dir/new", plain, Ok(())),
        (&ROOT, "file", "other", plain, Ok(())),
        (&ROOT, "file", "symlink", plain, Ok(())),
        (&ROOT, "symlink", "file", plain, Ok(())),
        (&ROOT, "file", "empty", plain, Err(Errno::EISDIR)),
        (&ROOT, "file", &too_long, plain, Err(Errno::ENAMETOOLONG)),
        (&ROOT, "file", "..", plain, Err(Errno::EINVAL)),
        (&ROOT, "file", "other/new", plain, Err(Errno::ENOTDIR)),
        (&ROOT, "absent", "new", plain, Err(Errno::ENOENT)),
        (&ROOT, "dir", "new", plain, Ok(())),
        (&ROOT, "dir", "empty", plain, Ok(())),
        (&ROOT, "dir", "open/new", plain, Ok(())),
        (&ROOT, "dir", "file", plain, Err(Errno::ENOTDIR)),
        (&ROOT, "empty", "dir", plain, Err(Errno::ENOTEMPTY)),
        (&ROOT, "dir", "dir/new", plain, Err(Errno::EINVAL)),
        (&ROOT, "dir", "dir/sub/new", plain, Err(Errno::EINVAL)),
        (&ROOT, "dir/sub", "dir", plain, Err(Errno::ENOTEMPTY)),
        (&ANN, "file", "open/new", plain, Err(Errno::EACCES)),
        (&ANN, "open/ann", "new", plain, Err(Errno::EACCES)),
        (&ANN, "open/bob", "open/new", plain, Ok(())),
        (&ANN, "open/bobs", "open/new", plain, Ok(())),
        // The ".." of a directory is an entry of its own, and would change.
        (&ANN, "open/bobs", "sticky/new", plain, Err(Errno::EACCES)),
        (&BOB, "open/bobs", "sticky/new", plain, Ok(())),
        (&ANN, "sticky/ann", "open/new", plain, Ok(())),
        (&ANN, "sticky/bob", "sticky/new", plain, Err(Errno::EPERM)),
        (&ANN, "sticky/ann", "sticky/bob", plain, Err(Errno::EPERM)),
        (&ROOT, "sticky/ann", "sticky/bob", plain, Ok(())),
        (&ROOT, "file", "new", no_replace, Ok(())),
        (&ROOT, "file", "other", no_replace, Err(Errno::EEXIST)),
        (&ROOT, "file", "twin", no_replace, Err(Errno::EEXIST)),
        (&ROOT, "file", "other", exchange, Ok(())),
        (&ROOT, "file", "dir", exchange, Ok(())),
        (&ROOT, "file", "dir/sub", exchange, Ok(())),
        (&ROOT, "dir/sub", "open/ann", exchange, Ok(())),
        (&ROOT, "file", "new", exchange, Err(Errno::ENOENT)),
        (&ROOT, "dir", "dir/sub", exchange, Err(Errno::EINVAL)),
        (&ROOT, "dir/sub", "dir", exchange, Err(Errno::EINVAL)),
        (&ANN, "sticky/ann", "sticky/bob", exchange, Err(Errno::EPERM)),
        (&ROOT, "file", "other", both, Err(Errno::EINVAL)),
    ] {
        let tree = planted();
        let what = format!("{from} to {to}, {flags:?} by {}", who.uid);
        let number = |path| tree.find(path).map(|attr| attr.ino);
        let (source, target) = (number(from), number(to));
        assert_eq!(tree.rename(who, from, to, flags), result, "{what}");
        let expected = match result {
            Ok(()) if flags.exchange => (target, source),
            Ok(()) => (Err(Errno::ENOENT), source),
            Err(_) => (source, target),
        };
        assert_eq!((number(from), number(to)), expected, "{what}");
        tree.must_be_sound();
    }
}

#[test]
fn a_rename_over_another_name_of_the_file_leaves_both() {
    let tree = planted();
    let before = tree.find("file").unwrap();
    for to in ["twin", "file"] {
        assert_eq!(tree.rename(&ROOT, "file", to, RenameFlags::default()), Ok(()));
        assert_eq!(
            (tree.find("file"), tree.find("twin")),
            (Ok(before.clone()), Ok(before.clone()))
        );
    }
}

#[test]
fn a_rename_counts_links_and_dates_what_it_changes() {
    let tree = planted();
    let links = |path| tree.find(path).unwrap().nlink;
    let before = (links(""), links("dir"), links("twin"));
    let replace = |from, to| tree.rename(&ROOT, from, to, RenameFlags::default()).unwrap();
    replace("other", "file");
    let now = tree.now();
    assert_eq!(links("twin"), before.2 - 1, "it lost a name");
    assert_eq!(tree.find("file").unwrap().ctime, now);
    replace("empty", "dir/new");
    let now = tree.now();
    // The root was made later than that, and does not go back.
    assert_eq!(tree.find("dir").unwrap().ctime, now);
    assert!(tree.find("").unwrap().ctime > now);
    assert_eq!((links(""), links("dir")), (before.0 - 1, before.1 + 1));
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    tree.rename(&ROOT, "dir/new", "file", exchange).unwrap();
    assert_eq!((links(""), links("dir")), (before.0, before.1));
    tree.must_be_sound();
}

#[test]
fn unlink_takes_names_of_files_and_rmdir_empty_directories() {
    type Remove = for<'a> fn(Ino, &'a [u8]) -> MdsRequest<'a>;
    let unlink: Remove = |parent, name| MdsRequest::Unlink { parent, name };
    let rmdir: Remove = |parent, name| MdsRequest::Rmdir { parent, name };
    for (who, remove, path, result) in [
        (&ROOT, unlink, "file", Ok(())),
        (&ROOT, unlink, "other", Ok(())),
        (&ROOT, unlink, "symlink", Ok(())),
        (&ROOT, unlink, "empty", Err(Errno::EISDIR)),
        (&ROOT, unlink, "absent", Err(Errno::ENOENT)),
        (&ROOT, unlink, "file/absent", Err(Errno::ENOTDIR)),
        (&ANN, unlink, "file", Err(Errno::EACCES)),
        (&ANN, unlink, "open/bob", Ok(())),
        (&ANN, unlink, "sticky/ann", Ok(())),
        (&ANN, unlink, "sticky/bob", Err(Errno::EPERM)),
        (&ROOT, unlink, "sticky/bob", Ok(())),
        (&ROOT, rmdir, "empty", Ok(())),
        (&ROOT, rmdir, "dir/sub", Ok(())),
        (&ROOT, rmdir, "dir", Err(Errno::ENOTEMPTY)),
        (&ROOT, rmdir, "dir/.", Err(Errno::EINVAL)),
        (&ROOT, rmdir, "dir/..", Err(Errno::ENOTEMPTY)),
        (&ROOT, rmdir, "file", Err(Errno::ENOTDIR)),
        (&ROOT, rmdir, "absent", Err(Errno::ENOENT)),
        (&ANN, rmdir, "empty", Err(Errno::EACCES)),
        (&ANN, rmdir, "open/bobs", Ok(())),
        (&ANN, rmdir, "sticky/bobs", Err(Errno::EPERM)),
        (&BOB, rmdir, "sticky/bobs", Ok(())),
    ] {
        let tree = planted();
        let (parent, name) = tree.split(path);
        let links = tree.find("twin").unwrap().nlink;
        let before = tree.find(path);
        let removed = before.clone().map(|attr| MdsReply::Removed { ino: attr.ino });
        let expected = result.and(removed);
        assert_eq!(tree.ask(who, &remove(parent, name)), expected, "{path} by {}", who.uid);
        match result {
            Ok(()) => assert_eq!(tree.find(path), Err(Errno::ENOENT), "{path}"),
            Err(_) => assert_eq!(tree.find(path), before, "{path}"),
        }
        let fewer = u32::from(path == "file" && result.is_ok());
        assert_eq!(tree.find("twin").unwrap().nlink, links - fewer);
        tree.must_be_sound();
    }
}

#[test]
fn link_gives_one_name_more_to_what_is_no_directory() {
    let too_long = long_name();
    for (who, from, to, result) in [
        (&ROOT, "file", "new", Ok(3)),
        (&ROOT, "symlink", "dir/new", Ok(2)),
        (&ROOT, "dir", "new", Err(Errno::EPERM)),
        (&ROOT, "file", "other", Err(Errno::EEXIST)),
        (&ROOT, "file", "twin", Err(Errno::EEXIST)),
        (&ROOT, "file", "other/new", Err(Errno::ENOTDIR)),
        (&ROOT, "file", &too_long, Err(Errno::ENAMETOOLONG)),
        (&ROOT, "file", "", Err(Errno::EINVAL)),
        (&ANN, "file", "new", Err(Errno::EACCES)),
        (&ANN, "file", "open/new", Ok(3)),
    ] {
        let tree = planted();
        let links = tree.link(who, from, to).map(|attr| attr.nlink);
        assert_eq!(links, result, "{from} as {to} by {}", who.uid);
        if result.is_ok() {
            assert_eq!(tree.ino(to), tree.ino(from));
        }
        tree.must_be_sound();
    }
    let tree = planted();
    let ino = tree.ino("other");
    let unlink = MdsRequest::Unlink { parent: Ino::ROOT, name: b"other" };
    tree.ask(&ROOT, &unlink).unwrap();
    let link = MdsRequest::Link { ino, parent: Ino::ROOT, name: b"again" };
    assert_eq!(tree.ask(&ROOT, &link), Err(Errno::ENOENT), "its last name is gone");
}

#[test]
fn setattr_is_for_owners_and_writers() {
    let none = SetAttr::default();
    let mode = |mode| SetAttr { mode: Some(mode), ..none.clone() };
    let owner = |uid| SetAttr { uid: Some(uid), ..none.clone() };
    let group = |gid| SetAttr { gid: Some(gid), ..none.clone() };
    let size = |size| SetAttr { size: Some(size), ..none.clone() };
    let mtime = |time| SetAttr { mtime: Some(time), ..none.clone() };
    let then = Timestamp { secs: 1, nanos: 2 };
    type Changed = fn(&Attr) -> bool;
    let cases: Vec<(&Cred, &str, SetAttr, FsResult<Changed>)> = vec![
        (&ROOT, "file", mode(0o4711), Ok(|attr| attr.mode == 0o104_711)),
        (&ANN, "open/ann", mode(0o640), Ok(|attr| attr.mode == 0o100_640)),
        (&ANN, "open/bob", mode(0o640), Err(Errno::EPERM)),
        (&ROOT, "file", owner(7), Ok(|attr| (attr.uid, attr.gid) == (7, 0))),
        (&ANN, "open/ann", owner(2), Err(Errno::EPERM)),
        (&ANN, "open/ann", owner(1), Ok(|attr| attr.uid == 1)),
        (&ANN, "open/ann", group(1), Ok(|attr| attr.gid == 1)),
        (&ANN, "open/ann", group(2), Err(Errno::EPERM)),
        (&ROOT, "file", size(9), Ok(|attr| (attr.size, attr.size_on_ost) == (9, true))),
        (&ROOT, "file", size(FILE_BYTES_MAX + 1), Err(Errno::EFBIG)),
        (&ROOT, "dir", size(0), Err(Errno::EISDIR)),
        (&ROOT, "symlink", size(0), Err(Errno::EINVAL)),
        (&ANN, "file", size(0), Err(Errno::EACCES)),
        (&ANN, "sticky/bob", size(0), Ok(|attr| attr.size == 0)),
        (&ANN, "file", mtime(SetTime::Now), Err(Errno::EACCES)),
        (&ANN, "sticky/bob", mtime(SetTime::Now), Ok(|attr| attr.mtime == attr.ctime)),
        (&ANN, "sticky/bob", mtime(SetTime::At(then)), Err(Errno::EPERM)),
        (&BOB, "sticky/bob", mtime(SetTime::At(then)), Ok(|attr| attr.mtime.nanos == 2)),
    ];
    for (who, path, set, result) in cases {
        let tree = planted();
        let before = tree.find(path).unwrap();
        let what = format!("{path} by {}: {set:?}", who.uid);
        let changed = tree.ask_attr(who, &MdsRequest::Setattr { ino: before.ino, set });
        let now = tree.now();
        match (&changed, result) {
            (Ok(attr), Ok(is_right)) => {
                assert!(is_right(attr) && attr.ctime == now, "{what}: {attr:?}");
                assert_eq!(tree.find(path).as_ref(), Ok(attr), "{what}");
            }
            (Err(errno), Err(expected)) => {
                assert_eq!(*errno, expected, "{what}");
                assert_eq!(tree.find(path), Ok(before), "{what}");
            }
            _ => panic!("{what}: {changed:?}"),
        }
    }
    let gone = MdsRequest::Setattr { ino: Ino(999), set: mode(0) };
    assert_eq!(Tree::new().ask(&ROOT, &gone), Err(Errno::ESTALE));
}

#[test]
fn open_looks_at_types_and_rights() {
    let none = OpenFlags::default();
    let (read, write) = (OpenFlags { read: true, ..none }, OpenFlags { write: true, ..none });
    let (exec, truncate) =
        (OpenFlags { exec: true, ..none }, OpenFlags { truncate: true, ..write });
    for (who, path, flags, result) in [
        (&ROOT, "file", read, Ok(())),
        (&ROOT, "file", write, Ok(())),
        (&ROOT, "file", exec, Err(Errno::EACCES)),
        (&ROOT, "dir", read, Ok(())),
        (&ROOT, "dir", write, Err(Errno::EISDIR)),
        (&ROOT, "symlink", read, Err(Errno::ELOOP)),
        (&ANN, "file", read, Ok(())),
        (&ANN, "file", write, Err(Errno::EACCES)),
        (&ANN, "file", truncate, Err(Errno::EACCES)),
        (&ANN, "other", read, Err(Errno::EACCES)),
        (&ANN, "open/ann", truncate, Ok(())),
        (&ANN, "sticky/bob", truncate, Ok(())),
    ] {
        let tree = planted();
        let opened = tree.ask_attr(who, &MdsRequest::Open { ino: tree.ino(path), flags });
        let what = format!("{path} by {}: {flags:?}", who.uid);
        assert_eq!(opened.as_ref().map(drop).map_err(|errno| *errno), result, "{what}");
        if let Ok(attr) = opened {
            assert_eq!(attr.size_on_ost, flags.write, "{what}");
            if flags.truncate {
                assert_eq!((attr.size, attr.mtime), (0, tree.now()), "{what}");
            }
        }
    }
    let gone = MdsRequest::Open { ino: Ino(999), flags: read };
    assert_eq!(Tree::new().ask(&ROOT, &gone), Err(Errno::ESTALE));
}

#[test]
fn what_is_open_outlives_its_last_name_until_it_is_closed() {
    let tree = planted();
    let ino = tree.ino("other");
    let flags = OpenFlags { read: true, ..OpenFlags::default() };
    tree.ask(&ROOT, &MdsRequest::Open { ino, flags }).unwrap();
    tree.ask(&ROOT, &MdsRequest::Unlink { parent: Ino::ROOT, name: b"other" }).unwrap();
    let getattr = MdsRequest::Getattr { ino };
    assert_eq!(tree.ask_attr(&ROOT, &getattr).unwrap().nlink, 0);
    tree.must_be_sound();
    assert!(tree.ask(&ROOT, &getattr).is_ok(), "it is open");
    let open = || tree.ask(&ROOT, &MdsRequest::Open { ino, flags }).map(drop);
    assert_eq!(open(), Ok(()), "by a file handle");
    for _ in 0..2 {
        tree.ask(&ROOT, &MdsRequest::Release { ino, write: false, wrote: None }).unwrap();
    }
    assert_eq!(open(), Err(Errno::ESTALE), "it is gone before it is removed");
    tree.must_be_sound();
    assert_eq!(tree.ask(&ROOT, &getattr), Err(Errno::ESTALE));
}

/// relatime, as mount(8) describes it.
#[test]
fn touch_dates_a_read_that_follows_a_change_or_a_day() {
    type Before = fn(&Tree, Ino);
    let chmod: Before = |tree, ino| {
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        tree.ask(&ROOT, &MdsRequest::Setattr { ino, set }).unwrap();
    };
    let days: [Before; 2] = [
        |tree, _| tree.wait(Duration::from_secs(23 * 3600)),
        |tree, _| tree.wait(Duration::from_secs(24 * 3600)),
    ];
    for (what, before, dates) in [
        ("read again at once", (|_, _| ()) as Before, false),
        ("after 23 hours", days[0], false),
        ("after a day", days[1], true),
        ("after a change", chmod, true),
    ] {
        for path in ["file", "dir", "symlink"] {
            let tree = planted();
            let ino = tree.ino(path);
            let touch = || tree.ask_attr(&ANN, &MdsRequest::Touch { ino }).unwrap();
            let first = touch();
            assert_eq!(first.atime, tree.now(), "{path}: first read");
            before(&tree, ino);
            let again = touch();
            let expected = if dates { tree.now() } else { first.atime };
            assert_eq!(again.atime, expected, "{path}: {what}");
            assert_eq!(tree.find(path), Ok(again), "{path}: {what}");
        }
    }
    let missing = MdsRequest::Touch { ino: Ino(999) };
    assert_eq!(Tree::new().ask(&ROOT, &missing), Ok(MdsReply::Done));
}

#[test]
fn a_layout_is_for_directories_and_files_without_data() {
    let tree = planted();
    let ino = tree.ino("sticky/ann");
    let write = OpenFlags { write: true, ..OpenFlags::default() };
    tree.ask(&ROOT, &MdsRequest::Open { ino, flags: write }).unwrap();
    let wrote = ObjectAttr { size: 9, blocks: 1, mtime: tree.now(), ctime: tree.now() };
    let wrote = Some((1, Some(wrote)));
    tree.ask(&ROOT, &MdsRequest::Release { ino, write: true, wrote }).unwrap();
    for (who, path, stripe_count, stripe_bytes_log2, result) in [
        (&ROOT, "file", 1, 16, Ok(1)),
        (&ROOT, "file", 0, 26, Ok(1)),
        (&ROOT, "dir", 0, 20, Ok(0)),
        (&ROOT, "dir", 1, 20, Ok(1)),
        (&ANN, "open/ann", 1, 20, Ok(1)),
        (&ANN, "open/bob", 1, 20, Err(Errno::EPERM)),
        (&ANN, "file", 1, 20, Err(Errno::EPERM)),
        (&ROOT, "file", 2, 20, Err(Errno::EINVAL)),
        (&ROOT, "dir", 2, 20, Err(Errno::EINVAL)),
        (&ROOT, "file", 1, 15, Err(Errno::EINVAL)),
        (&ROOT, "file", 1, 27, Err(Errno::EINVAL)),
        (&ROOT, "symlink", 1, 20, Err(Errno::EINVAL)),
        (&ROOT, "sticky/ann", 1, 20, Err(Errno::EEXIST)),
    ] {
        let layout = Layout { stripe_count, stripe_bytes_log2, ..Layout::default() };
        let before = tree.find(path).unwrap();
        let set = tree.ask_attr(who, &MdsRequest::SetLayout { ino: before.ino, layout });
        let what = format!("{path} over {stripe_count} of 2^{stripe_bytes_log2} by {}", who.uid);
        let stripes = set.as_ref().map(|attr| attr.layout.stripe_count);
        assert_eq!(stripes.map_err(|errno| *errno), result, "{what}");
        match set {
            Ok(attr) => {
                assert_eq!(
                    (attr.ctime, attr.layout.stripe_bytes_log2),
                    (tree.now(), stripe_bytes_log2)
                );
                assert_eq!(tree.find(path), Ok(attr), "{what}");
            }
            Err(_) => assert_eq!(tree.find(path), Ok(before), "{what}"),
        }
    }
    let layout = Layout { stripe_bytes_log2: 17, ..Layout::default() };
    let gone = MdsRequest::SetLayout { ino: Ino(999), layout };
    assert_eq!(tree.ask(&ROOT, &gone), Err(Errno::ESTALE));
    tree.ask(&ROOT, &MdsRequest::SetLayout { ino: tree.ino("dir"), layout }).unwrap();
    let made = tree.make(&ROOT, "dir/new", FileType::Regular, 0o644).unwrap();
    assert_eq!(made.layout.stripe_bytes_log2, 17, "what is made there has it, too");
    tree.must_be_sound();
}

/// Opens that a client made by itself keep a file without a name as any open does.
#[test]
fn opens_that_are_declared_are_counted() {
    let tree = planted();
    let ino = tree.ino("other");
    tree.ask(&ROOT, &MdsRequest::AddOpens { ino, readers: 2 }).unwrap();
    tree.ask(&ROOT, &MdsRequest::Unlink { parent: Ino::ROOT, name: b"other" }).unwrap();
    for is_there in [true, true, false] {
        tree.must_be_sound();
        let found = tree.ask_attr(&ROOT, &MdsRequest::Getattr { ino }).map(|attr| attr.nlink);
        assert_eq!(found, if is_there { Ok(0) } else { Err(Errno::ESTALE) });
        tree.ask(&ROOT, &MdsRequest::Release { ino, write: false, wrote: None }).unwrap();
    }
}

/// After a restart a client says how much is open, not how much more.
#[test]
fn what_is_opened_again_after_a_restart_is_what_is_open() {
    for (readers, writers) in [(0, 0), (1, 0), (0, 1), (2, 1)] {
        let tree = planted();
        let ino = tree.ino("other");
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        tree.ask(&ROOT, &MdsRequest::Open { ino, flags }).unwrap();
        tree.ask(&ROOT, &MdsRequest::Unlink { parent: Ino::ROOT, name: b"other" }).unwrap();
        let tree = tree.restarted();
        let reopen = MdsRequest::Reopen { ino, readers, writers, capability: None };
        for _ in 0..2 {
            tree.ask(&ROOT, &reopen).unwrap();
        }
        let closes = [vec![false; readers as usize], vec![true; writers as usize]].concat();
        for write in closes {
            tree.must_be_sound();
            assert!(tree.ask(&ROOT, &MdsRequest::Getattr { ino }).is_ok(), "{readers}, {writers}");
            tree.ask(&ROOT, &MdsRequest::Release { ino, write, wrote: None }).unwrap();
        }
        tree.must_be_sound();
        assert_eq!(tree.ask(&ROOT, &MdsRequest::Getattr { ino }), Err(Errno::ESTALE));
    }
}

#[test]
fn create_refuses_what_cannot_be_made() {
    use FileType::{CharDevice, Directory, Fifo, Regular, Symlink};
    let too_long = long_name();
    for (who, path, kind, result) in [
        (&ROOT, "new", Regular, Ok(())),
        (&ROOT, "new", CharDevice, Ok(())),
        (&ROOT, "dir/new", Symlink, Ok(())),
        (&ANN, "open/new", Fifo, Ok(())),
        (&ANN, "open/new", CharDevice, Err(Errno::EPERM)),
        (&ANN, "new", Regular, Err(Errno::EACCES)),
        (&ANN, "file", Regular, Err(Errno::EEXIST)),
        (&ROOT, "file", Directory, Err(Errno::EEXIST)),
        (&ROOT, "dir", Directory, Err(Errno::EEXIST)),
        (&ROOT, "file/new", Regular, Err(Errno::ENOTDIR)),
        (&ROOT, &too_long, Regular, Err(Errno::ENAMETOOLONG)),
        (&ROOT, "dir/..", Directory, Err(Errno::EINVAL)),
        (&ROOT, "dir/.", Regular, Err(Errno::EINVAL)),
        (&ROOT, "dir/", Regular, Err(Errno::EINVAL)),
        (&ROOT, "a\0b", Regular, Err(Errno::EINVAL)),
    ] {
        let tree = planted();
        let inodes = tree.mds.inode_count();
        let made = tree.make(who, path, kind, 0o640);
        let what = format!("{path:?} as {kind:?} by {}", who.uid);
        assert_eq!(made.as_ref().map(drop).map_err(|errno| *errno), result, "{what}");
        assert_eq!(tree.mds.inode_count(), inodes + u64::from(result.is_ok()), "{what}");
        if let Ok(attr) = made {
            assert_eq!(tree.find(path), Ok(attr), "{what}");
        }
        tree.must_be_sound();
    }
}

#[test]
fn create_opens_what_exists_unless_it_must_be_new() {
    let tree = planted();
    tree.mds.set_full(true);
    fn request<'a>(
        name: &'a [u8],
        mode: u32,
        target: &'a [u8],
        open: Option<OpenFlags>,
        exclusive: bool,
    ) -> MdsRequest<'a> {
        let (parent, umask, rdev) = (Ino::ROOT, 0o022, 0);
        MdsRequest::Create { parent, name, mode, umask, rdev, target, open, exclusive }
    }
    let (file, write) = (0o100_666, Some(OpenFlags { write: true, ..OpenFlags::default() }));
    let create = |who: &Cred, name: &[u8], exclusive| {
        tree.ask(who, &request(name, file, b"", write, exclusive))
    };
    let opened = create(&ROOT, b"file", false);
    assert!(matches!(opened, Ok(MdsReply::Opened { created: false, .. })), "{opened:?}");
    assert_eq!(create(&ROOT, b"file", true), Err(Errno::EEXIST));
    assert_eq!(create(&ANN, b"file", false), Err(Errno::EACCES));
    assert_eq!(create(&ROOT, b"dir", false), Err(Errno::EISDIR));
    assert_eq!(create(&ROOT, b"symlink", false), Err(Errno::ELOOP));
    assert_eq!(create(&ROOT, b"new", false), Err(Errno::ENOSPC), "the disk is full");
    tree.mds.set_full(false);
    let made = create(&ROOT, b"new", true);
    let Ok(MdsReply::Opened { attr, created: true }) = made else { panic!("{made:?}") };
    assert_eq!((attr.mode, attr.size_on_ost), (0o100_644, true));

    let link = |target: &[u8]| tree.ask(&ROOT, &request(b"link", 0o120_777, target, None, true));
    assert_eq!(link(b""), Err(Errno::ENOENT));
    assert_eq!(link(&[b't'; SYMLINK_BYTES_MAX + 1]), Err(Errno::ENAMETOOLONG));
    assert!(link(&[b't'; SYMLINK_BYTES_MAX]).is_ok());
    let no_type = tree.ask(&ROOT, &request(b"none", 0o644, b"", None, true));
    assert_eq!(no_type, Err(Errno::EINVAL));
}

#[test]
fn nothing_is_made_in_a_directory_that_is_gone() {
    let tree = planted();
    let (parent, file) = (tree.ino("empty"), tree.ino("file"));
    tree.ask(&ROOT, &MdsRequest::Rmdir { parent: Ino::ROOT, name: b"empty" }).unwrap();
    let (name, flags) = (b"new".as_slice(), RenameFlags::default());
    for request in [
        crate::support::make(parent, name, FileType::Regular, 0o644),
        MdsRequest::Tmpfile { parent, mode: 0o644, umask: 0 },
        MdsRequest::Link { ino: file, parent, name },
        MdsRequest::Lookup { parent, name },
        MdsRequest::Rename {
            parent: Ino::ROOT,
            name: b"file",
            new_parent: parent,
            new_name: name,
            flags,
        },
    ] {
        assert_eq!(tree.ask(&ROOT, &request), Err(Errno::ENOENT), "{request:?}");
    }
    tree.must_be_sound();
}

//! Entries of directories: who may change them, what may be linked, removed or replaced, and what
//! that does to the attributes of all that take part: link(2), unlink(2), rmdir(2), rename(2).

use super::acl::Acl;
use super::permission::{EXEC, WRITE, permit, permit_sticky};
use crate::limits::LINK_COUNT_MAX;
use crate::{Attr, Cred, Errno, FsResult, RenameFlags, Timestamp};

/// Whether `cred` may change entries of a directory with this access ACL, if it has one: ENOENT if
/// the directory itself is gone, EACCES.
pub fn may_change_entries(directory: &Attr, acl: Option<&Acl>, cred: &Cred) -> FsResult<()> {
    if directory.nlink == 0 {
        return Err(Errno::ENOENT);
    }
    permit(directory, acl, cred, WRITE | EXEC)
}

/// mkdir(2) and the like in a directory: EMLINK.
pub fn may_add_entry(directory: &Attr, is_dir: bool) -> FsResult<()> {
    if is_dir && directory.nlink >= LINK_COUNT_MAX { Err(Errno::EMLINK) } else { Ok(()) }
}

/// link(2) of an inode: EPERM for a directory, EMLINK.
pub fn may_link(inode: &Attr) -> FsResult<()> {
    match inode.is_dir() {
        true => Err(Errno::EPERM),
        false if inode.nlink >= LINK_COUNT_MAX => Err(Errno::EMLINK),
        false => Ok(()),
    }
}

/// unlink(2) of a name: EPERM in a sticky directory, EISDIR.
pub fn may_unlink(directory: &Attr, inode: &Attr, cred: &Cred) -> FsResult<()> {
    permit_sticky(directory, inode, cred)?;
    must_be_no_directory(inode)
}

/// rmdir(2) of a name: EPERM in a sticky directory, ENOTDIR, ENOTEMPTY.
pub fn may_rmdir(directory: &Attr, inode: &Attr, is_empty: bool, cred: &Cred) -> FsResult<()> {
    permit_sticky(directory, inode, cred)?;
    must_be_empty_directory(inode, is_empty)
}

/// rename(2) of `source` in `from` to a name in `to` that stands for `target`, or for nothing:
/// EPERM in a sticky directory, EEXIST and ENOENT for a name that must not, or must, be there.
pub fn may_rename(
    (from, source): (&Attr, &Attr),
    (to, target): (&Attr, Option<&Attr>),
    flags: RenameFlags,
    cred: &Cred,
) -> FsResult<()> {
    permit_sticky(from, source, cred)?;
    match target {
        Some(target) => {
            permit_sticky(to, target, cred)?;
            if flags.no_replace { Err(Errno::EEXIST) } else { Ok(()) }
        }
        None if flags.exchange => Err(Errno::ENOENT),
        None => Ok(()),
    }
}

/// rename(2) over an existing name: a directory replaces only an empty directory, anything else
/// none.
pub fn may_replace(source: &Attr, target: &Attr, is_empty: bool) -> FsResult<()> {
    match source.is_dir() {
        true => must_be_empty_directory(target, is_empty),
        false => must_be_no_directory(target),
    }
}

fn must_be_no_directory(inode: &Attr) -> FsResult<()> {
    if inode.is_dir() { Err(Errno::EISDIR) } else { Ok(()) }
}

fn must_be_empty_directory(inode: &Attr, is_empty: bool) -> FsResult<()> {
    match (inode.is_dir(), is_empty) {
        (false, _) => Err(Errno::ENOTDIR),
        (true, false) => Err(Errno::ENOTEMPTY),
        (true, true) => Ok(()),
    }
}

/// A directory has one entry more: a new inode, or an inode with one name more.
pub fn entry_added(directory: &mut Attr, is_dir: bool, now: Timestamp) {
    directory.nlink = directory.nlink.saturating_add(u32::from(is_dir));
    entries_changed(directory, now);
}

/// An inode has one name more, in this directory.
pub fn linked(directory: &mut Attr, inode: &mut Attr, now: Timestamp) {
    inode.nlink = inode.nlink.saturating_add(1);
    inode.change_at(now);
    entry_added(directory, inode.is_dir(), now);
}

/// A directory has one entry less, and its inode one name less.
pub fn entry_removed(directory: &mut Attr, inode: &mut Attr, now: Timestamp) {
    directory.nlink = directory.nlink.saturating_sub(u32::from(inode.is_dir()));
    entries_changed(directory, now);
    lose_name(inode, now);
}

/// All whose attributes a rename(2) changes.
pub struct Renaming<'a> {
    /// Directory that has the old name.
    pub from: &'a mut Attr,
    /// Directory that gets the new name, if that is another.
    pub to: Option<&'a mut Attr>,
    /// Inode that the old name leads to.
    pub source: &'a mut Attr,
    /// Inode that the new name leads to, which is another.
    pub target: Option<&'a mut Attr>,
}

/// A rename has replaced what the new name led to, or exchanged both.
pub fn renamed(parts: Renaming<'_>, exchange: bool, now: Timestamp) {
    let Renaming { from, to, source, target } = parts;
    let leaves = u32::from(source.is_dir());
    let replaced = target.as_ref().map_or(0, |target| u32::from(target.is_dir()));
    let returns = if exchange { replaced } else { 0 };
    source.change_at(now);
    match target {
        Some(target) if exchange => target.change_at(now),
        Some(target) => lose_name(target, now),
        None => {}
    }
    from.nlink = from.nlink.saturating_add(returns).saturating_sub(leaves);
    entries_changed(from, now);
    let to = to.unwrap_or(from);
    to.nlink = to.nlink.saturating_add(leaves).saturating_sub(replaced);
    entries_changed(to, now);
}

/// One name less. A directory has one name, and its own "." goes with it.
fn lose_name(inode: &mut Attr, now: Timestamp) {
    inode.nlink = if inode.is_dir() { 0 } else { inode.nlink.saturating_sub(1) };
    inode.change_at(now);
}

/// Its mtime goes on with its ctime: programs may have set it to any time.
fn entries_changed(directory: &mut Attr, now: Timestamp) {
    directory.change_at(now);
    directory.mtime = directory.ctime;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::posix::create::tests::attr;

    const NOW: Timestamp = Timestamp { secs: 9, nanos: 9 };
    const OWNER: Cred = Cred { uid: 1, gid: 1, groups: None };
    const OTHER: Cred = Cred { uid: 2, gid: 2, groups: None };

    fn directory(nlink: u32) -> Attr {
        Attr { nlink, uid: 1, ..attr(0o040755) }
    }

    fn file(nlink: u32) -> Attr {
        Attr { nlink, uid: 1, ..attr(0o100644) }
    }

    fn sticky() -> Attr {
        attr(0o041777)
    }

    fn was_dated(attr: &Attr) -> (bool, bool) {
        (attr.mtime == NOW, attr.ctime == NOW)
    }

    #[test]
    fn entries_are_changed_by_who_may_write_and_search_while_the_directory_is_there() {
        let modes = [0o755, 0o300, 0o500, 0o200, 0o577];
        for (cred, nlink, results) in [
            (
                &OWNER,
                2,
                [Ok(()), Ok(()), Err(Errno::EACCES), Err(Errno::EACCES), Err(Errno::EACCES)],
            ),
            (
                &OTHER,
                2,
                [
                    Err(Errno::EACCES),
                    Err(Errno::EACCES),
                    Err(Errno::EACCES),
                    Err(Errno::EACCES),
                    Ok(()),
                ],
            ),
            (&Cred::ROOT, 2, [Ok(()); 5]),
            (&Cred::ROOT, 0, [Err(Errno::ENOENT); 5]),
            (&OTHER, 0, [Err(Errno::ENOENT); 5]),
        ] {
            for (mode, result) in modes.into_iter().zip(results) {
                let directory = Attr { mode: 0o040000 | mode, ..directory(nlink) };
                let may = may_change_entries(&directory, None, cred);
                assert_eq!(may, result, "{mode:o} with {nlink} links by {}", cred.uid);
            }
        }
    }

    #[test]
    fn links_have_a_limit_and_directories_have_one_name() {
        for (inode, may_be_linked, takes_directories) in [
            (file(1), Ok(()), Ok(())),
            (file(LINK_COUNT_MAX), Err(Errno::EMLINK), Err(Errno::EMLINK)),
            (directory(2), Err(Errno::EPERM), Ok(())),
            (directory(LINK_COUNT_MAX - 1), Err(Errno::EPERM), Ok(())),
            (directory(LINK_COUNT_MAX), Err(Errno::EPERM), Err(Errno::EMLINK)),
        ] {
            assert_eq!(may_link(&inode), may_be_linked);
            assert_eq!(may_add_entry(&inode, true), takes_directories);
            assert_eq!(may_add_entry(&inode, false), Ok(()), "no link of the directory");
        }
    }

    #[test]
    fn types_and_sticky_directories_decide_what_is_removed() {
        for (parent, inode, is_empty, cred, unlink, rmdir) in [
            (directory(2), file(1), false, &OTHER, Ok(()), Err(Errno::ENOTDIR)),
            (directory(3), directory(2), true, &OTHER, Err(Errno::EISDIR), Ok(())),
            (directory(3), directory(2), false, &OTHER, Err(Errno::EISDIR), Err(Errno::ENOTEMPTY)),
            (sticky(), file(1), false, &OWNER, Ok(()), Err(Errno::ENOTDIR)),
            (sticky(), file(1), false, &OTHER, Err(Errno::EPERM), Err(Errno::EPERM)),
            (sticky(), directory(2), true, &OWNER, Err(Errno::EISDIR), Ok(())),
            (sticky(), directory(2), true, &OTHER, Err(Errno::EPERM), Err(Errno::EPERM)),
            (sticky(), directory(2), true, &Cred::ROOT, Err(Errno::EISDIR), Ok(())),
        ] {
            assert_eq!(may_unlink(&parent, &inode, cred), unlink, "{parent:?} {inode:?}");
            assert_eq!(may_rmdir(&parent, &inode, is_empty, cred), rmdir, "{parent:?} {inode:?}");
        }
    }

    #[test]
    fn flags_and_sticky_directories_decide_what_is_renamed() {
        let plain = RenameFlags::default();
        let no_replace = RenameFlags { no_replace: true, ..plain };
        let exchange = RenameFlags { exchange: true, ..plain };
        let (open, sticky, inode) = (directory(2), sticky(), file(1));
        let there = Some(&inode);
        for (from, to, target, flags, cred, result) in [
            (&open, &open, None, plain, &OTHER, Ok(())),
            (&open, &open, there, plain, &OTHER, Ok(())),
            (&open, &open, None, no_replace, &OTHER, Ok(())),
            (&open, &open, there, no_replace, &OTHER, Err(Errno::EEXIST)),
            (&open, &open, None, exchange, &OTHER, Err(Errno::ENOENT)),
            (&open, &open, there, exchange, &OTHER, Ok(())),
            (&sticky, &open, None, plain, &OTHER, Err(Errno::EPERM)),
            (&sticky, &open, None, exchange, &OTHER, Err(Errno::EPERM)),
            (&sticky, &open, None, plain, &OWNER, Ok(())),
            (&open, &sticky, None, plain, &OTHER, Ok(())),
            (&open, &sticky, there, plain, &OTHER, Err(Errno::EPERM)),
            (&open, &sticky, there, no_replace, &OTHER, Err(Errno::EPERM)),
            (&open, &sticky, there, plain, &OWNER, Ok(())),
        ] {
            let may = may_rename((from, &inode), (to, target), flags, cred);
            assert_eq!(may, result, "{flags:?} by {} over {target:?}", cred.uid);
        }
    }

    #[test]
    fn directories_and_others_replace_their_like() {
        let (dir, file) = (directory(2), file(1));
        for (source, target, is_empty, result) in [
            (&file, &file, true, Ok(())),
            (&file, &dir, true, Err(Errno::EISDIR)),
            (&dir, &file, true, Err(Errno::ENOTDIR)),
            (&dir, &dir, true, Ok(())),
            (&dir, &dir, false, Err(Errno::ENOTEMPTY)),
        ] {
            assert_eq!(may_replace(source, target, is_empty), result);
        }
    }

    #[test]
    fn names_and_subdirectories_are_counted_and_changes_dated() {
        for (inode, left, in_parent) in
            [(file(1), 0, 5), (file(3), 2, 5), (file(0), 0, 5), (directory(2), 0, 4)]
        {
            let (mut parent, mut inode) = (directory(5), inode);
            entry_removed(&mut parent, &mut inode, NOW);
            assert_eq!((inode.nlink, parent.nlink), (left, in_parent));
            assert_eq!((was_dated(&inode), was_dated(&parent)), ((false, true), (true, true)));
        }
        for (is_dir, in_parent) in [(false, 5), (true, 6)] {
            let mut parent = directory(5);
            entry_added(&mut parent, is_dir, NOW);
            assert_eq!((parent.nlink, was_dated(&parent)), (in_parent, (true, true)));
        }
        let (mut parent, mut inode) = (directory(5), file(0));
        linked(&mut parent, &mut inode, NOW);
        assert_eq!((inode.nlink, parent.nlink), (1, 5));
        assert_eq!((was_dated(&inode), was_dated(&parent)), ((false, true), (true, true)));
    }

    #[test]
    fn a_rename_moves_links_between_directories() {
        let (dir, file) = (|| directory(2), || file(3));
        // Links of the old directory, which had 10, of the new one, which had 20, if that is
        // another, and of what the new name led to.
        for (source, target, exchange, same, (from, to, left)) in [
            (file(), None, false, true, (10, 20, None)),
            (file(), None, false, false, (10, 20, None)),
            (dir(), None, false, true, (10, 20, None)),
            (dir(), None, false, false, (9, 21, None)),
            (file(), Some(file()), false, false, (10, 20, Some(2))),
            (dir(), Some(dir()), false, true, (9, 20, Some(0))),
            (dir(), Some(dir()), false, false, (9, 20, Some(0))),
            (file(), Some(file()), true, false, (10, 20, Some(3))),
            (dir(), Some(dir()), true, false, (10, 20, Some(2))),
            (dir(), Some(file()), true, false, (9, 21, Some(3))),
            (file(), Some(dir()), true, false, (11, 19, Some(2))),
            (file(), Some(dir()), true, true, (10, 20, Some(2))),
        ] {
            let what = format!("{:o}, {target:?}, {exchange}, {same}", source.mode);
            let (mut old, mut new) = (directory(10), directory(20));
            let (links, mut source, mut target) = (source.nlink, source, target);
            let to_new = (!same).then_some(&mut new);
            let (from_old, target_now) = (&mut old, target.as_mut());
            let parts =
                Renaming { from: from_old, to: to_new, source: &mut source, target: target_now };
            renamed(parts, exchange, NOW);
            assert_eq!((old.nlink, new.nlink), (from, to), "{what}");
            assert_eq!(target.as_ref().map(|target| target.nlink), left, "{what}");
            assert_eq!(source.nlink, links, "{what}");
            assert_eq!((was_dated(&old), was_dated(&new)), ((true, true), (!same, !same)));
            assert_eq!(was_dated(&source), (false, true), "{what}");
            assert!(target.is_none_or(|target| was_dated(&target) == (false, true)), "{what}");
        }
    }
}

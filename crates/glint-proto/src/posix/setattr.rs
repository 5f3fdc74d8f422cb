//! Rights that a setattr needs and changes that it makes: chmod(2), chown(2), truncate(2),
//! utimensat(2); and rights that a change of data takes away (capabilities(7)).

use super::permission::permit_owner;
use crate::limits::FILE_BYTES_MAX;
use crate::{Attr, Cred, Errno, FileType, FsResult, SetAttr, SetTime, Timestamp};

/// A right that a setattr needs beside those that attributes and credentials decide.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// None.
    Nothing,
    /// To write the file, unless it is open to be written: that was checked when it was opened.
    WriteOrOpen,
    /// To write the inode.
    Write,
}

/// Effects of a setattr beside those on attributes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Effects {
    /// File capabilities are gone.
    pub kills_capability: bool,
    /// New permission bits, for the access ACL.
    pub permissions: Option<u32>,
}

/// Whether `cred` may set this, and what else it needs. EPERM, EISDIR, EINVAL, EFBIG. EPERM also if
/// the result depends on groups of the caller that are not known.
pub fn permit_setattr(attr: &Attr, cred: &Cred, set: &SetAttr) -> FsResult<Needs> {
    if set.mode.is_some() {
        permit_owner(attr, cred)?;
    }
    let is_root = cred.is_superuser();
    if let Some(uid) = set.uid
        && !is_root
        && (uid != attr.uid || cred.uid != uid)
    {
        return Err(Errno::EPERM);
    }
    if let Some(gid) = set.gid
        && !is_root
        && (cred.uid != attr.uid || (gid != attr.gid && !cred.is_member(gid)))
    {
        return Err(Errno::EPERM);
    }
    if takes_set_id(attr, set) && needs_groups(attr, cred) {
        return Err(Errno::EPERM);
    }
    let mut needs = Needs::Nothing;
    if let Some(size) = set.size {
        match attr.file_type() {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        if size > FILE_BYTES_MAX {
            return Err(Errno::EFBIG);
        }
        needs = Needs::WriteOrOpen;
    }
    let explicit = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
    if explicit(set.atime) || explicit(set.mtime) {
        permit_owner(attr, cred)?;
    } else if (set.atime.is_some() || set.mtime.is_some())
        && set.size.is_none()
        && permit_owner(attr, cred).is_err()
    {
        needs = Needs::Write;
    }
    Ok(needs)
}

/// Sets attributes. `cred` was permitted to.
pub fn apply_setattr(attr: &mut Attr, set: &SetAttr, cred: &Cred, now: Timestamp) -> Effects {
    let mut effects = Effects::default();
    // By the group that the file has had.
    let keeps_group = keeps_set_group(attr, cred);
    if set.uid.is_some() || set.gid.is_some() {
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        if !attr.is_dir() {
            take_set_id(attr, keeps_group);
            effects.kills_capability = true;
        }
    }
    if let Some(mode) = set.mode {
        let mut mode = mode & 0o7777;
        // Of a caller without groups the kernel has looked at them.
        if cred.groups.is_some() && !keeps_set_group(attr, cred) {
            mode &= !libc::S_ISGID;
        }
        attr.mode = (attr.mode & !0o7777) | mode;
        effects.permissions = Some(mode);
    }
    if set.kill_suidgid {
        take_set_id(attr, keeps_group);
    }
    effects.kills_capability |= set.kill_capability || set.size.is_some();
    if let Some(size) = set.size {
        // The caller now changes the objects; until its writers close they are what counts, so a
        // crash in between leaves the old size.
        attr.size = size;
        attr.size_on_ost = true;
        attr.mtime = now;
    }
    let time = |set: SetTime| match set {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    attr.atime = set.atime.map_or(attr.atime, time);
    attr.mtime = set.mtime.map_or(attr.mtime, time);
    match set.ctime {
        Some(time) => attr.ctime = attr.ctime.max(time),
        None => attr.change_at(now),
    }
    effects
}

/// Takes the set-id bits that a file loses when `cred`, which has no CAP_FSETID unless it is the
/// superuser, changes its data. EPERM, and nothing is changed, if that depends on groups of the
/// caller that are not known.
pub fn kill_set_id(attr: &mut Attr, cred: &Cred) -> FsResult<()> {
    if needs_groups(attr, cred) {
        return Err(Errno::EPERM);
    }
    let keeps_group = keeps_set_group(attr, cred);
    take_set_id(attr, keeps_group);
    Ok(())
}

/// Whether a setattr takes set-id bits.
fn takes_set_id(attr: &Attr, set: &SetAttr) -> bool {
    set.kill_suidgid || ((set.uid.is_some() || set.gid.is_some()) && !attr.is_dir())
}

/// Whether the caller may have set-group-id on a file: who is not in its group may not.
fn keeps_set_group(attr: &Attr, cred: &Cred) -> bool {
    cred.is_superuser() || cred.is_member(attr.gid)
}

/// Whether groups that are not known decide about set-group-id.
fn needs_groups(attr: &Attr, cred: &Cred) -> bool {
    const SET_GROUP: u32 = libc::S_ISGID | libc::S_IXGRP;
    attr.mode & SET_GROUP == libc::S_ISGID && cred.groups.is_none() && !keeps_set_group(attr, cred)
}

/// Takes set-user-id and set-group-id. Without the right to execute, set-group-id does not make a
/// program another group's, so those who may have it keep it.
fn take_set_id(attr: &mut Attr, keeps_group: bool) {
    attr.mode &= !libc::S_ISUID;
    if attr.mode & libc::S_IXGRP != 0 || !keeps_group {
        attr.mode &= !libc::S_ISGID;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::posix::create::tests::attr;

    fn cred(uid: u32, groups: &[u32]) -> Cred {
        Cred { uid, gid: 100, groups: Some(groups.to_vec()) }
    }

    fn of(mode: u32) -> Attr {
        Attr { uid: 1, gid: 2, ..attr(mode) }
    }

    #[test]
    fn who_may_set_what() {
        let none = SetAttr::default();
        let mode = SetAttr { mode: Some(0o600), ..none.clone() };
        let uid = |uid| SetAttr { uid: Some(uid), ..none.clone() };
        let gid = |gid| SetAttr { gid: Some(gid), ..none.clone() };
        let size = |size| SetAttr { size: Some(size), ..none.clone() };
        let touch =
            SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..none.clone() };
        let at = SetTime::At(Timestamp { secs: 1, nanos: 0 });
        let dated = SetAttr { mtime: Some(at), ..none.clone() };
        let (owner, other, root) = (cred(1, &[7]), cred(5, &[7]), Cred::ROOT);
        let file = of(0o100644);
        for (who, set, result) in [
            (&owner, &mode, Ok(Needs::Nothing)),
            (&other, &mode, Err(Errno::EPERM)),
            (&root, &mode, Ok(Needs::Nothing)),
            (&owner, &uid(1), Ok(Needs::Nothing)),
            (&owner, &uid(5), Err(Errno::EPERM)),
            (&other, &uid(5), Err(Errno::EPERM)),
            (&root, &uid(5), Ok(Needs::Nothing)),
            (&owner, &gid(7), Ok(Needs::Nothing)),
            (&owner, &gid(8), Err(Errno::EPERM)),
            (&other, &gid(7), Err(Errno::EPERM)),
            (&other, &size(5), Ok(Needs::WriteOrOpen)),
            (&root, &size(1 << 63), Err(Errno::EFBIG)),
            (&owner, &touch, Ok(Needs::Nothing)),
            (&other, &touch, Ok(Needs::Write)),
            (&owner, &dated, Ok(Needs::Nothing)),
            (&other, &dated, Err(Errno::EPERM)),
        ] {
            assert_eq!(permit_setattr(&file, who, set), result, "{who:?} {set:?}");
        }
        // Groups decide about set-group-id without the right to execute.
        let kill = SetAttr { kill_suidgid: true, ..none };
        let unknown = Cred { groups: None, ..other.clone() };
        for (mode, who, result) in [
            (0o102644, &other, Ok(Needs::Nothing)),
            (0o102644, &unknown, Err(Errno::EPERM)),
            (0o102644, &Cred { gid: 2, ..unknown.clone() }, Ok(Needs::Nothing)),
            (0o102654, &unknown, Ok(Needs::Nothing)),
            (0o104644, &unknown, Ok(Needs::Nothing)),
        ] {
            assert_eq!(permit_setattr(&of(mode), who, &kill), result, "{mode:o} {who:?}");
        }
        let truncate = |mode| permit_setattr(&of(mode), &root, &size(0));
        assert_eq!(truncate(0o040755), Err(Errno::EISDIR));
        assert_eq!(truncate(0o010644), Err(Errno::EINVAL));
    }

    #[test]
    fn a_ctime_that_was_seen_does_not_go_back() {
        let mut attr = of(0o100644);
        let early = Timestamp { secs: -1, nanos: 0 };
        let before = attr.ctime;
        assert!(early < before);
        apply_setattr(&mut attr, &SetAttr::default(), &Cred::ROOT, early);
        assert_eq!(attr.ctime, before.next());
        let of_kernel = SetAttr { ctime: Some(early), ..SetAttr::default() };
        apply_setattr(&mut attr, &of_kernel, &Cred::ROOT, early);
        assert_eq!(attr.ctime, before.next());
    }

    #[test]
    fn what_changes() {
        let now = Timestamp { secs: 9, nanos: 0 };
        let apply = |mode, set: SetAttr, who: &Cred| {
            let mut attr = of(mode);
            let effects = apply_setattr(&mut attr, &set, who, now);
            assert_eq!(attr.ctime, now);
            (attr, effects)
        };
        let none = SetAttr::default();
        let chown = SetAttr { uid: Some(5), ..none.clone() };
        let (attr, effects) = apply(0o106755, chown.clone(), &Cred::ROOT);
        assert_eq!((attr.uid, attr.gid, attr.mode), (5, 2, 0o100755));
        assert!(effects.kills_capability);
        let (attr, effects) = apply(0o042755, chown, &Cred::ROOT);
        assert_eq!((attr.mode, effects), (0o042755, Effects::default()), "of a directory it stays");

        let chmod = SetAttr { mode: Some(0o102755), ..none.clone() };
        let mode = |groups: &[u32]| apply(0o100644, chmod.clone(), &cred(1, groups)).0.mode;
        assert_eq!((mode(&[2]), mode(&[])), (0o102755, 0o100755), "a group of others");
        assert_eq!(apply(0o100644, chmod.clone(), &Cred::ROOT).1.permissions, Some(0o2755));

        let (attr, effects) =
            apply(0o100644, SetAttr { size: Some(3), ..none.clone() }, &Cred::ROOT);
        assert_eq!((attr.size, attr.size_on_ost, attr.mtime), (3, true, now));
        assert!(effects.kills_capability);

        let then = Timestamp { secs: 1, nanos: 0 };
        let set = SetAttr { mtime: Some(SetTime::At(then)), ..none.clone() };
        let (attr, effects) = apply(0o104755, set, &Cred::ROOT);
        assert_eq!((attr.mtime, attr.mode, effects), (then, 0o104755, Effects::default()));

        let kill = SetAttr { kill_suidgid: true, ..none.clone() };
        assert_eq!(apply(0o106755, kill.clone(), &Cred::ROOT).0.mode, 0o100755);
        assert_eq!(apply(0o102644, kill.clone(), &Cred::ROOT).0.mode, 0o102644);
        assert_eq!(apply(0o102644, kill.clone(), &cred(5, &[2])).0.mode, 0o102644);
        assert_eq!(apply(0o102644, kill, &cred(5, &[])).0.mode, 0o100644, "a group of others");
        // The group that the file has before counts.
        let chgrp = SetAttr { gid: Some(7), ..none };
        assert_eq!(apply(0o106644, chgrp.clone(), &cred(1, &[7])).0.mode, 0o100644);
        assert_eq!(apply(0o106644, chgrp, &cred(1, &[2, 7])).0.mode, 0o102644);
    }
}
